"""Kernels of one source file, compiled for a device and a dtype when they are first wanted there."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

import torch
from torch import Tensor

from . import _nvrtc
from ._precision import capturing

Family = TypeVar("Family")


class KernelsFor(Generic[Family]):
    """Called with a tensor: the kernels for tensors like it, if it is on a GPU that can run them, else None.

    Arguments:
        source: compiled with DOUBLE = 1 for float64, 0 for float32.
        family: what is made of the kernels, in the order of `names`.
    """

    def __init__(self, source: Path, family: Callable[..., Family], names: Sequence[str]) -> None:
        self._source, self._family, self._names = source, family, names
        self._loaded: dict[tuple[torch.device, torch.dtype], Family] = {}

    def __call__(self, tensor: Tensor) -> Family | None:
        if not tensor.is_cuda or tensor.dtype not in (torch.float32, torch.float64) or not tensor.numel():
            return None
        if _nvrtc.unavailable() is not None:
            return None
        key = tensor.device, tensor.dtype
        if key not in self._loaded:
            if capturing(tensor):
                return None  # loading a kernel is not allowed while a graph is captured
            source, double = _nvrtc.text(self._source), int(tensor.dtype == torch.float64)
            loaded = _nvrtc.load(source, dict.fromkeys(self._names, 0), tensor.device, DOUBLE=double)
            self._loaded[key] = self._family(*loaded)
        return self._loaded[key]
