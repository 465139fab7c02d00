"""The guard: what is started does not outlive who started it, with all of its processes."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from loadgen.target import guard

# A command that starts a child of its own, both of which write their pids and, asked to end, do not.
FAMILY = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.{on_term})
child = subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
                          "time.sleep(60)"])
print(os.getpid(), child.pid, flush=True)
time.sleep(60)
"""


def guarded(script: str, patience: float = 0.2) -> subprocess.Popen[str]:
    patient = f"import runpy, sys; g = runpy.run_path({guard.__file__!r}); main = g['main']; "
    patient += f"main.__globals__['PATIENCE'] = {patience}; sys.exit(main(sys.argv[1:]))"
    asked = [sys.executable, "-c", patient, sys.executable, "-c", script]
    return subprocess.Popen(asked, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def pids(process: subprocess.Popen[str]) -> list[int]:
    assert process.stdout is not None
    return list(map(int, process.stdout.readline().split()))


def gone(pid: int) -> bool:
    """Within a time that is long for any machine; a zombie that nobody waits for is gone too."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.01)
    return False


def close(process: subprocess.Popen[str]) -> None:
    for stream in (process.stdin, process.stdout):
        assert stream is not None
        stream.close()
    process.kill()
    process.wait()


@pytest.mark.parametrize("on_term", ["SIG_DFL", "SIG_IGN"])
@pytest.mark.parametrize("how", ["its starter closes", "its starter is gone", "it is asked to end"])
def test_all_of_the_group_ends(on_term: str, how: str) -> None:
    process = guarded(FAMILY.format(on_term=on_term))
    family = pids(process)
    assert process.stdin is not None
    try:
        if how == "it is asked to end":
            process.send_signal(signal.SIGTERM)
        else:
            process.stdin.close()
        assert [gone(pid) for pid in family] == [True, True]
        assert process.wait(20) == 128 + (signal.SIGTERM if on_term == "SIG_DFL" else signal.SIGKILL)
    finally:
        close(process)


def test_a_command_that_ends_by_itself_ends_its_guard_with_its_code_and_leaves_nothing() -> None:
    process = guarded(FAMILY.format(on_term="SIG_DFL").replace("time.sleep(60)\n", "sys.exit(7)\n"))
    try:
        _, child = pids(process)
        assert process.wait(20) == 7
        assert gone(child)
    finally:
        close(process)


def test_ctrl_c_in_the_terminal_does_not_reach_the_group() -> None:
    process = guarded("import time; print(1, flush=True); time.sleep(0.3); print('whole', flush=True)")
    try:
        pids(process)
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        assert process.stdout.read() == "whole\n"
        assert process.wait(20) == 0
    finally:
        close(process)


def test_the_guard_runs_on_the_standard_library_alone() -> None:
    source = Path(guard.__file__).read_text()
    assert "import loadgen" not in source
    assert "from loadgen" not in source
