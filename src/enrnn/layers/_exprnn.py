"""EXPRNN and dtriv: an orthogonal matrix by the exponential (Lezcano-Casado & Martínez-Rubio, ICML 2019; NeurIPS 2019)."""

from functools import partial
from typing import Unpack

import torch

from ..matrices import Exponential
from ._module import Device, Pointwise
from ._one_matrix import LayerOptions, OneMatrixRNN


class EXPRNN(OneMatrixRNN):
    """`W = B·exp(A)` with `A` skew-symmetric: see `Exponential`.

    Arguments:
        rebase_every: None for EXPRNN, where `B = I`; K for dtriv_K, `math.inf` for dtriv_∞. A finite K needs a training loop
            that calls `after_step`, as `enrnn.training` does.
        polish_every: after how many moves of the base rounding is taken out of it (30 for copying, 100 else).
        init: the start of `A`: "henaff" or "cayley".
        The others: as `ENRNN`.
    """

    input_init = "kaiming"
    bias_bound = 0.01

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: Pointwise = "modrelu",
        *,
        rebase_every: float | None = None,
        polish_every: int = 100,
        init: str = "henaff",
        device: Device = None,
        dtype: torch.dtype | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        matrix = partial(Exponential, rebase_every=rebase_every, polish_every=polish_every, init=init)
        super().__init__(input_size, hidden_size, num_layers, nonlinearity, matrix, device=device, dtype=dtype, **options)
