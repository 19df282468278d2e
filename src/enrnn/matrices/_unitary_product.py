"""Unitary matrices as a product of diagonals, reflections, a permutation and Fourier transforms (uRNN)."""

import torch
from torch import Tensor

from .._checks import InputError, floating_tensor
from .._precision import working_dtype
from ._complex import check_real_form, complex_units, real_form, stacked, unitarity_error, unstacked
from ._contract import Matrix


class UnitaryProduct(Matrix):
    """`W = D₃ R₂ F⁻¹ D₂ Π R₁ F D₁` (Arjovsky, Shah & Bengio, 2016), as its real form of size 2n.

    `D = diag(e^{iω})`, `R = I − 2vv*/‖v‖²`, `F` is the unitary Fourier transform and Π a permutation that is drawn once. With 7n
    real numbers most unitary matrices are out of reach for n > 7 (Wisdom et al., 2016).

    Free tensors: `[Re v; Im v]` of the two reflections, 2n×2, and ω of the three diagonals, 3×n. A `v` of zeros stands for the
    identity. The authors' code leaves out the conjugation in `v*h`, i.e. reflects in v̄; we follow the paper.

    Buffers:
        permutation: entry i of `Πh` is entry `permutation[i]` of h.
    """

    slow = ()

    permutation: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("permutation", torch.empty(0, dtype=torch.int64))

    def forward(self, vectors: Tensor, angles: Tensor) -> Tensor:
        floating_tensor("the first free tensor of UnitaryProduct", vectors)
        n = self.permutation.shape[0]
        if list(vectors.shape) != [2 * n, 2] or list(angles.shape) != [3, n]:
            raise InputError(
                f"the free tensors of UnitaryProduct must have shapes {[2 * n, 2]} and {[3, n]} for its permutation of {n}, "
                f"got {list(vectors.shape)} and {list(angles.shape)}"
            )
        first, second = unstacked(vectors.to(working_dtype(vectors))).unbind(1)
        omega = angles.to(working_dtype(angles))
        D1, D2, D3 = torch.complex(torch.cos(omega), torch.sin(omega))
        W = torch.fft.fft(torch.diag(D1), dim=0, norm="ortho")
        W = D2.unsqueeze(1) * _reflected(first, W).index_select(0, self.permutation)
        W = D3.unsqueeze(1) * _reflected(second, torch.fft.ifft(W, dim=0, norm="ortho"))
        return real_form(stacked(W).to(vectors.dtype))

    def right_inverse(self, matrix: Tensor) -> tuple[Tensor, ...]:
        """There is none: few matrices are such products, and nothing is known to find the factors of one."""
        check_real_form("the matrix assigned to a UnitaryProduct parametrization", matrix)
        if matrix.is_meta:
            return tuple(matrix.new_empty(part.shape) for part in self.originals(matrix.shape[0], matrix))
        raise ValueError("a UnitaryProduct cannot take over a matrix: its factors cannot be told from their product")

    def originals(self, size: int, like: Tensor) -> tuple[Tensor, ...]:
        n = complex_units("a complex matrix in real numbers", size)
        self.permutation = torch.arange(n, device=like.device)
        return like.new_zeros(size, 2), like.new_zeros(3, n)

    def initialize_(self, *originals: Tensor) -> None:
        """v ∼ U(−1, 1) as in the paper (the authors' code: Glorot's, which only scales it), ω ∼ U(−π, π), a new permutation."""
        vectors, angles = originals
        with torch.no_grad():
            self.permutation.copy_(torch.randperm(self.permutation.shape[0], device=self.permutation.device))
            vectors.uniform_(-1.0, 1.0)
            angles.uniform_(-torch.pi, torch.pi)

    def constraint_error(self, matrix: Tensor) -> Tensor:
        """How far from the real form of a unitary matrix."""
        return unitarity_error(matrix)

    def free_parameters(self, size: int) -> int:
        """7n, as the paper counts: the lengths and phases of the two `v` are among them."""
        return 7 * (size // 2)


def _reflected(v: Tensor, matrix: Tensor) -> Tensor:
    """`(I − 2vv*/‖v‖²)M`."""
    square = (v.real.square() + v.imag.square()).sum()
    inner = v.conj() @ matrix
    return matrix - torch.outer(v * (2 / torch.where(square == 0, 1, square)), inner)
