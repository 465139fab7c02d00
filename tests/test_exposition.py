"""SGLang's /metrics against prometheus_client's own reading of the whole text, and against histograms made by hand."""

import math
import random
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from loadgen.telemetry.exposition import HISTOGRAMS, difference, snapshot

GOLDEN = Path(__file__).parent / "golden"
FIRST, LOADED = ((GOLDEN / name).read_text() for name in ("metrics_first.txt", "metrics_after_load.txt"))
NOTHING = snapshot("")


def whole(text: str, sample: str, **labels: str) -> float:
    """The sum of a sample's values by the parser over all of the text."""
    return sum(
        one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
        if one.name == f"sglang:{sample}" and labels.items() <= one.labels.items()
    )


@pytest.mark.parametrize("text", [FIRST, LOADED], ids=["first", "loaded"])
def test_a_scrape_is_what_the_whole_text_says(text: str) -> None:
    found = snapshot(text)
    for name, value in found.counters.items():
        sample, _, mode = name.partition(".")
        assert value == whole(text, sample, **({"mode": mode} if mode else {}))
    assert found.counters.keys() >= {"prompt_tokens_total", "cached_tokens_total", "realtime_tokens_total.decode"}
    for name, value in found.gauges.items():
        assert value == whole(text, name)
    assert found.histograms.keys() == set(HISTOGRAMS)
    for name, histogram in found.histograms.items():
        assert (histogram.count, histogram.sum) == (whole(text, f"{name}_count"), whole(text, f"{name}_sum"))
        assert histogram.count == histogram.buckets[math.inf]
        assert list(histogram.buckets) == sorted(histogram.buckets)


def test_both_label_sets_of_a_counter_are_added() -> None:
    """120 answers by that server, one of them not streamed: 8 of its 6732 tokens."""
    assert snapshot(LOADED).counters["generation_tokens_total"] == 8 + 6724
    assert snapshot(LOADED).histograms["time_to_first_token_seconds"].count == 1 + 119


def test_what_the_server_computed_is_what_it_was_asked() -> None:
    """Conservation: prefilled and cached are the prompts and one probe's token; each first token is of a prefill."""
    counters = snapshot(LOADED).counters
    prefilled = counters["realtime_tokens_total.prefill_compute"] + counters["realtime_tokens_total.prefill_cache"]
    assert prefilled == counters["prompt_tokens_total"] + 1
    decoded = counters["generation_tokens_total"] - counters["num_requests_total"]
    assert counters["realtime_tokens_total.decode"] == decoded


def test_differences_of_counters_and_histograms() -> None:
    found = difference(snapshot(FIRST), snapshot(LOADED))
    tokens = whole(LOADED, "prompt_tokens_total") - whole(FIRST, "prompt_tokens_total")
    assert found["counters"]["prompt_tokens_total"] == tokens == 9938
    ttft = found["histograms"]["time_to_first_token_seconds"]
    count, total = (
        whole(LOADED, n) - whole(FIRST, n) for n in (f"time_to_first_token_seconds_{of}" for of in ("count", "sum"))
    )
    assert (ttft["count"], ttft["sum"], ttft["mean"]) == (count, total, total / count)
    assert found["counters"]["evicted_tokens_total"] == 5523  # not in the first scrape: nothing had been evicted
    assert set(found["reason"]) == {"num_aborted_requests_total", "num_retracted_requests_total"}
    assert found["counters"]["num_retracted_requests_total"] is None


def test_a_server_that_fell_back_was_restarted_and_nothing_is_subtracted() -> None:
    found = difference(snapshot(LOADED), snapshot(FIRST))
    values = [*found["counters"].values(), *found["histograms"].values()]
    assert values == [None] * len(values)
    assert set(found["reason"]) == {*found["counters"], *found["histograms"]}
    expected = "the server was restarted between the two scrapes: prompt_tokens_total fell from 10009 to 71"
    assert set(found["reason"].values()) == {expected}


def test_a_counter_that_is_gone_was_restarted_too() -> None:
    gone = "".join(line for line in LOADED.splitlines(keepends=True) if "evicted" not in line)
    found = difference(snapshot(LOADED), snapshot(gone))
    assert found["reason"]["prompt_tokens_total"].endswith("evicted_tokens_total fell from 5523 to 0")


def test_families_that_are_missing_are_null_with_a_reason() -> None:
    found = difference(NOTHING, NOTHING)
    values = [*found["counters"].values(), *found["histograms"].values()]
    assert values == [None] * len(values)
    assert set(found["reason"]) == {*found["counters"], *found["histograms"]}
    assert NOTHING.gauges == {}


def test_between_two_equal_scrapes_nothing_was_observed() -> None:
    found = difference(snapshot(LOADED), snapshot(LOADED))
    assert found["histograms"]["queue_time_seconds"] == {
        "count": 0, "mean": None, "sum": 0.0, "p50": None, "p95": None, "p99": None,
    }  # fmt: skip
    assert found["reason"]["queue_time_seconds"] == "nothing was observed between the two scrapes"
    assert found["counters"]["prompt_tokens_total"] == 0


@pytest.mark.parametrize("seed", range(5))
def test_quantiles_lie_within_their_bounds(seed: int) -> None:
    """Observed by prometheus_client's own histogram, before and between the scrapes; quantiles by sorting."""
    draw = random.Random(seed)
    registry = CollectorRegistry()
    histogram = Histogram("sglang:queue_time_seconds", "", buckets=(0.1, 0.5, 1, 2, 4), registry=registry)
    for _ in range(50):
        histogram.observe(draw.expovariate(0.2))
    before = snapshot(generate_latest(registry).decode())
    values = sorted(draw.choice([draw.expovariate(1), 0.5, 1.0, 0.0]) for _ in range(draw.choice([1, 2, 20, 99, 1000])))
    for value in values:
        histogram.observe(value)
    found = difference(before, snapshot(generate_latest(registry).decode()))["histograms"]["queue_time_seconds"]
    assert found["count"] == len(values)
    assert found["sum"] == pytest.approx(sum(values))
    for name, percent in ("p50", 50), ("p95", 95), ("p99", 99):
        low, high = found[name]
        value = values[-(-percent * len(values) // 100) - 1]
        assert low < value or low == value == 0
        assert high is None or value <= high
        assert (low, high) in [(0.0, 0.1), (0.1, 0.5), (0.5, 1), (1, 2), (2, 4), (4, None)]


def of_rank(name: str, value: float, **labels: Any) -> str:
    inner = ",".join(f'{key}="{label}"' for key, label in labels.items())
    return f"sglang:{name}{{{inner}}} {value}\n"


def test_data_parallel_ranks_are_added_and_the_ranks_of_a_group_are_not() -> None:
    text = "".join(
        of_rank("evicted_tokens_total", 10 + dp, dp_rank=dp, pp_rank=pp, tp_rank=4 * dp + tp)
        + of_rank("num_running_reqs", 3 + dp, dp_rank=dp, pp_rank=pp, tp_rank=4 * dp + tp)
        + of_rank("token_usage", 0.2 + dp / 10, dp_rank=dp, pp_rank=pp, tp_rank=4 * dp + tp)
        for dp in range(2) for pp in range(2) for tp in range(4)
    )  # fmt: skip
    found = snapshot(text)
    assert found.counters == {"evicted_tokens_total": 10 + 11}
    assert found.gauges == {"num_running_reqs": 3 + 4, "token_usage": pytest.approx(0.25)}


def test_the_breakdown_by_priority_is_not_added_to_the_total() -> None:
    text = "".join(of_rank("num_queue_reqs", n, priority=p, tp_rank=0) for p, n in (("", 5), ("1", 2), ("2", 3)))
    assert snapshot(text).gauges == {"num_queue_reqs": 5}


def test_a_line_that_is_no_exposition_is_an_error() -> None:
    with pytest.raises(ValueError, match="could not convert"):
        snapshot('sglang:num_queue_reqs{tp_rank="0"} many\n')


def test_what_stands_around_the_families_does_not_matter() -> None:
    assert snapshot(f"HTTP/1.1 200 OK\n\n{LOADED}\nsglang:unheard_of{{}} x\n") == snapshot(LOADED)
