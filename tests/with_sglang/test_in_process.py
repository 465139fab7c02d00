"""The modes without a service: the Engine in process, and fixed batches straight into the model runner."""

from pathlib import Path

import pytest
from real import loadgen

from loadgen.record import Record

SCENARIO = """\
# small: a batch for the tests
[target]
kind = "sglang"
[target.server]
max_total_tokens = 1024
max_running_requests = 8
[workload]
num_prompts = 12
input_len = 40
output_len = 6
[arrivals]
kind = "poisson"
rate = 20
[measure]
warmup = 2
quantiles = ["p50"]
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SCENARIO)
    return path


def test_a_oneshot_lands_in_the_same_record_by_the_same_definitions(engine: tuple[Record, list[list[int]]]) -> None:
    record, _ = engine
    data = record.data
    assert (data["mode"], data["transport"], data["arrivals"]) == ("oneshot", "in-process", "oneshot")
    assert data["counts"]["ok"] == data["counts"]["scheduled"] == 24
    log = data["telemetry"]["log"]
    assert log["new_seqs"] >= 24  # a prompt that was cut at the end of a step counts twice
    assert log["new_tokens"] + log["cached_tokens"] == 24 * 40
    assert log["decode_tokens"] == 24 * 11
    assert data["metrics"]["itl"]["count"] == 24 * 11
    assert data["card"]["memory"]["offline_peak"] == data["memory"]["peak_bytes"] > 1 << 29
    assert data["card"]["memory"]["serving_kv_pool"] is None
    assert data["target"]["server"]["max_total_num_tokens"] == 1024
    assert data["target"]["server"]["attention_backend"] == "torch_native"
    assert data["telemetry"]["loads"]["reason"]
    assert data["telemetry"]["metrics"]["reason"]
    assert data["verdict"]["valid"], data["verdict"]


def test_fixed_batches_are_recorded_step_by_step(small: Path, tmp_path: Path) -> None:
    ended = loadgen("run", small, "--mode", "static", "--batch-size", "5", "--out", tmp_path / "static")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    data = Record.read(tmp_path / "static").data
    assert (data["mode"], data["card"]["batching_mode"]) == ("static", "static")
    assert data["counts"]["ok"] == 12
    static = data["static"]
    assert (static["fits"], static["batch_size"], static["batches"]) == (True, 5, 3)
    assert (static["needs_tokens"], static["pool_tokens"]) == (5 * 46, 1024)
    assert static["decode_step_s"]["count"] == 3 * 5
    assert data["card"]["path"]["resolved_backend"] == {"5": "torch_native, batch fixed"}
    assert data["card"]["memory"]["offline_peak"] > 1 << 28
    assert "stand-ins" in ended.stderr


def test_a_batch_that_does_not_fit_is_a_result_and_no_traceback(small: Path, tmp_path: Path) -> None:
    long = ("--set", "workload.input_len=300", "--set", "workload.output_len=20")
    ended = loadgen("run", small, *long, "--mode", "static", "--batch-size", "4", "--out", tmp_path / "static")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "DOES NOT FIT: a batch of 4 needs 1,280 of 1,024 tokens" in ended.stdout
    assert "--batch-size 3" in ended.stdout
    assert "Traceback" not in ended.stdout + ended.stderr
