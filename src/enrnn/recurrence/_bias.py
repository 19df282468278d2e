"""The gradient of the bias: a sum over all steps and sequences, in one pass over states and `dz`, `bias_gradient.cu`."""

from pathlib import Path

import torch
from torch import Tensor

from .. import _nvrtc
from .._launch import Kernel
from .._precision import capturing
from ..nonlinearities import NONLINEARITIES
from . import _torch
from ._cuda import forbid_loading
from ._trust import Noise, Trusted

SOURCE = Path(__file__).with_name("bias_gradient.cu")

SHARES = 64
"""Shares of the rows that are summed at once: with 160 units, 320 thread blocks."""


def bias_gradient(states: Tensor, grad_z: Tensor, nonlinearity: str, out: Tensor | None = None) -> Tensor:
    """As `_torch.bias_gradient`, by the kernel."""
    if not _trusted(states.device):
        return _torch.bias_gradient(states, grad_z, nonlinearity, out)
    parts = NONLINEARITIES[nonlinearity].parts
    h, dz = states.flatten(0, 1), grad_z.flatten(0, 1)
    units = h.shape[1] // parts
    many = max(1, min(SHARES, -(-h.shape[0] // 8)))
    shares, total = h.new_empty(many, units), h.new_empty(units) if out is None else out
    rule = {"modrelu": 1, "paired_modrelu": 2}.get(nonlinearity, 0)
    across = -(-units // 32)
    _kernel(rule, h.device)((across, many), 256, h, dz, shares, *h.shape, h.stride(0), dz.stride(0))
    _kernel(0, h.device)((across, 1), 256, shares, shares, total, many, units, units, units)
    return total


def sum_of_rows(rows: Tensor) -> Tensor:
    """Of [N, n] in float32, by the kernel: the gradient of a bias that is simply added. torch's where there is none now."""
    if not rows.is_cuda or (capturing(rows) and (0, rows.device) not in _kernels):
        return rows.sum(0)
    return bias_gradient(rows[None], rows[None], "identity")


_kernels: dict[tuple[int, torch.device], Kernel] = {}


def _kernel(rule: int, device: torch.device) -> Kernel:
    key = rule, device
    if key not in _kernels:
        forbid_loading()
        (_kernels[key],) = _nvrtc.load(_nvrtc.text(SOURCE), {"bias_gradient": 0}, device, RULE=rule)
    return _kernels[key]


def _tried(noise: Noise) -> list[tuple[Tensor, Tensor]]:
    states, grad_z = noise(30, 7, 150), noise(30, 7, 150)
    names = ("modrelu", "paired_modrelu", "tanh")
    return [(_torch.bias_gradient(states, grad_z, name), bias_gradient(states.float(), grad_z.float(), name)) for name in names]


_trusted = Trusted("bias_gradient.cu", _tried)
