"""The terminal report of a fixed record, against the text that was read and approved."""

import copy
import io
from typing import Any

from rich.console import Console
from test_verdict import GOOD

from loadgen.report.terminal import report
from loadgen.verdict import judge, slo_results


def printed(data: dict[str, Any]) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=200).print(report(data))
    return [line.rstrip() for line in file.getvalue().splitlines()]


def a_record(**slo: float) -> dict[str, Any]:
    data = copy.deepcopy(GOOD)
    data |= {"name": "burst", "duration": 100.5, "concurrency": {"mean": 3.25, "peak": 16, "share_at_cap": 0.25}}
    data["target"] |= {"simulated": False, "model": "tiny", "url": "http://127.0.0.1:30000"}
    data["throughput"] = {"requests_per_s": 9.95, "input_tokens_per_s": 2547.2, "output_tokens_per_s": 318.4}
    data["scenario"]["slo"] = slo
    data["metrics"] = {name: metric | {"overflow": 0} for name, metric in data["metrics"].items()}
    data["metrics"]["tpot"]["count"] = 100
    data["metrics"]["itl"] |= {"count": 0} | dict.fromkeys(["mean", "p50", "p90", "p95", "p99", "max"])
    data["slo"] = slo_results(data)
    data["verdict"] = judge(data).as_dict()
    return data


def test_the_verdict_stands_before_the_figures_and_every_line_has_its_unit() -> None:
    data = a_record(ttft_p99=0.5, ttft_mean=0.1)
    data["counts"] |= {"ok": 997, "fault": 3}
    data["faults"] = {"status": 2, "timeout": 1}
    data["metrics"]["e2e"]["overflow"] = 2
    assert printed(data) == [
        "burst · serving, continuous batching · poisson arrivals · tiny at http://127.0.0.1:30000",
        "INVALID",
        "  • p99 needs 299 samples: tpot has 100; send more prompts or ask for a lower quantile",
        "ms                   p50     p90     p95        p99     max    mean  samples",
        "TTFT (from due)   200.00  400.00  400.00     400.00  400.00  200.00    1,000",
        "TTFT (from sent)  200.00  400.00  400.00     400.00  400.00  200.00    1,000",
        "TPOT              200.00  400.00  400.00  needs 299  400.00  200.00      100",
        "ITL                    –       –       –          –       –       –        0",
        "E2E (from due)    200.00  400.00  400.00     400.00  400.00  200.00    1,000",
        "lateness            0.40    0.90    0.90       0.90    0.90    0.40    1,000",
        "requests    1000 scheduled, 1000 sent, 997 ok, 3 failed (2 status, 1 timeout), 0 dropped",
        "rate        10.00/s left, 10.00/s scheduled",
        "throughput  9.95 requests/s, 2,547 input and 318 output tokens/s over 100.5 s",
        "cache       0.0% hit: 0 of 256,000 prompt tokens, in 0 of 1000 requests; nothing is shared; flushed before",
        "in flight   mean 3.2, peak 16; 25.0% of the time at the cap of 64",
        "overflow    2 values over 1 h were counted as 1 h",
        "SLO         ttft_p99 ≤ 500 ms: met, 400.00 ms",
        "SLO         ttft_mean ≤ 100 ms: MISSED, 200.00 ms",
    ]


def test_a_valid_run_says_so_on_its_second_line() -> None:
    data = a_record()
    data["scenario"]["measure"]["quantiles"] = ["p50"]
    data["verdict"] = judge(data).as_dict()
    assert printed(data)[1] == "VALID"


def test_a_run_without_a_single_answer_has_a_report_without_throughput() -> None:
    data = a_record()
    data["counts"] |= {"ok": 0, "fault": 1000}
    data["faults"] = {"connect": 1000}
    data["verdict"] = judge(data).as_dict()
    lines = printed(data)
    assert "no request succeeded" in lines[3]
    assert not any(line.startswith("throughput") for line in lines)
