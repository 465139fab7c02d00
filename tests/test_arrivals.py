"""Arrival processes as mathematics: laws for all, and the clockworks and Poisson for themselves."""

import itertools
import subprocess
import sys
from math import inf, isnan, nan, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling import take, until
from scipy import stats

from loadgen.arrivals import (
    Arrivals,
    Burst,
    Client,
    Clients,
    Diurnal,
    EvenGaps,
    ExponentialGaps,
    Fixed,
    Gamma,
    GammaGaps,
    Mmpp,
    Oneshot,
    Poisson,
    Replay,
    Staggered,
    Varying,
    Weibull,
    WeibullGaps,
    Window,
    clients,
    gaps,
    process,
    ramp,
    replay,
    spike,
    statistics,
    step,
)

rates = st.floats(0.01, 1000)
extremes = st.sampled_from([1e-6, 1e-3, 1.0, 1e3, 1e6])
laws = st.one_of(
    st.just(ExponentialGaps()),
    st.just(EvenGaps()),
    st.builds(GammaGaps, st.floats(0.01, 1e6)),
    st.builds(WeibullGaps, st.floats(0.05, 100)),
)
curves = st.one_of(
    st.builds(ramp, rates, rates, st.floats(0.1, 1000)),
    st.builds(ramp, rates, st.just(0.0), st.floats(0.1, 1000)),
    st.builds(spike, rates, rates, *[st.floats(0, 100)] * 3),
    st.builds(lambda levels: step(levels, repeat=True), st.lists(st.tuples(rates, st.floats(0.1, 100)), min_size=1)),
    st.builds(Diurnal, rates, st.floats(0, 1), st.floats(0.1, 1e5), st.floats(-1e5, 1e5)),
)


@st.composite
def bursts(draw: st.DrawFn) -> Burst:
    period = draw(st.floats(0.01, 100))
    return Burst(draw(st.integers(1, 50)), period, period * draw(st.floats(0, 0.99)))


@st.composite
def replays(draw: st.DrawFn) -> Replay:
    stamps = np.sort(np.array(draw(st.lists(st.floats(0, 1e6), min_size=1, max_size=300))))
    return Replay(stamps, draw(st.floats(0.1, 10)), draw(st.none() | st.floats(1e-6, 100)))


@st.composite
def clienteles(draw: st.DrawFn) -> Clients:
    def windows() -> tuple[Window, ...]:
        borders = sorted(draw(st.lists(st.floats(0, 100), min_size=2, max_size=6, unique=True)))
        return tuple(
            Window(start, end, draw(st.floats(0, 50)), draw(laws)) for start, end in itertools.pairwise(borders)
        )

    return Clients(tuple(Client(windows()) for _ in range(draw(st.integers(1, 3)))))


processes = st.one_of(
    st.builds(Fixed, rates),
    st.builds(Poisson, extremes),
    bursts(),
    st.just(Oneshot()),
    st.builds(Staggered, st.integers(1, 500), st.floats(0, 100)),
    st.builds(Gamma, extremes, st.sampled_from([0.01, 0.1, 1.0, 10.0, 1e6])),
    st.builds(Weibull, extremes, st.sampled_from([0.05, 0.5, 1.0, 2.0, 100.0])),
    st.builds(Mmpp, st.tuples(rates, st.floats(0, 100)), st.tuples(st.floats(0.1, 100), st.floats(0.1, 100))),
    st.builds(Varying, curves, laws),
    replays(),
    clienteles(),
)

ONE_OF_EACH: list[Arrivals] = [
    Poisson(8.0),
    Gamma(8.0, 0.25),
    Weibull(8.0, 0.5),
    Mmpp((16.0, 0.0), (2.0, 3.0)),
    Varying(Diurnal(8.0, 0.9, 50.0), WeibullGaps(0.5)),
    Varying(step([(4, 10), (12, 5)], repeat=True), GammaGaps(0.25)),
    Replay(np.arange(8_000) // 8 / 1.0, 1.0, 1.0),
    Clients((Client((Window(0, 400, 5, GammaGaps(0.25)), Window(400, 1000, 9, WeibullGaps(0.5)))),)),
]


@given(processes, st.integers(0, 2**32))
def test_offsets_never_decrease_and_begin_at_or_after_zero(process: Arrivals, seed: int) -> None:
    offsets = take(process, 200, seed)
    assert all(isinstance(at, float) for at in offsets)
    assert not offsets or offsets[0] >= 0
    assert all(earlier <= later for earlier, later in itertools.pairwise(offsets))


@settings(max_examples=50)
@given(processes, st.integers(0, 2**32), st.integers(1, 5000))
def test_a_longer_run_begins_with_the_shorter_ones_offsets(process: Arrivals, seed: int, n: int) -> None:
    assert take(process, 5000, seed)[:n] == take(process, n, seed)


@pytest.mark.parametrize("arrivals", ONE_OF_EACH, ids=repr)
def test_the_stream_does_not_depend_on_the_size_of_blocks(arrivals: Arrivals, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = take(arrivals, 5000, 3)
    for module in (clients, gaps, process, replay):
        monkeypatch.setattr(module, "BLOCK", 7)
    assert take(arrivals, 5000, 3) == pytest.approx(usual, rel=1e-12)


@given(processes, st.floats(0, 1e4), st.floats(0, 1e4))
def test_the_cumulative_rate_begins_at_zero_and_never_falls(process: Arrivals, a: float, b: float) -> None:
    assert process.expected(0.0) == 0
    low, high = process.expected(min(a, b)), process.expected(max(a, b))
    assert low <= high * (1 + 1e-12)


@settings(max_examples=50, deadline=None)
@given(processes, st.sampled_from([0.01, 1.0, 30.0]))
def test_the_index_of_dispersion_is_never_negative(process: Arrivals, window: float) -> None:
    index = process.dispersion(window, 20 * window)
    assert isnan(index) or 0 <= index < inf


@pytest.mark.parametrize("arrivals", ONE_OF_EACH, ids=repr)
def test_counts_scatter_around_the_expected_as_theory_says_and_a_5_percent_error_would_be_seen(
    arrivals: Arrivals,
) -> None:
    """1,000 s with about 8,000 arrivals, by 100 seeds: the mean count within 4 standard errors.

    The standard error is the theory's, Var N = dispersion · mean; the counts' own variance must agree with it to
    4·sqrt(2/99) = 57 %. Nothing hits a total, except a replay, which has no more stamps than it has. A renewal process
    that starts with a whole gap is (cv² - 1)/2 arrivals ahead.
    """
    span, seeds = 1000.0, 100
    counted = np.array([len(until(arrivals, span, seed)) for seed in range(seeds)])
    mean = arrivals.expected(span)
    if isinstance(arrivals, Replay):
        assert set(counted) == {mean}
        return
    laws = getattr(arrivals, "gaps", ExponentialGaps())
    index = arrivals.variance(span) / mean
    if isinstance(arrivals, Clients):  # two stretches of its own, 2,000 and 5,400 on average
        parts = sum(law.variance(part) for law, part in ((GammaGaps(0.25), 2000), (WeibullGaps(0.5), 5400)))
        assert index * mean == pytest.approx(parts)
    elif not hasattr(arrivals, "curve"):
        assert index == pytest.approx(arrivals.dispersion(span, 2 * span), abs=0.01)
    error = sqrt(index * mean / seeds)
    ahead = (laws.cv**2 - 1) / 2
    assert abs(counted.mean() - mean - ahead) < 4 * error
    assert abs(counted.mean() - mean * 1.05) > 8 * error
    assert counted.var(ddof=1) / mean == pytest.approx(index, rel=4 * sqrt(2 / (seeds - 1)))


@given(rates)
def test_fixed_has_its_nth_request_at_n_over_the_rate(rate: float) -> None:
    assert take(Fixed(rate), 1000)[999] == pytest.approx(999 / rate)


def test_poisson_gaps_are_exponential_and_a_5_percent_error_would_be_seen() -> None:
    """Kolmogorov-Smirnov at 1 in 1,000 on 20,000 gaps; the seed is fixed."""
    gaps = np.diff(take(Poisson(8.0), 20_001, seed=11), prepend=0)
    assert stats.kstest(gaps, stats.expon(scale=1 / 8.0).cdf).pvalue > 0.001
    assert stats.kstest(gaps * 1.05, stats.expon(scale=1 / 8.0).cdf).pvalue < 0.001


def test_poisson_draws_its_gaps_from_the_generator_one_after_the_other() -> None:
    """So did every version before; the schedules of old records can be drawn again."""
    gaps = np.random.default_rng(5).exponential(1 / 8.0, 5000)
    assert take(Poisson(8.0), 5000, 5) == list(itertools.accumulate(gaps.tolist()))


def test_poisson_gaps_do_not_depend_on_each_other() -> None:
    gaps = np.diff(take(Poisson(8.0), 20_001, seed=12), prepend=0)
    assert abs(stats.spearmanr(gaps[:-1], gaps[1:]).statistic) < 4 / sqrt(20_000)


@pytest.mark.parametrize("window", [0.1, 1.0, 10.0])
def test_poisson_counts_have_a_variance_equal_to_their_mean_at_every_window(window: float) -> None:
    """The index of dispersion is 1; over n windows its standard error is sqrt(2/n)."""
    offsets = np.array(take(Poisson(20.0), 200_000, seed=13))
    windows = int(offsets[-1] / window)
    index = statistics.dispersion(offsets, window, windows * window)
    assert index == pytest.approx(1, abs=4 * sqrt(2 / windows))
    mean = np.sum(offsets < windows * window) / windows
    assert mean == pytest.approx(20.0 * window, rel=4 / sqrt(20.0 * window * windows))


@given(bursts())
def test_a_burst_has_its_trains_where_they_should_be(burst: Burst) -> None:
    offsets = take(burst, burst.size * 3)
    for train in range(3):
        own = offsets[train * burst.size : (train + 1) * burst.size]
        assert own[0] == pytest.approx(train * burst.period)
        assert own[-1] == pytest.approx(train * burst.period + (burst.spread if burst.size > 1 else 0))
        if burst.size > 2:
            assert np.ptp(np.diff(own)) == pytest.approx(0, abs=1e-9)


@given(bursts())
def test_a_bursts_theory_is_what_its_gaps_say(burst: Burst) -> None:
    """Over whole periods, gaps counted from one train's first request to the next one's."""
    offsets = take(burst, burst.size * 40 + 1)
    assert 1 / np.diff(offsets).mean() == pytest.approx(burst.rate)
    assert statistics.gap_cv(offsets) == pytest.approx(burst.cv, abs=1e-6)


@pytest.mark.parametrize(
    "clockwork", [Fixed(3.0), Burst(1, 0.5), Burst(8, 2.0), Burst(8, 2.0, 0.5), Burst(5, 2.0, 1.9)]
)
@pytest.mark.parametrize("window", [0.05, 0.4, 1.5, 2.0, 7.3])
def test_a_clockworks_index_of_dispersion_is_that_of_windows_at_every_phase(clockwork: Arrivals, window: float) -> None:
    """Counted in 20,000 windows whose beginnings are spread evenly over a common period of 10 s."""
    offsets = until(clockwork, 60.0)
    starts = 20 + np.arange(20_000) * 10 / 20_000 + 1e-7
    counts = np.searchsorted(offsets, starts + window) - np.searchsorted(offsets, starts)
    assert clockwork.dispersion(window, nan) == pytest.approx(counts.var() / counts.mean(), abs=2e-3)
    assert clockwork.rate * window == pytest.approx(counts.mean(), rel=2e-3)


def test_oneshot_has_everything_at_zero() -> None:
    assert set(take(Oneshot(), 1000)) == {0.0}
    assert Oneshot().expected(1e-9) == inf


def test_staggered_users_begin_one_after_the_other_and_then_no_more() -> None:
    assert take(Staggered(4, 10.0), 99) == [0.0, 2.5, 5.0, 7.5]
    assert take(Staggered(3), 99) == [0.0, 0.0, 0.0]
    assert [Staggered(4, 10.0).expected(t) for t in (0.0, 5.0, 10.0, 99.0)] == [0, 2, 4, 4]
    assert [Staggered(3).expected(t) for t in (0.0, 1.0)] == [0, 3]


def test_a_ramps_rate_is_its_last_and_its_cumulative_rate_that_of_the_run() -> None:
    up = Varying(ramp(1.0, 20.0, 100.0))
    assert up.rate == 20.0
    assert up.expected(100.0) == pytest.approx(1050)
    assert up.expected(200.0) == pytest.approx(1050 + 2000)


def test_a_sample_is_counted_in_whole_windows_and_offsets_on_an_edge_belong_to_the_later_one() -> None:
    offsets = [i / 10 for i in range(35)]  # some of i/10/0.1 lie just below i
    assert statistics.dispersion(offsets, 0.1, 3.45) == 0
    assert statistics.dispersion([0, 0, 0, 1, 2.5, 3.9], 1.0, 3.5) == pytest.approx(np.var([3, 1, 1], ddof=1) / (5 / 3))
    assert isnan(statistics.dispersion(offsets, 2.0, 3.9))


def test_rescaled_gaps_begin_with_the_one_from_zero() -> None:
    assert statistics.rescaled(Varying(ramp(0, 2, 1)), [1.0, 1.5, 1.5]) == pytest.approx([1, 1, 0])


def test_importing_the_processes_does_not_load_scipy() -> None:
    """It takes a good quarter of a second, which `loadgen --help` should not pay."""
    code = "import sys, loadgen.arrivals; sys.exit('scipy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
