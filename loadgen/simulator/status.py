"""What the simulator tells of itself: health, identity, load and metrics, in the shapes of SGLang 0.5."""

import asyncio
import datetime
import time
from collections.abc import Iterator
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

import loadgen
from loadgen.simulator.engine import Engine, Generation
from loadgen.simulator.settings import Settings, server_info

_LONG = (0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400)
_E2E = (*_LONG, 600, 1200, 1800, 2400)
_ITL = (
    *(0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08, 0.1, 0.2, 0.4, 0.6, 0.8),
    *(1, 2, 4, 6, 8),
)

_QUEUE = (
    *(0, 0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, 1, 2, 3, 4, 5, 10, 15, 20, 30, 40, 50, 60, 70, 80, 90),
    *(100, 200, 300, 400, 500, 600, 700, 800, 900, 1000, 1200, 1400, 1600, 1800, 2000, 2500, 3000),
)


def live_info(engine: Engine, settings: Settings) -> dict[str, Any]:
    """What /server_info answers of an engine that runs, over HTTP or in process."""
    info = server_info(engine.scheduler.limits, settings, engine.scheduler.step_time)
    info["internal_states"][0]["last_gen_throughput"] = engine.gen_throughput
    info["simulator"] |= {"late_steps": engine.late_steps, "max_late": round(engine.max_late, 6)}
    return info


class Status:
    """The routes that tell the engine's state, and the histograms that its tokens fill."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self._engine, self.settings = engine, settings
        self._labels = {"engine_type": "unified", "model_name": settings.served_model_name}
        self._registry = CollectorRegistry()
        self._registry.register(self)
        names = list(self._labels)
        streaming = [*names, "is_streaming"]
        registry = self._registry
        self._ttft = Histogram(
            "sglang:time_to_first_token_seconds", "TTFT", streaming, buckets=_LONG, registry=registry
        )
        self._e2e = Histogram(
            "sglang:e2e_request_latency_seconds", "End to end", streaming, buckets=_E2E, registry=registry
        )
        self._itl = Histogram(
            "sglang:inter_token_latency_seconds", "Inter-token", names, buckets=_ITL, registry=registry
        )
        self._queue = Histogram("sglang:queue_time_seconds", "Queue", names, buckets=_QUEUE, registry=registry)
        self._observe_itl = self._itl.labels(**self._labels).observe

    def add_routes(self, app: web.Application) -> None:
        for path, handler in {
            "/health": self.health,
            "/health_generate": self.health,
            "/server_info": self.server_info,
            "/model_info": self.model_info,
            "/v1/models": self.models,
            "/v1/loads": self.loads,
            "/metrics": self.metrics,
            "/flush_cache": self.flush_cache,
        }.items():
            app.router.add_get(path, handler)
        app.router.add_post("/flush_cache", self.flush_cache)

    def observe(self, generation: Generation, at: float, *, streamed: bool) -> None:
        """Count a token that came at `at`."""
        labels = self._labels | {"is_streaming": str(streamed).lower()}
        if generation.first_token_at is None:
            generation.first_token_at = at
            sequence = generation.sequence
            self._ttft.labels(**labels).observe(at - sequence.submitted)
            self._queue.labels(**self._labels).observe((sequence.admitted or at) - sequence.submitted)
        else:
            self._observe_itl(at - (generation.last_token_at or at))
        generation.last_token_at = at
        if generation.done:
            self._e2e.labels(**labels).observe(at - generation.sequence.submitted)

    async def health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def server_info(self, _: web.Request) -> web.Response:
        return web.json_response(live_info(self._engine, self.settings))

    async def model_info(self, _: web.Request) -> web.Response:
        name = self.settings.served_model_name
        return web.json_response(
            {
                "model_path": name,
                "served_model_name": name,
                "tokenizer_path": name,
                "is_generation": True,
                "preferred_sampling_params": None,
                "weight_version": "default",
                "model_type": "simulated",
                "architectures": None,
            }
        )

    async def models(self, _: web.Request) -> web.Response:
        name = self.settings.served_model_name
        model = {"id": name, "object": "model", "created": int(time.time()), "owned_by": "loadgen", "root": name}
        model |= {"parent": None, "max_model_len": self.settings.context_length}
        return web.json_response({"object": "list", "data": [model]})

    async def loads(self, _: web.Request) -> web.Response:
        scheduler = self._engine.scheduler
        totals, used, pool = scheduler.totals, scheduler.used_tokens, scheduler.limits.max_total_tokens
        now = datetime.datetime.now(datetime.UTC)
        load = {
            "timestamp": now.timestamp(),
            "dp_rank": 0,
            "num_running_reqs": scheduler.num_running,
            "num_waiting_reqs": len(scheduler.waiting),
            "num_waiting_uncached_tokens": self._waiting_uncached_tokens(),
            "num_used_tokens": used,
            "num_total_tokens": used,
            "num_active_tokens": used,
            "num_prealloc_ready_tokens": 0,
            "max_total_num_tokens": pool,
            "max_running_requests": scheduler.limits.max_running_requests,
            "token_usage": round(used / pool, 4),
            "gen_throughput": round(self._engine.gen_throughput, 2),
            "cache_hit_rate": round(self._engine.hit_rate.last, 4),
            "utilization": 0.0,
            "total_prefill_uncached_tokens": totals.prefill_tokens,
            "total_prefill_busy_us": round(totals.prefill_seconds * 1e6),
            "decode_moments": totals.decode_moments if totals.decode_moments[0] else None,
            "memory": {"weight_gb": None, "kv_cache_gb": None, "graph_gb": None, "token_capacity": pool},
            "disaggregation": {
                "mode": "null",
                "prefill_bootstrap_queue_reqs": 0,
                "prefill_inflight_queue_reqs": 0,
                "decode_prealloc_queue_reqs": 0,
                "decode_transfer_queue_reqs": 0,
                "decode_retracted_queue_reqs": 0,
                "kv_transfer_speed_gb_s": 0.0,
                "kv_transfer_latency_ms": 0.0,
            },
            "queues": {
                "waiting": len(scheduler.waiting),
                "grammar": 0,
                "paused": 0,
                "retracted": 0,
                "prealloc_ready": 0,
            },
        }
        head: dict[str, Any] = {"timestamp": now.isoformat(), "version": f"loadgen {loadgen.__version__} simulator"}
        return web.json_response(head | {"accelerator": None, "num_accelerators": 0, "loads": [load]})

    def _waiting_uncached_tokens(self) -> int:
        """An estimate, as SGLang's is where prompts wait unmatched: their tokens by the recent hit rate."""
        scheduler, misses = self._engine.scheduler, 1 - self._engine.hit_rate.recent
        return scheduler.cut_tokens + sum(int(sequence.input_len * misses) for sequence in scheduler.waiting)

    async def metrics(self, _: web.Request) -> web.Response:
        text = generate_latest(self._registry).decode()
        return web.Response(text=text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def flush_cache(self, request: web.Request) -> web.Response:
        """Empty the prefix cache; refused, as SGLang does, while requests run or wait."""
        try:
            deadline = time.monotonic() + float(request.query.get("timeout", 0))
        except ValueError:
            return web.Response(status=400, text="timeout: expected seconds.\n")
        while not self._engine.scheduler.idle:
            if not time.monotonic() < deadline:  # nor where it is no number
                return web.Response(status=400, text="Flush cache failed: requests are running or waiting.\n")
            await asyncio.sleep(0.01)
        self._engine.scheduler.flush()
        return web.Response(
            text="Cache flushed.\nPlease check backend logs for more details. "
            "(When there are running or waiting requests, the operation will not be performed.)\n"
        )

    def collect(self) -> Iterator[Metric]:
        """prometheus-client's collector protocol: gauges and counters read off the scheduler when asked for."""
        scheduler = self._engine.scheduler
        used, pool, totals = scheduler.used_tokens, scheduler.limits.max_total_tokens, scheduler.totals
        gauges = {
            "max_total_num_tokens": pool,
            "page_size": 1,
            "context_len": self.settings.context_length,
            "num_running_reqs": scheduler.num_running,
            "num_queue_reqs": len(scheduler.waiting),
            "gen_throughput": self._engine.gen_throughput,
            "cache_hit_rate": self._engine.hit_rate.last,
            "token_usage": used / pool,
            "full_token_usage": used / pool,
            "num_used_tokens": used,
            "kv_available_tokens": scheduler.available_tokens,
            "kv_evictable_tokens": scheduler.cache.evictable,
            "kv_used_tokens": used,
        }
        counters = {
            "num_requests": totals.requests,
            "num_aborted_requests": totals.aborted,
            "prompt_tokens": totals.prompt_tokens,
            "generation_tokens": totals.generated_tokens,
            "cached_tokens": totals.cached_tokens,
            "evicted_tokens": scheduler.cache.evicted,
        }
        sources = {"cached_tokens": {"cache_source": "device"}, "evicted_tokens": {"cache_type": "RadixCache"}}
        names, values = list(self._labels), list(self._labels.values())
        for name, value in gauges.items():
            gauge = GaugeMetricFamily(f"sglang:{name}", name.replace("_", " "), labels=names)
            gauge.add_metric(values, value)
            yield gauge
        for name, value in counters.items():
            labels = self._labels | sources.get(name, {})
            counter = CounterMetricFamily(f"sglang:{name}", name.replace("_", " "), labels=list(labels))
            counter.add_metric(list(labels.values()), value)
            yield counter
