"""Peak memory of a process tree, and of the GPUs where there are any.

Resident memory is summed over the processes of the tree, so that pages which they share count several times. The tree
is listed when sampling begins and ends, since a walk through all processes of a machine would cost the client's loop
milliseconds. The GPU's is what NVML says is in use on every device, whoever uses it.
"""

import asyncio
import contextlib
from typing import Any

import psutil

INTERVAL = 0.1  # seconds between samples


class PeakMemory:
    """The peak over the samples of `watch`, in bytes."""

    def __init__(self, roots: list[int]) -> None:
        self._roots = roots
        self._peak, self._processes, self._gpu = 0, 0, _Gpus()

    async def watch(self) -> None:
        """Sample until cancelled."""
        tree = self._tree()
        while True:
            self._sample(tree)
            await asyncio.sleep(INTERVAL)

    def as_dict(self) -> dict[str, Any]:
        """For the record; takes one more sample, of the tree as it is now."""
        self._sample(self._tree())
        no_tree = "the server was not started here: its processes are not known"
        return {
            "peak_bytes": self._peak or None,
            "processes": self._processes,
            "of": "sum of resident memory over the process tree",
            "interval": INTERVAL,
            "reason": None if self._peak else no_tree if not self._roots else "its processes have ended",
            "gpu_peak_bytes": self._gpu.peak,
            "gpu_reason": self._gpu.reason,
        }

    def _tree(self) -> list[psutil.Process]:
        tree: dict[int, psutil.Process] = {}
        for pid in self._roots:
            with contextlib.suppress(psutil.Error):
                root = psutil.Process(pid)
                tree |= {process.pid: process for process in (root, *root.children(recursive=True))}
        return list(tree.values())

    def _sample(self, tree: list[psutil.Process]) -> None:
        total = alive = 0
        for process in tree:
            with contextlib.suppress(psutil.Error):
                total += process.memory_info().rss
                alive += 1
        self._peak, self._processes = max(self._peak, total), max(self._processes, alive)
        self._gpu.sample()


class _Gpus:
    """Memory in use on all devices together, by NVML (nvidia-ml-py, the extra `gpu`)."""

    def __init__(self) -> None:
        self.peak: int | None = None
        self.reason: str | None = None
        self._devices: list[Any] = []
        try:
            import pynvml  # noqa: PLC0415 - an extra

            pynvml.nvmlInit()
            self._devices = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
            self._used = lambda device: int(pynvml.nvmlDeviceGetMemoryInfo(device).used)
        except ImportError:
            self.reason = "nvidia-ml-py is not installed"
        except Exception as error:  # noqa: BLE001 - NVML's errors are an optional package's
            self.reason = f"NVML: {error}"
        if not self._devices and self.reason is None:
            self.reason = "NVML sees no device"

    def sample(self) -> None:
        if self._devices:
            self.peak = max(self.peak or 0, sum(map(self._used, self._devices)))
