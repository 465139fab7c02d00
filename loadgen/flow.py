"""How one class of traffic comes: what is due at instants fixed beforehand, and what follows on an answer.

    open        every request has its instant; nothing follows
    closed      N users, each with one request on its way or thinking: the next request of the workload follows
    sessions    conversations begin as an arrival process says; the turns of one follow on each other

All draws are made here from named streams of the seed, never while the load is on its way but for the think times and
prompts of a closed loop that only a duration ends, which come in the order of the requests.
"""

import itertools
import random
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from loadgen.driver import Follow
from loadgen.exchange import Exchange, Outcome, Request
from loadgen.think import Think
from loadgen.workload import Length

PAUSE = 0.1  # seconds before what follows on a failure, at least: a dead server is not hammered
FILLER = " w0"  # a word of an answer that did not come
PREVIEW = 1000  # requests at least of a closed loop without a count that are drawn beforehand, for the fingerprint


@dataclass(frozen=True)
class Flow:
    """Requests that are due at `offsets` (seconds from the start, pairwise), and what follows on each that ends.

    `total` is how many requests come due in all, None where the answers decide that. `known` holds requests and
    `thinks` the think times that are known beforehand, for the fingerprints.
    """

    offsets: "array[float]"
    requests: list[Request]
    follow: Follow = field(default=lambda _: None)
    total: int | None = None
    known: list[Request] = field(default_factory=list)
    thinks: "array[float]" = field(default_factory=lambda: array("d"))


def open_loop(offsets: Iterable[float], requests: Iterable[Request]) -> Flow:
    """Each request at its own instant; ends with whichever of the two ends first."""
    at: array[float] = array("d")
    due: list[Request] = []
    for offset, request in zip(offsets, requests, strict=False):
        at.append(offset)
        due.append(request)
    return Flow(at, due, total=len(due), known=due)


def closed_loop(
    starts: Iterable[float], requests: Iterator[Request], think: Think, rng: np.random.Generator, count: int | None
) -> Flow:
    """Users who begin at `starts` and take the requests in order, each a think time after its last answer.

    `count` ends the loop after so many requests; without it the duration does.
    """
    offsets = array("d", starts)
    known = list(itertools.islice(requests, max(PREVIEW, len(offsets)) if count is None else count))
    offsets = offsets[: len(known)]
    thinks = array("d", (think.draw(rng) for _ in known[len(offsets) :]))
    drawn = zip(thinks, known[len(offsets) :], strict=True)
    later = ((think.draw(rng), request) for request in requests) if count is None else iter(())
    pool = itertools.chain(drawn, later)

    def follow(exchange: Exchange) -> tuple[float, Request] | None:
        following = next(pool, None)
        return following and (_pause(exchange, following[0]), following[1])

    return Flow(offsets, known[: len(offsets)], follow, count and len(known), known, thinks)


def sessions(
    starts: Iterable[float],
    openings: Iterator[Request],
    follow_ups: Iterator[Request],
    turns: Length,
    think: Think,
    rng: np.random.Generator,
    count: int | None,
) -> Flow:
    """Conversations that begin at `starts`, each with one of `openings`; the turns after it are `follow_ups`.

    Each turn's prompt is the conversation so far and what the request adds to it: the prompts and answers before it.
    A turn that failed does not end its conversation, so that the load stays as scheduled: a stand-in of the length
    that was asked for takes the place of its answer. `count` cuts the last conversation. Which turns come due before
    the duration ends, the answers decide.
    """
    how_many, thinking = rng.spawn(2)
    offsets, thinks = array("d"), array("d")
    first: list[Request] = []
    known: list[Request] = []
    after: dict[int, tuple[float, Request]] = {}  # by the index of the turn before
    left = count
    for session, offset in enumerate(starts):
        n = int(turns.draw(how_many, 1)[0])
        if (opening := next(openings, None)) is None:
            break
        taken = [opening, *itertools.islice(follow_ups, (n if left is None else min(n, left)) - 1)]
        conversation = [
            replace(request, index=len(known) + turn, session=session, turn=turn) for turn, request in enumerate(taken)
        ]
        pauses = array("d", (think.draw(thinking) for _ in conversation[1:]))
        for before, pause, turn in zip(conversation, pauses, conversation[1:], strict=False):
            after[before.index] = (pause, turn)
        offsets.append(offset)
        first.append(conversation[0])
        known += conversation
        thinks += pauses
        if left is not None and (left := left - len(taken)) == 0:
            break

    def follow(exchange: Exchange) -> tuple[float, Request] | None:
        following = after.pop(exchange.request.index, None)
        return following and (_pause(exchange, following[0]), next_turn(exchange, following[1]))

    return Flow(offsets, first, follow, len(known), known, thinks)


def _pause(exchange: Exchange, think: float) -> float:
    return think if exchange.outcome is Outcome.OK else max(think, PAUSE)


def next_turn(exchange: Exchange, turn: Request) -> Request:
    """The turn with the conversation so far in front of it: the last prompt and its answer.

    A prompt of ids needs the answer's ids, which SGLang's native API sends. Where no answer came in this form, a
    stand-in of the length that was asked for takes its place, of the prompt's own ids or of filler words.
    """
    before, asked = exchange.request, exchange.request.output_len
    answer = exchange.answer if exchange.outcome is Outcome.OK else None
    said = answer if isinstance(answer, str) else FILLER * asked
    match before.prompt, turn.prompt:
        case tuple(so_far), tuple(more):
            return replace(turn, prompt=(*so_far, {"role": "assistant", "content": said}, *more), text_len=None)
        case str(text), str(more):
            return replace(turn, prompt=text + said + more, text_len=None)
        case (str() | tuple(), _) | (_, str() | tuple()):
            raise TypeError("the turns of a conversation must be of one form")
        case ids, new_ids:
            if answer is None or isinstance(answer, str):
                answer = random.Random(f"{before.session}/{before.turn}").choices(ids, k=asked)  # noqa: S311 - filler
            return replace(turn, prompt=array("i", ids) + array("i", answer) + array("i", new_ids))
