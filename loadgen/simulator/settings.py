"""The simulator's arguments, which are SGLang's own by name, and what it says of itself."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import loadgen
from loadgen.simulator.scheduler import Limits
from loadgen.simulator.steptime import StepTime

# Milliseconds in the stamps of log lines, as SGLang has them under SGLANG_LOG_MS=1.
LINE, STAMP = "[%(asctime)s.%(msecs)03d] %(message)s", "%Y-%m-%d %H:%M:%S"


@dataclass(frozen=True, slots=True)
class Settings:
    """SGLang's own arguments beside the scheduler's limits."""

    served_model_name: str = "simulated"
    context_length: int = 32768
    vocab_size: int = 32000
    stream_interval: int = 1
    decode_log_interval: int = 40
    random_seed: int = 0
    enable_cache_report: bool = False


def parts(arguments: Mapping[str, Any]) -> tuple[Limits, Settings, StepTime]:
    """What these arguments set, `step_time` with the coefficients among them; raises ValueError for unknown ones."""
    given = dict(arguments)
    coefficients = dict(given.pop("step_time", {}))
    if unknown := coefficients.keys() - {field.name for field in fields(StepTime)}:
        raise ValueError(f"the step-time model has no {', '.join(sorted(unknown))}")
    step_time = StepTime(**coefficients)
    limits = {field.name: given.pop(field.name) for field in fields(Limits) if field.name in given}
    settings = {field.name: given.pop(field.name) for field in fields(Settings) if field.name in given}
    if given:
        raise ValueError(f"the simulator does not know {', '.join(sorted(given))}")
    return Limits(**limits), Settings(**settings), step_time


def startup(limits: Limits, settings: Settings) -> str:
    """SGLang's line of the log that tells the pool and the limits."""
    return (
        f"max_total_num_tokens={limits.max_total_tokens}, chunked_prefill_size={limits.chunked_prefill_size}, "
        f"max_prefill_tokens={limits.max_prefill_tokens}, max_running_requests={limits.max_running_requests}, "
        f"context_len={settings.context_length}"
    )


def server_info(limits: Limits, settings: Settings, step_time: StepTime) -> dict[str, Any]:
    """What /server_info answers, as far as it does not change while the simulator runs."""
    name = settings.served_model_name
    return {
        "model_path": name,
        "served_model_name": name,
        "tokenizer_path": name,
        **asdict(limits),
        "context_length": settings.context_length,
        "stream_interval": settings.stream_interval,
        "decode_log_interval": settings.decode_log_interval,
        "random_seed": settings.random_seed,
        "enable_cache_report": settings.enable_cache_report,
        "schedule_policy": "fcfs",
        "attention_backend": "simulated",
        "page_size": 1,
        "status": "ready",
        "max_total_num_tokens": limits.max_total_tokens,
        "max_req_input_len": settings.context_length - 1,
        "internal_states": [
            {
                **asdict(limits),
                "effective_max_running_requests_per_dp": limits.max_running_requests,
                "memory_usage": {"weight": None, "kvcache": None, "token_capacity": limits.max_total_tokens},
            }
        ],
        "version": f"loadgen {loadgen.__version__} simulator",
        "simulator": {"step_time": asdict(step_time)},
    }
