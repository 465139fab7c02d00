"""`loadgen run` and `loadgen report`: one run, and what is said of it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loadgen.cli.frame import (
    CHECK_FAILED,
    INVALID,
    TARGET_FAILED,
    WRONG_USE,
    commands,
    inputs,
    load_scenario,
    new_folder,
    read_record,
    set_option,
    stop,
    target_option,
    teller,
    until_done,
)

if TYPE_CHECKING:
    from loadgen.record import Record
    from loadgen.scenario import Scenario
    from loadgen.schedule import Schedule
    from loadgen.target import Mode


@commands.command()
@click.argument("scenario")
@target_option
@click.option(
    "--mode",
    type=click.Choice(["serving", "oneshot", "static"]),
    default="serving",
    show_default=True,
    help="serving: over HTTP; oneshot: all prompts at once into an engine in this process; static: fixed batches "
    "straight into its model runner.",
)
@click.option("--batch-size", type=click.IntRange(1), help="Of static: sequences a batch; default: the server's most.")
@set_option
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
    checked, name = load_scenario(scenario, [*short, *overrides], target)
    if batch_size is not None and mode != "static":
        stop(WRONG_USE, "--batch-size is of --mode static")
    checked, schedule = _planned(checked, seed, mode)
    if mode != "serving":
        _enter(checked)
    folder = new_folder(out, name)
    record = _run(checked, schedule, name, seed, folder, as_json=as_json, quiet=quiet, mode=mode, batch_size=batch_size)
    _print(record, as_json=as_json, quiet=quiet)
    sys.exit(_exit_code(record.data))


def _planned(scenario: Scenario, seed: int, mode: Mode) -> tuple[Scenario, Schedule]:
    """A scenario and its schedule under a seed, or as the modes without a service have them: all at once."""
    from loadgen.schedule import at_once, plan

    with inputs():
        schedule = plan(scenario, seed)
        if mode == "serving":
            return scenario, schedule
        if scenario.target.kind == "url":
            stop(WRONG_USE, f"--mode {mode} runs in this process: it needs the target simulator or sglang, not a URL")
        if scenario.target.api != "generate":
            stop(WRONG_USE, f'--mode {mode} sends no chats and no completions: set target.api = "generate"')
        if mode == "static" and not schedule.of_ids:
            stop(WRONG_USE, "--mode static takes token ids, and this workload has texts: give it a tokenizer")
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
            stop(TARGET_FAILED, str(error))


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
            tell = teller(quiet=quiet)
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

    return until_done(shown(), folder, cut)


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


@commands.command()
@click.argument("record", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print record.json and nothing else on stdout.")
@click.option(
    "--figure", "key", help="Print one figure of the card, such as memory.offline_peak, or why there is none."
)
def report(record: Path, as_json: bool, key: str | None) -> None:
    """Print the report of a RECORD's folder."""
    read = read_record(record)
    try:
        if key is not None:
            _print_figure(read.data, key)
            return
        _print(read, as_json=as_json, quiet=False)
        code = _exit_code(read.data)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        stop(WRONG_USE, f"{read.folder / 'record.json'}: is not as loadgen wrote it: {type(error).__name__} {error}")
    sys.exit(code)


def _print_figure(data: dict[str, Any], key: str) -> None:
    import json

    from loadgen.card import figure

    if "verdict" not in data:
        stop(WRONG_USE, "the run was killed before it could be judged: it has no figures")
    try:
        value, reason = figure(data, key)
    except (KeyError, TypeError):
        stop(WRONG_USE, f"--figure {key}: the card has no such field; see card.yaml")
    click.echo(json.dumps(value) + (f"  {reason}" if reason else ""))
