"""Which way of running the recurrence is taken, and ENRNN's order of work."""

from collections.abc import Callable

import torch
from torch import Tensor

from .._checks import InputError, InputTypeError, floating_tensor, one_of, tensor
from .._precision import full_precision
from ..nonlinearities import NONLINEARITIES
from . import reference
from ._op import fused_recurrence

BACKENDS = ("auto", "reference")
"""`reference`: plain torch under autograd, the specification. `auto`: the fastest there is for the tensors at hand."""


def recurrence(
    inputs: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial: Tensor,
    nonlinearity: str | Callable[[Tensor], Tensor] = "modrelu",
    *,
    lengths: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """Run `h_t = σ(x̂_t + W h_{t−1}, b)` over a sequence and return all states, [T, B, n].

    Arguments:
        inputs: `x̂_t`, already projected, [T, B, n].
        weight: `W`, [n, n].
        bias: `b`, [n]: modReLU's threshold, added to the argument of every other nonlinearity. Or None.
        initial: `h_0`, [B, n].
        nonlinearity: a name from `enrnn.nonlinearities`, or any callable (which the reference path runs).
        lengths: [B], integer: sequence `i` keeps its state from step `lengths[i]` on. None: all run to the end.
        backend: "auto" or "reference".
    """
    fused = _check(inputs, {"weight": weight}, bias, initial, nonlinearity, lengths, backend)
    with full_precision(inputs):
        if fused is None:
            return reference.recurrence(inputs, weight, bias, initial, nonlinearity, lengths)
        return fused_recurrence(inputs, weight, bias, initial, fused, lengths)


def long_short_recurrence(
    inputs: Tensor,
    long: Tensor | None,
    coupling: Tensor | None,
    short: Tensor | None,
    bias: Tensor | None,
    initial: Tensor,
    nonlinearity: str | Callable[[Tensor], Tensor] = "modrelu",
    *,
    lengths: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """Run equations (1) and (3) and return the states `[h_L, h_S]`, [T, B, q + s].

    `h_S` never depends on `h_L`. So the short part runs over the whole sequence first, its contribution `W_C h_S` to the
    long part is one product over all steps, and the long part runs last: sequential work falls from (q+s)² to q² + s².
    """
    blocks = {"long": long, "coupling": coupling, "short": short}
    fused = _check(inputs, blocks, bias, initial, nonlinearity, lengths, backend)
    with full_precision(inputs):
        if fused is None:
            return reference.long_short_recurrence(inputs, long, coupling, short, bias, initial, nonlinearity, lengths)
        return _long_after_short(inputs, long, coupling, short, bias, initial, fused, lengths)


def _long_after_short(
    inputs: Tensor,
    long: Tensor | None,
    coupling: Tensor | None,
    short: Tensor | None,
    bias: Tensor | None,
    initial: Tensor,
    nonlinearity: str,
    lengths: Tensor | None,
) -> Tensor:
    if long is None or short is None:
        whole = reference.block_matrix(long, None, short)
        return fused_recurrence(inputs, whole, bias, initial, nonlinearity, lengths)
    sizes = [long.shape[-1], short.shape[-1]]
    inputs_long, inputs_short = torch.split(inputs, sizes, dim=-1)
    initial_long, initial_short = torch.split(initial, sizes, dim=-1)
    bias_long, bias_short = (None, None) if bias is None else torch.split(bias, sizes)
    states_short = fused_recurrence(inputs_short, short, bias_short, initial_short, nonlinearity, lengths)
    if coupling is not None:
        previous = torch.cat([initial_short.unsqueeze(0), states_short])[:-1]  # this way round, no length is special to export
        inputs_long = inputs_long + previous @ coupling.mT
    states_long = fused_recurrence(inputs_long, long, bias_long, initial_long, nonlinearity, lengths)
    return torch.cat([states_long, states_short], dim=-1)


def _check(
    inputs: Tensor,
    blocks: dict[str, Tensor | None],
    bias: Tensor | None,
    initial: Tensor,
    nonlinearity: str | Callable[[Tensor], Tensor],
    lengths: Tensor | None,
    backend: str,
) -> str | None:
    """Reject what does not fit together; return the nonlinearity's name if the fused operator is to run it."""
    floating_tensor("inputs", inputs)
    if inputs.dim() != 3 or inputs.shape[0] == 0:
        raise InputError(f"inputs must be [T, B, n] with T > 0, got shape {list(inputs.shape)}")
    _, batch, n = inputs.shape
    if "weight" in blocks:
        expected: dict[str, list[int]] = {"weight": [n, n]}
    else:
        q, s = (0 if block is None else _size(name, block) for name, block in blocks.items() if name != "coupling")
        if q + s != n:
            raise InputError(f"the sizes of long and short must add up to inputs.size(-1) = {n}, got {q} + {s}")
        expected = {"long": [q, q], "coupling": [q, s], "short": [s, s]}
    expected |= {"bias": [n], "initial": [batch, n]}
    for name, given in {**blocks, "bias": bias, "initial": initial}.items():
        if given is None:
            continue
        if list(given.shape) != expected[name]:
            raise InputError(f"{name} must have shape {expected[name]}, got {list(given.shape)}")
        if given.dtype != inputs.dtype:
            raise InputTypeError(f"{name} must have the dtype of inputs, {inputs.dtype}, got {given.dtype}")
        if given.device != inputs.device:
            raise InputError(f"{name} must be on the device of inputs, {inputs.device}, got {given.device}")
    if lengths is not None:
        tensor("lengths", lengths)
        if lengths.dtype not in (torch.int32, torch.int64):
            raise InputTypeError(f"lengths must be integers (int32 or int64), got {lengths.dtype}")
        if list(lengths.shape) != [batch]:
            raise InputError(f"lengths must have shape {[batch]}, got {list(lengths.shape)}")
        if lengths.device != inputs.device:
            raise InputError(f"lengths must be on the device of inputs, {inputs.device}, got {lengths.device}")
    fusable = None if callable(nonlinearity) else one_of("nonlinearity", nonlinearity, NONLINEARITIES)
    if fusable == "modrelu" and bias is None:
        fusable = "identity"  # which it is, and with the identity's derivative at zero
    return None if one_of("backend", backend, BACKENDS) == "reference" else fusable


def _size(name: str, block: Tensor) -> int:
    if block.dim() == 0:
        raise InputError(f"{name} must be a square matrix, got a tensor of shape []")
    return block.shape[-1]
