"""Heat maps, powers and pseudospectra against plain loops and matrices whose answers are known."""

from __future__ import annotations

import math

import pytest
import torch

import enrnn
from enrnn.paper._gradients import dependence, lifetimes
from enrnn.paper._pseudospectrum import grid, kreiss_constant, smallest_singular_values
from enrnn.paper._transient import departure, power_norms, spaced_powers


@pytest.mark.parametrize("nonlinearity", ["modrelu", "relu", "tanh"])
@pytest.mark.parametrize("coupling", [True, False])
def test_heat_maps_are_those_of_a_triple_loop(nonlinearity: str, coupling: bool) -> None:
    torch.manual_seed(1)
    T, B, m = 5, 2, 2
    layer = enrnn.ENRNN(
        m, 7, nonlinearity=nonlinearity, short_size=3, coupling=coupling, backend="reference", dtype=torch.float64
    )
    with torch.no_grad():
        layer.weight_ih_l0.normal_()
        layer.bias_l0.uniform_(-0.2, 0.1)
    inputs = torch.randn(T, B, m, dtype=torch.float64)
    long, short = dependence(layer, inputs)
    for b in range(B):
        for tau in range(T):
            for t in range(T):
                x = inputs[:, b : b + 1].clone().requires_grad_()
                h = layer(x)[0][tau, 0]
                rows = [torch.autograd.grad(h[i], x, retain_graph=True)[0][t, 0] for i in range(7)]
                jacobian = torch.stack(rows)
                for got, part in ((long, jacobian[:4]), (short, jacobian[4:])):
                    expected = torch.linalg.matrix_norm(part, 2)
                    torch.testing.assert_close(got[tau, t, b], expected, rtol=1e-9, atol=1e-12)


def test_an_orthogonal_linear_network_never_forgets_and_a_shrinking_one_does() -> None:
    layer = enrnn.ENRNN(1, 5, nonlinearity="identity", bias=False, short_size=2, coupling=False, dtype=torch.float64)
    with torch.no_grad():
        layer.weight_ih_l0.fill_(1.0)
    layer.weight_short_l0 = 0.5 * torch.eye(2, dtype=torch.float64)
    long, short = dependence(layer, torch.zeros(8, 1, 1, dtype=torch.float64))
    for tau in range(8):
        for t in range(tau + 1):
            assert float(long[tau, t, 0]) == pytest.approx(math.sqrt(3), rel=1e-10)
            assert float(short[tau, t, 0]) == pytest.approx(math.sqrt(2) * 0.5 ** (tau - t), rel=1e-10)
    assert lifetimes(long[:, :, 0]) == sum(range(1, 9)) / 8
    assert lifetimes(short[:, :, 0]) == (5 * 4 + 3 + 2 + 1) / 8  # 0.5^4 < 0.1 < 0.5^3


def test_powers_of_a_jordan_block_grow_before_they_decay() -> None:
    a = 0.9
    block = torch.tensor([[a, 1.0], [0.0, a]], dtype=torch.float64)
    norms = power_norms(block, list(range(60)))
    for k in (0, 1, 5, 59):
        exact = torch.tensor([[a**k, k * a ** (k - 1) if k else 0.0], [0.0, a**k]], dtype=torch.float64)
        assert norms[k] == pytest.approx(float(torch.linalg.matrix_norm(exact, 2)), rel=1e-12)
    assert max(norms) > 3
    assert norms[-1] < 1
    assert power_norms(block, [0, 7, 59]) == pytest.approx([norms[0], norms[7], norms[59]], rel=1e-12)
    with pytest.raises(ValueError, match="increase"):
        power_norms(block, [3, 2])


def test_powers_are_spaced_up_to_the_last() -> None:
    assert spaced_powers(5, 10) == [0, 1, 2, 3, 4, 5]
    wide = spaced_powers(100, 720)
    assert wide[:4] == [0, 1, 2, 3]
    assert wide[-1] == 100
    assert len(wide) < 30
    assert sorted(set(wide)) == wide


def test_departure_from_normality() -> None:
    torch.manual_seed(0)
    Q = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64))[0]
    assert departure(Q) < 1e-7
    assert departure(torch.diag(torch.ones(4), 1)) == pytest.approx(1.0)
    assert departure(torch.tensor([[0.0, 0.0], [0.0, 0.0]])) == 0.0


def test_of_a_normal_matrix_it_is_the_distance_to_the_spectrum() -> None:
    torch.manual_seed(2)
    Q = torch.linalg.qr(torch.randn(40, 40, dtype=torch.complex128))[0]
    eigenvalues = torch.randn(40, dtype=torch.complex128) * 0.5
    normal = Q @ torch.diag(eigenvalues) @ Q.conj().T
    points = grid(1.5, 21)[2]
    expected = (points[..., None] - eigenvalues).abs().amin(-1)
    torch.testing.assert_close(smallest_singular_values(normal, points), expected, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("n", [1, 2, 12, 45])
def test_of_any_matrix_it_is_the_smallest_singular_value(n: int) -> None:
    torch.manual_seed(n)
    W = torch.randn(n, n, dtype=torch.float64) / n**0.5 + torch.diag(torch.ones(n - 1, dtype=torch.float64), 1)
    real, imaginary, points = grid(1.3, 9)
    assert points.shape == (len(imaginary), len(real)) == (5, 9)
    direct = torch.linalg.svdvals(points[..., None, None] * torch.eye(n) - W)[..., -1]
    torch.testing.assert_close(smallest_singular_values(W, points), direct, rtol=1e-4, atol=1e-9)


def test_at_an_eigenvalue_it_is_zero() -> None:
    W = torch.diag(torch.tensor([0.5, -0.25, 0.0], dtype=torch.float64))
    found = smallest_singular_values(W, torch.tensor([0.5, 0.0, 1.0], dtype=torch.complex128))
    torch.testing.assert_close(found, torch.tensor([0.0, 0.0, 0.5], dtype=torch.float64), atol=1e-12, rtol=1e-9)


def test_kreiss_bounds_the_growth_from_below() -> None:
    torch.manual_seed(3)
    W = torch.triu(torch.randn(20, 20, dtype=torch.float64), 1) * 0.5
    W.fill_diagonal_(0.8)
    points = grid(2.0, 41)[2]
    kreiss = kreiss_constant(points, smallest_singular_values(W, points))
    growth = max(power_norms(W, list(range(400))))
    assert 1 < kreiss <= growth * (1 + 1e-9)
    rotation = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
    assert kreiss_constant(points, smallest_singular_values(rotation, points)) <= 1 + 1e-9
