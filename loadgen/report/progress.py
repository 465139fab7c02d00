"""A progress bar on a terminal, nothing elsewhere."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from loadgen.exchange import Exchange, Outcome

REFRESH = 0.5  # seconds; drawing took 0.4 ms of the client's core


@contextmanager
def progress(requests: int | None, *, show: bool) -> Iterator[Callable[[Exchange], None]]:
    """A function to be told of each exchange that has ended; it draws on stderr where that is a terminal."""
    console = Console(stderr=True)
    if not (show and console.is_terminal):
        yield lambda _: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, auto_refresh=False, transient=True) as bar:
        task = bar.add_task("requests", total=requests)
        failed, drawn = 0, 0.0

        def watch(exchange: Exchange) -> None:
            nonlocal failed, drawn
            failed += exchange.outcome is not Outcome.OK
            bar.update(task, advance=1, description=f"requests, {failed} failed" if failed else "requests")
            if (now := time.monotonic()) - drawn > REFRESH:
                drawn = now
                bar.refresh()

        yield watch
