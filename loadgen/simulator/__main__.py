"""Serves the simulator on 127.0.0.1, in SGLang's own argument names. Prints `ready URL` when it is."""

import argparse
import asyncio
import contextlib
import dataclasses
import logging
import math
import os
import signal
import sys
import threading
from collections.abc import Callable

from aiohttp import web

from loadgen.simulator.engine import Engine
from loadgen.simulator.scheduler import Limits, Scheduler
from loadgen.simulator.server import Server
from loadgen.simulator.settings import LINE, STAMP, Settings, startup
from loadgen.simulator.status import Status
from loadgen.simulator.steptime import StepTime


def main(argv: list[str] | None = None) -> int:
    """Serve until SIGTERM, SIGINT or, with --exit-with-parent, the end of standard input."""
    arguments = _parser().parse_args(argv)
    given = vars(arguments)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format=LINE, datefmt=STAMP)
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    limits = Limits(**{field.name: given[field.name] for field in dataclasses.fields(Limits)})
    settings = Settings(**{field.name: given[field.name] for field in dataclasses.fields(Settings)})
    engine_parts = (limits, settings, StepTime(**dict(arguments.step_time)))
    try:
        asyncio.run(_serve(arguments.host, arguments.port, *engine_parts, parent=arguments.exit_with_parent))
    except OSError as error:
        print(f"{arguments.host}:{arguments.port}: {error.strerror}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="loadgen serve", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1", type=_this_machine, help="127.0.0.1 and no other")
    parser.add_argument("--port", default=30000, type=_port, help="0 picks a free one")
    for field in (*dataclasses.fields(Limits), *dataclasses.fields(Settings)):
        flag = "--" + field.name.replace("_", "-")
        if field.type is bool:
            parser.add_argument(flag, action="store_true")
        else:
            kind = _KINDS.get(field.name, _count)
            parser.add_argument(flag, default=field.default, type=kind, help=f"default {field.default}")
    parser.add_argument("--schedule-policy", default="fcfs", choices=["fcfs"])
    parser.add_argument(
        "--step-time",
        nargs="+",
        action="extend",
        default=[],
        type=_coefficient,
        metavar="KEY=SECONDS",
        help="step-time coefficients",
    )
    parser.add_argument("--exit-with-parent", action="store_true", help="end at the end of standard input")
    return parser


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of 1 or more, got {text!r}")
    return int(text)


def _port(text: str) -> int:
    if not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"expected a port from 0 to 65535, got {text!r}")
    return int(text)


def _chunk(text: str) -> int:
    return -1 if text == "-1" else _count(text)


def _this_machine(host: str) -> str:
    if host != "127.0.0.1":
        raise argparse.ArgumentTypeError(f"the simulator serves this machine only, expected 127.0.0.1, got {host!r}")
    return host


_KINDS: dict[str, Callable[[str], str | int]] = {
    "served_model_name": str,
    "chunked_prefill_size": _chunk,
    "random_seed": int,
}


def _coefficient(text: str) -> tuple[str, float]:
    known = dataclasses.asdict(StepTime())
    key, _, value = text.partition("=")
    if key not in known:
        raise argparse.ArgumentTypeError(f"unknown step-time coefficient {key!r}, expected one of {', '.join(known)}")
    try:
        number = type(known[key])(value)
    except ValueError:
        number = -1
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"{key}: expected a number of 0 or more, got {value!r}")
    return key, number


async def _serve(
    host: str, port: int, limits: Limits, settings: Settings, step_time: StepTime, *, parent: bool
) -> None:
    engine = Engine(Scheduler(limits, step_time), settings.decode_log_interval)
    app = Server(engine, Status(engine, settings)).app()
    runner = web.AppRunner(
        app,
        access_log=None,
        handler_cancellation=True,
        keepalive_timeout=600,
        shutdown_timeout=0.01,  # seconds; 0 would wait for the streams to end
    )
    await runner.setup()
    site = web.TCPSite(runner, host, port, backlog=4096)
    await site.start()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if parent:
        threading.Thread(target=_at_end_of_stdin, args=(loop, stop), daemon=True).start()
    logging.getLogger(__name__).info(startup(limits, settings))
    address = runner.addresses[0]
    print(f"ready http://{address[0]}:{address[1]}", flush=True)
    steps, stopped = asyncio.create_task(engine.run()), asyncio.create_task(stop.wait())
    await asyncio.wait([steps, stopped], return_when=asyncio.FIRST_COMPLETED)
    await runner.cleanup()
    if steps.done():
        steps.result()  # it ends by a bug only, which is raised here
    steps.cancel()


def _at_end_of_stdin(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    """A thread, since an event loop cannot watch every kind of standard input."""
    while os.read(sys.stdin.fileno(), 4096):
        pass
    with contextlib.suppress(RuntimeError):  # the loop has ended already
        loop.call_soon_threadsafe(stop.set)


if __name__ == "__main__":
    sys.exit(main())
