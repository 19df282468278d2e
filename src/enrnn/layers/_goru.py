"""GORU: a gated unit with an orthogonal matrix (Jing, Gulcehre, Peurifoy, Shen, Tegmark, Soljačić & Bengio, 2017)."""

import math
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .._checks import positive_int
from ..matrices import Givens
from ..nonlinearities import pointwise
from ..recurrence._gated import NAME, fused, gated_recurrence
from ..recurrence._projection import plainly_projected
from ._module import THRESHOLDED, Device, Pointwise
from ._one_matrix import LayerOptions
from ._own_step import OwnStepRNN


class GORU(OwnStepRNN):
    """A gated recurrent unit whose candidate turns the state by an orthogonal `Q`, a product of rotations:

        r = sigmoid(W_r h + U_r x + b_r),   z = sigmoid(W_z h + U_z x + b_z),
        c = modReLU(U_c x + r ⊙ (Q h), b_c),   h' = z ⊙ h + (1 − z) ⊙ c.

    As in the authors' code, `U`, `W_r` and `W_z` start uniform in ±0.01, b_r at 2, b_z uniform in ±√(3/n), b_c at 0.01 and the
    angles of `Q` uniform in ±π. Its modReLU adds 0.001 to |z|; this one does not.

    Arguments:
        nonlinearity: of the candidate: modReLU, or as `ENRNN`.
        capacity: how many layers of rotations `Q` has in the tunable style; None for two. See `Givens`.
        style: "tunable", or "fft", the authors' choice, for a `hidden_size` that is a power of two.
        bias: whether there are b_r, b_z and b_c.
        backend: "auto" or "reference". By "auto" the recurrence is one operator, with a kernel of its own for each step on a GPU,
            and `backend_used` is "gated"; a callable for a nonlinearity runs on the reference path.
        The others: as `ENRNN`.

    Attributes:
        weight_ih_l[k], bias_l[k]: U_r, U_z, U_c and b_r, b_z, b_c of layer k; `_reverse` is appended for the backward direction.
        weight_gates_l[k]: W_r, W_z.
        weight_hh_l[k]: `Q`, formed when read.
    """

    parts = 3

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: Pointwise = "modrelu",
        *,
        capacity: int | None = None,
        style: str = "tunable",
        device: Device = None,
        dtype: torch.dtype | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(input_size, hidden_size, num_layers, nonlinearity, device=device, dtype=dtype, **options)
        if style == "fft" and positive_int("hidden_size", hidden_size) & (hidden_size - 1):
            raise ValueError(f"hidden_size must be a power of two for style='fft', got: {hidden_size}")
        self._layers = 2 if capacity is None and style == "tunable" else capacity, style
        self._build()

    @property
    def backend_used(self) -> str:
        """ "gated", or "reference" where the step is run under autograd."""
        return super().backend_used if self._fused(self._like.device) is None else NAME

    def recurrent_weight(self, layer: int = 0, direction: int = 0) -> Tensor:
        """`Q`, [n, n], differentiable."""
        return self._constrained(f"weight_hh{self._suffix(layer, direction)}")

    def _add_recurrence(self, suffix: str) -> None:
        n = self.hidden_size
        capacity, style = self._layers
        self.register_parameter(f"weight_gates{suffix}", nn.Parameter(self._empty.new_empty(2 * n, n)))
        self._add_constrained(f"weight_hh{suffix}", Givens(capacity, style=style), n)

    def _reset_recurrence(self, suffix: str) -> None:
        nn.init.uniform_(getattr(self, f"weight_gates{suffix}"), -0.01, 0.01)
        self._reset_constrained(f"weight_hh{suffix}")

    def _reset_input(self, suffix: str) -> None:
        nn.init.uniform_(getattr(self, f"weight_ih{suffix}"), -0.01, 0.01)
        if self.bias:
            with torch.no_grad():
                reset, update, candidate = getattr(self, self._bias_name(suffix)).chunk(3)
                bound = math.sqrt(3 / self.hidden_size)
                reset.fill_(2.0)
                update.uniform_(-bound, bound)
                candidate.fill_(0.01)

    def _project(self, suffix: str, x: Tensor, held: torch.dtype) -> tuple[Tensor, Tensor | None]:
        """`U x` and the biases that are added to it: modReLU's is a threshold, which the step has."""
        bias: Tensor | None = getattr(self, self._bias_name(suffix))
        if bias is not None and self.nonlinearity in THRESHOLDED:
            bias = F.pad(bias[: 2 * self.hidden_size], (0, self.hidden_size))
        return plainly_projected(x, getattr(self, f"weight_ih{suffix}"), bias).to(held), None

    def _weights(self, suffix: str) -> tuple[Tensor, ...]:
        weights = getattr(self, f"weight_gates{suffix}"), self._in_use(f"weight_hh{suffix}")
        if self.bias and self.nonlinearity in THRESHOLDED:
            return *weights, getattr(self, self._bias_name(suffix))[2 * self.hidden_size :]
        return weights

    def _run(
        self, suffix: str, formed: Any, inputs: Tensor, bias: Tensor | None, initial: Tensor, lengths: Tensor | None
    ) -> Tensor:
        name = self._fused(inputs.device)
        if name is None:
            return super()._run(suffix, formed, inputs, bias, initial, lengths)
        gates, Q, *threshold = (weight.to(inputs.dtype) for weight in formed)
        return gated_recurrence(inputs, gates, Q, threshold[0] if threshold else None, initial, name, lengths)

    def _fused(self, device: torch.device) -> str | None:
        """The nonlinearity's name if one operator runs the recurrence."""
        return fused(self.backend, device, self.nonlinearity, self.bias and self.nonlinearity in THRESHOLDED)

    def _step(self, x: Tensor, h: Tensor, weights: tuple[Tensor, ...]) -> Tensor:
        gates, Q, *threshold = weights
        n = self.hidden_size
        r, z = torch.sigmoid(x[:, : 2 * n] + h @ gates.mT).chunk(2, dim=-1)
        c = pointwise(self.nonlinearity)(x[:, 2 * n :] + r * (h @ Q.mT), threshold[0] if threshold else None)
        return z * h + (1 - z) * c
