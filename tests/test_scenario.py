"""Scenario files: what is accepted, and how every fault is told."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from loadgen.arrivals import Burst
from loadgen.scenario import Scenario, ScenarioError, every, find, load, question
from loadgen.scenario.target import StepTime
from loadgen.target.simulator import command_line
from loadgen.workload import Constant, Lognormal, RandomTokens

GOOD = """
[workload]
num_prompts = 10
input_len = 8
output_len = { kind = "lognormal", mean = 20, cv = 0.5 }
[arrivals]
kind = "burst"
size = 4
period = 2.0
spread = 0.5
"""

BAD = """\
[target]
kind = "simulator"
[workload]
kind = "random"
num_prompts = 0
input_len = { kind = "uniform", low = 9, high = 3 }
output_len = "many"
colour = 3
[arrivals]
kind = "burst"
size = 16
period = 1.0
spread = 2
[limits]
max_concurrency = 64.5
timeout_total = "30s"
max_concurency = 3
[measure]
warmup = -1
[slo]
ttft_p98 = 1.0
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "s.toml"
    path.write_text(text)
    return path


def faults(tmp_path: Path, text: str, *overrides: str, target: str | None = None) -> list[str]:
    with pytest.raises(ScenarioError) as caught:
        load(written(tmp_path, text), overrides, target)
    return [fault.removeprefix(f"{tmp_path}/") for fault in caught.value.faults]


def test_a_good_file_becomes_a_process_and_a_workload(tmp_path: Path) -> None:
    scenario = load(written(tmp_path, GOOD))
    (one,) = scenario.classes
    assert one.process() == Burst(4, 2.0, 0.5)
    assert one.workload.prompts() == RandomTokens(Constant(8), Lognormal(20, 0.5, 32768), 4096)
    assert scenario.target.kind == "simulator"


def test_all_faults_of_a_file_are_told_at_once_with_line_key_and_expectation(tmp_path: Path) -> None:
    assert faults(tmp_path, BAD) == [
        "s.toml:5: workload.num_prompts: must be at least 1, got 0",
        "s.toml:6: workload.input_len.high: must not be below low = 9, got 3",
        "s.toml:7: workload.output_len: expected a whole number, got 'many'",
        "s.toml:8: workload.colour: unknown key",
        "s.toml:13: arrivals.spread: a train must end before the next begins: shorter than period = 1 s, got 2",
        "s.toml:15: limits.max_concurrency: expected a whole number, got 64.5",
        "s.toml:16: limits.timeout_total: expected a number of seconds without its unit, such as 2.5, got '30s'",
        "s.toml:17: limits.max_concurency: unknown key, did you mean max_concurrency?",
        "s.toml:19: measure.warmup: must be at least 0, got -1",
        "s.toml:21: slo.ttft_p98: expected a metric (ttft, ttft_service, tpot, itl, e2e, lateness) and a statistic "
        "(mean, p50, p90, p95, p99, p999, max), such as ttft_p99, got 'ttft_p98'",
    ]


@pytest.mark.parametrize(
    ("override", "fault"),
    [
        ("arrivals.rate=0", "--set arrivals.rate=0: must be at least 1e-06, got 0"),
        ("arrivals.rate=inf", "--set arrivals.rate=inf: expected a finite number, got inf"),
        ("arrivals.rate=fast", "--set arrivals.rate=fast: expected a number of requests per second without its unit, "
                               "such as 2.5, got 'fast'"),
        ("workload.num_prompts=true", "--set workload.num_prompts=true: expected a whole number, got True"),
        ("arrivals.rate=1e300", "--set arrivals.rate=1e300: must be at most 1000000, got 1e+300"),
        ("rate=3", "--set rate=3: expected table.key=value, such as arrivals.rate=8"),
        ("arrivals.rate", "--set arrivals.rate: expected table.key=value, such as arrivals.rate=8"),
        ("arrivals.rate.x=1", "--set arrivals.rate.x=1: rate is not a table"),
        ("arrivals.rate=8\nx=3", "--set arrivals.rate=8\nx=3: expected table.key=value, such as arrivals.rate=8"),
        ("arrivals..rate=3", "--set arrivals..rate=3: expected table.key=value, such as arrivals.rate=8"),
        ("arrivals.kind=poissn", "--set arrivals.kind=poissn: kind must be one of 'fixed', 'poisson', 'gamma', "
         "'weibull', 'burst', 'mmpp', 'ramp', 'step', 'spike', 'diurnal', 'piecewise', 'oneshot', 'replay', 'clients', "
         "'closed', 'sessions', got 'poissn', did you mean poisson?"),
        ("sampling.temperature=inf", "--set sampling.temperature=inf: expected a finite number, got inf"),
        ("measure.quantiles=[]", "--set measure.quantiles=[]: must not be empty, got []"),
        ("target.step_time={decode=1}", "--set target.step_time={decode=1}: target.step_time.decode: unknown key, did "
                                       "you mean decode_base?"),
        ("target.step_time.graph_miss=nan", "--set target.step_time.graph_miss=nan: expected a finite number, got nan"),
        ("target={kind='url', url='http://h:99999'}", "--set target={kind='url', url='http://h:99999'}: expected a "
                                                      "port from 1 to 65535, got 'http://h:99999'"),
        ("limits.overflow=wait", "--set limits.overflow=wait: expected 'queue' or 'drop', got 'wait'"),
    ],
)  # fmt: skip
def test_an_override_that_is_wrong_is_told_as_it_was_written(tmp_path: Path, override: str, fault: str) -> None:
    text = '[workload]\nnum_prompts = 1\ninput_len = 1\noutput_len = 1\n[arrivals]\nkind = "poisson"\nrate = 2.0\n'
    assert faults(tmp_path, text, override) == [fault]


def test_overrides_are_laid_over_the_file_and_bare_words_are_text(tmp_path: Path) -> None:
    scenario = load(
        written(tmp_path, GOOD),
        ["arrivals.size=7", "limits.overflow=drop", "workload.input_len={kind='uniform', low=1, high=2}"],
    )
    assert load(written(tmp_path, GOOD), ["arrivals={kind='oneshot'}"]).classes[0].arrivals.kind == "oneshot"
    (one,) = scenario.classes
    assert (one.arrivals.model_dump()["size"], scenario.limits.overflow) == (7, "drop")
    assert one.workload.model_dump()["input_len"]["kind"] == "uniform"


def test_a_target_on_the_command_line_replaces_the_files(tmp_path: Path) -> None:
    text = GOOD + '[target]\nkind = "simulator"\napi = "chat"\nserver = { max_running_requests = 4 }\n'
    scenario = load(written(tmp_path, text), target="http://127.0.0.1:30000")
    assert scenario.target.model_dump(exclude_none=True) == {
        "kind": "url", "url": "http://127.0.0.1:30000", "api": "chat"
    }  # fmt: skip
    assert load(written(tmp_path, text), target="simulator").target.server.max_running_requests == 4  # type: ignore[union-attr]
    assert faults(tmp_path, text, target="moon") == [
        "--target moon: expected simulator, sglang, or a URL such as http://127.0.0.1:30000"
    ]


def test_sglang_takes_over_the_arguments_that_the_simulator_has_by_its_names(tmp_path: Path) -> None:
    text = GOOD + "[target]\nserver = { max_running_requests = 4 }\nstep_time = { decode_base = 0.1 }\n"
    scenario = load(written(tmp_path, text), ["target.server.mem_fraction_static=0.5"], target="sglang")
    assert scenario.target.model_dump(exclude_none=True) == {
        "kind": "sglang",
        "api": "generate",
        "server": {"max_running_requests": 4, "mem_fraction_static": 0.5},
        "start_timeout": 900.0,
    }


def test_arguments_of_sglang_that_are_ours_to_give_are_refused(tmp_path: Path) -> None:
    text = GOOD + '[target]\nkind = "sglang"\nserver = { port = 3, model_path = "m", Bad = 1 }\n'
    assert faults(tmp_path, text) == [
        "s.toml:13: target.server.Bad: expected an argument's name in small letters, such as max_running_requests, "
        "got 'Bad'",
    ]
    text = text.replace(", Bad = 1", "")
    assert faults(tmp_path, text) == [
        "s.toml:13: target.server: model_path: say target.model; port: a free port is taken",
    ]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[workload\n", "s.toml: cannot be read: "),
        ("", "s.toml: workload: required key is missing"),
        ("[[workload]]\n[arrivals]\nkind = 'oneshot'", "s.toml: workload: expected a table, got [{}]"),
        ("workload = 3\n[arrivals]\nkind = 'oneshot'", "s.toml:1: workload: expected a table, got 3"),
        (GOOD.replace('kind = "burst"', ""), "s.toml:6: arrivals: the table needs a kind"),
        (GOOD.replace('"burst"', '"storm"'), "s.toml:6: arrivals: kind must be one of 'fixed', 'poisson', 'gamma'"),
    ],
)
def test_files_that_are_no_scenarios_say_so(tmp_path: Path, text: str, fault: str) -> None:
    assert faults(tmp_path, text)[0].startswith(fault)


def test_digits_and_brackets_without_end_are_faults_and_a_byte_order_mark_is_none(tmp_path: Path) -> None:
    for text in ("9" * 6000, "[" * 5000):
        assert faults(tmp_path, f"x = {text}")[0].startswith("s.toml: cannot be read: ")
        (fault,) = faults(tmp_path, GOOD, f"arrivals.period={text}")
        assert f"expected a number of seconds without its unit, such as 2.5, got '{text}" in fault
    load(written(tmp_path, "\ufeff" + GOOD))


def test_a_file_that_is_not_there_or_a_folder_is_told(tmp_path: Path) -> None:
    for path, why in [(tmp_path / "no.toml", "No such file"), (tmp_path, "Is a directory")]:
        with pytest.raises(ScenarioError, match=f"cannot be read: {why}"):
            load(path)
    with pytest.raises(ScenarioError, match="no scenario named 'bursts': give one of blocks, burst"):
        find("bursts")


@pytest.mark.parametrize("name", sorted(every()))
def test_every_scenario_that_ships_is_right_and_opens_with_its_question(name: str) -> None:
    load(find(name))
    assert "?" in question(find(name))


def test_the_four_first_scenarios_ship() -> None:
    assert {"burst", "poisson", "fixed", "oneshot"} <= set(every())


def test_the_schema_that_ships_is_that_of_the_models() -> None:
    shipped = json.loads((find("burst").parent / "scenario.schema.json").read_text())
    assert shipped == Scenario.model_json_schema(), "run `make schema`"


def test_the_simulator_understands_every_argument_that_a_scenario_may_give(tmp_path: Path) -> None:
    server = "max_running_requests = 3\nmax_total_tokens = 99\nchunked_prefill_size = -1\nmax_prefill_tokens = 5\n"
    server += "context_length = 77\ndecode_log_interval = 2\nstream_interval = 4\ndisable_radix_cache = true\n"
    times = ", ".join(f"{name} = {3 if name == 'graph_max_batch' else 0}" for name in StepTime.model_fields)
    text = GOOD + f"[target]\nkind = 'simulator'\nstep_time = {{ {times} }}\n[target.server]\n{server}"
    target = load(written(tmp_path, text)).target
    assert target.kind == "simulator"
    assert set(target.step_time.model_dump()) == set(target.step_time.model_dump(exclude_none=True)), "give them all"
    assert set(target.server.model_dump()) == set(target.server.model_dump(exclude_none=True)), "give every argument"
    asked = [sys.executable, "-m", "loadgen.simulator", *command_line(target), "--port", "0", "--exit-with-parent"]
    ended = subprocess.run(asked, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout[:6]) == (0, "ready "), ended.stderr
