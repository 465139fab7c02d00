"""A whole ladder over the real engine: its rungs are comparable, and end in a waterfall, cards and a diagnosis."""

import json
from pathlib import Path

from real import loadgen

SCENARIO = """\
# small: a ladder for the tests
[target]
kind = "sglang"
[target.server]
max_total_tokens = 2048
max_running_requests = 8
[workload]
num_prompts = 30
input_len = 40
output_len = 8
[arrivals]
kind = "poisson"
rate = 10
[limits]
max_concurrency = 6
[measure]
warmup = 2
quantiles = ["p50"]
"""
RUNGS = ["static", "oneshot", "http", "capped", "serving"]


def test_a_ladder_is_climbed_over_the_real_engine_and_refused_where_more_than_the_rung_differs(tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(SCENARIO)
    folder = tmp_path / "pair"
    ended = loadgen("pair", tmp_path / "small.toml", "--repeats", "1", "--out", folder)
    assert ended.returncode in (0, 3), ended.stdout + ended.stderr  # a busy machine may make a rung INVALID
    assert "stand-ins" in ended.stderr
    pair = json.loads((folder / "pair.json").read_text())
    assert (pair["rungs"], pair["differences"]) == (RUNGS, [])
    assert "COMPARABLE" in ended.stdout
    for rung in RUNGS:
        data = json.loads((folder / f"1-{rung}" / "record.json").read_text())
        assert data["counts"]["ok"] == 30, rung
        assert data["target"]["stand_ins"] is True
        assert data["target"]["server"]["attention_backend"] == "torch_native"
    assert pair["cards"]["oneshot"]["memory"]["offline_peak"] > 1 << 29
    assert pair["cards"]["serving"]["memory"]["serving_kv_pool"] == 2048
    running = {rung: own["mean_batch"] for rung, own in pair["waterfall"]["rungs"].items()}
    assert running["static"] == 8
    assert all(0 < batch <= 8 for batch in running.values())
    other = ("--mode", "oneshot", "--set", "workload.output_len=4", "--out", tmp_path / "other")
    assert loadgen("run", tmp_path / "small.toml", *other).returncode == 0
    refused = loadgen("pair", "--of", tmp_path / "other", "--of", folder / "1-serving")
    assert refused.returncode == 3
    assert [line for line in refused.stdout.splitlines() if line.startswith("  •")] == [
        "  • max_tokens: 4 on oneshot; 8 on serving"
    ]
