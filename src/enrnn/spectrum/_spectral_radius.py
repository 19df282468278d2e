"""`spectral_radius`: the public function, its result, and its derivative."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._checks import InputError, one_of
from .._operators import Operator, differentiated_again
from .._precision import capturing, recording
from ._dense import Dominant, dominant, power_of_two_above
from ._derivatives import radius_gradient
from ._device import SQUARINGS, squaring_on_device
from ._power import power
from ._powers import UNIT, Powers
from ._solve import SQUARING_FROM, working_matrix
from ._squaring import DOUBT, squaring

METHODS = ("auto", "dense", "power", "squaring")

BOUND_SQUARINGS = 8
"""Squarings for `upper_bound` where the method itself makes none; ‖T^256‖^(1/256) is within a few percent of ρ."""


class SpectralRadius(NamedTuple):
    """The dominant eigenvalue of each matrix in a batch [..., m, m], with both eigenvectors and the evidence for it."""

    value: Tensor
    """ρ = |λ|, [...], real, differentiable: its gradient is `C/ρ` with Proposition 3.2's C."""
    eigenvalue: Tensor
    """λ, [...], complex, with non-negative imaginary part."""
    right: Tensor
    """u, [..., m], complex, of unit length: `T u = λ u`."""
    left: Tensor
    """v, [..., m], complex, of unit length: `v* T = λ v*`."""
    upper_bound: Tensor
    """[...], float64: ρ ≤ upper_bound, guaranteed, rounding included."""
    residual: Tensor
    """[...]: max(‖Tu − λu‖, ‖v*T − λv*‖)."""
    condition: Tensor
    """[...]: ‖u‖‖v‖/|v*u|; infinite where λ is defective."""
    certified: Tensor
    """[...], bool: λ is accurate and no other eigenvalue is larger. See the README in this folder for what is proved."""
    iterations: Tensor
    """[...], int: squarings or power steps; 0 for the dense method, and on a GPU the most squarings it may have taken."""


def spectral_radius(
    matrix: Tensor, method: str = "auto", *, max_iterations: int = 10_000, tolerance: float = 1e-12
) -> SpectralRadius:
    """The spectral radius of real square matrices, with the dominant eigenvalue and its right and left eigenvectors.

    Arguments:
        matrix: [..., m, m], real floating point; computed in float64 whatever its dtype.
        method: "dense" (LAPACK, the specification), "squaring" (fast, certified; what it cannot certify comes out with
            `certified` False), "power" (for comparison; never certified), or "auto": the fastest that is right, i.e. squaring
            with dense at once for what it cannot certify, and dense below a size.
        max_iterations, tolerance: when the power method gives up, and when it stops.

    Example:
        >>> result = enrnn.spectral_radius(torch.randn(200, 200, requires_grad=True))
        >>> result.value.backward()
    """
    one_of("method", method, METHODS)
    if not matrix.is_floating_point():
        raise TypeError(f"matrix must be real and floating point, got dtype {matrix.dtype}")
    if matrix.dim() < 2 or matrix.shape[-1] != matrix.shape[-2] or matrix.shape[-1] == 0:
        raise InputError(f"matrix must be square, [..., m, m] with m > 0, got shape {list(matrix.shape)}")
    if capturing(matrix):
        raise RuntimeError("spectral_radius() looks at values on the host and cannot be captured in a CUDA graph; a layer can")
    if not recording(matrix) and not torch.isfinite(matrix).all():
        raise ValueError("matrix has entries that are not finite (NaN or Inf); its spectral radius is undefined")
    value, _, *rest = _spectral_radius(matrix, method, max_iterations, tolerance)
    return SpectralRadius(value, *(field.detach() for field in rest))  # of all fields only the value is differentiable


@Operator
def _spectral_radius(
    matrix: Tensor, method: str, max_iterations: int, tolerance: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    size = matrix.shape[-1]
    templates = _templates(matrix)
    singles = working_matrix(matrix).reshape(-1, size, size)
    rows = [_one(single, method, max_iterations, tolerance) for single in singles]
    return tuple(  # type: ignore[return-value]
        torch.stack([row[i] for row in rows]).to(template).reshape(template.shape) if rows else torch.zeros_like(template)
        for i, template in enumerate(templates)
    )


@_spectral_radius.register_fake
def _(
    matrix: Tensor, method: str, max_iterations: int, tolerance: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    return _templates(matrix)


def _templates(
    matrix: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Empty tensors of the shapes and dtypes that come out: value, its derivative, and the other fields in order."""
    leading, vector = matrix.shape[:-2], matrix.shape[:-1]
    real, wide = matrix.dtype, torch.complex128 if matrix.dtype == torch.float64 else torch.complex64

    def empty(shape: torch.Size, dtype: torch.dtype) -> Tensor:
        return matrix.new_empty(shape, dtype=dtype)

    return (
        empty(leading, real),
        empty(matrix.shape, real),
        empty(leading, wide),
        empty(vector, wide),
        empty(vector, wide),
        empty(leading, torch.float64),
        empty(leading, torch.float64),
        empty(leading, torch.float64),
        empty(leading, torch.bool),
        empty(leading, torch.int64),
    )


def _one(matrix: Tensor, method: str, max_iterations: int, tolerance: float) -> list[Tensor]:
    """The fields for a single float64 matrix; nothing but an infinite bound for one that is not finite."""
    if not torch.isfinite(matrix).all():
        nothing = matrix.new_zeros(matrix.shape[0], dtype=torch.complex128)
        pair = Dominant(matrix.new_zeros(()), nothing[0], nothing, nothing, matrix.new_full((), torch.inf))
        return _row(matrix, pair, torch.inf, 0.0, False, 0)
    if matrix.is_cuda and method in ("auto", "squaring"):
        pair, certified_there = squaring_on_device(matrix)
        if certified_there or method == "squaring":
            return _row(matrix, pair, _bound(matrix), _residual(matrix, pair), bool(certified_there), SQUARINGS)
    elif method == "squaring" or (method == "auto" and matrix.shape[-1] >= SQUARING_FROM):
        found = squaring(matrix)
        if found is not None and (found.certified or method == "squaring"):
            return _row(matrix, found.pair, found.upper_bound, found.residual, found.certified, found.squarings)
    if method == "power":
        pair, steps = power(matrix, max_iterations, tolerance)
        return _row(matrix, pair, _bound(matrix), _residual(matrix, pair), False, steps)
    pair = dominant(matrix)
    rounding = 50 * UNIT * pair.condition * torch.linalg.matrix_norm(matrix)
    certified = method != "squaring" and bool(rounding < DOUBT * pair.radius)
    return _row(matrix, pair, _bound(matrix), _residual(matrix, pair), certified, 0)


def _bound(matrix: Tensor) -> float:
    scale = power_of_two_above(matrix.abs().max())
    powers = Powers(matrix / scale)
    for _ in range(BOUND_SQUARINGS):
        powers.square()
    return powers.bound() * scale.item()


def _row(matrix: Tensor, pair: Dominant, bound: float, residual: float, certified: bool, iterations: int) -> list[Tensor]:
    device = matrix.device
    return [
        pair.radius,
        pair.derivative(),
        pair.eigenvalue,
        pair.right,
        pair.left,
        torch.tensor(max(bound, 0.0), dtype=torch.float64, device=device),
        torch.tensor(residual, dtype=torch.float64, device=device),
        pair.condition,
        torch.tensor(certified, device=device),
        torch.tensor(iterations, device=device),
    ]


def _residual(matrix: Tensor, pair: Dominant) -> float:
    image = torch.complex(matrix @ pair.right.real, matrix @ pair.right.imag)
    coimage = torch.complex(matrix.mT @ pair.left.real, matrix.mT @ pair.left.imag)
    right = torch.linalg.vector_norm(image - pair.eigenvalue * pair.right)
    left = torch.linalg.vector_norm(coimage - pair.eigenvalue.conj_physical() * pair.left)
    return torch.maximum(right, left).item()


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(inputs[0], output[1])


def _backward(ctx: Any, grad_value: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    matrix, derivative = ctx.saved_tensors
    if grad_value is None:
        return None, None, None, None
    if differentiated_again():
        derivative = radius_gradient(matrix, derivative)
    return grad_value[..., None, None] * derivative, None, None, None


_spectral_radius.register_autograd(_backward, setup_context=_setup_context)


@_spectral_radius.register_tangent
def _(arguments: tuple[Any, ...], found: tuple[Tensor, ...], tangents: tuple[Any, ...]) -> tuple[Tensor | None, ...]:
    value = (radius_gradient(arguments[0], found[1]) * tangents[0]).sum((-2, -1))
    return value, *[None] * (len(found) - 1)
