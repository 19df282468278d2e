"""The recurrence as one operator, and its reverse sweep as another: one node each under `torch.compile` and `torch.export`.

Forward keeps only the states. Backward sweeps once in reverse for `dz_t`, after which the gradients of the weights, the
bias and the inputs are one product or two, one sum, and nothing at all. (Which is the derivative of what: `_derivatives.py`.)

The recurrent matrix comes as the blocks of `[[W_L, W_C], [0, W_S]]`, any of them missing; a plain matrix is `W_L` alone.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .._operators import Operator
from .._precision import full_precision
from .._replay import replayed
from . import _linked
from ._beside import Joined, at_once
from ._cuda import Blocks
from ._engines import Engine, engine_for
from ._product import pays, product
from .reference import block_matrix


@Operator
@replayed
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


@Operator
@replayed
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
    if coupling is not None and (layouts := engine.linked_for(inputs, sizes[1], sizes[0], nonlinearity)) is not None:
        _linked.forward(layouts, inputs, (long, coupling, short), bias, initial, nonlinearity, lengths, states, final)
        return
    inputs_long, inputs_short = _split(inputs, sizes)
    initial_long, initial_short = _split(initial, sizes)
    states_long, states_short = _split(states, sizes)
    final_long, final_short = _split(final, sizes)
    bias_long, bias_short = (None, None) if bias is None else _split(bias, sizes)
    engine.forward(inputs_short, short, bias_short, initial_short, nonlinearity, lengths, states_short, final_short)
    if coupling is not None:
        inputs_long = _plus_previous(inputs_long, initial_short, states_short, coupling.mT)
    engine.forward(inputs_long, long, bias_long, initial_long, nonlinearity, lengths, states_long, final_long)


@Operator
@replayed
def recurrence_backward(
    grad_states: Tensor,
    states: Tensor,
    long: Tensor | None,
    coupling: Tensor | None,
    short: Tensor | None,
    bias: Tensor | None,
    initial: Tensor,
    nonlinearity: str,
    lengths: Tensor | None,
    backend: str,
    wanted: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The reverse sweep, and what follows from it: `dz` [T, B, n], the gradient at the argument of σ; those of the initial state
    and of the bias; and those of the matrices that are wanted, of `long`, `coupling` and `short`, as `_blocks` has them."""
    grad_z, grad_initial = torch.empty_like(states), torch.empty_like(states[0])
    blocks, room = _blocks(states, long, wanted), states.new_empty if states.numel() else states.new_zeros
    grad_bias = room(0 if bias is None else bias.shape[0])
    grad_rows, grad_short = (room(_extent(rows), _extent(columns)) for rows, columns in blocks)

    def weigh(block: int) -> None:
        (rows, columns), out = blocks[block], (grad_rows, grad_short)[block]
        if out.numel():
            engine.weight_gradient(grad_z[..., rows], initial[..., columns], states[..., columns], out)

    def weigh_both() -> None:
        weigh(0)
        weigh(1)

    def add_up() -> None:
        if before is not None:
            grad_initial[:, -before.shape[-1] :] += before
        if bias is not None:
            engine.bias_gradient(states, grad_z, nonlinearity, grad_bias)

    if states.numel() == 0:
        return grad_z, grad_initial, grad_bias, grad_rows, grad_short
    with full_precision(states), Joined(states.device):
        engine, before, left, done = engine_for(backend, states, nonlinearity, long, short), None, weigh_both, False
        if engine.whole or long is None or short is None:
            whole = _one_matrix(long, coupling, short)
            engine.backward(grad_states, states, whole, bias, nonlinearity, lengths, grad_z, grad_initial)
        else:
            given = grad_states, states, long, coupling, short, bias, nonlinearity, lengths, grad_z, grad_initial
            apart = grad_rows.shape[0] <= long.shape[0]  # then what one product forms is known before the short part is swept
            left = partial(weigh, 1) if apart else weigh_both
            before, done = _long_then_short(engine, *given, (partial(weigh, 0), left, add_up) if apart else None)
        if not done:
            at_once(left, None if bias is None and before is None else add_up, states.device)
    return grad_z, grad_initial, grad_bias, grad_rows, grad_short


@recurrence_backward.register_fake
def _(
    grad_states: Tensor, states: Tensor, long: Tensor | None, coupling: Any, short: Any, bias: Tensor | None, *others: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    grad_bias, blocks = states.new_empty(0 if bias is None else len(bias)), _blocks(states, long, others[-1])
    first, second = (states.new_empty(_extent(rows), _extent(columns)) for rows, columns in blocks)
    return states.new_empty(states.shape), states.new_empty(states.shape[1:]), grad_bias, first, second


AT_ONCE = 512
"""On a GPU and up to so many units, one product for the gradients of all blocks is faster than one for the long part's rows and
one for the short part's, though a block of it is thrown away: on an H200, at 374/94, a training step of 801 instead of 810 µs."""


def _blocks(states: Tensor, long: Tensor | None, wanted: list[bool]) -> tuple[tuple[slice, slice], tuple[slice, slice]]:
    """Rows and columns of the matrix whose gradients are formed by one product, and those by another; perhaps none."""
    n, q = states.shape[-1], 0 if long is None else long.shape[0]
    if all(wanted) and states.is_cuda and n <= AT_ONCE:
        return (slice(0, n), slice(0, n)), (slice(n, n), slice(n, n))
    by_long, by_coupling, by_short = wanted
    short = slice(q, n if by_short else q)
    return (slice(0, q), slice(0 if by_long else q, n if by_coupling else q)), (short, short)


def _extent(part: slice) -> int:
    extent: int = part.stop - part.start
    return extent


def _long_then_short(
    engine: Engine,
    grad_states: Tensor,
    states: Tensor,
    long: Tensor,
    coupling: Tensor | None,
    short: Tensor,
    bias: Tensor | None,
    nonlinearity: str,
    lengths: Tensor | None,
    grad_z: Tensor,
    grad_initial: Tensor,
    then: tuple[Callable[[], None], Callable[[], None], Callable[[], None]] | None,
) -> tuple[Tensor | None, bool]:
    """`_short_then_long` in reverse; `then` is what needs the long part's sweep, the short one's, and both. The first is done
    beside the sweep of the short part. Returned is what `grad_initial`, in its short part, gains by the coupling, and whether the
    others have been done too."""
    sizes = [long.shape[-1], short.shape[-1]]
    if coupling is not None and (layouts := engine.linked_for(states, *sizes, nonlinearity)) is not None:
        given = (long, coupling, short), bias, nonlinearity, lengths, grad_z, grad_initial
        _linked.backward(layouts, grad_states, states, *given, *(then or ()))
        return None, then is not None
    grad_states_long, grad_states_short = _split(grad_states, sizes)
    states_long, states_short = _split(states, sizes)
    grad_z_long, grad_z_short = _split(grad_z, sizes)
    grad_initial_long, grad_initial_short = _split(grad_initial, sizes)
    bias_long, bias_short = (None, None) if bias is None else _split(bias, sizes)
    engine.backward(grad_states_long, states_long, long, bias_long, nonlinearity, lengths, grad_z_long, grad_initial_long)
    before = None
    if coupling is not None:  # dL/dh_S at step t gains W_Cᵀ dz_L of step t + 1
        grad_states_short, before = _plus_next(grad_states_short, grad_z_long, coupling)
    others = bias_short, nonlinearity, lengths, grad_z_short, grad_initial_short
    engine.backward(grad_states_short, states_short, short, *others, then[0] if then else None)
    return before, False


def _split(tensor: Tensor, sizes: list[int]) -> tuple[Tensor, ...]:
    """The long and the short part of units. (`torch.split` is the same, and takes twice as long.)"""
    return tensor.split_with_sizes(sizes, -1)


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
