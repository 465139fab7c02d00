"""The command line. Heavy things are imported where they are used: `loadgen --help` answers at once.

Exit codes: 0 fine, 1 the check failed (an SLO was missed, a fixed batch does not fit), 2 wrong use, 3 the run is
INVALID or a comparison refused, 4 the target failed, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

import click

import loadgen

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from loadgen.record import Record
    from loadgen.scenario import Scenario
    from loadgen.schedule import Schedule
    from loadgen.target import Mode

T = TypeVar("T")
TARGETS = "simulator, sglang, or the URL of a running server; by default the scenario's."
CHECK_FAILED, WRONG_USE, INVALID, TARGET_FAILED, INTERRUPTED = 1, 2, 3, 4, 130


def main() -> None:
    """The console script: click's own, but for an interrupt, which is not a failed check, and for closed streams."""
    for descriptor in range(3):  # a closed standard stream would lend its number to a socket
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without ≤ shows a question mark
    try:
        sys.exit(commands.main(standalone_mode=False))
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(INTERRUPTED)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(loadgen.__version__)
def commands() -> None:
    """Drives LLM servers with the arrival pattern you ask for, and says what that pattern cost."""


@commands.command()
@click.argument("scenario")
@click.option("--target", help=TARGETS)
@click.option(
    "--mode",
    type=click.Choice(["serving", "oneshot", "static"]),
    default="serving",
    show_default=True,
    help="serving: over HTTP; oneshot: all prompts at once into an engine in this process; static: fixed batches "
    "straight into its model runner.",
)
@click.option("--batch-size", type=click.IntRange(1), help="Of static: sequences a batch; default: the server's most.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a key: --set arrivals.rate=8")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the schedule and the prompts.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the record; by default a new one in runs/.")
@click.option("--json", "as_json", is_flag=True, help="Print record.json and nothing else on stdout.")
@click.option("--quiet", is_flag=True, help="Print only the verdict, the reasons and where the record is.")
@click.option("--request-rate", help="As in bench_serving: arrivals.rate, in requests per second.")
@click.option("--max-concurrency", help="As in bench_serving: limits.max_concurrency.")
@click.option("--num-prompts", help="As in bench_serving: workload.num_prompts.")
@click.option("--random-input-len", help="As in bench_serving: workload.input_len, in tokens.")
@click.option("--random-output-len", help="As in bench_serving: workload.output_len, in tokens.")
@click.option("--random-range-ratio", help="As in SGLang's bench_serving: lengths uniform in [length x ratio, length].")
@click.option(
    "--vllm-range-ratio", help="As vLLM has it: lengths uniform in [length x (1 - ratio), length x (1 + ratio)]."
)
@click.option("--burstiness", help="As in vLLM: of gamma arrivals and of rates that vary.")
@click.option("--duration", help="measure.duration: seconds in which requests come due.")
def run(
    scenario: str,
    target: str | None,
    mode: Mode,
    batch_size: int | None,
    overrides: tuple[str, ...],
    seed: int,
    out: Path | None,
    as_json: bool,
    quiet: bool,
    **shorthands: str | None,
) -> None:
    """Run SCENARIO, a name in scenarios/ or the path of a .toml file, and leave its record."""
    keys = {
        "request_rate": "arrivals.rate",
        "max_concurrency": "limits.max_concurrency",
        "num_prompts": "workload.num_prompts",
        "random_input_len": "workload.input_len",
        "random_output_len": "workload.output_len",
        "random_range_ratio": "workload.random_range_ratio",
        "vllm_range_ratio": "workload.vllm_range_ratio",
        "burstiness": "arrivals.burstiness",
        "duration": "measure.duration",
    }
    short = [f"{keys[name]}={value}" for name, value in shorthands.items() if value is not None]
    checked, name = _load(scenario, [*short, *overrides], target)
    if batch_size is not None and mode != "static":
        _stop(WRONG_USE, "--batch-size is of --mode static")
    checked, schedule = _planned(checked, seed, mode)
    if mode != "serving":
        _enter(checked)
    folder = _new_folder(out, name)
    record = _run(checked, schedule, name, seed, folder, as_json=as_json, quiet=quiet, mode=mode, batch_size=batch_size)
    _print(record, as_json=as_json, quiet=quiet)
    sys.exit(_exit_code(record.data))


def _planned(scenario: Scenario, seed: int, mode: Mode) -> tuple[Scenario, Schedule]:
    """A scenario and its schedule under a seed, or as the modes without a service have them: all at once."""
    from loadgen.schedule import at_once, plan

    with _inputs():
        schedule = plan(scenario, seed)
        if mode == "serving":
            return scenario, schedule
        if scenario.target.kind == "url":
            _stop(WRONG_USE, f"--mode {mode} runs in this process: it needs the target simulator or sglang, not a URL")
        if scenario.target.api != "generate":
            _stop(WRONG_USE, f'--mode {mode} sends no chats and no completions: set target.api = "generate"')
        if mode == "static" and not schedule.of_ids:
            _stop(WRONG_USE, "--mode static takes token ids, and this workload has texts: give it a tokenizer")
        return at_once(scenario, schedule)


def _enter(scenario: Scenario) -> None:
    """Into SGLang's environment, where the mode needs it in this process."""
    from loadgen.scenario import SglangTarget
    from loadgen.target import TargetError
    from loadgen.target.inprocess import enter

    if isinstance(scenario.target, SglangTarget):
        try:
            enter(scenario.target)
        except TargetError as error:
            _stop(TARGET_FAILED, str(error))


@contextlib.contextmanager
def _inputs() -> Iterator[None]:
    """Files that cannot be used are wrong use, told with all of their faults."""
    from loadgen.traces import DataError
    from loadgen.workload import TokenizerError

    try:
        yield
    except DataError as error:
        _stop(WRONG_USE, *error.faults)
    except TokenizerError as error:
        _stop(WRONG_USE, str(error))


def _run(
    scenario: Scenario,
    schedule: Schedule,
    name: str,
    seed: int,
    folder: Path,
    *,
    as_json: bool,
    quiet: bool,
    mode: Mode,
    batch_size: int | None,
) -> Record:
    from loadgen.record import Record, RecordError
    from loadgen.report.progress import progress
    from loadgen.run import run as run_scenario

    async def shown() -> Record:
        with progress(schedule.total, show=not (as_json or quiet)) as watch:
            tell = _teller(quiet=quiet)
            return await run_scenario(
                scenario, schedule, name, seed, folder, watch, mode=mode, batch_size=batch_size, tell=tell
            )

    def cut(*, judged: bool) -> bool:
        try:
            record = Record.read(folder)
        except RecordError:
            return False
        if not judged or "verdict" in record.data:
            _print(record, as_json=as_json, quiet=quiet)
        return True

    return _until_done(shown(), folder, cut)


class _Cut(Protocol):
    """Prints what there is of work that was cut short, or only if it was `judged`; whether there is any."""

    def __call__(self, *, judged: bool) -> bool: ...


def _until_done(work: Coroutine[Any, Any, T], folder: Path, cut: _Cut) -> T:
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
        _stop(TARGET_FAILED, f"{error}")
    except OSError as error:
        _stop(INVALID, f"the record in {folder} could not be written: {error.strerror or error}")
    except ExceptionGroup as group:
        failed, bugs = group.split(OSError)
        if bugs or not failed:
            raise
        _stop(INVALID, f"the record in {folder} could not be written: {failed.exceptions[0]}")


def _teller(*, quiet: bool) -> Callable[[str], None]:
    return (lambda _: None) if quiet else lambda text: click.echo(text, err=True)


def _load(scenario: str, overrides: list[str], target: str | None) -> tuple[Scenario, str]:
    from loadgen.scenario import ScenarioError, find, load

    try:
        path = find(scenario)
        return load(path, overrides, target), path.stem
    except ScenarioError as error:
        _stop(WRONG_USE, *error.faults)


def _new_folder(out: Path | None, name: str) -> Path:
    import datetime

    if out is not None:
        try:
            out.mkdir(parents=True, exist_ok=True)
            if any(out.iterdir()):
                _stop(WRONG_USE, f"--out {out}: the folder is not empty; a record is never written over")
        except OSError as error:
            _stop(WRONG_USE, f"--out {out}: cannot be made: {error.strerror}")
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
            _stop(WRONG_USE, f"{folder}: cannot be made: {error.strerror}; say where with --out")
        else:
            return folder


def _print(record: Record, *, as_json: bool, quiet: bool) -> None:
    import json

    from loadgen.report.terminal import console, report, verdict

    try:
        if as_json:
            click.echo(json.dumps(record.data, indent=2))
        else:
            terminal = console()
            with terminal.capture() as drawn:  # rich would end a broken pipe with a code of its own
                terminal.print(verdict(record.data) if quiet else report(record.data))
            click.echo(f"{drawn.get()}record      {record.folder}")
        sys.stdout.flush()
    except OSError:  # whoever read our output has gone; the exit code is still the run's
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _exit_code(data: dict[str, Any]) -> int:
    from loadgen.verdict import fits

    if not fits(data):
        return CHECK_FAILED
    if not data.get("verdict", {}).get("valid"):
        return INVALID
    return 0 if all(slo["met"] for slo in data["slo"].values()) else CHECK_FAILED


def _stop(code: int, *lines: str) -> NoReturn:
    for line in lines:
        click.echo(line, err=True)
    sys.exit(code)


@commands.command()
@click.argument("scenario", required=False)
@click.option("--target", help=TARGETS)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a key: --set arrivals.rate=8")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the schedule and the prompts.")
@click.option("--repeats", type=click.IntRange(1, 100), default=3, show_default=True, help="Of the whole ladder.")
@click.option(
    "--switch", help="Not the ladder, but an option on and off in both modes: chunked_prefill, prefix_caching."
)
@click.option(
    "--of", "records", multiple=True, type=click.Path(path_type=Path), help="Compare these records, run none."
)
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the pair; by default a new one in runs/.")
@click.option("--json", "as_json", is_flag=True, help="Print pair.json and nothing else on stdout.")
@click.option("--quiet", is_flag=True, help="Do not tell how it is getting on.")
def pair(
    scenario: str | None,
    target: str | None,
    overrides: tuple[str, ...],
    seed: int,
    repeats: int,
    switch: str | None,
    records: tuple[Path, ...],
    out: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Run SCENARIO's prompts in one mode after the other and say what each step costs; or compare records.

    The ladder: static batches, one-shot in process, one-shot over HTTP, under the client's cap, with the arrivals.
    """
    if (scenario is None) == (not records):
        _stop(WRONG_USE, "say a SCENARIO to run, or records to compare with --of FOLDER --of FOLDER")
    if len(records) == 1:
        _stop(WRONG_USE, "one record has nothing to be compared with: say --of twice or more")
    if scenario is None:
        result = _compared([_read(folder) for folder in records])
    else:
        again = [scenario, *(["--target", target] if target else []), "--seed", str(seed)]
        again += [part for override in overrides for part in ("--set", override)]
        checked, name = _load(scenario, list(overrides), target)
        folder = _new_folder(out, f"{name}-{switch or 'pair'}")
        result = _climb(checked, name, seed, repeats, switch, folder, again, quiet=quiet or as_json)
    _print_pair(result, as_json=as_json)
    sys.exit(INVALID if result["differences"] or result["invalid"] else 0)


def _compared(records: list[Record]) -> dict[str, Any]:
    """What records that are there come to, rung by rung."""
    from loadgen.pair import of_records

    for record in records:
        if "verdict" not in record.data:
            _stop(WRONG_USE, f"{record.folder}: was killed before it could be judged: it has no figures to compare")
    try:
        return of_records(records)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        where = ", ".join(str(record.folder) for record in records)
        _stop(WRONG_USE, f"{where}: one of them is not as loadgen wrote it: {type(error).__name__} {error}")


def _climb(
    scenario: Scenario,
    name: str,
    seed: int,
    repeats: int,
    switch: str | None,
    folder: Path,
    again: list[str],
    *,
    quiet: bool,
) -> dict[str, Any]:
    """Run a ladder, or a switch, and leave its pair.json."""
    import json

    from loadgen.diagnosis.options import SWITCHES
    from loadgen.pair import climb, compare, ladder, switched

    if switch and switch not in SWITCHES:
        _stop(WRONG_USE, f"--switch {switch}: expected one of {', '.join(SWITCHES)}")
    if scenario.target.kind == "url":
        _stop(WRONG_USE, "a pair starts and ends what it drives: it needs the target simulator or sglang, not a URL")
    if scenario.target.api != "generate":
        _stop(WRONG_USE, 'a pair sends no chats and no completions: set target.api = "generate"')
    with _inputs():
        rungs = ladder(scenario, seed)
    tell = _teller(quiet=quiet)

    async def work() -> dict[str, Any]:
        if switch:
            return await switched(switch, rungs, repeats, name, seed, folder, again, tell)
        return compare(name, await climb(rungs, repeats, name, seed, folder, again, tell))

    def cut(*, judged: bool) -> bool:
        if not judged:
            click.echo(f"interrupted; the runs that had ended are in {folder}", err=True)
        return True

    result = _until_done(work(), folder, cut)
    (folder / "pair.json").write_text(json.dumps(result, indent=2))
    return {**result, "folder": str(folder)}


def _print_pair(result: dict[str, Any], *, as_json: bool) -> None:
    import json

    from loadgen.report.pair import pair_report
    from loadgen.report.terminal import console

    if as_json:
        click.echo(json.dumps(result, indent=2))
    else:
        terminal = console()
        with terminal.capture() as drawn:
            terminal.print(pair_report(result))
        click.echo(drawn.get() + (f"pair        {result['folder']}" if "folder" in result else ""))


@commands.command()
@click.argument("record", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print record.json and nothing else on stdout.")
@click.option(
    "--figure", "key", help="Print one figure of the card, such as memory.offline_peak, or why there is none."
)
def report(record: Path, as_json: bool, key: str | None) -> None:
    """Print the report of a RECORD's folder."""
    read = _read(record)
    try:
        if key is not None:
            _print_figure(read.data, key)
            return
        _print(read, as_json=as_json, quiet=False)
        code = _exit_code(read.data)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        _stop(WRONG_USE, f"{read.folder / 'record.json'}: is not as loadgen wrote it: {type(error).__name__} {error}")
    sys.exit(code)


def _print_figure(data: dict[str, Any], key: str) -> None:
    import json

    from loadgen.card import figure

    if "verdict" not in data:
        _stop(WRONG_USE, "the run was killed before it could be judged: it has no figures")
    try:
        value, reason = figure(data, key)
    except (KeyError, TypeError):
        _stop(WRONG_USE, f"--figure {key}: the card has no such field; see card.yaml")
    click.echo(json.dumps(value) + (f"  {reason}" if reason else ""))


def _read(folder: Path) -> Record:
    from loadgen.record import Record, RecordError

    try:
        return Record.read(folder)
    except RecordError as error:
        _stop(WRONG_USE, str(error))


@commands.group(invoke_without_command=True)
@click.pass_context
def scenarios(context: click.Context) -> None:
    """List the scenarios, each with the question it answers."""
    if context.invoked_subcommand is None:
        from loadgen.scenario import every, question

        found = every()
        width = max(map(len, found), default=0)
        for name, path in sorted(found.items()):
            click.echo(f"{name:<{width}}  {question(path)}")


@scenarios.command()
@click.argument("scenario")
@click.option("--arrivals", is_flag=True, help="Rate over time, CV and dispersion of the schedule, against theory.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a key: --set arrivals.rate=8")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the schedule.")
def show(scenario: str, arrivals: bool, overrides: tuple[str, ...], seed: int) -> None:
    """Show SCENARIO with all its keys, or its arrivals against their theory; nothing is sent."""
    import json

    from loadgen.report.arrivals import shown
    from loadgen.report.terminal import console
    from loadgen.scenario import find, question

    checked, name = _load(scenario, list(overrides), None)
    click.echo(f"{name}: {question(find(scenario))}")
    if not arrivals:
        click.echo(json.dumps(checked.model_dump(mode="json", exclude_none=True), indent=2))
        return
    with _inputs():
        console().print(shown(checked, seed))


@scenarios.command()
def schema() -> None:
    """Print the JSON Schema of a scenario, for editors."""
    import json

    from loadgen.scenario import Scenario

    click.echo(json.dumps(Scenario.model_json_schema(), indent=2))


@commands.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def serve(arguments: tuple[str, ...]) -> None:
    """Serve the simulator on 127.0.0.1; takes SGLang's own argument names (see serve --help)."""
    from loadgen.simulator.__main__ import main as serve_simulator

    sys.exit(serve_simulator(list(arguments)))
