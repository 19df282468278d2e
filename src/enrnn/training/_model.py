"""The network of a run: the input's way in, one recurrent layer, and a linear head on the steps that the task reads."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .._streams import with_its_gradient_aside
from ..layers import ClockworkRNN
from ..layers._base import RecurrentLayer
from ..layers._module import RecurrentModule
from ..layers._one_matrix import OneMatrixRNN
from ..layers._sequence import SequenceLayer
from ..recurrence._projection import projected
from ..tasks import Data, Symbols
from ._config import ModelSettings
from ._embedding import Embedding
from ._layer import layer_of

State = tuple[Tensor, ...]
"""What goes on to the next batch: all tensors of the layer's state in a row, each `[…, B, n]` of three dimensions."""


class Head(nn.Linear):
    """torch's, by kernels of ours where these pay."""

    def forward(self, input: Tensor) -> Tensor:
        return projected(input, self.weight, self.bias)


class Network(nn.Module):
    """`outputs, state = network(inputs, state)`; outputs are what the task's loss wants.

    Initial values are those of the paper and its authors' code (zoo of sources in the docstrings of the parts): every layer's
    own, an embedding and a head by Glorot and Bengio, an LSTM as TensorFlow's BasicLSTMCell.
    """

    table: Tensor

    def __init__(self, settings: ModelSettings, data: Data) -> None:
        super().__init__()
        self.reads = data.reads
        self.symbols = isinstance(data.input, Symbols)
        size = data.input.count if isinstance(data.input, Symbols) else data.input.size
        plain = settings.backend == "reference"  # to be differentiated as often as one likes
        self.embedding: nn.Embedding | None = None
        if settings.embedding_size is not None:
            if not self.symbols:
                raise ValueError(f"model.embedding is for tasks whose input is symbols; that of {data.name} is numbers")
            self.embedding = (nn.Embedding if plain else Embedding)(size, settings.embedding_size)
            nn.init.xavier_uniform_(self.embedding.weight)
            size = settings.embedding_size
        elif self.symbols:
            self.register_buffer("table", torch.eye(size), persistent=False)
        self.layer = layer_of(settings, size)
        self.head = (nn.Linear if plain else Head)(settings.hidden_size, data.output_size)
        nn.init.xavier_uniform_(self.head.weight)
        bound = math.sqrt(3 / data.output_size) if settings.head_bias == "glorot" else 0.0
        nn.init.uniform_(self.head.bias, -bound, bound)
        zero = _zero_state(self.layer, size, settings.hidden_size)
        self._structure = _structure(zero)
        self._shapes = [part.shape for part in self._flat(zero)]

    def forward(self, inputs: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        embedding = self.embedding
        if embedding is not None:
            symbols = inputs
            inputs = with_its_gradient_aside(lambda: embedding(symbols), symbols, embedding.weight)
        elif self.symbols:
            inputs = F.embedding(inputs, self.table)
        hidden = None if state is None else self._nested(iter(state), self._structure)
        if self.reads == "last" and isinstance(self.layer, RecurrentLayer) and not torch.is_grad_enabled():
            last = self.layer.final_state(inputs, hidden)  # without memory for the others
            return self.head(last[-1]), (last,)
        if hidden is not None and isinstance(self.layer, ClockworkRNN):
            self._check_clock(len(inputs))
        states, final = self.layer(inputs, hidden)
        outputs: Tensor = self.head(states[-1] if self.reads == "last" else states)
        return outputs, tuple(self._flat(final))

    def first_state(self, batch_size: int) -> State:
        """What an epoch starts from, shaped as a batch of this size carries it on: zero, or what the layer has learned."""
        if isinstance(self.layer, OneMatrixRNN) and self.layer.initial_state is not None:
            return (self.layer.initial_state.unsqueeze(1).expand(-1, batch_size, -1),)
        return tuple(self.head.weight.new_zeros(layers, batch_size, size) for layers, _, size in self._shapes)

    def num_parameters(self) -> int:
        """The parameters that count: a skew-symmetric matrix has half of its entries."""
        others = sum(p.numel() for name, p in self.named_parameters() if p.requires_grad and not name.startswith("layer."))
        if isinstance(self.layer, RecurrentModule):
            return others + self.layer.num_free_parameters()
        return others + sum(parameter.numel() for parameter in self.layer.parameters() if parameter.requires_grad)

    def _flat(self, state: Any) -> Iterator[Tensor]:
        if isinstance(state, Tensor):
            yield state.unsqueeze(0) if self._cells else state
        else:
            for part in state:
                yield from self._flat(part)

    def _nested(self, parts: Iterator[Tensor], structure: Any) -> Any:
        """A state as the layer has it, from its tensors in a row."""
        if structure is None:
            part = next(parts)
            return part.squeeze(0) if self._cells else part
        return tuple(self._nested(parts, inner) for inner in structure)

    @property
    def _cells(self) -> bool:
        """Whether the layer's states are those of cells: [B, n]."""
        return isinstance(self.layer, SequenceLayer) and self.layer.batch_dim == 0

    def _check_clock(self, steps: int) -> None:
        """The clock starts anew with each piece of a text, which is as if it went on where all periods divide its length."""
        assert isinstance(self.layer, ClockworkRNN)
        wrong = [period for period in self.layer.periods if steps % period]
        if wrong:
            raise ValueError(
                f"a clockwork network that goes on from piece to piece needs periods that divide task.length = {steps}, "
                f"got: {wrong[0]}; set task.length, or model.options.periods"
            )


def _zero_state(layer: nn.Module, inputs: int, features: int) -> Any:
    """A state of zeros for a batch of one, as the layer has it."""
    like = next(layer.parameters())
    if isinstance(layer, SequenceLayer):
        with torch.no_grad():
            return layer(like.new_zeros(1, 1, inputs))[1]
    zero = like.new_zeros(int(getattr(layer, "num_layers", 1)), 1, features)
    return (zero, zero) if isinstance(layer, nn.LSTM) else zero


def _structure(state: Any) -> Any:
    """Of the tuples in a state: None stands for a tensor."""
    return None if isinstance(state, Tensor) else tuple(_structure(part) for part in state)
