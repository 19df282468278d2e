"""The recurrence under a unitary matrix that is a few layers of rotations: one operator, which never forms the matrix.

A step costs `L·n` operations instead of `4n²`, and what has gradients are the angles themselves. On a GPU each sweep is one
kernel (`_rotations_cuda`), elsewhere a loop of torch operations (`_rotations_torch`, with the specification). `pays` says when.
"""

from typing import Any

import torch
from torch import Tensor

from .._operators import Operator
from .._precision import full_precision, state_dtype
from .._replay import replayed
from ..nonlinearities import NONLINEARITIES
from . import _cuda, _rotations_cuda, _rotations_torch
from ._dispatch import fusable_name
from ._once import no_second_derivative
from ._shapes import shape_for

NAME = "rotations"
"""What `backend_used` calls it."""

CPU_A_LAYER = 256
"""On a CPU a layer of rotations, a few passes over the state, is taken to be worth so many columns of the matrix, and the rest of
a step two layers. With 32 sequences on one core, two layers paid at 1,024 columns and not at 512, eight did not at 1,024."""

CUDA_A_LAYER = 2**16
"""On a GPU a layer is taken to be worth so many of the matrix's entries where the matrix has a kernel too. On an H200 with 32
sequences, both sweeps of a step took 0.36 µs a layer and 2 µs beside. Short sequences gain at any size, because forming the
matrix takes 70 µs a layer; this is where long ones do."""

CUDA_UNITS_A_LAYER = 16
"""And where it has none: complex units for each layer. Far fewer would do (2,048 units under 64 layers took half the time of the
loop), but every block has its own sums for all angles."""


@Operator
@replayed
def rotations(
    inputs: Tensor,
    angles: Tensor,
    phases: Tensor,
    bias: Tensor | None,
    initial: Tensor,
    nonlinearity: str,
    lengths: Tensor | None,
    layers: int,
    butterfly: bool,
) -> Tensor:
    """`h_t = σ(x̂_t + D F_L ⋯ F_1 h_{t−1}, b)`, all states [T, B, 2n].

    `angles` [2n, ⌈L/2⌉] and `phases` [n] are those of `UnitaryGivens`, in its "fft" style if `butterfly`. `bias` [n] is the
    paired modReLU's threshold; with any other σ it is None. The rest: as for `recurrence`.
    """
    if inputs.numel() == 0:
        return torch.empty_like(inputs, memory_format=torch.contiguous_format)
    sweep = _rotations_cuda.forward if inputs.is_cuda else _rotations_torch.reference
    with full_precision(inputs):
        return sweep(inputs, angles, phases, bias, initial, nonlinearity, lengths, layers, butterfly)


@rotations.register_fake
def _(inputs: Tensor, *_: Any) -> Tensor:
    return inputs.new_empty(inputs.shape)


@Operator
@replayed
def rotations_backward(
    grad_states: Tensor,
    states: Tensor,
    angles: Tensor,
    phases: Tensor,
    bias: Tensor | None,
    initial: Tensor,
    nonlinearity: str,
    lengths: Tensor | None,
    layers: int,
    butterfly: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The reverse sweep: the gradients at the argument of σ [T, B, 2n], of the angles, phases, bias and initial state."""
    if states.numel() == 0:
        none = states.new_zeros(0 if bias is None else len(bias))
        return torch.zeros_like(states), torch.zeros_like(angles), torch.zeros_like(phases), none, torch.zeros_like(initial)
    sweep = _rotations_cuda.backward if states.is_cuda else _rotations_torch.backward
    with full_precision(states):
        return sweep(grad_states, states, angles, phases, bias, initial, nonlinearity, lengths, layers, butterfly)


@rotations_backward.register_fake
def _(
    grad_states: Tensor, states: Tensor, angles: Tensor, phases: Tensor, bias: Tensor | None, initial: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    by_bias = states.new_empty(0 if bias is None else len(bias))
    return tuple(each.new_empty(each.shape) for each in (states, angles, phases, by_bias, initial))  # type: ignore[return-value]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, angles, phases, bias, initial, ctx.nonlinearity, lengths, ctx.layers, ctx.butterfly = inputs
    ctx.save_for_backward(output, angles, phases, bias, initial, lengths)


def _backward(ctx: Any, grad_states: Tensor) -> tuple[Tensor | None, ...]:
    states, angles, phases, bias, initial, lengths = ctx.saved_tensors
    grad_z, grad_angles, grad_phases, grad_bias, grad_initial = rotations_backward(
        grad_states, states, angles, phases, bias, initial, ctx.nonlinearity, lengths, ctx.layers, ctx.butterfly
    )
    by_bias = None if bias is None else grad_bias
    return grad_z, grad_angles, grad_phases, by_bias, grad_initial, None, None, None, None


rotations.register_autograd(_backward, setup_context=_setup_context)
rotations_backward.register_autograd(no_second_derivative)


def rotations_recurrence(
    inputs: Tensor,
    angles: Tensor,
    phases: Tensor,
    bias: Tensor | None,
    initial: Tensor,
    nonlinearity: str,
    lengths: Tensor | None,
    layers: int,
    butterfly: bool,
) -> Tensor:
    """The operator, for a layer that has asked `pays`."""
    name = "identity" if bias is None and nonlinearity == "paired_modrelu" else nonlinearity  # as `recurrence` has it
    states: Tensor = rotations(inputs, angles, phases, bias, initial, name, lengths, layers, butterfly)
    return states


def pays(
    backend: str,
    device: torch.device,
    dtype: torch.dtype,
    units: int,
    layers: int,
    nonlinearity: str,
    bias: bool,
) -> bool:
    """Whether n complex units under L layers are best run here, and not as a matrix of size 2n by the other engines."""
    fusable, backend = fusable_name(nonlinearity, bias, backend)
    if fusable not in _rotations_cuda.SIGMA or layers < 1:
        return False
    size, dtype = 2 * units, state_dtype(dtype)
    if device.type == "cpu":
        return backend == "auto" and size >= CPU_A_LAYER * (layers + 2)
    if device.type != "cuda" or backend not in ("auto", "cuda") or dtype != torch.float32:
        return False
    if _cuda.unavailable(device) is not None or not _rotations_cuda.trusted(device):
        return False
    if not _rotations_cuda.has_room(units, layers, device):
        return False
    if shape_for(size, 1, NONLINEARITIES[fusable].parts, _cuda.limits_of(device)) is None:
        return units >= CUDA_UNITS_A_LAYER * layers
    return size * size >= CUDA_A_LAYER * (layers + 1)


# As `torch.compiler.assume_constant_result` would have it, which imports the compiler: what a chip can hold is not to be traced.
pays._dynamo_marked_constant = True  # type: ignore[attr-defined]
