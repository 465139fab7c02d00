"""Runs a command in a process group of its own, and ends all of the group when standard input closes.

What a run starts cannot outlive it, however it ends: the other end of our standard input closes with it, also where it
was killed. Ctrl-C in a terminal does not reach the group. Run as a script, on the standard library alone:

    python guard.py COMMAND ARGUMENT …        ends with the command's own code
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

PATIENCE = 10.0  # seconds that the group has to end by itself before it is killed


def main(command: list[str]) -> int:
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)  # noqa: S603 - our caller's

    def end(*_: int | FrameType | None) -> None:
        threading.Thread(target=_end, args=(child,), daemon=True).start()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_at_end_of_stdin, args=(end,), daemon=True).start()
    code = child.wait()
    _kill(child)  # what the command left behind
    return code if code >= 0 else 128 - code


def _at_end_of_stdin(end: Callable[[], None]) -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    end()


def _end(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGTERM)
    time.sleep(PATIENCE)
    _kill(child)


def _kill(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
