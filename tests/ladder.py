"""Records of a ladder for tests, in the keys of record.json that are compared and concluded from; made up."""

import copy
from typing import Any

METRIC = {"count": 400, "mean": 0.1, "p50": 0.1, "p90": 0.1, "p95": 0.1, "p99": 0.1, "p999": 0.1, "max": 0.1}


def metric(**values: Any) -> dict[str, Any]:
    return {**METRIC, **values}


def record(rung: str, **changes: Any) -> dict[str, Any]:
    """The record.json of a rung; `changes` are laid over it by dotted keys with __ for the dot."""
    mode = rung if rung in ("static", "oneshot") else "serving"
    cap = 64 if rung in ("capped", "serving") else None
    arrivals = "burst" if rung == "serving" else "oneshot"
    data: dict[str, Any] = {
        "mode": mode,
        "transport": "http" if mode == "serving" else "in-process",
        "arrivals": arrivals,
        "name": "burst",
        "seed": 0,
        "complete": True,
        "answers_decide": False,
        "fingerprints": {"prompts": "p", "output_len": "o", "workload": "w", "schedule": "s"},
        "lengths": {
            "requests": 400,
            "input_len": {"total": 102400, "mean": 256.0, "p50": 256, "p95": 256, "max": 256},
            "output_len": {"total": 12800, "mean": 32.0, "p50": 32, "p95": 32, "max": 32},
        },
        "scenario": {
            "limits": {"max_concurrency": cap, "overflow": "queue"},
            "sampling": {"temperature": 0.0, "top_p": 1.0, "ignore_eos": True},
            "measure": {"warmup": 4, "itl_rule": "spread"},
            "traffic": [],
            "arrivals": {"kind": arrivals},
        },
        "counts": {"scheduled": 400, "sent": 400, "ok": 400, "fault": 0, "dropped": 0},
        "metrics": {name: metric() for name in ("ttft", "ttft_service", "tpot", "itl", "e2e")},
        "throughput": {"requests_per_s": 8.0, "input_tokens_per_s": 2000.0, "output_tokens_per_s": 256.0},
        "offered": {"scheduled_per_s": 8.0 if rung == "serving" else None},
        "concurrency": {"mean": 4.0, "peak": 16, "share_at_cap": 0.0},
        "prompts": {
            "lengths": {"server_tokens": 102400},
            "cache": {"hit_rate": 0.0, "cached_tokens": 0, "prompt_tokens": 102400, "shared_tokens": 0},
        },
        "verdict": {"valid": True, "reasons": []},
        "target": {
            "kind": "sglang",
            "simulated": False,
            "stand_ins": False,
            "model": "m",
            "server": {
                "version": "0.5.23",
                "model_path": "m",
                "max_running_requests": 32,
                "effective_max_running_requests": 32,
                "max_total_num_tokens": 32768,
                "chunked_prefill_size": 2048,
                "max_prefill_tokens": 16384,
                "schedule_policy": "fcfs",
                "disable_radix_cache": False,
                "dtype": "float32",
                "quantization": None,
            },
        },
        "memory": {"peak_bytes": 2_000_000_000, "processes": 3, "gpu_peak_bytes": None, "reason": None},
        "telemetry": {
            "log": {
                "absent": None,
                "prefill_steps": 60,
                "decode_lines": 900,
                "decode_log_interval": 1,
                "new_tokens": 102400,
                "cached_tokens": 0,
                "running": {"mean": 12.0, "peak": 16},
                "queued": {"mean": 0.2, "peak": 3},
                "usage": {"mean": 0.1, "peak": 0.14},
                "prefill_tokens": {"p50": 2048, "max": 2048},
            }
        },
        "environment": {"cpu": "c", "cores": 2, "loadgen": "0.1.0"},
        "card": {
            "mode": mode,
            "batching_mode": "static" if rung == "static" else "continuous",
            "path": {"resolved_backend": "fa3"},
            "workload": {"input_len": 256, "output_len": 32},
        },
    }
    if rung == "static":
        data["static"] = {
            "fits": True,
            "batch_size": 32,
            "batches": 13,
            "needs_tokens": 9216,
            "pool_tokens": 32768,
            "max_batch": 32,
        }
        data["telemetry"]["log"] |= {"prefill_steps": 0, "decode_lines": 0, "new_tokens": 0}
    for key, value in changes.items():
        *path, last = key.split("__")
        table = data
        for part in path:
            table = table[part]
        table[last] = value
    return copy.deepcopy(data)


def ladder(*rungs: str, **changes: Any) -> dict[str, dict[str, Any]]:
    """Records of these rungs, each with the same changes."""
    return {rung: record(rung, **changes) for rung in rungs or ("static", "oneshot", "http", "capped", "serving")}
