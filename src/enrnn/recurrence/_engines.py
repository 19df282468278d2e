"""Which engine runs the sweeps, and why not a faster one."""

import functools
import os
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._checks import InputError
from . import _bias, _cpu, _cpu_products, _cuda, _gram, _linked, _torch
from ._cuda import Blocks
from ._shapes import as_one
from .reference import block_matrix

OVERRIDE = os.environ.get("ENRNN_BACKEND") or None
"""From the environment: the backend to take wherever `auto` is asked for."""


class Engine(NamedTuple):
    """A way of running the forward sweep and the reverse sweep; see `_torch` for what the two functions do."""

    name: str
    forward: Callable[..., None]
    backward: Callable[..., None]
    bias_gradient: Callable[[Tensor, Tensor, str, Tensor], Tensor]
    """The gradient of the bias from the states, `dz` and the nonlinearity, and where it goes."""
    weight_gradient: Callable[[Tensor, Tensor, Tensor, Tensor], None]
    """`Σ_t dz_t h_{t−1}ᵀ` from `dz`, the initial state and the states, and where it goes."""
    whole: bool
    """Whether `[[W_L, W_C], [0, W_S]]` is best run as the one matrix it is, or else the short part first, then the long part."""
    linked_for: Callable[..., _linked.Linked | None] = lambda *_: None
    """How the two parts run at the same time; None if they do not."""


def engine_for(backend: str, like: Tensor, nonlinearity: str, long: Tensor | None, short: Tensor | None) -> Engine:
    """The engine for tensors such as `like` and matrices of these sizes; a fallback from `auto` warns once and says why."""
    largest = max(block.shape[-1] for block in (long, short) if block is not None)
    name = choose(backend, like.device, like.dtype, largest, nonlinearity, len(like))
    if name == "cuda":
        whole = (
            long is None or short is None or as_one(long.shape[0], short.shape[0], like.shape[1], _cuda.limits_of(like.device))
        )
        return Engine(name, _cuda.forward, _cuda.backward, _bias.bias_gradient, _gram.weight_gradient, whole, _linked.linked_for)
    if name == "cpu":
        return Engine(name, _cpu_forward, _cpu_backward, _cpu.bias_gradient, _cpu_products.weight_gradient, True)
    return Engine(name, _torch.forward, _torch.backward, _torch.bias_gradient, _gram.weight_gradient, False)


def _cpu_forward(inputs: Tensor, weight: Tensor | Blocks, *others: Any) -> None:
    whole, long_size = _joined(weight)
    sweep: Callable[..., None] = _cpu.forward
    sweep(inputs, whole, *others, long_size)


def _cpu_backward(grad_states: Tensor, states: Tensor, weight: Tensor | Blocks, *others: Any) -> None:
    whole, long_size = _joined(weight)
    sweep: Callable[..., None] = _cpu.backward
    sweep(grad_states, states, whole, *others, long_size)


def _joined(weight: Tensor | Blocks) -> tuple[Tensor, int]:
    """The matrix, and q where skipping the zero block of `[[W_L, W_C], [0, W_S]]` saves more than it costs."""
    if isinstance(weight, Tensor):
        return weight, 0
    long, _, short = weight
    q, s = len(long), len(short)
    return block_matrix(*weight), q if 8 * q * s >= (q + s) ** 2 else 0


def choose(backend: str, device: torch.device, dtype: torch.dtype, n: int, nonlinearity: str, steps: int | None = None) -> str:
    """The name of the engine, `torch`, `cpu` or `cuda`, for n units in the largest matrix; `steps` where it is known how many."""
    if backend == "torch":
        return backend
    wanted = ("cuda" if device.type == "cuda" else "cpu") if backend == "auto" else backend
    reason = why_not(wanted, device, dtype, n, nonlinearity)
    if reason is None:
        # On a CPU a single step is over before compiled code has been called.
        return "torch" if (backend, wanted, steps) == ("auto", "cpu", 1) else wanted
    if backend != "auto":
        asked = "ENRNN_BACKEND" if backend == OVERRIDE else "backend"
        raise InputError(f"{asked}={backend!r} cannot run this: {reason}")
    warn_once(f"the recurrence runs as a loop of torch operations, because {reason}")
    return "torch"


def why_not(name: str, device: torch.device, dtype: torch.dtype, n: int, nonlinearity: str) -> str | None:
    """Why an engine cannot run a recurrence of n units, or None if it can."""
    if device.type != name:
        return f"the {name} engine runs on {name} tensors, and these are on {device.type}"
    if name == "cuda":
        return _cuda.why_not(device, dtype, n, nonlinearity)
    if dtype not in (torch.float32, torch.float64):
        return f"the cpu engine computes in float32 and float64, and these tensors are {str(dtype).removeprefix('torch.')}"
    return _cpu.unavailable()


@functools.cache
def warn_once(message: str) -> None:
    warnings.warn(message, stacklevel=2)
