"""Each symptom: where it is seen, where it is not, and where its evidence is missing."""

from typing import Any

import pytest
from ladder import metric, record

from loadgen.diagnosis import Attribution, Finding, Run, diagnose
from loadgen.diagnosis.options import option
from loadgen.diagnosis.rules import RULES

OFFLINE = {"throughput__output_tokens_per_s": 1000.0}
GAPS = Attribution(
    gaps=1000,
    median=0.01,
    threshold=0.03,
    causes={
        "prefill": {"gaps": 9, "share": 0.9, "excess_share": 0.97, "median": 0.1, "max": 0.2},
        "nothing seen": {"gaps": 1, "share": 0.1, "excess_share": 0.03, "median": 0.04, "max": 0.04},
    },
    prefill={"tokens_p50": 2048.0, "tokens_max": 4096.0, "s_per_1000_tokens": 0.05},
)


def found(rule: str, gaps: Attribution | None = None, **runs: dict[str, Any]) -> Finding | None:
    (chosen,) = [own for own in RULES if own.__name__ == rule]
    return chosen({rung: Run(rung, data, gaps if rung == "serving" else None) for rung, data in runs.items()})


# ── offline throughput is not reached online ─────────────────────────────────────────────────────────────────────────


def test_a_load_that_asks_for_no_more_is_no_capacity() -> None:
    finding = found("throughput_not_reached", oneshot=record("oneshot", **OFFLINE), serving=record("serving"))
    assert finding is not None
    assert finding.title == "the service stays below the offline throughput: its load asks for no more"
    assert "oneshot arrivals, continuous batching, batch 12.0): 1,000 output tokens/s" in finding.evidence[0]
    assert "256 output tokens/s" in finding.evidence[1]
    assert "the arrivals ask for 256 output tokens/s" in finding.evidence[2]  # 8 requests/s of 32 tokens


def test_a_cap_that_held_requests_back_is_named() -> None:
    held = record("serving", concurrency__share_at_cap=0.4)
    finding = found("throughput_not_reached", oneshot=record("oneshot", **OFFLINE), serving=held)
    assert finding is not None
    assert "the client's cap held requests back" in finding.title
    assert "40% of the time at the cap" in finding.evidence[-1]


def test_a_load_that_asks_for_more_than_it_gets_is_told_apart() -> None:
    busy = record("serving", offered__scheduled_per_s=40.0, throughput__output_tokens_per_s=700.0)
    finding = found("throughput_not_reached", oneshot=record("oneshot", **OFFLINE), serving=busy)
    assert finding is not None
    assert finding.title == "the service stays below the offline throughput under a load that asks for it"
    short = record("serving", throughput__output_tokens_per_s=128.0)  # of the 256 that it was asked for
    finding = found("throughput_not_reached", oneshot=record("oneshot", **OFFLINE), serving=short)
    assert finding is not None
    assert "under a load that asks for it" in finding.title


def test_where_answers_decide_nobody_asked_for_a_rate() -> None:
    loop = record("serving", answers_decide=True)
    finding = found("throughput_not_reached", oneshot=record("oneshot", **OFFLINE), serving=loop)
    assert finding is not None
    assert "its own answers decide" in finding.title
    assert not any("ask for" in line for line in finding.evidence)


@pytest.mark.parametrize(
    "runs",
    [
        {"oneshot": record("oneshot"), "serving": record("serving")},
        {"oneshot": record("oneshot", **OFFLINE)},
        {
            "oneshot": record("oneshot", **OFFLINE),
            "serving": record("serving", verdict={"valid": False, "reasons": ["x"]}),
        },
        {"oneshot": record("oneshot", **OFFLINE), "serving": record("serving", throughput__output_tokens_per_s=None)},
    ],
)
def test_a_throughput_that_is_reached_or_not_known_is_no_finding(runs: dict[str, dict[str, Any]]) -> None:
    assert found("throughput_not_reached", None, **runs) is None


# ── memory ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_fixed_batch_that_does_not_fit_beside_a_service_that_is_fine() -> None:
    too_large = record(
        "static", static__fits=False, verdict={"valid": False, "reasons": ["a batch of 64 needs 9 of 8"]}
    )
    finding = found("memory", static=too_large, serving=record("serving"))
    assert finding is not None
    assert "a batch of 64 needs 9 of 8" in finding.evidence[0]
    assert "14% of the pool in use at most" in finding.evidence[1]


def test_a_oneshot_that_needs_more_memory_than_the_service() -> None:
    large = record("oneshot", memory__peak_bytes=5_000_000_000)
    finding = found("memory", oneshot=large, serving=record("serving"))
    assert finding is not None
    assert ["5.00 GB" in finding.evidence[0], "2.00 GB" in finding.evidence[1]] == [True, True]
    assert found("memory", oneshot=record("oneshot"), serving=record("serving")) is None
    assert found("memory", oneshot=large, serving=record("serving", memory=None)) is None
    simulated = {"target__simulated": True}
    assert found("memory", oneshot=large, serving=record("serving", **simulated)) is None


# ── metrics of one mode used as the other's ──────────────────────────────────────────────────────────────────────────


def test_figures_that_answer_two_questions_are_told_with_their_modes() -> None:
    queue = record("oneshot", metrics__ttft=metric(p50=5.0))
    finding = found("figures_of_two_modes", oneshot=queue, serving=record("serving"))
    assert finding is not None
    assert len(finding.evidence) == 2
    assert "ttft p50 5,000.0 ms: how long its place in a queue of all prompts takes" in finding.evidence[0]
    assert finding.evidence[1].startswith(
        "serving (burst arrivals, continuous batching, batch 12.0): ttft p50 100.0 ms"
    )


def test_figures_near_each_other_or_without_samples_are_no_finding() -> None:
    assert found("figures_of_two_modes", oneshot=record("oneshot"), serving=record("serving")) is None
    few = record("oneshot", metrics__ttft=metric(p50=5.0, count=3))
    assert found("figures_of_two_modes", oneshot=few, serving=record("serving")) is None


# ── the tail ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_tail_is_told_with_what_the_server_was_doing_in_its_gaps() -> None:
    raised = record("serving", metrics__itl=metric(p50=0.01, mean=0.012, p95=0.011, p99=0.12))
    finding = found("tail", GAPS, serving=raised)
    assert finding is not None
    assert finding.title == "the ITL tail is mostly prefill"
    told = "\n".join(finding.evidence)
    assert "10 of 1,000 gaps are over 30.0 ms" in told
    assert told.index("prefill: 90% of them, 97% of their time") < told.index("nothing seen: 10% of them, 3%")
    assert "2,048 new tokens at the median, 4,096 at most; 1,000 more make it 50.0 ms longer" in told
    assert "chunked_prefill_size" in finding.action


@pytest.mark.parametrize(
    "itl",
    [
        metric(p50=0.01, mean=0.012, p99=0.019),  # no tail
        metric(p50=0.01, mean=0.05, p99=0.12),  # the mean is raised too
        metric(p50=0.01, mean=0.012, p95=0.011, p99=0.12, count=100),  # too few for a p99
        metric(p50=0.01, mean=0.012, p95=0.12, p99=0.12, count=40),  # nor for a p95
    ],
)
def test_no_tail_is_no_finding(itl: dict[str, Any]) -> None:
    assert found("tail", GAPS, serving=record("serving", metrics__itl=itl)) is None


# ── the log, the cache, the pool ─────────────────────────────────────────────────────────────────────────────────────


def test_lines_that_are_missing_in_one_mode_are_told_with_why() -> None:
    silent = record("serving", telemetry__log={"absent": "target.server_log does not say where"})
    finding = found("log_lines", static=record("static"), oneshot=record("oneshot"), serving=silent)
    assert finding is not None
    assert "there is no scheduler that writes them" in finding.evidence[0]
    assert "102,400 prompt tokens where 102,400 were answered" in finding.evidence[1]
    assert "target.server_log does not say where" in finding.evidence[2]


def test_samples_and_lost_lines_are_missing_lines_too() -> None:
    for change in ({"telemetry__log__decode_log_interval": 40}, {"telemetry__log__new_tokens": 100000}):
        assert found("log_lines", oneshot=record("oneshot"), serving=record("serving", **change)) is not None
    assert found("log_lines", static=record("static"), oneshot=record("oneshot"), serving=record("serving")) is None


def cached(rung: str, rate: float, shared: int = 50_000) -> dict[str, Any]:
    own = {"hit_rate": rate, "cached_tokens": int(rate * 102400), "prompt_tokens": 102400, "shared_tokens": shared}
    return record(rung, prompts__cache=own)


def test_a_cache_that_finds_less_in_one_mode_is_told_from_both() -> None:
    finding = found("prefix_window", oneshot=cached("oneshot", 0.2), serving=cached("serving", 0.4))
    assert finding is not None
    assert finding.title == "the one-shot finds less in its cache"
    assert "before one of them is cached" in finding.action
    finding = found("prefix_window", oneshot=cached("oneshot", 0.4), serving=cached("serving", 0.2))
    assert finding is not None
    assert "evicted" in finding.action
    assert found("prefix_window", oneshot=cached("oneshot", 0.4), serving=cached("serving", 0.4)) is None
    assert found("prefix_window", oneshot=cached("oneshot", 0.0, 0), serving=cached("serving", 0.4, 0)) is None


def test_a_cap_that_the_pool_holds_down_is_told_with_what_it_would_take() -> None:
    held = record(
        "serving", target__server__effective_max_running_requests=20, target__server__max_total_num_tokens=5000
    )
    finding = found("running_held_down", serving=held)
    assert finding is not None
    assert "32 asked for, 20 allowed" in finding.evidence[0]
    assert "a request comes to 288 tokens, 32 of them to 9,216; the pool has 5,000" in finding.evidence[2]
    full = {"telemetry__log__usage": {"peak": 0.97}, "telemetry__log__queued": {"mean": 2.0, "peak": 9}}
    assert found("running_held_down", serving=record("serving", **full)) is not None
    assert found("running_held_down", serving=record("serving")) is None


# ── an option on and off ─────────────────────────────────────────────────────────────────────────────────────────────


def repeats(rung: str, *p95: float, **changes: Any) -> list[dict[str, Any]]:
    return [record(rung, metrics__itl=metric(p95=value), **changes) for value in p95]


def test_an_option_that_helps_in_one_mode_only_is_told_with_where_it_had_something_to_act_on() -> None:
    on = {"oneshot": repeats("oneshot", 0.1, 0.1, 0.1), "serving": repeats("serving", 0.1, 0.11, 0.1)}
    off = {"oneshot": repeats("oneshot", 0.1, 0.11, 0.09), "serving": repeats("serving", 0.3, 0.32, 0.31)}
    finding = option("chunked_prefill", on, off)
    assert finding.title == "chunked_prefill helps in serving only"
    told = "\n".join(finding.evidence)
    assert "no difference seen between on and off" in told
    assert "ITL p95 -206.67 ms [" in told
    assert "chunks of 2048, prompts of at most 256, prefill steps of at most 2048 new tokens" in told


def test_an_option_without_anything_to_act_on_says_so() -> None:
    idle = {"telemetry__log__prefill_tokens": {"p50": 256, "max": 256}}
    on = {"serving": repeats("serving", 0.1, **idle)}
    finding = option("chunked_prefill", on, {"serving": repeats("serving", 0.3)})
    assert "nothing to act on: chunks of 2048" in finding.evidence[0]
    assert finding.title == "chunked_prefill is not seen to help in any mode"  # one repeat carries no claim
    assert "one repeat: no interval" in finding.evidence[1]
    finding = option("prefix_caching", on, on)
    assert "nothing to act on: 0 of 102,400 prompt tokens" in finding.evidence[0]


def test_a_pair_without_symptoms_has_no_findings() -> None:
    runs = {rung: Run(rung, record(rung)) for rung in ("static", "oneshot", "http", "capped", "serving")}
    assert diagnose(runs) == []
