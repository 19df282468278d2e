"""The recurrence made linear along its own states, in both directions: what all derivatives of it are made of.

With `D_t = ∂σ/∂z` at step t, symmetric and a function of the state `h_t` (and perhaps of b),

    push_forward:  u_t = D_t (x_t + W u_{t−1}),    from x and u_0      (how states move as inputs do)
    pull_back:     d_t = D_t (g_t + Wᵀ d_{t+1}),   and then Wᵀ d_1     (gradients by inputs from gradients by states)

Each is the transpose of the other, and each is also the other one run from the last step to the first with Wᵀ for W: so both are
done by the reverse sweep of whatever engine there is, at its speed. Their own derivatives are, again, one of each and products
over all steps at once: what is made of them can be differentiated as often as one likes, forwards and backwards.

Steps past the length of a sequence do not exist here: zero comes out for them, and `g` must be zero there.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._operators import Operator
from .._precision import full_precision
from ..nonlinearities import NONLINEARITIES
from ._op import recurrence_backward
from .reference import block_matrix


@Operator
def pull_back(
    g: Tensor,
    states: Tensor,
    long: Tensor | None,
    coupling: Tensor | None,
    short: Tensor | None,
    bias: Tensor | None,
    nonlinearity: str,
    lengths: Tensor | None,
    backend: str,
) -> tuple[Tensor, Tensor]:
    """`d` [T, B, n], and `Wᵀ d` of the first step, [B, n]."""
    return _reverse_sweep(g, states, long, coupling, short, bias, nonlinearity, lengths, backend)


@pull_back.register_fake
def _(g: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return g.new_empty(g.shape), g.new_empty(g.shape[1:])


@Operator
def push_forward(
    x: Tensor,
    initial: Tensor,
    states: Tensor,
    long: Tensor | None,
    coupling: Tensor | None,
    short: Tensor | None,
    bias: Tensor | None,
    nonlinearity: str,
    lengths: Tensor | None,
    backend: str,
) -> Tensor:
    """`u` [T, B, n]."""
    if x.numel() == 0:
        return torch.empty_like(x, memory_format=torch.contiguous_format)
    with full_precision(x):
        start = torch.addmm(x[0], initial, block_matrix(long, coupling, short).mT)
    q = 0 if long is None or short is None else len(long)  # the part that comes second now
    given = within(torch.cat([start[None], x[1:]]), lengths), states
    x, states = (_turned(torch.cat([each[..., q:], each[..., :q]], -1), lengths) for each in given)
    bias = bias if bias is None or q == 0 else bias.roll(-q)
    first, second, third = (None if block is None else block.mT for block in (long, coupling, short))
    blocks = (third, second, first) if q else (first, second, third)
    u = _turned(_reverse_sweep(x, states, *blocks, bias, nonlinearity, lengths, backend)[0], lengths)
    return u.roll(q, -1) if q else u


@push_forward.register_fake
def _(x: Tensor, *_: Any) -> Tensor:
    return x.new_empty(x.shape)


def _reverse_sweep(
    g: Tensor,
    states: Tensor,
    long: Tensor | None,
    coupling: Tensor | None,
    short: Tensor | None,
    bias: Tensor | None,
    nonlinearity: str,
    lengths: Tensor | None,
    backend: str,
) -> tuple[Tensor, Tensor]:
    given = states, long, coupling, short, bias, states[0], nonlinearity, lengths, backend
    d, before, *_ = recurrence_backward(g, *given, [False, False, False])
    return d, before


def _turned(sequence: Tensor, lengths: Tensor | None) -> Tensor:
    """The steps of every sequence in reverse; those past its end stay."""
    if lengths is None:
        return sequence.flip(0)
    t = torch.arange(len(sequence), device=sequence.device)[:, None]
    ends = lengths.clamp(0, len(sequence))
    return sequence.gather(0, torch.where(t < ends, ends - 1 - t, t)[..., None].expand(sequence.shape))


class Along(NamedTuple):
    """What both sweeps go along: the arguments after those in which they are linear."""

    states: Tensor
    long: Tensor | None
    coupling: Tensor | None
    short: Tensor | None
    bias: Tensor | None
    nonlinearity: str
    lengths: Tensor | None
    backend: str

    @property
    def matrix(self) -> Tensor:
        return block_matrix(self.long, self.coupling, self.short)

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        return *self[:5], self.lengths


def _kept(ctx: Any) -> tuple[list[Tensor], Along]:
    """What `ctx.save_for_backward` was given before `Along.tensors`, and these with the two names in `ctx.along`."""
    *saved, states, long, coupling, short, bias, lengths = ctx.saved_tensors
    nonlinearity, backend = ctx.along
    return saved, Along(states, long, coupling, short, bias, nonlinearity, lengths, backend)


def _setup_pull_back(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    g, along = inputs[0], Along(*inputs[1:])
    ctx.along = along.nonlinearity, along.backend
    ctx.save_for_backward(g, output[0], *along.tensors)


def _gradients_of_pull_back(ctx: Any, x: Tensor, initial: Tensor) -> tuple[Tensor | None, ...]:
    (g, d), along = _kept(ctx)
    with full_precision(d):
        u = push_forward(x, initial, *along)
        return u, *_by_along(along, ctx.needs_input_grad[1:6], x, previous(initial, u), g, d)


pull_back.register_autograd(_gradients_of_pull_back, setup_context=_setup_pull_back)


@pull_back.register_tangent
def _(arguments: tuple[Any, ...], found: tuple[Tensor, Tensor], tangents: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
    (g, *rest), (d, _) = arguments, found
    along, (moved_g, *moved) = Along(*rest), tangents
    with full_precision(d):
        W, moved_W, after = along.matrix, moved_matrix(along, moved[1:4]), _following(d)
        bent = _bent(along, moved, g, after, W)
        by_bend = None if bent is None else _following(bent) @ W
        source = total(moved_g, None if moved_W is None else after @ moved_W, by_bend)
        moved_d, moved_before = pull_back(torch.zeros_like(g) if source is None else source, *along)
        more = total(None if moved_W is None else d[0] @ moved_W, None if bent is None else bent[0] @ W)
        return moved_d if bent is None else moved_d + bent, moved_before if more is None else moved_before + more


def _setup_push_forward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, initial, along = *inputs[:2], Along(*inputs[2:])
    ctx.along = along.nonlinearity, along.backend
    ctx.save_for_backward(x, initial, output, *along.tensors)


def _gradients_of_push_forward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    (x, initial, u), along = _kept(ctx)
    with full_precision(u):
        g = within(g, along.lengths)
        d, before = pull_back(g, *along)
        return d, before, *_by_along(along, ctx.needs_input_grad[2:7], x, previous(initial, u), g, d)


push_forward.register_autograd(_gradients_of_push_forward, setup_context=_setup_push_forward)


@push_forward.register_tangent
def _(arguments: tuple[Any, ...], u: Tensor, tangents: tuple[Any, ...]) -> Tensor:
    (x, initial, *rest), (moved_x, moved_initial, *moved) = arguments, tangents
    along = Along(*rest)
    with full_precision(u):
        W, moved_W, before = along.matrix, moved_matrix(along, moved[1:4]), previous(initial, u)
        bent = _bent(along, moved, x, before, W.mT)
        by_bend = None if bent is None else previous(torch.zeros_like(initial), bent) @ W.mT
        source = total(moved_x, None if moved_W is None else before @ moved_W.mT, by_bend)
        start = torch.zeros_like(initial) if moved_initial is None else moved_initial
        moved_u: Tensor = push_forward(torch.zeros_like(x) if source is None else source, start, *along)
        return moved_u if bent is None else moved_u + bent


def _by_along(
    along: Along, wanted: tuple[bool, ...], x: Tensor, before: Tensor, g: Tensor, d: Tensor
) -> tuple[Tensor | None, ...]:
    """Gradients of `⟨g, u⟩` by what the sweeps go along: `u` is what x is pushed forward to, `before` it a step before, and `d`
    what g is pulled back to. (It is the same number as `⟨x, d⟩`, if nothing comes in before the first step.)"""
    by_states, by_bias, curvature = None, None, NONLINEARITIES[along.nonlinearity].curvature
    if curvature is not None and (wanted[0] or wanted[4]):
        W = along.matrix
        by_states, by_bias = curvature.gradient(along.states, along.bias, x + before @ W.mT, g + _following(d) @ W)
        by_states = within(by_states, along.lengths)
        by_bias = None if by_bias is None else within(by_bias, along.lengths).sum((0, 1))
    return by_states, *by_matrices(d, before, along.long, wanted[1:4]), by_bias, None, None, None


def _bent(along: Along, moved: list[Tensor | None], given: Tensor, neighbour: Tensor, matrix: Tensor) -> Tensor | None:
    """How `D_t (given_t + neighbour_t @ matrix)` moves as D does."""
    curvature, moved_states, moved_bias = NONLINEARITIES[along.nonlinearity].curvature, moved[0], moved[4]
    if curvature is None or (moved_states is None and moved_bias is None):
        return None
    moved_states = torch.zeros_like(along.states) if moved_states is None else moved_states
    bent = curvature.tangent(along.states, along.bias, given + neighbour @ matrix, moved_states, moved_bias)
    return within(bent, along.lengths)


def previous(initial: Tensor, sequence: Tensor) -> Tensor:
    """What is there before each step."""
    return torch.cat([initial[None], sequence[:-1]])


def _following(sequence: Tensor) -> Tensor:
    """What is there after each step: nothing after the last."""
    return torch.cat([sequence[1:], torch.zeros_like(sequence[:1])])


def within(sequence: Tensor, lengths: Tensor | None) -> Tensor:
    """With zeros where a sequence has ended."""
    if lengths is None:
        return sequence
    t = torch.arange(len(sequence), device=sequence.device)[:, None]
    return torch.where((t < lengths)[..., None], sequence, 0)


def by_matrices(dz: Tensor, before: Tensor, long: Tensor | None, wanted: Sequence[bool]) -> tuple[Tensor | None, ...]:
    """`Σ_t dz_t h_{t−1}ᵀ`: of its blocks, `long`, `coupling` and `short`, those that are wanted. (By views that
    `is_grads_batched` can take.)"""
    q = 0 if long is None else len(long)
    s = dz.shape[-1] - q
    blocks = ((0, q), (0, q)), ((0, q), (q, s)), ((q, s), (q, s))
    dz, before = (each.reshape(-1, q + s) for each in (dz, before))
    chosen = zip(wanted, blocks, strict=True)
    return tuple(dz.narrow(1, *rows).mT @ before.narrow(1, *columns) if each else None for each, (rows, columns) in chosen)


def moved_matrix(along: Along, moved: list[Tensor | None]) -> Tensor | None:
    """How W moves, from how its blocks do; None if it does not."""
    if all(each is None for each in moved):
        return None
    blocks = zip((along.long, along.coupling, along.short), moved, strict=True)
    return block_matrix(*(torch.zeros_like(of) if each is None and of is not None else each for of, each in blocks))


def total(*terms: Tensor | None) -> Tensor | None:
    """The sum of what is there."""
    found = None
    for term in terms:
        if term is not None:
            found = term if found is None else found + term
    return found
