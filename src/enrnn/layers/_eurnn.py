"""EURNN: a unitary matrix as layers of rotations (Jing, Shen, Dubček, Peurifoy, Skirlo, LeCun, Tegmark & Soljačić, ICML 2017)."""

from functools import partial
from typing import Unpack

from ..matrices import UnitaryGivens
from ._complex import ComplexRNN, complex_units
from ._module import Pointwise
from ._one_matrix import LayerOptions


class EURNN(ComplexRNN):
    """`W = D F_L ⋯ F_1`, each `F` a layer of rotations of two complex numbers each: see `UnitaryGivens`, and `ComplexRNN` for
    complex units in real numbers.

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
        **options: Unpack[LayerOptions],
    ) -> None:
        n = complex_units(hidden_size)
        if style == "fft" and n & (n - 1):
            raise ValueError(f"hidden_size must be twice a power of two for style='fft', got: {hidden_size}")
        if capacity is None and style == "tunable":
            capacity = 2
        matrix = partial(UnitaryGivens, capacity, style=style)
        super().__init__(input_size, hidden_size, num_layers, nonlinearity, matrix, False, **options)
