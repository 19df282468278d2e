"""ENRNN's matrices and its recurrence as one operator, for training on a GPU outside of a CUDA graph.

There Python launches every kernel, and what it does is what one waits for. Formed and run one after the other, `W_L`, `W_S` and
the recurrence are three operators and three nodes of autograd's, each with its own way there and back. Here they are two calls:
`W_S`, and all the rest. What belongs to one call is replayed together (`../_replay.py`): as one CUDA graph, if all of it is
kernels of ours.

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
from ..spectrum import probes_on_device


class Unformed(NamedTuple):
    """What the matrices of a recurrence are formed from, `W_S` having been: None where there is no such part."""

    free_long: Tensor | None
    """`P`, of `Cayley`."""
    coupling: Tensor | None
    free_short: Tensor | None
    """`T`, of `EigenvalueNormalized`."""
    short: Tensor | None
    """`W_S`; and what its gradient needs: `∂ρ/∂T`, and what else is `Said` of it."""
    derivative: Tensor | None
    said: Tensor | None
    nonlinearity: str
    negative_ones: int
    epsilon: float
    certified: Later | None
    """Whether `W_S` is."""


def run(unformed: Unformed, inputs: Tensor, bias: Tensor | None, initial: Tensor, lengths: Tensor | None) -> Tensor | None:
    """All states, as `long_short_recurrence` gives them on `cuda`; None if `W_S` turns out not to be certified."""
    *tensors, nonlinearity, negative_ones, epsilon, certified = unformed
    states: Tensor = one_call(inputs, *tensors, bias, initial, lengths, nonlinearity, negative_ones, epsilon)[0]
    return states if certified is None or certified else None


@Operator
@replayed
def one_call(
    inputs: Tensor,
    free_long: Tensor | None,
    coupling: Tensor | None,
    free_short: Tensor | None,
    short: Tensor | None,
    derivative: Tensor | None,
    said: Tensor | None,
    bias: Tensor | None,
    initial: Tensor,
    lengths: Tensor | None,
    nonlinearity: str,
    negative_ones: int,
    epsilon: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The states, `W_L`, and `X` of `cayley`."""
    long, X = _nothing(inputs), _nothing(inputs)
    if free_long is not None:
        long, X = cayley.within(free_long, negative_ones)
    states = recurrence.within(inputs, _or_none(long), coupling, short, bias, initial, nonlinearity, lengths, "cuda")
    return states, long, X


FREE_LONG, COUPLING, FREE_SHORT, BIAS = 1, 2, 3, 7
"""Places of its arguments."""


@one_call.register_fake
def _(inputs: Tensor, free_long: Tensor | None, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    long = _nothing(inputs) if free_long is None else inputs.new_empty(free_long.shape)
    return inputs.new_empty(inputs.shape), long, inputs.new_empty(long.shape, dtype=torch.float64)


@Operator
@replayed
def one_call_backward(
    grad_states: Tensor,
    states: Tensor,
    long: Tensor | None,
    X: Tensor | None,
    coupling: Tensor | None,
    short: Tensor | None,
    derivative: Tensor | None,
    said: Tensor | None,
    bias: Tensor | None,
    initial: Tensor,
    lengths: Tensor | None,
    nonlinearity: str,
    negative_ones: int,
    epsilon: float,
    wanted: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of inputs, initial state and bias, and of `P`, `W_C` and `T`, those that are wanted; the others are empty."""
    given = grad_states, states, long, coupling, short, bias, initial, nonlinearity, lengths, "cuda", wanted
    grad_inputs, grad_initial, grad_bias, rows, rest = recurrence_backward.within(*given)
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
    return grad_inputs, grad_initial, grad_bias, free_long, free_coupling, free_short


@one_call_backward.register_fake
def _(
    grad_states: Tensor, states: Tensor, long: Tensor | None, X: Any, coupling: Tensor | None, short: Tensor | None, *others: Any
) -> tuple[Tensor, ...]:
    bias, wanted = others[3], others[-1]
    free = (
        states.new_empty(0 if each is None or not by else each.shape)
        for each, by in zip((long, coupling, short), wanted, strict=True)
    )
    grad_bias = states.new_empty(0 if bias is None else len(bias))
    return states.new_empty(states.shape), states.new_empty(states.shape[1:]), grad_bias, *free


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, free_long, coupling, free_short, short, derivative, said, bias, initial, lengths, *settings = inputs
    states, long, X = output
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(long, X)
    ctx.save_for_backward(states, long, X, coupling, short, derivative, said, bias, initial, lengths)
    ctx.free = [each if each is None else (each, each._version) for each in (free_long, free_short)]
    ctx.settings = settings


def _backward(ctx: Any, grad_states: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    if grad_states is None:
        return (None,) * 13
    wanted = [ctx.needs_input_grad[place] for place in (FREE_LONG, COUPLING, FREE_SHORT)]
    if differentiated_again() or transforms_are_active():
        return _differentiable(ctx, grad_states, wanted)
    states, long, X, *others = ctx.saved_tensors
    given = grad_states, states, _or_none(long), _or_none(X), *others
    grad_inputs, grad_initial, grad_bias, *free = one_call_backward(*given, *ctx.settings, wanted)
    blocks = (each if by else None for each, by in zip(free, wanted, strict=True))
    return _in_places(ctx, grad_inputs, *blocks, grad_bias, grad_initial)


def _differentiable(ctx: Any, grad_states: Tensor, wanted: list[bool]) -> tuple[Tensor | None, ...]:
    """In operations that can be differentiated again, or be run for many at once: the matrices are formed anew, as functions of
    what they are formed from."""
    states, _, _, coupling, _, _, said, bias, initial, lengths = ctx.saved_tensors
    nonlinearity, negative_ones, epsilon = ctx.settings
    free_long, free_short = map(_unchanged, ctx.free)
    long, X = (None, None) if free_long is None else cayley(free_long, negative_ones)
    found: tuple[Any, ...] = (None,)
    if free_short is not None:
        switched = Said.of(said, states.dtype).switched
        found = normalize_on_device(free_short, switched, epsilon, probes_on_device(free_short))
    along = Along(states, long, coupling, found[0], bias, nonlinearity, lengths, "cuda")
    needs_bias = ctx.needs_input_grad[BIAS]
    dz, by_long, by_coupling, by_short, *others = differentiable_gradients(along, initial, grad_states, wanted, needs_bias)
    if by_long is not None and X is not None:
        by_long = cayley_gradient(by_long, X, negative_ones)
    if by_short is not None and free_short is not None:
        by_short = normalization_gradient(by_short, free_short, found, epsilon)
    return _in_places(ctx, dz, by_long, by_coupling, by_short, *others)


def _unchanged(free: tuple[Tensor, int] | None) -> Tensor | None:
    """What a matrix was formed from, as it was then."""
    if free is None:
        return None
    tensor, version = free
    if tensor._version != version:
        raise RuntimeError("what a recurrent matrix was formed from has been changed in place since, which its gradient needs")
    return tensor


def _in_places(ctx: Any, by_inputs: Tensor | None, *others: Tensor | None) -> tuple[Tensor | None, ...]:
    """The gradients as `one_call` has its arguments."""
    *blocks, by_bias, by_initial = others
    by_bias = by_bias if ctx.needs_input_grad[BIAS] else None
    return by_inputs, *blocks, None, None, None, by_bias, by_initial, None, None, None, None


def _nothing(like: Tensor) -> Tensor:
    return like.new_empty(0)


def _or_none(matrix: Tensor) -> Tensor | None:
    """It, but for nothing."""
    return matrix if matrix.numel() else None


one_call.register_autograd(_backward, setup_context=_setup_context)
