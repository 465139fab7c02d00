"""What every command stands in: its group, codes and options, files in, a folder out, a loop, and an end with its code.

Heavy things are imported where they are used: `loadgen --help` answers at once.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

import click

import loadgen

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from loadgen.record import Record
    from loadgen.scenario import Scenario

T = TypeVar("T")
CHECK_FAILED, WRONG_USE, INVALID, TARGET_FAILED, INTERRUPTED = 1, 2, 3, 4, 130

target_option = click.option(
    "--target", help="simulator, sglang, or the URL of a running server; by default the scenario's."
)
set_option = click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a key: --set arrivals.rate=8"
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(loadgen.__version__)
def commands() -> None:
    """Drives LLM servers with the arrival pattern you ask for, and says what that pattern cost."""


@contextlib.contextmanager
def inputs() -> Iterator[None]:
    """Files that cannot be used are wrong use, told with all of their faults."""
    from loadgen.traces import DataError
    from loadgen.workload import TokenizerError

    try:
        yield
    except DataError as error:
        stop(WRONG_USE, *error.faults)
    except TokenizerError as error:
        stop(WRONG_USE, str(error))


class Cut(Protocol):
    """Prints what there is of work that was cut short, or only if it was `judged`; whether there is any."""

    def __call__(self, *, judged: bool) -> bool: ...


def until_done(work: Coroutine[Any, Any, T], folder: Path, cut: Cut) -> T:
    """The result of work that leaves records in `folder`; where it is interrupted or its target fails, this process
    ends with the code that says so."""
    import asyncio
    import resource
    import signal

    import uvloop

    from loadgen.target import TargetError

    async def stoppable() -> T:
        task = asyncio.current_task()
        assert task is not None
        # SIGTERM ends a run as Ctrl-C does: what was seen is kept, what was started is ended.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await work

    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # one open file for each request in flight
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(stoppable())
    except (KeyboardInterrupt, asyncio.CancelledError):
        if not cut(judged=False):
            click.echo("interrupted before the run began", err=True)
        sys.exit(INTERRUPTED)
    except TargetError as error:
        cut(judged=True)
        with contextlib.suppress(OSError):
            folder.rmdir()  # where nothing was recorded
        stop(TARGET_FAILED, f"{error}")
    except OSError as error:
        stop(INVALID, f"the record in {folder} could not be written: {error.strerror or error}")
    except ExceptionGroup as group:
        failed, bugs = group.split(OSError)
        if bugs or not failed:
            raise
        stop(INVALID, f"the record in {folder} could not be written: {failed.exceptions[0]}")


def teller(*, quiet: bool) -> Callable[[str], None]:
    return (lambda _: None) if quiet else lambda text: click.echo(text, err=True)


def load_scenario(scenario: str, overrides: list[str], target: str | None) -> tuple[Scenario, str]:
    from loadgen.scenario import ScenarioError, find, load

    try:
        path = find(scenario)
        return load(path, overrides, target), path.stem
    except ScenarioError as error:
        stop(WRONG_USE, *error.faults)


def new_folder(out: Path | None, name: str) -> Path:
    import datetime

    if out is not None:
        try:
            out.mkdir(parents=True, exist_ok=True)
            if any(out.iterdir()):
                stop(WRONG_USE, f"--out {out}: the folder is not empty; a record is never written over")
        except OSError as error:
            stop(WRONG_USE, f"--out {out}: cannot be made: {error.strerror}")
        return out
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%S")
    number = 1
    while True:
        folder = Path("runs") / f"{stamp}-{name}{f'-{number}' if number > 1 else ''}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            number += 1  # another run of this second has it
        except OSError as error:
            stop(WRONG_USE, f"{folder}: cannot be made: {error.strerror}; say where with --out")
        else:
            return folder


def read_record(folder: Path) -> Record:
    from loadgen.record import Record, RecordError

    try:
        return Record.read(folder)
    except RecordError as error:
        stop(WRONG_USE, str(error))


def stop(code: int, *lines: str) -> NoReturn:
    for line in lines:
        click.echo(line, err=True)
    sys.exit(code)
