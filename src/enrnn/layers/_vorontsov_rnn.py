"""The factorised RNN with a soft margin (Vorontsov, Trabelsi, Kadoury & Pal, ICML 2017)."""

from functools import partial
from typing import Unpack

import torch

from ..matrices import SoftMargin
from ._module import Device, Pointwise
from ._one_matrix import LayerOptions, OneMatrixRNN


class VorontsovRNN(OneMatrixRNN):
    """`W = U diag(s) V`, `U` and `V` orthogonal and moved along geodesics, s within a margin of one: see `SoftMargin`.

    `U` and `V` stay orthogonal only in a training loop that calls `manifold_update` in place of the optimiser's step, as
    `enrnn.training` does. The authors divide the learning rate of s by twice the margin.

    Arguments:
        margin: how far from one a singular value may be.
        polish_every: after how many steps rounding is taken out of `U` and `V`.
        learn_initial: whether the state that sequences start from is trained.
        The others: as `ENRNN`.
    """

    input_init = "glorot"

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: Pointwise = "tanh",
        *,
        margin: float = 0.1,
        polish_every: int = 100,
        learn_initial: bool = True,
        device: Device = None,
        dtype: torch.dtype | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        matrix = partial(SoftMargin, margin=margin, polish_every=polish_every)
        super().__init__(
            input_size, hidden_size, num_layers, nonlinearity, matrix, learn_initial, device=device, dtype=dtype, **options
        )
