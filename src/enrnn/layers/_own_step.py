"""Networks whose step is not `σ(U x + W h, b)`: gated and multi-scale ones. They run on the reference path, under
autograd, unless a class has an operator of its own (GORU)."""

from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor, nn

from .._precision import full_precision
from ..recurrence._projection import plainly_projected
from ._base import RecurrentLayer
from ._module import Device, Pointwise
from ._one_matrix import LayerOptions, taken


class OwnStepRNN(RecurrentLayer):
    """`h_t = step(U x_t + b, h_{t−1})` with `torch.nn.RNN`'s interface.

    A subclass writes `_step`, and `_weights` for what the step needs besides; it sets `parts`, implements `_add_recurrence` and
    `_reset_recurrence`, overrides `_reset_input` where `U` and `b` start otherwise, and ends `__init__` with `_build()`.

    Attributes:
        weight_ih_l[k], bias_l[k]: `U`, [parts · n, inputs], and `b`, [parts · n], of layer k.
    """

    parts: ClassVar[int] = 1
    """How many vectors of n numbers the input is taken to: one for each gate and candidate."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int,
        nonlinearity: Pointwise,
        *,
        device: Device = None,
        dtype: torch.dtype | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        found = taken(self, options, device, dtype, input_weight="full")
        super().__init__(input_size, hidden_size, num_layers, nonlinearity, *found)
        if self.backend not in ("auto", "reference"):
            raise ValueError(
                f"{self._get_name()} has a step of its own: backend must be 'auto' or 'reference', got: {self.backend!r}"
            )

    @property
    def backend_used(self) -> str:
        return "reference"

    def _step(self, x: Tensor, h: Tensor, weights: tuple[Tensor, ...]) -> Tensor:
        """The next state [B, n] from the projected input `x` [B, parts · n] and the state `h`."""
        raise NotImplementedError

    def _weights(self, suffix: str) -> tuple[Tensor, ...]:
        """What `_step` needs, read once for a sequence; constrained matrices by `_in_use`."""
        raise NotImplementedError

    def _form(self, suffix: str) -> tuple[Tensor, ...]:
        with full_precision(self._like):
            return self._weights(suffix)

    def _run(
        self, suffix: str, formed: Any, inputs: Tensor, bias: Tensor | None, initial: Tensor, lengths: Tensor | None
    ) -> Tensor:
        with full_precision(inputs):
            weights = tuple(weight.to(inputs.dtype) for weight in formed)
            h = initial
            states = []
            for t, x in enumerate(inputs):
                step = self._step(x, h, weights)
                h = step if lengths is None else torch.where((t < lengths).unsqueeze(-1), step, h)
                states.append(h)
            return torch.stack(states)

    def _add_input(self, suffix: str, inputs: int) -> None:
        rows = self.parts * self.hidden_size
        self.register_parameter(f"weight_ih{suffix}", nn.Parameter(self._empty.new_empty(rows, inputs)))
        self.register_parameter(self._bias_name(suffix), nn.Parameter(self._empty.new_empty(rows)) if self.bias else None)

    def _project(self, suffix: str, x: Tensor, held: torch.dtype) -> tuple[Tensor, Tensor | None]:
        """`U x + b` for all steps at once."""
        return plainly_projected(x, getattr(self, f"weight_ih{suffix}"), getattr(self, self._bias_name(suffix))).to(held), None
