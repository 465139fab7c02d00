"""The card of a run: the few facts without which a figure means nothing, in fixed keys.

Times are means in seconds but `itl_p95`; throughput is output tokens per second; `offline_peak` is bytes and
`serving_kv_pool` tokens. A field that this mode or this server has no figure for is null, and a reason says why: a
figure of one mode is never offered as a statement on the other.
"""

from collections.abc import Iterator, Mapping
from typing import Any


def card_of(data: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The card, from a record (`data` is record.json), and for each null in it, by its dotted key, why."""
    card = _card(data)
    return card, {key: _reason(key, data) for key, value in _flat(card) if value is None}


def figure(data: Mapping[str, Any], key: str) -> tuple[Any, str | None]:
    """The value of a card's field, such as memory.offline_peak, and where it is None, why; raises KeyError."""
    card, reasons = card_of(data)
    for part in key.split("."):
        card = card[part]
    return card, reasons.get(key)


def _flat(card: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in card.items():
        if isinstance(value, Mapping) and prefix.count(".") == 0:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _reason(key: str, data: Mapping[str, Any]) -> str:
    mode = data["mode"]
    if key == "memory.offline_peak":
        if mode == "serving":
            return (
                "a serving run has no offline peak: memory of a service says nothing of a one-shot; run --mode oneshot"
            )
        return str((data.get("memory") or {}).get("reason") or "memory was not sampled")
    if key == "memory.serving_kv_pool" and mode != "serving":
        return f"a {mode} run serves nothing: its pool is not the service's; run --mode serving"
    if key == "concurrency.max_concurrency":
        return "no client cap in this mode" if mode != "serving" else "limits.max_concurrency is not set: no client cap"
    if key.startswith("perf."):
        return "too few samples: no answer has this figure"
    if key == "workload.num_prompts":
        return "the duration ends the load, not a number of prompts"
    return "the server does not tell it" if mode != "static" else "there is no scheduler that has it"


def _card(data: Mapping[str, Any]) -> dict[str, Any]:
    scenario, server, metrics = data["scenario"], data["target"]["server"], data["metrics"]
    chunk = server.get("chunked_prefill_size")
    classes = scenario["traffic"] or [scenario]
    workloads = [one["workload"] for one in classes]
    counts = [own["num_prompts"] for own in workloads]
    return {
        "mode": data["mode"],
        "batching_mode": "static" if data["mode"] == "static" else "continuous",
        "arrival_pattern": " + ".join(one["arrivals"]["kind"] for one in classes),
        "concurrency": {
            "max_running_requests": (data.get("static") or {}).get("batch_size")
            or server.get("effective_max_running_requests")
            or server.get("max_running_requests"),
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
        "memory": {
            "offline_peak": (data.get("memory") or {}).get("peak_bytes") if data["mode"] != "serving" else None,
            "serving_kv_pool": server.get("max_total_num_tokens") if data["mode"] == "serving" else None,
        },
        "path": {"resolved_backend": _by_running(data) or _backend(server)},
    }


def _backend(server: Mapping[str, Any]) -> str | None:
    """What computes attention, as the server resolved it; both where prefill and decode differ."""
    both = server.get("prefill_attention_backend"), server.get("decode_attention_backend")
    one: str | None = server.get("attention_backend")
    prefill, decode = (own or one for own in both)
    return one if prefill == decode else f"{prefill} (prefill), {decode} (decode)"


def _by_running(data: Mapping[str, Any]) -> dict[str, str] | None:
    """What decoded, by the number of sequences in the batch, neighbours of one path joined: {"1-16": "fa3, graph",
    "17-40": "fa3, no graph"}. By what the server logged of its steps; of fixed batches by the shape they were fixed at.
    """
    backend = _backend(data["target"]["server"])
    if fixed := data.get("static"):
        return {str(fixed["batch_size"]): f"{backend}, batch fixed"}
    told = ((data.get("telemetry") or {}).get("log") or {}).get("by_running") or {}
    paths: list[tuple[str, str, str]] = []  # first and last number of sequences, path
    for n, own in sorted(told.items(), key=lambda item: int(item[0])):
        graph = {0: "no graph", own["steps"]: "graph"}.get(own["graph"], "graph in some steps")
        path = f"{backend}, {graph}"
        if paths and paths[-1][2] == path:
            paths[-1] = (paths[-1][0], n, path)
        else:
            paths.append((n, n, path))
    return {first if first == last else f"{first}-{last}": path for first, last, path in paths} or None


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
