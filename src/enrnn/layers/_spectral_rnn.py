"""Spectral RNN: singular values near one (Zhang, Lei & Dhillon, ICML 2018)."""

from functools import partial
from typing import Unpack

import torch

from ..matrices import SVD
from ._module import Device, Pointwise
from ._one_matrix import LayerOptions, OneMatrixRNN


class SpectralRNN(OneMatrixRNN):
    """`W = U diag(σ) Vᵀ`, `U` and `V` products of reflections and σ within a margin of one: see `SVD`.

    Arguments:
        reflectors: of each factor; None for a quarter of the units.
        margin: how far from one a singular value may be.
        The others: as `ENRNN`.
    """

    input_init = "glorot"

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: Pointwise = "relu",
        *,
        reflectors: int | None = None,
        margin: float = 0.01,
        device: Device = None,
        dtype: torch.dtype | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        matrix = partial(SVD, reflectors, margin=margin)
        super().__init__(input_size, hidden_size, num_layers, nonlinearity, matrix, device=device, dtype=dtype, **options)
