"""What a sample of arrivals says, to be held against what its process says (see `Arrivals`)."""

from math import nan

import numpy as np
import numpy.typing as npt

from loadgen.arrivals.counting import Array, counts, index
from loadgen.arrivals.process import Arrivals


def gap_cv(offsets: npt.ArrayLike) -> float:
    """The coefficient of variation of the gaps between n + 1 offsets.

    For independent exponential gaps its standard error is 1/sqrt(n); for gaps of CV c and higher moments in units of
    the standard deviation, skewness g and kurtosis k, it is c·sqrt((c² - c·g + (k - 1)/4)/n).
    """
    gaps = np.diff(np.asarray(offsets, float))
    return float(gaps.std() / gaps.mean()) if gaps.any() else nan


def dispersion(offsets: npt.ArrayLike, window: float, span: float) -> float:
    """The index of dispersion of the counts in the whole windows, `window` seconds long, that tile [0, span).

    Its standard error is about itself times sqrt(2/(n - 1)) for n windows of nearly normal, independent counts; more
    where a window has few arrivals, or where bursts outlast it.
    """
    return index(counts(offsets, window, span))


def rescaled(process: Arrivals, offsets: npt.ArrayLike) -> Array:
    """Gaps on the clock of the process: Λ(t_i) - Λ(t_(i-1)), with t_0 = 0.

    By the time-rescaling theorem (Brown et al., 2002, Neural Computation 14(2)) they are independent and exponential of
    mean 1 if and only if the arrivals are Poisson at that rate; for a renewal process on that clock they are its gaps.
    """
    return np.diff([process.expected(float(at)) for at in np.asarray(offsets, float)], prepend=0.0)
