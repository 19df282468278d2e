"""oRNN: an orthogonal matrix as a product of reflections (Mhammedi, Hellicar, Rahman & Bailey, ICML 2017)."""

import math
from functools import partial
from typing import Unpack

import torch
from torch import Tensor, nn

from ..matrices import Householder
from ._module import Device, Pointwise
from ._one_matrix import LayerOptions, OneMatrixRNN


class ORNN(OneMatrixRNN):
    """`W = H_1 ⋯ H_m`, each `H_j` a reflection: see `Householder`.

    Arguments:
        nonlinearity: the leaky ReLU of the paper's code, of slope 0.1 below zero, or as `ENRNN`.
        reflectors: m; None for as many as units.
        learn_initial: whether the state that sequences start from is trained.
        The others: as `ENRNN`.
    """

    input_init = "glorot"

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: Pointwise = "leaky_relu",
        *,
        reflectors: int | None = None,
        learn_initial: bool = True,
        device: Device = None,
        dtype: torch.dtype | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        matrix = partial(Householder, reflectors)
        super().__init__(
            input_size, hidden_size, num_layers, nonlinearity, matrix, learn_initial, device=device, dtype=dtype, **options
        )

    def _reset_initial(self, initial: Tensor) -> None:
        bound = math.sqrt(3 / (2 * self.hidden_size))
        nn.init.uniform_(initial, -bound, bound)
