"""The verdict: may these figures be used? It is given before any figure, and each reason says what to do next.

It judges the run, not the server: a slow server is a VALID run with large figures. A run is INVALID where the load
was not what it says it was, or where the figures do not carry what they are printed to say.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from loadgen.exchange import QUANTILES

PRINTED = ("ttft", "ttft_service", "tpot", "itl", "e2e")  # the metrics whose quantiles must carry
LAG_LIMIT = 0.005  # seconds of the client's own lateness at p99
LAG_SHARE = 0.05  # of the median TTFT
RATE_SHARE = 0.02  # the achieved rate may be this far off the schedule
WARM_SHARE = 0.01  # of the prompt tokens may come from a cache that should have been cold
FULL_SHARE = 0.9  # of the injected prefills must have met a full background batch


@dataclass(frozen=True, slots=True)
class Verdict:
    valid: bool
    reasons: list[str]

    def as_dict(self) -> dict[str, Any]:
        return {"valid": self.valid, "reasons": self.reasons}


def samples_needed(q: float) -> int:
    """The fewest independent samples that bound the q-quantile (0 < q < 1) from above with 95 % confidence.

    The largest of n samples lies above it with probability 1 - qⁿ, so n >= ln 0.05 / ln q: 59 for p95, 299 for p99.
    """
    return math.ceil(math.log(0.05) / math.log(q) - 1e-9)


def carries(metric: Mapping[str, Any], quantile: str) -> bool:
    """Whether a metric of a record has the samples for a quantile, such as p99."""
    return bool(metric["count"] >= samples_needed(QUANTILES[quantile]))


def judge(data: Mapping[str, Any]) -> Verdict:
    """The verdict on a run, from its record (`data` is record.json)."""
    reasons = list(_reasons(data))
    return Verdict(not reasons, reasons)


def fits(data: Mapping[str, Any]) -> bool:
    """Whether a run's fixed batches fitted; that one does not is a result, and not the run's fault."""
    return "static" not in data or bool(data["static"]["fits"])


def _too_large(fixed: Mapping[str, Any]) -> str:
    """What a fixed batch needs and what there is, and what to do."""
    size, needs, pool = fixed["batch_size"], fixed["needs_tokens"], fixed["pool_tokens"]
    if needs <= pool and size <= fixed["max_batch"]:
        return f"a batch of {size} needs more memory than there is, at {needs:,} tokens: take a smaller --batch-size"
    most = min(int(pool / (needs / size)), fixed["max_batch"])
    smaller = f"--batch-size {most} fits" if most else "not even one of these fits"
    return (
        f"a batch of {size} needs {needs:,} of {pool:,} tokens and {size} of {fixed['max_batch']} sequences; {smaller},"
        " or give target.server a larger max_total_tokens or mem_fraction_static, and max_running_requests"
    )


def _reasons(data: Mapping[str, Any]) -> Iterator[str]:
    if not fits(data):
        yield _too_large(data["static"])
        return
    counts, metrics, measure = data["counts"], data["metrics"], data["scenario"]["measure"]
    scheduled = counts["scheduled"]
    cancelled = data["faults"].get("cancelled", 0)
    open_at_end = cancelled - data["unsent"]
    if died := data["target"].get("died"):
        yield f"the target died in the middle of the run: {died.splitlines()[0]}"
    if not data["complete"]:
        never = scheduled - counts["ok"] - counts["fault"] - counts["dropped"] + data["unsent"]
        yield f"the run was interrupted: {never} of {scheduled} requests never left"
    if open_at_end:
        yield f"{open_at_end} requests were still open at the end"
    if counts["dropped"]:
        yield (
            f"{counts['dropped']} of {scheduled} requests were dropped at the cap of "
            f"{data['scenario']['limits']['max_concurrency']}: the load was lighter than scheduled; raise "
            "limits.max_concurrency or lower the rate"
        )
    faults = counts["fault"] - cancelled
    if faults > measure["max_fault_share"] * scheduled:
        kinds = ", ".join(f"{n} {kind}" for kind, n in data["faults"].items() if kind != "cancelled")
        yield f"{faults} of {scheduled} requests failed ({kinds}), over measure.max_fault_share; see requests.jsonl"
    yield from _pacing(data)
    yield from _cache(data)
    yield from _interference(data)
    if counts["ok"] == 0:
        yield "no request succeeded: there is nothing to measure"
        return
    if metrics["ttft"]["count"] == 0:
        yield "no answer brought a token: there is nothing to measure"
    needs: dict[str, list[str]] = {}
    for name, quantile, metric in _asked_for(data):
        if metric["count"] and not carries(metric, quantile):
            need = f"{quantile} needs {samples_needed(QUANTILES[quantile])} samples"
            needs.setdefault(need, []).append(f"{name} has {metric['count']}")
    for key, _, metric, _ in _slos(data):
        if metric["count"] == 0:
            yield f"slo.{key}: no answer gave a sample of it; take it out, or ask for answers that have it"
    for need, have in needs.items():
        yield f"{need}: {', '.join(dict.fromkeys(have))}; send more prompts or ask for a lower quantile"


def _pacing(data: Mapping[str, Any]) -> Iterator[str]:
    offered, metrics = data["offered"], data["metrics"]
    off = abs(offered["achieved_span"] - offered["scheduled_span"])
    # Where answers decide when requests come due, nobody scheduled a rate.
    scheduled = offered["achieved_per_s"] and not data["answers_decide"]
    if scheduled and off > max(RATE_SHARE * offered["scheduled_span"], LAG_LIMIT):
        yield (
            f"requests left at {offered['achieved_per_s']:.3g}/s where {offered['scheduled_per_s']:.3g}/s were "
            "scheduled: some were held back by the cap or by a busy client"
        )
    if data.get("transport") == "in-process":
        return  # an engine's own front end takes prompts in on our loop, one after the other: that is not our lateness
    # Of few requests the 99th percentile is the first one's; judge the highest that the samples carry.
    lags = metrics["lag"]
    quantile = next((q for q in ("p99", "p95", "p90", "p50") if carries(lags, q)), None)
    if quantile is None:
        return
    lag, limit = lags[quantile], max(LAG_LIMIT, LAG_SHARE * (metrics["ttft"]["p50"] or 0.0))
    if lag > limit:
        yield (
            f"the client sent late: lateness {quantile} is {lag * 1e3:.2f} ms, over {limit * 1e3:.2f} ms "
            f"(the larger of {LAG_LIMIT * 1e3:g} ms and {LAG_SHARE:.0%} of the median TTFT); give it a core of its own"
        )


def _cache(data: Mapping[str, Any]) -> Iterator[str]:
    """Whether a cache that was to be cold was: what came out of it must have been in an earlier prompt of this run."""
    cache = data["prompts"]["cache"]
    warm = cache["unexplained_tokens"]
    if data["scenario"]["measure"]["flush_cache"] and warm > WARM_SHARE * cache["prompt_tokens"]:
        flushed = "though it was flushed" if data["target"]["cache_flushed"] else "which could not be flushed"
        yield (
            f"the prefix cache was warm: {warm:,} of {cache['prompt_tokens']:,} prompt tokens came from it that this "
            f"run had not sent before, {flushed}; restart the server, take another --seed, or say "
            "measure.flush_cache = false"
        )


def _interference(data: Mapping[str, Any]) -> Iterator[str]:
    found = data.get("interference")
    if not found:
        return
    if not found["prefills"]:
        yield "no injected prefill was seen: there is no interference to measure"
    elif found["met_full"] < FULL_SHARE * found["prefills"]:
        met = ", ".join(f"{n} met {streams}" for streams, n in found["met_by"].items())
        yield (
            f"the background batch was not full: only {found['met_full']} of {found['prefills']} injected prefills met "
            f"{found['full']} decoding streams ({met})"
        )


def _asked_for(data: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Name, quantile and figures of all that is printed or held to an SLO."""
    for name in PRINTED:
        for quantile in data["scenario"]["measure"]["quantiles"]:
            yield name, quantile, data["metrics"][name]
    for key, _, metric, statistic in _slos(data):
        if statistic in QUANTILES:
            yield key.rpartition("_")[0], statistic, metric


def _slos(data: Mapping[str, Any]) -> Iterator[tuple[str, float, Mapping[str, Any], str]]:
    """Of each SLO its key, limit, figures and statistic; the key of a class's begins with the class's name."""
    classes = [(f"{one['name']}.", one["slo"], data["traffic"][one["name"]]) for one in data["scenario"]["traffic"]]
    for prefix, slo, own in [("", data["scenario"]["slo"], data), *classes]:
        for key, limit in slo.items():
            name, _, statistic = key.rpartition("_")
            yield f"{prefix}{key}", limit, own["metrics"][name], statistic


def slo_results(data: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """For each SLO its limit in seconds, the value reached, and whether it was met.

    There is no value where the samples are too few for the quantile; without a value an SLO is not met.
    """
    results = {}
    for key, limit, metric, statistic in _slos(data):
        value = metric[statistic] if statistic not in QUANTILES or carries(metric, statistic) else None
        results[key] = {"limit": limit, "value": value, "met": value is not None and value <= limit}
    return results
