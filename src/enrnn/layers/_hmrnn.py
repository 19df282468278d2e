"""HM-RNN: a stack of LSTMs that finds the boundaries of segments by itself (Chung, Ahn & Bengio, ICLR 2017)."""

import math
from functools import partial
from typing import NamedTuple, overload

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence

from .._checks import InputError, InputTypeError, boolean, floating_dtype, non_negative, one_of, positive_int
from .._precision import full_precision, state_dtype
from ._layer_norm_lstm import normalize
from ._module import Device
from ._sequence import SequenceLayer, State

OUTPUTS = ("gated", "top")

EPS = 1e-3
"""Under the root of layer normalisation, as in `LayerNormLSTMCell`."""


class HMRNN(SequenceLayer):
    """The hierarchical multiscale LSTM. Layer ℓ = 1 … L has a state `h, c` and a boundary `z ∈ {0, 1}`; with `z⁰ = 1`, `h⁰ = x`,

        f, i, o, g, z̃ = U h_{t−1}^ℓ + z_{t−1}^ℓ U' h_{t−1}^{ℓ+1} + z_t^{ℓ−1} W h_t^{ℓ−1} + b          (sigmoid, tanh for g)

        FLUSH    z_{t−1}^ℓ = 1:                     c_t = i ⊙ g              h_t = o ⊙ tanh(c_t)
        UPDATE   z_{t−1}^ℓ = 0, z_t^{ℓ−1} = 1:      c_t = f ⊙ c_{t−1} + i ⊙ g    h_t = o ⊙ tanh(c_t)
        COPY     both 0:                            c_t = c_{t−1}            h_t = h_{t−1}

    The boundary is `z_t^ℓ = 1[hardsigm(a·z̃) > ½]`, hardsigm(v) = clip((v + 1)/2, 0, 1). The top layer has none, nor U'.

    **Gradient.** The step is taken to have the derivative one ("straight through"), so z has that of the hard sigmoid. The three
    operations are differentiated as what is linear in either boundary and takes their values,

        z_{t−1}^ℓ FLUSH + (1 − z_{t−1}^ℓ)(z_t^{ℓ−1} UPDATE + (1 − z_t^{ℓ−1}) COPY).

    **Slope.** The hard sigmoid is steepened during training: call `after_epoch()` after each epoch, which counts it and sets
    `a = min(max_slope, 1 + slope_rate·epochs)`. Both are in the state dict.

    **Output.** "gated", as in the paper, weighs the layers: `h^e = relu(Σ_ℓ g^ℓ W_ℓ^e h^ℓ)`, `g^ℓ = sigmoid(w^ℓ·[h¹; …; h^L])`.
    "top" is h^L, as in a stacked `torch.nn.LSTM`.

    **Layer normalisation.** As in `LayerNormLSTMCell`: the sums of f, i, o and g, each by itself, and c before its tanh; z̃ is a
    single number and stays as it is. (The places are our choice.)

    Weights start as `torch.nn.LSTM`'s, biases at zero.

    Arguments:
        input_size, hidden_size, bias, batch_first, device, dtype: as `torch.nn.LSTM`.
        num_layers: L; the paper has 3. One layer is an LSTM.
        layer_norm: whether to normalise.
        output: "gated" or "top".
        slope_rate, max_slope: see above.

    Attributes:
        weight_hh_l[k], weight_top_l[k], weight_ih_l[k], bias_l[k]: `U`, `U'`, `W` and `b` of layer k; rows f, i, o, g, z̃.
        weight_gate, weight_output: the w^ℓ and W_ℓ^e of "gated".
        slope, epochs: `a`, and how many epochs have been counted.
        boundaries: the z of the last call's steps, shaped as its input with L − 1 features; None before. Of a packed sequence,
            [T, B, L − 1], zero after the end.

    The state that `forward` takes and returns is `(h, c, z)`, [L, B, n], [L, B, n] and [L, B, 1].

    Example:
        >>> layer = enrnn.HMRNN(128, 512, layer_norm=True)
        >>> output, (h, c, z) = layer(torch.randn(100, 64, 128))
        >>> layer.boundaries.mean(dim=(0, 1))  # how often each layer's segments end
    """

    batch_dim = 1
    slope: Tensor
    epochs: Tensor
    weight_ih_l0: Tensor

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 3,
        bias: bool = True,
        batch_first: bool = False,
        *,
        layer_norm: bool = False,
        output: str = "gated",
        slope_rate: float = 0.04,
        max_slope: float = 5.0,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        floating_dtype("dtype", dtype)
        self.input_size = positive_int("input_size", input_size)
        self.hidden_size = positive_int("hidden_size", hidden_size)
        self.num_layers = positive_int("num_layers", num_layers)
        self.bias = boolean("bias", bias)
        self.batch_first = boolean("batch_first", batch_first)
        self.layer_norm = boolean("layer_norm", layer_norm)
        self.output = one_of("output", output, OUTPUTS)
        self.slope_rate = non_negative("slope_rate", slope_rate)
        self.max_slope = non_negative("max_slope", max_slope)
        if self.max_slope < 1:
            raise ValueError(f"max_slope must not be below the slope at the start, 1, got: {max_slope}")
        self.boundaries: Tensor | None = None
        empty = torch.empty(0, device=device, dtype=dtype)
        for layer in range(self.num_layers):
            for name, shape in self._shapes(layer).items():
                self.register_parameter(f"{name}_l{layer}", nn.Parameter(empty.new_empty(shape)))
        if self.output == "gated":
            width = self.num_layers * self.hidden_size
            self.weight_gate = nn.Parameter(empty.new_empty(self.num_layers, width))
            self.weight_output = nn.Parameter(empty.new_empty(self.hidden_size, width))
        self.register_buffer("slope", torch.ones((), device=device, dtype=state_dtype(empty.dtype)))
        self.register_buffer("epochs", torch.zeros((), device=device, dtype=torch.int64))
        self.reset_parameters()

    def _shapes(self, layer: int) -> dict[str, tuple[int, ...]]:
        n, top = self.hidden_size, layer == self.num_layers - 1
        rows = 4 * n if top else 4 * n + 1
        shapes: dict[str, tuple[int, ...]] = {"weight_hh": (rows, n)}
        if not top:
            shapes["weight_top"] = (rows, n)
        shapes["weight_ih"] = (rows, n if layer else self.input_size)
        if self.bias:
            shapes["bias"] = (rows,)
        if self.layer_norm:
            shapes |= {"gate_gain": (4 * n,), "gate_shift": (4 * n,), "cell_gain": (n,), "cell_shift": (n,)}
        return shapes

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the parameters anew, as at construction, and forget the epochs."""
        bound = 1 / math.sqrt(self.hidden_size)
        for name, parameter in self.named_parameters():
            if name.startswith("weight"):
                parameter.uniform_(-bound, bound)
            else:
                parameter.fill_(1.0 if "gain" in name else 0.0)
        self.slope.fill_(1.0)
        self.epochs.zero_()

    @torch.no_grad()
    def after_epoch(self) -> None:
        """Count an epoch, and set the slope for the next: `a = min(max_slope, 1 + slope_rate·epochs)`."""
        self.epochs.add_(1)
        self.slope.copy_((1 + self.slope_rate * self.epochs).clamp(max=self.max_slope))

    @overload
    def forward(self, input: Tensor, hx: State | None = None) -> tuple[Tensor, State]: ...
    @overload
    def forward(self, input: PackedSequence, hx: State | None = None) -> tuple[PackedSequence, State]: ...
    def forward(self, input: Tensor | PackedSequence, hx: State | None = None) -> tuple[Tensor | PackedSequence, State]:
        """As `torch.nn.LSTM`, with the state `(h, c, z)`; keeps `boundaries`."""
        found: list[Tensor] = []
        output, final = self._over(input, hx, partial(self._run, found))
        (boundaries,) = found
        if isinstance(input, PackedSequence):
            if input.unsorted_indices is not None:
                boundaries = boundaries.index_select(1, input.unsorted_indices)
        elif input.dim() == 2:
            boundaries = boundaries.squeeze(1)
        elif self.batch_first:
            boundaries = boundaries.transpose(0, 1)
        self.boundaries = boundaries
        return output, final

    @property
    def _like(self) -> Tensor:
        parameter = next(self.parameters(), None)
        return self.weight_ih_l0 if parameter is None else parameter

    def _run(self, found: list[Tensor], x: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State]:
        """As `_forward`; the boundaries, [T, B, L − 1], are appended to `found`."""
        stored = self._like.dtype
        held = state_dtype(stored)
        inputs = F.linear(x, self.weight_ih_l0, self._weight("bias", 0)).to(held)
        if state is None:
            zero = inputs.new_zeros(self.num_layers, x.size(1), self.hidden_size)
            state = (zero, zero, zero[..., :1])
        now = _Now(*(list(part.to(held).unbind()) for part in state if isinstance(part, Tensor)))
        states, boundaries = [], []
        with full_precision(x):
            layers = [self._layer(index, held) for index in range(self.num_layers)]
            slope = self.slope.to(held)
            for t, projected in enumerate(inputs):
                step = _step(layers, slope, projected, now)
                ends = torch.cat(step.z[:-1], dim=-1) if self.num_layers > 1 else projected[:, :0]
                if lengths is not None:
                    runs = (t < lengths).unsqueeze(-1)
                    pairs = (zip(*parts, strict=True) for parts in zip(step, now, strict=True))
                    step = _Now(*([torch.where(runs, *pair) for pair in layers_] for layers_ in pairs))
                    ends = torch.where(runs, ends, 0)
                now = step
                states.append(torch.stack(now.h, dim=1) if self.output == "gated" else now.h[-1])
                boundaries.append(ends)
        found.append(torch.stack(boundaries).detach().to(stored))
        final = tuple(torch.stack(part).to(stored) for part in now)
        return self._put_out(torch.stack(states).to(stored)), final

    def _put_out(self, states: Tensor) -> Tensor:
        """[T, B, n] from h^L, [T, B, n], or from all h^ℓ, [T, B, L, n]."""
        if self.output == "top":
            return states
        gates = torch.sigmoid(F.linear(states.flatten(2), self.weight_gate))
        return torch.relu(F.linear((gates.unsqueeze(-1) * states).flatten(2), self.weight_output))

    def _weight(self, name: str, layer: int) -> Tensor | None:
        found: Tensor | None = getattr(self, f"{name}_l{layer}", None)
        return found

    def _layer(self, index: int, held: torch.dtype) -> "_Layer":
        names = ["weight_hh", "weight_top", "weight_ih"] if index else ["weight_hh", "weight_top"]
        weights = [weight for weight in (self._weight(name, index) for name in names) if weight is not None]
        norms = [self._weight(name, index) for name in ("gate_gain", "gate_shift", "cell_gain", "cell_shift")]
        bias = self._weight("bias", index) if index else None  # the first layer's is in the inputs
        return _Layer(
            torch.cat(weights, dim=1).to(held),
            None if bias is None else bias.to(held),
            [norm.to(held) for norm in norms if norm is not None],
        )

    def _check_state(self, state: State, batch: int) -> None:
        if not isinstance(state, tuple | list) or len(state) != 3:
            raise InputTypeError("hx must be the three tensors (h, c, z), as forward returns them")
        for name, part, size in zip("hcz", state, (self.hidden_size, self.hidden_size, 1), strict=True):
            if not isinstance(part, Tensor):
                raise InputTypeError(f"{name} of hx must be a Tensor, got: {type(part).__name__}")
            if tuple(part.shape) != (self.num_layers, batch, size):
                raise InputError(f"Expected {name} of hx to have shape {[self.num_layers, batch, size]}, got {list(part.shape)}")

    def extra_repr(self) -> str:
        usual = {"bias": True, "batch_first": False, "layer_norm": False, "output": "gated"}
        unusual = [f"{name}={getattr(self, name)!r}" for name, value in usual.items() if getattr(self, name) != value]
        return ", ".join([f"{self.input_size}, {self.hidden_size}, num_layers={self.num_layers}", *unusual])


class _Layer(NamedTuple):
    weight: Tensor
    """`[U, U', W]`; `[U, U']` in the first layer, whose `W x` is known beforehand; `[U, W]` in the top layer."""
    bias: Tensor | None
    norms: list[Tensor]
    """Gain and shift of the gates and of the cell, if layers are normalised."""


class _Now(NamedTuple):
    """The state of every layer."""

    h: list[Tensor]
    c: list[Tensor]
    z: list[Tensor]


def _step(layers: list[_Layer], slope: Tensor, projected: Tensor, before: _Now) -> _Now:
    now = _Now([], [], [])
    top = len(layers) - 1
    for index, (weight, bias, norms) in enumerate(layers):
        h, c, n = before.h[index], before.c[index], before.h[index].size(-1)
        ended = before.z[index] if index < top else None  # z_{t−1}^ℓ; None: 0
        below = now.z[-1] if index else None  # z_t^{ℓ−1}; None: 1
        heard = [h]
        if ended is not None:
            heard.append(ended * before.h[index + 1])
        if below is not None:
            heard.append(below * now.h[-1])
        sums = F.linear(torch.cat(heard, dim=-1), weight, bias)
        sums = sums if index else sums + projected
        gates = normalize(sums[:, : 4 * n], 4, norms[0], norms[1], EPS) if norms else sums
        f, i, o = torch.sigmoid(gates[:, : 3 * n]).chunk(3, dim=-1)
        flushed = i * torch.tanh(gates[:, 3 * n : 4 * n])
        c = _select(ended, below, flushed, f * c + flushed, c)
        new_h = o * torch.tanh(normalize(c, 1, norms[2], norms[3], EPS) if norms else c)
        now.h.append(_select(ended, below, new_h, new_h, h))
        now.c.append(c)
        now.z.append(_straight_through(((slope * sums[:, 4 * n :] + 1) / 2).clamp(0, 1)) if index < top else before.z[index])
    return now


def _select(ended: Tensor | None, below: Tensor | None, flush: Tensor, update: Tensor, copy: Tensor) -> Tensor:
    """`ended·flush + (1 − ended)(below·update + (1 − below)·copy)`, which `lerp` computes without rounding at 0 and 1."""
    going_on = update if below is None else torch.lerp(copy, update, below)
    return going_on if ended is None else torch.lerp(going_on, flush, ended)


def _straight_through(soft: Tensor) -> Tensor:
    """`1[soft > ½]`, exactly, with the derivative of `soft`."""
    return (soft > 0.5).to(soft.dtype) + (soft - soft.detach())
