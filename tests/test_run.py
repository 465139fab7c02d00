"""The whole path, through the command line and real HTTP: scenario in, record, report and exit code out."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import yaml
from serving import FAST, simulator

from loadgen.client.http import HttpClient
from loadgen.exchange import METRICS
from loadgen.histogram import Histogram, read_log
from loadgen.record import Record
from loadgen.run import run as run_scenario
from loadgen.scenario import load
from loadgen.schedule import plan

QUICK = """\
# quick: does all of it work?
[target]
step_time = { prefill_base = 0.002, prefill_per_token = 0, decode_base = 0.002, decode_per_sequence = 0 }
[workload]
num_prompts = 300
input_len = 20
output_len = 5
[arrivals]
kind = "poisson"
rate = 600
"""


@pytest.fixture
def quick(tmp_path: Path) -> Path:
    path = tmp_path / "quick.toml"
    path.write_text(QUICK)
    return path


def loadgen(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    asked = [sys.executable, "-m", "loadgen", *map(str, arguments)]
    return subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False, cwd=cwd)


def run(quick: Path, *arguments: str | Path) -> tuple[int, dict[str, Any], Path]:
    """Exit code, record.json and folder of a run; whatever the machine is doing, lateness is no reason here."""
    out = quick.parent / f"record{len(list(quick.parent.iterdir()))}"
    ended = loadgen("run", quick, "--out", out, "--json", *arguments)
    assert not ended.stderr, ended.stderr
    data = json.loads(ended.stdout)
    assert data == json.loads((out / "record.json").read_text())
    return ended.returncode, data, out


def calm(reasons: list[str]) -> list[str]:
    """The reasons that a busy machine is not the cause of."""
    return [reason for reason in reasons if "late" not in reason and "requests left at" not in reason]


@pytest.mark.parametrize("api", ["generate", "completions", "chat"])
def test_every_request_is_sent_answered_and_counted(quick: Path, api: str) -> None:
    code, data, folder = run(quick, "--set", f"target.api={api}", "--seed", "1")
    assert calm(data["verdict"]["reasons"]) == []
    assert code == (0 if data["verdict"]["valid"] else 3)
    assert data["counts"] == {"scheduled": 300, "sent": 300, "ok": 300, "fault": 0, "dropped": 0}
    lines = list(Record.read(folder).requests())
    assert sorted(line["index"] for line in lines) == list(range(300))
    assert {line["outcome"] for line in lines} == {"ok"}
    assert {line["output_tokens"] for line in lines} == {5}
    assert {line["input_tokens"] for line in lines} == {20 if api != "chat" else 21}, "a chat counts its role"
    assert all(line["due"] <= line["sent"] < line["first"] <= line["last"] <= line["ended"] for line in lines)


def test_the_figures_are_those_that_the_requests_give(quick: Path) -> None:
    """Metrics, rates and in-flight worked out again from requests.jsonl, by numpy."""
    _, data, folder = run(quick, "--set", "limits.max_concurrency=3")
    lines = list(Record.read(folder).requests())
    column = {
        key: np.array([line[key] for line in lines]) for key in ("due", "ready", "sent", "first", "last", "ended")
    }
    expected = {
        "ttft": column["first"] - column["due"],
        "ttft_service": column["first"] - column["sent"],
        "tpot": (column["last"] - column["first"]) / 4,
        "e2e": column["last"] - column["due"],
        "lateness": column["sent"] - column["due"],
        "lag": column["sent"] - column["ready"],
    }
    for name, values in expected.items():
        metric = data["metrics"][name]
        assert metric["count"] == 300
        assert metric["mean"] == pytest.approx(values.mean(), rel=1e-3, abs=2e-6)
        for key, q in [("p50", 0.5), ("p99", 0.99), ("max", 1.0)]:
            exact = np.quantile(values, q, method="inverted_cdf")
            assert metric[key] == pytest.approx(exact, rel=1e-3, abs=3e-6), (name, key)
    assert data["metrics"]["itl"]["count"] == 300 * 4
    assert data["metrics"]["itl"]["mean"] == pytest.approx(expected["tpot"].mean(), rel=1e-3)
    span = column["ended"].max()
    assert data["throughput"]["output_tokens_per_s"] == pytest.approx(1500 / span, rel=1e-3)
    assert data["throughput"]["input_tokens_per_s"] == pytest.approx(6000 / span, rel=1e-3)
    assert data["concurrency"]["peak"] == 3
    assert data["concurrency"]["share_at_cap"] > 0.1


def test_the_interval_logs_add_up_to_the_metrics_and_carry_their_tags(quick: Path) -> None:
    _, data, folder = run(quick)
    for name in METRICS:
        total = Histogram()
        with (folder / f"{name}.hlog").open() as log:
            for tag, _, interval in read_log(log):
                assert tag == name.upper()
                total.merge(interval)
        metric = data["metrics"][name]
        assert total.count == metric["count"] > 0
        assert total.quantile(0.99) == pytest.approx(metric["p99"], abs=1e-6)


def test_the_record_says_what_was_run_and_where(quick: Path) -> None:
    _, data, folder = run(quick, "--seed", "7", "--set", "limits.max_concurrency=50")
    assert (data["schema"], data["mode"], data["seed"], data["complete"]) == (1, "serving", 7, True)
    assert data["scenario"]["limits"]["max_concurrency"] == 50
    assert data["target"]["simulated"] is True
    assert data["target"]["cache_flushed"] is True
    assert data["target"]["server"]["simulator"]["step_time"]["decode_base"] == 0.002
    assert data["environment"]["packages"]["uvloop"]
    card = yaml.safe_load((folder / "card.yaml").read_text())
    assert card == data["card"]
    assert card["concurrency"] == {"max_running_requests": 64, "max_concurrency": 50}
    timeline = [json.loads(line) for line in (folder / "timeline.jsonl").read_text().splitlines()]
    assert [point["at"] >= i for i, point in enumerate(timeline)] == [True] * len(timeline)
    assert timeline[0]["server"]["num_running_reqs"] >= 0
    assert "Prefill batch" in (folder / "server.log").read_text()


def test_the_same_seed_gives_the_same_schedule_and_prompts_and_another_length_the_same_schedule(quick: Path) -> None:
    (_, one, _), (_, same, _), (_, longer, _) = (
        run(quick, "--seed", "1"),
        run(quick, "--seed", "1"),
        run(quick, "--seed", "1", "--set", "workload.input_len=33"),
    )
    assert one["fingerprints"] == same["fingerprints"]
    assert one["fingerprints"]["schedule"] == longer["fingerprints"]["schedule"]
    assert one["fingerprints"]["workload"] != longer["fingerprints"]["workload"]


def test_the_verdict_and_the_slo_decide_the_exit_code(quick: Path) -> None:
    code, data, _ = run(quick, "--set", "slo.ttft_p50=0.000001", "--set", "arrivals.rate=100")
    assert calm(data["verdict"]["reasons"]) == []
    assert data["slo"]["ttft_p50"]["met"] is False
    assert code == (1 if data["verdict"]["valid"] else 3)
    code, data, _ = run(quick, "--num-prompts", "20")
    assert (code, data["verdict"]["valid"]) == (3, False)
    assert any("p99 needs 299 samples" in reason for reason in data["verdict"]["reasons"])


def test_drops_at_the_cap_are_counted_and_make_the_run_invalid(quick: Path) -> None:
    code, data, _ = run(quick, "--max-concurrency", "1", "--set", "limits.overflow=drop")
    assert code == 3
    assert data["counts"]["dropped"] > 0
    assert data["counts"]["ok"] + data["counts"]["dropped"] == 300
    assert any("dropped at the cap of 1" in reason for reason in data["verdict"]["reasons"])


def test_shorthands_of_bench_serving_are_scenario_keys(quick: Path) -> None:
    flags = ["--request-rate", "150", "--num-prompts", "30", "--random-input-len", "9", "--random-output-len", "3"]
    _, data, _ = run(quick, *flags, "--max-concurrency", "8", "--set", 'measure.quantiles=["p50"]')
    scenario = data["scenario"]
    assert (scenario["arrivals"]["rate"], scenario["workload"]["num_prompts"]) == (150, 30)
    assert scenario["workload"]["input_len"]["value"] == 9
    assert scenario["workload"]["output_len"]["value"] == 3
    assert scenario["limits"]["max_concurrency"] == 8


def test_a_server_that_is_already_running_is_attached_to(quick: Path) -> None:
    with simulator(*FAST, "--served-model-name", "tiny") as (url, _):
        _, data, _ = run(quick, "--target", url)
        with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
            served = answer.read().decode()
    assert data["target"] | {"server": None} == {
        "kind": "url", "api": "generate", "url": url, "model": "tiny", "simulated": True, "server": None,
        "cache_flushed": True, "stand_ins": False, "died": None,
    }  # fmt: skip
    assert data["counts"]["ok"] == 300
    assert re.search(r"num_requests_total{[^}]*} 304\.0", served), "4 warm-up requests were sent and not counted"


def test_the_report_gives_the_verdict_before_any_figure_and_can_be_printed_again(quick: Path) -> None:
    out = quick.parent / "record"
    ended = loadgen("run", quick, "--out", out)
    lines = ended.stdout.splitlines()
    assert lines[0] == "quick · serving, continuous batching · poisson arrivals · simulated server"
    assert re.match("(IN)?VALID", lines[1])
    assert "\x1b" not in ended.stdout, "plain where it is no terminal"
    assert re.search(r"^TTFT \(from due\) +\d+\.\d\d +\d+\.\d\d ", ended.stdout, re.MULTILINE)
    assert "in flight   mean" in ended.stdout
    again = loadgen("report", out)
    assert (again.stdout, again.returncode) == (ended.stdout, ended.returncode)
    quiet = loadgen("run", quick, "--out", quick.parent / "q", "--quiet")
    assert re.match(r"(IN)?VALID\n", quiet.stdout)
    assert "TTFT (from due)" not in quiet.stdout


def test_who_stops_reading_does_not_change_the_exit_code(quick: Path) -> None:
    code, _, folder = run(quick)
    for flags in ([], ["--json"]):
        asked = [sys.executable, "-m", "loadgen", "report", str(folder), *flags]
        reader, writer = os.pipe()
        os.close(reader)
        with os.fdopen(writer, "wb") as broken:
            ended = subprocess.run(asked, stdout=broken, stderr=subprocess.PIPE, timeout=30, check=False)
        assert (ended.returncode, ended.stderr) == (code, b"")


def test_an_interrupt_before_the_run_is_code_130(quick: Path) -> None:
    script = "import os, signal, sys, loadgen.cli; from loadgen.cli import runs; "
    script += "runs.load_scenario = lambda *_: os.kill(os.getpid(), signal.SIGINT); "
    script += "sys.argv[0] = 'loadgen'; loadgen.cli.main()"
    asked = [sys.executable, "-c", script, "run", str(quick)]
    ended = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr.strip()) == (130, "", "")


def test_two_runs_of_one_second_have_two_folders(quick: Path) -> None:
    (quick.parent / "runs").mkdir()
    flags = ["run", str(quick), "--num-prompts", "5", "--quiet"]
    started = [
        subprocess.Popen([sys.executable, "-m", "loadgen", *flags], cwd=quick.parent, stdout=subprocess.DEVNULL)
        for _ in range(3)
    ]
    assert [process.wait(timeout=60) for process in started] == [3, 3, 3]
    assert len(list((quick.parent / "runs").iterdir())) == 3


def test_wrong_use_is_code_2_and_tells_everything_without_a_traceback(quick: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    bad = loadgen("run", quick, "--set", "arrivals.rate=0", "--set", "limits.max_concurrency=0")
    assert bad.stderr.splitlines() == [
        "--set arrivals.rate=0: must be at least 1e-06, got 0",
        "--set limits.max_concurrency=0: must be at least 1, got 0",
    ]
    for ended, says in [
        (bad, "must be at least 1"),
        (loadgen("run", "nosuch"), "no scenario named 'nosuch'"),
        (loadgen("run", quick, "--out", tmp_path / "full"), "the folder is not empty"),
        (loadgen("run", quick, "--seed", "-1"), "-1 is not in the range x>=0"),
        (loadgen("run", quick, "--set", "target.step_time={decode=1}"), "unknown key"),
        (loadgen("report", tmp_path), "is no record"),
    ]:
        assert says in ended.stderr
        assert "Traceback" not in ended.stderr
        assert ended.returncode == 2


def test_a_target_that_fails_is_code_4(quick: Path) -> None:
    nobody = loadgen("run", quick, "--target", "http://127.0.0.1:9")
    assert (nobody.returncode, nobody.stdout) == (4, "")
    assert "no server answers at http://127.0.0.1:9" in nobody.stderr
    with simulator(*FAST, "--context-length", "10") as (url, _):
        refused = loadgen("run", quick, "--target", url)
    assert refused.returncode == 4
    assert "none of the 4 warm-up requests succeeded; status: 400" in refused.stderr


LONG = ("--set", "workload.num_prompts=100000", "--set", "arrivals.rate=50")


def begun(quick: Path, out: Path) -> subprocess.Popen[str]:
    """A run of half an hour that has recorded its first requests."""
    asked = [sys.executable, "-m", "loadgen", "run", str(quick), "--out", str(out), *LONG]
    process = subprocess.Popen(asked, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 30
    while not (out / "requests.jsonl").exists() or (out / "requests.jsonl").read_text().count("\n") < 20:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    return process


def gone(process: psutil.Process) -> bool:
    try:
        process.wait(timeout=10)
    except psutil.TimeoutExpired:
        return False
    return True


def test_a_killed_run_leaves_a_readable_record_marked_incomplete_and_no_server(quick: Path) -> None:
    out = quick.parent / "killed"
    process = begun(quick, out)
    (server,) = psutil.Process(process.pid).children()
    process.kill()
    process.communicate()
    record = Record.read(out)
    assert record.data["complete"] is False
    assert record.data["counts"]["ok"] >= 20
    assert record.data["counts"]["scheduled"] == 100_000
    assert gone(server)
    reported = loadgen("report", out)
    assert reported.returncode == 3
    assert "INVALID: the run was killed before it could be judged" in reported.stdout
    assert "100000 scheduled" in reported.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_keeps_what_it_saw_and_ends_its_server(quick: Path, number: int) -> None:
    out = quick.parent / "interrupted"
    process = begun(quick, out)
    (server,) = psutil.Process(process.pid).children()
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "the run was interrupted: " in stdout
    assert "Traceback" not in stderr
    data = Record.read(out).data
    assert (data["complete"], data["verdict"]["valid"]) == (False, False)
    assert data["metrics"]["ttft"]["count"] == data["counts"]["ok"] >= 20
    assert gone(server)


def test_a_record_that_cannot_be_written_ends_the_run_with_a_message(quick: Path) -> None:
    """A file-size limit stands in for a full disk: the write fails in the middle of the run."""
    script = (
        "import resource, sys; from loadgen.cli import main; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)); sys.argv[0] = 'loadgen'; main()"
    )
    asked = [sys.executable, "-c", script, "run", str(quick), "--out", str(quick.parent / "full")]
    ended = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 3, ended.stderr
    assert "could not be written: File too large" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_as_many_connections_are_opened_ahead_as_requests_are_due_together(
    quick: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[int] = []

    async def note(_: HttpClient, connections: int) -> None:
        opened.append(connections)

    monkeypatch.setattr(HttpClient, "open", note)
    trains = ["arrivals={kind='burst', size=7, period=1.5, spread=0.1}", "workload.num_prompts=14"]
    for i, more in enumerate([[], ["limits.max_concurrency=5"], ["arrivals.period=0.7"]]):
        (folder := quick.parent / f"record{i}").mkdir()
        scenario = load(quick, [*trains, *more])
        asyncio.run(run_scenario(scenario, plan(scenario, 0), "quick", 0, folder))
    assert opened == [7, 5, 14]


def test_help_and_lists_answer_without_the_heavy_imports() -> None:
    script = "import sys; sys.argv = ['loadgen', '--help']\nfrom loadgen.cli import main\n"
    script += "try:\n main()\nexcept SystemExit: pass\n"
    script += "assert not {'numpy', 'aiohttp', 'pydantic', 'rich', 'uvloop'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, check=False).returncode == 0
    listed = loadgen("scenarios").stdout
    assert re.search(r"^burst +does a train of 16 requests every 2 s", listed, re.MULTILINE)
    assert json.loads(loadgen("scenarios", "schema").stdout)["title"] == "Scenario"


def test_scenarios_are_found_from_any_folder(tmp_path: Path) -> None:
    assert "poisson" in loadgen("scenarios", cwd=tmp_path).stdout
    assert list(tmp_path.iterdir()) == []
