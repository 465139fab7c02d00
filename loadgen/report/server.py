"""What a report says of the server's side: its batches and pool, its own latencies beside ours, memory."""

from collections.abc import Iterator, Mapping
from typing import Any


def server_lines(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Name and text of each line, from a record (`data` is record.json); older records have none."""
    telemetry = data.get("telemetry") or {}
    log = telemetry.get("log") or {}
    if log.get("absent"):
        yield "server", f"its batches are not known: {log['absent']}"
    elif log and "static" not in data:  # a bare model runner has no scheduler that writes lines
        yield from _batches(log)
    yield from _beside(data, (telemetry.get("metrics") or {}).get("histograms") or {})
    if fixed := data.get("static"):
        yield from _fixed(fixed)
    yield from _asked(telemetry)
    if peak := (data.get("memory") or {}).get("peak_bytes"):
        gpu = data["memory"]["gpu_peak_bytes"]
        on_gpu = f"; {gpu / 1e9:,.2f} GB on the GPUs" if gpu else ""
        number = data["memory"]["processes"]
        processes = "one process" if number == 1 else f"{number} processes"
        yield "memory", f"peak {peak / 1e9:,.2f} GB over {processes} of the target{on_gpu}"


def _batches(log: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if not log["prefill_steps"] and not log["decode_lines"]:
        yield "server", "its log has no batches in the time of the run"
        return
    running, queued, usage = log["running"], log["queued"], log["usage"]
    mean = "" if running["mean"] is None else f"mean {running['mean']:.1f}, "
    retracted = log["retractions"]["requests"]
    pool = f"pool use peak {usage['peak']:.0%}"
    pool += "" if log["pool_turnover"] is None else f", turned over {log['pool_turnover']:.1f} times"
    yield (
        "batches",
        f"{mean}peak {running['peak']} running, peak {queued['peak']} queued; {pool}; "
        f"{f'{retracted} retracted' if retracted else 'none retracted'}",
    )
    every = log["decode_log_interval"]
    lines = "" if every == 1 else f" (lines, one in {every or '?'} steps)"
    tokens = log["prefill_tokens"]
    yield (
        "steps",
        f"{log['prefill_steps']:,} prefills of {tokens['p50']:,} tokens at the median, {tokens['max']:,} at most; "
        f"{log['decode_lines']:,} decode steps{lines}",
    )


def _beside(data: Mapping[str, Any], histograms: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Our means and the server's own of the same requests: no clock of ours is compared with one of its."""
    if ways := data.get("ways"):
        parts = (
            f"{ways['server_ttft'] * 1e3:.2f} by the server's own clock",
            f"{ways['handed_on'] * 1e3:.2f} until it was handed on",
            f"{ways['transport'] * 1e3:.2f} on the ways there and back",
        )
        yield (
            "TTFT parts",
            f"mean {ways['ttft_service'] * 1e3:.2f} ms from sent ({ways['requests']:,}) = {' + '.join(parts)}",
        )
    for name, ours, theirs in (("TTFT", "ttft_service", "time_to_first_token"), ("ITL", "itl", "inter_token_latency")):
        own, told = data["metrics"][ours], histograms.get(f"{theirs}_seconds")
        if told and told["count"] and own["mean"] is not None:
            yield (
                f"{name} mean",
                f"{own['mean'] * 1e3:.2f} ms here ({own['count']:,}), {told['mean'] * 1e3:.2f} ms by the server's "
                f"histogram ({told['count']:,}): {(own['mean'] - told['mean']) * 1e3:+.2f} ms",
            )


def _asked(telemetry: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What looking at the server cost."""
    looked = [
        f"{path} {own['count']} times, every {own['interval']:g} s, {own['cost_mean_s'] * 1e3:.1f} ms each"
        for path, own in (("/v1/loads", telemetry.get("polls")), ("/metrics", telemetry.get("scrapes")))
        if own and own["count"]
    ]
    if looked:
        yield "looked at", "; ".join(looked)


def _fixed(fixed: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    prefill, decode = fixed["prefill_s"], fixed["decode_step_s"]
    if not prefill["count"]:
        return
    told = f"{fixed['batches']} batches of {fixed['batch_size']}: prefill {prefill['p50'] * 1e3:,.2f} ms at the median"
    if decode["count"]:
        told += f", decode step {decode['p50'] * 1e3:,.2f} ms (of {decode['count']:,})"
    yield "static", f"{told}; a batch needs {fixed['needs_tokens']:,} of {fixed['pool_tokens']:,} tokens"
