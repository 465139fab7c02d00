"""What comes out of files: replays, data sets, tokenizers, and how each API takes a prompt."""

import json
import os
from array import array
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from spelling import trained
from test_prefix_cache import SHARED
from test_run import loadgen
from test_traffic import TWO, WORKLOAD, planned, run

from loadgen.exchange import Message
from loadgen.scenario import ScenarioError
from loadgen.schedule import Schedule
from loadgen.traces import DataError
from loadgen.workload import Tokenizer

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2026-01-01 00:00:{second:02}.{fraction:07},{8 + second},{1 + second}\n"
    for second, fraction in [(0, 0), (0, 5_000_001), (2, 0), (2, 1), (9, 9_999_999)]
)
AZURE_OFFSETS = [0.0, 0.5000001, 2.0, 2.0000001, 9.9999999]


# ── replays ──


def replayed(tmp_path: Path, *overrides: str) -> Schedule:
    (tmp_path / "a.csv").write_text(AZURE)
    text = '[workload]\nkind = "trace"\nfile = "a.csv"\n[arrivals]\nkind = "replay"\nstamps = "raw"\n'
    return planned(tmp_path, text, *overrides)


def test_a_trace_is_replayed_with_its_own_stamps_and_lengths(tmp_path: Path) -> None:
    schedule = replayed(tmp_path)
    assert list(schedule.offsets) == pytest.approx(AZURE_OFFSETS, abs=1e-12)
    assert [(r.input_len, r.output_len) for r in schedule.requests] == [(8, 1), (8, 1), (10, 3), (10, 3), (17, 10)]


def test_speed_window_and_count_cut_a_replay(tmp_path: Path) -> None:
    assert list(replayed(tmp_path, "arrivals.speed=2.0").offsets) == pytest.approx([t / 2 for t in AZURE_OFFSETS])
    windowed = replayed(tmp_path, "workload.start=0.5", "workload.stop=2.0000001")
    assert list(windowed.offsets) == pytest.approx([0.0000001, 1.5], abs=1e-9)
    assert [r.output_len for r in windowed.requests] == [1, 3]
    assert list(replayed(tmp_path, "workload.num_prompts=2").offsets) == pytest.approx(AZURE_OFFSETS[:2])
    assert len(replayed(tmp_path, "measure.duration=2.0").requests) == 2


def test_a_trace_may_lend_its_stamps_to_other_prompts_and_its_lengths_to_other_arrivals(tmp_path: Path) -> None:
    other = replayed(tmp_path, "workload={input_len=5, output_len=5}", f"arrivals.file={tmp_path / 'a.csv'}")
    assert list(other.offsets) == pytest.approx(AZURE_OFFSETS)
    assert {request.input_len for request in other.requests} == {5}
    poisson = replayed(tmp_path, "arrivals={kind='poisson', rate=5}")
    assert [request.output_len for request in poisson.requests] == [1, 1, 3, 3, 10]


def test_a_jitter_moves_stamps_within_the_bin_that_was_said(tmp_path: Path) -> None:
    jittered = replayed(tmp_path, "arrivals.stamps=jitter", "arrivals.bin=0.25")
    moved = np.array(jittered.offsets) - AZURE_OFFSETS
    assert np.all((moved >= 0) & (moved < 0.25))
    assert np.count_nonzero(moved) >= 4


@pytest.mark.parametrize(
    ("overrides", "fault"),
    [
        (["workload.num_prompts=6"], "num_prompts = 6, but the workload ends after 5: ask for at most as many"),
        (["arrivals.stamps=jitter"], "arrivals.bin: these stamps are not seen to be rounded"),
        (["workload={input_len=5, output_len=5}"], "arrivals.file: the workload has no stamps of its own"),
        (["measure.duration=1e-9", "workload.start=0.1"], "nothing comes due within 1e-09 s"),
        (["workload.start=60.0"], "a.csv: no request from 60 s on: 5 rows read"),
    ],
)
def test_a_replay_that_cannot_be_says_why(tmp_path: Path, overrides: list[str], fault: str) -> None:
    with pytest.raises(DataError) as caught:
        replayed(tmp_path, *overrides)
    assert fault in caught.value.faults[0]


def test_a_run_replays_from_its_own_record_to_the_microsecond(tmp_path: Path) -> None:
    _, data, record = run(tmp_path, TWO)
    text = WORKLOAD + f'[arrivals]\nkind = "replay"\nfile = "{record.folder}"\nstamps = "raw"\n'
    again = planned(tmp_path, text)
    assert list(again.offsets) == sorted(line["due"] for line in record.requests())
    assert data["counts"]["scheduled"] == len(again.requests)


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("a.csv", AZURE[:-4], "a.csv:6: "),
        ("a.csv", AZURE.replace("ContextTokens", "Context"), "a.csv:1: "),
        ("a.csv", AZURE.replace("00:00:09", "00:00:01"), "a.csv:6: TIMESTAMP"),
        ("a.csv", "", "a.csv"),
        ("a.csv", None, "a.csv: is a folder"),
    ],
)
def test_bad_files_end_with_2_and_the_line(tmp_path: Path, name: str, content: str | None, fault: str) -> None:
    if content is None:
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).write_text(content)
    path = tmp_path / "s.toml"
    path.write_text(f'[workload]\nkind = "trace"\nfile = "{name}"\n[arrivals]\nkind = "replay"\nstamps = "raw"\n')
    commands: list[list[str | Path]] = [
        ["run", path, "--out", tmp_path / "out"],
        ["scenarios", "show", path, "--arrivals"],
    ]
    for command in commands:
        ended = loadgen(*command)
        assert ended.returncode == 2
        assert fault in ended.stderr
        assert "Traceback" not in ended.stderr
    assert not (tmp_path / "out").exists()


def test_all_files_that_are_wrong_are_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(AZURE.replace("ContextTokens", "Context"))
    (tmp_path / "b.csv").write_text("")
    (tmp_path / "tokenizer.json").write_text("{}")
    text = '[workload]\nkind = "trace"\nfile = "a.csv"\ntokenizer = "tokenizer.json"\n'
    text += '[arrivals]\nkind = "replay"\nfile = "b.csv"\nstamps = "raw"\n'
    with pytest.raises(DataError) as caught:
        planned(tmp_path, text)
    assert [any(name in fault for fault in caught.value.faults) for name in ("a.csv:1", "b.csv", "tokenizer.json")] == [
        True
    ] * 3
    with pytest.raises(ScenarioError) as told:
        planned(tmp_path, WORKLOAD + '[arrivals]\nkind = "poisson"\nrate = 5\n[limits]\nmax_concurrency = "x"\n')
    assert "max_concurrency" in told.value.faults[0]


def test_a_data_set_that_ends_before_the_load_does_is_told(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "a", "output_len": 3}\n' * 5)
    text = '[workload]\nkind = "jsonl"\nfile = "p.jsonl"\n[arrivals]\nkind = "fixed"\nrate = 10\n'
    with pytest.raises(
        DataError, match=r"measure\.duration, but the workload ends after 5: leave it out or set workload"
    ):
        planned(tmp_path, text, "measure.duration=3.0")
    assert planned(tmp_path, text, "measure.duration=0.3").total == 3
    assert planned(tmp_path, text, "measure.duration=3.0", "workload.repeat=true").total == 30
    closed = "arrivals={kind='closed', users=2, think_time=1}"
    with pytest.raises(ScenarioError, match="a closed loop goes on"):
        planned(tmp_path, text, closed, "measure.duration=3.0")


def test_a_schedule_that_would_fill_the_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadgen.schedule.MOST", 10_000)
    poisson = WORKLOAD + '[arrivals]\nkind = "poisson"\nrate = 1000\n[measure]\nduration = 60.0\n'
    with pytest.raises(DataError, match=r"workload: 92 prompts take .* and are not all: ask for fewer"):
        planned(tmp_path, poisson)
    closed = WORKLOAD + '[arrivals]\nkind = "closed"\nusers = 2\nthink_time = 1\n[measure]\nduration = 60.0\n'
    assert planned(tmp_path, closed).total is None, "drawn as the load goes on"


def test_a_pipe_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "p")
    with pytest.raises(ScenarioError, match="is no file, but a pipe or a device"):
        planned(tmp_path, '[workload]\nkind = "trace"\nfile = "p"\n[arrivals]\nkind = "replay"\nstamps = "raw"\n')
    (tmp_path / "q").symlink_to(tmp_path / "q")
    with pytest.raises(ScenarioError, match="there is no"):
        planned(tmp_path, '[workload]\nkind = "trace"\nfile = "q"\n[arrivals]\nkind = "replay"\nstamps = "raw"\n')


def test_system_prompts_open_conversations_and_stand_nowhere_else(tmp_path: Path) -> None:
    text = SHARED.replace('kind = "fixed"\nrate = 60', 'kind = "sessions"\nstarts = { kind = "oneshot" }\nturns = 4\n')
    text = text.replace("[measure]", "think_time = 1\n[measure]")
    schedule = planned(tmp_path, text)
    assert {request.input_len for request in schedule.requests} == {210}
    assert schedule.turns == 60
    assert len(schedule.requests) == 15


def test_turns_of_one_conversation_are_of_one_form(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "output_len": 1}, {"input_ids": [1, 2], "output_len": 1}]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = '[workload]\nkind = "jsonl"\nfile = "p.jsonl"\n[arrivals]\nkind = "sessions"\nturns = 2\nthink_time = 1\n'
    with pytest.raises(DataError, match="input_ids and text cannot be turns of one conversation"):
        planned(tmp_path, text + 'starts = { kind = "oneshot" }\n')


def test_the_sampling_of_each_class_is_in_the_fingerprint(tmp_path: Path) -> None:
    few = planned(tmp_path, TWO).fingerprints["sampling"]
    other = TWO.replace("sampling = { temperature = 0.5 }\n", "")
    many = other.replace('name = "many"\n', 'name = "many"\nsampling = { temperature = 0.5 }\n')
    assert (
        len({few, planned(tmp_path, other).fingerprints["sampling"], planned(tmp_path, many).fingerprints["sampling"]})
        == 3
    )
    assert planned(tmp_path, TWO, "sampling.temperature=0.5").fingerprints["sampling"] != few


# ── prompts as each API takes them ──


def test_conversations_need_the_chat_api(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"messages": [{"role": "user", "content": "hello"}], "output_len": 3}\n')
    text = '[workload]\nkind = "jsonl"\nfile = "p.jsonl"\n[arrivals]\nkind = "oneshot"\n'
    (request,) = planned(tmp_path, text, "target.api=chat").requests
    assert request.prompt == ({"role": "user", "content": "hello"},)
    with pytest.raises(DataError, match=r"which only chat takes: set target\.api"):
        planned(tmp_path, text)


def test_lines_with_stamps_are_replayed_by_them(tmp_path: Path) -> None:
    lines = [{"prompt": f"one {i}", "output_len": i + 1, "timestamp": 10 + i * i} for i in range(4)]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = '[workload]\nkind = "jsonl"\nfile = "p.jsonl"\n[arrivals]\nkind = "replay"\nstamps = "raw"\n'
    schedule = planned(tmp_path, text)
    assert list(schedule.offsets) == [0.0, 1.0, 4.0, 9.0]
    assert [request.prompt for request in schedule.requests] == ["one 0", "one 1", "one 2", "one 3"]


def test_a_line_without_a_length_is_told_unless_there_is_one_for_all(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "a", "output_len": 3}\n{"prompt": "b"}\n')
    text = '[workload]\nkind = "jsonl"\nfile = "p.jsonl"\n[arrivals]\nkind = "oneshot"\n'
    with pytest.raises(DataError, match=r"p\.jsonl:2: no output_len"):
        planned(tmp_path, text)
    assert [r.output_len for r in planned(tmp_path, text, "workload.output_len=9").requests] == [3, 9]
    with pytest.raises(
        DataError, match=r"workload ends after 2: ask for at most as many or set workload\.repeat = true"
    ):
        planned(tmp_path, text, "workload.output_len=9", "workload.num_prompts=3")
    assert (
        len(planned(tmp_path, text, "workload.output_len=9", "workload.num_prompts=3", "workload.repeat=true").requests)
        == 3
    )


def test_conversations_over_chat_begin_as_messages(tmp_path: Path) -> None:
    text = WORKLOAD + '[arrivals]\nkind = "sessions"\nstarts = { kind = "oneshot" }\nturns = 2\nthink_time = 1\n'
    schedule = planned(tmp_path, text, "target.api=chat", "workload.num_prompts=4")
    prompt = schedule.requests[0].prompt
    assert isinstance(prompt, tuple)
    message: Message = prompt[0]
    assert message["role"] == "user"
    assert len(message["content"].split()) == 8


def test_a_tokenizer_by_path_makes_texts_of_the_length_asked_for_and_the_difference_is_reported(tmp_path: Path) -> None:
    """The simulator counts words and one for the user's role: of a tokenizer of words, one more than was asked for."""
    (tmp_path / "tokenizer.json").write_text(trained("words"))
    text = TWO[: TWO.index("[[traffic]]")] + "[workload]\ninput_len = 30\noutput_len = 2\nnum_prompts = 20\n"
    text += 'tokenizer = "tokenizer.json"\n[arrivals]\nkind = "oneshot"\n[measure]\nquantiles = ["p50"]\n'
    schedule = planned(tmp_path, text, "target.api=chat")
    assert all(isinstance(request.prompt, str) for request in schedule.requests)
    assert {request.input_len for request in schedule.requests} == {30}
    native = planned(tmp_path, text)
    tokenizer = Tokenizer.load(tmp_path)
    said = [tokenizer.encode(request.prompt) for request in schedule.requests if isinstance(request.prompt, str)]
    assert said == [list(cast("array[int]", request.prompt)) for request in native.requests], "the same prompts"
    _, data, record = run(tmp_path, text, "--set", "target.api=chat")
    lengths = {"requests": 20, "differ": 20, "most": 1, "asked_tokens": 600, "server_tokens": 620}
    assert data["prompts"]["lengths"] == lengths
    assert {(line["input_len"], line["input_tokens"]) for line in record.requests()} == {(30, 31)}
    shown = loadgen("report", record.folder).stdout
    assert "20 of 20 prompts have another length by the server's count, by up to 1 tokens: 620 in all, 600" in shown


def test_a_tokenizer_that_is_none_ends_with_2_and_its_path(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    path = tmp_path / "s.toml"
    path.write_text(
        WORKLOAD + 'num_prompts = 1\ntokenizer = "tokenizer.json"\n[arrivals]\nkind = "oneshot"\n',
    )
    for command in ("run", path, "--out", tmp_path / "out"), ("scenarios", "show", path, "--arrivals"):
        ended = loadgen(*command)
        assert ended.returncode == (2 if command[0] == "run" else 0), "arrivals need no tokenizer"
        assert "Traceback" not in ended.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("flag", "lowest", "highest"),
    [("--random-range-ratio", 50, 100), ("--vllm-range-ratio", 50, 150)],
)
def test_each_range_ratio_has_its_own_meaning(tmp_path: Path, flag: str, lowest: int, highest: int) -> None:
    ratio = f"workload.{flag[2:].replace('-', '_')}=0.5"
    text = "[workload]\nnum_prompts = 2000\ninput_len = 100\noutput_len = 10\n" + '[arrivals]\nkind = "oneshot"\n'
    lengths = [request.input_len or 0 for request in planned(tmp_path, text, ratio).requests]
    assert (min(lengths), max(lengths)) == (lowest, highest)
    path = tmp_path / "s.toml"
    ended = loadgen("run", path, "--out", tmp_path / "r", "--json", flag, "0.5", "--num-prompts", "40", *QUICKLY)
    assert json.loads(ended.stdout)["scenario"]["workload"][flag[2:].replace("-", "_")] == 0.5


QUICKLY = ("--set", "target.step_time={prefill_base=0.001, prefill_per_token=0, decode_base=0.001}")
