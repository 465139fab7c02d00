"""The verdict, one reason at a time, on records that differ from a good one in a single thing."""

import copy
from typing import Any

import pytest

from loadgen.card import card_of, figure
from loadgen.verdict import judge, samples_needed, slo_results


def metric(count: int = 1000, p50: float = 0.2, p99: float = 0.4) -> dict[str, Any]:
    return {"count": count, "mean": p50, "p50": p50, "p90": p99, "p95": p99, "p99": p99, "p999": p99, "max": p99}


GOOD: dict[str, Any] = {
    "mode": "serving",
    "complete": True,
    "answers_decide": False,
    "scenario": {
        "traffic": [],
        "measure": {"flush_cache": True, "max_fault_share": 0.01, "quantiles": ["p50", "p90", "p95", "p99"]},
        "limits": {"max_concurrency": 64},
        "slo": {},
        "arrivals": {"kind": "poisson"},
        "workload": {
            "kind": "random",
            "input_len": {"kind": "constant", "value": 256},
            "output_len": {"kind": "uniform", "low": 8, "high": 56},
            "num_prompts": 1000,
        },
    },
    "counts": {"scheduled": 1000, "sent": 1000, "ok": 1000, "fault": 0, "dropped": 0},
    "faults": {},
    "unsent": 0,
    "offered": {"scheduled_per_s": 10.0, "achieved_per_s": 10.0, "scheduled_span": 100.0, "achieved_span": 100.0},
    "metrics": {name: metric() for name in ("ttft", "ttft_service", "tpot", "itl", "e2e")}
    | {"lateness": metric(p50=0.0004, p99=0.0009), "lag": metric(p50=0.0004, p99=0.0009)},
    "throughput": {"output_tokens_per_s": 320.0},
    "prompts": {
        "lengths": {"requests": 1000, "differ": 0, "most": 0, "asked_tokens": 256_000, "server_tokens": 256_000},
        "cache": {
            "requests": 1000,
            "hits": 0,
            "prompt_tokens": 256_000,
            "cached_tokens": 0,
            "shared_tokens": 0,
            "shared_known": 1000,
        }
        | {"unexplained_tokens": 0, "hit_rate": 0.0},
    },
    "target": {
        "cache_flushed": True,
        "server": {"max_running_requests": 16, "max_total_num_tokens": 4096, "chunked_prefill_size": 256},
    },
}


def reasons(**changes: Any) -> list[str]:
    """The reasons for a record in which the keys at these paths (a__b for a.b) have other values."""
    data = copy.deepcopy(GOOD)
    for path, value in changes.items():
        *tables, key = path.split("__")
        table = data
        for name in tables:
            table = table[name]
        table[key] = value
    verdict = judge(data)
    assert verdict.valid == (not verdict.reasons)
    return verdict.reasons


def test_a_run_with_nothing_wrong_is_valid() -> None:
    assert reasons() == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"complete": False, "counts__ok": 600}, "the run was interrupted: 400 of 1000 requests never left"),
        ({"faults": {"cancelled": 3}, "counts__fault": 3}, "3 requests were still open at the end"),
        ({"counts__dropped": 5}, "5 of 1000 requests were dropped at the cap of 64"),
        ({"counts__fault": 11, "faults": {"status": 11}}, "11 of 1000 requests failed (11 status)"),
        ({"offered__achieved_span": 102.1, "offered__achieved_per_s": 9.79}, "left at 9.79/s where 10/s were"),
        ({"metrics__lag__p99": 0.0101}, "lateness p99 is 10.10 ms, over 10.00 ms"),
        ({"metrics__lag__p99": 0.0051, "metrics__ttft__p50": 0.04}, "lateness p99 is 5.10 ms, over 5.00 ms"),
        ({"metrics__lag__p99": 0.0051, "metrics__ttft__p50": None}, "lateness p99 is 5.10 ms"),
        ({"counts__ok": 0}, "no request succeeded"),
        ({"metrics__ttft__count": 0}, "no answer brought a token"),
        ({"metrics__tpot__count": 298}, "p99 needs 299 samples: tpot has 298"),
        ({"scenario__slo": {"e2e_p999": 9.0}}, "p999 needs 2995 samples: e2e has 1000"),
        ({"prompts__cache__unexplained_tokens": 2561}, "2,561 of 256,000 prompt tokens came from it that this"),
        ({"prompts__cache__unexplained_tokens": 9999, "target__cache_flushed": False}, "which could not be flushed"),
        ({"interference": {"prefills": 0}}, "no injected prefill was seen"),
        (
            {"interference": {"prefills": 20, "met_full": 17, "full": 4, "met_by": {"2": 3, "4": 17}}},
            "only 17 of 20 injected prefills met 4 decoding streams (3 met 2, 17 met 4)",
        ),
        (
            {"complete": False, "faults": {"cancelled": 20}, "counts__ok": 980, "counts__fault": 20, "unsent": 20},
            "the run was interrupted: 20 of 1000 requests never left",
        ),
        ({"scenario__slo": {"tpot_p99": 1.0}, "metrics__tpot__count": 0}, "slo.tpot_p99: no answer gave a sample"),
        (
            {
                "scenario__traffic": [{"name": "a", "slo": {"ttft_p999": 1.0}}],
                "traffic": {"a": {"metrics": {"ttft": metric()}}},
            },
            "p999 needs 2995 samples: a.ttft has 1000",
        ),
    ],
)
def test_each_thing_that_spoils_a_run_is_a_reason(changes: dict[str, Any], expected: str) -> None:
    found = reasons(**changes)
    assert len(found) == 1
    assert expected in found[0]


@pytest.mark.parametrize(
    ("why", "changes"),
    [
        ("of five requests only the median says anything", {"metrics__lag": metric(5, p50=0.001, p99=0.9)}),
        ("a percent of faults is allowed", {"counts__fault": 10, "faults": {"status": 10}}),
        ("two percent off the rate is allowed", {"offered__achieved_span": 101.9}),
        ("5 ms of lag are allowed whatever the TTFT", {"metrics__ttft__p50": 0.02, "metrics__lag__p99": 0.0049}),
        ("5 % of the median TTFT are allowed", {"metrics__ttft__p50": 4.0, "metrics__lag__p99": 0.19}),
        ("waiting at the cap is not the client's lag", {"metrics__lateness__p99": 3.0}),
        ("one instant has no rate", {"offered": {"scheduled_per_s": None, "achieved_per_s": None,
                                                 "scheduled_span": 0.0, "achieved_span": 0.003}}),
        ("one percent of a warm cache is allowed", {"prompts__cache__unexplained_tokens": 2560}),
        ("a warm cache that was wanted", {"prompts__cache__unexplained_tokens": 9999,
                                          "scenario__measure__flush_cache": False}),
        ("nine in ten prefills met a full batch", {"interference": {"prefills": 20, "met_full": 18, "full": 4}}),
        ("answers that decide have no rate to fall behind", {"answers_decide": True, "offered__achieved_span": 150.0}),
        ("answers of one token have no TPOT", {"metrics__tpot__count": 0, "metrics__itl__count": 0}),
        ("few samples carry a median", {"metrics__e2e__count": 5, "scenario__measure__quantiles": ["p50"]}),
    ],
)  # fmt: skip
def test_what_does_not_spoil_a_run(why: str, changes: dict[str, Any]) -> None:
    assert reasons(**changes) == [], why


def test_the_samples_a_quantile_needs_are_those_of_the_binomial_bound() -> None:
    """A 95 % upper bound for p99 needs 299 samples; the largest of n is below p99 with probability 0.99^n."""
    needed = {q: samples_needed(q) for q in (0.5, 0.9, 0.95, 0.99, 0.999)}
    assert needed == {0.5: 5, 0.9: 29, 0.95: 59, 0.99: 299, 0.999: 2995}
    for q, n in needed.items():
        assert q**n <= 0.05 < q ** (n - 1)


def test_an_slo_is_met_missed_or_without_a_value() -> None:
    data = copy.deepcopy(GOOD)
    data["scenario"]["slo"] = {"ttft_p99": 0.4, "ttft_mean": 0.1, "tpot_p50": 1.0}
    data["metrics"]["tpot"]["count"] = 4
    assert slo_results(data) == {
        "ttft_p99": {"limit": 0.4, "value": 0.4, "met": True},
        "ttft_mean": {"limit": 0.1, "value": 0.2, "met": False},
        "tpot_p50": {"limit": 1.0, "value": None, "met": False},
    }


def test_the_card_has_exactly_its_keys_and_null_where_this_mode_has_no_figure() -> None:
    card, reasons = card_of(GOOD)
    assert card == {
        "mode": "serving",
        "batching_mode": "continuous",
        "arrival_pattern": "poisson",
        "concurrency": {"max_running_requests": 16, "max_concurrency": 64},
        "batch_tokens": {"max_prefill_tokens": None},
        "chunked_prefill": {"enabled": True, "chunked_prefill_size": 256},
        "workload": {"input_len": 256, "output_len": {"kind": "uniform", "low": 8, "high": 56}, "num_prompts": 1000},
        "perf": {"ttft": 0.2, "tpot": 0.2, "itl_p95": 0.4, "throughput": 320.0},
        "memory": {"offline_peak": None, "serving_kv_pool": 4096},
        "path": {"resolved_backend": None},
    }
    assert set(reasons) == {"batch_tokens.max_prefill_tokens", "memory.offline_peak", "path.resolved_backend"}


def test_a_figure_of_another_mode_is_null_with_the_reason() -> None:
    value, reason = figure(GOOD, "memory.offline_peak")
    assert value is None
    assert reason is not None
    assert "a serving run has no offline peak" in reason
    assert figure(GOOD | {"memory": {"peak_bytes": 2 << 30}}, "memory.offline_peak")[0] is None
    oneshot = GOOD | {"mode": "oneshot", "memory": {"peak_bytes": 2 << 30, "reason": None}}
    assert figure(oneshot, "memory.offline_peak") == (2 << 30, None)
    value, reason = figure(oneshot, "memory.serving_kv_pool")
    assert value is None
    assert reason is not None
    assert "a oneshot run serves nothing" in reason
    assert figure(oneshot, "perf.throughput") == (320.0, None)
    with pytest.raises(KeyError):
        figure(oneshot, "memory.none_such")


def test_an_engines_own_front_end_on_our_loop_is_not_our_lateness() -> None:
    late = copy.deepcopy(GOOD)
    late["metrics"]["lag"] |= {"p99": 0.4}
    assert not judge(late).valid
    assert judge(late | {"transport": "in-process"}).valid


@pytest.mark.parametrize(
    ("needs", "size", "says"),
    [
        (280, 8, "a batch of 8 needs 280 of 100 tokens and 8 of 4 sequences; --batch-size 2 fits"),
        (80, 8, "a batch of 8 needs 80 of 100 tokens and 8 of 4 sequences; --batch-size 4 fits"),
        (280, 1, "a batch of 1 needs 280 of 100 tokens and 1 of 4 sequences; not even one of these fits"),
        (80, 4, "a batch of 4 needs more memory than there is, at 80 tokens: take a smaller --batch-size"),
    ],
)
def test_a_batch_that_does_not_fit_is_told_with_the_one_that_would(needs: int, size: int, says: str) -> None:
    fixed = {"fits": False, "needs_tokens": needs, "batch_size": size, "pool_tokens": 100, "max_batch": 4}
    (reason,) = judge(GOOD | {"static": fixed}).reasons
    assert reason.startswith(says)


def test_the_path_of_decode_steps_is_told_by_the_number_of_sequences_in_them() -> None:
    steps = {"1": (5, 5), "2": (9, 9), "8": (3, 1), "17": (7, 0), "32": (2, 0)}
    by_running = {n: {"steps": all_, "graph": graph, "step_s": None} for n, (all_, graph) in steps.items()}
    data = copy.deepcopy(GOOD) | {"telemetry": {"log": {"by_running": by_running}}}
    data["target"]["server"] |= {"attention_backend": "fa3"}
    assert card_of(data)[0]["path"]["resolved_backend"] == {
        "1-2": "fa3, graph",
        "8": "fa3, graph in some steps",
        "17-32": "fa3, no graph",
    }
