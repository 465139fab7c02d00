"""Intervals of repeats, against tables, scipy's own t test, and their coverage in simulation."""

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from loadgen.stats import interval


def test_the_interval_is_students_of_the_table() -> None:
    """t(0.975) is 12.706, 4.303 and 2.776 for 1, 2 and 4 degrees of freedom in every table."""
    for n, t in ((2, 12.706), (3, 4.303), (5, 2.776)):
        values = [float(i) for i in range(n)]
        found = interval(values)
        assert found is not None
        half = t * float(np.std(values, ddof=1)) / math.sqrt(n)
        assert (found.mean, found.n) == (float(np.mean(values)), n)
        assert found.high - found.mean == pytest.approx(half, rel=3e-4)
        assert found.mean - found.low == pytest.approx(half, rel=3e-4)


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
def test_the_interval_is_scipys(confidence: float) -> None:
    values = np.random.default_rng(1).normal(3.0, 2.0, 7)
    found = interval(list(values), confidence)
    theirs = scipy_stats.ttest_1samp(values, 0.0).confidence_interval(confidence)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high))


def test_one_value_has_no_interval_and_nonsense_is_refused() -> None:
    assert interval([]) is interval([3.0]) is None
    with pytest.raises(ValueError, match="finite"):
        interval([1.0, math.nan])
    with pytest.raises(ValueError, match="confidence"):
        interval([1.0, 2.0], 1.0)


def test_values_without_spread_hold_only_themselves() -> None:
    found = interval([2.0, 2.0, 2.0])
    assert found is not None
    assert (found.low, found.high, found.holds_zero, found.holds(2.0)) == (2.0, 2.0, False, True)


@pytest.mark.parametrize("n", [2, 3, 5])
def test_of_two_thousand_intervals_as_many_hold_the_truth_as_they_say(n: int) -> None:
    """Binomial(2000, 0.95) has a standard deviation of 9.7: four of them are 39. Fixed seed."""
    rng = np.random.default_rng(20)
    held = 0
    for values in rng.normal(1.0, 3.0, (2000, n)):
        found = interval(list(values))
        assert found is not None
        held += found.holds(1.0)
    assert abs(held - 1900) < 39
