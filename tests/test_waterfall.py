"""The waterfall: paired differences with intervals, and what is left out of it."""

from typing import Any

import pytest
from ladder import ladder, metric, record

from loadgen.stats import interval
from loadgen.waterfall import FIGURES, figure_of, waterfall

RUNGS = ("oneshot", "serving")


def figure(result: dict[str, Any], name: str) -> dict[str, Any]:
    return next(own for own in result["figures"] if own["name"] == name)


def climbs(*throughputs: tuple[float, float]) -> list[dict[str, dict[str, Any]]]:
    return [
        {rung: record(rung, throughput__output_tokens_per_s=value) for rung, value in zip(RUNGS, pair, strict=True)}
        for pair in throughputs
    ]


def test_a_step_is_the_mean_of_paired_differences_with_its_interval() -> None:
    own = figure(waterfall(climbs((100.0, 90.0), (110.0, 98.0), (90.0, 82.0))), "throughput")
    assert own["rungs"]["oneshot"] == {"mean": 100.0, "values": [100.0, 110.0, 90.0], "reason": None}
    (step,) = own["steps"]
    assert (step["from"], step["to"], step["difference"], step["n"]) == ("oneshot", "serving", -10.0, 3)
    assert step["relative"] == pytest.approx(-0.1)
    expected = interval([-10.0, -12.0, -8.0])
    assert expected is not None
    assert step["interval"] == [expected.low, expected.high]
    assert step["finding"] == "lower"


def test_a_step_whose_interval_holds_zero_is_no_difference_seen() -> None:
    (step,) = figure(waterfall(climbs((100.0, 90.0), (100.0, 112.0), (100.0, 99.0))), "throughput")["steps"]
    assert step["finding"] == "no difference seen"
    (step,) = figure(waterfall(climbs((100.0, 120.0), (100.0, 121.0))), "throughput")["steps"]
    assert step["finding"] == "higher"


@pytest.mark.parametrize(
    ("name", "changes", "finding"),
    [
        ("TTFT p50", ({"metrics__ttft": metric(p50=0.041023)}, {"metrics__ttft": metric(p50=0.041055)}), "too small"),
        ("TTFT p50", ({"metrics__ttft": metric(p50=0.0410)}, {"metrics__ttft": metric(p50=0.0412)}), "higher"),
        (
            "pool use",
            ({"telemetry__log__usage": {"peak": 0.50}}, {"telemetry__log__usage": {"peak": 0.51}}),
            "too small",
        ),
        ("pool use", ({"telemetry__log__usage": {"peak": 0.50}}, {"telemetry__log__usage": {"peak": 0.52}}), "higher"),
    ],
)
def test_a_difference_that_the_figure_cannot_tell_apart_is_no_finding(
    name: str, changes: tuple[dict[str, Any], dict[str, Any]], finding: str
) -> None:
    """Three repeats without any spread: the interval is a point, and not 0."""
    repeats = [{rung: record(rung, **own) for rung, own in zip(RUNGS, changes, strict=True)} for _ in range(3)]
    (step,) = figure(waterfall(repeats), name)["steps"]
    assert step["finding"].startswith(finding)


def test_one_repeat_has_a_difference_and_no_finding() -> None:
    (step,) = figure(waterfall(climbs((100.0, 50.0))), "throughput")["steps"]
    assert (step["difference"], step["interval"], step["finding"]) == (-50.0, None, "one repeat: no interval")


def test_the_figures_of_an_invalid_run_are_not_used_and_the_reason_is_told() -> None:
    repeats = climbs((100.0, 90.0), (100.0, 10.0), (100.0, 91.0))
    repeats[1]["serving"]["verdict"] = {"valid": False, "reasons": ["the client sent late"]}
    result = waterfall(repeats)
    own = figure(result, "throughput")
    assert own["rungs"]["serving"]["values"] == [90.0, None, 91.0]
    assert (own["steps"][0]["n"], own["steps"][0]["difference"]) == (2, -9.5)
    assert result["rungs"]["serving"]["not_used"] == ["INVALID: the client sent late"]


def test_a_fixed_batch_that_does_not_fit_is_a_rung_without_figures() -> None:
    records = ladder("static", "oneshot")
    records["static"]["static"]["fits"] = False
    records["static"]["verdict"] = {"valid": False, "reasons": ["a batch of 64 needs 9 of 8 tokens"]}
    result = waterfall([records])
    assert result["rungs"]["static"]["not_used"] == ["does not fit: a batch of 64 needs 9 of 8 tokens"]
    step = figure(result, "throughput")["steps"][0]
    assert (step["difference"], step["finding"]) == (None, "no figure on both sides")
    assert figure(result, "throughput")["rungs"]["static"]["reason"] == "does not fit"


def test_a_quantile_that_the_samples_do_not_carry_is_no_figure() -> None:
    few = metric(count=50)
    result = waterfall([{rung: record(rung, metrics__ttft=few) for rung in RUNGS}])
    assert figure(result, "TTFT p95")["rungs"]["serving"]["reason"] == "50 samples do not carry p95"
    assert figure(result, "TTFT p50")["rungs"]["serving"]["mean"] == 0.1


@pytest.mark.parametrize(
    ("name", "rung", "changes", "expected"),
    [
        ("pool use", "static", {}, 9216 / 32768),
        ("pool use", "serving", {}, 0.14),
        ("pool use", "serving", {"telemetry__log": {"absent": "no log was given"}}, "no log was given"),
        ("cache hits", "static", {}, "fixed batches have no prefix cache"),
        ("cache hits", "serving", {"prompts__cache__hit_rate": None}, "the server does not report its cache's hits"),
        ("peak memory", "serving", {}, 2e9),
        ("peak memory", "serving", {"memory__gpu_peak_bytes": 70_000_000_000}, 2e9),
        ("GPU memory", "serving", {"memory__gpu_peak_bytes": 70_000_000_000}, 7e10),
        ("GPU memory", "serving", {"memory__gpu_reason": "NVML sees no device"}, "NVML sees no device"),
        ("peak memory", "serving", {"target__simulated": True}, "a simulator's memory says nothing"),
        ("peak memory", "serving", {"memory": {"peak_bytes": None, "reason": "not started here"}}, "not started here"),
        ("throughput", "serving", {"throughput__output_tokens_per_s": None}, "no time to take a rate over"),
        ("TPOT mean", "serving", {"metrics__tpot": metric(count=0)}, "no answer has it"),
    ],
)
def test_where_a_figure_comes_from_or_why_there_is_none(
    name: str, rung: str, changes: dict[str, Any], expected: float | str
) -> None:
    own = next(one for one in FIGURES if one.name == name)
    assert figure_of(own, record(rung, **changes)) == expected


def test_memory_of_a_gpu_is_never_compared_with_that_of_the_host() -> None:
    repeats = [{"oneshot": record("oneshot", memory__gpu_peak_bytes=70_000_000_000), "serving": record("serving")}] * 3
    result = waterfall(repeats)
    assert figure(result, "peak memory")["steps"][0]["finding"] == "no difference seen"
    assert figure(result, "GPU memory")["steps"][0]["finding"] == "no figure on both sides"


def test_a_rung_is_told_with_its_mode_and_batch() -> None:
    rungs = waterfall([ladder()])["rungs"]
    assert {name: own["mean_batch"] for name, own in rungs.items()} == {
        "static": 32, "oneshot": 12.0, "http": 12.0, "capped": 12.0, "serving": 12.0,
    }  # fmt: skip
    assert rungs["static"]["batching"] == "static"
    assert rungs["serving"]["arrivals"] == "burst"
