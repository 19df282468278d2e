"""One matrix, one method: what the layer calls."""

from typing import NamedTuple

import torch
from torch import Tensor

from .._precision import capturing
from ._dense import Dominant, dominant
from ._device import squaring_all_the_way, squaring_on_device
from ._squaring import squaring

SOLVERS = ("auto", "dense", "squaring")
"""`dense`: LAPACK, the specification. `squaring`: the fast certified solver; where it cannot certify, a slower one, and dense at
last. `auto`: the faster of the two for the size and the device at hand."""

SQUARING_FROM = 128
"""The size from which repeated squaring is the faster one on a CPU (measured: see the README in this folder)."""


class Solution(NamedTuple):
    """The dominant pair; whether the fast solver gave way to a slower one; whether the pair may be used."""

    pair: Dominant
    fell_back: Tensor
    certified: Tensor


def solve(matrix: Tensor, method: str, accuracy: float = 1e-12, largest: Tensor | None = None) -> Solution:
    """The dominant eigenvalue of one float64 matrix, which must be finite unless a CUDA graph is being captured. On a GPU, and
    with its `largest` entries as `normalize.cu` finds them, of a float32 one.

    While a graph is captured nobody can look and no dense solver can run: the result may come out uncertified there, and only
    there. Everything in it is then zero.
    """
    if capturing(matrix):
        if method == "dense":
            raise RuntimeError(
                "solver='dense' needs the host and cannot be captured in a CUDA graph; choose 'auto' or 'squaring'"
            )
        no = torch.zeros((), dtype=torch.bool, device=matrix.device)
        pair, certified = squaring_on_device(matrix, accuracy, largest)
        return Solution(pair, no, certified)
    yes = torch.ones((), dtype=torch.bool, device=matrix.device)
    if method == "dense" or (method == "auto" and not matrix.is_cuda and matrix.shape[-1] < SQUARING_FROM):
        return Solution(dominant(working_matrix(matrix)), ~yes, yes)
    found = squaring_on_device(matrix, accuracy, largest) if matrix.is_cuda else squaring(matrix, accuracy)
    if found is not None and found.certified:
        return Solution(found.pair, ~yes, yes)
    if matrix.is_cuda:
        matrix = working_matrix(matrix)
        found = squaring_all_the_way(matrix, accuracy)
        if found.certified:
            return Solution(found.pair, yes.clone(), yes)
    return Solution(dominant(matrix), yes.clone(), yes)


def working_matrix(matrix: Tensor) -> Tensor:
    """`matrix` in float64, on its device, or on the CPU where that has no float64."""
    return matrix.detach().to("cpu" if matrix.device.type == "mps" else matrix.device, torch.float64)
