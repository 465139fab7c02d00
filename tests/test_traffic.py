"""Classes of traffic and stopping: scenarios that become schedules, and what their runs keep of each class."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from test_run import loadgen

from loadgen import flow
from loadgen.exchange import Exchange, Request
from loadgen.histogram import read_log
from loadgen.record import Record
from loadgen.scenario import ScenarioError, load
from loadgen.schedule import Schedule, _fingerprint_of_flow, plan
from loadgen.think import Always


class Turns:
    """These numbers of turns, one after the other."""

    def __init__(self, turns: list[int]) -> None:
        self._turns, self.mean = iter(turns), 2.0

    def draw(self, rng: np.random.Generator, n: int) -> NDArray[np.int64]:
        return np.array([next(self._turns) for _ in range(n)])


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
    "arrivals",
    [
        'kind = "closed"\nusers = 2\nthink_time = 1\n',
        'kind = "sessions"\nstarts = { kind = "fixed", rate = 2 }\nturns = 2\nthink_time = 1\n',
    ],
)
def test_how_many_come_due_is_known_only_where_no_duration_ends_what_answers_decide(
    tmp_path: Path, arrivals: str
) -> None:
    text = WORKLOAD + f"num_prompts = 12\n[arrivals]\n{arrivals}"
    assert planned(tmp_path, text).total == 12
    assert planned(tmp_path, text + "[measure]\nduration = 60.0\n").total is None


def test_think_times_and_where_conversations_begin_are_in_the_fingerprint(tmp_path: Path) -> None:
    text = WORKLOAD + 'num_prompts = 12\n[arrivals]\nkind = "sessions"\nstarts = { kind = "oneshot" }\n'
    base = planned(tmp_path, text + "turns = 3\nthink_time = 1\n")
    slower = planned(tmp_path, text + "turns = 3\nthink_time = 2\n")
    assert base.requests == slower.requests
    assert base.fingerprints["schedule"] != slower.fingerprints["schedule"]
    longer = planned(tmp_path, text + "turns = 4\nthink_time = 1\n")
    assert base.fingerprints["workload"] == longer.fingerprints["workload"]
    assert base.fingerprints["schedule"] != longer.fingerprints["schedule"]


def test_only_where_conversations_begin_differs_and_the_fingerprint_tells() -> None:
    requests = [Request(i, [i], 1) for i in range(4)]
    flows = [
        flow.sessions([0.0, 0.0], own, own, Turns(turns), Always(1.0), np.random.default_rng(1), None)
        for turns in ([1, 3], [3, 1])
        for own in [iter(requests)]
    ]
    assert list(flows[0].thinks) == list(flows[1].thinks)
    assert len({_fingerprint_of_flow(made) for made in flows}) == 2


def test_a_closed_loop_by_duration_takes_every_request_in_order_also_those_drawn_later(tmp_path: Path) -> None:
    text = WORKLOAD + '[arrivals]\nkind = "closed"\nusers = 2\nthink_time = 1\n[measure]\nduration = 60.0\n'
    schedule = planned(tmp_path, text)
    taken = [request.index for request in schedule.requests]
    exchange = Exchange(schedule.requests[0], 0.0)
    for _ in range(1500):
        following = schedule.follow(exchange)
        assert following
        taken.append(following[1].index)
    assert taken == list(range(1502))


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
        ("traffic.fw.workload.num_prompts=3", "there is no fw in this list, only many, few"),
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
