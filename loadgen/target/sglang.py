"""The released SGLang: where it is installed, which arguments it gets, and its server as long as a run needs it.

Two variables of the environment say where it is:

    SGLANG_PYTHON   the interpreter that has it; by default this one
    SGLANG_MODEL    folder of the model, where the scenario says none

LOADGEN_SGLANG_STANDINS=1 asks for the stand-ins that let it run on a CPU without AMX (see loadgen.sglang.cpu).
"""

import asyncio
import importlib.util
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

import loadgen
from loadgen.scenario import SglangTarget
from loadgen.sglang import cpu
from loadgen.target import guard
from loadgen.target.endpoint import TargetError, last_words
from loadgen.target.flags import flags

Tell = Callable[[str], None]

# What a run asks of SGLang unless the scenario says otherwise: to tell what it does. One line a decode step makes the
# log a full account of the batches; the buckets are fine enough to hold our own TTFT against (SGLang's begin at 0.1 s).
TELLS: dict[str, Any] = {
    "enable_metrics": True,
    "enable_cache_report": True,
    "decode_log_interval": 1,
    "log_level": "info",
    "bucket_time_to_first_token": [
        *(0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0, 1.5, 2.0, 3.0, 4.0),
        *(6.0, 8.0, 10.0, 15.0, 20.0, 30.0, 40.0, 60.0, 80.0, 100.0, 200.0, 400.0),
    ],
}
_POLL = 0.5  # seconds between looks at the health of a server that starts
_TELL = 10.0  # seconds between words to the user while it does


def stand_ins() -> bool:
    """Whether the stand-ins for a CPU without AMX were asked for."""
    return os.environ.get("LOADGEN_SGLANG_STANDINS") == "1"


def tell_of_stand_ins(tell: Tell) -> None:
    """Say so where they are in use."""
    if stand_ins():
        tell("SGLang runs with loadgen's stand-ins for a CPU: what it does is real, how fast is no statement on it")


def arguments(target: SglangTarget) -> dict[str, Any]:
    """SGLang's arguments for this target, for its server and its Engine alike. Raises TargetError without a model."""
    model = target.model or os.environ.get("SGLANG_MODEL")
    if not model:
        raise TargetError("no model: say target.model, or SGLANG_MODEL=folder; make setup-sglang makes a tiny one")
    return {"model_path": model, **TELLS, **(cpu.ARGUMENTS if stand_ins() else {}), **target.server}


def interpreter() -> str:
    """The Python that has SGLang; raises TargetError where there is none."""
    if given := os.environ.get("SGLANG_PYTHON"):
        if not (Path(given).is_file() and os.access(given, os.X_OK)):
            raise TargetError(f"SGLANG_PYTHON={given}: there is no such program")
        return given
    if importlib.util.find_spec("sglang") is None:
        raise TargetError(
            "SGLang is not installed for this Python: say which has it with SGLANG_PYTHON=…, or use make, which sets "
            "one up (make setup-sglang)"
        )
    return sys.executable


def environment() -> dict[str, str]:
    """The environment of a process that runs SGLang: ours, and what makes its log tell milliseconds."""
    own = str(Path(loadgen.__file__).parents[1])
    folders = [*([str(cpu.FOLDER)] if stand_ins() else []), own, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        **(cpu.ENVIRONMENT if stand_ins() else {}),
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(folders)),
        "SGLANG_LOG_MS": "1",
    }


@asynccontextmanager
async def launch(target: SglangTarget, log: Path, tell: Tell) -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    """The URL of an SGLang server that lives as long as this context, and the process that guards it.

    Raises TargetError with the last lines of its log where it does not become healthy. The whole of it ends with this
    context or with this process, whichever ends first.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    given = {**arguments(target), "host": "127.0.0.1", "port": port}
    command = [interpreter(), "-m", "sglang.launch_server", *flags(given)]
    with log.open("ab") as output:
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                guard.__file__,
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=environment(),
                start_new_session=True,
            )
        except OSError as error:
            raise TargetError(f"SGLang could not be started: {error.strerror or error}") from error
    try:
        url = f"http://127.0.0.1:{port}"
        tell_of_stand_ins(tell)
        await _until_healthy(url, process, log, target.start_timeout, tell)
        yield url, process
    finally:
        await _stop(process)


async def _until_healthy(url: str, process: asyncio.subprocess.Process, log: Path, limit: float, tell: Tell) -> None:
    loop = asyncio.get_running_loop()
    begun = told = loop.time()
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(_POLL * 10)) as session:
        while True:
            if process.returncode is not None:
                raise TargetError(f"SGLang ended with code {process.returncode} before it was ready: {last_words(log)}")
            try:
                async with session.get(f"{url}/health") as answer:
                    if answer.status == 200:
                        return
            except (aiohttp.ClientError, TimeoutError, OSError):
                pass  # not yet
            now = loop.time()
            if now - begun > limit:
                raise TargetError(
                    f"SGLang was not healthy within {limit:g} s (target.start_timeout): {last_words(log)}"
                )
            if now - told >= _TELL:
                told = now
                tell(f"SGLang starts: {now - begun:.0f} s, of at most {limit:g} s; its log is {log}")
            await asyncio.sleep(_POLL)


async def _stop(process: asyncio.subprocess.Process) -> None:
    """Close the guard's standard input and wait: it ends the group, patiently and then not."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        async with asyncio.timeout(2 * guard.PATIENCE):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
