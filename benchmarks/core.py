"""What the pure parts cost on one core: offsets, histogram values, wire events. Medians of 5 runs."""

import itertools
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from loadgen.arrivals import Poisson
from loadgen.exchange import Exchange, Request
from loadgen.histogram import Histogram
from loadgen.wire import APIS

STREAM = (Path(__file__).parent.parent / "tests" / "golden" / "generate_stream.sse").read_bytes()
EVENTS = [event + b"\n\n" for event in STREAM.split(b"\n\n")[:-1]]


def offsets() -> int:
    n = 1_000_000
    last = next(itertools.islice(Poisson(100.0).offsets(np.random.default_rng(1)), n - 1, None))
    assert last > 0
    return n


def histogram_in_bulk() -> int:
    values = np.random.default_rng(2).exponential(0.02, 1_000_000)
    Histogram().record(values)
    return values.size


def histogram_by_twenties() -> int:
    values = np.random.default_rng(3).exponential(0.02, 20)
    histogram = Histogram()
    for _ in range(5_000):
        histogram.record(values)
    return 5_000


def wire_events() -> int:
    for _ in range(1_000):
        answer = APIS["generate"].answer(Exchange(Request(0, [1], 16), 0.0))
        for event in EVENTS:
            answer.feed(event, 1.0)
        answer.close()
    return 1_000 * len(EVENTS)


def microseconds(work: Callable[[], int]) -> float:
    """Median over 5 runs of the time that one item takes."""
    times = []
    for _ in range(5):
        began = time.perf_counter()
        items = work()
        times.append((time.perf_counter() - began) / items * 1e6)
    return statistics.median(times)


if __name__ == "__main__":
    for work, what in [
        (offsets, "µs an arrival offset (a million, Poisson)"),
        (histogram_in_bulk, "µs a histogram value (a million at once)"),
        (histogram_by_twenties, "µs a histogram record of 20 values"),
        (wire_events, "µs an event of /generate, one event a read"),
    ]:
        print(f"{microseconds(work):8.3f} {what}")
