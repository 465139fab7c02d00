"""One run: composes the parts and does nothing else."""

import asyncio
import contextlib
import resource
import time
from collections import Counter
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from loadgen import wire
from loadgen.card import card_of
from loadgen.client.http import HttpClient, Timeouts
from loadgen.driver import Client, Driver
from loadgen.exchange import Exchange, Outcome
from loadgen.interference import Overlap
from loadgen.prefixes import Prefixes
from loadgen.record import Record, Recorder
from loadgen.scenario import Scenario
from loadgen.scenario.arrivals import ClosedArrivals
from loadgen.schedule import Schedule
from loadgen.target import Endpoint, TargetError, reach
from loadgen.telemetry.host import environment
from loadgen.telemetry.timeline import sample
from loadgen.verdict import judge, slo_results

OTHER_FILES = 64  # open files that are no connections of the load
HEAD_START = 0.1  # seconds between the last preparation and the start instant

Watch = Callable[[Exchange], None]


async def run(
    scenario: Scenario, schedule: Schedule, name: str, seed: int, folder: Path, watch: Watch = lambda _: None
) -> Record:
    """Run a scenario by its schedule, that of this seed, and leave its record in `folder`, which exists and is empty.

    `watch` is told of each exchange that has ended. When cancelled, the record holds what was seen until then, marked
    incomplete. Raises TargetError when the target cannot be reached or none of the warm-up requests succeeds.
    """
    async with reach(scenario.target, folder / "server.log") as endpoint, _client(scenario, endpoint) as client:
        head = _head(scenario, name, seed, schedule, endpoint)
        classes = schedule.totals if scenario.traffic else {}
        settled, end = _window(scenario)
        whole = all(one.workload.num_prompts is None for one in scenario.classes)  # the duration ends it, no count
        recorder = Recorder(folder, head, scenario.measure.itl_rule, classes, (settled, end), whole=whole)
        overlap = Overlap(scenario.interference) if scenario.interference else None
        await _warm_up(client, schedule, scenario.limits.max_concurrency)
        await client.open(_due_together(schedule, scenario.limits.max_concurrency))
        flushed = await endpoint.flush_cache() if scenario.measure.flush_cache else None

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
        start = time.perf_counter() + HEAD_START
        recorder.begin(start, time.time() + HEAD_START)
        gauges = asyncio.create_task(
            sample(endpoint, driver.in_flight, recorder.point, start=start, interval=scenario.measure.poll_interval)
        )
        complete = False
        try:
            await driver.run(schedule.offsets, schedule.requests, start)
            complete = True
        finally:
            gauges.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await gauges
            data = recorder.totals(driver.in_flight, complete=complete)
            data["target"]["cache_flushed"] = flushed
            if schedule.turns is not None:
                data["conversations"] = {"turns": schedule.turns, "turns_due": recorder.turns}
            if overlap:
                data["interference"] = overlap.as_dict()
                recorder.note_gaps(overlap.gaps())
            data["slo"] = slo_results(data)
            data["verdict"] = judge(data).as_dict()
            data["card"] = card_of(data)
            record = recorder.seal(data)
        return record


def _client(scenario: Scenario, endpoint: Endpoint) -> HttpClient:
    limits = scenario.limits
    return HttpClient(
        endpoint.url,
        wire.APIS[scenario.target.api],
        endpoint.model,
        Timeouts(
            limits.timeout_connect, limits.timeout_first_token, limits.timeout_between_tokens, limits.timeout_total
        ),
    )


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
    if ended and all(exchange.outcome is not Outcome.OK for exchange in ended):
        first = ended[0]
        raise TargetError(f"none of the {len(ended)} warm-up requests succeeded; {first.outcome}: {first.detail}")


def _head(scenario: Scenario, name: str, seed: int, schedule: Schedule, endpoint: Endpoint) -> dict[str, Any]:
    return {
        "mode": "serving",
        "name": name,
        "scenario": scenario.model_dump(mode="json"),
        "seed": seed,
        "fingerprints": schedule.fingerprints,
        "counts": {"scheduled": schedule.total},
        "skipped": dict(sum((one.skipped() for one in scenario.classes), Counter())),
        "answers_decide": any(one.answers_decide for one in scenario.classes),
        "target": {"kind": scenario.target.kind, "api": scenario.target.api, **endpoint.identity()},
        "environment": environment(),
    }
