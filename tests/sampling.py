"""Samples of arrival processes, for the tests that hold them against theory."""

import itertools

import numpy as np
import numpy.typing as npt

from loadgen.arrivals import Arrivals

Array = npt.NDArray[np.float64]


def take(process: Arrivals, n: int, seed: int = 0) -> list[float]:
    """The first n offsets, or as many as there are."""
    return list(itertools.islice(process.offsets(np.random.default_rng(seed)), n))


def until(process: Arrivals, end: float, seed: int = 0) -> Array:
    """The offsets in [0, end)."""
    offsets = process.offsets(np.random.default_rng(seed))
    return np.array(list(itertools.takewhile(lambda at: at < end, offsets)))
