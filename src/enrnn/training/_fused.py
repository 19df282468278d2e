"""A step of an optimiser on a GPU: one kernel for all tensors, which looks at no value."""

import ctypes
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from .._kernels import KernelsFor
from .._launch import Kernel
from .._precision import capturing, recording

SOURCE = Path(__file__).with_name("fused.cu")
TENSORS, THREADS, EACH = 32, 256, 4
"""As in the source: tensors of a launch, threads of a block, entries of a thread."""

Options = tuple[float, ...]
"""The numbers of a rule, at most four, in the order in which its kernel has them."""


class Kernels(NamedTuple):
    adam: Kernel
    rmsprop_tf: Kernel


class Updated(NamedTuple):
    """A parameter, and what its update needs. `rate` and, for Adam, `steps`, those before this one, are tensors of one number."""

    parameter: Tensor
    gradient: Tensor
    first: Tensor | None
    second: Tensor | None
    steps: Tensor | None
    rate: Tensor | float


class Table(ctypes.Structure):
    """The kernels' argument, as in the source. It is passed by value, so that a CUDA graph owns what it needs of it."""

    _fields_ = (("rows", ctypes.c_longlong * 8 * TENSORS), ("options", ctypes.c_float * 4))


kernels_for = KernelsFor(SOURCE, Kernels, Kernels._fields)

_readers: WeakKeyDictionary[torch.optim.Optimizer, Tensor] = WeakKeyDictionary()
"""What Adam's kernel counts with, zero between two steps."""


def adam(optimizer: torch.optim.Optimizer, updates: Iterable[tuple[Options, Updated]]) -> bool:
    """Adam's step with the options β₁, β₂, ε, and whether there was a kernel for it. If not, nothing has changed."""
    updates = list(updates)
    kernels = _kernels(updates)
    if kernels is None or not all(
        _alike(each.parameter, each.second) and _number(each.parameter, each.steps) for _, each in updates
    ):
        return False
    device = updates[0][1].parameter.device
    readers = _readers.get(optimizer)
    if readers is None or readers.device != device:
        if capturing(updates[0][1].parameter):
            return False  # zeros made now would be there from the first replay on, and not before
        readers = _readers[optimizer] = torch.zeros(TENSORS, dtype=torch.int32, device=device)
    _launch(kernels.adam, updates, readers)
    return True


def rmsprop_tf(updates: Iterable[tuple[Options, Updated]]) -> bool:
    """RMSProp's step with the options decay, 1 − decay, momentum, ε, and whether there was a kernel for it. If not, nothing has
    changed."""
    updates = list(updates)
    kernels = _kernels(updates)
    if kernels is None or not all(each.second is None or _alike(each.parameter, each.second) for _, each in updates):
        return False
    _launch(kernels.rmsprop_tf, updates)
    return True


def _kernels(updates: list[tuple[Options, Updated]]) -> Kernels | None:
    """None as well if there is nothing to be updated, or something that the kernels are not for."""
    if not updates or not all(_simple(each) for _, each in updates):
        return None
    first, *others = (each.parameter.device for _, each in updates)
    rate = updates[0][1].rate
    return kernels_for(rate) if isinstance(rate, Tensor) and all(device == first for device in others) else None


def _simple(each: Updated) -> bool:
    parameter, gradient = each.parameter, each.gradient
    return (
        parameter.is_cuda
        and parameter.dtype == torch.float32
        and parameter.is_contiguous()
        and not recording(parameter)
        and (gradient.layout, gradient.dtype, gradient.device) == (torch.strided, torch.float32, parameter.device)
        and gradient.shape == parameter.shape
        and _alike(parameter, each.first)
        and _number(parameter, each.rate)
    )


def _alike(parameter: Tensor, state: Tensor | None) -> bool:
    if state is None or (state.dtype, state.device, state.shape) != (parameter.dtype, parameter.device, parameter.shape):
        return False
    return state.is_contiguous()


def _number(parameter: Tensor, value: Tensor | float | None) -> bool:
    """Whether it is one that the kernel can read."""
    if not isinstance(value, Tensor) or value.numel() != 1:
        return False
    return (value.dtype, value.device) == (torch.float32, parameter.device)


def _launch(kernel: Kernel, updates: list[tuple[Options, Updated]], *arguments: Tensor) -> None:
    together: dict[Options, list[Updated]] = {}
    for options, each in updates:
        together.setdefault(options, []).append(each)
    for options, these in together.items():
        for place in range(0, len(these), TENSORS):
            some = these[place : place + TENSORS]
            dense = [each._replace(gradient=each.gradient.resolve_neg().contiguous()) for each in some]
            table, blocks = _table(dense, options)
            kernel(blocks, THREADS, table, *arguments)
    written = [(each.parameter, each.first, each.second, each.steps) for _, each in updates]
    torch.autograd.graph.increment_version([tensor for tensors in written for tensor in tensors if tensor is not None])


def _table(updates: list[Updated], options: Options) -> tuple[Table, int]:
    """And the number of thread blocks. A tensor without entries has one too, for its count."""
    table, blocks = Table(), 0
    table.options[: len(options)] = options
    for row, each in zip(table.rows, updates, strict=False):
        tensors = (each.parameter, each.gradient, each.first, each.second, each.steps, each.rate)
        addresses = [tensor.data_ptr() if isinstance(tensor, Tensor) else 0 for tensor in tensors]
        row[:] = [*addresses, each.parameter.numel(), blocks]
        blocks += max(1, -(-each.parameter.numel() // (THREADS * EACH)))
    for row in table.rows[len(updates) :]:
        row[-1] = blocks
    return table, blocks
