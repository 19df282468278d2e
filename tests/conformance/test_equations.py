"""ENRNN with modReLU against equations (1) and (3), written out with NumPy, unit by unit and step by step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from enrnn import ENRNN
from enrnn.functional import long_short_recurrence, modrelu
from tests._record import Recorder
from tests.conformance._layers import rounding, scatter_


def modrelu_by_hand(z: np.ndarray, b: np.ndarray | None) -> np.ndarray:
    """§4's z/|z|·ReLU(|z| + b), unit by unit, with 0/|0| read as 0."""
    h = np.zeros_like(z)
    for i, value in enumerate(z):
        threshold = 0.0 if b is None else b[i]
        if value > 0.0:
            h[i] = max(value + threshold, 0.0)
        elif value < 0.0:
            h[i] = -max(-value + threshold, 0.0)
    return h


def states_by_hand(
    x: np.ndarray,  # [T, m], one sequence
    U: np.ndarray,
    W_L: np.ndarray,
    W_C: np.ndarray,
    W_S: np.ndarray,
    b: np.ndarray | None,
    h: np.ndarray,
) -> np.ndarray:
    """Equation (3), which is equation (1) for `W_C = 0`: the states [T, q + s], the long part first."""
    q = W_L.shape[0]
    b_L, b_S = (None, None) if b is None else (b[:q], b[q:])
    h_L, h_S = h[:q], h[q:]
    states = []
    for x_t in x:
        # Both from the states of the step before: h_L must not see the new h_S.
        h_L, h_S = (
            modrelu_by_hand(U[:q] @ x_t + W_L @ h_L + W_C @ h_S, b_L),
            modrelu_by_hand(U[q:] @ x_t + W_S @ h_S, b_S),
        )
        states.append(np.concatenate([h_L, h_S]))
    return np.array(states)


@given(
    inputs=st.integers(1, 4),
    long_size=st.integers(0, 5),
    short_size=st.integers(0, 5),
    coupling=st.booleans(),
    bias=st.booleans(),
    steps=st.integers(1, 8),
    batch=st.integers(1, 3),
    radius=st.sampled_from([0.7, 1.6]),
    seed=st.integers(0, 2**31),
)
def test_a_layer_follows_equations_1_and_3(
    record: Recorder,
    inputs: int,
    long_size: int,
    short_size: int,
    coupling: bool,
    bias: bool,
    steps: int,
    batch: int,
    radius: float,
    seed: int,
) -> None:
    size = long_size + short_size or 1
    layer = ENRNN(inputs, size, bias=bias, short_size=short_size, coupling=coupling, dtype=torch.float64)
    scatter_(layer, seed, radius)
    generator = torch.Generator().manual_seed(seed + 1)
    x = torch.randn(steps, batch, inputs, dtype=torch.float64, generator=generator)
    hx = torch.randn(1, batch, size, dtype=torch.float64, generator=generator)

    output, final = layer(x, hx)

    q, s = layer.long_size, layer.short_size
    W_L = layer.weight_long_l0.detach().numpy() if q else np.zeros((0, 0))
    W_S = layer.weight_short_l0.detach().numpy() if s else np.zeros((0, 0))
    W_C = layer.weight_coupling_l0.detach().numpy() if q and s and coupling else np.zeros((q, s))
    U = layer.weight_ih_l0.detach().numpy()
    b = layer.bias_l0.detach().numpy() if bias else None
    expected = np.stack([states_by_hand(x[:, i].numpy(), U, W_L, W_C, W_S, b, hx[0, i].numpy()) for i in range(batch)], axis=1)
    error = np.abs(output.detach().numpy() - expected).max() / max(1.0, np.abs(expected).max())
    record(cases=1, worst_relative_error=error)
    assert error <= rounding(steps, size + inputs)
    assert torch.equal(final[0], output[-1])


@pytest.mark.parametrize("bias", [-0.5, 0.0, 0.5])
def test_modrelu_of_zero_is_zero_whatever_the_bias(bias: float) -> None:
    zeros = torch.tensor([0.0, -0.0], dtype=torch.float64)
    assert torch.equal(modrelu(zeros, torch.full((2,), bias, dtype=torch.float64)), torch.zeros(2, dtype=torch.float64))


def test_modrelu_keeps_the_sign_and_shifts_the_modulus() -> None:
    z = torch.tensor([-3.0, -1.0, 0.5, 3.0])
    assert modrelu(z, torch.tensor(-1.0)).tolist() == [-2.0, 0.0, 0.0, 2.0]
    assert modrelu(z, torch.tensor(1.0)).tolist() == [-4.0, -2.0, 1.5, 4.0]
    assert torch.equal(modrelu(z), z)


def test_nothing_comes_of_nothing_even_with_a_positive_bias() -> None:
    """sign(0) = 0: from the zero state, zero inputs leave every unit at zero, which a bias added to z would not."""
    layer = ENRNN(2, 6, dtype=torch.float64)
    with torch.no_grad():
        layer.bias_l0.fill_(0.25)
    output, final = layer(torch.zeros(5, 3, 2, dtype=torch.float64))
    assert not output.any()
    assert not final.any()


def test_the_long_part_stands_first_and_is_fed_by_the_short_part_one_step_later() -> None:
    """One unit each: h_S is hit at the first step; h_L hears of it at the second, through W_C, and never the other way."""
    one = torch.ones(1, 1, dtype=torch.float64)
    inputs = torch.zeros(3, 1, 2, dtype=torch.float64)
    inputs[0, 0, 1] = 1.0
    none_yet = torch.zeros(1, 2, dtype=torch.float64)
    states = long_short_recurrence(inputs, one, 10 * one, 0.5 * one, None, none_yet)
    assert states[:, 0].tolist() == [[0.0, 1.0], [10.0, 0.5], [15.0, 0.25]]
    inputs = inputs.flip(-1)
    states = long_short_recurrence(inputs, one, 10 * one, 0.5 * one, None, none_yet)
    assert states[:, 0].tolist() == [[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]
