"""How arrivals count: windows that tile a span, and the variance of a stationary renewal process's counts.

Here time is in mean gaps, so that a window of `mean` has `mean` arrivals on average. With the gaps' distribution F and
the sums S_k of k gaps, a stationary process (windows at a time that knows nothing of the arrivals) has

    Var N(M) = M + 2 ∫₀ᴹ Σ_k P(S_k <= u) du - M²        (Cox, Renewal Theory, 1962, section 4.5)

which is summed for gamma gaps, whose S_k are gamma again, and inverted from its Laplace transform for any others.
"""

from collections.abc import Callable
from math import ceil, exp, floor, nan, pi, sqrt

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Complex = npt.NDArray[np.complex128]

SHARP = 1e-9  # of a window: what lies this close below an edge is a rounding error away from it
ALIKE = 1e-9  # of the largest mean: means closer than this differ by rounding
POINTS = 64  # windows of more different means than this are interpolated


def tiles(window: float, span: float) -> Array:
    """The edges of the whole windows that fit into [0, span)."""
    return np.arange(floor(span / window + SHARP) + 1, dtype=np.float64) * window


def counts(offsets: npt.ArrayLike, window: float, span: float) -> npt.NDArray[np.intp]:
    """How many offsets fall into each of the windows that tile [0, span)."""
    windows = len(tiles(window, span)) - 1
    own = np.floor(np.asarray(offsets, float) / window + SHARP)
    return np.bincount(own[own < windows].astype(np.intp), minlength=windows)


def index(means: npt.ArrayLike, variances: npt.ArrayLike = 0.0) -> float:
    """The index of dispersion of windows whose counts have these means and variances and are uncorrelated.

    The sample's variance, with n - 1 below, has the windows' mean variance plus the variance of their means for its
    mean. For counts that are known the means are the counts, and the variances 0.
    """
    own = np.asarray(means, float)
    if len(own) < 2 or not own.any():
        return nan
    return float((np.asarray(variances, float).mean() + own.var(ddof=1)) / own.mean())


def variances(variance: Callable[[float], float], means: Array) -> Array:
    """`variance` of each mean; where many means differ, variance over mean is interpolated between POINTS of them."""
    grain = ALIKE * float(means.max(initial=0)) or 1.0
    steps, back = np.unique(np.round(means / grain), return_inverse=True)
    known = steps * grain
    if len(known) <= POINTS:
        return np.array([variance(float(mean)) if mean > 0 else 0.0 for mean in known])[back]
    points = np.geomspace(known[known > 0][0], known[-1], POINTS)
    ratios = [variance(float(mean)) / mean for mean in points]
    return np.asarray(means * np.interp(means, points, ratios), float)


def even_variance(mean: float) -> float:
    """Of gaps that are all alike: the count is one of the two whole numbers next to the mean."""
    part = mean % 1
    return part * (1 - part)


def gamma_variance(shape: float, mean: float) -> float:
    """Of gamma gaps, by the series Σ_k E(M - S_k)⁺ with E(M - S_k)⁺ = M·P(kα, αM) - k·P(kα + 1, αM).

    Beyond about 100 correlation times the error of Cox's asymptote cv²·M + 1/6 + cv⁴/2 - μ₃/3 is beneath rounding.
    """
    from scipy.special import gammainc  # noqa: PLC0415 - a quarter of a second that --help need not pay

    if mean > max(100 / shape, 5 * shape):
        return mean / shape + (1 - shape**-2) / 6  # cv² = 1/α, μ₃ = 2/α²
    x = shape * mean
    sure = max(floor((x - 9 * sqrt(x)) / shape), 0)  # sums of up to so many gaps end inside for certain
    last = ceil((x + 12 * sqrt(x) + 40) / shape)  # and of more than so many beyond
    k = np.arange(sure + 1, last + 1)
    rest = float(np.sum(mean * gammainc(k * shape, x) - k * gammainc(k * shape + 1, x)))
    whole = sure * mean - sure * (sure + 1) / 2
    return max(float(mean + 2 * (whole + rest) - mean * mean), 0.0)


def inverted_variance(complement: Callable[[Complex], Complex], mean: float) -> float:
    """Of gaps of any smooth distribution, given 1 - f*(s), the complement of its Laplace transform.

    The transform 1/s² + 2 f*/(s²(1 - f*)) - 2/s³ is inverted by the Fourier series method with Euler summation (Abate
    and Whitt, 1995, ORSA Journal on Computing 7(1)). Good to 1e-5 of the variance, and far better where the gaps'
    distribution is smooth on the scale of mean/40.
    """
    damping, plain, averaged = 21.0, 40, 20  # the aliasing error is exp(-damping)
    j = np.arange(plain + averaged + 1)
    s = np.asarray((damping + 2j * pi * j) / (2 * mean), np.complex128)
    miss = complement(s)
    terms = np.real(1 / s**2 + 2 * (1 - miss) / (s**2 * miss) - 2 / s**3) * (-1.0) ** j
    terms[0] /= 2
    binomial = np.ones(averaged + 1)
    for i in range(averaged):
        binomial[i + 1] = binomial[i] * (averaged - i) / (i + 1)
    smoothed = float(np.cumsum(terms)[plain:] @ binomial) / 2.0**averaged
    return max(exp(damping / 2) / mean * smoothed, 0.0)
