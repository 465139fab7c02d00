"""The ladder: its rungs, their order, a whole climb over the simulator, and when it is refused."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ladder import ladder as records_of
from ladder import record

from loadgen.pair import Rung, compare, ladder, order, rung_of
from loadgen.record import Record
from loadgen.report.pair import pair_report
from loadgen.report.terminal import console
from loadgen.scenario import load

QUICK = """\
# quick: a ladder that takes no time
[target]
step_time = { prefill_base = 0.002, prefill_per_token = 0, decode_base = 0.002, decode_per_sequence = 0 }
[target.server]
max_running_requests = 8
[workload]
num_prompts = 60
input_len = 30
output_len = 6
[arrivals]
kind = "poisson"
rate = 100
[limits]
max_concurrency = 6
[measure]
quantiles = ["p50", "p95"]
[slo]
ttft_p50 = 0.000001
"""


@pytest.fixture
def quick(tmp_path: Path) -> Path:
    path = tmp_path / "quick.toml"
    path.write_text(QUICK)
    return path


def loadgen(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    asked = [sys.executable, "-m", "loadgen", *map(str, arguments)]
    return subprocess.run(asked, capture_output=True, text=True, timeout=120, check=False)


def whole(ended: subprocess.CompletedProcess[str], data: dict[str, Any]) -> bool:
    """Whether a pair came to its end; whatever the machine is doing, a client that sent late is no reason here."""
    late = ("the client sent late", "requests left at")
    for folder in data["invalid"]:
        reasons = json.loads((Path(folder) / "record.json").read_text())["verdict"]["reasons"]
        assert all(reason.startswith(late) for reason in reasons), reasons
    return ended.returncode == (3 if data["invalid"] else 0)


def drawn(data: dict[str, Any], width: int = 120) -> str:
    terminal = console()
    terminal.width = width
    with terminal.capture() as captured:
        terminal.print(pair_report(data))
    return captured.get()


def test_each_rung_changes_one_thing(quick: Path) -> None:
    rungs = ladder(load(quick), 1)
    assert [(rung.name, rung.mode, rung.served) for rung in rungs] == [
        ("static", "static", False),
        ("oneshot", "oneshot", False),
        ("http", "serving", True),
        ("capped", "serving", True),
        ("serving", "serving", True),
    ]
    assert [rung.scenario.limits.max_concurrency for rung in rungs] == [None, None, None, 6, 6]
    assert [rung.schedule.offsets[-1] > 0 for rung in rungs] == [False] * 4 + [True]
    prompts = [rung.schedule.fingerprints["prompts"] for rung in rungs]
    assert len(set(prompts)) == 1
    caps = [rung.schedule.fingerprints["concurrency"] for rung in rungs]
    assert (caps[0] == caps[2], caps[3] == caps[4], caps[2] == caps[3]) == (True, True, False)


def test_without_a_cap_there_is_no_rung_for_it(quick: Path) -> None:
    quick.write_text(QUICK.replace("max_concurrency = 6", ""))
    assert [rung.name for rung in ladder(load(quick), 1)] == ["static", "oneshot", "http", "serving"]


def test_a_cap_that_drops_has_no_rung_of_its_own(quick: Path) -> None:
    quick.write_text(QUICK.replace("max_concurrency = 6", 'max_concurrency = 6\noverflow = "drop"'))
    assert [rung.name for rung in ladder(load(quick), 1)] == ["static", "oneshot", "http", "serving"]


def test_a_fixed_batch_that_does_not_fit_is_no_invalid_run(tmp_path: Path) -> None:
    data = records_of("static", "oneshot")
    data["static"]["static"]["fits"] = False
    for own in data.values():
        own["verdict"] = {"valid": False, "reasons": ["a reason"]}
    found = compare("burst", [{rung: Record(tmp_path / rung, own) for rung, own in data.items()}])
    assert found["invalid"] == [str(tmp_path / "oneshot")]
    assert found["waterfall"]["rungs"]["static"]["not_used"] == ["does not fit: a reason"]


def test_texts_have_no_static_rung(quick: Path) -> None:
    (quick.parent / "texts.jsonl").write_text('{"prompt": "some words", "output_len": 3}\n')
    own = '[workload]\nkind = "jsonl"\nfile = "texts.jsonl"\n'
    quick.write_text(QUICK.replace("[workload]\nnum_prompts = 60\ninput_len = 30\noutput_len = 6\n", own))
    assert [rung.name for rung in ladder(load(quick), 1)] == ["oneshot", "http", "capped", "serving"]


def test_the_ladder_is_climbed_up_and_down_in_turn(quick: Path) -> None:
    rungs: list[Rung] = ladder(load(quick), 1)[::2]
    went = [(repeat, rung.name) for repeat, rung in order(rungs, 3)]
    assert went == [
        *((1, "static"), (1, "http"), (1, "serving")),
        *((2, "serving"), (2, "http"), (2, "static")),
        *((3, "static"), (3, "http"), (3, "serving")),
    ]


def test_a_record_is_put_on_the_rung_that_it_is_of() -> None:
    for rung, data in records_of().items():
        assert rung_of(data) == rung


def test_a_pair_over_the_simulator_ends_with_a_waterfall_cards_and_records(quick: Path, tmp_path: Path) -> None:
    ended = loadgen("pair", quick, "--repeats", "2", "--out", tmp_path / "pair")
    data = json.loads((tmp_path / "pair" / "pair.json").read_text())
    assert data["differences"] == []
    assert whole(ended, data), ended.stdout + ended.stderr
    rungs = ["static", "oneshot", "http", "capped", "serving"]
    assert data["rungs"] == rungs
    kept = {folder.name for folder in (tmp_path / "pair").iterdir()}
    assert kept == {"pair.json", "server-1.log", *(f"{repeat}-{rung}" for repeat in (1, 2) for rung in rungs)}
    assert data["waterfall"]["repeats"] == 2
    assert data["invalid"] or all(step["n"] == 2 for step in data["waterfall"]["figures"][0]["steps"])
    for name in rungs:
        data_of = json.loads((tmp_path / "pair" / f"1-{name}" / "record.json").read_text())
        assert data_of["counts"]["ok"] == 60, name
        assert data_of["slo"] == {} or name == "serving"  # an SLO was asked of the service
    assert "COMPARABLE" in ended.stdout
    if not data["invalid"]:
        assert "the service stays below the offline throughput" in ended.stdout
        assert "serving (poisson arrivals, continuous batching, batch" in ended.stdout
    assert "Traceback" not in ended.stderr


def test_records_with_other_output_lengths_are_refused_with_that_difference(quick: Path, tmp_path: Path) -> None:
    for name, mode, length in (("a", "oneshot", "6"), ("b", "serving", "3")):
        asked = ("--mode", mode, "--set", f"workload.output_len={length}", "--out", tmp_path / name)
        assert loadgen("run", quick, *asked).returncode in (0, 1)  # the SLO is missed
    ended = loadgen("pair", "--of", tmp_path / "a", "--of", tmp_path / "b")
    assert ended.returncode == 3
    refused = [line for line in ended.stdout.splitlines() if line.startswith("  •")]
    assert refused == ["  • max_tokens: 6 on oneshot; 3 on serving"]
    assert "tokens/s" not in ended.stdout


def test_a_switch_is_run_on_and_off_in_both_modes(quick: Path, tmp_path: Path) -> None:
    ended = loadgen("pair", quick, "--switch", "prefix_caching", "--repeats", "1", "--out", tmp_path / "switch")
    assert whole(ended, json.loads((tmp_path / "switch" / "pair.json").read_text())), ended.stdout + ended.stderr
    for state, off in (("on", False), ("off", True)):
        for mode in ("oneshot", "serving"):
            data = json.loads((tmp_path / "switch" / f"1-{state}" / f"1-{mode}" / "record.json").read_text())
            assert data["target"]["server"]["disable_radix_cache"] is off
    assert "prefix_caching" in ended.stdout
    assert re.search(r"nothing to act on: \d of 1,800 prompt tokens came from the cache", ended.stdout)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "say a SCENARIO to run, or records to compare"),
        (["{quick}", "--switch", "magic"], "expected one of chunked_prefill, prefix_caching"),
        (["{quick}", "--target", "http://127.0.0.1:9"], "needs the target simulator or sglang, not a URL"),
        (["{quick}", "--set", "target.api=chat"], 'set target.api = "generate"'),
        (["--of", "nowhere"], "one record has nothing to be compared with"),
        (["--of", "nowhere", "--of", "elsewhere"], "nowhere is no record"),
        (["{quick}", "--set", "arrivals={kind='sessions', starts={kind='fixed', rate=1}, turns=2}"], "sessions"),
    ],
)
def test_wrong_use_is_told_without_a_traceback(quick: Path, arguments: list[str], says: str, tmp_path: Path) -> None:
    ended = loadgen("pair", *(part.format(quick=quick) if "{quick" in part else part for part in arguments))
    assert (ended.returncode, says in ended.stderr) == (2, True), ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_record_that_was_killed_has_nothing_to_compare(quick: Path, tmp_path: Path) -> None:
    loadgen("run", quick, "--mode", "oneshot", "--out", tmp_path / "whole")
    killed = tmp_path / "killed"
    killed.mkdir()
    data = json.loads((tmp_path / "whole" / "record.json").read_text())
    for written_at_the_end in ("metrics", "verdict", "card"):
        del data[written_at_the_end]
    (killed / "record.json").write_text(json.dumps(data | {"complete": False}))
    ended = loadgen("pair", "--of", tmp_path / "whole", "--of", killed)
    assert (ended.returncode, "was killed before it could be judged" in ended.stderr) == (2, True), ended.stderr
    told = loadgen("report", killed, "--figure", "perf.ttft")
    assert (told.returncode, "it has no figures" in told.stderr) == (2, True), told.stderr


# ── the report ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_report_is_readable_at_120_columns_and_says_no_difference_where_none_is_seen() -> None:
    from loadgen.waterfall import waterfall

    repeats = [
        {
            rung: record(rung, throughput__output_tokens_per_s=value + noise)
            for rung, value in (("oneshot", 900.0), ("http", 900.0), ("serving", 250.0))
        }
        for noise in (-3.0, 0.0, 3.0)
    ]
    for number, noise in enumerate((5.0, -4.0, 1.0)):
        repeats[number]["http"]["throughput"]["output_tokens_per_s"] += noise
    data = {
        "name": "burst",
        "rungs": ["oneshot", "http", "serving"],
        "who": "m",
        "differences": [],
        "by_design": [],
        "unknown": [],
        "waterfall": waterfall(repeats),
        "cards": {rung: own["card"] for rung, own in repeats[0].items()},
        "diagnosis": [{"symptom": "s", "title": "a title", "evidence": ["a figure"], "action": "do this"}],
    }
    text = drawn(data)
    assert max(map(len, text.splitlines())) <= 120
    lines = [line.split() for line in text.splitlines()]
    throughput = [line for line in lines if line[:2] == ["throughput", "tokens/s"]]
    assert throughput[0][2:] == ["900", "901", "250"]
    assert throughput[1][-3:] == ["no", "difference", "seen"]
    assert throughput[2][2] == "-651"
    assert throughput[2][-1] == "lower"
    assert "intervals about" in text
    assert text.rstrip().endswith("→ do this")


def test_a_refusal_shows_no_figure() -> None:
    data = {
        "name": "burst",
        "rungs": ["oneshot", "serving"],
        "who": "m",
        "differences": [{"text": "max_tokens: 32 on oneshot; 16 on serving"}],
        "by_design": ["x"],
        "unknown": [],
        "diagnosis": [],
    }
    text = drawn(data)
    assert "REFUSED" in text
    assert text.splitlines()[-1] == "  • max_tokens: 32 on oneshot; 16 on serving"
