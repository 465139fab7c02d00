"""A running server as the control side sees it: health, identity, cache flush, load. The load itself goes elsewhere."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

# What of SGLang's /server_info says how it batches; the whole answer has over 500 keys.
_IDENTITY = frozenset(
    """
    version model_path served_model_name tokenizer_path dtype quantization kv_cache_dtype device tp_size dp_size pp_size
    attention_backend decode_attention_backend prefill_attention_backend sampling_backend schedule_policy
    schedule_conservativeness max_running_requests max_total_num_tokens max_prefill_tokens chunked_prefill_size
    enable_mixed_chunk page_size disable_radix_cache disable_cuda_graph disable_overlap_schedule stream_interval
    num_continuous_decode_steps mem_fraction_static context_length speculative_algorithm random_seed
    decode_log_interval simulator
""".split()
)


_PATIENCE = 10.0  # seconds for an answer of the control side


class TargetError(Exception):
    """The target failed: it cannot be started, is not healthy, or answers nothing useful."""


@dataclass
class Endpoint:
    """A healthy server. `server` holds what it said of itself, empty where it has no /server_info."""

    url: str
    model: str
    server: dict[str, Any]
    _session: aiohttp.ClientSession = field(repr=False)

    @classmethod
    @asynccontextmanager
    async def attach(cls, url: str, model: str | None = None) -> AsyncIterator["Endpoint"]:
        """Check health and ask for the identity; raises TargetError."""
        async with aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(_PATIENCE)) as session:
            try:
                async with session.get("/health") as answer:
                    status = answer.status
                if status == 404:  # not every OpenAI-compatible server has it
                    async with session.get("/v1/models") as answer:
                        status = answer.status
                if status != 200:
                    raise TargetError(f"{url}/health answered {status}: is the server ready?")
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
                why = str(error) or f"nothing came within {_PATIENCE:g} s"
                raise TargetError(f"no server answers at {url}: {why}") from error
            endpoint = cls(url, model or "", {}, session)
            info = await endpoint._ask("/server_info")
            endpoint.server = {key: value for key, value in info.items() if key in _IDENTITY}
            state = _first(info, "internal_states") or {}
            endpoint.server["effective_max_running_requests"] = state.get("effective_max_running_requests_per_dp")
            if not model:
                listed = _first(await endpoint._ask("/v1/models"), "data") or {}
                endpoint.model = str(listed.get("id") or "default")
            yield endpoint

    @property
    def simulated(self) -> bool:
        return "simulator" in self.server

    def identity(self) -> dict[str, Any]:
        """For the record: who was driven."""
        return {"url": self.url, "model": self.model, "simulated": self.simulated, "server": self.server}

    async def flush_cache(self) -> bool:
        """Empty the prefix cache; False where the server has no such thing or is busy."""
        for _ in range(20):
            try:
                async with self._session.post("/flush_cache") as answer:
                    if answer.status != 400:  # 400: requests are still running
                        return answer.status == 200
            except (aiohttp.ClientError, TimeoutError):
                return False
            await asyncio.sleep(0.1)
        return False

    async def load(self) -> Mapping[str, Any] | None:
        """The first entry of /v1/loads: running, waiting and pool use; None where the server has none."""
        return _first(await self._ask("/v1/loads"), "loads")

    async def _ask(self, path: str) -> dict[str, Any]:
        """The JSON object at this path; empty where there is none."""
        try:
            async with self._session.get(path) as answer:
                content = await answer.json() if answer.status == 200 else None
        except (aiohttp.ClientError, TimeoutError, ValueError, RecursionError):
            content = None
        return content if isinstance(content, dict) else {}


def _first(content: Mapping[str, Any], key: str) -> dict[str, Any] | None:
    """The first object of the list at this key."""
    match content.get(key):
        case [dict(first), *_]:
            return first
    return None
