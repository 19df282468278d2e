"""scuRNN: a unitary matrix by the complex scaled Cayley transform (Maduranga, Helfrich & Ye, AAAI 2019)."""

from typing import Unpack

import torch
from torch import Tensor, nn

from ..matrices import UnitaryCayley
from ._complex import ComplexRNN
from ._module import Device, Pointwise
from ._one_matrix import LayerOptions


class SCURNN(ComplexRNN):
    """`W = (I + A)⁻¹(I − A)D`, `A` skew-Hermitian and `D` a diagonal of trained phases: see `UnitaryCayley`, and `ComplexRNN` for
    complex units in real numbers.

    Arguments:
        hidden_size: twice the number of complex units.
        nonlinearity: the modReLU of complex numbers, or "relu", "leaky_relu", "tanh", "identity" on real and imaginary parts.
        learn_initial: whether the state that sequences start from is trained.
        The others: as `ENRNN`.
    """

    input_init = "glorot"
    bias_bound = 0.01

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
            input_size, hidden_size, num_layers, nonlinearity, UnitaryCayley, learn_initial, device=device, dtype=dtype, **options
        )

    def _reset_initial(self, initial: Tensor) -> None:
        nn.init.uniform_(initial, -0.01, 0.01)
