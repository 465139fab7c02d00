"""The card of a run: the few facts without which a figure means nothing, in fixed keys.

Times are means in seconds but `itl_p95`; throughput is output tokens per second. A field that this mode or this server
has no figure for is null: a figure of one mode is never offered as a statement on the other.
"""

from collections.abc import Mapping
from typing import Any


def card_of(data: Mapping[str, Any]) -> dict[str, Any]:
    """The card, from a record (`data` is record.json)."""
    scenario, server, metrics = data["scenario"], data["target"]["server"], data["metrics"]
    chunk = server.get("chunked_prefill_size")
    classes = scenario["traffic"] or [scenario]
    workloads = [one["workload"] for one in classes]
    counts = [own["num_prompts"] for own in workloads]
    return {
        "mode": data["mode"],
        "batching_mode": "continuous",
        "arrival_pattern": " + ".join(one["arrivals"]["kind"] for one in classes),
        "concurrency": {
            "max_running_requests": server.get("effective_max_running_requests") or server.get("max_running_requests"),
            "max_concurrency": scenario["limits"]["max_concurrency"],
        },
        "batch_tokens": {"max_prefill_tokens": server.get("max_prefill_tokens")},
        "chunked_prefill": {"enabled": chunk > 0 if isinstance(chunk, int) else None, "chunked_prefill_size": chunk},
        "workload": {
            "input_len": _one_or_all([_length(own, "input_len") for own in workloads]),
            "output_len": _one_or_all([_length(own, "output_len") for own in workloads]),
            "num_prompts": None if None in counts else sum(counts),
        },
        "perf": {
            "ttft": metrics["ttft"]["mean"],
            "tpot": metrics["tpot"]["mean"],
            "itl_p95": metrics["itl"]["p95"],
            "throughput": data["throughput"]["output_tokens_per_s"],
        },
        "memory": {"offline_peak": None, "serving_kv_pool": server.get("max_total_num_tokens")},
        "path": {"resolved_backend": server.get("attention_backend")},
    }


def _length(workload: Mapping[str, Any], key: str) -> Any:
    """A length as it was asked for; where there is none, as in a trace, the kind of the workload."""
    length = workload.get(key)
    if key == "input_len" and workload["kind"] == "prefix":
        return {part: _length(workload, part) for part in ("system_len", "question_len")}
    if length is None:
        return workload["kind"]
    return length["value"] if length["kind"] == "constant" else dict(length)


def _one_or_all(lengths: list[Any]) -> Any:
    return lengths[0] if len(lengths) == 1 else lengths
