"""scoRNN: an orthogonal matrix by the scaled Cayley transform (Helfrich, Willmott & Ye, ICML 2018)."""

from functools import partial
from typing import Unpack

import torch

from .._checks import count_within, positive_int
from ..matrices import Cayley
from ._module import Device, Pointwise
from ._one_matrix import LayerOptions, OneMatrixRNN


class SCORNN(OneMatrixRNN):
    """`W = (I + A)⁻¹(I − A)D` with `A` skew-symmetric and ones and minus ones on the diagonal of `D`: see `Cayley`.

    It is `ENRNN` without a short-term state.

    Arguments:
        negative_ones: how many −1s `D` has; None takes half, as the authors do for adding and copying.
        The others: as `ENRNN`.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: Pointwise = "modrelu",
        *,
        negative_ones: int | None = None,
        device: Device = None,
        dtype: torch.dtype | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        size = positive_int("hidden_size", hidden_size)
        self.negative_ones = count_within("negative_ones", negative_ones, 0.5, size, "hidden_size", fraction=False)
        matrix = partial(Cayley, negative_ones=self.negative_ones)
        super().__init__(input_size, hidden_size, num_layers, nonlinearity, matrix, device=device, dtype=dtype, **options)
