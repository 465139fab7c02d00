"""Arrivals as a trace recorded them."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, nan

import numpy as np

from loadgen.arrivals.counting import Array, counts, index, tiles
from loadgen.arrivals.process import BLOCK


@dataclass(frozen=True, eq=False)
class Replay:
    """Request i is due at stamps[i]/speed; at speed 1 its offset is the stamp, bit for bit. Ends with its stamps.

    stamps are seconds from the start of the run that never decrease. A trace with coarse stamps, replayed as it
    stands, makes batches that nobody sent: `spread`, the width of its bins in seconds, moves every stamp to a random
    place in [stamp, stamp + spread), but not beyond the next different stamp. Bins keep their order. As offsets are
    sorted, so do requests.

    `rate` is over [0, end), where the last stamp, or its bin, ends. Without spread nothing is random: `cv` and
    `dispersion` are those of the stamps themselves. With it there is no cv, and dispersion is the random counts'.
    """

    stamps: Array
    speed: float = 1.0
    spread: float | None = None

    @property
    def rate(self) -> float:
        end = (float(self.stamps[-1]) + (self.spread or 0.0)) / self.speed
        return len(self.stamps) / end if end else inf

    @property
    def cv(self) -> float:
        gaps = np.diff(self.stamps)
        if self.spread is not None or not gaps.any():
            return nan
        return float(gaps.std() / gaps.mean())

    def expected(self, until: float) -> float:
        if self.spread is None:
            return float(np.searchsorted(self.stamps / self.speed, until, "left"))
        return float(np.sum(np.clip((until * self.speed - self.stamps) / self._widths(self.spread), 0, 1)))

    def variance(self, until: float) -> float:
        if self.spread is None:
            return 0.0
        share = np.clip((until * self.speed - self.stamps) / self._widths(self.spread), 0, 1)
        return float(np.sum(share * (1 - share)))

    def dispersion(self, window: float, span: float) -> float:
        if self.spread is None:
            return index(counts(self.stamps / self.speed, window, span))
        # Each request of a bin falls into a window with the share p of the bin that lies in it: cut the bins at the
        # windows' edges; every piece adds p to the mean of its window and p(1 - p) to its variance.
        edges = tiles(window, span) * self.speed
        starts, first, sizes = np.unique(self.stamps, return_index=True, return_counts=True)
        widths = self._widths(self.spread)[first]
        cuts = np.unique(np.concatenate([edges, starts, starts + widths]))
        middle = (cuts[:-1] + cuts[1:]) / 2
        own = np.maximum(np.searchsorted(starts, middle, "right") - 1, 0)
        tile = np.searchsorted(edges, middle, "right") - 1
        inside = (middle > starts[own]) & (middle < starts[own] + widths[own]) & (tile >= 0) & (tile < len(edges) - 1)
        own, tile, share = own[inside], tile[inside], (np.diff(cuts)[inside] / widths[own[inside]])
        means = np.bincount(tile, sizes[own] * share, len(edges) - 1)
        return index(means, np.bincount(tile, sizes[own] * share * (1 - share), len(edges) - 1))

    def offsets(self, rng: np.random.Generator) -> Iterator[float]:
        stamps = self.stamps
        if self.spread is not None:
            widths = self._widths(self.spread)
            # The product may round up to the end of the bin, which belongs to the next one.
            stamps = np.minimum(stamps + rng.random(len(stamps)) * widths, np.nextafter(stamps + widths, -inf))
            stamps = np.sort(np.maximum(stamps, self.stamps))
        for begin in range(0, len(stamps), BLOCK):
            yield from (stamps[begin : begin + BLOCK] / self.speed).tolist()

    def _widths(self, spread: float) -> Array:
        """How far each stamp may move: to the end of its bin or to the next different stamp."""
        different, own = np.unique(self.stamps, return_inverse=True)
        return np.minimum(np.diff(different, append=inf), spread)[own]
