"""Networks of complex units, on the same recurrence as the real ones."""

from collections.abc import Callable
from typing import ClassVar, Unpack

import torch
from torch import Tensor

from .._checks import positive_int
from ..matrices import Matrix
from ..matrices._complex import nearest_complex, unstacked
from ..nonlinearities import NONLINEARITIES
from ._module import Device, Pointwise
from ._one_matrix import LayerOptions, OneMatrixRNN


class ComplexRNN(OneMatrixRNN):
    """`h_t = σ(V x_t + W h_{t−1}, b)` with n complex units and a complex matrix `W`, in real numbers.

    The state is `[Re h; Im h]`, and `hidden_size` counts the numbers in it, so it is 2n and must be even: a paper's network with
    n units has `hidden_size = 2n`. Everything else is then as in `torch.nn.RNN`: states and outputs have `hidden_size` features,
    and a linear layer on the output is the papers' output layer on `[Re h; Im h]`. The input is real; the rows of
    `weight_ih_l[k]` are those of Re V, then those of Im V. `recurrent_weight()` is the real form `[[A, −B], [B, A]]` of
    `W = A + iB`.

    σ is by default the modReLU of complex numbers, `(z/|z|)·relu(|z| + b)`, with one threshold for each unit. Every other σ acts
    on real and imaginary parts alike, with 2n biases.
    """

    nonlinearities: ClassVar[list[str]] = [name for name in NONLINEARITIES if name != "modrelu"]

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int,
        nonlinearity: Pointwise,
        matrix: Callable[[], Matrix],
        learn_initial: bool,
        *,
        device: Device = None,
        dtype: torch.dtype | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        complex_units(hidden_size)
        if nonlinearity == "modrelu":
            nonlinearity = "paired_modrelu"
        super().__init__(
            input_size, hidden_size, num_layers, nonlinearity, matrix, learn_initial, device=device, dtype=dtype, **options
        )

    @property
    def complex_units(self) -> int:
        """n, half of `hidden_size`."""
        return self.hidden_size // 2

    def complex_recurrent_weight(self, layer: int = 0, direction: int = 0) -> Tensor:
        """`W`, [n, n], complex, differentiable."""
        return unstacked(nearest_complex(self.recurrent_weight(layer, direction)))


def complex_units(hidden_size: int) -> int:
    """n, for `hidden_size` 2n."""
    if positive_int("hidden_size", hidden_size) % 2:
        raise ValueError(f"hidden_size must be even, since a complex unit is two real numbers, got: {hidden_size}")
    return hidden_size // 2
