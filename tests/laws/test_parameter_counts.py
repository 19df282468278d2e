"""The sizes of the paper's networks, and how many parameters they have together with their heads."""

from __future__ import annotations

import pytest
from torch import nn

from enrnn import ENRNN, ENRNNCell


def count(*modules: nn.Module) -> int:
    return sum(
        module.num_free_parameters() if isinstance(module, ENRNN) else sum(p.numel() for p in module.parameters())
        for module in modules
    )


def test_adding() -> None:
    assert count(ENRNN(2, 160), nn.Linear(160, 1)) == 15_441


def test_copying() -> None:
    layer = ENRNN(10, 192, short_size=20, negative_ones=52)
    assert (layer.long_size, layer.short_size) == (172, 20)
    assert count(layer, nn.Linear(192, 9)) == 22_395


def test_speech() -> None:
    layer = ENRNN(129, 468, short_size=94, negative_ones=374, coupling=False)
    assert layer.long_size == 374
    assert count(layer, nn.Linear(468, 129)) == 199_928


def test_characters() -> None:
    """The paper says about 1016k; that is its LSTM's count (zoo.md, §2.16)."""
    layer = ENRNN(1030, 1030, nonlinearity="relu", short_size=720, negative_ones=186, input_weight="identity")
    assert count(nn.Embedding(50, 1030), layer, nn.Linear(1030, 50)) == 893_575


@pytest.mark.parametrize(("q", "s"), [(1, 0), (0, 1), (5, 0), (0, 5), (4, 3)])
@pytest.mark.parametrize("coupling", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("num_layers", "directions"), [(1, 1), (1, 2), (3, 1), (2, 2)])
def test_the_count_is_q_choose_two_and_the_rest(
    q: int, s: int, coupling: bool, bias: bool, num_layers: int, directions: int
) -> None:
    n, m = q + s, 3
    layer = ENRNN(m, n, num_layers, bias=bias, bidirectional=directions == 2, short_size=s, coupling=coupling)
    recurrent = q * (q - 1) // 2 + s * s + (q * s if coupling else 0)
    inputs = m + (num_layers - 1) * n * directions
    expected = directions * (num_layers * (recurrent + (n if bias else 0)) + inputs * n)
    assert layer.num_free_parameters() == expected
    # Stored, A is a square matrix.
    stored = sum(p.numel() for p in layer.parameters())
    assert stored - expected == directions * num_layers * q * (q + 1) // 2


def test_a_cell_counts_as_a_layer() -> None:
    assert ENRNNCell(2, 160).num_free_parameters() == ENRNN(2, 160).num_free_parameters()


def test_the_defaults_are_those_of_the_adding_problem() -> None:
    layer = ENRNN(2, 160)
    assert (layer.long_size, layer.short_size, layer.negative_ones) == (96, 64, 29)
    assert layer.coupling
    assert layer.epsilon == 0
    assert layer.nonlinearity == "modrelu"
    diagonal = layer.weight_long_l0.new_zeros(96, 96)
    layer.parametrizations["weight_long_l0"].original.data.copy_(diagonal)
    assert layer.weight_long_l0.diagonal().tolist() == [1.0] * 67 + [-1.0] * 29


def test_a_fraction_or_a_number_of_short_units() -> None:
    assert ENRNN(2, 10, short_size=0.3).short_size == 3
    assert ENRNN(2, 10, short_size=3).short_size == 3
    assert ENRNN(2, 10, short_size=1.0).long_size == 0
    assert ENRNN(2, 10, short_size=1).long_size == 9
