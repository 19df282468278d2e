"""The specification: the recurrence as the paper writes it, in plain torch, differentiated by autograd.

Every other way of running it is tested against this file, in outputs and gradients. It takes any floating dtype and any
callable nonlinearity, and can be differentiated as often as one likes, forwards, backwards or under `torch.func`.

Shapes: T steps, B sequences, n units, q of them long-term, s = n − q short-term.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ..nonlinearities import pointwise


def recurrence(
    inputs: Tensor,  # [T, B, n]
    weight: Tensor,  # [n, n]
    bias: Tensor | None,  # [n]
    initial: Tensor,  # [B, n]
    nonlinearity: str | Callable[[Tensor], Tensor],
    lengths: Tensor | None = None,  # [B]
    *,
    final_only: bool = False,
) -> Tensor:  # [T, B, n], [B, n] if final_only
    """`h_t = σ(x̂_t + W h_{t−1}, b)`; a sequence past its length keeps its last state."""
    sigma = pointwise(nonlinearity)
    h = initial
    states = []
    for t, x in enumerate(inputs):
        step = sigma(x + h @ weight.mT, bias)
        h = step if lengths is None else torch.where((t < lengths).unsqueeze(-1), step, h)
        if not final_only:
            states.append(h)
    return h if final_only else torch.stack(states)


def long_short_recurrence(
    inputs: Tensor,  # [T, B, q + s]
    long: Tensor | None,  # [q, q]
    coupling: Tensor | None,  # [q, s]
    short: Tensor | None,  # [s, s]
    bias: Tensor | None,  # [q + s]
    initial: Tensor,  # [B, q + s]
    nonlinearity: str | Callable[[Tensor], Tensor],
    lengths: Tensor | None = None,  # [B]
    *,
    final_only: bool = False,
) -> Tensor:  # [T, B, q + s], [B, q + s] if final_only
    """Equations (1) and (3): the recurrence with `W = [[W_L, W_C], [0, W_S]]`, states `[h_L, h_S]`."""
    weight = block_matrix(long, coupling, short)
    return recurrence(inputs, weight, bias, initial, nonlinearity, lengths, final_only=final_only)


def block_matrix(long: Tensor | None, coupling: Tensor | None, short: Tensor | None) -> Tensor:
    """Equation (2). A missing part has size zero; a missing coupling is zero."""
    if long is None:
        if short is None:
            raise ValueError("a recurrence needs a long part, a short part or both, got neither")
        return short
    if short is None:
        return long
    q, s = long.shape[-1], short.shape[-1]
    upper = torch.cat([long, long.new_zeros(q, s) if coupling is None else coupling], dim=1)
    return torch.cat([upper, torch.cat([short.new_zeros(s, q), short], dim=1)])
