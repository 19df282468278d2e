"""How many parameters the networks have, by the formulas of their papers, and as published."""

from __future__ import annotations

import pytest
from torch import nn

from enrnn import EXPRNN, IRNN, NNRNN, ORNN, SCORNN, OrthogonalRNN, SpectralRNN, VorontsovRNN
from enrnn.layers._one_matrix import OneMatrixRNN


def count(layer: OneMatrixRNN, outputs: int) -> int:
    """With a linear head."""
    return layer.num_free_parameters() + sum(p.numel() for p in nn.Linear(layer.hidden_size, outputs).parameters())


@pytest.mark.parametrize(
    ("layer", "outputs", "published"),
    [
        (SCORNN(2, 170), 1, 15_046),
        (SCORNN(10, 190), 9, 21_764),
        (SCORNN(129, 425), 129, 200_304),
        (EXPRNN(10, 190), 9, 21_764),
        (EXPRNN(10, 190, rebase_every=100), 9, 21_764),
        (ORNN(2, 128, reflectors=16), 1, 2_569),
    ],
)
def test_the_published_counts(layer: OneMatrixRNN, outputs: int, published: int) -> None:
    assert count(layer, outputs) == published


@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize("n", [1, 2, 7, 8])
def test_the_formulas(n: int, m: int) -> None:
    p = 4
    rest = m * n + n + n * p + p
    r = min(3, n)
    assert count(SCORNN(m, n), p) == n * (n - 1) // 2 + rest
    assert count(EXPRNN(m, n), p) == n * (n - 1) // 2 + rest
    assert count(ORNN(m, n, reflectors=r), p) == n * r - r * (r - 1) // 2 + n + rest  # n more: the initial state
    assert count(ORNN(m, n, learn_initial=False), p) == n * (n + 1) // 2 + rest
    assert count(SpectralRNN(m, n, reflectors=r), p) == 2 * (r * n - r * (r - 1) // 2) + n + rest
    assert count(VorontsovRNN(m, n, learn_initial=False), p) == 2 * (n * (n - 1) // 2) + n + rest
    # The paper's formula lets T reach into the 2×2 blocks, one entry in each.
    assert count(NNRNN(m, n), p) == 2 * (n * (n - 1) // 2) + n + rest - n // 2
    assert count(IRNN(m, n), p) == count(OrthogonalRNN(m, n), p) == n * n + rest


def test_layers_and_directions_add_up() -> None:
    one, first = SpectralRNN(5, 5, reflectors=2), SpectralRNN(10, 5, reflectors=2)
    both = SpectralRNN(5, 5, 2, reflectors=2, bidirectional=True)
    assert both.num_free_parameters() == 2 * one.num_free_parameters() + 2 * first.num_free_parameters()
