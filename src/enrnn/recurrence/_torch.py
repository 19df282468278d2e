"""The sweeps as loops of torch operations: any device, any dtype, at the price of a few launches a step."""

from collections.abc import Callable

import torch
from torch import Tensor

from ..nonlinearities import NONLINEARITIES


def forward(
    inputs: Tensor,  # [T, B, n]
    weight: Tensor,  # [n, n]
    bias: Tensor | None,
    initial: Tensor,  # [B, n]
    nonlinearity: str,
    lengths: Tensor | None,  # [B]
    states: Tensor | None,  # [T, B, n], written, or None where only the final state is wanted
    final: Tensor,  # [B, n], written
) -> None:
    function = NONLINEARITIES[nonlinearity].function
    transposed = weight.mT if inputs.shape[0] == 1 else weight.mT.contiguous()  # a copy pays from the second step on
    h = initial
    for t in range(inputs.shape[0]):
        step = function(torch.addmm(inputs[t], h, transposed), bias)
        h = step if lengths is None else torch.where((t < lengths).unsqueeze(-1), step, h)
        if states is not None:
            states[t] = h
    final.copy_(h)


def backward(
    grad_states: Tensor,  # [T, B, n]
    states: Tensor,  # [T, B, n]
    weight: Tensor,  # [n, n]
    bias: Tensor | None,
    nonlinearity: str,
    lengths: Tensor | None,  # [B]
    grad_z: Tensor,  # [T, B, n], written: the gradient at the argument of σ
    grad_initial: Tensor,  # [B, n], written
    meanwhile: Callable[[], None] | None = None,  # what may be done beside the sweep
) -> None:
    if meanwhile is not None:
        meanwhile()
    pull_back = NONLINEARITIES[nonlinearity].pull_back
    carried = torch.zeros_like(states[0])  # dL/dh_t by way of later steps
    for t in range(states.shape[0] - 1, -1, -1):
        total = grad_states[t] + carried
        dz = pull_back(states[t], bias, total)
        if lengths is None:
            carried = dz @ weight
        else:
            running = (t < lengths).unsqueeze(-1)
            dz = dz.masked_fill(~running, 0)
            carried = torch.where(running, dz @ weight, total)
        grad_z[t] = dz
    grad_initial.copy_(carried)


def bias_gradient(states: Tensor, grad_z: Tensor, nonlinearity: str, out: Tensor | None = None) -> Tensor:
    """Summed over all steps and sequences; in `out`, if that is given."""
    return torch.sum(NONLINEARITIES[nonlinearity].bias_gradient(states, grad_z), (0, 1), out=out)
