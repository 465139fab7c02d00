"""Many clients at once, each with a rate and a burstiness that change from window to window.

After ServeGen (Xiang et al., 2025), which found that no single process fits the arrivals at a large service, but that
those of its clients are gamma or Weibull for minutes on end. Unlike its generator, nothing here is rescaled to fill a
window: counts are as random as the clients are.
"""

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import nan

import numpy as np

from loadgen.arrivals.counting import Array, index, tiles, variances
from loadgen.arrivals.gaps import Gaps
from loadgen.arrivals.process import BLOCK


@dataclass(frozen=True)
class Window:
    """From start to end, in seconds, gaps of this law at this many requests per second."""

    start: float
    end: float
    rate: float
    gaps: Gaps


@dataclass(frozen=True)
class Client:
    """One client: windows in order of time that do not overlap; outside of them it sends nothing.

    Its first gap is what is left of a gap at a random moment, so that it sends at its rate from the first second on.
    At a border the gap under way is carried over: what is left of it, counted in mean gaps, passes at the new window's
    rate, and stands still where the client is silent. Where the law of the gaps changes, nothing is left that the new
    law could continue; the new law's own remainder at a random moment takes its place. So every window is stationary.
    """

    windows: tuple[Window, ...]

    def offsets(self, rng: np.random.Generator) -> Iterator[float]:
        sending = (window for window in self.windows if window.rate > 0)
        for gaps, windows in itertools.groupby(sending, key=lambda window: window.gaps):
            yield from _stretch(gaps, list(windows), rng.spawn(1)[0])

    def variance(self, until: float) -> float:
        """Variance of this client's count in [0, until): a stretch of windows of one law is one stationary process."""
        variance, stretch, law = 0.0, 0.0, None
        for window in self.windows:
            if window.rate > 0:
                if window.gaps != law and law is not None:
                    variance, stretch = variance + law.variance(stretch), 0.0
                law = window.gaps
                stretch += window.rate * max(min(window.end, until) - window.start, 0.0)
        return variance + law.variance(stretch) if law is not None and stretch > 0 else variance

    def moments(self, edges: Array) -> tuple[Array, Array]:
        """Mean and variance of this client's count between each two edges.

        Exact between edges within one window. Of a stretch that spans several, each window contributes its share of
        the mean at the index of dispersion which its law has over all of that mean.
        """
        parts = []
        means, variance = np.zeros(len(edges) - 1), np.zeros(len(edges) - 1)
        for window in self.windows:
            first, beyond = np.searchsorted(edges, [window.start, window.end], "right")
            own = slice(max(int(first) - 1, 0), min(int(beyond), len(means)))
            lower, upper = edges[own], edges[own.start + 1 : own.stop + 1]
            seconds = np.minimum(upper, window.end) - np.maximum(lower, window.start)
            part = np.maximum(seconds, 0) * window.rate
            means[own] += part
            parts.append((own, part, window.gaps))
        for own, part, gaps in parts:
            sent = part > 0
            mean = means[own][sent]
            variance[own][sent] += part[sent] * variances(gaps.variance, mean) / mean
        return means, variance


def _stretch(gaps: Gaps, windows: list[Window], rng: np.random.Generator) -> Iterator[float]:
    """Windows of one law on one clock: Λ⁻¹ of the sums of its gaps, where Λ is straight within a window."""
    times = np.array([(w.start, w.end) for w in windows]).ravel()
    amounts = np.cumsum([(0.0, (w.end - w.start) * w.rate) for w in windows])
    due = gaps.residual(rng)
    while due < amounts[-1]:
        draws = gaps.draw(rng, min(BLOCK, int(amounts[-1] - due) + 16))
        sums = np.cumsum(np.insert(draws, 0, due))
        due = float(sums[-1])
        sums = sums[:-1]
        # Two sums a rounding error apart may come back in the other order.
        yield from np.maximum.accumulate(np.interp(sums[sums < amounts[-1]], amounts, times)).tolist()


@dataclass(frozen=True)
class Clients:
    """All clients' requests in order of time; it ends with the last client's last window.

    Each client draws from a generator of its own, so that one more at the end of the list moves nobody else's
    requests; so does each stretch of one law within a client. `rate` is over [0, end of the last window).
    """

    clients: tuple[Client, ...]

    @property
    def rate(self) -> float:
        times, amounts = self._cumulative
        return float(amounts[-1] / times[-1])

    @property
    def cv(self) -> float:
        return nan

    def scaled(self, rate: float) -> "Clients":
        """The same clients, all of them busier or calmer by one factor, with this mean rate together."""
        factor = rate / self.rate
        return Clients(
            tuple(Client(tuple(replace(w, rate=w.rate * factor) for w in client.windows)) for client in self.clients)
        )

    def expected(self, until: float) -> float:
        return float(np.interp(until, *self._cumulative))

    def variance(self, until: float) -> float:
        """Of independent clients variances add up, and so do a client's stretches of one law after another."""
        return float(sum(client.variance(until) for client in self.clients))

    def dispersion(self, window: float, span: float) -> float:
        """Of independent clients variances add up; see `Client.moments` for where that is an approximation.

        Counts of different windows are taken as uncorrelated.
        """
        edges = tiles(window, span)
        if len(edges) < 2:
            return nan
        moments = [client.moments(edges) for client in self.clients]
        return index(sum(mean for mean, _ in moments), sum(variance for _, variance in moments))

    def offsets(self, rng: np.random.Generator) -> Iterator[float]:
        own = rng.spawn(len(self.clients))
        return heapq.merge(*(client.offsets(each) for client, each in zip(self.clients, own, strict=True)))

    @cached_property
    def _cumulative(self) -> tuple[Array, Array]:
        """The times at which the total rate changes, from 0 on, and Λ there; it is straight in between."""
        windows = [w for client in self.clients for w in client.windows]
        changes = np.array([(0.0, 0.0)] + [c for w in windows for c in ((w.start, w.rate), (w.end, -w.rate))])
        changes = changes[np.argsort(changes[:, 0], kind="stable")]
        rates = np.cumsum(changes[:, 1])
        return changes[:, 0], np.insert(np.cumsum(np.diff(changes[:, 0]) * rates[:-1]), 0, 0.0)
