"""cgRNN: a gated network of complex units (Wolter & Yao, NeurIPS 2018)."""

from collections.abc import Callable
from functools import partial
from typing import ClassVar, Unpack

import torch
from torch import Tensor, nn

from .._checks import boolean, positive_int
from ..matrices import Stiefel
from ..matrices._complex import nearest_complex, real_form, unstacked
from ..nonlinearities import paired_modrelu
from ._complex import complex_units
from ._module import Device, Pointwise
from ._one_matrix import LayerOptions
from ._own_step import OwnStepRNN


def hirose(z: Tensor, scale: Tensor) -> Tensor:
    """`tanh(|z|/m²)·z/|z|` of complex numbers, given as n real parts, then n imaginary parts."""
    real, imaginary = z.chunk(2, dim=-1)
    square = real * real + imaginary * imaginary
    zero = square == 0
    size = torch.where(zero, 1, square).sqrt()  # where z/m² stands for it, so that the derivative there is right too
    factor = torch.where(zero, scale**-2, torch.tanh(size / scale**2) / size)
    return z * torch.cat([factor, factor], dim=-1)


class CGRNN(OwnStepRNN):
    """A gated recurrent unit with complex states:

        g_r = f_g(W_r h + V_r x + b_r),   g_z = f_g(W_z h + V_z x + b_z),
        z̃ = W(g_r ⊙ h) + V x + b,   h' = g_z ⊙ f_a(z̃) + (1 − g_z) ⊙ h.

    The gates are real: `f_g(z) = sigmoid(α Re z + (1 − α) Im z)`, `α = sigmoid(a)` with an `a` of its own for each gate. Complex
    numbers are written as in `ComplexRNN`: the state is `[Re h; Im h]`, with `hidden_size` numbers for half as many units, and a
    linear layer on the output is the paper's output layer.

    A unitary `W` stays so only in a training loop that calls `manifold_update`, see `Stiefel`; `W_r` and `W_z` are free. Matrices
    start as Glorot has it for `[Re; Im]`, a unitary `W` as that of the full-capacity uRNN.

    Arguments:
        hidden_size: twice the number of complex units.
        nonlinearity: `f_a`: "modrelu", with one threshold for all units; "hirose", `tanh(|z|/m²)·z/|z|` with one m; or any
            callable on the real and imaginary parts.
        unitary: whether `W` is unitary, or free.
        polish_every: after how many steps rounding is taken out of a unitary `W`; None: 100.
        bias: whether there are `b_r`, `b_z` and `b`; the number of `f_a` is there anyhow.
        The others: as `ENRNN`. It runs on the reference path.

    Attributes:
        weight_ih_l[k], bias_l[k]: V_r, V_z, V and b_r, b_z, b of layer k, each as `[Re; Im]`.
        weight_hh_l[k]: `W`: its real form, formed when read; `[Re W; Im W]` if it is free.
        weight_gates_l[k]: `[Re; Im]` of `W_r`, then of `W_z`.
        mixing_l[k]: `a` of the two gates.
        activation_l[k]: the threshold of modReLU, or Hirose's m.
    """

    nonlinearities: ClassVar[list[str]] = ["modrelu", "hirose"]
    parts = 3

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: Pointwise = "modrelu",
        *,
        unitary: bool = True,
        polish_every: int | None = None,
        device: Device = None,
        dtype: torch.dtype | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        complex_units(hidden_size)
        super().__init__(input_size, hidden_size, num_layers, nonlinearity, device=device, dtype=dtype, **options)
        self.unitary = boolean("unitary", unitary)
        if not self.unitary and polish_every is not None:
            raise ValueError(f"polish_every has no effect on unitary=False; leave it out, got: {polish_every}")
        every = 100 if polish_every is None else positive_int("polish_every", polish_every)
        self._new_matrix = partial(Stiefel, polish_every=every)
        self._build()

    @property
    def complex_units(self) -> int:
        """n, half of `hidden_size`."""
        return self.hidden_size // 2

    def recurrent_weight(self, layer: int = 0, direction: int = 0) -> Tensor:
        """`W` of the candidate, as its real form [2n, 2n], differentiable."""
        return self._candidate(self._suffix(layer, direction), self._constrained)

    def complex_recurrent_weight(self, layer: int = 0, direction: int = 0) -> Tensor:
        """`W` of the candidate, [n, n], complex, differentiable."""
        return unstacked(nearest_complex(self.recurrent_weight(layer, direction)))

    def _candidate(self, suffix: str, read: Callable[[str], Tensor]) -> Tensor:
        if self.unitary:
            return read(f"weight_hh{suffix}")
        free: Tensor = getattr(self, f"weight_hh{suffix}")
        return real_form(free)

    def _add_recurrence(self, suffix: str) -> None:
        size, n = self.hidden_size, self.complex_units
        if self.unitary:
            self._add_constrained(f"weight_hh{suffix}", self._new_matrix(), size)
        else:
            self.register_parameter(f"weight_hh{suffix}", nn.Parameter(self._empty.new_empty(size, n)))
        self.register_parameter(f"weight_gates{suffix}", nn.Parameter(self._empty.new_empty(2 * size, n)))
        self.register_parameter(f"mixing{suffix}", nn.Parameter(self._empty.new_empty(2)))
        single = nn.Parameter(self._empty.new_empty(1)) if isinstance(self.nonlinearity, str) else None
        self.register_parameter(f"activation{suffix}", single)

    def _reset_recurrence(self, suffix: str) -> None:
        with torch.no_grad():
            if self.unitary:
                self._reset_constrained(f"weight_hh{suffix}")
            else:
                nn.init.xavier_uniform_(getattr(self, f"weight_hh{suffix}"))
            for gate in getattr(self, f"weight_gates{suffix}").chunk(2):
                nn.init.xavier_uniform_(gate)
            getattr(self, f"mixing{suffix}").zero_()
            if self.nonlinearity == "modrelu":
                getattr(self, f"activation{suffix}").uniform_(-0.01, 0.01)
            elif self.nonlinearity == "hirose":
                getattr(self, f"activation{suffix}").uniform_(0.9, 1.1)

    def _reset_input(self, suffix: str) -> None:
        """`b_r` and `b_z` start at 4 + 4i beside a unitary `W`, where both gates are then open, else at zero."""
        with torch.no_grad():
            for part in getattr(self, f"weight_ih{suffix}").chunk(self.parts):
                nn.init.xavier_uniform_(part)
            if self.bias:
                bias = getattr(self, self._bias_name(suffix)).zero_()
                bias[: 2 * self.hidden_size] = 4.0 if self.unitary else 0.0

    def _weights(self, suffix: str) -> tuple[Tensor, ...]:
        reset, update = getattr(self, f"weight_gates{suffix}").chunk(2)
        gates = torch.cat([real_form(reset), real_form(update)])
        single: Tensor | None = getattr(self, f"activation{suffix}")
        weights = gates, self._candidate(suffix, self._in_use), torch.sigmoid(getattr(self, f"mixing{suffix}"))
        return weights if single is None else (*weights, single)

    def _step(self, x: Tensor, h: Tensor, weights: tuple[Tensor, ...]) -> Tensor:
        gates, candidate, alpha, *single = weights
        rows = gates.shape[0]
        z = (x[:, :rows] + h @ gates.mT).reshape(h.shape[0], 2, 2, rows // 4)  # [B, gate, Re and Im, n]
        alpha = alpha.unsqueeze(-1)
        gate = torch.sigmoid(alpha * z[:, :, 0] + (1 - alpha) * z[:, :, 1])
        reset, update = torch.cat([gate, gate], dim=-1).unbind(1)
        new = self._activation(x[:, rows:] + (reset * h) @ candidate.mT, *single)
        return update * new + (1 - update) * h

    def _activation(self, z: Tensor, *single: Tensor) -> Tensor:
        if callable(self.nonlinearity):
            return self.nonlinearity(z)
        return paired_modrelu(z, *single) if self.nonlinearity == "modrelu" else hirose(z, *single)
