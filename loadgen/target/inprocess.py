"""An engine, or a bare model runner, in this very process: no HTTP, and for the runner no scheduler either.

SGLang's and the simulator's have one interface each and are taken by name, so that neither is needed to import this:

    oneshot    sglang.Engine                  loadgen.simulator.offline.Engine
    static     loadgen.sglang.batch.Runner    loadgen.simulator.batch.Runner
"""

import asyncio
import contextlib
import importlib
import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import psutil

from loadgen.scenario import SglangTarget, SimulatorTarget
from loadgen.target import sglang, simulator
from loadgen.target.endpoint import TargetError, identity_of, last_words
from loadgen.target.sglang import Tell

_ENTERED = "LOADGEN_IN_SGLANG"
_PROBE = "import importlib.util, loadgen.run; assert importlib.util.find_spec('sglang'), 'sglang is not installed'"
_BODIES = {
    ("sglang", "oneshot"): ("sglang", "Engine"),
    ("sglang", "static"): ("loadgen.sglang.batch", "Runner"),
    ("simulator", "oneshot"): ("loadgen.simulator.offline", "Engine"),
    ("simulator", "static"): ("loadgen.simulator.batch", "Runner"),
}


@dataclass
class InProcess:
    """What was built in this process: `body` is an engine or a runner, `server` what it said of itself."""

    body: Any
    kind: Literal["simulator", "sglang"]
    server: dict[str, Any]
    log: Path
    _gone: "asyncio.Future[str]"
    pids: list[int] = field(default_factory=lambda: [os.getpid()])

    @property
    def stand_ins(self) -> bool:
        return self.kind == "sglang" and sglang.stand_ins()

    def identity(self) -> dict[str, Any]:
        """For the record: who was driven."""
        simulated = self.kind == "simulator"
        model = str(self.server.get("served_model_name") or self.server.get("model_path"))
        return {
            "url": None,
            "model": model,
            "simulated": simulated,
            "stand_ins": self.stand_ins,
            "server": self.server,
        }

    async def flush_cache(self) -> bool:
        """Empty the prefix cache; a bare runner has none, and is empty before each batch."""
        if not hasattr(self.body, "flush_cache"):
            return True
        flushed = await asyncio.to_thread(self.body.flush_cache)
        return bool(getattr(flushed, "success", True))

    async def loads(self) -> None:
        """An engine has no /v1/loads."""

    async def exposition(self) -> None:
        """An engine has no /metrics."""

    async def gone(self) -> str:
        """Return when a process of it has died, with why."""
        return await asyncio.shield(self._gone)


def enter(target: SglangTarget) -> None:
    """Go on in SGLang's interpreter and environment, where this process is not in it yet; raises TargetError.

    What it needs of the environment must be there before the interpreter starts.
    """
    python = sglang.interpreter()
    if os.environ.get(_ENTERED) == "1":
        return
    sglang.arguments(target)  # tells of a missing model while that can be told quickly
    environment = sglang.environment()
    probe = subprocess.run([python, "-c", _PROBE], env=environment, capture_output=True, text=True, check=False)  # noqa: S603
    if probe.returncode:
        why = (probe.stderr.strip().splitlines() or [f"it ended with code {probe.returncode}"])[-1]
        raise TargetError(f"{python} cannot run SGLang and loadgen: {why}; there: pip install 'loadgen[sglang]'")
    sys.stdout.flush()
    os.execve(  # noqa: S606 - the same program, in another environment
        python, [python, "-m", "loadgen", *sys.argv[1:]], {**environment, _ENTERED: "1"}
    )


@asynccontextmanager
async def build(
    target: SimulatorTarget | SglangTarget, mode: Literal["oneshot", "static"], log: Path, tell: Tell
) -> AsyncIterator[InProcess]:
    """The engine (`oneshot`) or the runner (`static`) of a target as long as this context; raises TargetError."""
    module, name = _BODIES[target.kind, mode]
    if isinstance(target, SglangTarget):
        arguments = sglang.arguments(target)
        sglang.tell_of_stand_ins(tell)
        tell(f"SGLang starts in this process; its log is {log}")
    else:
        arguments = {**simulator.arguments(target), "step_time": target.step_time.model_dump(exclude_none=True)}
    gone: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    body = await _made(module, name, arguments, log, gone)
    try:
        built = InProcess(body, target.kind, {}, log, gone)
        built.server = identity_of(await _info(body))
        _take_signals(log, gone)  # again: SGLang has taken them when it was first asked something
        yield built
    finally:
        (body.shutdown if hasattr(body, "shutdown") else body.close)()


async def _made(module: str, name: str, arguments: dict[str, Any], log: Path, gone: "asyncio.Future[str]") -> Any:
    """The body, built in a thread: so the loop hears an interrupt while it is, and SGLang, which sets its handlers of
    signals in a main thread only, does not put one there that would kill this process with it."""
    _take_signals(log, gone)
    with _log_of_children(log):
        try:
            return await asyncio.to_thread(lambda: getattr(importlib.import_module(module), name)(**arguments))
        except asyncio.CancelledError:
            _end_children()
            raise
        except (ImportError, OSError, RuntimeError, ValueError, TypeError, AssertionError) as error:
            _end_children()
            raise TargetError(f"it could not be started in this process: {error}; {last_words(log)}") from error


def _end_children() -> None:
    """What was started of a body that never came to be."""
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            child.kill()


async def _info(body: Any) -> dict[str, Any]:
    """What the body says of itself. SGLang's Engine waits for its answers with its loop's run_until_complete, which a
    running loop refuses: we lend it one that hands the work to ours, and wait in a thread."""
    if hasattr(body, "loop"):
        body.loop = _Lent(asyncio.get_running_loop())
    ask = body.get_server_info if hasattr(body, "get_server_info") else body.info
    return dict(await asyncio.to_thread(ask))


@dataclass(frozen=True)
class _Lent:
    loop: asyncio.AbstractEventLoop

    def run_until_complete(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()


def _take_signals(log: Path, gone: "asyncio.Future[str]") -> None:
    """SIGTERM ends the run as Ctrl-C does; SIGQUIT, which a process of SGLang sends its parent when it has died, says
    so. Its own handlers would end this process at once, its record unwritten."""
    task = asyncio.current_task()
    assert task is not None

    def died() -> None:
        if not gone.done():
            gone.set_result(f"a process of the engine died; {last_words(log)}")

    loop = asyncio.get_running_loop()
    with contextlib.suppress(RuntimeError, ValueError):  # not in the main thread, where a test may run
        loop.add_signal_handler(signal.SIGTERM, task.cancel)
        loop.add_signal_handler(signal.SIGQUIT, died)


@contextlib.contextmanager
def _log_of_children(log: Path) -> Iterator[None]:
    """What the body's processes write to their standard streams goes to a file, and what its modules log here does too.

    Our own streams are ours again afterwards; the children keep what they were born with.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    with log.open("a", buffering=1, encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for own, descriptor in zip(kept, (1, 2), strict=True):
                os.dup2(own, descriptor)
                os.close(own)
    stream = log.open("a", buffering=1, encoding="utf-8")  # lives as long as the loggers, that is, as this process
    for logger in (logging.getLogger(), logging.getLogger("loadgen.simulator")):
        for handler in logger.handlers:
            if isinstance(handler, logging.StreamHandler) and handler.stream in (sys.stderr, sys.stdout):
                handler.setStream(stream)
