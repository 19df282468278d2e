"""Full-capacity uRNN: any unitary matrix, moved along geodesics (Wisdom et al., NeurIPS 2016)."""

import math
from functools import partial
from typing import Unpack

import torch
from torch import Tensor, nn

from ..matrices import Stiefel
from ._complex import ComplexRNN
from ._module import Device, Pointwise
from ._one_matrix import LayerOptions


class FullCapacityURNN(ComplexRNN):
    """`W` any unitary matrix: see `Stiefel`, and `ComplexRNN` for complex units in real numbers.

    `W` stays unitary only in a training loop that calls `manifold_update` in place of the optimiser's step, as `enrnn.training`
    does. That step is as long as the gradient, so it has a learning rate of its own (`parameter_groups`).

    Arguments:
        hidden_size: twice the number of complex units.
        nonlinearity: the modReLU of complex numbers, or "relu", "leaky_relu", "tanh", "identity" on real and imaginary parts.
        polish_every: after how many steps rounding is taken out of `W`.
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
        polish_every: int = 100,
        learn_initial: bool = True,
        device: Device = None,
        dtype: torch.dtype | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        matrix = partial(Stiefel, polish_every=polish_every)
        super().__init__(
            input_size, hidden_size, num_layers, nonlinearity, matrix, learn_initial, device=device, dtype=dtype, **options
        )

    def _reset_initial(self, initial: Tensor) -> None:
        bound = math.sqrt(3 / self.hidden_size)
        nn.init.uniform_(initial, -bound, bound)
