"""The recurrence as one operator with a hand-written reverse sweep: one node under `torch.compile` and `torch.export`.

Forward keeps only the states. Backward sweeps once in reverse for `dz_t`, after which the gradients of the weights, the
bias and the inputs are one product or two, one sum, and nothing at all.

The recurrent matrix comes as the blocks of `[[W_L, W_C], [0, W_S]]`, any of them missing; a plain matrix is `W_L` alone.
"""

from typing import Any

import torch
from torch import Tensor

from .._precision import full_precision
from ._cuda import Blocks
from ._engines import Engine, engine_for
from ._gram import weight_gradient
from ._once import no_second_derivative
from ._product import pays, product
from .reference import block_matrix


@torch.library.custom_op("enrnn::recurrence", mutates_args=())
def recurrence(
    inputs: Tensor,
    long: Tensor | None,
    coupling: Tensor | None,
    short: Tensor | None,
    bias: Tensor | None,
    initial: Tensor,
    nonlinearity: str,
    lengths: Tensor | None,
    backend: str,
) -> Tensor:
    states = torch.empty_like(inputs, memory_format=torch.contiguous_format)
    _forward(inputs, long, coupling, short, bias, initial, nonlinearity, lengths, backend, states, torch.empty_like(initial))
    return states


@recurrence.register_fake
def _(inputs: Tensor, *_: Any) -> Tensor:
    return inputs.new_empty(inputs.shape)


@torch.library.custom_op("enrnn::final_state", mutates_args=())
def final_state(
    inputs: Tensor,
    long: Tensor | None,
    coupling: Tensor | None,
    short: Tensor | None,
    bias: Tensor | None,
    initial: Tensor,
    nonlinearity: str,
    lengths: Tensor | None,
    backend: str,
) -> Tensor:
    """The last of the states [B, n], without room for the others. It has no gradient."""
    final = torch.empty_like(initial, memory_format=torch.contiguous_format)
    _forward(inputs, long, coupling, short, bias, initial, nonlinearity, lengths, backend, None, final)
    return final


@final_state.register_fake
def _(inputs: Tensor, *_: Any) -> Tensor:
    return inputs.new_empty(inputs.shape[1:])


def _forward(
    inputs: Tensor,
    long: Tensor | None,
    coupling: Tensor | None,
    short: Tensor | None,
    bias: Tensor | None,
    initial: Tensor,
    nonlinearity: str,
    lengths: Tensor | None,
    backend: str,
    states: Tensor | None,
    final: Tensor,
) -> None:
    if inputs.numel() == 0:
        final.copy_(initial)
        return
    with full_precision(inputs):
        engine = engine_for(backend, inputs, nonlinearity, long, short)
        if engine.whole or long is None or short is None:
            engine.forward(inputs, _one_matrix(long, coupling, short), bias, initial, nonlinearity, lengths, states, final)
        elif states is not None:
            _short_then_long(engine, inputs, long, coupling, short, bias, initial, nonlinearity, lengths, states, final)
        else:  # a stretch at a time: the coupling needs the short states of all its steps
            lasting = initial
            for start in range(0, inputs.shape[0], STRETCH):
                stretch = inputs[start : start + STRETCH]
                left = None if lengths is None else lengths - start
                room = torch.empty_like(stretch, memory_format=torch.contiguous_format)
                _short_then_long(engine, stretch, long, coupling, short, bias, lasting, nonlinearity, left, room, final)
                lasting = final.clone()


def _one_matrix(long: Tensor | None, coupling: Tensor | None, short: Tensor | None) -> Tensor | Blocks:
    """For one sweep over everything: the only matrix there is, or the blocks of one."""
    if long is None or short is None:
        return block_matrix(long, None, short)
    return long, coupling, short


STRETCH = 64
"""Steps whose states are held at once where only the last one is asked for."""


def _short_then_long(
    engine: Engine,
    inputs: Tensor,
    long: Tensor,
    coupling: Tensor | None,
    short: Tensor,
    bias: Tensor | None,
    initial: Tensor,
    nonlinearity: str,
    lengths: Tensor | None,
    states: Tensor,
    final: Tensor,
) -> None:
    """`h_S` never depends on `h_L`: the short part runs over the whole sequence, its contribution `W_C h_S` to the long part is
    one product over all steps, and the long part runs last. Sequential work falls from (q+s)² to q² + s²."""
    sizes = [long.shape[-1], short.shape[-1]]
    inputs_long, inputs_short = torch.split(inputs, sizes, dim=-1)
    initial_long, initial_short = torch.split(initial, sizes, dim=-1)
    states_long, states_short = torch.split(states, sizes, dim=-1)
    final_long, final_short = torch.split(final, sizes, dim=-1)
    bias_long, bias_short = (None, None) if bias is None else torch.split(bias, sizes)
    engine.forward(inputs_short, short, bias_short, initial_short, nonlinearity, lengths, states_short, final_short)
    if coupling is not None:
        inputs_long = _plus_previous(inputs_long, initial_short, states_short, coupling.mT)
    engine.forward(inputs_long, long, bias_long, initial_long, nonlinearity, lengths, states_long, final_long)


@torch.library.custom_op("enrnn::recurrence_backward", mutates_args=())
def recurrence_backward(
    grad_states: Tensor,
    states: Tensor,
    long: Tensor | None,
    coupling: Tensor | None,
    short: Tensor | None,
    bias: Tensor | None,
    nonlinearity: str,
    lengths: Tensor | None,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """The reverse sweep: `dz` [T, B, n], the gradient at the argument of σ; those of the initial state, and of the bias."""
    grad_z = torch.empty_like(states)
    grad_initial = torch.empty_like(states[0])
    if states.numel() == 0:
        return grad_z, grad_initial, states.new_zeros(0 if bias is None else len(bias))
    with full_precision(states):
        engine = engine_for(backend, states, nonlinearity, long, short)
        _sweep_back(engine, grad_states, states, long, coupling, short, bias, nonlinearity, lengths, grad_z, grad_initial)
        grad_bias = states.new_empty(0) if bias is None else engine.bias_gradient(states, grad_z, nonlinearity)
    return grad_z, grad_initial, grad_bias


@recurrence_backward.register_fake
def _(
    grad_states: Tensor, states: Tensor, long: Any, coupling: Any, short: Any, bias: Tensor | None, *_: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return states.new_empty(states.shape), states.new_empty(states.shape[1:]), states.new_empty(0 if bias is None else len(bias))


def _sweep_back(
    engine: Engine,
    grad_states: Tensor,
    states: Tensor,
    long: Tensor | None,
    coupling: Tensor | None,
    short: Tensor | None,
    bias: Tensor | None,
    nonlinearity: str,
    lengths: Tensor | None,
    grad_z: Tensor,
    grad_initial: Tensor,
) -> None:
    if engine.whole or long is None or short is None:
        whole = _one_matrix(long, coupling, short)
        engine.backward(grad_states, states, whole, bias, nonlinearity, lengths, grad_z, grad_initial)
        return
    sizes = [long.shape[-1], short.shape[-1]]
    grad_states_long, grad_states_short = torch.split(grad_states, sizes, dim=-1)
    states_long, states_short = torch.split(states, sizes, dim=-1)
    grad_z_long, grad_z_short = torch.split(grad_z, sizes, dim=-1)
    grad_initial_long, grad_initial_short = torch.split(grad_initial, sizes, dim=-1)
    bias_long, bias_short = (None, None) if bias is None else torch.split(bias, sizes)
    engine.backward(grad_states_long, states_long, long, bias_long, nonlinearity, lengths, grad_z_long, grad_initial_long)
    before = None
    if coupling is not None:  # dL/dh_S at step t gains W_Cᵀ dz_L of step t + 1
        grad_states_short, before = _plus_next(grad_states_short, grad_z_long, coupling)
    engine.backward(grad_states_short, states_short, short, bias_short, nonlinearity, lengths, grad_z_short, grad_initial_short)
    if before is not None:
        grad_initial_short += before


def _plus_previous(added: Tensor, initial: Tensor, states: Tensor, matrix: Tensor) -> Tensor:
    """`added_t + h_{t−1} @ matrix` for every step; `initial` is `h_0`. No copy of the states is made."""
    out = torch.empty(added.shape, dtype=added.dtype, device=added.device)
    if pays(_flat(states), matrix):
        product(_flat(states[:-1]), matrix, _flat(added), _flat(out), first=initial)
    else:
        torch.addmm(added[0], initial, matrix, out=out[0])
        _add_product(added[1:], states[:-1], matrix, out[1:])
    return out


def _plus_next(added: Tensor, grad_z: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
    """`added_t + dz_{t+1} @ matrix` for every step, nothing coming after the last; and what comes before the first."""
    before = torch.empty(added.shape[1:], dtype=added.dtype, device=added.device)
    out = torch.empty(added.shape, dtype=added.dtype, device=added.device)
    if pays(_flat(grad_z), matrix):
        product(_flat(grad_z), matrix, _flat(added), _flat(out), out_first=before)
    else:
        torch.mm(grad_z[0], matrix, out=before)
        _add_product(added[:-1], grad_z[1:], matrix, out[:-1])
        out[-1].copy_(added[-1])
    return out, before


def _add_product(added: Tensor, factors: Tensor, matrix: Tensor, out: Tensor) -> None:
    """`added + factors @ matrix`, over all steps at once."""
    if len(factors):
        torch.addmm(_flat(added), _flat(factors), matrix, out=_flat(out))


def _flat(sequence: Tensor) -> Tensor:
    """[T, B, k] as [T·B, k]: a view wherever the rows are evenly spaced, as those of a column slice are."""
    return sequence.flatten(0, 1)


AT_ONCE = 256
"""On a GPU and up to so many units, one product for the gradients of all blocks is faster than one for the long part's rows and
one for the short part's, though a block of it is thrown away: on an H200 88 instead of 107 µs at 172/20, but 150 instead of 132
at 374/94."""


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, long, coupling, short, bias, initial, ctx.nonlinearity, lengths, ctx.backend = inputs
    ctx.save_for_backward(output, long, coupling, short, bias, initial, lengths)


def _backward(ctx: Any, grad_states: Tensor) -> tuple[Tensor | None, ...]:
    states, long, coupling, short, bias, initial, lengths = ctx.saved_tensors
    grad_z, grad_initial, grad_bias = recurrence_backward(
        grad_states, states, long, coupling, short, bias, ctx.nonlinearity, lengths, ctx.backend
    )
    _, needs_long, needs_coupling, needs_short, needs_bias, *_ = ctx.needs_input_grad
    grad_long = grad_coupling = grad_short = None
    q = 0 if long is None else long.shape[-1]
    with full_precision(states):
        if needs_long and needs_coupling and needs_short and states.is_cuda and states.shape[-1] <= AT_ONCE:
            whole = weight_gradient(grad_z, initial, states)
            grad_long, grad_coupling, grad_short = whole[:q, :q], whole[:q, q:], whole[q:, q:]
            needs_short = False
        elif needs_long and needs_coupling:  # the rows of the long part, at once
            rows = weight_gradient(grad_z[..., :q], initial, states)
            grad_long, grad_coupling = rows[:, :q], rows[:, q:]
        elif needs_long:
            grad_long = weight_gradient(grad_z[..., :q], initial[..., :q], states[..., :q])
        elif needs_coupling:
            grad_coupling = weight_gradient(grad_z[..., :q], initial[..., q:], states[..., q:])
        if needs_short:
            grad_short = weight_gradient(grad_z[..., q:], initial[..., q:], states[..., q:])
    return grad_z, grad_long, grad_coupling, grad_short, grad_bias if needs_bias else None, grad_initial, None, None, None


recurrence.register_autograd(_backward, setup_context=_setup_context)
recurrence_backward.register_autograd(no_second_derivative)
