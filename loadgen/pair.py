"""The ladder: the same prompts in one mode after the other, each rung changing one thing.

    static      fixed batches straight into the model runner; left out where prompts are texts
    oneshot     + the scheduler      all prompts at once into an engine in one process
    http        + the transport      all prompts at once over HTTP
    capped      + the client's cap   limits.max_concurrency; left out where there is none, or one that drops
    serving     + the arrivals       as the scenario has them

The rungs without a service run in a process of their own each, those over HTTP on one server, which lives as long as
they follow on each other; the two never live at once, for they would share the device. The ladder is climbed as often
as it is repeated, up and down in turn, so that a drift of the machine does not look like a step. The cache is flushed
before each rung, as before every run.
"""

import asyncio
import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loadgen.comparable import by_design, differences, unknown
from loadgen.diagnosis import Run, attribute, diagnose
from loadgen.diagnosis.options import SWITCHES, option
from loadgen.record import Record
from loadgen.run import measure
from loadgen.scenario import Scenario, SglangTarget, UrlTarget
from loadgen.schedule import Schedule, at_once, plan
from loadgen.target import Mode, TargetError, Tell, reach
from loadgen.verdict import fits
from loadgen.waterfall import waterfall

ORDER = ("static", "oneshot", "http", "capped", "serving")
STAND_INS = ", SGLang with stand-ins for a CPU"
_LAST_WORDS = 2000  # characters of a failed process's


@dataclass(frozen=True, slots=True)
class Rung:
    """One mode of the same prompts: what is run, and how."""

    name: str
    mode: Mode
    scenario: Scenario
    schedule: Schedule

    @property
    def served(self) -> bool:
        return self.mode == "serving"


def ladder(scenario: Scenario, seed: int) -> list[Rung]:
    """The rungs of a scenario under a seed, from the lowest; raises DataError where not all can be sent at once."""
    schedule = plan(scenario, seed)
    bare, together = at_once(scenario, schedule)
    rungs = [Rung("oneshot", "oneshot", bare, together), Rung("http", "serving", bare, together)]
    if together.of_ids:
        rungs.insert(0, Rung("static", "static", bare, together))
    cap, drops = scenario.limits.max_concurrency, scenario.limits.overflow == "drop"
    if cap is not None and not drops:  # of all at once, a cap that drops would drop the most
        limits = bare.limits.model_copy(update={"max_concurrency": cap})
        capped = bare.model_copy(update={"limits": limits})
        caps = {"concurrency": schedule.fingerprints["concurrency"]}
        under_cap = replace(together, fingerprints=together.fingerprints | caps)
        rungs.append(Rung("capped", "serving", capped, under_cap))
    return [*rungs, Rung("serving", "serving", scenario, schedule)]


def order(rungs: Sequence[Rung], repeats: int) -> Iterator[tuple[int, Rung]]:
    """Which repeat of which rung comes when: up, down, up …; repeats count from 1."""
    for repeat in range(1, repeats + 1):
        yield from ((repeat, rung) for rung in (rungs if repeat % 2 else reversed(rungs)))


async def climb(
    rungs: Sequence[Rung],
    repeats: int,
    name: str,
    seed: int,
    folder: Path,
    again: Sequence[str],
    tell: Tell = lambda _: None,
) -> list[dict[str, Record]]:
    """Run all rungs so often; of each repeat its records by rung, left in `folder`.

    `again` is the command line that says the scenario once more, for the rungs that run in a process of their own.
    Raises TargetError.
    """
    records: list[dict[str, Record]] = [{} for _ in range(repeats)]
    starts = itertools.count(1)
    for served, together in itertools.groupby(order(rungs, repeats), key=lambda item: item[1].served):
        runs = [(repeat, rung, _new(folder / f"{repeat}-{rung.name}")) for repeat, rung in together]
        if not served:
            for repeat, rung, own in runs:
                tell(f"{rung.name}, repeat {repeat} of {repeats}")
                records[repeat - 1][rung.name] = await _apart(rung.mode, own, again)
            continue
        log = folder / f"server-{next(starts)}.log"
        async with reach(rungs[-1].scenario.target, "serving", log, tell) as target:
            for repeat, rung, own in runs:
                tell(f"{rung.name}, repeat {repeat} of {repeats}")
                records[repeat - 1][rung.name] = await measure(
                    target, rung.scenario, rung.schedule, name, seed, own, mode="serving"
                )
    return records


def _new(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


async def _apart(mode: Mode, folder: Path, again: Sequence[str]) -> Record:
    """Run a mode without a service in a process of its own, which starts and ends its engine."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "loadgen", "run", *again, "--mode", mode, "--out", str(folder), "--quiet"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        said, _ = await process.communicate()
    except asyncio.CancelledError:
        process.terminate()  # it ends what it has started, and its record
        await process.wait()
        raise
    if process.returncode not in (0, 1, 3):  # fine, does not fit, INVALID: all of these are records
        words = said.decode(errors="replace").strip()[-_LAST_WORDS:]
        raise TargetError(f"{mode} ended with code {process.returncode}: {words}")
    return Record.read(folder)


def rung_of(data: Mapping[str, Any]) -> str:
    """The rung that a record stands on, by what was driven and how."""
    if data["mode"] != "serving":
        return str(data["mode"])
    if data.get("arrivals") != "oneshot":
        return "serving"
    return "http" if data["scenario"]["limits"]["max_concurrency"] is None else "capped"


def compare(name: str, repeats: Sequence[Mapping[str, Record]]) -> dict[str, Any]:
    """What the records of a ladder come to, as pair.json has it; no figure where more than the rung differs."""
    result = _checked(name, repeats)
    if not result["differences"]:
        data = [{rung: record.data for rung, record in own.items()} for own in repeats]
        result["waterfall"] = waterfall(data)
        result["cards"] = {rung: own["card"] for rung, own in data[0].items()}
        runs = {rung: looked_at(rung, record) for rung, record in repeats[0].items()}
        result["gaps"] = {rung: run.gaps.as_dict() for rung, run in runs.items() if run.gaps}
        result["diagnosis"] = [finding.as_dict() for finding in diagnose(runs)]
    return result


def of_records(records: Sequence[Record]) -> dict[str, Any]:
    """The same for records that are there already, each on the rung that it is of."""
    by_rung: dict[str, Record] = {}
    for record in records:
        rung = rung_of(record.data)
        by_rung[rung if rung not in by_rung else f"{rung} ({record.folder})"] = record
    ordered = sorted(by_rung, key=lambda name: ORDER.index(name.partition(" ")[0]))
    return compare(records[-1].data["name"], [{rung: by_rung[rung] for rung in ordered}])


async def switched(
    option_name: str,
    rungs: Sequence[Rung],
    repeats: int,
    name: str,
    seed: int,
    folder: Path,
    again: Sequence[str],
    tell: Tell = lambda _: None,
) -> dict[str, Any]:
    """Run one-shot and service with an option of the server's on and off, and say what it did in each mode."""
    both = [rung for rung in rungs if rung.name in ("oneshot", "serving")]
    arguments = SWITCHES[option_name]
    more = [part for k, v in arguments.items() for part in ("--set", f"target.server.{k}={str(v).lower()}")]
    states = {"on": (both, again), "off": ([_with_server(rung, arguments) for rung in both], [*again, *more])}
    records: dict[str, list[dict[str, Record]]] = {"on": [], "off": []}
    for repeat in range(1, repeats + 1):
        for state in ("on", "off") if repeat % 2 else ("off", "on"):  # a drift of the machine is no option's doing
            tell(f"{option_name} {state}, repeat {repeat} of {repeats}")
            own_rungs, own_again = states[state]
            records[state] += await climb(own_rungs, 1, name, seed, folder / f"{repeat}-{state}", own_again, tell)
    result = _checked(name, records["on"])
    if not result["differences"]:
        on, off = (
            {rung.name: [own[rung.name].data for own in records[state]] for rung in both} for state in ("on", "off")
        )
        result["diagnosis"] = [option(option_name, on, off).as_dict()]
    return result


def _with_server(rung: Rung, arguments: Mapping[str, Any]) -> Rung:
    """The rung with other arguments of the server's."""
    target = rung.scenario.target
    assert not isinstance(target, UrlTarget)
    if isinstance(target, SglangTarget):
        server: Any = {**target.server, **arguments}
    else:
        server = target.server.model_copy(update=dict(arguments))
    changed = target.model_copy(update={"server": server})
    return replace(rung, scenario=rung.scenario.model_copy(update={"target": changed}))


def _checked(name: str, repeats: Sequence[Mapping[str, Record]]) -> dict[str, Any]:
    """Whether the records of a ladder may be compared, and which runs are not used."""
    data = [{rung: record.data for rung, record in own.items()} for own in repeats]
    first = data[0]
    found = {difference.text: difference.as_dict() for own in data for difference in differences(own)}
    target = first[next(reversed(first))]["target"]
    stand_ins = STAND_INS if target.get("stand_ins") else ""
    return {
        "name": name,
        "rungs": list(first),
        "who": "simulated" if target["simulated"] else f"{Path(target['model']).name}{stand_ins}",
        "records": [{rung: str(record.folder) for rung, record in own.items()} for own in repeats],
        "differences": list(found.values()),
        "by_design": by_design(first),
        "unknown": unknown(first),
        "invalid": [str(record.folder) for own in repeats for record in own.values() if _invalid(record)],
        "diagnosis": [],
    }


def _invalid(record: Record) -> bool:
    return fits(record.data) and not record.data["verdict"]["valid"]


def looked_at(rung: str, record: Record) -> Run:
    """A record as the rules look at it, its long gaps put down to what its server did."""
    warm = record.data["scenario"]["measure"]["warmup"] > 0
    return Run(rung, record.data, attribute(record.chunks(), record.steps(), warm=warm))
