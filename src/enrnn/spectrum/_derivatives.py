"""Derivatives of the spectral radius beyond the first, from perturbation theory, to any order and in both modes.

With the spectral projector `P = u v*/(v*u)` and the reduced resolvent `R = (λ − T + P)⁻¹ − P`, as T moves so do

    λ̇ = tr(P Ṫ)   and   Ṗ = P Ṫ R + R Ṫ P,

and what is on the right are functions of T, λ and P again. `∂ρ/∂T = C/ρ` with Proposition 3.2's `C = Re(λ̄ Pᵀ)`.
"""

from typing import Any

import torch
from torch import Tensor

from .._operators import Operator
from .._precision import working_dtype
from ._dense import dominant, power_of_two_above


@Operator
def radius_gradient(T: Tensor, found: Tensor) -> Tensor:
    """`∂ρ/∂T`, which has been found, as a function of T [..., m, m]: what it costs to differentiate, only that costs."""
    return found.clone(memory_format=torch.contiguous_format)


@radius_gradient.register_fake
def _(T: Tensor, found: Tensor) -> Tensor:
    return found.new_empty(found.shape)


def _save_matrix(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0])


def _gradients_of_gradient(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None]:
    return second_derivative(ctx.saved_tensors[0], cotangent), None


radius_gradient.register_autograd(_gradients_of_gradient, setup_context=_save_matrix)


@radius_gradient.register_tangent
def _(arguments: tuple[Tensor, Tensor], found: Tensor, tangents: tuple[Tensor | None, Tensor | None]) -> Tensor | None:
    """The matrix of second derivatives is symmetric. (What was found moves with T, if at all: it is not looked at.)"""
    return None if tangents[0] is None else second_derivative(arguments[0], tangents[0])


def second_derivative(T: Tensor, direction: Tensor) -> Tensor:
    """The second derivatives of ρ at T [..., m, m], applied to a direction; zero where ρ has none."""
    size, exact = T.shape[-1], working_dtype(T)
    where = "cpu" if exact != torch.float64 else T.device
    wide = (each.to(where, torch.float64).reshape(-1, size, size).unbind() for each in (T, direction))
    every = [_second_derivative(*each) for each in zip(*wide, strict=True)]
    return torch.stack(every).to(T.device, T.dtype).reshape(T.shape) if every else torch.zeros_like(T)


def _second_derivative(T: Tensor, K: Tensor) -> Tensor:
    """The gradient of `⟨C/ρ, K⟩`: that of `⟨C, K⟩` is `Re(κ̄ P + λ̄ (R K P + P K R))ᵀ` with `κ = tr(P K)`, and what is sought is
    `(that − ⟨C/ρ, K⟩ C/ρ)/ρ`. T is scaled first: the result is inversely proportional to T's scale."""
    scale = power_of_two_above(T.detach().abs().max())
    scaled = T / scale
    eigenvalue, P, smooth = spectral_projector(scaled)
    R = _reduced_resolvent(scaled, eigenvalue, P, smooth)
    conjugate, weight, radius = eigenvalue.conj_physical(), K.to(P.dtype), torch.where(smooth, eigenvalue, 1).abs()
    first = (conjugate * P.mT).real / radius
    trace = (P.mT * weight).sum()
    of_C = trace.conj_physical() * P + conjugate * (R @ weight @ P + P @ weight @ R)
    gradient = (of_C.real.mT - (first * K).sum() * first) / radius
    return torch.where(smooth & torch.isfinite(gradient).all(), gradient / scale, 0)


@Operator
def spectral_projector(T: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """λ and P of one float64 matrix, and whether ρ has a derivative there; else P is zero."""
    pair = dominant(T)
    first = pair.derivative()
    smooth = (first != 0).any() & torch.isfinite(first).all()
    overlap = (pair.left.conj_physical() * pair.right).sum()
    projector = torch.outer(pair.right, pair.left.conj_physical()) / overlap
    return pair.eigenvalue.clone(), torch.where(smooth, projector, 0), smooth


@spectral_projector.register_fake
def _(T: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    wide = torch.complex128
    return T.new_empty((), dtype=wide), T.new_empty(T.shape, dtype=wide), T.new_empty((), dtype=torch.bool)


def _setup_projector(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.mark_non_differentiable(output[2])
    ctx.save_for_backward(inputs[0], *output)


def _gradient_by_projector(ctx: Any, of_eigenvalue: Tensor, of_projector: Tensor, _: Any) -> Tensor:
    T, eigenvalue, P, smooth = ctx.saved_tensors
    R, weight = _reduced_resolvent(T, eigenvalue, P, smooth), of_projector.mT.conj_physical()
    gradient: Tensor = (of_eigenvalue.conj_physical() * P + R @ weight @ P + P @ weight @ R).real.mT
    return gradient


spectral_projector.register_autograd(_gradient_by_projector, setup_context=_setup_projector)


@spectral_projector.register_tangent
def _(arguments: tuple[Tensor], found: tuple[Tensor, Tensor, Tensor], tangents: tuple[Tensor]) -> tuple[Tensor, Tensor, None]:
    eigenvalue, P, smooth = found
    R, moved = _reduced_resolvent(arguments[0], eigenvalue, P, smooth), tangents[0].to(P.dtype)
    return (P.mT * moved).sum(), P @ moved @ R + R @ moved @ P, None


def _reduced_resolvent(T: Tensor, eigenvalue: Tensor, P: Tensor, smooth: Tensor) -> Tensor:
    identity = torch.eye(T.shape[-1], dtype=P.dtype, device=P.device)
    inverse: Tensor = torch.linalg.inv_ex(torch.where(smooth, eigenvalue * identity - T + P, identity))[0]
    return inverse - P
