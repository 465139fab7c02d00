"""The histogram's promise, held against exact sample quantiles and against the package's own recording."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hdrh.histogram import HdrHistogram
from hdrh.log import HistogramLogReader
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from loadgen.histogram import HIGHEST, Histogram, IntervalLog, read_log

HOUR = 3600.0


def named(name: str, n: int, seed: int) -> NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    values: dict[str, NDArray[Any]] = {
        "constant": np.full(n, 0.0317),
        "uniform": rng.uniform(0, 0.2, n),
        "exponential": rng.exponential(0.05, n),
        "heavy": rng.lognormal(-3, 2.5, n),
        "bimodal": np.where(rng.random(n) < 0.97, rng.normal(0.02, 0.001, n).clip(0), rng.normal(0.9, 0.1, n).clip(0)),
        "tiny": rng.integers(0, 5, n) * 1e-6,
        "edges": rng.choice([0.0, 1e-6, 2047e-6, 2048e-6, 2049e-6, 1.0, HOUR - 1e-6, HOUR, HOUR + 1, 1e9], n),
    }
    return values[name].astype(np.float64)


samples = st.builds(
    named,
    st.sampled_from(["constant", "uniform", "exponential", "heavy", "bimodal", "tiny", "edges"]),
    st.integers(1, 3000),
    st.integers(0, 2**32),
)


def recorded(values: NDArray[np.float64]) -> Histogram:
    histogram = Histogram()
    histogram.record(values)
    return histogram


@given(samples, st.one_of(st.sampled_from([0.5, 0.9, 0.95, 0.99, 0.999, 1.0]), st.floats(0.0001, 1)))
def test_a_quantile_is_within_a_tenth_of_a_percent_of_the_sample_of_its_rank(
    values: NDArray[np.float64], q: float
) -> None:
    exact = np.quantile(np.minimum(values, HOUR), q, method="inverted_cdf")
    assert recorded(values).quantile(q) == pytest.approx(exact, rel=1e-3, abs=1e-6)


@given(st.integers(1, 400), st.data())
def test_the_quantile_k_of_n_is_the_kth_smallest_though_floats_round(n: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, n))
    assert recorded(np.arange(1, n + 1).astype(np.float64) / 1e3).quantile(k / n) == pytest.approx(k * 1e-3, rel=1e-3)


@pytest.mark.parametrize("q", [0.0, -0.5, 1.001, np.nan])
def test_a_quantile_outside_0_to_1_is_refused(q: float) -> None:
    with pytest.raises(ValueError, match="a quantile lies above 0"):
        recorded(np.array([0.1])).quantile(q)


@given(samples)
def test_filling_in_bulk_counts_what_the_packages_own_recording_counts(values: NDArray[np.float64]) -> None:
    reference = HdrHistogram(1, HIGHEST, 3)
    for value in values:
        reference.record_value(min(int(np.rint(value * 1e6)), HIGHEST))
    assert recorded(values)._hdr.equals(reference)
    assert recorded(values)._hdr.get_value_at_percentile(99.0) == reference.get_value_at_percentile(99.0)


@given(samples, st.floats(0, 1))
def test_recording_in_parts_and_merging_is_recording_at_once(values: NDArray[np.float64], share: float) -> None:
    cut = round(share * len(values))
    parts, whole = recorded(values[:cut]), recorded(values)
    in_turn = recorded(values[:cut])
    in_turn.record(values[cut:])
    parts.merge(recorded(values[cut:]))
    for other in (parts, in_turn):
        assert other == whole
        assert (other.count, other.overflow) == (whole.count, whole.overflow)
        assert (other.min, other.max) == (whole.min, whole.max)
        assert other.mean == pytest.approx(whole.mean)
        assert other.quantile(0.9) == whole.quantile(0.9)


@given(samples)
def test_decoding_what_was_encoded_gives_the_same_counts(values: NDArray[np.float64]) -> None:
    decoded = Histogram.decode(recorded(values).encode())
    assert decoded == recorded(values)
    assert decoded.count == len(values)
    assert decoded.mean == pytest.approx(np.minimum(values, HOUR).mean(), rel=1e-3, abs=1e-6)
    assert decoded.max == pytest.approx(min(values.max(), HOUR), rel=1e-3, abs=1e-6)
    assert decoded.max <= HOUR
    assert decoded.min == pytest.approx(min(values.min(), HOUR), rel=1e-3, abs=1e-6)


def test_histograms_that_differ_in_one_count_are_not_equal() -> None:
    assert recorded(np.array([0.1, 0.2])) == recorded(np.array([0.2, 0.1]))
    assert recorded(np.array([0.1, 0.2])) != recorded(np.array([0.1, 0.201]))
    assert recorded(np.array([0.1])) != recorded(np.array([0.1, 0.1]))
    assert recorded(np.array([])) != 0


def test_merging_an_empty_histogram_changes_nothing_either_way() -> None:
    empty, histogram = Histogram(), recorded(np.array([0.1, 0.3]))
    histogram.merge(Histogram())
    empty.merge(histogram)
    for merged in (histogram, empty):
        assert (merged.count, merged.min, merged.max, merged.mean) == (2, 0.1, 0.3, 0.2)


def test_the_mean_is_exact_and_the_extremes_are_to_the_microsecond() -> None:
    values = np.random.default_rng(5).exponential(0.05, 10_000)
    assert recorded(values).mean == pytest.approx(values.mean(), rel=1e-12)
    assert recorded(values).max == pytest.approx(values.max(), abs=0.51e-6)
    assert recorded(values).min == pytest.approx(values.min(), abs=0.51e-6)


def test_over_an_hour_is_counted_as_overflow_and_as_an_hour() -> None:
    histogram = recorded(np.array([0.1, HOUR, HOUR + 1, 1e9, np.inf]))
    assert (histogram.count, histogram.overflow, histogram.max) == (5, 3, HOUR)
    assert histogram.quantile(0.5) == HOUR
    histogram.merge(recorded(np.array([HOUR + 1, HOUR])))
    assert (histogram.count, histogram.overflow) == (7, 4)
    assert recorded(np.array([HOUR + 1, 1.0])).mean == (HOUR + 2) / 2


@pytest.mark.parametrize("bad", [-1e-9, np.nan])
def test_a_duration_below_zero_or_no_number_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="0 or more seconds"):
        recorded(np.array([0.1, bad]))


def test_an_empty_histogram_has_no_figures() -> None:
    empty = recorded(np.array([]))
    assert empty.count == 0
    assert np.isnan([empty.mean, empty.min, empty.max, empty.quantile(0.5)]).all()


def a_log() -> tuple[str, list[tuple[int, NDArray[np.float64]]]]:
    """A log of five seconds, of which the second 2 has no values, and what went into each."""
    rng = np.random.default_rng(42)
    seconds = [(s, rng.lognormal(-3, 1, 300)) for s in (0, 1, 3, 4)]
    file = io.StringIO()
    log = IntervalLog(file, "TTFT", 1_796_083_200.25)
    for second, values in seconds:
        log.record(second + 0.2, values[:100])
        log.record(second + 0.9, values[100:])
    log.close()
    return file.getvalue(), seconds


def test_the_packages_reader_reads_every_interval_back_exactly(tmp_path: Path) -> None:
    text, seconds = a_log()
    (tmp_path / "ttft.hlog").write_text(text)
    reader = HistogramLogReader(str(tmp_path / "ttft.hlog"), HdrHistogram(1, HIGHEST, 3))
    for second, values in seconds:
        interval = reader.get_next_interval_histogram()
        assert interval.get_tag() == "TTFT"
        assert interval.get_start_time_stamp() == 1_796_083_200_250 + second * 1000
        assert interval.get_end_time_stamp() == 1_796_083_201_250 + second * 1000
        assert np.array_equal(np.ctypeslib.as_array(interval.counts), recorded(values)._counts)
    assert reader.get_next_interval_histogram() is None
    assert reader.get_start_time_sec() == 1_796_083_200.25
    reader.close()


@given(st.floats(0, 1))
def test_a_log_that_was_cut_anywhere_by_a_kill_reads_up_to_its_last_whole_line(share: float) -> None:
    text, seconds = a_log()
    cut = text[: round(share * len(text))]
    read = list(read_log(io.StringIO(cut)))
    whole = [seconds[i] for i in range(cut.count("\n") - text[: text.index("Tag=")].count("\n"))]
    assert [(tag, start) for tag, start, _ in read] == [("TTFT", second) for second, _ in whole]
    assert all(histogram == recorded(values) for (_, _, histogram), (_, values) in zip(read, whole, strict=True))


def test_a_second_is_in_the_file_as_soon_as_it_is_over(tmp_path: Path) -> None:
    path = tmp_path / "itl.hlog"
    with path.open("w") as file:
        log = IntervalLog(file, "ITL", 0.0)
        log.record(3.5, [0.1, 0.3])  # nothing before: the first three seconds have no line
        log.record(4.0, [0.2])
        assert [line.split(",")[:4] for line in intervals(path)] == [["Tag=ITL", "3.000", "1.000", "300.000"]]
        log.record(4.9, [])
        log.close()
        log.close()
        assert [line.split(",")[:4] for line in intervals(path)[1:]] == [["Tag=ITL", "4.000", "1.000", "200.000"]]
    assert (log.total.count, log.total.max) == (3, 0.3)
    assert log.total.mean == pytest.approx(0.2)


def intervals(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if line.startswith("Tag=")]


def test_a_second_without_requests_writes_nothing() -> None:
    file = io.StringIO()
    log = IntervalLog(file, "ITL", 0.0)
    log.record(0.5, [])
    log.record(7.0, [])
    log.close()
    assert "Tag=" not in file.getvalue()


def test_a_cleared_histogram_is_as_new() -> None:
    histogram = recorded(np.array([0.5, HOUR + 1]))
    histogram.clear()
    assert (histogram.count, histogram.overflow) == (0, 0)
    histogram.record([0.75])
    assert histogram.count == 1
    assert {histogram.mean, histogram.min, histogram.max, histogram.quantile(1.0)} == {0.75}


def test_java_reads_the_same_figures_from_the_log() -> None:
    """Java's HistogramLogReader 2.1.11 (Debian's libhdrhistogram-java), given this log, printed these figures."""
    file = io.StringIO()
    log = IntervalLog(file, "TTFT", 1_796_083_200.25)
    for second in (0, 1, 3, 4):
        log.record(second + 0.5, [(second + 1) * (i + 1) * 37e-6 for i in range(300)])
    log.close()
    total = Histogram()
    read = []
    for tag, start, interval in read_log(io.StringIO(file.getvalue())):
        total.merge(interval)
        figures = (interval.max, interval.quantile(0.5), interval.quantile(0.99))
        read.append((tag, 1_796_083_200_250 + start * 1000, interval.count, *(round(v * 1e6) for v in figures)))
    assert read == [  # tag, start in ms since 1970, count, maximum, p50, p99
        ("TTFT", 1796083200250, 300, 11103, 5551, 10991),
        ("TTFT", 1796083201250, 300, 22207, 11103, 21983),
        ("TTFT", 1796083203250, 300, 44415, 22207, 43967),
        ("TTFT", 1796083204250, 300, 55519, 27759, 54975),
    ]
    java = {0.5: 11695, 0.9: 39519, 0.95: 44415, 0.99: 53311, 0.999: 55327, 1.0: 55519}
    assert {q: round(total.quantile(q) * 1e6) for q in java} == java
    assert total.count == 1200
    assert total.mean * 1e6 == pytest.approx(16706.415, rel=1e-9)
