"""Stationary burstiness: renewal processes and the MMPP against their moments, distributions and counts."""

from collections.abc import Callable
from math import gamma, sqrt
from typing import Any

import numpy as np
import pytest
from sampling import Array, take, until
from scipy import special, stats

from loadgen.arrivals import (
    Arrivals,
    EvenGaps,
    ExponentialGaps,
    Gamma,
    GammaGaps,
    Gaps,
    Mmpp,
    Poisson,
    Weibull,
    WeibullGaps,
    statistics,
)
from loadgen.arrivals.counting import Complex, gamma_variance, inverted_variance, variances

STORM = Mmpp((40.0, 2.0), (5.0, 15.0))


def scatter(process: Arrivals, window: float, windows: int, seed: int) -> tuple[float, float]:
    """The index of dispersion around the mean that theory knows (so that it is unbiased), and its standard error.

    The error comes from the scatter of 40 stretches of one run, long enough not to know of each other. The first 2 %
    are left out: there the process still knows that it began.
    """
    edges = (windows // 50 + np.arange(windows + 1)) * window
    counts = np.diff(np.searchsorted(until(process, float(edges[-1]), seed), edges))
    mean = process.rate * window
    squares = (counts - mean) ** 2 / mean
    stretches = squares.reshape(40, -1).mean(axis=1)
    return float(stretches.mean()), float(stretches.std(ddof=1) / sqrt(40))


# ── gaps ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

FAMILIES = [
    (Gamma(8.0, 0.25), stats.gamma(0.25, scale=1 / (8.0 * 0.25))),
    (Gamma(8.0, 4.0), stats.gamma(4.0, scale=1 / (8.0 * 4.0))),
    (Weibull(8.0, 0.5), stats.weibull_min(0.5, scale=1 / (8.0 * gamma(3)))),
    (Weibull(8.0, 2.0), stats.weibull_min(2.0, scale=1 / (8.0 * gamma(1.5)))),
]


@pytest.mark.parametrize(("process", "law"), FAMILIES, ids=repr)
def test_gaps_have_their_law_and_a_5_percent_error_of_the_rate_would_be_seen(process: Arrivals, law: Any) -> None:
    """Kolmogorov-Smirnov at 1 in 1,000 on 200,000 gaps, the first one from 0; the seed is fixed."""
    gaps = np.diff(take(process, 200_000, seed=21), prepend=0)
    assert stats.kstest(gaps, law.cdf).pvalue > 0.001
    assert stats.kstest(gaps * 1.05, law.cdf).pvalue < 0.001
    assert stats.kstest(gaps / 1.05, law.cdf).pvalue < 0.001


@pytest.mark.parametrize(("process", "law"), FAMILIES, ids=repr)
def test_the_cv_of_gaps_is_the_laws_and_the_samples_is_within_4_standard_errors(process: Arrivals, law: Any) -> None:
    mean, variance, skewness, excess = law.stats("mvsk")
    assert 1 / mean == pytest.approx(process.rate)
    assert sqrt(variance) / mean == pytest.approx(process.cv)
    c, n = process.cv, 200_000
    error = c * sqrt((c * c - c * skewness + (excess + 2) / 4) / n)
    assert error < 0.02 * c
    assert statistics.gap_cv(take(process, n + 1, seed=22)) == pytest.approx(c, abs=4 * error)


def test_gamma_gaps_are_the_ones_vllm_would_draw_before_it_rescales_them() -> None:
    theta = 1 / (8.0 * 0.25)
    gaps = np.random.default_rng(23).gamma(shape=0.25, scale=theta, size=5000)
    assert take(Gamma(8.0, 0.25), 5000, 23) == pytest.approx(np.cumsum(gaps).tolist())
    assert Gamma(8.0, 0.25).cv == 2


def test_a_weibulls_squared_cv_is_5_at_shape_one_half_and_1_83_at_three_quarters() -> None:
    assert Weibull(1.0, 0.5).cv ** 2 == pytest.approx(5)
    assert Weibull(1.0, 0.75).cv ** 2 == pytest.approx(1.83, abs=0.005)
    assert Weibull(1.0, 1.0).cv == pytest.approx(1)
    # Γ(1 + 2x)/Γ(1 + x)² - 1 = π²x²/6 + ... for small x
    assert Weibull(1.0, 1e5).cv == pytest.approx(np.pi / sqrt(6) * 1e-5, rel=1e-3)


EQUILIBRIUM: list[tuple[Gaps, Callable[[Array], Array]]] = [
    (ExponentialGaps(), stats.expon.cdf),
    (EvenGaps(), stats.uniform.cdf),
    # E min(gap, x), integrated by hand
    (GammaGaps(0.3), lambda x: special.gammainc(1.3, 0.3 * x) + x * special.gammaincc(0.3, 0.3 * x)),
    (WeibullGaps(0.6), lambda x: special.gammainc(1 / 0.6, (x * gamma(1 + 1 / 0.6)) ** 0.6)),
]


@pytest.mark.parametrize(("gaps", "cdf"), EQUILIBRIUM, ids=repr)
def test_what_is_left_of_a_gap_at_a_random_moment_has_the_equilibrium_law(
    gaps: Gaps, cdf: Callable[[Array], Array]
) -> None:
    """P(left <= x) = ∫₀ˣ P(gap > u) du; Kolmogorov-Smirnov at 1 in 1,000 on 20,000."""
    rng = np.random.default_rng(24)
    left = np.array([gaps.residual(rng) for _ in range(20_000)])
    assert stats.kstest(left, cdf).pvalue > 0.001
    assert stats.kstest(left * 1.1, cdf).pvalue < 0.001


# ── counts of renewal processes ──────────────────────────────────────────────────────────────────────────────────────


def gamma_complement(shape: float) -> Callable[[Complex], Complex]:
    return lambda s: np.asarray(-np.expm1(-shape * np.log1p(s / shape)))


def test_gamma_counts_at_shape_one_quarter() -> None:
    """2.84, 3.75, 3.98 and 4.00: what a trace-like CV of 2 means at four time scales (limit 4)."""
    process = Gamma(10.0, 0.25)
    indices = [process.dispersion(w, np.nan) for w in (0.1, 1, 10, 100)]
    assert indices == pytest.approx([2.84, 3.754, 3.975, 3.9975], abs=6e-4)
    assert process.dispersion(1e-9, np.nan) == pytest.approx(1, abs=0.02)
    assert process.dispersion(1e9, np.nan) == pytest.approx(4)


@pytest.mark.parametrize("mean", [1e-3, 0.1, 0.5, 1, 3, 30, 300])
def test_erlang_counts_have_their_textbook_variance(mean: float) -> None:
    """Gaps of two exponential stages: Var N(M) = M/2 + (1 - exp(-4M))/8 (Cox, 1962)."""
    assert gamma_variance(2.0, mean) == pytest.approx(mean / 2 - np.expm1(-4 * mean) / 8, rel=1e-9)


@pytest.mark.parametrize("shape", [0.03, 0.25, 0.9, 3.0, 20.0])
@pytest.mark.parametrize("mean", [0.01, 0.7, 1.0, 8.0, 99.0, 3000.0])
def test_series_and_inverted_transform_agree_on_gamma_counts(shape: float, mean: float) -> None:
    """Two ways that share no line."""
    assert inverted_variance(gamma_complement(shape), mean) == pytest.approx(gamma_variance(shape, mean), rel=2e-6)


@pytest.mark.parametrize("shape", [0.01, 0.25, 1.5, 40.0, 1e4, 1e6])
def test_the_series_and_its_asymptote_meet(shape: float) -> None:
    edge = max(100 / shape, 5 * shape)
    assert gamma_variance(shape, edge) == pytest.approx(gamma_variance(shape, edge * (1 + 1e-12)), rel=1e-3)


@pytest.mark.parametrize("mean", [0.01, 1.0, 30.0, 1e4])
def test_weibull_counts_at_shape_1_are_poisson(mean: float) -> None:
    assert WeibullGaps(1.0).variance(mean) == pytest.approx(mean, rel=1e-5)


@pytest.mark.parametrize("shape", [0.4, 0.75, 3.0])
def test_weibull_counts_have_coxs_asymptote(shape: float) -> None:
    """cv²·M + 1/6 + cv⁴/2 - μ₃/3, with the third central moment of the gap from its raw moments."""
    unit = stats.weibull_min(shape, scale=1 / gamma(1 + 1 / shape))
    third = unit.moment(3) - 3 * unit.moment(2) + 2
    cv2 = unit.var()
    assert WeibullGaps(shape).variance(2e4) == pytest.approx(cv2 * 2e4 + 1 / 6 + cv2**2 / 2 - third / 3, rel=1e-6)


def test_nearly_even_weibull_counts_are_those_of_gamma_gaps_of_their_cv() -> None:
    """Above shape 10; the two meet there to 2 %."""
    for mean in (0.3, 1.0, 2.5, 10.0, 400.0):
        assert WeibullGaps(10.01).variance(mean) == pytest.approx(WeibullGaps(9.99).variance(mean), rel=0.02)


def test_many_different_windows_are_interpolated_to_half_a_percent() -> None:
    means = np.geomspace(1e-3, 1e4, 777)
    exact = np.array([gamma_variance(0.25, mean) for mean in means])
    assert variances(GammaGaps(0.25).variance, means) == pytest.approx(exact, rel=5e-3)
    assert list(variances(GammaGaps(0.25).variance, np.array([0.0, 1.0]))) == [0, gamma_variance(0.25, 1.0)]


@pytest.mark.parametrize(
    "process",
    [Poisson(10.0), Gamma(10.0, 0.25), Gamma(10.0, 4.0), Weibull(10.0, 0.5), Weibull(10.0, 0.75), Weibull(10.0, 2.0)],
    ids=repr,
)
@pytest.mark.parametrize(("window", "windows"), [(0.03, 60_000), (0.3, 40_000), (5.0, 4_000)])
def test_renewal_counts_scatter_as_much_as_theory_says(process: Arrivals, window: float, windows: int) -> None:
    index, error = scatter(process, window, windows, seed=25)
    assert error < 0.05 * process.dispersion(window, np.nan)
    assert index == pytest.approx(process.dispersion(window, np.nan), abs=4 * error)


# ── MMPP ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_mmpp_of_40_and_2_per_second() -> None:
    """Rate, CV² of the gaps and index of dispersion at five windows, leaving the states at 0.2 and 0.0667 per second.

    CV² from the moments of the gaps as a phase-type law, E X^k = k! φ (-D0)^-k 1 (Fischer and Meier-Hellstern, 1993).
    """
    assert STORM.rate == pytest.approx(11.5)
    indices = [STORM.dispersion(w, np.nan) for w in (0.1, 1, 10, 100, 1000)]
    assert indices == pytest.approx([3.33, 22.6, 116, 171, 177], rel=2e-3)
    a, b = 1 / 5, 1 / 15
    flows, stay = np.diag([40.0, 2.0]), np.array([[40 + a, -a], [-b, 2 + b]])
    phi = np.array([b, a]) @ flows / (np.array([b, a]) @ flows).sum()
    first = phi @ np.linalg.inv(stay) @ np.ones(2)
    second = 2 * phi @ np.linalg.matrix_power(np.linalg.inv(stay), 2) @ np.ones(2)
    assert first == pytest.approx(1 / 11.5)
    assert STORM.cv**2 == pytest.approx(second / first**2 - 1)
    assert STORM.cv**2 == pytest.approx(7.52, abs=0.005)


def test_an_mmpps_counts_scatter_as_much_as_theory_says() -> None:
    """Five windows of one run of 17 hours."""
    offsets = until(STORM, 60_000.0, seed=31)
    assert len(offsets) == pytest.approx(11.5 * 60_000, abs=4 * sqrt(177.6 * 11.5 * 60_000))
    for window, width in ((0.1, 0.03), (1.0, 0.03), (10.0, 0.04), (100.0, 0.08), (1000.0, 0.25)):
        counts = np.diff(np.searchsorted(offsets, np.arange(60_000 / window + 1) * window))
        squares = (counts - 11.5 * window) ** 2 / (11.5 * window)
        stretches = squares[: len(squares) // 30 * 30].reshape(30, -1).mean(axis=1)
        error = stretches.std(ddof=1) / sqrt(30)
        assert error < width * STORM.dispersion(window, np.nan)
        assert stretches.mean() == pytest.approx(STORM.dispersion(window, np.nan), abs=4 * error)
    cvs = [statistics.gap_cv(part) for part in np.array_split(offsets, 30)]
    error = float(np.std(cvs, ddof=1)) / sqrt(30)
    assert error < 0.03 * STORM.cv
    assert np.mean(cvs) == pytest.approx(STORM.cv, abs=4 * error)


def test_an_mmpp_starts_in_either_state_with_its_share_of_time() -> None:
    """The first tenth of a second, 4,000 times over: it has the long-run mean and variance already."""
    counts = np.array([len(until(STORM, 0.1, seed)) for seed in range(4000)])
    assert counts.mean() == pytest.approx(1.15, abs=4 * sqrt(3.33 * 1.15 / 4000))
    # State 1 shows as more than one request: P(N <= 1) is e^-4·5 there and e^-0.2·1.2 in state 2, bar a change.
    assert np.mean(counts > 1) == pytest.approx(0.25 * 0.908 + 0.75 * 0.0175, abs=4 * sqrt(0.18 / 4000) + 0.006)


def test_an_on_off_process_has_the_hyperexponential_gaps_of_kuczura() -> None:
    """An MMPP with a silent state is a renewal process (Kuczura, 1973, Bell System Technical Journal 52(3)).

    Its gaps are exponential of rate m1 with probability p, else m2. Kolmogorov-Smirnov at 1 in 1,000 on 100,000 gaps.
    """
    rate, leave_on, leave_off = 20.0, 1 / 0.5, 1 / 2.0
    total = rate + leave_on + leave_off
    root = sqrt(total**2 - 4 * rate * leave_off)
    m1, m2 = (total + root) / 2, (total - root) / 2
    p = (rate - m2) / (m1 - m2)
    process = Mmpp((rate, 0.0), (0.5, 2.0))
    gaps = np.diff(take(process, 100_001, seed=33))

    def cdf(x: Array) -> Array:
        return np.asarray(1 - p * np.exp(-m1 * x) - (1 - p) * np.exp(-m2 * x))

    assert stats.kstest(gaps, cdf).pvalue > 0.001
    assert stats.kstest(gaps * 1.05, cdf).pvalue < 0.001
    assert process.cv**2 == pytest.approx(2 * (p / m1**2 + (1 - p) / m2**2) / (p / m1 + (1 - p) / m2) ** 2 - 1)
    assert process.rate == pytest.approx(4.0)


def test_an_mmpp_of_equal_rates_is_poisson() -> None:
    same = Mmpp((3.0, 3.0), (1.0, 5.0))
    assert (same.rate, same.cv, same.dispersion(7.0, np.nan)) == pytest.approx((3, 1, 1))


def test_the_mmpps_index_of_dispersion_has_no_seam_where_its_bracket_would_cancel() -> None:
    below, above = (STORM.dispersion(w, np.nan) - 1 for w in (0.999e-5 * 3.75, 1.001e-5 * 3.75))
    assert above / below == pytest.approx(1.001 / 0.999, rel=1e-5)
