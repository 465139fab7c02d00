"""How much of each prompt this run had sent before: all that a prefix cache which began cold can hold of it."""

import asyncio
from array import array

from loadgen.driver import Client
from loadgen.exchange import Exchange
from loadgen.workload import Sharing


class Prefixes:
    """A client that notes it on each exchange, in the order in which they leave, right after they left.

    Where no two prompts share anything, `unique`, nothing needs to be kept and it is 0 for all.
    """

    def __init__(self, client: Client, *, unique: bool) -> None:
        self._client = client
        self._sharing = None if unique else Sharing()

    async def stream(self, exchange: Exchange) -> None:
        if self._sharing is None:
            exchange.shared = 0
        else:
            asyncio.get_running_loop().call_soon(self._note, exchange)
        await self._client.stream(exchange)
        self._note_answer(exchange)

    def _note(self, exchange: Exchange) -> None:
        assert self._sharing is not None
        exchange.shared = self._sharing.of(exchange.request.prompt)

    def _note_answer(self, exchange: Exchange) -> None:
        """The next turn of a conversation begins with this prompt and its answer."""
        prompt, answer = exchange.request.prompt, exchange.answer
        if self._sharing and answer is not None and not isinstance(answer, str) and not isinstance(prompt, str | tuple):
            self._sharing.add(array("i", prompt) + array("i", answer))
