"""HDR histograms of latencies: 1 µs to 1 h at three significant digits, in 188 KB whatever is recorded.

The promise: a quantile is within 0.1 % and 1 µs of the sample of that rank, the smallest with at least q·n samples at
or below it. Histograms merge without loss; percentiles are never averaged.

The counts live in the `hdrhistogram` package's own histogram, which encodes and decodes them; they are filled here in
bulk, since its `record_value` takes sixteen times as long a value and drops what is out of range without a word. Here
such a value is recorded at the end of the range and counted in `overflow`: the tail cannot improve by being off the
scale. Source of the layout: G. Tene's HdrHistogram.
"""

import sys
from collections.abc import Iterable, Iterator
from math import ceil, nan
from typing import TextIO

import numpy as np
from hdrh.histogram import HdrHistogram
from numpy.typing import ArrayLike, NDArray

LOWEST, HIGHEST, DIGITS = 1, 3_600_000_000, 3  # µs, µs, significant digits
_HALF = 10  # a bucket has 2^10 sub-buckets, each twice as wide as in the bucket before; the first bucket has 2^11


class Histogram:
    """Counts of durations. Seconds come in and go out; inside they are whole microseconds."""

    def __init__(self) -> None:
        self._hdr = HdrHistogram(LOWEST, HIGHEST, DIGITS)
        self._counts: NDArray[np.uint64] = np.ctypeslib.as_array(self._hdr.counts)
        self._sum = 0.0
        self.overflow = 0

    def record(self, seconds: ArrayLike) -> None:
        """Count durations in seconds; raises ValueError where one is negative or not a number."""
        values = np.asarray(seconds, float)
        if values.size == 0:
            return
        if not (values >= 0).all():
            raise ValueError(f"a duration must be 0 or more seconds, got {values[~(values >= 0)][0]}")
        over = values > HIGHEST * 1e-6
        self.overflow += int(over.sum())
        micros = np.rint(np.where(over, HIGHEST * 1e-6, values) * 1e6).astype(np.int64)
        hdr = self._hdr
        np.add.at(self._counts, _index(micros), np.uint64(1))
        hdr.total_count += micros.size
        hdr.min_value = min(hdr.min_value, int(micros.min()))
        hdr.max_value = max(hdr.max_value, int(micros.max()))
        self._sum += float(values.sum())

    @property
    def count(self) -> int:
        return int(self._hdr.total_count)

    @property
    def mean(self) -> float:
        """Seconds, from the exact sum, in which an overflow is as long as it was; nan when empty.

        After `decode`, from the bucket middles.
        """
        return float(self._sum / self.count) if self.count else nan

    @property
    def min(self) -> float:
        """Seconds, to the microsecond. nan when empty."""
        return float(self._hdr.min_value) / 1e6 if self.count else nan

    @property
    def max(self) -> float:
        """Seconds, to the microsecond. nan when empty."""
        return float(self._hdr.max_value) / 1e6 if self.count else nan

    def quantile(self, q: float) -> float:
        """The q-quantile, 0 < q <= 1, in seconds; nan when empty."""
        if not 0 < q <= 1:
            raise ValueError(f"a quantile lies above 0 and not above 1, got {q}")
        if not self.count:
            return nan
        rank = max(1, ceil(q * self.count * (1 - 1e-12)))  # 0.07 * 100 is 7, not a bit more
        lowest, width = _values_at(np.searchsorted(np.cumsum(self._counts), [rank]))
        return min(int(lowest[0] + width[0]) - 1, int(self._hdr.max_value)) / 1e6

    def merge(self, other: "Histogram") -> None:
        """Count all that the other one counted."""
        self._counts += other._counts
        self._hdr.total_count += other._hdr.total_count
        self._hdr.min_value = min(self._hdr.min_value, other._hdr.min_value)
        self._hdr.max_value = max(self._hdr.max_value, other._hdr.max_value)
        self._sum += other._sum
        self.overflow += other.overflow

    def clear(self) -> None:
        """Forget everything that was recorded."""
        self._counts.fill(0)  # the package's own reset takes a millisecond
        self._hdr.total_count, self._hdr.min_value, self._hdr.max_value = 0, sys.maxsize, 0
        self._sum, self.overflow = 0.0, 0

    def encode(self) -> str:
        """The counts as a V2 blob in base64, as all HDR tools read it."""
        return str(self._hdr.encode(), "ascii")

    @classmethod
    def decode(cls, blob: str) -> "Histogram":
        """The histogram of a blob that `encode` made: min, max and mean are to the bucket, overflow is not in it."""
        hdr = HdrHistogram.decode(blob)
        histogram = cls()
        histogram._counts += np.ctypeslib.as_array(hdr.counts)
        histogram._hdr.total_count = hdr.total_count
        histogram._hdr.min_value, histogram._hdr.max_value = hdr.min_value, min(hdr.max_value, HIGHEST)
        lowest, width = _values_at(filled := np.flatnonzero(histogram._counts))
        histogram._sum = float(histogram._counts[filled] @ (lowest + width // 2) * 1e-6)  # the package's takes 30 ms
        return histogram

    def __eq__(self, other: object) -> bool:
        """The same counts in the same buckets."""
        return isinstance(other, Histogram) and np.array_equal(self._counts, other._counts)

    __hash__ = None  # type: ignore[assignment]


def _index(micros: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where in the counts each value belongs."""
    bits = np.frexp((micros | (2 << _HALF) - 1).astype(float))[1]  # the position of the highest bit set
    bucket = bits - (_HALF + 1)
    index: NDArray[np.int64] = (bucket << _HALF) + (micros >> bucket)
    return index


def _values_at(index: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """What is counted at each index: the lowest value in µs, and how many µs wide it is."""
    bucket = np.maximum((index >> _HALF) - 1, 0)
    return index - (bucket << _HALF) << bucket, 1 << bucket


class IntervalLog:
    """Writes one metric's histograms to an HDR interval log (format 1.2), one line a second under one tag.

    An interval holds what was recorded in that second of the run, that is by requests which ended in it; one without
    values has no line. A line is written when its second is over, so that a killed run loses the open second only;
    `total` holds the intervals that were written. Stamps are seconds since `#[BaseTime]`, the start of the run.

    Values are µs. Interval_Max is in ms, the unit that Java's own writer gives it (from ns) and that Java's processor
    prints: `HistogramLogProcessor -i ttft.hlog -tag TTFT -outputValueUnitRatio 1000`. Without `-tag` it looks for lines
    without a tag only, finds none and falls over.
    """

    def __init__(self, file: TextIO, tag: str, epoch: float) -> None:
        """`epoch` is the start of the run in seconds since 1970."""
        self._file, self._tag = file, tag
        self.total = Histogram()
        self._interval = Histogram()
        self._second = 0
        file.write(
            "#[Histogram log format version 1.2]\n"
            f"#[{tag} in microseconds, logged by loadgen]\n"
            f"#[BaseTime: {epoch:.3f} (seconds since epoch)]\n"
            f"#[StartTime: {epoch:.3f} (seconds since epoch)]\n"
            '"StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram"\n'
        )

    def record(self, at: float, seconds: ArrayLike) -> None:
        """Count durations at the instant `at`, in seconds from the start, which never decreases."""
        if int(at) > self._second:
            self._write_interval()
            self._second = int(at)
        self._interval.record(seconds)

    def close(self) -> None:
        """Write the open interval. The file stays open: it is the caller's."""
        self._write_interval()

    def _write_interval(self) -> None:
        interval = self._interval
        if interval.count:
            stamps = f"{self._second:.3f},1.000,{interval.max * 1e3:.3f}"
            self._file.write(f"Tag={self._tag},{stamps},{interval.encode()}\n")
            self._file.flush()
            self.total.merge(interval)
            interval.clear()


def read_log(lines: Iterable[str]) -> Iterator[tuple[str, float, Histogram]]:
    """Tag, start in seconds and histogram of each interval of a log; a last line that was cut by a kill is left out."""
    for line in lines:
        if line.startswith("Tag=") and line.endswith("\n"):
            tag, start, _length, _max, blob = line.rstrip("\n").split(",")
            yield tag.removeprefix("Tag="), float(start), Histogram.decode(blob)
