"""EURNN: a unitary matrix as layers of rotations (Jing, Shen, Dubček, Peurifoy, Skirlo, LeCun, Tegmark & Soljačić, ICML 2017)."""

from functools import partial
from typing import Any, NamedTuple, Unpack

import torch
from torch import Tensor
from torch.nn.utils import parametrize

from .._precision import state_dtype
from ..matrices import UnitaryGivens
from ..recurrence._rotations import NAME, pays, rotations_recurrence
from ._complex import ComplexRNN, complex_units
from ._module import THRESHOLDED, Device, Pointwise
from ._one_matrix import LayerOptions


class EURNN(ComplexRNN):
    """`W = D F_L ⋯ F_1`, each `F` a layer of rotations of two complex numbers each: see `UnitaryGivens`, and `ComplexRNN` for
    complex units in real numbers.

    Where `hidden_size` is large beside L, the layers are applied to the state one after the other, and `W` is formed only when
    it is read; `backend_used` is then "rotations". Smaller networks, and those with a callable for a nonlinearity, run on `W` as
    all others do.

    Arguments:
        hidden_size: twice the number n of complex units.
        nonlinearity: the modReLU of complex numbers, or "relu", "leaky_relu", "tanh", "identity" on real and imaginary parts.
        capacity: L, the number of layers in the tunable style; None for two, as the authors' code has it. With n, `W` can be any
            unitary matrix.
        style: "tunable" for layers of neighbours, or "fft" for log₂ n layers at the distances of a Fourier transform, for n a
            power of two.
        The others: as `ENRNN`.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: Pointwise = "paired_modrelu",
        *,
        capacity: int | None = None,
        style: str = "tunable",
        device: Device = None,
        dtype: torch.dtype | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        n = complex_units(hidden_size)
        if style == "fft" and n & (n - 1):
            raise ValueError(f"hidden_size must be twice a power of two for style='fft', got: {hidden_size}")
        if capacity is None and style == "tunable":
            capacity = 2
        matrix = partial(UnitaryGivens, capacity, style=style)
        super().__init__(input_size, hidden_size, num_layers, nonlinearity, matrix, False, device=device, dtype=dtype, **options)

    @property
    def backend_used(self) -> str:
        """As for every layer, or "rotations" where `W` is not formed."""
        return super().backend_used if self._rotations("weight_hh_l0") is None else NAME

    def _form(self, suffix: str) -> "Tensor | _Rotations":
        """`W`, or its layers where it is better not formed."""
        name = f"weight_hh{suffix}"
        matrix = self._rotations(name)
        if matrix is None:
            return self._in_use(name)
        angles, phases = (original.to(state_dtype(original.dtype)) for original in self._originals(name))
        return _Rotations(angles, phases, matrix._count(self.complex_units), matrix.style == "fft")

    def _run(
        self, suffix: str, formed: Any, inputs: Tensor, bias: Tensor | None, initial: Tensor, lengths: Tensor | None
    ) -> Tensor:
        if not isinstance(formed, _Rotations):
            return super()._run(suffix, formed, inputs, bias, initial, lengths)
        angles, phases, layers, butterfly = formed
        assert isinstance(self.nonlinearity, str)  # or it would not pay
        return rotations_recurrence(inputs, angles, phases, bias, initial, self.nonlinearity, lengths, layers, butterfly)

    def _rotations(self, name: str) -> UnitaryGivens | None:
        """The family of a recurrent matrix that is better not formed, or None."""
        if callable(self.nonlinearity) or not parametrize.is_parametrized(self, name):
            return None
        matrix, *others = self.parametrizations[name]  # type: ignore[index]
        if others or not isinstance(matrix, UnitaryGivens):
            return None
        n, like, bias = self.complex_units, self._like, self.bias and self.nonlinearity in THRESHOLDED
        return matrix if pays(self.backend, like.device, like.dtype, n, matrix._count(n), self.nonlinearity, bias) else None


class _Rotations(NamedTuple):
    """The layers of a matrix that is not formed: what `rotations_recurrence` takes in its place."""

    angles: Tensor
    phases: Tensor
    layers: int
    butterfly: bool
