"""One matrix, one method: what the layer and the public function both call."""

import torch
from torch import Tensor

from ._dense import Dominant, dominant
from ._squaring import squaring

SOLVERS = ("auto", "dense", "squaring")
"""`dense`: LAPACK, the specification. `squaring`: the fast certified solver, dense at once where it cannot certify. `auto`: the
faster of the two at the size at hand."""

SQUARING_FROM = 128
"""The size from which repeated squaring is the faster one (measured: see the README in this folder)."""


def solve(matrix: Tensor, method: str) -> tuple[Dominant, bool]:
    """The dominant eigenvalue of one finite float64 matrix, and whether the fast solver had to be replaced by the dense one."""
    if method == "dense" or (method == "auto" and matrix.shape[-1] < SQUARING_FROM):
        return dominant(matrix), False
    found = squaring(matrix)
    if found is not None and found.certified:
        return found.pair, False
    return dominant(matrix), True


def working_matrix(matrix: Tensor) -> Tensor:
    """`matrix` in float64, on its device, or on the CPU where that has no float64."""
    return matrix.detach().to("cpu" if matrix.device.type == "mps" else matrix.device, torch.float64)
