"""The report in a terminal: the verdict first, then the figures, each with its mode."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from loadgen.exchange import QUANTILES
from loadgen.report.server import server_lines
from loadgen.verdict import PRINTED, carries, fits, samples_needed

_NAMES = {
    "ttft": "TTFT (from due)",
    "ttft_service": "TTFT (from sent)",
    "tpot": "TPOT",
    "itl": "ITL",
    "e2e": "E2E (from due)",
    "lateness": "lateness",
}


def report(data: Mapping[str, Any]) -> RenderableType:
    """The report of a run, from its record (`data` is record.json)."""
    return Group(*_parts(data))


def verdict(data: Mapping[str, Any]) -> RenderableType:
    """VALID, or INVALID with its reasons."""
    if "verdict" not in data:
        return Text("INVALID: the run was killed before it could be judged", style="bold red")
    if data["verdict"]["valid"]:
        return Text("VALID", style="bold green")
    if not fits(data):
        return Text(f"DOES NOT FIT: {data['verdict']['reasons'][0]}", style="bold yellow")
    reasons = (Text(f"  • {reason}") for reason in data["verdict"]["reasons"])
    return Group(Text("INVALID", style="bold red"), *reasons)


def _parts(data: Mapping[str, Any]) -> Iterator[RenderableType]:
    yield Text(heading(data), style="bold")
    yield verdict(data)
    if "verdict" in data and fits(data):
        yield _latencies(data, data["scenario"]["measure"]["quantiles"])
    yield from (Text(f"{name:<12}{line}") for name, line in (_lines(data) if "verdict" in data else _counts(data)))
    for name, own in data.get("traffic", {}).items():
        yield Text(f"\n{name}", style="bold")
        yield _latencies(own, data["scenario"]["measure"]["quantiles"])
        yield from (Text(f"{key:<12}{line}") for key, line in _counts(own))
        if own["counts"]["ok"]:
            yield Text(f"{'throughput':<12}{_throughput(own)}")


def heading(data: Mapping[str, Any]) -> str:
    """Name, mode, batching and who was driven: a figure never leaves its mode."""
    target = data["target"]
    classes = data["scenario"].get("traffic") or [data["scenario"]]
    arrivals = " and ".join(one["arrivals"]["kind"] for one in classes)
    in_process = data.get("transport") == "in-process"
    where = "in this process" if in_process else f"at {target['url']}"
    who = f"simulated {'engine' if in_process else 'server'}" if target["simulated"] else f"{target['model']} {where}"
    stand_ins = " with stand-ins for a CPU" if target.get("stand_ins") else ""
    return f"{data['name']} · {data['mode']}, {batching(data)} batching · {arrivals} arrivals · {who}{stand_ins}"


def batching(data: Mapping[str, Any]) -> str:
    """How batches were formed: continuously, by a scheduler, or fixed."""
    return "static" if data["mode"] == "static" else "continuous"


def _latencies(data: Mapping[str, Any], quantiles: Sequence[str]) -> Table:
    table = Table("ms", *quantiles, "max", "mean", "samples", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for name in (*PRINTED, "lateness"):
        metric = data["metrics"][name]
        figures = [_figure(metric, quantile) for quantile in quantiles]
        table.add_row(_NAMES[name], *figures, _ms(metric["max"]), _ms(metric["mean"]), f"{metric['count']:,}")
    return table


def _figure(metric: Mapping[str, Any], quantile: str) -> str:
    if metric["count"] and not carries(metric, quantile):
        return f"needs {samples_needed(QUANTILES[quantile])}"
    return _ms(metric[quantile])


def _ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1e3:,.2f}"


def _lines(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    counts, concurrency = data["counts"], data["concurrency"]
    yield from _counts(data)
    if data["offered"]["achieved_per_s"]:
        scheduled = f"{data['offered']['scheduled_per_s']:.2f}/s scheduled"
        if data.get("answers_decide"):
            scheduled = "the answers decide when requests come due"
        yield "rate", f"{data['offered']['achieved_per_s']:.2f}/s left, {scheduled}"
    if conversations := data.get("conversations"):
        due, turns = conversations["turns_due"], conversations["turns"]
        yield "turns", f"{due:,} of {turns:,} of the conversations that began came due before the end"
    if counts["ok"]:
        yield "throughput", f"{_throughput(data)} {_over(data)}"
    for reason, n in data.get("skipped", {}).items():
        yield "trace", f"{n:,} of its rows were skipped for an {reason}"
    yield from _prompts(data)
    yield from _interference(data)
    cap = data["scenario"]["limits"]["max_concurrency"]
    at_cap = f"{concurrency['share_at_cap']:.1%} of the time at the cap of {cap}" if cap else "no cap"
    yield "in flight", f"mean {concurrency['mean']:.1f}, peak {concurrency['peak']}; {at_cap}"
    yield from server_lines(data)
    if overflow := sum(metric["overflow"] for metric in data["metrics"].values()):
        yield "overflow", f"{overflow} values over 1 h were counted as 1 h"
    for key, slo in data["slo"].items():
        reached = "too few samples" if slo["value"] is None else f"{slo['value'] * 1e3:,.2f} ms"
        yield "SLO", f"{key} ≤ {slo['limit'] * 1e3:g} ms: {'met' if slo['met'] else 'MISSED'}, {reached}"


def _throughput(data: Mapping[str, Any]) -> str:
    rates = data["throughput"]
    if rates["requests_per_s"] is None:
        return "no time to take a rate over"
    tokens = f"{rates['input_tokens_per_s']:,.0f} input and {rates['output_tokens_per_s']:,.0f} output tokens/s"
    return f"{rates['requests_per_s']:.2f} requests/s, {tokens}"


def _over(data: Mapping[str, Any]) -> str:
    begin, end = data.get("window", (0.0, data["duration"]))
    return f"over {end:.1f} s" if not begin else f"from {begin:.1f} to {end:.1f} s"


def _prompts(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Prompt lengths where the server counts other tokens than were asked for, and what its prefix cache had."""
    if "prompts" not in data or not fits(data):  # a record of before this was noted, or nothing ran
        return
    lengths, cache = data["prompts"]["lengths"], data["prompts"]["cache"]
    if lengths["differ"]:
        yield (
            "lengths",
            f"{lengths['differ']} of {lengths['requests']} prompts have another length by the server's count, by up to "
            f"{lengths['most']} tokens: {lengths['server_tokens']:,} in all, {lengths['asked_tokens']:,} asked for",
        )
    if "static" in data:
        return  # a bare model runner has no prefix cache
    if not cache["requests"]:
        how = "SGLang tells them on its OpenAI API with --enable-cache-report"
        yield "cache", f"hits are not reported by this server ({how}); {_flushed(data)}"
        return
    known = cache["shared_known"]
    of_them = "" if known == cache["requests"] else f" of the {known} requests where that is known"
    sent = (
        f"{cache['shared_tokens']:,} had been sent before in this run"
        if cache["shared_tokens"]
        else "nothing is shared"
    )
    shared = f"{sent}{of_them}; " if known else ""
    yield (
        "cache",
        f"{cache['hit_rate']:.1%} hit: {cache['cached_tokens']:,} of {cache['prompt_tokens']:,} prompt tokens, in "
        f"{cache['hits']} of {cache['requests']} requests; {shared}{_flushed(data)}",
    )


def _flushed(data: Mapping[str, Any]) -> str:
    flushed = {True: "flushed before", False: "could not be flushed before", None: "not flushed before"}
    return flushed[data["target"]["cache_flushed"]]


def _interference(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if not (found := data.get("interference")):
        return
    names = data["scenario"]["interference"]
    for kind, gaps in found["gaps"].items():
        figures = ", ".join(f"{q} {_figure(gaps, q)}" for q in ("p50", "p90", "p99"))
        yield kind, f"{gaps['count']:,} gaps of {names['background']}: {figures}, max {_ms(gaps['max'])} ms"
    yield (
        "met",
        f"{found['met_full']} of {found['prefills']} prefills of {names['injected']} met a full background batch of "
        f"{found['full']}",
    )


def _counts(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    counts = data["counts"]
    scheduled = "?" if counts["scheduled"] is None else counts["scheduled"]  # killed, and the answers decide
    outcomes = f"{scheduled} scheduled, {counts['sent']} sent, {counts['ok']} ok, {counts['fault']} failed"
    faults = ", ".join(f"{n} {kind}" for kind, n in data["faults"].items())
    yield "requests", f"{outcomes}{f' ({faults})' if faults else ''}, {counts['dropped']} dropped"


def console() -> Console:
    """A console on stdout that colours terminals and writes plain text elsewhere."""
    plain = Console(highlight=False)
    return plain if plain.is_terminal else Console(highlight=False, width=200)
