"""Theorem 3.1: with ReLU and ‖W_S‖₂ < 1, what h_S and x were at time t fades at least as fast as ‖W_S‖₂^τ."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import given
from hypothesis.strategies import booleans, floats, integers
from torch import Tensor

from enrnn import ENRNN
from tests._record import Recorder
from tests.laws._training import exact, original

EPS = torch.finfo(torch.float64).eps


@dataclass(frozen=True)
class Fading:
    """Norms of ∂h^S_{t+τ}/∂h^S_t and ∂h^S_{t+τ}/∂x_t, with the theorem's bounds."""

    by_state: float
    state_bound: float
    by_input: float
    input_bound: float
    radius_bound: float
    """ρ(W_S)^τ, which is no bound at all."""


def fading(layer: ENRNN, t: int, tau: int, seed: int) -> Fading:
    """Run the layer to time t, then differentiate the τ steps after it, exactly and at once: in a batch of s copies of the
    sequence, copy i gives row i of the Jacobian."""
    q, s = layer.long_size, layer.short_size
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(t + tau, 1, layer.input_size, dtype=torch.float64, generator=generator).repeat(1, s, 1)
    h = torch.randn(1, 1, q + s, dtype=torch.float64, generator=generator).repeat(1, s, 1)

    def rows(of: Tensor, state: Tensor) -> Tensor:
        (gradient,) = torch.autograd.grad(state[0, :, q:].diagonal().sum(), of)
        return gradient

    if t > 1:
        _, h = layer(x[: t - 1], h)
    present = x[t - 1 : t].clone().requires_grad_()
    _, now = layer(present, h.detach())
    _, later = layer(x[t:], now) if tau else (None, now)
    by_input = rows(present, later)[0]
    now = now.detach().requires_grad_()
    _, later = layer(x[t:], now)
    by_state = rows(now, later)[0]
    # h_S never hears from h_L.
    assert not by_state[:, :q].any()

    W, U = exact(layer.weight_short_l0), exact(layer.weight_ih_l0)[q:]
    norm = np.linalg.norm(W, 2)
    assert norm < 1
    return Fading(
        float(torch.linalg.matrix_norm(by_state[:, q:], 2)),
        norm**tau,
        float(torch.linalg.matrix_norm(by_input, 2)),
        norm**tau * np.linalg.norm(U, 2),
        np.abs(np.linalg.eigvals(W)).max() ** tau,
    )


def relu_layer(seed: int, q: int, s: int, inputs: int, coupling: bool = True) -> ENRNN:
    torch.manual_seed(seed)
    layer = ENRNN(inputs, q + s, nonlinearity="relu", short_size=s, coupling=coupling, backend="reference", dtype=torch.float64)
    with torch.no_grad():
        layer.weight_ih_l0.normal_()
        layer.bias_l0.normal_()
    return layer


def rounding(s: int, tau: int) -> float:
    """Relative: τ + 1 products of s×s matrices, and a norm."""
    return 4 * s * (tau + 2) * EPS


@given(
    seed=integers(0, 2**32 - 1),
    q=integers(0, 5),
    s=integers(1, 8),
    inputs=integers(1, 4),
    t=integers(1, 4),
    tau=integers(1, 8),
    norm=floats(0.05, 0.999),
    coupling=booleans(),
)
def test_both_bounds_hold(
    record: Recorder, seed: int, q: int, s: int, inputs: int, t: int, tau: int, norm: float, coupling: bool
) -> None:
    layer = relu_layer(seed, q, s, inputs, coupling)
    T = original(layer, "weight_short_l0")
    with torch.no_grad():
        T.normal_()
        T.mul_(norm / torch.linalg.matrix_norm(T, 2))
    found = fading(layer, t, tau, seed)
    # ρ ≤ ‖·‖₂ < 1: no normalisation.
    assert not layer.normalizing
    assert found.by_state <= found.state_bound * (1 + rounding(s, tau))
    assert found.by_input <= found.input_bound * (1 + rounding(s, tau))
    record(
        cases=1,
        worst_share_of_state_bound=found.by_state / found.state_bound,
        worst_share_of_input_bound=found.by_input / found.input_bound,
    )


def all_active(s: int) -> float:
    """A norm c of W_S for which a bias of 1000, far above any input here, keeps every unit active: |W h| ≤ c‖h‖ and
    ‖h‖ < (1000 √s + …)/(1 − c), so that it takes c√s/(1 − c) < 1."""
    return 0.9 / (1 + s**0.5)


def test_the_bounds_are_attained(record: Recorder, full: bool) -> None:
    """W_S = c·Q with Q orthogonal and every unit active: both are equalities, up to rounding, if U is orthogonal."""
    for seed in range(200 if full else 20):
        s, tau, t = 1 + seed % 7, 1 + seed % 6, 1 + seed % 3
        layer = relu_layer(seed, 2, s, inputs=s)
        with torch.no_grad():
            torch.nn.init.orthogonal_(original(layer, "weight_short_l0")).mul_(all_active(s))
            torch.nn.init.orthogonal_(layer.weight_ih_l0[2:])
            layer.bias_l0[2:] = 1000.0
        found = fading(layer, t, tau, seed)
        for value, bound in ((found.by_state, found.state_bound), (found.by_input, found.input_bound)):
            assert abs(value - bound) <= bound * rounding(s, tau)
        record(cases=1, least_share_of_bound=min(found.by_state / found.state_bound, found.by_input / found.input_bound))


def test_random_layers_come_near_the_bounds(record: Recorder, full: bool) -> None:
    """Not only the constructed ones: among generic W_S with all units active, some are within a factor of 3/2 at τ = 3,
    and with units that are switched off now and then, within a factor of 4."""
    best = {"active": 0.0, "any": 0.0}
    for seed in range(300 if full else 25):
        for name in best:
            layer = relu_layer(seed, 1, 3, inputs=2)
            T = original(layer, "weight_short_l0")
            with torch.no_grad():
                T.normal_()
                T.mul_(all_active(3) / torch.linalg.matrix_norm(T, 2))
                layer.bias_l0[1:] = 1000.0 if name == "active" else 0.0
            found = fading(layer, 2, 3, seed)
            best[name] = max(best[name], found.by_state / found.state_bound)
            record(cases=1)
    record(largest_share_all_active=best["active"], largest_share_any=best["any"])
    assert best["active"] > 2 / 3
    assert best["any"] > 1 / 4


def test_the_spectral_radius_would_not_do_in_place_of_the_norm() -> None:
    """The theorem assumes ‖W_S‖₂ < 1 and not merely ρ(W_S) < 1: for a matrix that is not normal ρ^τ is exceeded."""
    layer = relu_layer(0, 1, 2, inputs=1)
    with torch.no_grad():
        original(layer, "weight_short_l0").copy_(torch.tensor([[0.1, 0.9], [0.0, 0.1]]))
        layer.bias_l0[1:] = 1000.0
    found = fading(layer, 1, 3, 0)
    assert found.by_state <= found.state_bound
    assert found.by_state > 10 * found.radius_bound
