"""The derivatives of the recurrence: backwards by one operator; forwards, or to be differentiated again, by linear sweeps.

The reverse sweep with all that follows from it, `recurrence_backward`, is the fastest way to gradients, and has none itself. So
where gradients are differentiated again they are made of `pull_back` and torch's own operations; as is, of `push_forward`, the
derivative in forward mode.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .._operators import differentiated_again
from .._precision import full_precision
from ..nonlinearities import NONLINEARITIES
from ._linear import Along, by_matrices, moved_matrix, previous, pull_back, push_forward, total, within
from ._many import at_once
from ._op import final_state as final_state
from ._op import recurrence as recurrence
from ._op import recurrence_backward


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, long, coupling, short, bias, initial, ctx.nonlinearity, lengths, ctx.backend = inputs
    ctx.save_for_backward(output, long, coupling, short, bias, initial, lengths)


def _backward(ctx: Any, grad_states: Tensor) -> tuple[Tensor | None, ...]:
    states, long, coupling, short, bias, initial, lengths = ctx.saved_tensors
    wanted, needs_bias = ctx.needs_input_grad[1:4], ctx.needs_input_grad[4]
    if differentiated_again():
        along = Along(states, long, coupling, short, bias, ctx.nonlinearity, lengths, ctx.backend)
        return *differentiable_gradients(along, initial, grad_states, wanted, needs_bias), None, None, None
    grad_z, grad_initial, grad_bias, rows, grad_short = recurrence_backward(
        grad_states, states, long, coupling, short, bias, initial, ctx.nonlinearity, lengths, ctx.backend, [*wanted]
    )
    blocks = by_blocks(rows, grad_short, long, wanted)
    return grad_z, *blocks, grad_bias if needs_bias else None, grad_initial, None, None, None


def by_blocks(rows: Tensor, short: Tensor, long: Tensor | None, wanted: Sequence[bool]) -> tuple[Tensor | None, ...]:
    """The gradients of `W_L`, `W_C` and `W_S`, if wanted, out of the two matrices that `recurrence_backward` gives."""
    q, (by_long, by_coupling, by_short) = 0 if long is None else long.shape[0], wanted
    grad_long = (rows[:q, :q] if max(rows.shape) > q else rows) if by_long else None  # a slice that is all, vmap cannot take
    grad_coupling = (rows[:q, q:] if by_long else rows) if by_coupling else None
    grad_short = (rows[q:, q:] if rows.shape[0] > q else short) if by_short else None
    return grad_long, grad_coupling, grad_short


def differentiable_gradients(
    along: Along, initial: Tensor, grad_states: Tensor, wanted: Sequence[bool], needs_bias: bool
) -> tuple[Tensor | None, ...]:
    """Of inputs, matrices, bias and initial state, in operations that can be differentiated again."""
    with full_precision(along.states):
        g, at_start = _to_last_step(grad_states, along.lengths)
        dz, grad_initial = pull_back(g, *along)
        matrices = by_matrices(dz, previous(initial, along.states), along.long, wanted)
        grad_bias = None
        if needs_bias:
            grad_bias = NONLINEARITIES[along.nonlinearity].bias_gradient(along.states, dz).sum((0, 1))
        return dz, *matrices, grad_bias, grad_initial if at_start is None else grad_initial + at_start


def _to_last_step(grad_states: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """A state that is kept past the end of a sequence is that of its last step, or of its start if there is none."""
    if lengths is None:
        return grad_states, None
    inside = within(grad_states, lengths)
    kept = (grad_states - inside).sum(0)
    t = torch.arange(len(grad_states), device=grad_states.device)[:, None]
    last = (t == lengths - 1)[..., None]
    return inside + torch.where(last, kept, 0), torch.where((lengths <= 0)[..., None], kept, 0)


recurrence.register_autograd(_backward, setup_context=_setup_context)


@recurrence.register_tangent
def _(arguments: tuple[Any, ...], states: Tensor, tangents: tuple[Any, ...]) -> Tensor:
    _, long, coupling, short, bias, initial, nonlinearity, lengths, backend = arguments
    moved_inputs, *moved_blocks, moved_bias, moved_initial = tangents[:6]
    along = Along(states, long, coupling, short, bias, nonlinearity, lengths, backend)
    with full_precision(states):
        moved_W = moved_matrix(along, moved_blocks)
        by_matrix = None if moved_W is None else previous(initial, states) @ moved_W.mT
        by_bias = None if moved_bias is None else NONLINEARITIES[nonlinearity].bias_tangent(states, moved_bias).expand_as(states)
        moved = total(moved_inputs, by_matrix, by_bias)
        start = torch.zeros_like(initial) if moved_initial is None else moved_initial
        u: Tensor = push_forward(torch.zeros_like(states) if moved is None else moved, start, *along)
        return u if lengths is None else _kept(u, start, lengths)


def _kept(sequence: Tensor, initial: Tensor, lengths: Tensor) -> Tensor:
    """What is at the last step of a sequence, at all later ones too."""
    t = torch.arange(1, len(sequence) + 1, device=sequence.device)[:, None]
    index = torch.minimum(t, lengths.clamp_min(0))[..., None].expand(sequence.shape)
    return torch.cat([initial[None], sequence]).gather(0, index)


for operator in (recurrence, final_state):
    operator.register_vmap(at_once(operator, {0: 1, 5: 0, 7: 0}))
pull_back.register_vmap(at_once(pull_back, {0: 1, 1: 1, 7: 0}))
push_forward.register_vmap(at_once(push_forward, {0: 1, 1: 0, 2: 1, 8: 0}))
