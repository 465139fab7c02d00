"""What a report says of the server's side, line by line."""

from typing import Any

import pytest
from ladder import metric, record

from loadgen.report.server import server_lines

HISTOGRAMS = {
    "time_to_first_token_seconds": {"count": 400, "mean": 0.08},
    "inter_token_latency_seconds": {"count": 12400, "mean": 0.01},
}


def lines(data: dict[str, Any]) -> dict[str, str]:
    return dict(server_lines(data))


def served(**changes: Any) -> dict[str, Any]:
    data = record("serving", **changes)
    data["telemetry"]["log"] |= {"retractions": {"events": 0, "requests": 0}, "pool_turnover": 3.54}
    return data


def test_batches_steps_and_memory_are_told() -> None:
    told = lines(served())
    assert told["batches"] == (
        "mean 12.0, peak 16 running, peak 3 queued; pool use peak 14%, turned over 3.5 times; none retracted"
    )
    assert told["steps"] == "60 prefills of 2,048 tokens at the median, 2,048 at most; 900 decode steps"
    assert told["memory"] == "peak 2.00 GB over 3 processes of the target"


def test_lines_that_are_samples_are_no_steps_and_retractions_are_told() -> None:
    data = served(telemetry__log__decode_log_interval=40)
    data["telemetry"]["log"] |= {"retractions": {"events": 2, "requests": 5}, "pool_turnover": None}
    data["telemetry"]["log"]["running"]["mean"] = None
    told = lines(data)
    assert told["steps"].endswith("900 decode steps (lines, one in 40 steps)")
    assert told["batches"] == "peak 16 running, peak 3 queued; pool use peak 14%; 5 retracted"


def test_the_parts_of_the_ttft_add_up_to_ours_and_means_stand_beside_the_servers() -> None:
    ways = {"requests": 400, "ttft_service": 0.085, "server_ttft": 0.08, "handed_on": 0.001, "transport": 0.004}
    data = served(metrics__ttft_service=metric(mean=0.085), metrics__itl=metric(count=12400, mean=0.0101)) | {
        "ways": ways
    }
    data["telemetry"]["metrics"] = {"histograms": HISTOGRAMS}
    told = lines(data)
    assert told["TTFT parts"] == (
        "mean 85.00 ms from sent (400) = 80.00 by the server's own clock + 1.00 until it was handed on + 4.00 on the "
        "ways there and back"
    )
    assert told["TTFT mean"] == "85.00 ms here (400), 80.00 ms by the server's histogram (400): +5.00 ms"
    assert told["ITL mean"] == "10.10 ms here (12,400), 10.00 ms by the server's histogram (12,400): +0.10 ms"


@pytest.mark.parametrize("histograms", [{}, {"time_to_first_token_seconds": {"count": 0, "mean": None}}, None])
def test_a_server_that_tells_no_times_is_not_compared_with(histograms: Any) -> None:
    data = served()
    data["telemetry"]["metrics"] = {"histograms": histograms, "reason": "none"}
    assert not {"TTFT parts", "TTFT mean", "ITL mean"} & set(lines(data))


def test_a_log_that_is_not_there_or_has_no_batches_is_told_and_a_fixed_batch_has_none() -> None:
    absent = served()
    absent["telemetry"]["log"] = {"absent": "target.server_log does not say where"}
    assert lines(absent)["server"] == "its batches are not known: target.server_log does not say where"
    silent = served(telemetry__log__prefill_steps=0, telemetry__log__decode_lines=0)
    assert lines(silent)["server"] == "its log has no batches in the time of the run"
    fixed = record("static")
    fixed["static"] |= {"prefill_s": {"count": 13, "p50": 0.16}, "decode_step_s": {"count": 403, "p50": 0.0096}}
    told = lines(fixed)
    assert "server" not in told
    assert told["static"] == (
        "13 batches of 32: prefill 160.00 ms at the median, decode step 9.60 ms (of 403); a batch needs 9,216 of "
        "32,768 tokens"
    )


def test_what_looking_cost_is_told() -> None:
    data = served()
    data["telemetry"] |= {
        "polls": {"interval": 1.0, "count": 49, "cost_mean_s": 0.0082, "cost_max_s": 0.03},
        "scrapes": {"interval": 5.0, "count": 0, "cost_mean_s": None, "cost_max_s": 0.0},
    }
    assert lines(data)["looked at"] == "/v1/loads 49 times, every 1 s, 8.2 ms each"


def test_an_older_record_has_none_of_it() -> None:
    old = record("serving")
    del old["telemetry"], old["memory"]
    assert lines(old) == {}
