"""IRNN: ReLU and a recurrent matrix that starts as the identity (Le, Jaitly & Hinton, 2015)."""

from typing import Unpack

import torch
from torch import nn

from ._module import Device, Pointwise
from ._one_matrix import LayerOptions, OneMatrixRNN


class IRNN(OneMatrixRNN):
    """`W` is free, and starts as the identity; `U` starts small. Arguments: as `ENRNN`."""

    input_init = "tiny"

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
        nn.init.eye_(getattr(self, f"weight_hh{suffix}"))
