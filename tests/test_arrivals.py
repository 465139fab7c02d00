"""Arrival processes as mathematics: laws for all, moments and distributions for each."""

import itertools
from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from loadgen.arrivals import Arrivals, Burst, Fixed, Oneshot, Poisson

rates = st.floats(0.01, 1000)


@st.composite
def bursts(draw: st.DrawFn) -> Burst:
    period = draw(st.floats(0.01, 100))
    return Burst(draw(st.integers(1, 50)), period, period * draw(st.floats(0, 0.99)))


processes = st.one_of(st.builds(Fixed, rates), st.builds(Poisson, rates), bursts(), st.just(Oneshot()))


def take(process: Arrivals, n: int, seed: int = 0) -> list[float]:
    return list(itertools.islice(process.offsets(np.random.default_rng(seed)), n))


@given(processes, st.integers(0, 2**32))
def test_offsets_never_decrease_and_begin_at_or_after_zero(process: Arrivals, seed: int) -> None:
    offsets = take(process, 200, seed)
    assert offsets[0] >= 0
    assert all(earlier <= later for earlier, later in itertools.pairwise(offsets))


@given(processes, st.integers(0, 2**32), st.integers(1, 5000))
def test_a_longer_run_begins_with_the_shorter_ones_offsets(process: Arrivals, seed: int, n: int) -> None:
    assert take(process, 5000, seed)[:n] == take(process, n, seed)


@given(rates)
def test_fixed_has_its_nth_request_at_n_over_the_rate(rate: float) -> None:
    assert take(Fixed(rate), 1000)[999] == pytest.approx(999 / rate)


def test_poisson_gaps_are_exponential_and_a_5_percent_error_would_be_seen() -> None:
    """Kolmogorov-Smirnov at 1 in 1,000 on 20,000 gaps; the seed is fixed."""
    gaps = np.diff(take(Poisson(8.0), 20_001, seed=11), prepend=0)
    assert stats.kstest(gaps, stats.expon(scale=1 / 8.0).cdf).pvalue > 0.001
    assert stats.kstest(gaps * 1.05, stats.expon(scale=1 / 8.0).cdf).pvalue < 0.001


def test_poisson_gaps_do_not_depend_on_each_other() -> None:
    gaps = np.diff(take(Poisson(8.0), 20_001, seed=12), prepend=0)
    assert abs(stats.spearmanr(gaps[:-1], gaps[1:]).statistic) < 4 / sqrt(20_000)


@pytest.mark.parametrize("window", [0.1, 1.0, 10.0])
def test_poisson_counts_have_a_variance_equal_to_their_mean_at_every_window(window: float) -> None:
    """The index of dispersion is 1; over n windows its standard error is sqrt(2/n)."""
    offsets = np.array(take(Poisson(20.0), 200_000, seed=13))
    windows = int(offsets[-1] / window)
    counts = np.bincount((offsets / window).astype(int))[:windows]
    assert counts.var() / counts.mean() == pytest.approx(1, abs=4 * sqrt(2 / windows))
    assert counts.mean() == pytest.approx(20.0 * window, rel=4 / sqrt(20.0 * window * windows))


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
    gaps = np.diff(take(burst, burst.size * 40 + 1))
    assert 1 / gaps.mean() == pytest.approx(burst.rate)
    assert gaps.std() / gaps.mean() == pytest.approx(burst.cv, abs=1e-6)


def test_oneshot_has_everything_at_zero() -> None:
    assert set(take(Oneshot(), 1000)) == {0.0}
