"""The released SGLang on a CPU without AMX, for machines without a GPU: its mechanisms, not its speed.

Two of the packages that SGLang imports exist for GPUs only. This folder, put on PYTHONPATH, has stand-ins for the parts
of them that are imported and never called (see `sitecustomize` and `sgl_kernel`); no file of SGLang's is changed. They
are used only where they are asked for, and say so when a process starts.
"""

from pathlib import Path

FOLDER = Path(__file__).parent

# For every process of such an environment, from before its interpreter starts.
ENVIRONMENT = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",  # more threads than idle cores make each step many times slower
}

# SGLang's arguments that its CPU engine needs, or is best given; a scenario's own come before them.
ARGUMENTS: dict[str, str | int | float | bool] = {
    "device": "cpu",
    "dtype": "float32",  # greedy answers are the same alone, in a batch and with cache hits
    "cuda_graph_backend_decode": "disabled",
    "cuda_graph_backend_prefill": "disabled",
    "sleep_on_idle": True,  # else an idle scheduler keeps a core busy
    "random_seed": 1,
    "max_total_tokens": 32768,  # 32 MB with the tiny model; by default it would be as much as there is
    "mem_fraction_static": 0.5,  # left to itself it comes out negative without chunked prefill
    "max_running_requests": 32,
    "chunked_prefill_size": 2048,
}
