"""What the tests with the real SGLang share: one server and one Engine for all of them, on a CPU with a tiny model.

What these tests assert is structure, tokens and counts, never speed: a busy machine cannot fail them.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadgen.record import Record
from loadgen.run import measure
from loadgen.scenario import Scenario, SglangTarget
from loadgen.schedule import at_once, plan
from loadgen.target import Endpoint, reach
from loadgen.target.sglang import environment, interpreter

# A pool of 1,024 tokens and little caution, so that a retraction can be had; chunks of 256 tokens.
SERVER = {
    "max_total_tokens": 1024,
    "max_running_requests": 16,
    "chunked_prefill_size": 256,
    "schedule_conservativeness": 0.05,
}
PATIENT = {"start_timeout": 600}


def scenario(**tables: Any) -> Scenario:
    """A scenario for the server of these tests; what is given is laid over it, table by table; one with a kind
    replaces the whole table."""
    whole: dict[str, dict[str, Any]] = {
        "target": {"kind": "sglang", "server": SERVER, **PATIENT},
        "workload": {"kind": "random", "num_prompts": 24, "input_len": 40, "output_len": 12},
        "arrivals": {"kind": "poisson", "rate": 40},
        "measure": {"warmup": 2, "quantiles": ["p50"], "poll_interval": 0.2},
    }
    for name, table in tables.items():
        whole[name] = table if "kind" in table else {**whole.get(name, {}), **table}
    return Scenario.model_validate(whole)


class Server:
    """The server, and the loop on which it is driven."""

    def __init__(self, runner: asyncio.Runner, endpoint: Endpoint, folder: Path) -> None:
        self.runner, self.endpoint, self.folder = runner, endpoint, folder

    def drive(self, name: str, asked: Scenario, *, together: bool = False) -> Record:
        """The record of a run over HTTP; `together` sends all at once."""
        schedule = plan(asked, 1)
        if together:
            asked, schedule = at_once(asked, schedule)
        folder = self.folder / name
        folder.mkdir()
        return self.runner.run(measure(self.endpoint, asked, schedule, name, 1, folder))


def loadgen(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    asked = [sys.executable, "-m", "loadgen", *map(str, arguments)]
    return subprocess.run(asked, capture_output=True, text=True, timeout=600, check=False, env=dict(os.environ))


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("served")
    target = scenario().target
    assert isinstance(target, SglangTarget)
    with asyncio.Runner() as runner:
        living = reach(target, "serving", folder / "server.log")
        endpoint = runner.run(living.__aenter__())
        assert isinstance(endpoint, Endpoint)
        yield Server(runner, endpoint, folder)
        runner.run(living.__aexit__(None, None, None))


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> tuple[Record, list[list[int]]]:
    """The one-shot record of the one Engine, and the ids that it answers `scenario`'s first prompts with."""
    folder = tmp_path_factory.mktemp("engine")
    script = str(Path(__file__).parent / "in_process.py")
    asked = [interpreter(), script, str(folder), scenario().model_dump_json()]
    ended = subprocess.run(asked, env=environment(), capture_output=True, text=True, timeout=600, check=False)
    assert ended.returncode == 0, ended.stderr[-4000:]
    return Record.read(folder / "oneshot"), json.loads((folder / "ids.json").read_text())
