"""A schedule's arrivals held against their theory, in a terminal, before anything is sent."""

from collections.abc import Iterator
from math import inf, isfinite, nan, sqrt

import numpy as np
from numpy.typing import NDArray
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from loadgen.arrivals import Arrivals, ExponentialGaps, Poisson, Varying, statistics
from loadgen.scenario import Scenario, Traffic
from loadgen.scenario.arrivals import ClosedArrivals, SessionsArrivals
from loadgen.scenario.workload import TraceWorkload
from loadgen.schedule import instants
from loadgen.traces import implied_block_hits

ROWS = 24  # of the plot
WIDTH = 50  # of a bar, in characters
WINDOWS = (0.1, 1.0, 10.0, 60.0, 600.0, 3600.0)
FEW, MANY = 20, 1_000_000  # windows: fewer say too little about a dispersion, more take long to count


def shown(scenario: Scenario, seed: int) -> RenderableType:
    """The arrivals of each class of a scenario under a seed; raises DataError."""
    parts: list[RenderableType] = []
    for one in scenario.classes:
        table = one.arrivals
        after = f", counted from {one.begin:g} s on" if one.begin else ""
        what = "conversations begin" if isinstance(table, SessionsArrivals) else "requests are due"
        name = f"{one.name}: " if one.name else ""
        if isinstance(table, ClosedArrivals):
            parts.append(Text(f"{name}{table.kind}: the answers set the rate", style="bold"))
            think = table.think_time.distribution().mean
            most = f"at most {table.users / think:,.4g} requests/s" if think else "as fast as the server answers"
            parts.append(
                Text(f"{table.users} users begin within {table.spread:g} s, evenly, and think for {think:g} s: {most}")
            )
            continue
        parts.append(Text(f"{name}{table.kind}, seed {seed}: when {what}{after}", style="bold"))
        offsets, whole = instants(one, scenario, seed)
        since, end = np.array(offsets) - one.begin, scenario.measure.duration
        span = max(end - one.begin, 0.0) if whole and end is not None else since.max(initial=0.0)
        parts += [arrivals_report(one.process(), since, float(span)), Text()]
        parts += [Text(line) for line in _blocks(one)]
        if isinstance(table, SessionsArrivals):
            turns, think = table.turns.distribution().mean, table.think_time.distribution().mean
            parts.append(Text(f"{turns:g} turns on average, {think:g} s from an answer to the next turn"))
    return Group(*parts)


def _blocks(one: Traffic) -> Iterator[str]:
    """What the hash ids of a trace say is shared."""
    blocks = one.workload.trace().blocks if isinstance(one.workload, TraceWorkload) else None
    if blocks:
        hits, total = implied_block_hits(blocks)
        yield f"{hits:,} of {total:,} blocks ({hits / total:.1%}) are such that an earlier prompt began with the same"


def arrivals_report(process: Arrivals, at: NDArray[np.float64], span: float) -> RenderableType:
    """What came of a process within `span` seconds, beside what it should come to."""
    return Group(_figures(process, at, span), *map(Text, _law(process, at)), Text(), _plot(process, at, span))


def _figures(process: Arrivals, at: NDArray[np.float64], span: float) -> Table:
    table = Table("", "here", "theory", "standard errors apart", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for name, here, theory, error in _rows(process, at, span):
        apart = (here - theory) / error if error > 0 else nan
        table.add_row(name, *(f"{value:,.4g}" if isfinite(value) else "–" for value in (here, theory)), _signed(apart))
    return table


def _signed(value: float) -> str:
    return f"{value:+.1f}" if isfinite(value) else "–"


def _rows(process: Arrivals, at: NDArray[np.float64], span: float) -> Iterator[tuple[str, float, float, float]]:
    """Name, figure of this schedule, theory, and its standard error; nan where there is none."""
    expected, variance = (process.expected(span), process.variance(span)) if span else (nan, nan)
    yield "requests", at.size, expected, sqrt(variance)
    yield "requests/s", at.size / span if span else inf, expected / span if span else inf, nan
    yield "CV of gaps", statistics.gap_cv(at) if at.size > 2 else nan, process.cv, nan
    for window in WINDOWS:
        windows = int(span / window) if span else 0
        if FEW <= windows <= MANY:
            theory = process.dispersion(window, span)
            here = statistics.dispersion(at, window, span)
            error = theory * sqrt(2 / (windows - 1)) if variance else nan  # nothing random, no error
            yield f"dispersion, {window:g} s", here, theory, error


def _law(process: Arrivals, at: NDArray[np.float64]) -> Iterator[str]:
    """Of a Poisson process, whatever its rate: are its gaps those of its theory? (See `statistics.rescaled`.)"""
    poisson = isinstance(process, Poisson) or (isinstance(process, Varying) and process.gaps == ExponentialGaps())
    if poisson and FEW <= at.size <= MANY:
        from scipy import stats  # noqa: PLC0415 - most of a second

        p = stats.kstest(statistics.rescaled(process, at), stats.expon.cdf).pvalue
        yield f"gaps at the theory's own rate, against an exponential: Kolmogorov-Smirnov p = {p:.2g}"


def _plot(process: Arrivals, at: NDArray[np.float64], span: float) -> RenderableType:
    """Requests per second over time, one bar an interval; │ is the theory's mean."""
    if not span:
        return Text(f"all {at.size:,} requests are due at one instant")
    edges = np.linspace(0, span, ROWS + 1)
    counts = np.histogram(at, edges)[0]
    seconds = span / ROWS
    here = counts / seconds
    theory = np.diff([process.expected(edge) for edge in edges]) / seconds
    largest = max(here.max(), np.nanmax(theory, initial=0.0), 1e-9)
    table = Table("s", "due", "per s", "theory", "", box=None, pad_edge=False)
    for column in table.columns[:4]:
        column.justify = "right"
    for begin, count, rate, mean in zip(edges, counts, here, theory, strict=False):
        bar = "█" * round(WIDTH * rate / largest)
        mark = round(WIDTH * mean / largest) if isfinite(mean) else -1
        if mark >= 0:
            bar = f"{bar:<{WIDTH + 1}}"
            bar = f"{bar[:mark]}│{bar[mark + 1 :]}".rstrip()
        table.add_row(f"{begin:,.4g}", f"{count:,}", f"{rate:,.4g}", f"{mean:,.4g}" if isfinite(mean) else "–", bar)
    return table
