"""What can be told of the SGLang target without SGLang: arguments, environment, stand-ins, and the lock file."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from loadgen.scenario import SglangTarget
from loadgen.sglang import cpu
from loadgen.target import TargetError, sglang
from loadgen.target.flags import flags

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SGLANG_PYTHON", "SGLANG_MODEL", "LOADGEN_SGLANG_STANDINS", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)


def target(**tables: object) -> SglangTarget:
    return SglangTarget.model_validate({"kind": "sglang", **tables})


def test_arguments_are_sglangs_flags() -> None:
    given = {"model_path": "/m", "max_running_requests": 8, "enable_metrics": True, "sleep_on_idle": False}
    given |= {"bucket_time_to_first_token": [0.1, 2], "chunked_prefill_size": -1}
    assert flags(given) == [
        *("--model-path=/m", "--max-running-requests=8", "--enable-metrics"),
        *("--bucket-time-to-first-token", "0.1", "2", "--chunked-prefill-size=-1"),
    ]


def test_a_scenarios_arguments_come_before_ours_and_the_stand_ins_only_where_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = target(model="/m", server={"decode_log_interval": 40, "device": "cuda"})
    given = sglang.arguments(asked)
    assert (given["model_path"], given["decode_log_interval"], given["device"]) == ("/m", 40, "cuda")
    assert "dtype" not in given
    assert given["enable_metrics"] is True
    monkeypatch.setenv("LOADGEN_SGLANG_STANDINS", "1")
    given = sglang.arguments(asked)
    assert (given["device"], given["dtype"]) == ("cuda", "float32")


def test_a_model_is_the_scenarios_or_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TargetError, match=r"say target\.model, or SGLANG_MODEL"):
        sglang.arguments(target())
    monkeypatch.setenv("SGLANG_MODEL", "/own")
    assert sglang.arguments(target())["model_path"] == "/own"
    assert sglang.arguments(target(model="/m"))["model_path"] == "/m"


def test_an_interpreter_without_sglang_is_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"make setup-sglang"):
        sglang.interpreter()
    monkeypatch.setenv("SGLANG_PYTHON", str(tmp_path / "none"))
    with pytest.raises(TargetError, match="there is no such program"):
        sglang.interpreter()
    monkeypatch.setenv("SGLANG_PYTHON", sys.executable)
    assert sglang.interpreter() == sys.executable


def test_the_environment_finds_loadgen_and_tells_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/own")
    plain = sglang.environment()
    assert plain["PYTHONPATH"].split(":") == [str(ROOT), "/own"]
    assert plain["SGLANG_LOG_MS"] == "1"
    assert "SGLANG_USE_CPU_ENGINE" not in plain
    monkeypatch.setenv("LOADGEN_SGLANG_STANDINS", "1")
    standing_in = sglang.environment()
    assert standing_in["PYTHONPATH"].split(":")[0] == str(cpu.FOLDER)
    assert standing_in["OMP_NUM_THREADS"] == "1"


def test_each_stand_in_says_what_it_is_and_computes_nothing() -> None:
    script = (
        "import sgl_kernel\n"
        "for name in sgl_kernel._NAMES:\n"
        "    try: getattr(sgl_kernel, name)(1, x=2)\n"
        "    except NotImplementedError as error: print(error)\n"
    )
    asked = [sys.executable, "-c", script]
    ended = subprocess.run(
        asked, env={"PYTHONPATH": str(cpu.FOLDER)}, capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stderr.startswith("loadgen's stand-in of sgl_kernel is in use")
    refused = ended.stdout.splitlines()
    assert len(refused) == 8
    assert all("is a stand-in of loadgen's and computes nothing" in line for line in refused)


def test_the_environment_of_sglang_has_all_that_loadgen_needs_of_it() -> None:
    """The lock is installed without looking at dependencies: a requirement that it lacks would be missing."""
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "requirements-sglang.lock").read_text(), re.MULTILINE))
    assert (pinned["sglang"], pinned["torch"]) == ("0.5.23", "2.13.0")
    names = {name.lower().replace("_", "-") for name in pinned}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {re.split(r"[<>=; ]", one)[0].lower() for one in project["dependencies"]}
    assert needed - names == set()
    lines = [line for line in (ROOT / "requirements-sglang.lock").read_text().splitlines() if line[:1] not in ("", "#")]
    assert len(lines) == len(pinned), "a line that is no pin"


def test_a_server_that_cannot_start_is_told_with_the_last_lines_of_its_log(tmp_path: Path) -> None:
    """A Python that has no SGLang stands in for one whose server dies."""
    (tmp_path / "s.toml").write_text(
        '# s: dies\n[target]\nkind = "sglang"\nmodel = "/none"\n[workload]\nnum_prompts = 1\ninput_len = 1\n'
        'output_len = 1\n[arrivals]\nkind = "oneshot"\n'
    )
    asked = [sys.executable, "-m", "loadgen", "run", str(tmp_path / "s.toml"), "--out", str(tmp_path / "record")]
    ended = subprocess.run(
        asked,
        env={"SGLANG_PYTHON": sys.executable, "PATH": "/usr/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 4
    assert "SGLang ended with code 1 before it was ready: its log ends with" in ended.stderr
    assert "No module named" in ended.stderr
    assert "Traceback (most recent call last)" not in ended.stderr.partition("its log ends with")[0]
