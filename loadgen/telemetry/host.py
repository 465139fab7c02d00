"""The machine and the software that measured: what a reader needs to tell two runs apart."""

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

import loadgen

_PACKAGES = ("aiohttp", "hdrhistogram", "httptools", "numpy", "pydantic", "uvloop")


def environment() -> dict[str, Any]:
    """Versions and host, as JSON."""
    return {
        "loadgen": loadgen.__version__,
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in _PACKAGES},
        "os": platform.platform(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }


def _cpu() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
