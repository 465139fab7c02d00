"""A simulator in a process of its own, for tests that need a server."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

FAST = ("--step-time", "prefill_base=0.001", "prefill_per_token=0", "decode_base=0.001", "decode_per_sequence=0")


@contextlib.contextmanager
def simulator(*arguments: str, log: Path | None = None) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The URL and the process of a simulator on a free port. Its log is dropped, or goes to a file; a pipe that nobody
    reads would fill up, and the server would stand still."""
    stderr = log.open("w") if log else None
    process = subprocess.Popen(
        [sys.executable, "-m", "loadgen.simulator", "--port", "0", "--exit-with-parent", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr or subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().split()[-1], process
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, stderr):
            if stream:
                stream.close()
