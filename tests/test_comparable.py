"""What keeps records from being compared: exactly that is named, once."""

from typing import Any

import pytest
from ladder import ladder, record

from loadgen.comparable import by_design, differences, unknown


def test_a_ladder_of_one_scenario_is_comparable() -> None:
    assert differences(ladder()) == []


def test_other_output_lengths_are_named_as_max_tokens_and_as_nothing_else() -> None:
    other = record(
        "serving",
        fingerprints={"prompts": "p", "output_len": "o2", "workload": "w2", "schedule": "s"},
        lengths__output_len={"total": 6400, "mean": 16.0, "p50": 16, "p95": 16, "max": 16},
    )
    (found,) = differences(ladder("oneshot") | {"serving": other})
    assert (found.group, found.what, found.values) == ("sampling", "max_tokens", {"oneshot": 32, "serving": 16})
    assert found.text == "max_tokens: 32 on oneshot; 16 on serving"


def test_output_lengths_that_vary_are_told_apart_by_their_distribution() -> None:
    lengths = {"total": 12799, "mean": 31.997, "p50": 32, "p95": 40, "max": 64}
    other = record("serving", fingerprints__output_len="o2", lengths__output_len=lengths)
    (found,) = differences(ladder("oneshot") | {"serving": other})
    assert found.values == {"oneshot": 32, "serving": "mean 31.997, 12,799 in all"}


def test_the_same_lengths_in_another_order_are_told_apart_by_their_fingerprint() -> None:
    (found,) = differences(ladder("oneshot") | {"serving": record("serving", fingerprints__output_len="o2")})
    assert found.what == "max_tokens"
    assert "o2" in found.text


def test_other_prompts_are_another_request_set() -> None:
    (found,) = differences(ladder("oneshot") | {"serving": record("serving", fingerprints__prompts="p2")})
    assert (found.group, found.what) == ("requests", "request set")


@pytest.mark.parametrize(
    ("key", "value", "group", "what"),
    [
        ("scenario__sampling__temperature", 0.7, "sampling", "temperature"),
        ("scenario__sampling__top_p", 0.9, "sampling", "top_p"),
        ("scenario__sampling__ignore_eos", False, "sampling", "ignore_eos"),
        ("target__server__max_total_num_tokens", 16384, "sampling", "max_total_num_tokens"),
        ("target__server__disable_radix_cache", True, "sampling", "prefix cache"),
        ("target__server__dtype", "bfloat16", "sampling", "dtype"),
        ("target__server__quantization", "fp8", "sampling", "quantization"),
        ("target__server__effective_max_running_requests", 16, "concurrency", "max_running_requests"),
        ("target__server__chunked_prefill_size", 512, "concurrency", "chunked_prefill_size"),
        ("target__server__schedule_policy", "lpm", "concurrency", "schedule_policy"),
        ("environment__cpu", "another", "where", "cpu"),
        ("target__server__version", "0.5.22", "where", "server's version"),
        ("target__stand_ins", True, "where", "stand-ins"),
    ],
)
def test_each_difference_is_named_once_in_its_group(key: str, value: Any, group: str, what: str) -> None:
    found = differences(ladder("oneshot", "capped") | {"serving": record("serving", **{key: value})})
    assert [(difference.group, difference.what) for difference in found] == [(group, what)]


def test_the_cap_of_the_client_is_the_capped_rungs_own_and_must_be_that_of_the_service() -> None:
    (found,) = differences(
        ladder("http", "capped") | {"serving": record("serving", scenario__limits__max_concurrency=8)}
    )
    assert (found.group, found.what, found.values) == (
        "concurrency",
        "limits.max_concurrency",
        {"capped": 64, "serving": 8},
    )


def test_the_servers_cap_and_the_clients_are_never_compared_with_each_other() -> None:
    assert differences(ladder("capped", "serving", scenario__limits__max_concurrency=32)) == []
    assert differences(ladder("capped", "serving", target__server__effective_max_running_requests=64)) == []


def test_what_a_pool_held_down_is_compared_by_what_was_reached() -> None:
    held = record("serving", target__server__effective_max_running_requests=20)
    (found,) = differences(ladder("oneshot") | {"serving": held})
    assert found.values == {"oneshot": 32, "serving": "20 (asked for: 32)"}


def test_what_was_reached_is_compared_though_one_rung_does_not_know_it() -> None:
    records = ladder("http", target__server__effective_max_running_requests=None)
    records |= ladder("capped") | {"serving": record("serving", target__server__effective_max_running_requests=7)}
    (found,) = differences(records)
    assert (found.what, found.values) == ("max_running_requests", {"capped": 32, "serving": "7 (asked for: 32)"})
    records = ladder("http", target__server__effective_max_running_requests=None) | ladder("capped")
    assert differences(records) == []
    assert any("max_running_requests" in line for line in unknown(records))
    records["http"]["target"]["server"]["max_running_requests"] = 16
    assert [found.what for found in differences(records)] == ["max_running_requests asked for"]


def test_a_budget_is_named_once_by_what_was_reached() -> None:
    records = ladder("http", target__server__max_total_num_tokens=None, target__server__mem_fraction_static=0.5)
    records |= {"capped": record("capped", target__server__mem_fraction_static=0.8)}
    assert [found.what for found in differences(records)] == ["mem_fraction_static"]
    records |= {"serving": record("serving", target__server__max_total_num_tokens=9)}
    assert [found.what for found in differences(records)] == ["max_total_num_tokens"]


def test_numbers_are_the_same_however_they_are_written() -> None:
    assert differences(ladder("oneshot") | {"serving": record("serving", scenario__sampling__top_p=1)}) == []


def test_prompts_that_become_others_at_the_server_are_different() -> None:
    counted = {"requests": 400, "server_tokens": 102400}
    templated = {"requests": 400, "server_tokens": 104000}
    records = ladder("oneshot", prompts__lengths=counted) | {"serving": record("serving", prompts__lengths=templated)}
    assert [found.what for found in differences(records)] == ["prompt tokens by the server's count"]
    records["serving"]["prompts"]["lengths"]["requests"] = 399  # one failed: not all were counted
    assert differences(records) == []


def test_pools_that_free_memory_moved_by_a_hair_are_equal() -> None:
    assert (
        differences(ladder("oneshot") | {"serving": record("serving", target__server__max_total_num_tokens=32900)})
        == []
    )


def test_pools_that_differ_by_more_than_a_hair_are_different() -> None:
    (found,) = differences(
        ladder("oneshot") | {"serving": record("serving", target__server__max_total_num_tokens=33500)}
    )
    assert (found.what, found.values) == ("max_total_num_tokens", {"oneshot": 32768, "serving": 33500})


def test_a_model_is_the_same_with_a_slash_behind_its_path() -> None:
    assert differences(ladder("oneshot") | {"serving": record("serving", target__server__model_path="m/")}) == []
    (found,) = differences(ladder("oneshot") | {"serving": record("serving", target__server__model_path="m2")})
    assert (found.what, found.values) == ("model", {"oneshot": "m", "serving": "m2"})


def test_a_simulated_record_is_never_compared_with_a_real_one_and_no_more_is_said() -> None:
    other = record("serving", target__simulated=True, target__server__dtype=None, environment__cpu="x")
    (found,) = differences(ladder("oneshot") | {"serving": other})
    assert found.what == "simulated"


def test_what_one_side_does_not_know_is_no_difference_and_is_listed() -> None:
    records = ladder("oneshot") | {"serving": record("serving", target__server__dtype=None)}
    assert differences(records) == []
    assert any(line.startswith("not known on serving: ") and "dtype" in line for line in unknown(records))


def test_what_the_rungs_are_is_stated() -> None:
    lines = by_design(ladder())
    assert lines == [
        "static has no scheduler and no prefix cache: fixed batches of 32, where max_running_requests is 32 on "
        "oneshot, http, capped, serving",
        "no client cap on static, oneshot, http; limits.max_concurrency is 64 on capped, serving",
    ]


def test_a_fixed_batch_is_told_beside_what_the_server_was_allowed_and_not_what_it_was_asked() -> None:
    lines = by_design(ladder("static", "oneshot", target__server__effective_max_running_requests=20))
    assert lines[0].endswith("fixed batches of 32, where max_running_requests is 20 on oneshot")


def test_another_number_of_requests_is_named_and_not_what_follows_from_it() -> None:
    other = record(
        "serving", lengths__requests=200, fingerprints={"prompts": "p2", "output_len": "o2", "workload": "w2"}
    )
    (found,) = differences(ladder("oneshot") | {"serving": other})
    assert (found.what, found.values) == ("number of requests", {"oneshot": 400, "serving": 200})


def test_records_of_before_prompts_had_a_fingerprint_are_told_apart_by_what_they_asked_for() -> None:
    old = ladder("oneshot", "serving", fingerprints={"workload": "w"})
    assert differences(old) == []
    old["serving"]["fingerprints"]["workload"] = "w2"
    old["serving"]["card"]["workload"] = {"input_len": 256, "output_len": 16}
    assert [found.text for found in differences(old)] == ["max_tokens: 32 on oneshot; 16 on serving"]
