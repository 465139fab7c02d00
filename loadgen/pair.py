"""The ladder: the same prompts in one mode after the other, each rung changing one thing.

    static      fixed batches straight into the model runner
    oneshot     + the scheduler      all prompts at once into an engine in one process
    http        + the transport      all prompts at once over HTTP
    capped      + the client's cap   limits.max_concurrency; left out where the scenario has none
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

from loadgen.record import Record
from loadgen.run import measure
from loadgen.scenario import Scenario
from loadgen.schedule import Schedule, at_once, plan
from loadgen.target import Mode, TargetError, Tell, reach

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
    rungs = [Rung("static", "static", bare, together), Rung("oneshot", "oneshot", bare, together)]
    rungs.append(Rung("http", "serving", bare, together))
    if scenario.limits.max_concurrency is not None:
        capped = bare.model_copy(update={"limits": scenario.limits})
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
