"""Lets torchvision be imported beside a CPU build of torch. Python runs this file when it starts, if it finds it.

The torchvision on PyPI is built for CUDA; its binary part does not load beside a CPU torch, and its import then fails
for want of two operators that it refers to by name. They are declared here, without a body, just before it is imported:
a call would fail, and a text model makes none.
"""

import sys
from importlib.abc import MetaPathFinder
from typing import Any


class _BeforeTorchvision(MetaPathFinder):
    """Finds nothing: it is asked for every module that is about to be imported, and acts on one."""

    def find_spec(self, fullname: str, *_: Any) -> None:
        if fullname != "torchvision":
            return
        sys.meta_path.remove(self)
        import torch  # noqa: PLC0415 - where torchvision is imported, and not in every Python that starts

        for operator in ("nms", "qnms"):
            torch.library.define(
                f"torchvision::{operator}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            )


sys.meta_path.insert(0, _BeforeTorchvision())
