"""One run: composes the parts and does nothing else."""

import asyncio
import resource
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from loadgen import wire
from loadgen.card import card_of
from loadgen.client.engine import EngineClient
from loadgen.client.http import HttpClient, Timeouts
from loadgen.client.static import StaticClient
from loadgen.driver import Client, Driver
from loadgen.exchange import Exchange, Outcome
from loadgen.interference import Overlap
from loadgen.prefixes import Prefixes
from loadgen.record import Record, Recorder
from loadgen.scenario import Scenario
from loadgen.scenario.arrivals import ClosedArrivals
from loadgen.schedule import Schedule
from loadgen.target import Endpoint, InProcess, Mode, TargetError, Tell, reach
from loadgen.telemetry.beside import Beside
from loadgen.telemetry.host import environment
from loadgen.verdict import judge, slo_results

OTHER_FILES = 64  # open files that are no connections of the load
HEAD_START = 0.1  # seconds between the last preparation and the start instant

Watch = Callable[[Exchange], None]


async def run(
    scenario: Scenario,
    schedule: Schedule,
    name: str,
    seed: int,
    folder: Path,
    watch: Watch = lambda _: None,
    *,
    mode: Mode = "serving",
    batch_size: int | None = None,
    tell: Tell = lambda _: None,
) -> Record:
    """Run a scenario by its schedule, that of this seed, and leave its record in `folder`, which exists and is empty.

    `watch` is told of each exchange that has ended, `tell` how the start of a server is getting on. The modes without a
    service, oneshot and static, take what `schedule.at_once` makes; `batch_size` is of static, by default as many as
    the server would run. When cancelled, the record holds what was seen until then, marked incomplete. Raises
    TargetError when the target cannot be reached, none of the warm-up requests succeeds, or it dies; then the record is
    sealed first.
    """
    async with reach(scenario.target, mode, folder / "server.log", tell) as target:
        return await measure(target, scenario, schedule, name, seed, folder, watch, mode=mode, batch_size=batch_size)


async def measure(
    target: Endpoint | InProcess,
    scenario: Scenario,
    schedule: Schedule,
    name: str,
    seed: int,
    folder: Path,
    watch: Watch = lambda _: None,
    *,
    mode: Mode = "serving",
    batch_size: int | None = None,
) -> Record:
    """As `run`, on a target that is there already."""
    async with _client(target, scenario, batch_size) as client:
        head = _head(scenario, name, seed, schedule, target, mode)
        classes = schedule.totals if scenario.traffic else {}
        settled, end = _window(scenario)
        whole = all(one.workload.num_prompts is None for one in scenario.classes)  # the duration ends it, no count
        recorder = Recorder(folder, head, scenario.measure.itl_rule, classes, (settled, end), whole=whole)
        overlap = Overlap(scenario.interference) if scenario.interference else None
        await _warm_up(client, schedule, scenario.limits.max_concurrency)
        if isinstance(client, HttpClient):
            await client.open(_due_together(schedule, scenario.limits.max_concurrency))
        elif isinstance(client, StaticClient):
            client.reset()
        flushed = await target.flush_cache() if scenario.measure.flush_cache else None

        def ended(exchange: Exchange) -> None:
            recorder.add(exchange)
            if overlap:
                overlap.add(exchange)
            watch(exchange)

        limits = scenario.limits
        unique = all(one.workload.unique and one.arrivals.kind != "sessions" for one in scenario.classes)
        driver = Driver(
            Prefixes(client, unique=unique),
            ended,
            max_concurrency=limits.max_concurrency,
            overflow=limits.overflow,
            follow=schedule.follow,
            settled=settled,
            duration=end,
        )
        beside = Beside(target, scenario.measure.poll_interval, scenario.measure.metrics_interval)
        await beside.server.begin()
        start, epoch = time.perf_counter() + HEAD_START, time.time() + HEAD_START
        recorder.begin(start, epoch)
        complete, died = False, None
        try:
            async with beside.looking(driver.in_flight, recorder.point, start):
                died = await _unless_it_dies(driver.run(schedule.offsets, schedule.requests, start), target)
            complete = died is None
        finally:
            data = recorder.totals(driver.in_flight, complete=complete)
            data["target"] |= {"cache_flushed": flushed, "died": died}
            seen, steps = await beside.account(epoch, epoch + data["duration"])
            data |= seen
            recorder.note_steps(steps, beside.server.log)
            if isinstance(client, StaticClient):
                data["static"] = client.figures()
            if schedule.turns is not None:
                data["conversations"] = {"turns": schedule.turns, "turns_due": recorder.turns}
            if overlap:
                data["interference"] = overlap.as_dict()
                recorder.note_gaps(overlap.gaps())
            record = recorder.seal(_judged(data))
        if died is not None:
            raise TargetError(died)
        return record


def _judged(data: dict[str, Any]) -> dict[str, Any]:
    """With what is concluded from the figures laid on top."""
    data["slo"] = slo_results(data)
    data["verdict"] = judge(data).as_dict()
    data["card"], data["card_reasons"] = card_of(data)
    return data


async def _unless_it_dies(driving: Coroutine[Any, Any, None], target: Endpoint | InProcess) -> str | None:
    """Drive to the end, or until the target has died; then why it did."""
    load, death = asyncio.create_task(driving), asyncio.create_task(target.gone())
    try:
        await asyncio.wait({load, death}, return_when=asyncio.FIRST_COMPLETED)
        return None if load.done() else death.result()
    finally:
        death.cancel()
        load.cancel()
        ended = await asyncio.gather(load, death, return_exceptions=True)
        if isinstance(bug := ended[0], Exception):
            raise bug


@asynccontextmanager
async def _client(
    target: Endpoint | InProcess, scenario: Scenario, batch_size: int | None
) -> AsyncIterator[HttpClient | EngineClient | StaticClient]:
    limits = scenario.limits
    timeouts = Timeouts(
        limits.timeout_connect, limits.timeout_first_token, limits.timeout_between_tokens, limits.timeout_total
    )
    if isinstance(target, Endpoint):
        async with HttpClient(target.url, wire.APIS[scenario.target.api], target.model, timeouts) as client:
            yield client
    elif hasattr(target.body, "async_generate"):
        yield EngineClient(target.body, timeouts)
    else:
        running = target.server.get("max_running_requests")
        batches = StaticClient(target.body, batch_size or min(running or inf, target.body.max_batch))
        try:
            yield batches
        finally:
            batches.close()


def _window(scenario: Scenario) -> tuple[float, float]:
    """The seconds from the start within which rates are taken: not while the users of closed loops begin one after the
    other, nor what still ends after the duration."""
    if scenario.measure.duration is None:
        return 0.0, inf
    begun = [one.begin + one.arrivals.spread for one in scenario.classes if isinstance(one.arrivals, ClosedArrivals)]
    settled = max(begun, default=0.0)
    return settled if settled < scenario.measure.duration else 0.0, scenario.measure.duration


def _due_together(schedule: Schedule, max_concurrency: int | None) -> int:
    """The most requests that are due within one second, or the cap, or the open files that this process may have
    beside its record's: so many connections are opened ahead."""
    offsets = np.array(schedule.offsets)
    within = np.searchsorted(offsets, offsets + 1.0, side="right") - np.arange(offsets.size)
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - OTHER_FILES
    return max(min(int(within.max()), max_concurrency or offsets.size, files), 0)


async def _warm_up(client: Client, schedule: Schedule, max_concurrency: int | None) -> None:
    """Send the warm-up requests at once, or as the cap allows, and forget them."""
    ended: list[Exchange] = []
    driver = Driver(client, ended.append, max_concurrency=max_concurrency)
    await driver.run([0.0] * len(schedule.warmup), schedule.warmup, time.perf_counter())
    outcomes = {exchange.outcome for exchange in ended}
    if ended and Outcome.OK not in outcomes and outcomes != {Outcome.NO_ROOM}:  # that is the run's own result
        first = ended[0]
        raise TargetError(f"none of the {len(ended)} warm-up requests succeeded; {first.outcome}: {first.detail}")


def _head(
    scenario: Scenario, name: str, seed: int, schedule: Schedule, target: Endpoint | InProcess, mode: Mode
) -> dict[str, Any]:
    return {
        "mode": mode,
        "transport": "http" if isinstance(target, Endpoint) else "in-process",
        "arrivals": " + ".join(one.arrivals.kind for one in scenario.classes),
        "name": name,
        "scenario": scenario.model_dump(mode="json"),
        "seed": seed,
        "fingerprints": schedule.fingerprints,
        "lengths": schedule.lengths,
        "counts": {"scheduled": schedule.total},
        "skipped": dict(sum((one.skipped() for one in scenario.classes), Counter())),
        "answers_decide": any(one.answers_decide for one in scenario.classes),
        "target": {"kind": scenario.target.kind, "api": scenario.target.api, **target.identity()},
        "environment": environment(),
    }
