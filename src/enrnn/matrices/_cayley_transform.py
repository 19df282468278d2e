"""The scaled Cayley transform and its gradient as operators, so that a GPU spends its time on the inverse alone."""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._kernels import KernelsFor
from .._launch import Kernel
from .._operators import Operator, differentiated_again
from .._precision import working_dtype
from .._replay import gapless, replayed
from ..recurrence._cpu_products import product
from . import _inverse
from ._inverse import eliminated, shifted_skew_inverse
from ._skew import skew_symmetric

SOURCE = Path(__file__).with_name("cayley.cu")
THREADS = 256


@Operator
@replayed
def cayley(original: Tensor, negative_ones: int) -> tuple[Tensor, Tensor]:
    """`W = (I + A)⁻¹(I − A)D` in the dtype of `P`, and `X = (I + A)⁻¹` in the precision it is computed in.

    `(I + A)⁻¹(I − A) = 2(I + A)⁻¹ − I`, and `I + A` is never singular: its singular values are at least 1.
    """
    size, ones = original.shape[0], original.shape[0] - negative_ones
    X = original.new_empty(size, size, dtype=working_dtype(original))
    inversion, kernels = _inverse.kernels_for(X), _kernels_for(original)
    if inversion is None or kernels is None:
        X = shifted_skew_inverse(skew_symmetric(original.to(X.dtype)))
        return _finished(X, negative_ones).to(original.dtype), X
    identity, W = torch.empty_like(X), original.new_empty(size, size)
    blocks = -(-X.numel() // THREADS)
    kernels.shift(blocks, THREADS, gapless(original), X, identity, size)
    X = eliminated(X, identity, inversion)
    kernels.finish(blocks, THREADS, X, W, size, ones)
    return W, X


@cayley.register_fake
def _(original: Tensor, negative_ones: int) -> tuple[Tensor, Tensor]:
    return original.new_empty(original.shape), original.new_empty(original.shape, dtype=working_dtype(original))


@Operator
@replayed
def cayley_backward(gradient: Tensor, X: Tensor, negative_ones: int) -> Tensor:
    """`∂L/∂P = triu(Vᵀ − V, 1)`, with `V = Xᵀ (2 G D) Xᵀ`, given `G = ∂L/∂W`."""
    inversion, kernels = _inverse.kernels_for(X), _kernels_for(gradient)
    if inversion is None or kernels is None:
        return differentiable_gradient(gradient, X, negative_ones)
    size, blocks = X.shape[0], -(-X.numel() // THREADS)
    dX, dP = torch.empty_like(X), gradient.new_empty(size, size)
    kernels.widen(blocks, THREADS, gapless(gradient), dX, size, size - negative_ones)
    V = _inverse.product(_inverse.product(X.mT, dX, inversion), X.mT, inversion)
    kernels.narrow(blocks, THREADS, V, dP, size)
    return dP


@cayley_backward.register_fake
def _(gradient: Tensor, X: Tensor, negative_ones: int) -> Tensor:
    return gradient.new_empty(gradient.shape)


def _setup_context(ctx: Any, inputs: tuple[Tensor, int], output: tuple[Tensor, Tensor]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(output[1])
    ctx.dtype, ctx.negative_ones = inputs[0].dtype, inputs[1]


def _backward(ctx: Any, gradient: Tensor | None, inverse_gradient: Tensor | None) -> tuple[Tensor | None, None]:
    """By the operator; but where the gradient is to be differentiated again, in torch's own operations."""
    (X,) = ctx.saved_tensors
    if gradient is None and inverse_gradient is None:
        return None, None
    if inverse_gradient is None and not differentiated_again():
        return cayley_backward(gradient, X, ctx.negative_ones), None
    total = torch.zeros_like(X) if inverse_gradient is None else inverse_gradient
    if gradient is not None:
        total = total + _finished_back(gradient, X, ctx.negative_ones)
    return _pulled_back(total, X).to(ctx.dtype), None


def differentiable_gradient(gradient: Tensor, X: Tensor, negative_ones: int) -> Tensor:
    """`cayley_backward` in operations that can be differentiated again."""
    return _pulled_back(_finished_back(gradient, X, negative_ones), X).to(gradient.dtype)


cayley.register_autograd(_backward, setup_context=_setup_context)


@cayley.register_tangent
def _(arguments: tuple[Tensor, int], found: tuple[Tensor, Tensor], tangents: tuple[Tensor, None]) -> tuple[Tensor, Tensor]:
    X = found[1]
    moved = -(X @ skew_symmetric(tangents[0].to(X.dtype)) @ X)
    return (2 * moved * signs(X, arguments[1])).to(found[0].dtype), moved


def _finished(X: Tensor, negative_ones: int) -> Tensor:
    """`W = (2X − I)D`."""
    return (2 * X - torch.eye(X.shape[0], dtype=X.dtype, device=X.device)) * signs(X, negative_ones)


def _finished_back(gradient: Tensor, X: Tensor, negative_ones: int) -> Tensor:
    return 2 * gradient.to(X.dtype) * signs(X, negative_ones)


def _pulled_back(gradient: Tensor, X: Tensor) -> Tensor:
    """From `∂L/∂X` to `∂L/∂P`."""
    V = product(product(X.mT, gradient), X.mT)
    return (V.mT - V).triu(1)


def signs(like: Tensor, negative_ones: int) -> Tensor:
    """The diagonal of `D`."""
    index = torch.arange(like.shape[0], device=like.device)
    return (1 - 2 * (index >= like.shape[0] - negative_ones).to(torch.int8)).to(like.dtype)


class _Kernels(NamedTuple):
    shift: Kernel
    finish: Kernel
    widen: Kernel
    narrow: Kernel


_kernels_for = KernelsFor(SOURCE, _Kernels, _Kernels._fields)
