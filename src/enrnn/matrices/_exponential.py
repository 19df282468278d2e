"""Orthogonal matrices by the exponential of a skew-symmetric one (EXPRNN, dtriv)."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._checks import one_of, positive_int, square_matrix
from .._precision import working_dtype
from ._contract import Matrix, rotation_angles
from ._orthogonal import nearest_orthogonal, orthogonality_error, polished
from ._skew import exponential, logarithm, skew_symmetric

INITS = ("henaff", "cayley")


class Exponential(Matrix):
    """`W = B·exp(A)`, with `A` skew-symmetric and `B` an orthogonal base.

    With `B = I`, the exponential reaches every orthogonal matrix of determinant 1 (Lezcano-Casado & Martínez-Rubio, 2019). With
    a dynamic trivialisation (Lezcano-Casado, 2019, "dtriv"), every K steps of the optimiser the base moves on, `B ← B·exp(A)` and
    `A ← 0`, which leaves `W` as it is; the determinant is that of the first base. What the optimiser remembers of `A` stays.

    Only the part above the diagonal of the free matrix is read, as in `Cayley`.

    On a CPU, `W` is orthogonal to rounding (`|WᵀW − I|` below 10⁻¹²) for every `A` up to 10¹⁵⁰. On a GPU nobody looks at the norm
    of `A`, and that holds up to ‖A‖ ≈ 1400; at 4000 the error is 10⁻⁷, at 10⁴ it is 10⁻², at 10⁶ there is no `W`. In a graph that
    is compiled or exported it grows with ‖A‖, from 10⁻¹² at 10³ to 10⁻⁷ at 10⁹. Angles within ±π write all matrices there are.

    Arguments:
        rebase_every: None for `B = I`; K for dtriv_K; `math.inf` for dtriv_∞, whose base is set once, by the start.
        polish_every: after how many moves of the base rounding is taken out of it (the nearest orthogonal matrix).
        init: the start: "henaff", or "cayley".

    Buffers, with `rebase_every` alone:
        base: `B`, in float64 whatever the module's dtype.
        steps: how many steps of the optimiser have been seen.
    """

    base: Tensor
    steps: Tensor

    def __init__(self, *, rebase_every: float | None = None, polish_every: int = 100, init: str = "henaff") -> None:
        super().__init__()
        if rebase_every is not None and rebase_every != math.inf:
            rebase_every = positive_int("rebase_every", rebase_every)
        self.rebase_every = rebase_every
        self.polish_every = positive_int("polish_every", polish_every)
        self.init = one_of("init", init, INITS)
        if rebase_every is not None:
            self.register_buffer("base", torch.empty(0, 0, dtype=torch.float64))
            self.register_buffer("steps", torch.tensor(0))

    def forward(self, original: Tensor) -> Tensor:
        square_matrix("the free matrix of Exponential", original)
        moved = exponential(skew_symmetric(original.to(working_dtype(original))))
        return (moved if self.rebase_every is None else self.base @ moved).to(original.dtype)

    def after_step(self, original: Tensor) -> None:
        """Count the step, and move the base if it is time."""
        if self.rebase_every is None or math.isinf(self.rebase_every):
            return
        self.steps.add_(1)
        due = self.steps % self.rebase_every == 0
        if not original.is_cuda and not due:  # on a GPU a look would cost more than the work, and cannot be captured
            return
        moved = self.base @ exponential(skew_symmetric(original.detach().to(self.base.dtype)))
        rounded = due & (self.steps % (self.rebase_every * self.polish_every) == 0)
        moved = torch.where(rounded, polished(moved), moved)
        with torch.no_grad():
            self.base.copy_(torch.where(due, moved, self.base))
            original.copy_(torch.where(due, 0, original))

    def right_inverse(self, matrix: Tensor) -> Tensor:
        """`A = log W`; with a base, `B = W` and `A = 0`.

        What is not orthogonal is replaced by the nearest orthogonal matrix. Without a base, determinant −1 is a `ValueError`. The
        logarithm is exact to rounding, near half turns too, and was tried before it is returned.
        """
        square_matrix("the matrix assigned to an Exponential parametrization", matrix)
        if matrix.is_meta:
            return torch.empty_like(matrix)
        nearest = nearest_orthogonal(matrix)
        if self.rebase_every is not None:
            self.base = nearest
            return torch.zeros_like(matrix)
        if torch.linalg.det(nearest) < 0:
            raise ValueError("the orthogonal matrix assigned has determinant −1, but an exponential has +1; a base can have −1")
        return logarithm(nearest).triu(1).to(matrix.dtype)

    def originals(self, size: int, like: Tensor) -> tuple[Tensor, ...]:
        if self.rebase_every is not None:
            self.base = torch.eye(size, dtype=working_dtype(like), device=like.device)
        return super().originals(size, like)

    def initialize_(self, *originals: Tensor) -> None:
        """2×2 blocks `s·[[0, 1], [−1, 0]]`. Henaff et al.: s ∼ U(−π, π). Helfrich et al., though here it is exponentiated:
        `s = tan(t/2)`, t ∼ U[0, π/2). A base takes the start over, and `A` is zero."""
        (original,) = originals
        angles = rotation_angles(original.shape[0], original)
        angles = torch.tan(angles / 2) if self.init == "cayley" else (angles - torch.pi / 4) * 4
        with torch.no_grad():
            original.zero_()
            original.diagonal(1)[::2][: angles.shape[0]] = angles
            if self.rebase_every is not None:
                self.steps.zero_()
                self.base.copy_(exponential(skew_symmetric(original.to(self.base.dtype))))
                original.zero_()

    def constraint_error(self, matrix: Tensor) -> Tensor:
        """The largest entry of `|WᵀW − I|`: zero up to rounding, for `A` in the range that `Exponential` names."""
        return orthogonality_error(matrix)

    def free_parameters(self, size: int) -> int:
        return size * (size - 1) // 2

    def extra_repr(self) -> str:
        return "" if self.rebase_every is None else f"rebase_every={self.rebase_every}, polish_every={self.polish_every}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """Whatever dtype the module is moved to, the base stays as exact as it was: it would not be orthogonal otherwise."""
        base = self._buffers.get("base")
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if base is not None and not base.is_meta:
            self.base = base.to(self.base.device, working_dtype(self.base))
        return self
