"""The modes without a service, over the simulator: the same requests all at once, and what their records say."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from loadgen.record import Record
from loadgen.scenario import Scenario, load
from loadgen.schedule import at_once, plan
from loadgen.traces import DataError

SMALL = """\
# small: every mode of it takes no time
[target]
step_time = { prefill_base = 0.002, prefill_per_token = 0, decode_base = 0.002, decode_per_sequence = 0 }
[target.server]
max_running_requests = 8
max_total_tokens = 2000
[workload]
num_prompts = 20
input_len = 30
output_len = 5
[arrivals]
kind = "poisson"
rate = 200
[limits]
max_concurrency = 6
[measure]
quantiles = ["p50"]
[slo]
ttft_p50 = 1.0
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


def loadgen(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    asked = [sys.executable, "-m", "loadgen", *map(str, arguments)]
    return subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False)


def run(small: Path, *arguments: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    out = small.parent / f"record{len(list(small.parent.iterdir()))}"
    ended = loadgen("run", small, "--out", out, *arguments)
    return ended, Record.read(out).data


# ── the schedule ─────────────────────────────────────────────────────────────────────────────────────────────────────


def once(small: Path, *overrides: str) -> tuple[Scenario, Any, Any]:
    scenario = load(small, overrides)
    planned = plan(scenario, 3)
    bare, together = at_once(scenario, planned)
    return bare, planned, together


def test_all_at_once_are_the_same_requests_at_the_start_under_no_cap_and_no_slo(small: Path) -> None:
    scenario, planned, together = once(small)
    assert together.requests == planned.requests
    assert together.offsets.tolist() == [0.0] * 20
    assert together.total == 20
    same = ("workload", "prompts", "output_len", "sampling")
    assert {k: together.fingerprints[k] for k in same} == {k: planned.fingerprints[k] for k in same}
    assert all(together.fingerprints[k] != planned.fingerprints[k] for k in ("schedule", "concurrency"))
    assert (scenario.limits.max_concurrency, scenario.slo, scenario.measure.duration) == (None, {}, None)
    assert scenario.limits.timeout_first_token == scenario.limits.timeout_total  # a queue is no fault
    assert [one.arrivals.kind for one in scenario.classes] == ["oneshot"]


def test_all_at_once_is_what_a_scenario_with_oneshot_arrivals_would_be(small: Path) -> None:
    _, _, together = once(small)
    asked = plan(load(small, ["arrivals={kind='oneshot'}"]), 3)
    assert together.fingerprints["schedule"] == asked.fingerprints["schedule"]
    assert together.requests == asked.requests


def test_a_closed_loop_sends_all_that_its_users_would(small: Path) -> None:
    closed = "arrivals={kind='closed', users=3, think_time=0.1}"
    _, planned, together = once(small, closed)
    assert len(planned.requests) == 3
    assert [request.index for request in together.requests] == list(range(20))
    assert together.fingerprints["prompts"] == planned.fingerprints["prompts"]


def test_a_load_that_a_duration_ends_has_as_many_at_once(small: Path) -> None:
    scenario = load(small, ["measure.duration=0.05"])
    planned = plan(scenario, 3)
    _, together = at_once(scenario, planned)
    assert 0 < len(together.requests) == len(planned.requests) < 20


def test_classes_keep_the_order_in_which_they_were_due(tmp_path: Path) -> None:
    text = "# two: classes\n" + "".join(
        f'[[traffic]]\nname = "{name}"\nbegin = {begin}\n[traffic.workload]\nnum_prompts = 3\ninput_len = 4\n'
        f'output_len = 2\n[traffic.arrivals]\nkind = "fixed"\nrate = 1\n'
        for name, begin in (("late", 0.5), ("early", 0.0))
    )
    (tmp_path / "two.toml").write_text(text)
    bare, _, together = once(tmp_path / "two.toml")
    assert [request.traffic for request in together.requests] == ["early", "late"] * 3
    assert together.totals == {"late": 3, "early": 3}
    assert [one.begin for one in bare.classes] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (
            ["arrivals={kind='sessions', starts={kind='poisson', rate=1}, turns=2, think_time=1}"],
            "arrivals.kind = sess",
        ),
        (
            [
                "arrivals={kind='closed', users=3, think_time=0.1}",
                "workload={kind='random', input_len=3, output_len=2}",
                "measure.duration=5",
            ],
            "workload.num_prompts: say how many there are",
        ),
    ],
)
def test_what_depends_on_answers_cannot_be_sent_at_once(small: Path, overrides: list[str], says: str) -> None:
    with pytest.raises(DataError, match=says):
        once(small, *overrides)


# ── the records ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_oneshot_is_measured_in_process_by_the_same_definitions(small: Path) -> None:
    ended, data = run(small, "--mode", "oneshot")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert (data["mode"], data["transport"], data["arrivals"]) == ("oneshot", "in-process", "oneshot")
    assert data["counts"] == {"scheduled": 20, "sent": 20, "ok": 20, "fault": 0, "dropped": 0}
    assert data["concurrency"]["peak"] == 20
    log = data["telemetry"]["log"]
    assert log["running"]["peak"] == 8
    assert log["new_tokens"] + log["cached_tokens"] == 20 * 30
    assert log["decode_tokens"] == 20 * 4
    assert data["metrics"]["itl"]["count"] == 20 * 4
    assert data["card"]["memory"]["offline_peak"] == data["memory"]["peak_bytes"] > 0
    assert data["target"]["url"] is None
    assert "small · oneshot, continuous batching · oneshot arrivals · simulated engine" in ended.stdout


def test_a_scenarios_own_log_interval_comes_before_ours_in_process_too(small: Path) -> None:
    _, data = run(small, "--mode", "oneshot", "--set", "target.server.decode_log_interval=3")
    assert data["telemetry"]["log"]["decode_log_interval"] == 3
    assert data["telemetry"]["log"]["decode_tokens"] is None


def test_fixed_batches_are_measured_step_by_step(small: Path) -> None:
    ended, data = run(small, "--mode", "static", "--batch-size", "6")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert data["card"]["batching_mode"] == "static"
    assert data["card"]["concurrency"]["max_running_requests"] == 6
    static = data["static"]
    assert (static["batches"], static["prefill_s"]["count"], static["decode_step_s"]["count"]) == (4, 4, 4 * 4)
    assert (static["needs_tokens"], static["pool_tokens"], static["fits"]) == (6 * 35, 2000, True)
    assert static["prefill_s"]["p50"] >= 0.002
    assert static["decode_step_s"]["p50"] >= 0.002
    assert data["counts"]["ok"] == 20


def test_a_batch_is_as_large_as_the_server_would_run_unless_it_is_said(small: Path) -> None:
    assert run(small, "--mode", "static")[1]["static"]["batch_size"] == 8


def test_a_batch_that_does_not_fit_is_a_result_with_a_code_and_advice(small: Path) -> None:
    ended, data = run(small, "--mode", "static", "--batch-size", "8", "--set", "target.server.max_total_tokens=100")
    assert ended.returncode == 1
    assert (
        "DOES NOT FIT: a batch of 8 needs 280 of 100 tokens and 8 of 8 sequences; --batch-size 2 fits" in ended.stdout
    )
    assert "Traceback" not in ended.stdout + ended.stderr
    assert (data["static"]["fits"], data["faults"]) == (False, {"no_room": 20})


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--mode", "oneshot", "--target", "http://127.0.0.1:9"], "needs the target simulator or sglang, not a URL"),
        (["--mode", "oneshot", "--set", "target.api=chat"], 'set target.api = "generate"'),
        (["--batch-size", "3"], "--batch-size is of --mode static"),
        (
            ["--mode", "static", "--set", "arrivals={kind='sessions', starts={kind='fixed', rate=1}, turns=2}"],
            "sessions",
        ),
    ],
)
def test_what_a_mode_cannot_do_is_wrong_use(small: Path, arguments: list[str], says: str) -> None:
    ended = loadgen("run", small, *arguments)
    assert (ended.returncode, says in ended.stderr) == (2, True), ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_server_that_dies_ends_the_run_with_its_record(tmp_path: Path) -> None:
    """The simulator is killed from outside; SGLang's own death is in tests/with_sglang."""
    (tmp_path / "long.toml").write_text(SMALL.replace("= 20\n", "= 2000\n").replace("rate = 200", "rate = 20"))
    script = (
        "import os, signal, threading, time, psutil, sys; from loadgen.cli import main\n"
        "def kill():\n"
        "    lines = sys.argv[-1] + '/requests.jsonl'\n"
        "    while not os.path.exists(lines) or os.stat(lines).st_size < 999: time.sleep(0.02)\n"
        "    psutil.Process().children()[0].kill()\n"
        "threading.Thread(target=kill, daemon=True).start()\n"
        "main()"
    )
    asked = [sys.executable, "-c", script, "run", str(tmp_path / "long.toml"), "--out", str(tmp_path / "record")]
    ended = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 4, ended.stdout + ended.stderr
    assert "the server ended with code -9" in ended.stderr
    assert "the target died in the middle of the run" in ended.stdout
    data = Record.read(tmp_path / "record").data
    assert (data["complete"], data["verdict"]["valid"], data["counts"]["ok"] > 0) == (False, False, True)
    assert json.loads((tmp_path / "record" / "record.json").read_text())["target"]["died"]
