"""ENRNN's way in, matrices and recurrence as one operator, for training on a GPU outside of a CUDA graph.

There Python launches every kernel, and what it does is what one waits for. Formed and run one after the other, `U x`, `W_L`,
`W_S` and the recurrence are four operators and four nodes of autograd's, each with its own way there and back. Here they are two
calls: `W_S`, and all the rest. What belongs to one call is replayed together (`../_replay.py`): as one CUDA graph, if all of it
is kernels of ours.

Somebody has to see that `W_S` is certified, and waits until it is there. That is done last: with the recurrence launched, too,
the GPU has enough to do meanwhile. In the rare case that it is not, the states that were found are thrown away.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._later import Later
from .._operators import Operator, differentiated_again, transforms_are_active
from .._replay import gapless, replayed
from ..matrices._cayley_transform import cayley, cayley_backward
from ..matrices._cayley_transform import differentiable_gradient as cayley_gradient
from ..matrices._eigenvalue_normalized import differentiable_gradient as normalization_gradient
from ..matrices._eigenvalue_normalized import normalize_on_device, normalize_spectrum_backward
from ..matrices._normalization import Said
from ..recurrence._derivatives import by_blocks, differentiable_gradients
from ..recurrence._linear import Along
from ..recurrence._op import recurrence, recurrence_backward
from ..recurrence._projection import differentiable_gradients as projection_gradients
from ..recurrence._projection import projection, projection_backward
from ..spectrum import probes_on_device


class Unformed(NamedTuple):
    """What `U x` and the matrices of a recurrence are formed from, `W_S` having been: None where there is no such part."""

    weight: Tensor | None
    """`U`; None if what is given has been projected."""
    added: Tensor | None
    """To `U x`."""
    free_long: Tensor | None
    """`P`, of `Cayley`."""
    coupling: Tensor | None
    free_short: Tensor | None
    """`T`, of `EigenvalueNormalized`."""
    short: Tensor | None
    """`W_S`; and what its gradient needs: `∂ρ/∂T`, and what else is `Said` of it."""
    derivative: Tensor | None
    said: Tensor | None
    bias: Tensor | None
    """As the recurrence wants it: a threshold."""
    nonlinearity: str
    negative_ones: int
    epsilon: float
    certified: Later | None
    """Whether `W_S` is."""


def run(unformed: Unformed, x: Tensor, initial: Tensor | None, lengths: Tensor | None) -> Tensor | None:
    """All states, as `long_short_recurrence` gives them on `cuda`; None if `W_S` turns out not to be certified. Without a first
    state, from zero."""
    *tensors, nonlinearity, negative_ones, epsilon, certified = unformed
    states: Tensor = one_call(x, *tensors, initial, lengths, nonlinearity, negative_ones, epsilon)[0]
    return states if certified is None or certified else None


@Operator
@replayed
def one_call(
    x: Tensor,
    weight: Tensor | None,
    added: Tensor | None,
    free_long: Tensor | None,
    coupling: Tensor | None,
    free_short: Tensor | None,
    short: Tensor | None,
    derivative: Tensor | None,
    said: Tensor | None,
    bias: Tensor | None,
    initial: Tensor | None,
    lengths: Tensor | None,
    nonlinearity: str,
    negative_ones: int,
    epsilon: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The states, `W_L`, and `X` of `cayley`."""
    inputs = x if weight is None else projection.within(x, weight, added)
    long, X = _nothing(x), _nothing(x)
    if free_long is not None:
        long, X = cayley.within(free_long, negative_ones)
    start = _zero(inputs) if initial is None else initial
    states = recurrence.within(inputs, _or_none(long), coupling, short, bias, start, nonlinearity, lengths, "cuda")
    return states, long, X


X_IN, WEIGHT, ADDED, FREE_LONG, COUPLING, FREE_SHORT, BIAS = 0, 1, 2, 3, 4, 5, 9
"""Places of its arguments."""


@one_call.register_fake
def _(x: Tensor, weight: Tensor | None, added: Any, free_long: Tensor | None, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    long = _nothing(x) if free_long is None else x.new_empty(free_long.shape)
    states = x.new_empty(x.shape if weight is None else (*x.shape[:-1], len(weight)))
    return states, long, x.new_empty(long.shape, dtype=torch.float64)


@Operator
@replayed
def one_call_backward(
    grad_states: Tensor,
    states: Tensor,
    x: Tensor | None,
    weight: Tensor | None,
    long: Tensor | None,
    X: Tensor | None,
    coupling: Tensor | None,
    short: Tensor | None,
    derivative: Tensor | None,
    said: Tensor | None,
    bias: Tensor | None,
    initial: Tensor | None,
    lengths: Tensor | None,
    nonlinearity: str,
    negative_ones: int,
    epsilon: float,
    projects: bool,
    of_added: bool,
    wanted: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of x, `U` and what is added to `U x`, as `projection_backward` has them; of initial state and bias; and of
    `P`, `W_C` and `T`, those that are wanted. The others are empty."""
    start = _zero(states) if initial is None else initial
    given = grad_states, states, long, coupling, short, bias, start, nonlinearity, lengths, "cuda", wanted
    grad_inputs, grad_initial, grad_bias, rows, rest = recurrence_backward.within(*given)
    of_input = grad_inputs, _nothing(states), _nothing(states)
    if projects:
        of_input = projection_backward.within(grad_inputs, x, weight, of_added)
    grad_long, grad_coupling, grad_short = by_blocks(rows, rest, long, wanted)
    free_long, free_coupling, free_short = (_nothing(states) for _ in range(3))
    if grad_long is not None:
        free_long = cayley_backward.within(grad_long, X, negative_ones)
    if grad_coupling is not None:
        free_coupling = gapless(grad_coupling)
    if grad_short is not None:
        assert said is not None
        radius, _, applied, *_ = Said.of(said, states.dtype)
        free_short = normalize_spectrum_backward.within(grad_short, short, derivative, radius, applied, epsilon)
    return *of_input, grad_initial, grad_bias, free_long, free_coupling, free_short


@one_call_backward.register_fake
def _(grad_states: Tensor, states: Tensor, x: Tensor | None, weight: Tensor | None, *others: Any) -> tuple[Tensor, ...]:
    long, _, coupling, short, _, _, bias, *_, projects, of_added, wanted = others
    new, n = states.new_empty, states.shape[-1]
    free = (new(0 if each is None or not by else each.shape) for each, by in zip((long, coupling, short), wanted, strict=True))
    grad_x = new(states.shape)
    if projects:
        grad_x = new(0) if weight is None else new(*states.shape[:-1], weight.shape[1])
    of_weight = new(0) if x is None else new(n, x.shape[-1])
    return grad_x, of_weight, new(n if of_added else 0), new(states.shape[1:]), new(0 if bias is None else len(bias)), *free


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, _, free_long, coupling, free_short, short, derivative, said, bias, initial, lengths, *settings = inputs
    states, long, X = output
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(long, X)
    of_x, of_weight = ctx.needs_input_grad[X_IN], ctx.needs_input_grad[WEIGHT]
    kept = x if of_weight else None, weight if of_x else None
    ctx.save_for_backward(states, *kept, long, X, coupling, short, derivative, said, bias, initial, lengths)
    ctx.free = [each if each is None else (each, each._version) for each in (free_long, free_short)]
    ctx.settings, ctx.projects = settings, weight is not None


def _backward(ctx: Any, grad_states: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    if grad_states is None:
        return (None,) * 15
    wanted = [ctx.needs_input_grad[place] for place in (FREE_LONG, COUPLING, FREE_SHORT)]
    if differentiated_again() or transforms_are_active():
        return _differentiable(ctx, grad_states, wanted)
    states, x, weight, long, X, *others = ctx.saved_tensors
    given = grad_states, states, x, weight, _or_none(long), _or_none(X), *others
    of_added = ctx.needs_input_grad[ADDED]
    found = one_call_backward(*given, *ctx.settings, ctx.projects, of_added, wanted)
    by_x, by_weight, by_added, by_initial, by_bias, by_long, by_coupling, by_short = found
    return _in_places(ctx, by_x, by_weight, by_added, by_long, by_coupling, by_short, by_bias, by_initial)


def _differentiable(ctx: Any, grad_states: Tensor, wanted: list[bool]) -> tuple[Tensor | None, ...]:
    """In operations that can be differentiated again, or be run for many at once: the matrices are formed anew, as functions of
    what they are formed from."""
    states, x, weight, _, _, coupling, _, _, said, bias, initial, lengths = ctx.saved_tensors
    nonlinearity, negative_ones, epsilon = ctx.settings
    free_long, free_short = map(_unchanged, ctx.free)
    long, X = (None, None) if free_long is None else cayley(free_long, negative_ones)
    found: tuple[Any, ...] = (None,)
    if free_short is not None:
        switched = Said.of(said, states.dtype).switched
        found = normalize_on_device(free_short, switched, epsilon, probes_on_device(free_short))
    along = Along(states, long, coupling, found[0], bias, nonlinearity, lengths, "cuda")
    start = torch.zeros_like(states[0]) if initial is None else initial
    needs_bias = ctx.needs_input_grad[BIAS]
    moved = differentiable_gradients(along, start, grad_states, wanted, needs_bias)
    by_inputs, by_long, by_coupling, by_short, by_bias, by_initial = moved
    assert by_inputs is not None
    by_x, by_weight, by_added = projection_gradients(by_inputs, x, weight) if ctx.projects else (by_inputs, None, None)
    if by_long is not None and X is not None:
        by_long = cayley_gradient(by_long, X, negative_ones)
    if by_short is not None and free_short is not None:
        by_short = normalization_gradient(by_short, free_short, found, epsilon)
    return _in_places(ctx, by_x, by_weight, by_added, by_long, by_coupling, by_short, by_bias, by_initial)


def _unchanged(free: tuple[Tensor, int] | None) -> Tensor | None:
    """What a matrix was formed from, as it was then."""
    if free is None:
        return None
    tensor, version = free
    if tensor._version != version:
        raise RuntimeError("what a recurrent matrix was formed from has been changed in place since, which its gradient needs")
    return tensor


def _in_places(
    ctx: Any,
    x: Tensor | None,
    weight: Tensor | None,
    added: Tensor | None,
    free_long: Tensor | None,
    coupling: Tensor | None,
    free_short: Tensor | None,
    bias: Tensor | None,
    initial: Tensor | None,
) -> tuple[Tensor | None, ...]:
    """The gradients as `one_call` has its arguments, of those that want one."""
    of_kinds = free_long, coupling, free_short, None, None, None, bias, initial
    found = x, weight, added, *of_kinds, None, None, None, None
    return tuple(each if wants else None for each, wants in zip(found, ctx.needs_input_grad[: len(found)], strict=True))


def _nothing(like: Tensor) -> Tensor:
    return like.new_empty(0)


def _zero(states: Tensor) -> Tensor:
    """What there is before the first of them."""
    return states.new_empty(states.shape[1:]).zero_()


def _or_none(matrix: Tensor) -> Tensor | None:
    """It, but for nothing."""
    return matrix if matrix.numel() else None


one_call.register_autograd(_backward, setup_context=_setup_context)
