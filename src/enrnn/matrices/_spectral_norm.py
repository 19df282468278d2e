"""A matrix divided by its largest singular value (SN-GAN)."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._checks import square_matrix
from .._operators import in_forward_mode, transforms_are_active
from .._precision import capturing, recording, working_dtype
from ..spectrum import accuracy_for
from ..spectrum._dense import power_of_two_above
from ..spectrum._device import scattered, squaring_on_device
from ._contract import cleared
from ._eigenvalue_normalized import EigenvalueNormalized, Solved


class SpectralNorm(Solved):
    """`W = T/‖T‖₂` (Miyato et al., 2018). Its spectral radius is at most one, and for most `T` much less, which is what the paper
    (§2) has against it.

    The norm is exact, where SN-GAN has one step of the power method. `T = 0` is left as it is. `T` not finite: `ValueError`; in a
    compiled, exported or captured run a flag on the device, which `check()` raises.

    On a GPU the norm is found by `largest_singular`, inside a captured CUDA graph too. Where that cannot certify it, torch's
    singular values take over; inside a graph, where these cannot be had, `W = T` for that step, and another flag is raised for
    `check()`: redo such a step outside the graph. Everywhere else, and in forward mode, they are taken from the start.

    Buffers, none of them saved:
        fallbacks: in how many training steps the fast solver had to be replaced.
    """

    slow = ()
    sought = "‖T‖₂"

    fallbacks: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("fallbacks", torch.tensor(0), persistent=False)
        self.register_load_state_dict_post_hook(_forget_all)  # type: ignore[no-untyped-call]

    def forward(self, original: Tensor) -> Tensor:
        square_matrix("the free matrix of SpectralNorm", original)
        exact = original.to(working_dtype(original))
        norm = self._norm(original, exact)
        return (exact / torch.where(norm == 0, 1, norm)).to(original.dtype)

    def _norm(self, original: Tensor, exact: Tensor) -> Tensor:
        """‖T‖₂ of `exact`, which is `original` in the working precision; zero where it is not certified."""
        finite = torch.isfinite(exact.detach()).all()
        if recording(original):
            self._flag(original, finite, torch.ones_like(finite))
            return _first_singular_value(torch.where(finite, exact, 0))
        if not fast(exact) or in_forward_mode() or transforms_are_active():
            self._flag(original, finite, torch.ones_like(finite))
            return _first_singular_value(exact)
        found = largest_singular(exact.detach(), accuracy_for(original.dtype))
        self._flag(original, finite, found.certified)
        if not capturing(original) and not found.certified:
            if self.training:
                self.fallbacks.add_(1)
            return _first_singular_value(exact)
        norm: Tensor = _Norm.apply(exact, found.norm, found.left, found.right)  # type: ignore[no-untyped-call]
        return norm

    def right_inverse(self, matrix: Tensor) -> Tensor:
        """`T = W`, which `forward` takes back to `W/‖W‖₂`."""
        square_matrix("the matrix assigned to a SpectralNorm parametrization", matrix)
        return matrix

    def initialize_(self, *originals: Tensor) -> None:
        """As `EigenvalueNormalized`: scaled rotations on the diagonal."""
        EigenvalueNormalized().initialize_(*originals)
        for buffer in self.buffers():
            buffer.zero_()

    def constraint_error(self, matrix: Tensor) -> Tensor:
        """By how much the largest singular value exceeds 1."""
        return (_first_singular_value(matrix.detach().to(working_dtype(matrix))) - 1).clamp_min(0)

    def free_parameters(self, size: int) -> int:
        return size * size


def _forget_all(matrix: SpectralNorm, keys: object) -> None:
    """After loading a state dict, also into a module whose memory was never filled (`skip_init`, `to_empty`, meta)."""
    for name, buffer in list(matrix.named_buffers()):
        setattr(matrix, name, cleared(buffer, torch.device("cpu") if buffer.is_meta else buffer.device))


def _first_singular_value(matrix: Tensor) -> Tensor:
    values: Tensor = torch.linalg.svdvals(matrix)
    return values[0]


def fast(matrix: Tensor) -> bool:
    """Whether `largest_singular` is the faster one for this matrix: on a GPU, where every look at a value is dear."""
    return matrix.is_cuda


class Largest(NamedTuple):
    """σ = ‖T‖₂ with `T v = σ u`; σ is zero where it is not certified."""

    norm: Tensor
    left: Tensor
    """u, of unit length."""
    right: Tensor
    """v, of unit length."""
    certified: Tensor


def largest_singular(matrix: Tensor, accuracy: float) -> Largest:
    """The largest singular value of one float64 matrix: a fixed sequence of operations that looks at no value, for CUDA graphs.

    T is scaled by a power of two to S, v is the dominant eigenvector of `SᵀS`, and `σ = ‖Sv‖`. (For that the columns of S are
    scaled apart by a fraction of `accuracy`: of an eigenvalue that is there twice, as where training starts, rounding would make
    a pair of which nothing is certain.) Whatever v is, σ is no larger than ‖S‖₂. Certified means that it is no smaller either,
    but for `accuracy`: `(1 + 2·accuracy)σ² I − SᵀS` has a Cholesky factor, so that it is positive definite (to rounding, some m²
    units of it at worst). This asks for no gap below σ: where others are as large, ‖T‖₂ has no derivative, but is convex, and
    `u vᵀ` is a subgradient. It makes up for what the eigenvalue solver leaves open, which of two eigenvalues within 1e-7 of one
    another it has found. Three and more of them it does not certify, and there is no v then.
    """
    finite = torch.isfinite(matrix).all()
    scale = power_of_two_above(torch.where(finite, matrix.abs().amax(), 0))
    scaled = torch.where(finite, matrix / scale, 0)
    gram = scaled.mT @ scaled
    apart = scaled * (1 + accuracy / 8 * scattered(len(matrix), matrix.device))
    found = squaring_on_device(apart.mT @ apart, accuracy).pair.right
    # The eigenvectors of a double eigenvalue may come out complex: their real and imaginary parts are eigenvectors as well.
    parts = torch.view_as_real(found)  # [m, 2]
    lengths = torch.linalg.vector_norm(parts, dim=0)
    right = _unit(torch.where(lengths[0] >= lengths[1], parts[:, 0], parts[:, 1]))
    image = scaled @ right
    length = torch.linalg.vector_norm(image)
    shift = (1 + 2 * accuracy) * length.square()
    identity = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
    nothing_larger = torch.linalg.cholesky_ex(shift * identity - gram).info == 0
    certified = finite & (nothing_larger | (scaled == 0).all())
    return Largest(torch.where(certified, length * scale, 0), _unit(image), right, certified)


def _unit(vector: Tensor) -> Tensor:
    """`vector` scaled to unit length, or zero."""
    length = torch.linalg.vector_norm(vector)
    return vector / torch.where(length == 0, 1, length)


class _Norm(torch.autograd.Function):
    """‖T‖₂ as it was found, with its derivative `u vᵀ`. Derivatives of that come from torch's singular values."""

    @staticmethod
    def forward(matrix: Tensor, norm: Tensor, left: Tensor, right: Tensor) -> Tensor:
        return norm.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        matrix, _, left, right = inputs
        ctx.save_for_backward(matrix, left, right)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        matrix, left, right = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return gradient * torch.outer(left, right), None, None, None
        if capturing(matrix):
            raise RuntimeError("second derivatives of ‖T‖₂ need the host and cannot be captured in a CUDA graph")
        (differentiable,) = torch.autograd.grad(_first_singular_value(matrix), matrix, gradient, create_graph=True)
        return differentiable, None, None, None
