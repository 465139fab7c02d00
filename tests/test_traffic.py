"""Classes of traffic, stopping, replays and the prefix cache: scenarios that become schedules, and runs over HTTP."""

import contextlib
import json
import threading
import urllib.request
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from serving import FAST, simulator
from spelling import trained
from test_run import calm, loadgen

from loadgen.exchange import Message, Request
from loadgen.histogram import read_log
from loadgen.record import Record
from loadgen.scenario import ScenarioError, load
from loadgen.schedule import Schedule, plan
from loadgen.traces import DataError
from loadgen.workload import Tokenizer

WORKLOAD = "[workload]\ninput_len = 8\noutput_len = 2\n"
TWO = """\
[target]
step_time = { prefill_base = 0.001, prefill_per_token = 0, decode_base = 0.001, decode_per_sequence = 0 }
[[traffic]]
name = "many"
[traffic.workload]
num_prompts = 300
input_len = 8
output_len = 4
[traffic.arrivals]
kind = "poisson"
rate = 300
[traffic.slo]
ttft_p99 = 5.0
[[traffic]]
name = "few"
begin = 0.2
sampling = { temperature = 0.5 }
[traffic.workload]
num_prompts = 10
input_len = 64
output_len = 2
[traffic.arrivals]
kind = "fixed"
rate = 20
[traffic.slo]
ttft_mean = 1e-6
"""
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2026-01-01 00:00:{second:02}.{fraction:07},{8 + second},{1 + second}\n"
    for second, fraction in [(0, 0), (0, 5_000_001), (2, 0), (2, 1), (9, 9_999_999)]
)
AZURE_OFFSETS = [0.0, 0.5000001, 2.0, 2.0000001, 9.9999999]


def planned(tmp_path: Path, text: str, *overrides: str, seed: int = 0) -> Schedule:
    path = tmp_path / "s.toml"
    path.write_text(text)
    return plan(load(path, overrides), seed)


# ── stopping ──


def test_a_duration_ends_the_load_and_the_count_is_as_random_as_the_process(tmp_path: Path) -> None:
    """Poisson counts over 40 seeds: their variance over their mean is 1 within 4 of its standard errors, sqrt(2/39)."""
    text = WORKLOAD + '[arrivals]\nkind = "poisson"\nrate = 50\n[measure]\nduration = 2.0\n'
    schedules = [planned(tmp_path, text, seed=seed) for seed in range(40)]
    counts = np.array([len(schedule.requests) for schedule in schedules])
    assert all(schedule.offsets[-1] < 2.0 for schedule in schedules)
    assert all(schedule.total == len(schedule.requests) for schedule in schedules)
    assert counts.mean() == pytest.approx(100, abs=4 * 10 / 40**0.5)
    assert counts.var(ddof=1) / counts.mean() == pytest.approx(1, abs=4 * (2 / 39) ** 0.5)


def test_a_longer_duration_begins_with_the_shorter_ones_requests(tmp_path: Path) -> None:
    text = WORKLOAD + '[arrivals]\nkind = "gamma"\nrate = 50\ncv = 2.0\n[measure]\nduration = 4.0\n'
    long, short = planned(tmp_path, text), planned(tmp_path, text, "measure.duration=1.0")
    assert long.offsets[: len(short.offsets)] == short.offsets
    assert long.requests[: len(short.requests)] == short.requests


def test_whichever_of_count_and_duration_comes_first_ends_the_load(tmp_path: Path) -> None:
    text = WORKLOAD + 'num_prompts = 30\n[arrivals]\nkind = "fixed"\nrate = 10\n[measure]\nduration = 2.0\n'
    assert len(planned(tmp_path, text).requests) == 20
    assert len(planned(tmp_path, text, "measure.duration=60.0").requests) == 30


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (WORKLOAD + '[arrivals]\nkind = "poisson"\nrate = 5\n', "workload.num_prompts, or measure.duration, must say"),
        (WORKLOAD + '[arrivals]\nkind = "oneshot"\n[measure]\nduration = 5.0\n', "workload.num_prompts must say"),
        (TWO.replace("num_prompts = 10\n", ""), "traffic.few.workload.num_prompts, or measure.duration, must say"),
        (TWO.replace("temperature = ", "temprature = "), "s.toml:17: traffic.few.sampling.temprature: unknown key"),
        (TWO.replace("rate = 20", "rate = 0"), "s.toml:24: traffic.few.arrivals.rate: must be at least 1e-06, got 0"),
        (TWO.replace('"few"', '"many"'), "more than one is called many"),
        (TWO.replace('"few"', '"Few!"'), "s.toml:15: traffic.Few!.name: "),
        (TWO.replace("ttft_mean", "tttt_mean"), "s.toml:26: traffic.few.slo.tttt_mean: expected a metric"),
        (TWO + WORKLOAD, "workload: not beside [[traffic]]"),
        (WORKLOAD, "arrivals: required key is missing"),
        ('[arrivals]\nkind = "oneshot"\n', "workload: required key is missing"),
        (TWO + '[interference]\nbackground = "many"\ninjected = "fw"\nfull = 1\n', "no [[traffic]] named 'fw'"),
        (WORKLOAD + '[arrivals]\nkind = "gamma"\nrate = 5\n', "arrivals: needs burstiness, or cv"),
        (WORKLOAD + '[arrivals]\nkind = "gamma"\nrate = 5\ncv = 1.0\nburstiness = 1.0\n', "cv: not beside burstiness"),
        (WORKLOAD + '[arrivals]\nkind = "mmpp"\nrates = [0, 0]\nstays = [1, 1]\n', "at least one state needs a rate"),
        (WORKLOAD + '[arrivals]\nkind = "diurnal"\nrate = 5\npeak = 11\nperiod = 60\n', "to twice the mean"),
        (WORKLOAD + '[arrivals]\nkind = "piecewise"\npoints = [[1, 5], [3, 5]]\n', "the first point must be at 0 s"),
        (WORKLOAD + '[arrivals]\nkind = "piecewise"\npoints = [[0, 5], [3, 5], [2, 1]]\n', "must not go back"),
        (WORKLOAD + '[arrivals]\nkind = "step"\nlevels = [{ rate = 0, seconds = 1 }]\n', "at least one level"),
        (WORKLOAD + '[arrivals]\nkind = "replay"\nfile = "no.csv"\nstamps = "raw"\n', "arrivals.file: there is no "),
        (WORKLOAD + '[arrivals]\nkind = "replay"\nspeed = 2.0\n', "arrivals.stamps: required key is missing"),
        (WORKLOAD + '[arrivals]\nkind = "replay"\nstamps = "raw"\nstart = 3.0\n', "start: only beside a file"),
        (WORKLOAD + "random_range_ratio = 0.5\nvllm_range_ratio = 0.5\n", "not beside random_range_ratio"),
        (WORKLOAD.replace("= 8", '= { kind = "uniform", low = 1, high = 2 }') + "vllm_range_ratio = 0.5\n",
         "plain numbers"),
        ('[workload]\nkind = "sharegpt"\nfile = "s.toml"\n', "needs a length, or workload.tokenizer"),
        ('[workload]\nkind = "trace"\nfile = "s.toml"\n[arrivals]\nkind = "sessions"\nturns = 2\nthink_time = 1\n'
         'starts = { kind = "oneshot" }\n', "a trace's prompts already hold their history"),
        (WORKLOAD + '[arrivals]\nkind = "closed"\nusers = 5\nthink_time = 1\n[measure]\nduration = 9.0\n'
         '[limits]\nmax_concurrency = 4\noverflow = "drop"\n', "some would only ever be turned away"),
        (WORKLOAD + 'num_prompts = 4\n[arrivals]\nkind = "closed"\nusers = 5\nthink_time = 1\n',
         "arrivals.users = 5, but workload.num_prompts = 4"),
        (WORKLOAD + '[arrivals]\nkind = "sessions"\nturns = 2\nthink_time = 1\nstarts = { kind = "oneshot" }\n'
         '[measure]\nduration = 9.0\n', "workload.num_prompts must say when the load ends"),
        ('[workload]\nkind = "sharegpt"\nfile = "s.toml"\noutput_len = 3\nmax_len = 9\n', "needs workload.tokenizer"),
        (TWO + '[interference]\nbackground = "few"\ninjected = "few"\nfull = 1\n', "must be two classes"),
        (WORKLOAD + '[arrivals]\nkind = "closed"\nusers = 5\nthink_time = "2s"\n', "a number of seconds without its"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_told_with_its_key(tmp_path: Path, text: str, fault: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        planned(tmp_path, text)
    assert any(fault in line for line in caught.value.faults), caught.value.faults


def test_a_class_is_overridden_by_its_name(tmp_path: Path) -> None:
    assert len(planned(tmp_path, TWO, "traffic.few.workload.num_prompts=3").requests) == 303
    for override, fault in [
        ("traffic.fw.workload.num_prompts=3", "fw is not a table"),
        ("traffic.few=3", "expected the name of a class"),
        ("traffic.few.workload.num_prompts=0", "--set traffic.few.workload.num_prompts=0: must be at least 1, got 0"),
    ]:
        with pytest.raises(ScenarioError) as caught:
            planned(tmp_path, TWO, override)
        assert fault in caught.value.faults[0]


# ── classes ──


def of(schedule: Schedule, name: str) -> list[tuple[float, Request]]:
    both = zip(schedule.offsets, schedule.requests, strict=True)
    return [(offset, request) for offset, request in both if request.traffic == name]


def test_classes_are_merged_in_order_of_time_and_none_moves_another(tmp_path: Path) -> None:
    both = planned(tmp_path, TWO)
    assert list(both.offsets) == sorted(both.offsets)
    assert both.total == 310
    assert [offset for offset, _ in of(both, "few")] == pytest.approx([0.2 + i / 20 for i in range(10)])
    assert [request.index for _, request in of(both, "few")] == list(range(10))
    assert {request.sampling.temperature for _, request in of(both, "few")} == {0.5}
    assert {request.sampling.temperature for _, request in of(both, "many")} == {0.0}
    alone = planned(tmp_path, TWO[: TWO.index('[[traffic]]\nname = "few"')])
    assert of(alone, "many") == of(both, "many")
    moved = planned(tmp_path, TWO, "traffic.few.arrivals.rate=7", "traffic.few.workload.input_len=9")
    assert of(moved, "many") == of(both, "many")
    assert moved.fingerprints["schedule"] != both.fingerprints["schedule"]


def test_the_warm_up_takes_from_each_class_in_turn(tmp_path: Path) -> None:
    warmup = planned(tmp_path, TWO, "measure.warmup=5").warmup
    assert [request.traffic for request in warmup] == ["many", "few", "many", "few", "many"]


def run(tmp_path: Path, text: str, *arguments: str) -> tuple[int, dict[str, Any], Record]:
    path = tmp_path / "s.toml"
    path.write_text(text)
    folder = tmp_path / f"record{len(list(tmp_path.iterdir()))}"
    ended = loadgen("run", path, "--out", folder, "--json", *arguments)
    assert not ended.stderr, ended.stderr
    return ended.returncode, json.loads(ended.stdout), Record.read(folder)


def test_histograms_counts_and_slos_are_kept_per_class_and_in_total(tmp_path: Path) -> None:
    code, data, record = run(tmp_path, TWO)
    many, few = data["traffic"]["many"], data["traffic"]["few"]
    assert (many["counts"]["ok"], few["counts"]["ok"], data["counts"]["ok"]) == (300, 10, 310)
    lines = list(record.requests())
    for name, own in data["traffic"].items():
        firsts = [line["first"] - line["due"] for line in lines if line["traffic"] == name]
        assert own["metrics"]["ttft"]["count"] == len(firsts)
        assert own["metrics"]["ttft"]["max"] == pytest.approx(max(firsts), rel=1e-3, abs=3e-6)
        intervals = read_log((record.folder / f"ttft.{name}.hlog").read_text().splitlines(keepends=True))
        assert sum(counts.count for *_, counts in intervals) == len(firsts)
    assert data["metrics"]["itl"]["count"] == many["metrics"]["itl"]["count"] + few["metrics"]["itl"]["count"] == 910
    assert data["slo"]["many.ttft_p99"]["met"]
    assert not data["slo"]["few.ttft_mean"]["met"]
    assert data["slo"]["few.ttft_mean"]["value"] == few["metrics"]["ttft"]["mean"]
    assert data["card"]["arrival_pattern"] == "poisson + fixed"
    assert code == (1 if data["verdict"]["valid"] else 3)


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


# ── the prefix cache ──

SHARED = """\
[workload]
kind = "prefix"
num_prompts = 60
groups = 3
system_len = 200
question_len = 10
output_len = 2
[arrivals]
kind = "fixed"
rate = 60
[measure]
quantiles = ["p50"]
"""


def test_a_shared_prefix_hits_as_much_as_the_prompts_share(tmp_path: Path) -> None:
    with simulator(*FAST) as (url, _):
        _, data, _ = run(tmp_path, SHARED, "--target", url)
    cache = data["prompts"]["cache"]
    assert calm(data["verdict"]["reasons"]) == []
    assert data["target"]["cache_flushed"] is True
    assert cache["requests"] == 60
    assert cache["prompt_tokens"] == 60 * 210
    assert cache["shared_tokens"] >= 57 * 200
    assert cache["cached_tokens"] == cache["shared_tokens"]
    assert cache["unexplained_tokens"] == 0


@contextlib.contextmanager
def busy(url: str) -> Iterator[None]:
    """A long request keeps the server from flushing as long as this lasts."""
    body = {"input_ids": [1, 2, 3], "stream": True, "sampling_params": {"max_new_tokens": 30_000, "ignore_eos": True}}
    over = threading.Event()

    def read() -> None:
        with urllib.request.urlopen(urllib.request.Request(f"{url}/generate", json.dumps(body).encode())) as answer:
            while not over.is_set():
                answer.readline()
                begun.set()

    begun = threading.Event()
    reader = threading.Thread(target=read)
    reader.start()
    begun.wait(20)
    try:
        yield
    finally:
        over.set()
        reader.join()


def test_a_cache_that_was_to_be_cold_and_was_warm_makes_the_run_invalid(tmp_path: Path) -> None:
    slow = ("--step-time", "prefill_base=0.001", "prefill_per_token=0", "decode_base=0.01", "decode_per_sequence=0")
    with simulator(*slow, "--max-total-tokens", "90000") as (url, _):
        run(tmp_path, SHARED, "--target", url)
        with busy(url):
            code, data, _ = run(tmp_path, SHARED, "--target", url)
            _, fresh, _ = run(tmp_path, SHARED, "--target", url, "--seed", "7")
    assert code == 3
    (reason,) = calm(data["verdict"]["reasons"])
    assert reason.startswith("the prefix cache was warm: ")
    assert "could not be flushed" in reason
    assert data["target"]["cache_flushed"] is False
    assert calm(fresh["verdict"]["reasons"]) == [], "another seed has other prompts"
    assert fresh["target"]["cache_flushed"] is False


# ── closed loops and conversations over HTTP ──


def test_a_closed_loop_and_conversations_run_and_are_counted_as_they_come(tmp_path: Path) -> None:
    closed = '[arrivals]\nkind = "closed"\nusers = 4\nthink_time = 0.05\n'
    sessions = '[arrivals]\nkind = "sessions"\nstarts = { kind = "poisson", rate = 20 }\nturns = 4\nthink_time = 0.05\n'
    end = '[measure]\nduration = 0.8\nquantiles = ["p50"]\n'
    with simulator(*FAST, "--enable-cache-report") as (url, _):
        for api in ("generate", "chat"):
            _, data, record = run(tmp_path, WORKLOAD + closed + end, "--target", url, "--set", f"target.api={api}")
            assert calm(data["verdict"]["reasons"]) == []
            lines = list(record.requests())
            assert data["counts"]["scheduled"] == data["counts"]["ok"] == len(lines) > 15
            assert data["concurrency"]["peak"] <= 4
            assert max(line["due"] for line in lines) < 0.8
            _, data, record = run(tmp_path, WORKLOAD + sessions + end, "--target", url, "--set", f"target.api={api}")
            assert calm(data["verdict"]["reasons"]) == []
            lines = list(record.requests())
            assert data["counts"]["scheduled"] == data["counts"]["ok"] == len(lines) > 10
            later = [line for line in lines if line["turn"] == 3]
            assert later
            if api == "generate":  # prompt and answer of three turns, but for the last token, are in the cache
                assert {line["cached_tokens"] for line in later} == {3 * (8 + 2) - 1}
                assert {line["shared_tokens"] for line in later} == {3 * (8 + 2)}
                assert {line["input_tokens"] for line in later} == {3 * (8 + 2) + 8}
            else:
                assert min(line["cached_tokens"] for line in later) > 0
