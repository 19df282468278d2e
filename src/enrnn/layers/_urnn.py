"""uRNN: a unitary matrix of simple factors (Arjovsky, Shah & Bengio, ICML 2016)."""

import math
from typing import Unpack

import torch
from torch import Tensor, nn

from ..matrices import UnitaryProduct
from ._complex import ComplexRNN
from ._module import Device, Pointwise
from ._one_matrix import LayerOptions


class URNN(ComplexRNN):
    """`W = D₃ R₂ F⁻¹ D₂ Π R₁ F D₁`: see `UnitaryProduct`, and `ComplexRNN` for complex units in real numbers.

    `b` starts at zero as in the paper, where the authors' code draws it from ±0.01.

    Arguments:
        hidden_size: twice the number of complex units.
        nonlinearity: the modReLU of complex numbers, or "relu", "leaky_relu", "tanh", "identity" on real and imaginary parts.
        learn_initial: whether the state that sequences start from is trained.
        The others: as `ENRNN`.
    """

    input_init = "glorot"

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: Pointwise = "paired_modrelu",
        *,
        learn_initial: bool = True,
        device: Device = None,
        dtype: torch.dtype | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            nonlinearity,
            UnitaryProduct,
            learn_initial,
            device=device,
            dtype=dtype,
            **options,
        )

    def _reset_initial(self, initial: Tensor) -> None:
        bound = math.sqrt(3 / self.hidden_size)
        nn.init.uniform_(initial, -bound, bound)
