"""Rates that vary with time: curves and their inverses, and arrivals on a curve's clock."""

from math import inf, isinf, pi, sqrt

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sampling import Array, take, until
from scipy import integrate, stats

from loadgen.arrivals import (
    Curve,
    Diurnal,
    EvenGaps,
    GammaGaps,
    PiecewiseLinear,
    Varying,
    WeibullGaps,
    ramp,
    spike,
    statistics,
    step,
)
from loadgen.arrivals.curve import kepler

CURVES: list[Curve] = [
    ramp(1.0, 20.0, 100.0),
    ramp(20.0, 0.0, 100.0),
    step([(5.0, 20.0), (0.0, 10.0), (25.0, 30.0), (2.0, 40.0)]),
    step([(5.0, 20.0), (0.0, 10.0), (25.0, 30.0)], repeat=True),
    spike(4.0, 60.0, at=30.0, width=10.0, rise=5.0),
    spike(4.0, 60.0, at=30.0, width=10.0),
    PiecewiseLinear(((0.0, 0.0), (30.0, 12.0), (30.0, 4.0), (50.0, 0.0)), repeat=True),
    Diurnal(10.0, 0.8, 60.0),
    Diurnal(10.0, 1.0, 60.0, trough=17.0),
    Diurnal.of_peak(10.0, 15.0, 60.0, trough=-200.0),
]

# Where a rate is 1e-300, Λ is no longer invertible in floating point.
levels = st.just(0.0) | st.floats(1e-3, 1e3)


@st.composite
def piecewise(draw: st.DrawFn) -> PiecewiseLinear:
    gaps = draw(st.lists(st.just(0.0) | st.floats(1e-2, 1e3), min_size=1, max_size=6))
    times = np.insert(np.cumsum(gaps), 0, 0.0).tolist()
    rates = [draw(levels) for _ in times]
    assume(times[-1] > 0)
    curve = PiecewiseLinear(tuple(zip(times, rates, strict=True)), draw(st.booleans()))
    assume(curve.cumulative(np.array([times[-1] * 0.999999]))[0] > 0)
    return curve


diurnals = st.builds(Diurnal, st.floats(1e-3, 1e3), st.floats(0, 1), st.floats(1, 1e5), st.floats(-1e5, 1e5))


def total(curve: Curve) -> float:
    """Λ(∞)."""
    if isinstance(curve, PiecewiseLinear) and not curve.repeat and curve.points[-1][1] == 0:
        return float(curve.cumulative(np.array([curve.points[-1][0]]))[0])
    return inf


# ── curves ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@given(piecewise() | diurnals, st.lists(st.floats(0, 1), min_size=1, max_size=30), st.floats(0.1, 1e4))
def test_the_inverse_is_when_the_cumulative_rate_reaches_an_amount(
    curve: Curve, shares: list[float], most: float
) -> None:
    amounts = np.array(shares) * min(most, total(curve) * (1 - 1e-9))
    times = curve.inverse(amounts)
    assert np.all(np.isfinite(times))
    assert np.all(times >= 0)
    assert curve.cumulative(times) == pytest.approx(amounts, rel=1e-9, abs=1e-9 * max(1, amounts.max()))


@settings(max_examples=50)
@given(piecewise() | diurnals, st.floats(0.1, 1e4))
def test_the_inverse_is_the_earliest_time_and_never_decreases(curve: Curve, most: float) -> None:
    amounts = np.linspace(0, min(most, total(curve) * (1 - 1e-9)), 50)
    times = curve.inverse(amounts)
    assert np.all(np.diff(times) >= -1e-9 * times[-1])
    earlier = curve.cumulative(times * (1 - 1e-4))
    assert np.all(earlier <= amounts + 1e-9 * (1 + amounts))


@pytest.mark.parametrize("curve", CURVES, ids=repr)
@pytest.mark.parametrize("end", [3.0, 27.5, 44.0, 95.0, 131.0])
def test_the_cumulative_rate_is_the_integral_of_the_rate(curve: Curve, end: float) -> None:
    """By adaptive quadrature, told where the corners are."""
    corners = [c for c in (20, 30, 35, 40, 45, 50, 60, 80, 90, 100, 110, 120) if c < end]
    area, _ = integrate.quad(lambda t: curve.rates(np.array([t]))[0], 0, end, points=corners or None, limit=200)
    assert curve.cumulative(np.array([end]))[0] == pytest.approx(area, rel=1e-6)


@pytest.mark.parametrize("e", [0.0, 1e-9, 0.3, 0.9, 0.999, 1 - 1e-12, 1.0])
def test_keplers_equation_is_solved_to_the_last_bits(e: float) -> None:
    angles = np.concatenate([np.linspace(-np.pi, np.pi, 10_001), np.geomspace(1e-18, 3, 3000)])
    solved = kepler(angles, e)
    assert np.abs(solved - e * np.sin(solved) - angles).max() < 1e-15 * np.pi


def test_a_ramp_is_straight_in_time_and_not_in_the_count_of_requests() -> None:
    """1 to 20/s over 100 s: t + 0.095t² = 525, half of the 1,050 requests, at 69.3 s.

    A ramp by index, as some tools have it, would have sent half of them only after 78.6 % of its time.
    """
    half = (sqrt(1 + 4 * 0.095 * 525) - 1) / 0.19
    assert half == pytest.approx(69.26, abs=0.01)
    assert take(Varying(ramp(1, 20, 100), EvenGaps()), 525)[-1] == pytest.approx(half)
    sent = [until(Varying(ramp(1, 20, 100)), 100.0, seed) for seed in range(50)]
    by_then = sum(int(np.sum(offsets < half)) for offsets in sent)
    assert by_then == pytest.approx(50 * 525, abs=4 * sqrt(50 * 525))
    assert abs(sum(int(np.sum(offsets < 78.6)) for offsets in sent) - 50 * 525) > 20 * sqrt(50 * 525)


def test_steps_spikes_and_ramps_have_the_rates_they_are_asked_for() -> None:
    times = np.array([0.0, 9.9, 10.0, 12.5, 15.0, 19.9, 22.5, 25.1, 1e6])
    assert spike(2.0, 10.0, at=10, width=5, rise=5).rates(times) == pytest.approx([2, 2, 2, 6, 10, 10, 6, 2, 2])
    assert step([(1, 10), (0, 5), (3, 5)]).rates(times).tolist() == [1, 1, 0, 0, 3, 3, 3, 3, 3]
    assert step([(1, 10), (0, 5), (3, 5)], repeat=True).rates(times[:8]).tolist() == [1, 1, 0, 0, 3, 3, 1, 1]
    assert ramp(0, 10, 20).rates(times[[0, 2, 8]]).tolist() == [0, 5, 10]


def test_a_diurnal_curve_has_its_trough_and_its_peak_where_it_says() -> None:
    day = Diurnal.of_peak(10.0, 16.0, trough=4 * 3600.0)
    assert day.rates(np.array([4.0, 16.0, 10.0, 28.0]) * 3600) == pytest.approx([4, 16, 10, 4])
    assert Diurnal(10.0, 0.6).rates(np.zeros(1))[0] == pytest.approx(4)


@pytest.mark.parametrize(
    ("curve", "rate"),
    [
        (ramp(1, 20, 100), 20.0),
        (ramp(20, 0, 100), 10.0),  # over its span, as it ends
        (step([(5, 20), (0, 10), (25, 30)], repeat=True), 850 / 60),
        (spike(4, 60, 30, 10, 5), 4.0),
        (Diurnal(10, 0.8), 10.0),
    ],
)
def test_the_rate_of_a_curve_is_its_long_run_rate(curve: Curve, rate: float) -> None:
    assert curve.rate == pytest.approx(rate)
    assert Varying(curve).rate == curve.rate


# ── arrivals ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("curve", [curve for curve in CURVES if isinf(total(curve))], ids=repr)
def test_on_the_curves_clock_arrivals_are_poisson_and_a_5_percent_error_would_be_seen(curve: Curve) -> None:
    """Kolmogorov-Smirnov at 1 in 1,000 on 20,000 rescaled gaps; the arrivals are drawn from the same seed."""
    offsets = take(Varying(curve), 20_000, seed=41)
    rescaled = statistics.rescaled(Varying(curve), offsets)
    assert stats.kstest(rescaled, stats.expon.cdf).pvalue > 0.001
    assert stats.kstest(rescaled * 1.05, stats.expon.cdf).pvalue < 0.001  # as of a curve 5 % higher


@pytest.mark.parametrize(
    ("gaps", "law"),
    [
        (GammaGaps(0.8), stats.gamma(0.8, scale=1.25)),
        (GammaGaps(4.0), stats.gamma(4.0, scale=0.25)),
        (WeibullGaps(2.0), stats.weibull_min(2.0, scale=2 / sqrt(pi))),
    ],
    ids=repr,
)
def test_other_gaps_are_found_again_on_the_curves_clock(
    gaps: GammaGaps | WeibullGaps, law: stats.rv_continuous
) -> None:
    process = Varying(Diurnal(10.0, 0.8, 60.0), gaps)
    rescaled = statistics.rescaled(process, take(process, 25_000, seed=42))
    assert stats.kstest(rescaled, law.cdf).pvalue > 0.001
    assert stats.kstest(rescaled * 1.05, law.cdf).pvalue < 0.001


def thinned(curve: Curve, most: float, end: float, rng: np.random.Generator) -> Array:
    """Lewis and Shedler, 1979: of Poisson candidates at the highest rate keep each with probability λ(t)/highest."""
    candidates = np.sort(rng.random(rng.poisson(most * end)) * end)
    return candidates[rng.random(len(candidates)) * most < curve.rates(candidates)]


@pytest.mark.parametrize(
    ("curve", "wrong", "most"),
    [
        (ramp(1, 20, 100), ramp(3, 18, 100), 20.0),
        (Diurnal(10, 0.8, 60), Diurnal(10, 0.6, 60), 18.0),
        (Diurnal(10, 0.8, 60), Diurnal(10, 0.8, 60, trough=2), 18.0),
        (spike(4, 60, 30, 10, 5), spike(4, 60, 31, 10, 5), 60.0),
    ],
    ids=repr,
)
def test_thinning_draws_the_same_arrivals(curve: Curve, wrong: Curve, most: float) -> None:
    """Two samples of some 30,000, by the Kolmogorov-Smirnov test at 1 in 1,000; curves a little off are told apart."""
    rng = np.random.default_rng(43)
    end = 120.0
    inverted = np.concatenate([until(Varying(curve), end, seed) for seed in range(25)])
    other = np.concatenate([thinned(curve, most, end, rng) for _ in range(25)])
    off = np.concatenate([until(Varying(wrong), end, seed) for seed in range(25)])
    assert stats.ks_2samp(inverted, other).pvalue > 0.001
    assert stats.ks_2samp(off, other).pvalue < 0.001
    assert len(inverted) == pytest.approx(len(other), abs=4 * sqrt(2 * len(other)))


def test_a_curve_that_falls_to_zero_ends_the_process() -> None:
    sent = [len(take(Varying(ramp(20.0, 0.0, 100.0)), 10_000, seed)) for seed in range(100)]
    assert np.mean(sent) == pytest.approx(1000, abs=4 * sqrt(1000 / 100))
    assert np.var(sent, ddof=1) == pytest.approx(1000, rel=4 * sqrt(2 / 99))
    assert max(take(Varying(ramp(20.0, 0.0, 100.0)), 10_000)) <= 100.0


def test_nothing_arrives_while_the_rate_is_zero() -> None:
    offsets = np.array(take(Varying(step([(5, 20), (0, 10), (25, 30)], repeat=True)), 20_000)) % 60
    assert not np.any((offsets > 20) & (offsets < 30))


def test_what_is_due_as_the_rate_becomes_zero_does_not_wait_for_its_return() -> None:
    pausing = step([(10, 1), (0, 5), (10, 1)])
    assert take(Varying(pausing, EvenGaps()), 11)[-2:] == [1.0, 6.1]
    assert pausing.inverse(np.array([10.0, 20.0])).tolist() == [1.0, 7.0]


def test_the_dispersion_of_two_levels_by_hand() -> None:
    """Windows of 100 and 300 on average: Poisson's 1, plus (300 - 100)²/2 over 200."""
    process = Varying(step([(10, 10), (30, 10)]))
    assert process.dispersion(10.0, 20.0) == pytest.approx(1 + 100)
    assert process.dispersion(10.0, 39.9) == pytest.approx(1 + (200**2 * 2 / 9 * 3 / 2) / (700 / 3))


@pytest.mark.parametrize(
    "process",
    [
        Varying(ramp(1, 20, 100)),
        Varying(Diurnal(10, 0.8, 60)),
        Varying(Diurnal(10, 0.8, 60), GammaGaps(0.5)),
        Varying(spike(4, 40, 30, 10, 5), WeibullGaps(0.7)),
        Varying(step([(2, 30), (20, 30)], repeat=True), GammaGaps(5.0)),
    ],
    ids=repr,
)
def test_a_varying_rates_dispersion_is_what_its_runs_show_on_average(process: Varying) -> None:
    """100 runs of 120 s, within 4 standard errors.

    Of gaps that are not exponential 2 % more: the counts of neighbouring windows are not quite uncorrelated.
    """
    runs = [until(process, 120.0, seed) for seed in range(100)]
    for window in (0.2, 1.0, 5.0):
        indices = [statistics.dispersion(run, window, 120.0) for run in runs]
        error = float(np.std(indices, ddof=1)) / 10
        theory = process.dispersion(window, 120.0)
        assert error < 0.03 * theory
        assert np.mean(indices) == pytest.approx(theory, abs=4 * error + (process.gaps.cv != 1) * 0.02 * theory)
