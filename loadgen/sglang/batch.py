"""One fixed batch straight into SGLang's model runner, without its scheduler: the static mode.

Over the machinery of `sglang.benchmark.one_batch` (SGLang 0.5.23): its model loading, its forward passes and its
timing, a device synchronisation before and after each step, for our prompts. There is no queue, no admission, no prefix
cache, no overlap of steps; a batch is prefilled in one step, uncut, and decoded until its longest answer is done.
loadgen.simulator.batch.Runner has the same interface.
"""

from array import array
from collections.abc import Sequence
from typing import Any


class Runner:
    """A model runner; takes SGLang's arguments. Raises ValueError for more than one tensor-parallel rank."""

    def __init__(self, **arguments: Any) -> None:
        from sglang.benchmark import one_batch  # noqa: PLC0415 - takes seconds, and is there in SGLang's environment only
        from sglang.srt.entrypoints.engine import _set_envs_and_config  # noqa: PLC0415
        from sglang.srt.runtime_context import SpawnRanks, publish, spawn_world_rank  # noqa: PLC0415
        from sglang.srt.server_args import PortArgs, ServerArgs  # noqa: PLC0415
        from sglang.srt.utils import configure_logger  # noqa: PLC0415

        if arguments.get("tp_size", 1) != 1 or arguments.get("pp_size", 1) != 1:
            raise ValueError("the static mode runs on one rank: tp_size and pp_size must be 1")
        self._machinery = one_batch
        self._arguments = ServerArgs(**arguments)
        self._arguments.resolve_once()
        _set_envs_and_config(self._arguments)
        ports = PortArgs.init_new(self._arguments)
        ranks = SpawnRanks(world_rank=spawn_world_rank(self._arguments, tp_rank=0, pp_rank=0), gpu_id=0)
        publish(self._arguments, role="scheduler", ranks=ranks)
        one_batch._init_process_global_configs()
        configure_logger(self._arguments, prefix=" TP0")
        self._runner, _ = one_batch.load_model(self._arguments, ports, 0, 0)
        self.pool: int = self._runner.torch_runner.max_total_num_tokens
        self.max_batch: int = self._runner.torch_runner.req_to_token_pool.size

    def prefill(self, prompts: Sequence[Sequence[int]]) -> list[int]:
        """Prefill all of a new batch in one step; the first token of each."""
        self.clear()
        requests = self._machinery.prepare_synthetic_inputs_for_latency_test(
            len(prompts), 0, [array("q", prompt) for prompt in prompts]
        )
        self._runner.synchronize()
        self._next, _, self._batch = self._runner.extend(requests)
        self._runner.synchronize()
        return list(map(int, self._next.tolist()))

    def decode(self) -> list[int]:
        """One decode step of the batch; the next token of each."""
        self._runner.synchronize()
        self._next, _ = self._runner.decode(self._next, self._batch)
        self._runner.synchronize()
        return list(map(int, self._next.tolist()))

    def clear(self) -> None:
        """Give the pool back."""
        self._runner.clear()

    def info(self) -> dict[str, Any]:
        """As /server_info has it, as far as there is no scheduler."""
        from sglang.version import __version__  # noqa: PLC0415

        return {
            **self._arguments.resolved_dict(),
            "max_total_num_tokens": self.pool,
            "version": __version__,
        }

    def close(self) -> None:
        """Nothing of it outlives this process."""
