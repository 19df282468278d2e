"""A free recurrent matrix with an orthogonal start (Henaff, Szlam & LeCun, ICML 2016)."""

from typing import Unpack

import torch

from ..matrices import Exponential
from ._module import Device, Pointwise
from ._one_matrix import LayerOptions, OneMatrixRNN


class OrthogonalRNN(OneMatrixRNN):
    """`W` is free, and starts as rotations by random angles in the planes of units 1 and 2, 3 and 4, … Arguments: as `ENRNN`."""

    input_init = "glorot"

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: Pointwise = "relu",
        *,
        device: Device = None,
        dtype: torch.dtype | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(input_size, hidden_size, num_layers, nonlinearity, None, device=device, dtype=dtype, **options)

    @torch.no_grad()
    def _reset_recurrence(self, suffix: str) -> None:
        weight = getattr(self, f"weight_hh{suffix}")
        rotations = Exponential()
        rotations.initialize_(weight)
        weight.copy_(rotations(weight))
