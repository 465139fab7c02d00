"""How long a step takes, as a function of what is in it.

    prefill   base + per_token · tokens + per_context · Σ new·(cached + new)       attention grows with both
    decode    base + per_sequence · batch + per_context · Σ context
              + graph_miss where the batch is larger than graph_max_batch: no captured graph fits

The form is that of the published step-time fits (DistServe's: A + B·Σtokens + C·Σlen² and A + B·Σcontext + C·batch).
The defaults are round numbers for a mid-size model on one accelerator. They are made up, not fitted to any hardware.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepTime:
    """Coefficients in seconds, each per step, token, sequence, or product of tokens, as named."""

    prefill_base: float = 6e-3
    prefill_per_token: float = 40e-6
    prefill_per_context: float = 1e-9
    decode_base: float = 7e-3
    decode_per_sequence: float = 0.1e-3
    decode_per_context: float = 0.2e-6
    graph_miss: float = 5e-3
    graph_max_batch: int = 32

    def prefill(self, parts: Iterable[tuple[int, int]]) -> float:
        """Seconds for a prefill step of these (new, cached) token counts, one pair a sequence."""
        parts = list(parts)
        tokens = sum(new for new, _ in parts)
        attention = sum(new * (cached + new) for new, cached in parts)
        return self.prefill_base + self.prefill_per_token * tokens + self.prefill_per_context * attention

    def decode(self, batch: int, context: int) -> float:
        """Seconds for a decode step of `batch` sequences with `context` tokens in all."""
        seconds = self.decode_base + self.decode_per_sequence * batch + self.decode_per_context * context
        return seconds if self.in_graph(batch) else seconds + self.graph_miss

    def in_graph(self, batch: int) -> bool:
        """Whether a captured graph covers a decode step of this many sequences."""
        return batch <= self.graph_max_batch
