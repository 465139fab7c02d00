"""The embedded server, started for a run in a process of its own: the client's core is not the server's."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from loadgen.scenario import SimulatorTarget
from loadgen.target.endpoint import TargetError
from loadgen.target.flags import flags

_START_TIMEOUT = 30.0
_STOP_TIMEOUT = 5.0


def arguments(target: SimulatorTarget) -> dict[str, Any]:
    """The simulator's arguments for this target, in SGLang's names. Each decode step has its line in the log, unless
    the scenario says otherwise."""
    return {"decode_log_interval": 1, **target.server.model_dump(exclude_none=True)}


def command_line(target: SimulatorTarget) -> list[str]:
    """The same for its server, with the coefficients of the step-time model."""
    coefficients = [f"{key}={value!r}" for key, value in target.step_time.model_dump(exclude_none=True).items()]
    return [*flags(arguments(target)), *(["--step-time", *coefficients] if coefficients else [])]


@asynccontextmanager
async def launch(target: SimulatorTarget, log: Path) -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    """The URL of a simulator that lives as long as this context, and its process; raises TargetError.

    It sits in a session of its own, so that Ctrl-C reaches only us, and ends when our end of its standard input
    closes, so that it cannot outlive a killed run.
    """
    try:
        with log.open("wb") as stderr:
            process = await asyncio.create_subprocess_exec(
                *(
                    sys.executable,
                    "-m",
                    "loadgen.simulator",
                    "--port",
                    "0",
                    "--enable-cache-report",
                    "--exit-with-parent",
                    *command_line(target),
                ),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
            )
    except OSError as error:
        raise TargetError(f"the simulator could not be started: {error.strerror or error}") from error
    try:
        assert process.stdout is not None
        try:
            async with asyncio.timeout(_START_TIMEOUT):
                line = (await process.stdout.readline()).decode()
        except TimeoutError:
            raise TargetError(f"the simulator was not ready within {_START_TIMEOUT:g} s; its log is {log}") from None
        if not line.startswith("ready "):
            words = log.read_text(errors="replace").strip().splitlines()[-5:]
            raise TargetError("the simulator did not start: " + " / ".join(words))
        yield line.split()[1], process
    finally:
        await _stop(process)


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
        try:
            async with asyncio.timeout(_STOP_TIMEOUT):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        except BaseException:  # interrupted once more: no time for patience
            process.kill()
            raise
