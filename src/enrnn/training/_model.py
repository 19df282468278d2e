"""The network of a run: the input's way in, one recurrent layer, and a linear head on the steps that the task reads."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..layers import ENRNN
from ..tasks import Data, Symbols
from ._config import ModelSettings

State = tuple[Tensor, ...]
"""What goes on to the next batch: h, or h and c."""


class Network(nn.Module):
    """`outputs, state = network(inputs, state)`; outputs are what the task's loss wants.

    Initial values are those of the paper and its authors' code (zoo of sources in the docstrings of the parts): ENRNN's own, an
    embedding and a head by Glorot and Bengio, an LSTM as TensorFlow's BasicLSTMCell. torch's gates have two biases where one is
    enough; the second one is fixed at zero, save in a GRU, where it is not the same as the first.
    """

    table: Tensor

    def __init__(self, settings: ModelSettings, data: Data) -> None:
        super().__init__()
        self.reads = data.reads
        self.symbols = isinstance(data.input, Symbols)
        size = data.input.count if isinstance(data.input, Symbols) else data.input.size
        self.embedding: nn.Embedding | None = None
        if settings.embedding:
            if not self.symbols:
                raise ValueError(f"model.embedding is for tasks whose input is symbols; that of {data.name} is numbers")
            self.embedding = nn.Embedding(size, settings.hidden_size)
            nn.init.xavier_uniform_(self.embedding.weight)
            size = settings.hidden_size
        elif self.symbols:
            self.register_buffer("table", torch.eye(size), persistent=False)
        self.layer = _layer(settings, size)
        self.head = nn.Linear(settings.hidden_size, data.output_size)
        nn.init.xavier_uniform_(self.head.weight)
        bound = math.sqrt(3 / data.output_size) if settings.head_bias == "glorot" else 0.0
        nn.init.uniform_(self.head.bias, -bound, bound)

    def forward(self, inputs: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        if self.embedding is not None:
            inputs = self.embedding(inputs)
        elif self.symbols:
            inputs = F.embedding(inputs, self.table)
        hidden = None if state is None else state if isinstance(self.layer, nn.LSTM) else state[0]
        if self.reads == "last" and isinstance(self.layer, ENRNN) and not torch.is_grad_enabled():
            last = self.layer.final_state(inputs, None if state is None else state[0])  # without memory for the others
            return self.head(last[-1]), (last,)
        states, final = self.layer(inputs, hidden)
        outputs: Tensor = self.head(states[-1] if self.reads == "last" else states)
        return outputs, final if isinstance(final, tuple) else (final,)

    def first_state(self, batch_size: int) -> State:
        """Zero, shaped as a batch of this size carries it on."""
        like = self.head.weight
        zero = like.new_zeros(1, batch_size, like.shape[1])
        return (zero, zero.clone()) if isinstance(self.layer, nn.LSTM) else (zero,)

    def num_parameters(self) -> int:
        """The parameters that count: a skew-symmetric matrix has half of its entries."""
        others = sum(p.numel() for name, p in self.named_parameters() if p.requires_grad and not name.startswith("layer."))
        if isinstance(self.layer, ENRNN):
            return others + self.layer.num_free_parameters()
        return others + sum(parameter.numel() for parameter in self.layer.parameters() if parameter.requires_grad)


def _layer(settings: ModelSettings, inputs: int) -> nn.Module:
    n = settings.hidden_size
    if settings.network == "enrnn":
        return ENRNN(
            inputs,
            n,
            nonlinearity=settings.nonlinearity,
            short_size=settings.short_size,
            negative_ones=settings.negative_ones,
            coupling=settings.coupling,
            epsilon=settings.epsilon,
            input_weight="identity" if settings.embedding else "full",
            coupling_init=settings.coupling_init,
            solver=settings.solver,
            backend=settings.backend,
        )
    layer: nn.RNNBase
    if settings.network == "lstm":
        layer = nn.LSTM(inputs, n)
    elif settings.network == "gru":
        layer = nn.GRU(inputs, n)
    else:
        layer = nn.RNN(inputs, n, nonlinearity=settings.nonlinearity)
    _as_tensorflow_(layer, settings.forget_bias)
    return layer


def _as_tensorflow_(layer: nn.RNNBase, forget_bias: float) -> None:
    """Glorot's uniform numbers for the kernel as one matrix `[m + n, gates · n]`, zero biases, and the forget gates' offset."""
    weight_ih, weight_hh, bias_ih, bias_hh = (
        getattr(layer, f"{name}_l0") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    )
    bound = math.sqrt(6 / (sum(weight_ih.shape) + weight_hh.shape[1]))
    nn.init.uniform_(weight_ih, -bound, bound)
    nn.init.uniform_(weight_hh, -bound, bound)
    nn.init.zeros_(bias_ih)
    nn.init.zeros_(bias_hh)
    if isinstance(layer, nn.LSTM):
        with torch.no_grad():
            bias_ih[layer.hidden_size : 2 * layer.hidden_size] = forget_bias  # the gates are i, f, g, o
    if not isinstance(layer, nn.GRU):
        bias_hh.requires_grad_(False)
