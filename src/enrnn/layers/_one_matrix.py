"""Networks with one recurrent matrix: all that sets them apart is how it is written, and where they start."""

from collections.abc import Callable
from typing import Any, ClassVar, TypedDict, Unpack

import torch
from torch import Tensor, nn

from .._checks import boolean
from ..matrices import Matrix
from ..recurrence import recurrence
from ._baked import bake_layer
from ._base import RecurrentLayer
from ._module import Device, Pointwise

INPUT_INITS: dict[str, Callable[[Tensor], object]] = {
    "uniform": lambda weight: nn.init.uniform_(weight, -0.01, 0.01),
    "glorot": nn.init.xavier_uniform_,
    "kaiming": lambda weight: nn.init.kaiming_normal_(weight, nonlinearity="relu"),
    "tiny": lambda weight: nn.init.normal_(weight, 0.0, 0.001),
}


class LayerOptions(TypedDict, total=False):
    """Keyword arguments that every network here takes, as `torch.nn.RNN` and `ENRNN` do. (`device` and `dtype` are written out in
    each of them: `torch.nn.utils.skip_init` wants to find them there.)"""

    bias: bool
    batch_first: bool
    dropout: float
    bidirectional: bool
    input_weight: str
    backend: str


def taken(
    network: nn.Module, options: LayerOptions, device: Device, dtype: torch.dtype | None, input_weight: str | None = None
) -> tuple[Any, ...]:
    """`RecurrentLayer`'s arguments from `bias` on, in their order; whatever else is among the options is an error.

    `input_weight`: for networks that offer no choice of it.
    """
    found = (
        options.pop("bias", True),
        options.pop("batch_first", False),
        options.pop("dropout", 0.0),
        options.pop("bidirectional", False),
        input_weight or options.pop("input_weight", "full"),
        options.pop("backend", "auto"),
        device,
        dtype,
    )
    if options:
        raise TypeError(f"{type(network).__name__} has no argument {next(iter(options))!r}")
    return found


class OneMatrixRNN(RecurrentLayer):
    """`h_t = σ(U x_t + W h_{t−1}, b)` with `W` of one family of matrices, under the name `weight_hh_l[k]`.

    A subclass is a network: it names the family, the nonlinearity and, below, where `U` and `b` start.

    Attributes:
        weight_ih_l[k], bias_l[k]: `U` and `b` of layer k; `_reverse` is appended for the backward direction.
        weight_hh_l[k]: `W`, formed when read.
        initial_state: with `learn_initial`, the trained state that a sequence starts from where no `hx` is given.
    """

    input_init: ClassVar[str] = "uniform"
    bias_bound: ClassVar[float] = 0.0

    initial_state: nn.Parameter | None

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int,
        nonlinearity: Pointwise,
        matrix: Callable[[], Matrix] | None,
        learn_initial: bool = False,
        *,
        device: Device = None,
        dtype: torch.dtype | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(input_size, hidden_size, num_layers, nonlinearity, *taken(self, options, device, dtype))
        self._new_matrix = matrix
        initial = self._empty.new_zeros(self.num_layers * self.num_directions, self.hidden_size)
        learned = boolean("learn_initial", learn_initial)
        self.register_parameter("initial_state", nn.Parameter(initial) if learned else None)
        self._build()

    def reset_parameters(self) -> None:
        """Draw the parameters anew, as at construction."""
        super().reset_parameters()
        if self.initial_state is not None:
            self._reset_initial(self.initial_state)

    def recurrent_weight(self, layer: int = 0, direction: int = 0) -> Tensor:
        """`W`, [n, n], differentiable."""
        return self._constrained(f"weight_hh{self._suffix(layer, direction)}")

    def bake(self) -> nn.Module:
        """A plain module with the matrices as they are now: a `torch.nn.RNN` for ReLU and tanh, else a `BakedRNN`."""
        if self.initial_state is not None:
            raise ValueError("a baked network starts from zero, and this one has learned where to start (learn_initial)")
        return bake_layer(self)

    def penalty(self) -> Tensor:
        """What the network's paper adds to the loss, summed over layers and directions; zero for most."""
        found = [matrix.penalty(*self._originals(name)) for name, matrix in self._constrained_matrices()]
        penalties = [value for value in found if value is not None]
        return torch.stack(penalties).sum() if penalties else self._like.new_zeros(())

    def _add_recurrence(self, suffix: str) -> None:
        name, size = f"weight_hh{suffix}", self.hidden_size
        if self._new_matrix is None:
            self.register_parameter(name, nn.Parameter(self._empty.new_empty(size, size)))
        else:
            self._add_constrained(name, self._new_matrix(), size)

    def _reset_recurrence(self, suffix: str) -> None:
        self._reset_constrained(f"weight_hh{suffix}")

    def _reset_input(self, suffix: str) -> None:
        super()._reset_input(suffix)
        with torch.no_grad():
            if self.input_weight == "full":
                INPUT_INITS[self.input_init](getattr(self, f"weight_ih{suffix}"))
            if self.bias:
                getattr(self, self._bias_name(suffix)).uniform_(-self.bias_bound, self.bias_bound)

    def _reset_initial(self, initial: Tensor) -> None:
        nn.init.zeros_(initial)

    def _form(self, suffix: str) -> Any:
        return self._in_use(f"weight_hh{suffix}")

    def _run(
        self, suffix: str, formed: Any, inputs: Tensor, bias: Tensor | None, initial: Tensor, lengths: Tensor | None
    ) -> Tensor:
        return recurrence(inputs, formed, bias, initial, self.nonlinearity, lengths=lengths, backend=self.backend)

    def _forward(self, x: Tensor, hx: Tensor | None, lengths: Tensor | None, form: Callable[[str], Any]) -> tuple[Tensor, Tensor]:
        if hx is None and self.initial_state is not None:
            hx = self.initial_state.unsqueeze(1).expand(-1, x.size(1), -1)
        return super()._forward(x, hx, lengths, form)
