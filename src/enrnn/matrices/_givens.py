"""Orthogonal and unitary matrices as layers of Givens rotations (EURNN, GORU)."""

import torch
from torch import Tensor

from .._checks import InputError, floating_tensor, one_of, positive_int, square_matrix
from .._precision import working_dtype
from ._clements import decomposed
from ._complex import check_real_form, complex_units, nearest_unitary, real_form, stacked, unitarity_error
from ._contract import Matrix
from ._orthogonal import nearest_orthogonal, orthogonality_error
from ._rotations import brick_wall, butterfly

STYLES = ("tunable", "fft")


class Layers(Matrix):
    """What `Givens` and `UnitaryGivens` share: which pairs the layers turn."""

    slow = ()

    def __init__(self, capacity: int | None = None, *, style: str = "tunable") -> None:
        super().__init__()
        self.style = one_of("style", style, STYLES)
        self.capacity = None if capacity is None else positive_int("capacity", capacity)
        if self.style == "fft" and capacity is not None:
            raise ValueError(f"capacity has no effect on style='fft', which has log₂ n layers; leave it out, got: {capacity}")

    def initialize_(self, *originals: Tensor) -> None:
        """All angles uniform in ±π."""
        for original in originals:
            with torch.no_grad():
                original.uniform_(-torch.pi, torch.pi)

    def extra_repr(self) -> str:
        said = {"capacity": self.capacity, "style": None if self.style == "tunable" else self.style}
        return ", ".join(f"{name}={value!r}" for name, value in said.items() if value is not None)

    def _count(self, size: int) -> int:
        """L: how many layers there are on this many sites."""
        if self.style == "tunable":
            return size if self.capacity is None else self.capacity
        if size & (size - 1):
            raise ValueError(f"style='fft' needs a power of two, got: {size}; style='tunable' takes any size")
        return size.bit_length() - 1

    def _angles(self, size: int) -> int:
        """How many angles are read."""
        count = self._count(size)
        return count // 2 * (size - 1) + count % 2 * (size // 2) if self.style == "tunable" else count * size // 2

    def _shape(self, size: int) -> tuple[int, int]:
        """Of the angles: two layers a column."""
        return size, -(-self._count(size) // 2)

    def _product(self, angles: Tensor, phases: Tensor | None) -> Tensor:
        """`F_L ⋯ F_1`, [n, n], in float64."""
        size = angles.shape[0]
        if angles.shape != self._shape(size):
            raise InputError(f"the angles of {size} sites must have shape {list(self._shape(size))}, got {list(angles.shape)}")
        angles, phases = angles.to(working_dtype(angles)), None if phases is None else phases.to(working_dtype(phases))
        if self.style == "fft":
            return butterfly(angles, phases)
        product: Tensor = brick_wall(angles.contiguous(), None if phases is None else phases.contiguous(), self._count(size))
        return product

    def _needs_all(self, size: int) -> None:
        if self.style == "fft" or self._count(size) < size:
            raise ValueError(f"a matrix cannot be assigned to {self!r}: it takes {size} layers in the tunable style to write any")


class Givens(Layers):
    """`W = F_L ⋯ F_2 F_1`, real: each layer turns disjoint pairs of coordinates (a, b) by `[[cos θ, −sin θ], [sin θ, cos θ]]`.

    The free matrix holds the angles, two layers a column: row 2p belongs to the p-th pair of one layer and row 2p + 1 to that of
    the next. In the tunable style (Jing et al., 2017) these are (2p, 2p + 1) and (2p + 1, 2p + 2), so that row a is the pair
    (a, a + 1), and the last row is read only where there is such a pair. In the FFT style, layer l of log₂ n has the pairs at the
    distance n/2ˡ. With L ≥ n tunable layers every rotation can be written; the determinant is always one.

    Arguments:
        capacity: L; None for as many as the size.
        style: "tunable", or "fft" for sizes that are powers of two.
    """

    def forward(self, original: Tensor) -> Tensor:
        _check("the free matrix of Givens", original)
        return self._product(original, None).to(original.dtype)

    def right_inverse(self, matrix: Tensor) -> Tensor:
        """The angles that take the nearest orthogonal matrix to the identity, entry after entry (Clements et al., 2016).

        A determinant of −1, or too few layers, is a `ValueError`.
        """
        square_matrix("the matrix assigned to a Givens parametrization", matrix)
        size = matrix.shape[0]
        self._needs_all(size)
        if matrix.is_meta:
            return matrix.new_empty(self._shape(size))
        W = nearest_orthogonal(matrix)
        if torch.linalg.det(W) < 0:
            raise ValueError("the matrix assigned has determinant −1, and a product of rotations has determinant one")
        return decomposed(W, self._shape(size)[1])[0].to(matrix.dtype)

    def originals(self, size: int, like: Tensor) -> tuple[Tensor, ...]:
        return (like.new_zeros(self._shape(size)),)

    def constraint_error(self, matrix: Tensor) -> Tensor:
        """The largest entry of `|WᵀW − I|`."""
        return orthogonality_error(matrix)

    def free_parameters(self, size: int) -> int:
        """`L(n − 1)/2`, or `(n/2)·log₂ n` in the FFT style."""
        return self._angles(size)


class UnitaryGivens(Layers):
    """`W = D F_L ⋯ F_2 F_1` as its real form of size 2n, with the layers of `Givens`, each pair of complex coordinates times
    `[[cos θ, −e^{iφ}sin θ], [sin θ, e^{iφ}cos θ]]`, and `D = diag(e^{iω})`.

    Free tensors: the θ above the φ, 2n rows, each as in `Givens`; and ω. With L ≥ n tunable layers every unitary matrix can be
    written. The phase is on the second column, as in the authors' code: were it on the first row, the
    phases of the last rotations could not be told from those of `D`, and there would be too few of them.

    Arguments: as `Givens`.
    """

    def forward(self, angles: Tensor, phases: Tensor) -> Tensor:
        _check("the first free tensor of UnitaryGivens", angles)
        omega = phases.to(working_dtype(phases))
        W = torch.polar(torch.ones_like(omega), omega).unsqueeze(1) * self._product(*angles.chunk(2))
        return real_form(stacked(W).to(angles.dtype))

    def right_inverse(self, matrix: Tensor) -> tuple[Tensor, ...]:
        """As in `Givens`, for the nearest unitary matrix."""
        check_real_form("the matrix assigned to a UnitaryGivens parametrization", matrix)
        size = matrix.shape[0] // 2
        self._needs_all(size)
        if matrix.is_meta:
            return tuple(matrix.new_empty(part.shape) for part in self.originals(matrix.shape[0], matrix))
        angles, phases, diagonal = decomposed(nearest_unitary(matrix), self._shape(size)[1])
        return torch.cat([angles, phases]).to(matrix.dtype), diagonal.to(matrix.dtype)

    def originals(self, size: int, like: Tensor) -> tuple[Tensor, ...]:
        n = complex_units("a complex matrix in real numbers", size)
        rows, columns = self._shape(n)
        return like.new_zeros(2 * rows, columns), like.new_zeros(n)

    def constraint_error(self, matrix: Tensor) -> Tensor:
        """How far from the real form of a unitary matrix."""
        return unitarity_error(matrix)

    def free_parameters(self, size: int) -> int:
        """`L(n − 1) + n`, or `n·log₂ n + n` in the FFT style, for a real form of size 2n."""
        return 2 * self._angles(size // 2) + size // 2


def _check(name: str, angles: Tensor) -> None:
    floating_tensor(name, angles)
    if angles.dim() != 2:
        raise InputError(f"{name} must be a matrix, got shape {list(angles.shape)}")
