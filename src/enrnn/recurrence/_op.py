"""The recurrence as one operator with a hand-written reverse sweep: one node under `torch.compile` and `torch.export`.

Forward keeps only the states. Backward sweeps once in reverse for `dz_t`, after which the gradients of the weight, the
bias and the inputs are one product, one sum and nothing at all.
"""

from typing import Any

import torch
from torch import Tensor

from .._precision import full_precision
from ..nonlinearities import NONLINEARITIES


def fused_recurrence(
    inputs: Tensor, weight: Tensor, bias: Tensor | None, initial: Tensor, nonlinearity: str, lengths: Tensor | None
) -> Tensor:
    """The states [T, B, n] of `reference.recurrence`, for the named nonlinearities, differentiable once."""
    states: Tensor = recurrence(inputs, weight, bias, initial, nonlinearity, lengths)
    return states


@torch.library.custom_op("enrnn::recurrence", mutates_args=())
def recurrence(
    inputs: Tensor, weight: Tensor, bias: Tensor | None, initial: Tensor, nonlinearity: str, lengths: Tensor | None
) -> Tensor:
    function = NONLINEARITIES[nonlinearity].function
    transposed = weight.mT.contiguous()
    states = torch.empty_like(inputs, memory_format=torch.contiguous_format)
    h = initial
    with full_precision(inputs):
        for t in range(inputs.shape[0]):
            step = function(torch.addmm(inputs[t], h, transposed), bias)
            states[t] = step if lengths is None else torch.where((t < lengths).unsqueeze(-1), step, h)
            h = states[t]
    return states


@recurrence.register_fake
def _(inputs: Tensor, weight: Tensor, bias: Tensor | None, initial: Tensor, nonlinearity: str, lengths: Tensor | None) -> Tensor:
    return inputs.new_empty(inputs.shape)


@torch.library.custom_op("enrnn::recurrence_backward", mutates_args=())
def recurrence_backward(
    grad_states: Tensor, states: Tensor, weight: Tensor, nonlinearity: str, lengths: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The reverse sweep: `dz` [T, B, n], the gradient at the argument of σ, and the gradient of the initial state."""
    slope = NONLINEARITIES[nonlinearity].slope
    grad_z = torch.empty_like(states)
    carried = torch.zeros_like(states[0])  # dL/dh_t by way of later steps
    with full_precision(states):
        for t in range(states.shape[0] - 1, -1, -1):
            total = grad_states[t] + carried
            torch.mul(total, slope(states[t]), out=grad_z[t])
            if lengths is None:
                carried = grad_z[t] @ weight
            else:
                running = (t < lengths).unsqueeze(-1)
                grad_z[t].masked_fill_(~running, 0)
                carried = torch.where(running, grad_z[t] @ weight, total)
    return grad_z, carried


@recurrence_backward.register_fake
def _(grad_states: Tensor, states: Tensor, weight: Tensor, nonlinearity: str, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    return states.new_empty(states.shape), states.new_empty(states.shape[1:])


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, weight, bias, initial, ctx.nonlinearity, lengths = inputs
    ctx.has_bias = bias is not None
    ctx.save_for_backward(output, weight, initial, lengths)


def _backward(ctx: Any, grad_states: Tensor) -> tuple[Tensor | None, ...]:
    states, weight, initial, lengths = ctx.saved_tensors
    grad_z, grad_initial = recurrence_backward(grad_states, states, weight, ctx.nonlinearity, lengths)
    _, needs_weight, needs_bias, *_ = ctx.needs_input_grad
    grad_weight = grad_bias = None
    with full_precision(states):
        if needs_weight:  # Σ_t dz_t h_{t−1}ᵀ
            previous = torch.cat([initial.unsqueeze(0), states])[:-1]
            grad_weight = grad_z.flatten(0, 1).mT @ previous.flatten(0, 1)
        if ctx.has_bias and needs_bias:
            bias_slope = NONLINEARITIES[ctx.nonlinearity].bias_slope
            grad_bias = (grad_z if bias_slope is None else grad_z * bias_slope(states)).sum((0, 1))
    return grad_z, grad_weight, grad_bias, grad_initial, None, None


def _no_second_derivative(ctx: Any, *_: Tensor) -> tuple[None, ...]:
    raise RuntimeError("the fused recurrence can be differentiated once only; for second derivatives choose backend='reference'")


recurrence.register_autograd(_backward, setup_context=_setup_context)
recurrence_backward.register_autograd(_no_second_derivative)
