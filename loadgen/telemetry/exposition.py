"""What two scrapes of SGLang's /metrics say of the time between them.

Names, labels and meanings are those of SGLang 0.5.23 (metrics_collector.py). Of its text, 90 KB before any traffic,
only the lines of the families below are parsed.

A family's samples are brought together: counters and histograms are added over their labels (is_streaming,
cache_source, data-parallel ranks), or by `mode` where that tells what is counted. Where every rank of a tensor- or
pipeline-parallel group reports, the first one speaks for the group. Of gauges, counts are added over data-parallel
ranks and ratios averaged; their breakdown by priority is left out, as the total stands beside it.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from loadgen.exchange import QUANTILES

COUNTERS = tuple(
    """
    prompt_tokens_total generation_tokens_total cached_tokens_total num_requests_total num_aborted_requests_total
    num_retracted_requests_total evicted_tokens_total realtime_tokens_total cuda_graph_passes_total
""".split()
)
COUNTS = ("num_running_reqs", "num_queue_reqs", "num_used_tokens", "max_total_num_tokens")
RATIOS = ("token_usage", "cache_hit_rate", "new_token_ratio", "is_cuda_graph")
HISTOGRAMS = tuple(
    f"{name}_seconds" for name in ("time_to_first_token", "inter_token_latency", "e2e_request_latency", "queue_time")
)
_QUANTILES = {name: QUANTILES[name] for name in ("p50", "p95", "p99")}
_PREFIX = "sglang:"
_PLAIN = "|".join((*COUNTERS, *COUNTS, *RATIOS))
_FILLED = rf"(?:{'|'.join(HISTOGRAMS)})_(?:bucket|sum|count)"
_LINES = {
    wanted: re.compile(rf"^{_PREFIX}(?:{names})[{{ ].*\n?", re.MULTILINE)
    for wanted, names in ((False, _PLAIN), (True, f"{_PLAIN}|{_FILLED}"))
}


@dataclass(frozen=True, slots=True)
class Histogram:
    """Observations in seconds: `buckets` has for each upper bound, the last of them inf, how many were not above it."""

    count: float
    sum: float
    buckets: Mapping[float, float]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One scrape, by names without `sglang:`, with the mode after a dot (realtime_tokens_total.decode). A family that
    the server did not send is not here."""

    counters: Mapping[str, float]
    gauges: Mapping[str, float]
    histograms: Mapping[str, Histogram]


def snapshot(text: str, *, histograms: bool = True) -> Snapshot:
    """The scrape of this text, without its many buckets where `histograms` are not wanted; raises ValueError where a
    wanted line of it is no Prometheus exposition."""
    found = defaultdict[str, list[Sample]](list)
    for family in text_string_to_metric_families("".join(_LINES[histograms].findall(text))):
        for sample in family.samples:
            found[sample.name.removeprefix(_PREFIX)].append(sample)
    samples = {name: list(_first_of_group(each)) for name, each in found.items()}

    counters = defaultdict[str, float](float)
    for name in COUNTERS:
        for sample in samples.get(name, ()):
            mode = sample.labels.get("mode")
            counters[f"{name}.{mode}" if mode else name] += sample.value
    gauges = {}
    for name in (*COUNTS, *RATIOS):
        values = [sample.value for sample in samples.get(name, ()) if not sample.labels.get("priority")]
        if values:
            gauges[name] = sum(values) / (len(values) if name in RATIOS else 1)
    filled = {name: _histogram(name, samples) for name in HISTOGRAMS if f"{name}_bucket" in samples}
    return Snapshot(dict(counters), gauges, filled)


def _first_of_group(samples: list[Sample]) -> Iterator[Sample]:
    """Those of the first pipeline and tensor rank that each data-parallel rank reports by."""
    first: dict[str, tuple[int, int]] = {}
    for sample in samples:
        group, rank = _group_and_rank(sample)
        first[group] = min(first.get(group, rank), rank)
    return (sample for sample in samples for group, rank in [_group_and_rank(sample)] if rank == first[group])


def _group_and_rank(sample: Sample) -> tuple[str, tuple[int, int]]:
    labels = sample.labels
    return labels.get("dp_rank", ""), (int(labels.get("pp_rank", 0)), int(labels.get("tp_rank", 0)))


def _histogram(name: str, samples: Mapping[str, list[Sample]]) -> Histogram:
    buckets = defaultdict[float, float](float)
    for sample in samples[f"{name}_bucket"]:
        buckets[float(sample.labels["le"])] += sample.value
    count, total = (sum(sample.value for sample in samples.get(f"{name}_{of}", ())) for of in ("count", "sum"))
    return Histogram(count, total, dict(sorted(buckets.items())))


def difference(before: Snapshot, after: Snapshot) -> dict[str, Any]:
    """`counters` by name, `histograms` in seconds, and `reason`: of each null figure why.

    A quantile is a pair of bucket bounds: that of the observations (by nearest rank) lies in (low, high], and above
    low where high is null; low is 0 for the first bucket, which has zeros too. A counter first appears when it first
    counts, so one that is only in `after` began at 0. One that fell tells that the server was restarted: nothing can be
    subtracted then, and all is null.
    """
    names = [*dict.fromkeys([*COUNTERS, *before.counters, *after.counters])]
    modes = {name.partition(".")[0] for name in names if "." in name}
    names = [name for name in names if name not in modes]
    restarted = _restarted(before, after)
    reason: dict[str, str] = {}
    counters: dict[str, float | None] = {}
    histograms: dict[str, dict[str, Any] | None] = {}
    for name in names:
        counters[name] = None
        if restarted:
            reason[name] = restarted
        elif name in after.counters:
            counters[name] = after.counters[name] - before.counters.get(name, 0.0)
        else:
            reason[name] = "not among the server's metrics: it was never counted, or this version has no such counter"
    for name in HISTOGRAMS:
        histograms[name] = None
        if restarted:
            reason[name] = restarted
        elif name in after.histograms:
            histograms[name] = found = _between(before.histograms.get(name), after.histograms[name])
            if not found["count"]:
                reason[name] = "nothing was observed between the two scrapes"
        else:
            reason[name] = "not among the server's metrics"
    return {"counters": counters, "histograms": histograms, "reason": reason}


def _restarted(before: Snapshot, after: Snapshot) -> str | None:
    counts = [{**each.counters, **{name: h.count for name, h in each.histograms.items()}} for each in (before, after)]
    for name, value in counts[0].items():
        now = counts[1].get(name, 0.0)
        if now < value:
            return f"the server was restarted between the two scrapes: {name} fell from {value:g} to {now:g}"
    return None


def _between(before: Histogram | None, after: Histogram) -> dict[str, Any]:
    before = before or Histogram(0.0, 0.0, {})
    count, total = after.count - before.count, after.sum - before.sum
    buckets = {bound: value - before.buckets.get(bound, 0.0) for bound, value in after.buckets.items()}
    quantiles = {
        name: _bounds(buckets, math.ceil(q * count - 1e-9)) if count else None for name, q in _QUANTILES.items()
    }
    return {"count": int(count), "mean": total / count if count else None, "sum": total} | quantiles


def _bounds(buckets: Mapping[float, float], rank: int) -> list[float | None]:
    """The bounds of the bucket that has the observation of this rank, counted from 1."""
    low = 0.0
    for bound, below in buckets.items():
        if below >= rank:
            return [low, bound if math.isfinite(bound) else None]
        low = bound
    return [low, None]
