"""The life of a server: it dies in the middle of a run, or the run is stopped; nothing is left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from loadgen.record import Record

PATIENCE = 300.0  # seconds: no statement on speed, only an end

LONG = """\
# long: enough to die in
[target]
kind = "sglang"
[target.server]
max_total_tokens = 4096
[workload]
num_prompts = 2000
input_len = 40
output_len = 20
[arrivals]
kind = "fixed"
rate = 10
"""


def start(folder: Path, *more: str) -> tuple[subprocess.Popen[str], Path]:
    (folder / "long.toml").write_text(LONG)
    asked = [sys.executable, "-m", "loadgen", "run", str(folder / "long.toml"), "--out", str(folder / "record"), *more]
    process = subprocess.Popen(
        asked, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ), start_new_session=True
    )
    return process, folder / "record"


def until(there: "os.PathLike[str]", size: int = 1) -> None:
    deadline = time.monotonic() + PATIENCE
    path = Path(there)
    while not (path.exists() and path.stat().st_size >= size):
        assert time.monotonic() < deadline, f"{path} did not come to be"
        time.sleep(0.1)


def all_gone(processes: list[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=60)
    return not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


def test_a_server_that_is_killed_in_the_middle_leaves_a_readable_record_and_no_orphan(tmp_path: Path) -> None:
    process, folder = start(tmp_path)
    until(folder / "requests.jsonl", size=2000)
    family = psutil.Process(process.pid).children(recursive=True)
    scheduler = next(one for one in family if "sglang::scheduler" in " ".join(one.cmdline()) + one.name())
    scheduler.kill()
    said, complained = process.communicate(timeout=PATIENCE)
    assert process.returncode == 4, said + complained
    assert "Traceback (most recent call last)" not in said
    assert "the server ended with code" in complained
    assert all_gone(family)
    record = Record.read(folder)
    assert (record.data["complete"], record.data["verdict"]["valid"]) == (False, False)
    assert "died in the middle of the run" in record.data["verdict"]["reasons"][0]
    assert record.data["counts"]["ok"] > 0
    assert record.data["telemetry"]["log"]["prefill_steps"] > 0
    assert record.data["target"]["died"]


def test_an_engine_that_is_killed_in_the_middle_leaves_a_readable_record_and_no_orphan(tmp_path: Path) -> None:
    process, folder = start(tmp_path, "--mode", "oneshot")
    until(folder / "requests.jsonl", size=2000)
    family = psutil.Process(process.pid).children(recursive=True)
    scheduler = next(one for one in family if "sglang::scheduler" in " ".join(one.cmdline()) + one.name())
    scheduler.kill()
    said, complained = process.communicate(timeout=PATIENCE)
    assert process.returncode == 4, said + complained
    assert "a process of the engine died" in complained
    assert all_gone(family)
    record = Record.read(folder)
    assert (record.data["mode"], record.data["complete"], record.data["verdict"]["valid"]) == ("oneshot", False, False)
    assert record.data["counts"]["ok"] > 0


def test_an_engine_that_cannot_start_is_told_with_the_last_lines_of_its_log(tmp_path: Path) -> None:
    process, _ = start(tmp_path, "--mode", "oneshot", "--set", "target.server.mem_fraction_static=0.0000001")
    family: list[psutil.Process] = []
    while process.poll() is None:
        family += [one for one in psutil.Process(process.pid).children(recursive=True) if one not in family]
        time.sleep(0.5)
    said, complained = process.communicate(timeout=PATIENCE)
    assert process.returncode == 4, said + complained
    assert "it could not be started in this process" in complained
    assert "leave no GPU memory for the KV cache" in complained  # SGLang's own words, on a CPU too
    assert "Traceback (most recent call last)" not in complained.partition("its log ends with")[0]
    assert all_gone(family)


def test_ctrl_c_while_the_server_starts_leaves_no_orphan(tmp_path: Path) -> None:
    process, folder = start(tmp_path)
    until(folder / "server.log")
    family = psutil.Process(process.pid).children(recursive=True)
    assert family
    process.send_signal(signal.SIGINT)
    said, complained = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, said + complained
    assert all_gone(family)
