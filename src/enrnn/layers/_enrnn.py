"""The Eigenvalue Normalized RNN (Helfrich & Ye, AAAI 2020): the layer, and its cell for one step at a time."""

import torch
from torch import Tensor, nn

from ._baked import bake_cell, bake_layer
from ._base import RecurrentLayer
from ._cell import RecurrentCell
from ._long_short import LongShort
from ._module import Device, Pointwise, unusual

_USUAL: dict[str, object] = {
    "coupling": True,
    "epsilon": 0.0,
    "long": "cayley",
    "short": "normalized",
    "coupling_init": "glorot",
    "solver": "auto",
}


class ENRNN(LongShort, RecurrentLayer):
    """A recurrent layer with a long-term state that keeps and a short-term state that forgets.

    The state `h_t = [h_t^L, h_t^S]` follows equations (1) and (3) of the paper,

        h_t^L = σ(U^L x_t + W_L h_{t−1}^L + W_C h_{t−1}^S, b^L)
        h_t^S = σ(U^S x_t + W_S h_{t−1}^S, b^S)

    with `W_L` orthogonal (scaled Cayley transform), `W_S = T/(ρ(T) + ε)` divided by its own spectral radius from the first
    moment ρ(T) exceeds 1, and `W_C` free. The spectrum of the whole matrix is that of `W_L` (on the unit circle) and of
    `W_S` (in the unit disc). `W_S` is trained by the gradient of Proposition 3.2, corrected for ε > 0: see
    `EigenvalueNormalized`.

    The interface is `torch.nn.RNN`'s, argument by argument, shape by shape.

    Arguments:
        input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype: as `torch.nn.RNN`.
        nonlinearity: "modrelu" (the bias is its threshold), "relu", "leaky_relu" (of slope 0.1 below zero), "tanh",
            "identity", or any pointwise callable.
        short_size: units of the short-term state: an int counts them, a float is a fraction of `hidden_size` (rounded),
            None takes 40 %. 0 gives scoRNN; `hidden_size` a purely short-term network.
        coupling: whether `W_C` is there (3) or not (1).
        negative_ones: how many −1s `W_L`'s scaling matrix has; None takes 30 % of the long-term state, rounded.
        epsilon: ε ≥ 0 in `W_S = T/(ρ(T) + ε)`. The paper uses 0, which makes ρ(W_S) equal to 1 once normalising.
        long: how `W_L` is written: "cayley"; "exponential" (EXPRNN), "householder" (oRNN, as many reflections as units)
            or "givens" (GORU, as many layers of rotations).
        short: how `W_S` is written: "normalized"; or what the paper argues against: "renormalized", where the training loop has
            to divide it after each step (see `Renormalized`), and "spectral_norm", divided by its largest singular value; or
            "plainly_normalized", with a gradient that does not know of the division.
        input_weight: "full", or "identity" for a fixed identity (needs `input_size == hidden_size`).
        coupling_init: "glorot" or "truncated_orthogonal".
        solver: how the spectral radius is found: "dense", "squaring", or "auto" for the faster one at this size.
        backend: how the recurrence is run: "auto", "reference" for the plain specification, "torch", "cpu" or "cuda".

    Attributes:
        weight_ih_l[k], bias_l[k]: `U` and `b` of layer k; `_reverse` is appended for the backward direction.
        weight_long_l[k], weight_short_l[k], weight_coupling_l[k]: `W_L`, `W_S` and `W_C`, formed when read.
        long_size, short_size, negative_ones: the sizes as resolved.

    Example:
        >>> layer = enrnn.ENRNN(2, 160)
        >>> output, h_n = layer(torch.randn(750, 50, 2))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: Pointwise = "modrelu",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        short_size: int | float | None = None,
        coupling: bool = True,
        negative_ones: int | None = None,
        epsilon: float = 0.0,
        long: str = "cayley",
        short: str = "normalized",
        input_weight: str = "full",
        coupling_init: str = "glorot",
        solver: str = "auto",
        backend: str = "auto",
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            nonlinearity,
            bias,
            batch_first,
            dropout,
            bidirectional,
            input_weight,
            backend,
            device,
            dtype,
        )
        self._set_parts(short_size, coupling, negative_ones, epsilon, long, short, coupling_init, solver)
        self._build()

    def recurrent_weight(self, layer: int = 0, direction: int = 0) -> Tensor:
        """The whole matrix of equation (2), `[[W_L, W_C], [0, W_S]]`, [n, n], differentiable."""
        return self._whole(self._suffix(layer, direction))

    def bake(self) -> nn.Module:
        """A plain module with the matrices as they are now, for deployment and ONNX: a `torch.nn.RNN` for ReLU and tanh,
        a `BakedRNN` for every other nonlinearity."""
        return bake_layer(self)

    def extra_repr(self) -> str:
        parts = f"short_size={self.short_size}, negative_ones={self.negative_ones}"
        return ", ".join([super().extra_repr(), parts, *unusual(self, _USUAL)])


class ENRNNCell(LongShort, RecurrentCell):
    """One step of `ENRNN`, with `torch.nn.RNNCell`'s interface: `h' = cell(x, h)`.

    The matrices are formed at every call. For many steps with the same parameters, form them once with
    `torch.nn.utils.parametrize.cached()`, or `bake()` the cell.

    Arguments: as `ENRNN`.

    Example:
        >>> cell = enrnn.ENRNNCell(2, 160)
        >>> h = cell(torch.randn(50, 2))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: Pointwise = "modrelu",
        *,
        short_size: int | float | None = None,
        coupling: bool = True,
        negative_ones: int | None = None,
        epsilon: float = 0.0,
        long: str = "cayley",
        short: str = "normalized",
        input_weight: str = "full",
        coupling_init: str = "glorot",
        solver: str = "auto",
        backend: str = "auto",
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, nonlinearity, bias, input_weight, backend, device, dtype)
        self._set_parts(short_size, coupling, negative_ones, epsilon, long, short, coupling_init, solver)
        self._build()

    def recurrent_weight(self) -> Tensor:
        """The whole matrix of equation (2), `[[W_L, W_C], [0, W_S]]`, [n, n], differentiable."""
        return self._whole("")

    def bake(self) -> nn.Module:
        """A plain module with the matrices as they are now: a `torch.nn.RNNCell` for ReLU and tanh, else a `BakedCell`."""
        return bake_cell(self)

    def extra_repr(self) -> str:
        usual = {"bias": True, "nonlinearity": "modrelu", "input_weight": "full", "backend": "auto"} | _USUAL
        sizes = f"{self.input_size}, {self.hidden_size}, short_size={self.short_size}"
        return ", ".join([sizes, f"negative_ones={self.negative_ones}", *unusual(self, usual)])
