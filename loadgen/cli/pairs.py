"""`loadgen pair`: the same prompts in one mode after the other, compared or refused."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loadgen.cli.frame import (
    INVALID,
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


@commands.command()
@click.argument("scenario", required=False)
@target_option
@set_option
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
        stop(WRONG_USE, "say a SCENARIO to run, or records to compare with --of FOLDER --of FOLDER")
    if len(records) == 1:
        stop(WRONG_USE, "one record has nothing to be compared with: say --of twice or more")
    if scenario is None:
        result = _compared([read_record(folder) for folder in records])
    else:
        again = [scenario, *(["--target", target] if target else []), "--seed", str(seed)]
        again += [part for override in overrides for part in ("--set", override)]
        checked, name = load_scenario(scenario, list(overrides), target)
        folder = new_folder(out, f"{name}-{switch or 'pair'}")
        result = _climb(checked, name, seed, repeats, switch, folder, again, quiet=quiet or as_json)
    _print_pair(result, as_json=as_json)
    sys.exit(INVALID if result["differences"] or result["invalid"] else 0)


def _compared(records: list[Record]) -> dict[str, Any]:
    """What records that are there come to, rung by rung."""
    from loadgen.pair import of_records

    for record in records:
        if "verdict" not in record.data:
            stop(WRONG_USE, f"{record.folder}: was killed before it could be judged: it has no figures to compare")
    try:
        return of_records(records)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        where = ", ".join(str(record.folder) for record in records)
        stop(WRONG_USE, f"{where}: one of them is not as loadgen wrote it: {type(error).__name__} {error}")


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
        stop(WRONG_USE, f"--switch {switch}: expected one of {', '.join(SWITCHES)}")
    if scenario.target.kind == "url":
        stop(WRONG_USE, "a pair starts and ends what it drives: it needs the target simulator or sglang, not a URL")
    if scenario.target.api != "generate":
        stop(WRONG_USE, 'a pair sends no chats and no completions: set target.api = "generate"')
    with inputs():
        rungs = ladder(scenario, seed)
    tell = teller(quiet=quiet)

    async def work() -> dict[str, Any]:
        if switch:
            return await switched(switch, rungs, repeats, name, seed, folder, again, tell)
        return compare(name, await climb(rungs, repeats, name, seed, folder, again, tell))

    def cut(*, judged: bool) -> bool:
        if not judged:
            click.echo(f"interrupted; the runs that had ended are in {folder}", err=True)
        return True

    result = until_done(work(), folder, cut)
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
