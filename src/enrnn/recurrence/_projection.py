"""`x Uᵀ + b` for all steps at once: a layer's way in and a network's way out, by kernels of ours where these pay."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn import functional as F

from .._operators import Operator, differentiated_again, transforms_are_active
from .._precision import autocasting, recording
from .._replay import gapless, replayed
from . import _cpu_products, _gram, _product
from ._bias import sum_of_rows
from ._cuda import in_rows

LEAST_ROWS = 1024
"""Rows whose sum, the gradient of a bias, is worth a kernel."""

LEAST_COLUMNS = 32
"""Of a product that `product.cu` is taken for."""

MUCH_WORK = 2**22
"""Multiply-adds that on a CPU are worth an operator."""

MANY_ROWS = 1024
"""Of a product on a CPU for which the order of its factors counts."""


def projected(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """[…, k] to […, n]. Without a weight, x with b added. (Where `product.cu` multiplies, what is below 2⁻⁴⁰ of the largest of 32
    neighbours in a row counts for nothing.)"""
    if meant_for(x, weight, bias) or _by_tiles(x, weight, bias):
        result: Tensor = projection(x, weight, bias)
        return result
    return plainly_projected(x, weight, bias)


def plainly_projected(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """By torch's own operations."""
    if weight is not None:
        return F.linear(x, _by_columns(weight) if _narrow(x, weight) else weight, bias)
    return x if bias is None else x + bias


def _by_tiles(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> bool:
    """Whether it is a product on a CPU that is better done by tiles of ours."""
    if x.device.type != "cpu" or weight is None or x.dim() < 2 or _rows(x) * weight.numel() < MUCH_WORK:
        return False
    if any(type(each) not in (Tensor, Parameter) or each.dtype != x.dtype for each in (x, weight, bias) if each is not None):
        return False
    return not autocasting(x) and _cpu_products.possible(x)


def _narrow(x: Tensor, weight: Tensor) -> bool:
    """Whether on a CPU the gradient of a weight [n, k] is found faster as `(xᵀ g)ᵀ` than as `gᵀ x`: in a matrix library, few
    columns are not what they may be called in mathematics. With one thread, in ms, forward and backward: 37500 rows of 2 for 160,
    8.6 and 4.3; 40400 × 10 for 192, 15.7 and 6.7; 13720 × 129 for 468, 35.7 and 34.4. With fewer rows it is not worth a copy."""
    n, k = weight.shape
    if x.device.type != "cpu" or not 1 < k < n or _rows(x) < MANY_ROWS or recording(x) or autocasting(x):
        return False
    return x.dtype in (torch.float32, torch.float64) and torch.is_grad_enabled() and weight.requires_grad


def _by_columns(weight: Tensor) -> Tensor:
    """It, with the entries of a column next to each other, which tells autograd the order of that product."""
    return weight.mT.contiguous().mT


def meant_for(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> bool:
    """On a GPU, in float32, with a gradient; and not where a graph of torch's own operations is wanted, or many at once."""
    given = [each for each in (weight, bias) if each is not None]
    if not x.is_cuda or x.dim() < 2 or not given or recording(x) or autocasting(x) or not torch.is_grad_enabled():
        return False
    if transforms_are_active():
        return False
    if any(each.dtype != torch.float32 or each.device != x.device for each in (x, *given)):
        return False
    if not any(each.requires_grad for each in (x, *given)):
        return False
    rows = _rows(x)
    if weight is None:
        return rows >= LEAST_ROWS
    n, k = weight.shape
    return _gram.fits(rows, n, k) or _large(rows, k, n) or _large(rows, n, k)


@Operator
@replayed
def projection(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    if weight is not None and not x.is_cuda:
        return _cpu_products.product(x.flatten(0, -2), weight.mT, bias).view(*x.shape[:-1], len(weight))
    if weight is None:
        return plainly_projected(x, None, bias).contiguous()
    rows, out = gapless(x).flatten(0, -2), x.new_empty(*x.shape[:-1], len(weight))
    if _by_tensor_cores(rows, weight.mT):
        _product.product(rows, weight.mT, bias, out.flatten(0, -2))
    elif bias is None:
        torch.mm(rows, weight.mT, out=out.flatten(0, -2))
    else:
        torch.addmm(bias, rows, weight.mT, out=out.flatten(0, -2))
    return out


@projection.register_fake
def _(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    return x.new_empty(x.shape if weight is None else (*x.shape[:-1], len(weight)))


@Operator
@replayed
def projection_backward(
    gradient: Tensor, x: Tensor | None, weight: Tensor | None, of_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, if its weight is given; of the weight, if x is given; and of the bias. What is not wanted has no
    entries."""
    rows = in_rows(gradient.flatten(0, -2))
    grad_x, grad_weight, grad_bias = (gradient.new_empty(0) for _ in range(3))
    if weight is not None:
        if not rows.is_cuda:
            grad_x = _cpu_products.product(rows, weight)
        else:
            product = _product.product if _by_tensor_cores(rows, weight) else torch.mm
            grad_x = product(rows, weight, out=rows.new_empty(rows.shape[0], weight.shape[1]))
        grad_x = grad_x.view(*gradient.shape[:-1], weight.shape[1])
    if x is not None:
        grad_weight = _weight_gradient(rows, gapless(x).flatten(0, -2), x.shape[-2] if x.dim() > 2 else 1)
    if of_bias:
        grad_bias = sum_of_rows(rows)
    return grad_x, grad_weight, grad_bias


@projection_backward.register_fake
def _(gradient: Tensor, x: Tensor | None, weight: Tensor | None, of_bias: bool) -> tuple[Tensor, Tensor, Tensor]:
    n, new = gradient.shape[-1], gradient.new_empty
    grad_x = new(0) if weight is None else new(*gradient.shape[:-1], weight.shape[1])
    return grad_x, new(0) if x is None else new(n, x.shape[-1]), new(n if of_bias else 0)


def _weight_gradient(rows: Tensor, given: Tensor, sequences: int) -> Tensor:
    """`Σ gᵀ x` over all steps and sequences, so many of which follow each other."""
    if not rows.is_cuda:
        few = given.shape[1] < rows.shape[1]  # see `_narrow`
        return _cpu_products.product(given.mT, rows).mT.contiguous() if few else _cpu_products.product(rows.mT, given)
    if _gram.pays(rows, given):
        return _gram.gram(rows, given)
    if sequences >= _gram.FEWEST and _product.pays(rows.mT, given):
        return _product.product(rows.mT, given)
    return torch.mm(rows.mT, given, out=rows.new_empty(rows.shape[1], given.shape[1]))


def _by_tensor_cores(a: Tensor, b: Tensor) -> bool:
    return _product.allowed(a, b) and _large(_rows(a), a.shape[-1], b.shape[1])


def _large(m: int, k: int, n: int) -> bool:
    """Whether `product.cu` pays for a tall matrix [m, k] times one with n columns.

    On an H200, in µs, beside cuBLAS: 1600 × 1030 × 50 with a bias, 15 beside 31; 1600 × 50 × 1030, 13 beside 10; 13720 × 129 ×
    468, 42 beside 63; 13720 × 96 × 64, 14 beside 9.
    """
    return n >= LEAST_COLUMNS and ((k >= 512 and m * k * n >= 2**26) or (k >= 128 and m * k * n >= 2**27))


def _rows(x: Tensor) -> int:
    """Of […, k], all dimensions but the last."""
    return x.numel() // max(1, x.shape[-1])


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, _ = inputs
    of_x, of_weight = ctx.needs_input_grad[:2]
    ctx.identity = weight is None
    ctx.save_for_backward(x if of_weight else None, weight if of_x else None)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    x, weight = ctx.saved_tensors
    of_x, of_weight, of_bias = ctx.needs_input_grad[:3]
    if differentiated_again():
        grad_x, grad_weight, grad_bias = differentiable_gradients(gradient, x, weight)
    else:
        grad_x, grad_weight, grad_bias = projection_backward(gradient, x, weight, of_bias)
        grad_x = gradient if ctx.identity else grad_x
    return grad_x if of_x else None, grad_weight if of_weight else None, grad_bias if of_bias else None


def differentiable_gradients(gradient: Tensor, x: Tensor | None, weight: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor]:
    """As `projection_backward` has them, in operations that can be differentiated again. Without a weight, x was added to."""
    rows = gradient.flatten(0, -2)
    of_weight = None if x is None else rows.mT @ x.flatten(0, -2)
    return gradient if weight is None else gradient @ weight, of_weight, rows.sum(0)


projection.register_autograd(_backward, setup_context=_setup_context)


@projection.register_tangent
def _(arguments: tuple[Any, ...], found: Tensor, tangents: tuple[Tensor | None, ...]) -> Tensor:
    (x, weight, _), (moved_x, moved_weight, moved_bias) = arguments, tangents
    moved = torch.zeros_like(found) if moved_bias is None else moved_bias.expand_as(found)
    if moved_x is not None:
        moved = moved + (moved_x if weight is None else moved_x @ weight.mT)
    return moved if moved_weight is None else moved + x @ moved_weight.mT
