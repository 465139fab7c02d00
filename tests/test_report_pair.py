"""What the report of a pair says of figures and checks that are not whole."""

from collections.abc import Sequence
from typing import Any

from ladder import metric, record

from loadgen.comparable import by_design, differences, unknown
from loadgen.report.pair import pair_report
from loadgen.report.terminal import console
from loadgen.waterfall import waterfall

RUNGS = ("http", "serving")


def drawn(repeats: Sequence[dict[str, dict[str, Any]]]) -> list[str]:
    first = repeats[0]
    data = {
        "name": "burst",
        "rungs": list(first),
        "who": "m",
        "differences": [difference.as_dict() for difference in differences(first)],
        "by_design": by_design(first),
        "unknown": unknown(first),
        "waterfall": waterfall(repeats),
        "cards": {rung: own["card"] for rung, own in first.items()},
        "diagnosis": [],
    }
    terminal = console()
    terminal.width = 120
    with terminal.capture() as captured:
        terminal.print(pair_report(data))
    return [line.rstrip() for line in captured.get().splitlines()]


def climbs(repeats: int, **changes: Any) -> list[dict[str, dict[str, Any]]]:
    return [{rung: record(rung, **changes) for rung in RUNGS} for _ in range(repeats)]


def throughput(lines: Sequence[str]) -> str:
    """The row of the step."""
    return next(line for line in lines if line.startswith("  throughput"))


def test_a_step_says_of_how_many_repeats_it_is_where_it_is_not_of_all() -> None:
    repeats = climbs(3)
    assert throughput(drawn(repeats)).endswith("no difference seen")
    repeats[1]["serving"]["verdict"] = {"valid": False, "reasons": ["the client sent late"]}
    assert throughput(drawn(repeats)).endswith("no difference seen (2 of 3 repeats)")
    repeats[2]["serving"]["verdict"] = {"valid": False, "reasons": ["the client sent late"]}
    assert throughput(drawn(repeats)).endswith("one repeat: no interval (1 of 3 repeats)")


def test_comparable_claims_no_more_than_was_checked() -> None:
    lines = drawn(climbs(2, target__server={}))
    assert lines[1].endswith("budget, as far as is known")
    told = " ".join(lines)
    assert "not known on any rung: " in told
    assert "chunked_prefill_size" in told


def test_a_missing_figure_says_why_once() -> None:
    lines = drawn(climbs(2, metrics__ttft=metric(count=50)))
    assert "no TTFT p95: 50 samples do not carry p95 (http, serving)" in lines
    assert not any(line.startswith("no TTFT p50") for line in lines)


def test_a_run_that_is_not_used_says_so_once_and_not_for_each_figure() -> None:
    repeats = climbs(1)
    repeats[0]["serving"]["verdict"] = {"valid": False, "reasons": ["the client sent late"]}
    lines = drawn(repeats)
    assert sum("the client sent late" in line for line in lines) == 1
    assert not any(line.startswith("no throughput") for line in lines)


def test_runs_that_differ_are_refused_with_what_differs_and_no_figure() -> None:
    repeats = climbs(2)
    for own in repeats:
        own["serving"]["scenario"]["sampling"]["temperature"] = 0.7
    lines = drawn(repeats)
    assert lines[1].startswith("REFUSED: ")
    assert lines[2:] == ["  \u2022 temperature: 0.0 on http; 0.7 on serving"]
