"""The scenarios that ship: each asks a question, makes a schedule, and can be shown against its theory."""

import io
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from loadgen.report.arrivals import shown
from loadgen.scenario import every, load, question
from loadgen.schedule import plan

SHIPPED = sorted(path for path in every().values())
KINDS = {
    "fixed", "poisson", "gamma", "weibull", "burst", "mmpp", "ramp", "step", "spike", "diurnal", "piecewise", "oneshot",
    "replay", "clients", "closed", "sessions", "random", "prefix", "sharegpt", "jsonl", "trace",
}  # fmt: skip


def printed(path: Path, *overrides: str) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=120).print(shown(load(path, overrides), 0))
    return file.getvalue().splitlines()


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_it_asks_a_question_and_makes_a_schedule(path: Path) -> None:
    assert question(path).partition(". ")[0].count("?") >= 1
    scenario = load(path)
    schedule = plan(scenario, 0)
    assert len(schedule.requests) == len(schedule.offsets) > 0
    if scenario.measure.duration:
        assert schedule.offsets[-1] < scenario.measure.duration
    assert all(request.input_len for request in schedule.requests) or scenario.classes[0].workload.kind in {
        "jsonl", "sharegpt"
    }  # fmt: skip


def test_there_is_one_of_each_kind() -> None:
    classes = [one for path in SHIPPED for one in load(path).classes]
    assert {one.arrivals.kind for one in classes} | {one.workload.kind for one in classes} == KINDS


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_it_can_be_shown_against_its_theory(path: Path) -> None:
    lines = printed(path)
    kinds = [one.arrivals.kind for one in load(path).classes]
    assert sum(kind in line for kind in kinds for line in lines) >= len(kinds)
    assert "theory" in lines[1] or kinds[0] == "closed"


def test_the_figures_shown_are_those_of_the_schedule(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text(
        "[workload]\ninput_len=1\noutput_len=1\n[arrivals]\nkind='gamma'\nrate=40\ncv=2.0\n[measure]\nduration=50\n"
    )
    offsets = np.array(plan(load(path), 0).offsets)
    lines = {line[:17].strip(): line[17:].split() for line in printed(path)}
    assert lines["requests"][:2] == [f"{offsets.size:,.4g}", "2,000"]
    gaps = np.diff(offsets)
    assert lines["CV of gaps"][:2] == [f"{gaps.std() / gaps.mean():.4g}", "2"]
    counts = np.bincount(offsets.astype(int), minlength=50)
    assert lines["dispersion, 1 s"][0] == f"{counts.var(ddof=1) / counts.mean():.4g}"
    bars = [line.split() for line in printed(path)[-25:] if line.strip() and line.split()[0].replace(".", "").isdigit()]
    assert sum(int(bar[1].replace(",", "")) for bar in bars) == offsets.size


def test_a_schedule_that_a_count_cuts_is_held_against_the_time_it_took(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text(
        "[workload]\ninput_len=1\noutput_len=1\nnum_prompts=100\n[arrivals]\nkind='poisson'\nrate=10\n"
        "[measure]\nduration=100\n"
    )
    (row,) = [line.split() for line in printed(path) if line.startswith("requests  ")]
    assert abs(float(row[3])) < 4
    assert float(row[2]) == pytest.approx(10 * plan(load(path), 0).offsets[-1], rel=1e-3)


def test_endless_arrivals_end_with_a_data_set_that_does(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "a", "output_len": 1}\n' * 7)
    path = tmp_path / "s.toml"
    path.write_text("[workload]\nkind='jsonl'\nfile='p.jsonl'\n[arrivals]\nkind='poisson'\nrate=4\n")
    assert any(line.split()[:2] == ["requests", "7"] for line in printed(path))
    assert plan(load(path), 0).total == 7
