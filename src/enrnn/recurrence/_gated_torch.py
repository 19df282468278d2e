"""What a step of the gated recurrence does beside its product with the weights, in torch operations: any device, any dtype.

Shapes, and the parts of `kept` and `swept`: as in `_gated`. A step is done by calling what is returned with its number.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ..nonlinearities import NONLINEARITIES


def forward(
    inputs: Tensor,  # [T, B, 3n]
    bias: Tensor | None,
    initial: Tensor,  # [B, n]
    nonlinearity: str,
    lengths: Tensor | None,
    kept: Tensor,  # [T or 1, B, 4n]: of a step, [Q h | W_r h | W_z h | …] is made [Q h | r | z | c]
    states: Tensor,  # [T, B, n], written
) -> Callable[[int], None]:
    function = NONLINEARITIES[nonlinearity].function
    T, _, n = states.shape
    reset_and_update, candidate = (each.unbind() for each in torch.split(inputs, [2 * n, n], dim=-1))
    turned, r, z, c, gates = (each * (T // len(kept)) for each in _parts(kept, n))
    previous = initial, *states.unbind()

    def step(t: int) -> None:
        h, new = previous[t], previous[t + 1]
        gates[t].add_(reset_and_update[t]).sigmoid_()
        c[t].copy_(function(torch.addcmul(candidate[t], r[t], turned[t]), bias))
        torch.mul(z[t], h, out=new).addcmul_(1 - z[t], c[t])
        if lengths is not None:
            new.copy_(torch.where(_running(t, lengths), new, h))

    return step


def backward(
    grad_states: Tensor,  # [T, B, n]
    states: Tensor,  # [T, B, n]
    kept: Tensor,  # [T, B, 4n]
    bias: Tensor | None,
    initial: Tensor,  # [B, n]
    nonlinearity: str,
    lengths: Tensor | None,
    carried: Tensor,  # [B, n]: dL/dh_t by way of later steps, made dL/dh_{t−1} but for its way through the weights
    swept: Tensor,  # [T, B, 4n], written
) -> Callable[[int], None]:
    pull_back = NONLINEARITIES[nonlinearity].pull_back
    n = states.shape[-1]
    turned, r, z, c, gates = _parts(kept, n)
    by_product, by_reset, by_update, by_candidate, by_gates = _parts(swept, n)
    previous, upstream, rows = (initial, *states.unbind()), grad_states.unbind(), swept.unbind()
    through_sigmoid = torch.ops.aten.sigmoid_backward.grad_input

    def step(t: int) -> None:
        g = upstream[t] + carried
        by_candidate[t].copy_(pull_back(c[t], bias, g * (1 - z[t])))
        torch.mul(by_candidate[t], r[t], out=by_product[t])
        torch.mul(by_candidate[t], turned[t], out=by_reset[t])
        torch.mul(g, previous[t] - c[t], out=by_update[t])
        through_sigmoid(by_gates[t], gates[t], grad_input=by_gates[t])
        torch.mul(g, z[t], out=carried)
        if lengths is not None:
            running = _running(t, lengths)
            rows[t].masked_fill_(~running, 0)
            carried.copy_(torch.where(running, carried, g))

    return step


def _parts(rows: Tensor, n: int) -> list[tuple[Tensor, ...]]:
    """The four parts [B, n] of every step, and the second and third as one [B, 2n]."""
    return [each.unbind() for each in (*rows.chunk(4, dim=-1), rows[..., n : 3 * n])]


def _running(t: int, lengths: Tensor) -> Tensor:
    """Whether a sequence has not ended, [B, 1]."""
    return (t < lengths).unsqueeze(-1)
