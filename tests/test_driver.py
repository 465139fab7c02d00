"""The driver in virtual time, with queueing theory as the judge."""

import asyncio
from collections.abc import Callable, Sequence
from math import factorial, sqrt
from typing import Literal

import numpy as np
import pytest
from numpy.typing import NDArray
from virtual import VirtualLoop, in_virtual_time

from loadgen.arrivals import Fixed, Poisson
from loadgen.driver import Driver
from loadgen.exchange import Exchange, Fault, Outcome, Request

REPLICATIONS, REQUESTS = 12, 4000
Draw = Callable[[np.random.Generator, int], NDArray[np.float64]]


class Delay:
    """A server without a queue: every request takes the service time that its index has."""

    def __init__(self, loop: VirtualLoop, service: Sequence[float]) -> None:
        self.loop, self.service = loop, service

    async def stream(self, exchange: Exchange) -> None:
        exchange.sent = self.loop.time()
        await asyncio.sleep(self.service[exchange.request.index])
        exchange.chunk(self.loop.time(), 1)


def requests(n: int) -> list[Request]:
    return [Request(i, [], 1) for i in range(n)]


def drive(
    offsets: Sequence[float],
    service: Sequence[float],
    cap: int | None = None,
    overflow: Literal["queue", "drop"] = "queue",
) -> tuple[list[Exchange], Driver]:
    async def work(loop: VirtualLoop) -> tuple[list[Exchange], Driver]:
        ended: list[Exchange] = []
        driver = Driver(
            Delay(loop, service),
            ended.append,
            max_concurrency=cap,
            overflow=overflow,
            now=loop.time,
        )
        await driver.run(offsets, requests(len(offsets)), 0.0)
        return ended, driver

    return in_virtual_time(work)


def waits(gaps: Draw, service: Draw, servers: int) -> NDArray[np.float64]:
    """Mean wait for a slot in each replication; the cap of the driver is the queue of the theory."""
    means = []
    for replication in range(REPLICATIONS):
        rng = np.random.default_rng([20261201, replication])
        offsets = np.cumsum(gaps(rng, REQUESTS))
        ended, _ = drive(offsets.tolist(), service(rng, REQUESTS).tolist(), cap=servers)
        means.append(np.mean([e.lateness for e in ended]))
    return np.array(means)


def exponential(rate: float) -> Draw:
    return lambda rng, n: rng.exponential(1 / rate, n)


def gamma_gaps(rate: float, burstiness: float) -> Draw:
    return lambda rng, n: rng.gamma(burstiness, 1 / (rate * burstiness), n)


def constant(seconds: float) -> Draw:
    return lambda _, n: np.full(n, seconds)


def gamma_m_1(rate: float, burstiness: float) -> float:
    """Mean wait of Gamma/M/1 at service rate 1: sigma / (1 - sigma), sigma the root of the arrivals' transform."""
    sigma = 0.5
    for _ in range(10_000):
        sigma = (1 + (1 - sigma) / (rate * burstiness)) ** -burstiness
    return sigma / (1 - sigma)


def m_m_c(rate: float, servers: int) -> float:
    """Mean wait of M/M/c at service rate 1, by Erlang's C formula."""
    last = rate**servers / factorial(servers) * servers / (servers - rate)
    return last / (sum(rate**k / factorial(k) for k in range(servers)) + last) / (servers - rate)


@pytest.mark.parametrize(
    ("name", "gaps", "service", "servers", "theory"),
    [
        ("M/D/1", exponential(0.7), constant(1.0), 1, 0.7 / (2 * (1 - 0.7))),
        ("M/M/1", exponential(0.7), exponential(1.0), 1, 0.7 / (1 - 0.7)),
        ("Gamma(0.5)/M/1", gamma_gaps(0.7, 0.5), exponential(1.0), 1, gamma_m_1(0.7, 0.5)),
        ("Gamma(2)/M/1", gamma_gaps(0.7, 2.0), exponential(1.0), 1, gamma_m_1(0.7, 2.0)),
        ("M/M/8", exponential(6.4), exponential(1.0), 8, m_m_c(6.4, 8)),
    ],
)
def test_the_wait_at_the_cap_is_that_of_queueing_theory(
    name: str, gaps: Draw, service: Draw, servers: int, theory: float
) -> None:
    """Within 4 standard errors of 12 replications: a right driver fails about once in 500 seeds; the seed is fixed."""
    means = waits(gaps, service, servers)
    standard_error = means.std(ddof=1) / sqrt(REPLICATIONS)
    assert standard_error < 0.12 * theory, name
    assert abs(means.mean() - theory) < 4 * standard_error, name


def test_gamma_m_1_theory_is_that_of_the_tables() -> None:
    assert gamma_m_1(0.8, 0.25) == pytest.approx(10.955, abs=0.005)
    assert gamma_m_1(0.8, 1.0) == pytest.approx(0.8 / (1 - 0.8))
    assert m_m_c(6.4, 8) == pytest.approx(0.2860, abs=0.0001)


def test_every_wait_is_that_of_lindleys_recursion() -> None:
    rng = np.random.default_rng(7)
    gaps, service = rng.exponential(1.25, 500), rng.exponential(1.0, 500)
    ended, _ = drive(np.cumsum(gaps).tolist(), service.tolist(), cap=1)
    wait = 0.0
    for i, exchange in enumerate(ended):  # one server, first come first served: they end in order
        if i:
            wait = max(0.0, wait + service[i - 1] - gaps[i])
        assert exchange.request.index == i
        assert exchange.lateness == pytest.approx(wait, abs=1e-6)
        assert exchange.lag == pytest.approx(0, abs=1e-6)
        assert exchange.ttft == pytest.approx(wait + service[i], abs=1e-6)
        assert exchange.ttft_service == pytest.approx(service[i], abs=1e-6)


def test_littles_law_holds_for_the_mean_in_flight() -> None:
    rng = np.random.default_rng(8)
    offsets = [o for o, _ in zip(Poisson(4.0).offsets(rng), range(1000), strict=False)]
    ended, driver = drive(offsets, rng.exponential(1.0, 1000).tolist())
    in_system = sum(e.ended - e.due for e in ended if e.ended is not None)
    last = max(e.ended for e in ended if e.ended is not None)
    assert driver.in_flight.mean == pytest.approx(in_system / last, rel=1e-6)


def test_no_request_leaves_early_and_none_waits_for_another() -> None:
    ended, _ = drive([0.0, 0.1, 0.1, 0.25], [1e6, 5.0, 5.0, 5.0])
    assert sorted(e.sent for e in ended if e.sent is not None) == pytest.approx([0.0, 0.1, 0.1, 0.25])
    assert all(e.lateness is not None and e.lateness >= 0 for e in ended)


def test_a_frozen_server_shows_in_the_tail_of_an_open_loop_and_not_of_a_closed_one() -> None:
    """Service takes 1 ms, but for a freeze from 5 s to 6 s. At 100/s a tenth of 10 s of requests is due in the freeze
    and waits between 0 and 1 s, evenly: the 99th percentile is near 0.9 s. A client that waits for each answer before
    it sends the next has one slow request in about 9,000."""

    def answered(sent: float) -> float:
        return max(sent, 6.0) + 0.001 if sent >= 5.0 and sent < 6.0 else sent + 0.001

    offsets = [o for o, _ in zip(Fixed(100).offsets(np.random.default_rng()), range(1000), strict=False)]
    ended, _ = drive(offsets, [answered(o) - o for o in offsets])
    latencies = [e.e2e for e in ended if e.e2e is not None]
    assert np.quantile(latencies, 0.99) == pytest.approx(0.9, abs=0.02)
    assert max(e.lateness for e in ended if e.lateness is not None) < 1e-6

    at, closed = 0.0, []
    while at < 10.0:
        closed.append(answered(at) - at)
        at += closed[-1]
    assert np.quantile(closed, 0.99) == pytest.approx(0.001)


def test_at_the_cap_drop_counts_what_it_drops_and_sends_the_rest_on_time() -> None:
    ended, driver = drive([0.0, 1.0, 2.0, 3.0], [2.5, 1.0, 1.0, 1.0], cap=1, overflow="drop")
    outcomes = {e.request.index: e.outcome for e in ended}
    assert outcomes == {0: Outcome.OK, 1: Outcome.DROPPED, 2: Outcome.DROPPED, 3: Outcome.OK}
    dropped = [e for e in ended if e.outcome is Outcome.DROPPED]
    assert all(e.sent is None and e.lateness is None and e.ttft is None for e in dropped)
    assert driver.in_flight.share_at_cap == pytest.approx(3.5 / 4.0)


def test_a_fault_frees_its_slot_and_stays_in_the_count() -> None:
    class Failing:
        async def stream(self, exchange: Exchange) -> None:
            exchange.sent = asyncio.get_running_loop().time()
            await asyncio.sleep(1.0)
            if exchange.request.index == 0:
                raise Fault(Outcome.STATUS, "503")
            exchange.chunk(asyncio.get_running_loop().time(), 1)

    async def work(loop: VirtualLoop) -> list[Exchange]:
        ended: list[Exchange] = []
        await Driver(Failing(), ended.append, max_concurrency=1, now=loop.time).run([0.0, 0.0], requests(2), 0.0)
        return ended

    first, second = in_virtual_time(work)
    assert (first.outcome, first.detail, first.ttft, first.lateness) == (Outcome.STATUS, "503", None, 0.0)
    assert second.outcome is Outcome.OK
    assert second.ttft == pytest.approx(2.0)


def test_stopping_a_run_ends_every_request_that_was_due_as_cancelled() -> None:
    async def work(loop: VirtualLoop) -> list[Exchange]:
        ended: list[Exchange] = []
        driver = Driver(Delay(loop, [0.5, 9.0, 9.0, 9.0]), ended.append, max_concurrency=2, now=loop.time)
        running = asyncio.ensure_future(driver.run([0.0, 0.1, 0.2, 0.3], requests(4), 0.0))
        await asyncio.sleep(0.4)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        return ended

    ended = in_virtual_time(work)
    assert sorted(e.request.index for e in ended) == [0, 1, 2, 3]
    assert {e.outcome for e in ended} == {Outcome.CANCELLED}


def test_a_request_that_was_let_go_in_the_tick_of_the_cancellation_is_not_lost() -> None:
    async def work(loop: VirtualLoop) -> tuple[list[Exchange], Driver]:
        ended: list[Exchange] = []
        running: asyncio.Future[None]

        def note(exchange: Exchange) -> None:
            ended.append(exchange)
            if exchange.request.index == 0:
                running.cancel()

        driver = Driver(Delay(loop, [1.0, 9.0, 9.0]), note, max_concurrency=1, now=loop.time)
        running = asyncio.ensure_future(driver.run([0.0, 0.0, 0.0], requests(3), 0.0))
        with pytest.raises(asyncio.CancelledError):
            await running
        return ended, driver

    ended, driver = in_virtual_time(work)
    outcomes = {exchange.request.index: exchange.outcome for exchange in ended}
    assert outcomes == {0: Outcome.OK, 1: Outcome.CANCELLED, 2: Outcome.CANCELLED}
    assert driver.in_flight.count == 0


def test_concurrency_is_averaged_over_the_window_only() -> None:
    """Two requests of 4 s, at 0 and 2 s; in the window from 1 to 5 s there are 1, 2, 2 and 1 in flight."""

    async def work(loop: VirtualLoop) -> Driver:
        client = Delay(loop, [4.0, 4.0])
        driver = Driver(client, lambda _: None, max_concurrency=2, settled=1.0, duration=5.0, now=loop.time)
        await driver.run([0.0, 2.0], requests(2), 0.0)
        return driver

    driver = in_virtual_time(work)
    assert (driver.in_flight.mean, driver.in_flight.share_at_cap) == pytest.approx((1.5, 0.5))


def test_a_bug_in_the_client_ends_the_run_and_is_not_a_fault() -> None:
    class Buggy:
        async def stream(self, exchange: Exchange) -> None:
            raise ZeroDivisionError

    async def work(loop: VirtualLoop) -> None:
        await Driver(Buggy(), lambda _: None, now=loop.time).run([0.0], requests(1), 0.0)

    with pytest.raises(ExceptionGroup) as caught:
        in_virtual_time(work)
    assert caught.group_contains(ZeroDivisionError)
