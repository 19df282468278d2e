"""`x Uᵀ + b` for all steps at once: a layer's way in and a network's way out, by kernels of ours where these pay."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .._precision import autocasting, recording
from . import _gram, _product
from ._bias import bias_gradient
from ._cuda import in_rows

LEAST_ROWS = 1024
"""Rows whose sum, the gradient of a bias, is worth a kernel."""

LEAST_SIDE = 32
"""Columns of a product that `product.cu` is taken for."""


def projected(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """[…, k] to […, n]. Without a weight, x with b added."""
    if _meant_for(x, weight, bias):
        result: Tensor = projection(x, weight, bias)
        return result
    return plainly_projected(x, weight, bias)


def plainly_projected(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """By torch's own operations."""
    if weight is not None:
        return F.linear(x, weight, bias)
    return x if bias is None else x + bias


def _meant_for(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> bool:
    """On a GPU, in float32, with a gradient; and not where a graph of torch's own operations is wanted."""
    given = [each for each in (weight, bias) if each is not None]
    if not x.is_cuda or x.dim() < 2 or not given or recording(x) or autocasting(x) or not torch.is_grad_enabled():
        return False
    if any(each.dtype != torch.float32 or each.device != x.device for each in (x, *given)):
        return False
    if not any(each.requires_grad for each in (x, *given)):
        return False
    rows = x.numel() // max(1, x.shape[-1])
    if weight is None:
        return rows >= LEAST_ROWS
    n, k = weight.shape
    return _gram.fits(rows, n, k) or _large(rows, k, n) or _large(rows, n, k)


@torch.library.custom_op("enrnn::projection", mutates_args=())
def projection(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    rows = x.flatten(0, -2)
    if weight is None or not _by_tensor_cores(rows, weight.mT):
        return plainly_projected(x, weight, bias)
    return _product.product(rows, weight.mT, bias).view(*x.shape[:-1], len(weight))


@projection.register_fake
def _(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    return x.new_empty(x.shape if weight is None else (*x.shape[:-1], len(weight)))


@torch.library.custom_op("enrnn::projection_backward", mutates_args=())
def projection_backward(gradient: Tensor, x: Tensor, weight: Tensor | None, wanted: list[bool]) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, of the weight and of the bias; those that are not wanted have no entries."""
    of_x, of_weight, of_bias = wanted
    rows, given = in_rows(gradient.flatten(0, -2)), x.flatten(0, -2)
    grad_x, grad_weight, grad_bias = (gradient.new_empty(0) for _ in range(3))
    if weight is not None and of_x:
        product = _product.product if _by_tensor_cores(rows, weight) else torch.mm
        grad_x = product(rows, weight).view(x.shape)
    if weight is not None and of_weight:
        grad_weight = _weight_gradient(rows, given, x.shape[-2] if x.dim() > 2 else 1)
    if of_bias:
        grad_bias = bias_gradient(rows[None], rows[None], "identity")
    return grad_x, grad_weight, grad_bias


@projection_backward.register_fake
def _(gradient: Tensor, x: Tensor, weight: Tensor | None, wanted: list[bool]) -> tuple[Tensor, Tensor, Tensor]:
    shapes = [x.shape, (0,) if weight is None else weight.shape, (gradient.shape[-1],)]
    there = [weight is not None and wanted[0], weight is not None and wanted[1], wanted[2]]
    found = [gradient.new_empty(shape if is_there else (0,)) for shape, is_there in zip(shapes, there, strict=True)]
    return found[0], found[1], found[2]


def _weight_gradient(rows: Tensor, given: Tensor, sequences: int) -> Tensor:
    """`Σ gᵀ x` over all steps and sequences, so many of which follow each other."""
    if _gram.pays(rows, given):
        return _gram.gram(rows, given)
    if sequences >= _gram.FEWEST and _product.pays(rows.mT, given):
        return _product.product(rows.mT, given)
    return rows.mT @ given


def _by_tensor_cores(a: Tensor, b: Tensor) -> bool:
    return _product.allowed(a, b) and _large(a.shape[0], a.shape[1], b.shape[1])


def _large(m: int, k: int, n: int) -> bool:
    """Whether `product.cu` pays for a tall matrix [m, k] times one with n columns.

    On an H200, in µs, beside cuBLAS: 1600 × 1030 × 50 with a bias, 15 beside 31; 1600 × 50 × 1030, 13 beside 10; 13720 × 129 ×
    468, 42 beside 63; 13720 × 96 × 64, 14 beside 9.
    """
    return n >= LEAST_SIDE and ((k >= 512 and m * k * n >= 2**26) or (k >= 128 and m * k * n >= 2**27))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, _ = inputs
    ctx.save_for_backward(x, weight)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    x, weight = ctx.saved_tensors
    wanted = list(ctx.needs_input_grad)
    if torch.is_grad_enabled():  # to be differentiated again
        rows = gradient.flatten(0, -2)
        grad_x = gradient if weight is None else gradient @ weight
        grad_weight = rows.mT @ x.flatten(0, -2) if wanted[1] else None
        return grad_x if wanted[0] else None, grad_weight, rows.sum(0) if wanted[2] else None
    grad_x, grad_weight, grad_bias = projection_backward(gradient, x, weight, wanted)
    if weight is None:
        grad_x = gradient
    return (grad_x if wanted[0] else None, grad_weight if wanted[1] else None, grad_bias if wanted[2] else None)


projection.register_autograd(_backward, setup_context=_setup_context)
