"""Arrivals as traces have them: replayed stamps, and clients whose rate and burstiness change from window to window."""

import itertools
from math import inf, isnan, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling import Array, take, until
from scipy import stats

from loadgen.arrivals import (
    Arrivals,
    Client,
    Clients,
    EvenGaps,
    ExponentialGaps,
    GammaGaps,
    Gaps,
    Replay,
    WeibullGaps,
    Window,
    statistics,
)

stamps = st.lists(st.floats(0, 1e7), min_size=1, max_size=200).map(lambda own: np.sort(np.array(own)))
coarse = st.lists(st.integers(0, 50), min_size=1, max_size=200).map(lambda own: np.sort(np.array(own, float)) * 3)

# ── replay ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@given(stamps)
def test_at_speed_1_every_offset_is_its_stamp_bit_for_bit(own: Array) -> None:
    assert np.array(take(Replay(own), 999)).tobytes() == own.tobytes()


@given(stamps, st.floats(0.01, 100))
def test_at_another_speed_every_offset_is_its_stamp_divided_by_it(own: Array, speed: float) -> None:
    assert take(Replay(own, speed), 999) == (own / speed).tolist()


@given(stamps | coarse, st.floats(1e-9, 10), st.floats(0.1, 10), st.integers(0, 2**32))
def test_spread_stamps_stay_in_their_bins_and_bins_keep_their_order(
    own: Array, spread: float, speed: float, seed: int
) -> None:
    """Request i, after sorting, is still in the bin of stamp i, and before the next different stamp."""
    offsets = np.array(take(Replay(own, speed, spread), 999, seed))
    later = np.append(np.unique(own), 1e9)[np.searchsorted(np.unique(own), own) + 1]
    assert len(offsets) == len(own)
    assert np.all(offsets >= own / speed)
    assert np.all(offsets <= (own + spread) / speed)
    assert np.all(offsets <= np.nextafter(later, 0) / speed)


def test_spread_stamps_are_uniform_in_their_bins() -> None:
    """3 s bins, ten requests each, as in a published conversation trace; a gap of 1 s cuts every third bin short.

    Kolmogorov-Smirnov at 1 in 1,000 on 20,000.
    """
    begins = np.arange(2000) // 3 * 7 + np.array([0, 3, 6])[np.arange(2000) % 3]
    widths = np.tile([3.0, 3.0, 1.0], 667)[:2000]
    offsets = np.array(take(Replay(np.repeat(begins, 10).astype(float), 1.0, 3.0), 99_999, seed=51))
    inside = (offsets - np.repeat(begins, 10)) / np.repeat(widths, 10)
    assert stats.kstest(inside, "uniform").pvalue > 0.001
    assert stats.kstest(inside * 0.95, "uniform").pvalue < 0.001
    order = np.diff(take(Replay(np.zeros(500), 1.0, 3.0), 500, seed=52))
    assert np.all(order > 0)


def test_a_replays_theory_is_its_stamps() -> None:
    own = np.array([0.0, 1, 1, 4, 8])
    process = Replay(own, 2.0)
    assert process.rate == 5 / 4
    assert process.cv == pytest.approx(np.std([1, 0, 3, 4]) / 2)
    assert [process.expected(t) for t in (0.0, 0.5, 0.6, 2.1, 99.0)] == [0, 1, 3, 4, 5]
    assert process.dispersion(1.0, 4.0) == pytest.approx(np.var([3, 0, 1, 0], ddof=1))
    assert isnan(Replay(np.zeros(3)).cv)
    assert Replay(np.zeros(3)).rate == inf


def test_spread_stamps_are_expected_as_their_bins_fill() -> None:
    process = Replay(np.array([0.0, 0, 3, 4]), 2.0, 3.0)
    assert [process.expected(t) for t in (0.0, 0.75, 1.5, 1.75, 2.0, 2.75, 3.5)] == [0, 1, 2, 2.5, 3, 3.5, 4]
    assert process.rate == 4 / 3.5
    assert isnan(process.cv)


# ── clients ──────────────────────────────────────────────────────────────────────────────────────────────────────────

BURSTY = Client(
    (
        Window(5.0, 20.0, 2.0, GammaGaps(0.1)),
        Window(20.0, 35.0, 6.0, GammaGaps(0.1)),
        Window(40.0, 60.0, 0.0, WeibullGaps(0.4)),
        Window(60.0, 100.0, 1.0, WeibullGaps(0.4)),
        Window(100.0, 120.0, 5.0, ExponentialGaps()),
    )
)


def one(*windows: tuple[float, float, float], gaps: Gaps) -> Client:
    return Client(tuple(Window(*window, gaps) for window in windows))


def test_every_window_has_its_mean_count_from_its_first_second_on() -> None:
    """1,000 runs of a client with CVs of 3.2; the mean count of each stretch within 4 standard errors.

    Clients that began with a whole gap would send 0.6·4.5 requests too many in the first stretch alone.
    """
    edges = np.array([0.0, 5, 6, 20, 21, 35, 40, 60, 62, 100, 101, 120, 200])
    runs = np.array([np.histogram(until(Clients((BURSTY,)), 1e9, seed), edges)[0] for seed in range(1500)])
    means = np.array([0.0, 2, 28, 6, 84, 0, 0, 2, 38, 5, 95, 0])
    assert np.diff([Clients((BURSTY,)).expected(edge) for edge in edges]) == pytest.approx(means)
    assert np.all(runs[:, means == 0] == 0)
    errors = runs.std(axis=0, ddof=1) / sqrt(1000)
    assert np.all(np.abs(runs.mean(axis=0) - means) <= 4 * errors)
    assert errors[2] < 0.035 * 28
    # Stretches within one law: the variance is its stationary count's; 1,000 counts know theirs to a few per cent.
    spread = [GammaGaps(0.1).variance(2), GammaGaps(0.1).variance(6), WeibullGaps(0.4).variance(2), 5.0]
    assert runs[:, [1, 3, 7, 9]].var(axis=0, ddof=1) == pytest.approx(spread, rel=0.35)


def test_a_gap_under_way_is_carried_over_a_border_at_the_new_rate() -> None:
    """On the clock of the cumulative rate even gaps stay even, across changes of rate and through a pause."""
    process = Clients((one((0.0, 10.3, 1.0), (10.3, 20.0, 3.0), (25.0, 40.0, 0.7), gaps=EvenGaps()),))
    offsets = take(process, 999, seed=61)
    assert np.diff(statistics.rescaled(process, offsets)[1:]) == pytest.approx(0, abs=1e-9)
    assert process.expected(offsets[0]) == pytest.approx(np.random.default_rng(61).spawn(1)[0].spawn(1)[0].random())
    assert len(offsets) in {49, 50}


def test_within_a_client_gaps_on_its_clock_have_their_law_and_a_5_percent_error_would_be_seen() -> None:
    """Kolmogorov-Smirnov at 1 in 1,000 on some 60,000 gaps over 120 windows."""
    windows = [(100.0 * i, 100.0 * (i + 1), (2.0, 8.0, 5.0)[i % 3]) for i in range(120)]
    process = Clients((one(*windows, gaps=GammaGaps(0.7)),))
    gaps = statistics.rescaled(process, take(process, 99_999, seed=62))[1:]
    law = stats.gamma(0.7, scale=1 / 0.7)
    assert stats.kstest(gaps, law.cdf).pvalue > 0.001
    assert stats.kstest(gaps * 1.05, law.cdf).pvalue < 0.001


def test_the_superposition_has_the_sum_of_the_rates_and_of_the_requests() -> None:
    parts = [one((0.0, 300.0, rate), gaps=gaps) for rate, gaps in ((3.0, GammaGaps(0.3)), (9.0, WeibullGaps(0.6)))]
    both = Clients((*parts, BURSTY))
    assert both.rate == pytest.approx((900 + 2700 + 260) / 300)
    counts = np.array([len(take(both, 99_999, seed)) for seed in range(100)])
    error = sqrt(GammaGaps(0.3).variance(900) + WeibullGaps(0.6).variance(2700) + counts.var() * 0.1) / 10
    assert counts.mean() == pytest.approx(3860, abs=4 * error)
    assert error < 15


def test_one_more_client_at_the_end_moves_nobody() -> None:
    many = tuple(one((0.0, 50.0, 2.0 + i), gaps=GammaGaps(0.5)) for i in range(4))
    fewer, more = take(Clients(many[:3]), 9999, 63), take(Clients(many), 9999, 63)
    assert set(fewer) < set(more)
    alone = [list(c.offsets(rng)) for c, rng in zip(many, np.random.default_rng(63).spawn(4), strict=True)]
    assert more == sorted(itertools.chain(*alone))
    assert not set(alone[0]) & set(alone[1])


def test_scaled_clients_keep_their_shares_and_their_windows() -> None:
    both = Clients((BURSTY, one((0.0, 200.0, 3.0), gaps=EvenGaps())))
    twice = both.scaled(2 * both.rate)
    assert twice.rate == pytest.approx(2 * both.rate)
    assert [twice.expected(t) for t in (10.0, 50.0, 200.0)] == pytest.approx(
        [2 * both.expected(t) for t in (10.0, 50.0, 200.0)]
    )
    assert twice.clients[0].windows[1] == Window(20.0, 35.0, 12.0, GammaGaps(0.1))


# ── dispersion of both ───────────────────────────────────────────────────────────────────────────────────────────────

MIXED = Clients(
    (
        one((0.0, 60.0, 3.0), (60.0, 120.0, 9.0), gaps=GammaGaps(0.4)),
        one((0.0, 30.0, 5.0), (50.0, 120.0, 2.0), gaps=WeibullGaps(0.6)),
        one((10.0, 110.0, 4.0), gaps=EvenGaps()),
        one((0.0, 120.0, 6.0), gaps=ExponentialGaps()),
    )
)
SPREAD = Replay(np.repeat(np.arange(40) * 3.0, np.arange(40) % 7 * 5), 1.0, 3.0)
CUT = Replay(np.repeat(np.cumsum(np.arange(60) % 5 + 0.0), np.arange(60) % 4 * 6), 1.0, 3.0)


@pytest.mark.parametrize("process", [MIXED, SPREAD, CUT], ids=["clients", "spread", "spread and cut"])
def test_the_dispersion_is_what_runs_show_on_average(process: Arrivals) -> None:
    """150 runs of 119 s, within 4 standard errors and the 2 % that windows' correlation is left out for."""
    runs = [until(process, 119.0, seed) for seed in range(150)]
    for window in (0.4, 1.0, 2.0, 7.0):
        indices = [statistics.dispersion(run, window, 119.0) for run in runs]
        error = float(np.std(indices, ddof=1)) / sqrt(150)
        theory = process.dispersion(window, 119.0)
        assert error < 0.025 * theory
        assert np.mean(indices) == pytest.approx(theory, abs=4 * error + 0.02 * theory)


def test_one_client_in_one_window_has_its_laws_dispersion() -> None:
    process = Clients((one((0.0, 100.0, 4.0), gaps=GammaGaps(0.4)),))
    assert process.dispersion(2.0, 100.0) == pytest.approx(GammaGaps(0.4).variance(8.0) / 8.0)
    assert isnan(process.dispersion(60.0, 100.0))
