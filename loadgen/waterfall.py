"""From rung to rung: what a pair's figures are, and what each step between two rungs makes of them.

The figures of a rung are those of its records, one a repeat. A step is the paired difference between two neighbouring
rungs over the repeats, with the t interval of its mean (loadgen.stats); a step whose interval holds 0 is no finding,
nor is one that is smaller than what the figure can tell apart. Figures of an INVALID run are not used, nor
quantiles that the samples do not carry.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from loadgen.stats import CONFIDENCE, Interval, interval
from loadgen.verdict import carries, fits

Data = Mapping[str, Any]  # record.json

UNITS = {"tokens/s": 1.0, "requests/s": 1.0, "ms": 1e3, "GB": 1e-9, "%": 100.0}  # how a figure is shown


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of the waterfall: how it is called, the unit in which it is shown, and what it is in a record.

    In a record it is in SI units, or a share; `take` raises MissingError, with the reason, where there is none. Two
    values are told apart where they differ by more than `apart` and more than the share `of_it` of the larger.
    """

    name: str
    unit: str
    take: Callable[[Data], float]
    apart: float = 0.0
    of_it: float = 0.0

    def tells(self, difference: float, larger: float) -> bool:
        """Whether a difference is more than the figure's own coarseness."""
        return abs(difference) > (self.apart + self.of_it * larger) * (1 + 1e-9)


class MissingError(Exception):
    """A record has no such figure; the text says why."""


def _rate(key: str) -> Callable[[Data], float]:
    def take(data: Data) -> float:
        value = data["throughput"][key]
        if value is None:
            raise MissingError("no time to take a rate over")
        return float(value)

    return take


def _metric(name: str, statistic: str) -> Callable[[Data], float]:
    def take(data: Data) -> float:
        metric = data["metrics"][name]
        if metric["count"] == 0:
            raise MissingError("no answer has it")
        if statistic != "mean" and not carries(metric, statistic):
            raise MissingError(f"{metric['count']} samples do not carry {statistic}")
        return float(metric[statistic])

    return take


def _memory(data: Data) -> float:
    memory = data.get("memory") or {}
    if data["target"]["simulated"]:
        raise MissingError("a simulator's memory says nothing")
    if not memory.get("peak_bytes"):
        raise MissingError(memory.get("reason") or "not sampled")
    return float(memory["peak_bytes"])


def _gpu_memory(data: Data) -> float:
    """Apart from the host's: a rung without NVML beside one with it would be a step from one to the other."""
    memory = data.get("memory") or {}
    if data["target"]["simulated"]:
        raise MissingError("a simulator's memory says nothing")
    if not memory.get("gpu_peak_bytes"):
        raise MissingError(memory.get("gpu_reason") or "not sampled")
    return float(memory["gpu_peak_bytes"])


def _pool(data: Data) -> float:
    if fixed := data.get("static"):
        return float(fixed["needs_tokens"] / fixed["pool_tokens"])
    log = (data.get("telemetry") or {}).get("log") or {}
    peak = (log.get("usage") or {}).get("peak")
    if peak is None:
        raise MissingError(log.get("absent") or "the log does not tell it")
    return float(peak)


def _hits(data: Data) -> float:
    if "static" in data:
        raise MissingError("fixed batches have no prefix cache")
    rate = data["prompts"]["cache"]["hit_rate"]
    if rate is None:
        raise MissingError("the server does not report its cache's hits")
    return float(rate)


HDR = {"apart": 1e-6, "of_it": 1e-3}  # quantiles of the histograms: three digits, rounded to µs
FIGURES = (
    Figure("throughput", "tokens/s", _rate("output_tokens_per_s")),
    Figure("requests", "requests/s", _rate("requests_per_s")),
    Figure("TTFT p50", "ms", _metric("ttft", "p50"), **HDR),
    Figure("TTFT p95", "ms", _metric("ttft", "p95"), **HDR),
    Figure("TPOT mean", "ms", _metric("tpot", "mean")),
    Figure("ITL p95", "ms", _metric("itl", "p95"), **HDR),
    Figure("peak memory", "GB", _memory),
    Figure("GPU memory", "GB", _gpu_memory),
    Figure("pool use", "%", _pool, apart=0.01),  # the log has two decimals of it
    Figure("cache hits", "%", _hits),
)


def waterfall(repeats: Sequence[Mapping[str, Data]]) -> dict[str, Any]:
    """Rungs, figures and steps of a ladder that was climbed so often, as JSON; each repeat has its records by rung."""
    rungs = list(repeats[0])
    return {
        "repeats": len(repeats),
        "confidence": CONFIDENCE,
        "rungs": {rung: _rung([own[rung] for own in repeats]) for rung in rungs},
        "figures": [_across(figure, rungs, repeats) for figure in FIGURES],
    }


def _rung(records: Sequence[Data]) -> dict[str, Any]:
    """What a rung is: mode and batch composition, of all its repeats."""
    first = records[0]
    running = [((data.get("telemetry") or {}).get("log") or {}).get("running") or {} for data in records]
    means = [own["mean"] for own in running if own.get("mean") is not None]
    batch = first["static"]["batch_size"] if "static" in first else sum(means) / len(means) if means else None
    return {
        "mode": first["mode"],
        "batching": first["card"]["batching_mode"],
        "transport": first.get("transport"),
        "arrivals": first.get("arrivals"),
        "max_concurrency": first["scenario"]["limits"]["max_concurrency"],
        "mean_batch": batch,
        "path": first["card"]["path"]["resolved_backend"],
        "not_used": [reason for data in records for reason in _not_used(data)],
    }


def _not_used(data: Data) -> Iterator[str]:
    """Why the figures of a run are not used, where they are not."""
    if not fits(data):
        yield f"does not fit: {data['verdict']['reasons'][0]}"
    elif not data["verdict"]["valid"]:
        yield "INVALID: " + "; ".join(data["verdict"]["reasons"])


def _across(figure: Figure, rungs: Sequence[str], repeats: Sequence[Mapping[str, Data]]) -> dict[str, Any]:
    taken = {rung: [figure_of(figure, own[rung]) for own in repeats] for rung in rungs}
    return {
        "name": figure.name,
        "unit": figure.unit,
        "rungs": {rung: _mean(values) for rung, values in taken.items()},
        "steps": [_step(figure, below, above, taken[below], taken[above]) for below, above in pairwise(rungs)],
    }


def figure_of(figure: Figure, data: Data) -> float | str:
    """The figure of a record, or why there is none."""
    if why := next(_not_used(data), None):
        return why.partition(":")[0]
    try:
        return figure.take(data)
    except MissingError as missing:
        return str(missing)


def _mean(values: Sequence[float | str]) -> dict[str, Any]:
    numbers = [value for value in values if not isinstance(value, str)]
    reasons = dict.fromkeys(value for value in values if isinstance(value, str))
    return {
        "mean": sum(numbers) / len(numbers) if numbers else None,
        "values": [None if isinstance(value, str) else value for value in values],
        "reason": "; ".join(reasons) or None,
    }


def _step(
    figure: Figure, below: str, above: str, lower: Sequence[float | str], upper: Sequence[float | str]
) -> dict[str, Any]:
    """One step: the differences of the repeats in which both rungs have the figure."""
    pairs = [(a, b) for a, b in zip(lower, upper, strict=True) if not isinstance(a, str) and not isinstance(b, str)]
    differences = [b - a for a, b in pairs]
    found = interval(differences)
    base = sum(a for a, _ in pairs) / len(pairs) if pairs else 0.0
    mean = sum(differences) / len(differences) if differences else None
    return {
        "from": below,
        "to": above,
        "difference": mean,
        "relative": mean / base if mean is not None and base else None,
        "interval": None if found is None else [found.low, found.high],
        "n": len(pairs),
        "finding": _finding(figure, pairs, found),
    }


def _finding(figure: Figure, pairs: Sequence[tuple[float, float]], found: Interval | None) -> str:
    if not pairs:
        return "no figure on both sides"
    if found is None:
        return "one repeat: no interval"
    if found.holds_zero:
        return "no difference seen"
    if not figure.tells(found.mean, max(max(pair) for pair in pairs)):
        return "too small to tell"
    return "higher" if found.mean > 0 else "lower"
