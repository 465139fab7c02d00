"""Stands in for sgl_kernel, which is published for GPUs only.

SGLang's CPU engine imports these names when it starts. They serve speculative decoding and moves within the KV pool,
which its plain-torch path does not do: each of them raises when it is called, so that nothing can be computed wrongly.
No operators are registered either, so SGLang sees no AMX kernels and takes its own torch code.
"""

import sys
from collections.abc import Callable
from typing import Any, NoReturn

_NAMES = """
    assign_draft_cache_locs_contiguous_cpu assign_extend_cache_locs_cpu assign_req_to_token_pool_cpu
    build_tree_kernel_efficient_cpu copy_all_layer_kv_cache_cpu fill_accept_out_cache_loc_cpu fill_bonus_tokens_cpu
    verify_tree_greedy_cpu
""".split()


def _absent(name: str) -> Callable[..., NoReturn]:
    def call(*_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name} is a stand-in of loadgen's and computes nothing: it needs a GPU")

    return call


globals().update({name: _absent(name) for name in _NAMES})
print(
    "loadgen's stand-in of sgl_kernel is in use: SGLang takes its plain-torch paths, whose speed says nothing of a "
    "deployment",
    file=sys.stderr,
    flush=True,
)
