"""What is seen beside the requests: a log that grows, looks at the server, peaks of memory, and what looking costs."""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from virtual import VirtualLoop, in_virtual_time

from loadgen.telemetry import memory
from loadgen.telemetry.memory import PeakMemory
from loadgen.telemetry.server import ServerSide
from loadgen.telemetry.timeline import Polls, scrape

GOLDEN = Path(__file__).parent / "golden"
STAMP = "[2026-11-30 21:46:{:06.3f}] "
PREFILL = (
    "Prefill batch, #new-seq: 1, #new-token: {}, #cached-token: 0, token usage: 0.00, #running-req: 0, #queue-req: 0, "
)
PREFILL += "#pending-token: 0, cpu graph: False, input throughput (token/s): 1.00\n"
AT_46 = time.mktime((2026, 11, 30, 21, 46, 0, 0, 0, -1))


class Target:
    """A server that answers from a script, one entry a look."""

    def __init__(self, log: Path | None = None, loads: Any = (None,), metrics: Any = (None,), **server: Any) -> None:
        self.log, self.server = log, server
        self._loads, self._metrics = list(loads), list(metrics)

    async def loads(self) -> Any:
        return self._loads.pop(0) if len(self._loads) > 1 else self._loads[0]

    async def exposition(self) -> Any:
        return self._metrics.pop(0) if len(self._metrics) > 1 else self._metrics[0]


def side(target: Any, epoch: float = 0.0) -> ServerSide:
    return ServerSide(target, lambda: epoch)


def seen(watching: ServerSide, log: Path | None, *more: str) -> None:
    """A run during which the log grows by these texts, in virtual time."""

    async def work(_: VirtualLoop) -> None:
        await watching.begin()
        following = asyncio.create_task(watching.follow())
        for text in more:
            assert log is not None
            with log.open("a") as file:
                file.write(text)
            await asyncio.sleep(0.2)
        following.cancel()
        await watching.end()

    in_virtual_time(work)


def test_only_what_the_log_says_of_the_run_is_counted_and_the_start_is_read_for_its_facts(tmp_path: Path) -> None:
    log = tmp_path / "log"
    start = "max_total_num_tokens=4096, chunked_prefill_size=256, max_prefill_tokens=16384, max_running_requests=16, "
    log.write_text(STAMP.format(1) + start + "context_len=4096, available_cpu_mem=1 GB\n")
    with log.open("a") as file:
        file.write(STAMP.format(2) + PREFILL.format(7))  # a warm-up
    watching = side(Target(log, decode_log_interval=1, max_total_num_tokens=4096))
    first, second = STAMP.format(10.5) + PREFILL.format(100), STAMP.format(11.25) + PREFILL.format(30)
    seen(watching, log, first[:40], first[40:] + second, STAMP.format(30) + PREFILL.format(9))
    account, steps = watching.account(AT_46 + 10, AT_46 + 20)
    told = account["log"]
    assert (told["prefill_steps"], told["new_tokens"], told["absent"]) == (2, 130, None)
    assert told["facts"]["chunked_prefill_size"] == 256
    assert [(step["kind"], step["at"], step["new_tokens"]) for step in steps] == [
        ("prefill", 0.5, 100),
        ("prefill", 1.25, 30),
    ]
    assert watching.log.decode() == first + second + STAMP.format(30) + PREFILL.format(9)


def test_a_log_that_is_begun_anew_is_read_from_its_beginning_and_one_that_is_gone_says_no_more(tmp_path: Path) -> None:
    (log := tmp_path / "log").write_text("x" * 500 + "\n")
    watching = side(Target(log, decode_log_interval=1))

    async def work(_: VirtualLoop) -> None:
        await watching.begin()
        following = asyncio.create_task(watching.follow())
        await asyncio.sleep(0.2)
        log.write_text(STAMP.format(10.5) + PREFILL.format(100))
        await asyncio.sleep(0.2)
        log.unlink()
        await asyncio.sleep(0.2)
        following.cancel()
        await watching.end()

    in_virtual_time(work)
    account, steps = watching.account(AT_46 + 10, AT_46 + 20)
    assert (account["log"]["new_tokens"], len(steps)) == (100, 1)


def test_a_line_without_milliseconds_is_dated_by_when_it_was_seen(tmp_path: Path) -> None:
    (log := tmp_path / "log").touch()
    watching = side(Target(log, decode_log_interval=1), epoch=AT_46 + 10.75)
    seen(watching, log, "[2026-11-30 21:46:10] " + PREFILL.format(5))
    _, steps = watching.account(AT_46 + 10, AT_46 + 20)
    assert [step["at"] for step in steps] == [0.75]


def test_without_a_log_it_says_how_to_have_one() -> None:
    watching = side(Target())
    seen(watching, None)
    account, steps = watching.account(0.0, 1.0)
    assert "target.server_log" in account["log"]["absent"]
    assert steps == []
    assert account["loads"] == {"reason": "the server has no /v1/loads"}
    assert "--enable-metrics" in account["metrics"]["reason"]


def test_loads_and_metrics_are_differences_of_two_looks() -> None:
    moments = [[3, 3, 300, 3, 300, 3], [13, 23, 2300, 43, 4300, 23]]
    loads = [
        {
            "loads": [
                {"dp_rank": 0, "decode_moments": each, "total_prefill_busy_us": n, "total_prefill_uncached_tokens": n}
            ]
        }
        for each, n in zip(moments, (0, 100), strict=True)
    ]
    text = (GOLDEN / "metrics_after_load.txt").read_text()
    watching = side(Target(loads=loads, metrics=[text]))
    seen(watching, None)
    account, _ = watching.account(0.0, 1.0)
    assert (account["loads"]["steps"], account["loads"]["prefill_s_per_token"]) == (10, pytest.approx(1e-6))
    assert account["metrics"]["counters"]["prompt_tokens_total"] == 0.0  # nothing between two equal looks


def test_metrics_are_scraped_at_their_interval_and_their_cost_is_told() -> None:
    text = (GOLDEN / "metrics_after_load.txt").read_text()
    points: list[dict[str, Any]] = []
    polls = Polls(5.0)

    async def work(loop: VirtualLoop) -> None:
        target: Any = Target(metrics=[text])
        scraping = asyncio.create_task(scrape(target, points.append, start=100.0, polls=polls, now=loop.time))
        await asyncio.sleep(118)
        scraping.cancel()

    in_virtual_time(work)
    assert [point["at"] for point in points] == [5.0, 10.0, 15.0]
    assert points[0]["metrics"]["max_total_num_tokens"] > 0
    assert not any("bucket" in name for name in points[0]["metrics"])
    assert polls.as_dict() == {"interval": 5.0, "count": 3, "cost_mean_s": 0.0, "cost_max_s": 0.0}


@pytest.mark.parametrize("text", [None, "sglang:token_usage{broken\n"])
def test_a_server_without_metrics_is_asked_once(text: str | None) -> None:
    points: list[dict[str, Any]] = []

    async def work(loop: VirtualLoop) -> None:
        target: Any = Target(metrics=[text])
        await scrape(target, points.append, start=0.0, polls=Polls(5.0), now=loop.time)

    in_virtual_time(work)
    assert points == []


def test_the_peak_is_of_the_whole_tree_and_holds_what_was_given_back() -> None:
    script = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import sys; a = bytearray(90_000_000); print(1, flush=True); "
        "sys.stdin.read(1); del a; print(2, flush=True); sys.stdin.read()'], stdin=0)\n"
        "child.wait()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdout.readline()
        peak = PeakMemory([process.pid])
        peak._sample(peak._tree())
        process.stdin.write(b"x")
        process.stdout.readline()
        told = peak.as_dict()
        assert told["peak_bytes"] > 90_000_000
        assert (told["processes"], told["reason"]) == (2, None)
    finally:
        process.stdin.close()
        process.wait(20)
        process.stdout.close()


def test_a_tree_that_is_not_known_or_has_ended_is_null_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    assert PeakMemory([]).as_dict()["reason"] == "the server was not started here: its processes are not known"
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    told = PeakMemory([ended.pid]).as_dict()
    assert (told["peak_bytes"], told["reason"]) == (None, "its processes have ended")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    told = PeakMemory([os.getpid()]).as_dict()
    assert (told["gpu_peak_bytes"], told["gpu_reason"]) == (None, "nvidia-ml-py is not installed")


def test_gpus_are_summed_where_there_are_any(monkeypatch: pytest.MonkeyPatch) -> None:
    used = {0: [1_000, 5_000, 2_000], 1: [10_000, 10_000, 10_000]}

    class Nvml:
        @staticmethod
        def nvmlInit() -> None: ...  # noqa: N802 - NVML's own name

        @staticmethod
        def nvmlDeviceGetCount() -> int:  # noqa: N802
            return 2

        @staticmethod
        def nvmlDeviceGetHandleByIndex(i: int) -> int:  # noqa: N802
            return i

        @staticmethod
        def nvmlDeviceGetMemoryInfo(i: int) -> Any:  # noqa: N802
            return type("Info", (), {"used": used[i].pop(0)})

    monkeypatch.setitem(sys.modules, "pynvml", Nvml)
    peak = PeakMemory([os.getpid()])
    peak._sample([])
    peak._sample([])
    assert peak.as_dict()["gpu_peak_bytes"] == 15_000
    assert memory.INTERVAL > 0
