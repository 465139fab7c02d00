"""A running server as the control side sees it: health, identity, cache flush, load. The load itself goes elsewhere."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
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
    decode_log_interval max_total_tokens enable_metrics enable_cache_report simulator
""".split()
)


_PATIENCE = 10.0  # seconds for an answer of the control side
_LAST_WORDS = 12  # lines of a log


class TargetError(Exception):
    """The target failed: it cannot be started, is not healthy, or answers nothing useful."""


def identity_of(info: Mapping[str, Any]) -> dict[str, Any]:
    """What of an answer of /server_info, or of an engine's get_server_info, says how it batches."""
    server = {key: value for key, value in info.items() if key in _IDENTITY}
    state = first(info, "internal_states") or {}
    server["effective_max_running_requests"] = state.get("effective_max_running_requests_per_dp")
    return server


@dataclass
class Endpoint:
    """A healthy server. `server` holds what it said of itself, empty where it has no /server_info.

    `process` is the one that was started for the run, `log` the file to which it writes, None where there is none.
    """

    url: str
    model: str
    server: dict[str, Any]
    _session: aiohttp.ClientSession = field(repr=False)
    process: asyncio.subprocess.Process | None = None
    log: Path | None = None
    stand_ins: bool = False

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
            endpoint.server = identity_of(await endpoint._ask("/server_info"))
            if not model:
                listed = first(await endpoint._ask("/v1/models"), "data") or {}
                endpoint.model = str(listed.get("id") or "default")
            yield endpoint

    @property
    def simulated(self) -> bool:
        return "simulator" in self.server

    def identity(self) -> dict[str, Any]:
        """For the record: who was driven."""
        return {
            "url": self.url,
            "model": self.model,
            "simulated": self.simulated,
            "stand_ins": self.stand_ins,
            "server": self.server,
        }

    @property
    def pids(self) -> list[int]:
        """The processes at the root of its tree; none for a server that we did not start."""
        return [self.process.pid] if self.process else []

    async def gone(self) -> str:
        """Return when the process that was started for the run has ended, with why; never for another's server."""
        if self.process is None:
            await asyncio.Event().wait()
        assert self.process is not None
        code = await self.process.wait()
        return f"the server ended with code {code}" + (f"; {last_words(self.log)}" if self.log else "")

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

    async def loads(self) -> Mapping[str, Any] | None:
        """The answer of /v1/loads, of each data-parallel rank: running, waiting, pool use; None where there is none."""
        return await self._ask("/v1/loads") or None

    async def exposition(self) -> str | None:
        """The text of /metrics; None where the server has none."""
        try:
            async with self._session.get("/metrics") as answer:
                return await answer.text() if answer.status == 200 else None
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return None

    async def _ask(self, path: str) -> dict[str, Any]:
        """The JSON object at this path; empty where there is none."""
        try:
            async with self._session.get(path) as answer:
                content = await answer.json() if answer.status == 200 else None
        except (aiohttp.ClientError, TimeoutError, ValueError, RecursionError):
            content = None
        return content if isinstance(content, dict) else {}


def last_words(log: Path) -> str:
    """The last lines of a server's log, for an error's text."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    if not lines:
        return "its log is empty"
    return "its log ends with\n" + "\n".join(f"  {line[:300]}" for line in lines[-_LAST_WORDS:])


def first(content: Mapping[str, Any], key: str) -> dict[str, Any] | None:
    """The first object of the list at this key."""
    match content.get(key):
        case [dict(first), *_]:
            return first
    return None
