"""The recurrence as a function: arguments checked, the backend chosen."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._checks import InputError, InputTypeError, boolean, dense_tensor, floating_tensor, one_of, tensor
from .._operators import differentiated
from .._precision import full_precision, state_dtype
from ..nonlinearities import NONLINEARITIES
from . import _engines, reference
from ._derivatives import final_state
from ._derivatives import recurrence as fused_recurrence
from ._engines import choose

BACKENDS = ("auto", "reference", "torch", "cpu", "cuda")
"""`reference`: plain torch under autograd, the specification. `torch`: a loop with a hand-written reverse sweep, on any device.
`cpu`: compiled loops (Numba). `cuda`: one kernel for a whole sequence. `auto`: the fastest there is for the tensors at hand (for
a single step on a CPU, `torch`)."""


def recurrence(
    inputs: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial: Tensor,
    nonlinearity: str | Callable[[Tensor], Tensor] = "modrelu",
    backend: str = "auto",
    *,
    lengths: Tensor | None = None,
    final_only: bool = False,
) -> Tensor:
    """Run `h_t = σ(x̂_t + W h_{t−1}, b)` over a sequence and return all states, [T, B, n].

    Arguments:
        inputs: `x̂_t`, already projected, [T, B, n].
        weight: `W`, [n, n].
        bias: `b`, [n]: modReLU's threshold, added to the argument of every other nonlinearity. Or None. A complex unit has one
            threshold: with `paired_modrelu`, [n/2].
        initial: `h_0`, [B, n].
        nonlinearity: a name from `enrnn.nonlinearities`, or any callable (which the reference path runs).
        backend: see `BACKENDS`.
        lengths: [B], integer: sequence `i` keeps its state from step `lengths[i]` on. None: all run to the end.
        final_only: return the last state alone, [B, n]. Where no gradient is asked for, the others take no memory.
    """
    if (found := _again(final_only, inputs, weight, None, None, bias, initial, nonlinearity, lengths, backend)) is not None:
        return found
    checked = _check(inputs, {"weight": weight}, bias, initial, nonlinearity, lengths, final_only, backend)
    return _run(inputs, weight, None, None, bias, initial, nonlinearity, lengths, final_only, *checked)


def long_short_recurrence(
    inputs: Tensor,
    long: Tensor | None,
    coupling: Tensor | None,
    short: Tensor | None,
    bias: Tensor | None,
    initial: Tensor,
    nonlinearity: str | Callable[[Tensor], Tensor] = "modrelu",
    backend: str = "auto",
    *,
    lengths: Tensor | None = None,
    final_only: bool = False,
) -> Tensor:
    """Run equations (1) and (3) and return the states `[h_L, h_S]`, [T, B, q + s]; arguments as for `recurrence`."""
    if (found := _again(final_only, inputs, long, coupling, short, bias, initial, nonlinearity, lengths, backend)) is not None:
        return found
    blocks = {"long": long, "coupling": coupling, "short": short}
    checked = _check(inputs, blocks, bias, initial, nonlinearity, lengths, final_only, backend)
    return _run(inputs, long, coupling, short, bias, initial, nonlinearity, lengths, final_only, *checked)


def backend_used(
    backend: str,
    like: Tensor,
    n: int,
    nonlinearity: str | Callable[[Tensor], Tensor],
    *,
    bias: bool = True,
    steps: int | None = None,
) -> str:
    """The backend that runs a recurrence on tensors such as `like`, with n units in the largest matrix; over several steps, if
    it is not said how many."""
    fusable, backend = fusable_name(nonlinearity, bias, backend)
    return "reference" if fusable is None else choose(backend, like.device, state_dtype(like.dtype), n, fusable, steps)


def _again(final_only: bool, *call: Any) -> Tensor | None:
    """What comes out of such a call of the operator if it is replayed: with the same arguments, and so with the backend that was
    chosen before."""
    if final_only or type(call[0]) is not Tensor or not call[0].is_cuda or type(call[6]) is not str:
        return None
    found: Tensor | None = fused_recurrence.again(*call)
    return found


def _run(
    inputs: Tensor,
    long: Tensor | None,
    coupling: Tensor | None,
    short: Tensor | None,
    bias: Tensor | None,
    initial: Tensor,
    nonlinearity: str | Callable[[Tensor], Tensor],
    lengths: Tensor | None,
    final_only: bool,
    fusable: str | None,
    backend: str,
) -> Tensor:
    with full_precision(inputs):
        if fusable is None:
            return reference.long_short_recurrence(
                inputs, long, coupling, short, bias, initial, nonlinearity, lengths, final_only=final_only
            )
        blocks = (long, coupling, short)
        if final_only and not differentiated(inputs, *blocks, bias, initial):
            final: Tensor = final_state(inputs, *blocks, bias, initial, fusable, lengths, backend)
            return final
        fused: Tensor = fused_recurrence(inputs, *blocks, bias, initial, fusable, lengths, backend)
        return fused[-1] if final_only else fused


def fusable_name(nonlinearity: str | Callable[[Tensor], Tensor], bias: bool, backend: str) -> tuple[str | None, str]:
    """The nonlinearity's name if the fused operator is to run it, and the backend with the environment's word on it."""
    one_of("backend", backend, BACKENDS)
    asked = backend
    if backend == "auto" and _engines.OVERRIDE is not None:
        backend = one_of("ENRNN_BACKEND", _engines.OVERRIDE, BACKENDS)
    if callable(nonlinearity):
        if backend not in ("auto", "reference"):
            reason = f"{backend!r} runs the nonlinearities {', '.join(NONLINEARITIES)}; a callable runs on 'reference'"
            if asked != "auto":
                raise InputError(f"backend={reason}")
            _engines.warn_once(f"ENRNN_BACKEND={reason}")
        return None, "reference"
    name = one_of("nonlinearity", nonlinearity, NONLINEARITIES)
    if name in ("modrelu", "paired_modrelu") and not bias:
        name = "identity"  # which it is, and with the identity's derivative at zero
    return None if backend == "reference" else name, backend


def _check(
    inputs: Tensor,
    blocks: dict[str, Tensor | None],
    bias: Tensor | None,
    initial: Tensor,
    nonlinearity: str | Callable[[Tensor], Tensor],
    lengths: Tensor | None,
    final_only: bool,
    backend: str,
) -> tuple[str | None, str]:
    """Reject what does not fit together; return the nonlinearity's name if the fused operator is to run it, and the backend."""
    fusable = fusable_name(nonlinearity, bias is not None, backend)
    boolean("final_only", final_only)
    floating_tensor("inputs", inputs)
    others = {**blocks, "bias": bias, "initial": initial}
    for name, given in {"inputs": inputs, **others}.items():
        if given is not None or name in ("weight", "initial"):
            dense_tensor(name, given)
    if inputs.dim() != 3 or inputs.shape[0] == 0:
        raise InputError(f"inputs must be [T, B, n] with T > 0, got shape {list(inputs.shape)}")
    _, batch, n = inputs.shape
    if all(block is None for block in blocks.values()):
        raise InputError("long and short must not both be None: there is no recurrent matrix then")
    if "weight" in blocks:
        expected: dict[str, list[int]] = {"weight": [n, n]}
    else:
        q, s = (0 if block is None else _size(name, block) for name, block in blocks.items() if name != "coupling")
        if q + s != n:
            raise InputError(f"the sizes of long and short must add up to inputs.size(-1) = {n}, got {q} + {s}")
        expected = {"long": [q, q], "coupling": [q, s], "short": [s, s]}
    parts = NONLINEARITIES[nonlinearity].parts if isinstance(nonlinearity, str) else 1
    if n % parts:
        raise InputError(
            f"nonlinearity={nonlinearity!r} needs an even number of units, a real and an imaginary part each, got {n}"
        )
    if parts > 1 and sum(block is not None for block in blocks.values()) > 1:
        raise InputError(f"nonlinearity={nonlinearity!r} works on one recurrent matrix, not on a long and a short part")
    expected |= {"bias": [n // parts], "initial": [batch, n]}
    for name, given in others.items():
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
    return fusable


def _size(name: str, block: Tensor) -> int:
    if block.dim() == 0:
        raise InputError(f"{name} must be a square matrix, got a tensor of shape []")
    return block.shape[-1]
