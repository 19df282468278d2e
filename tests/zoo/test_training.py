"""The networks after steps of an optimiser: constraints hold, counters count, runs resume to the last digit."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from enrnn import ENRNN, EXPRNN, NNRNN, EigenvalueNormalized, ENRNNCell, PlainlyNormalized, SoftMargin, VorontsovRNN
from tests._record import Recorder
from tests.zoo._zoo import DTYPES, NETWORKS, adam, network, orthogonality, train


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [name for name in NETWORKS if name not in ("IRNN", "OrthogonalRNN", "NNRNN")])
def test_the_constraint_holds_at_the_start_and_after_fifty_steps(record: Recorder, name: str, dtype: str) -> None:
    eps = torch.finfo(DTYPES[dtype]).eps
    layer = network(name, hidden_size=12, dtype=DTYPES[dtype])
    start = layer.recurrent_weight().detach().clone()
    assert layer.constraint_error() <= 8 * 12 * eps
    train(layer, 50)
    record(cases=1, worst_error_in_eps=layer.constraint_error() / eps)
    assert layer.constraint_error() <= 8 * 12 * eps
    assert (layer.recurrent_weight() - start).abs().max() > 0.05  # it was not for want of moving
    if name not in ("SpectralRNN", "VorontsovRNN"):
        assert orthogonality(layer.recurrent_weight()) <= 8 * 12 * eps


@pytest.mark.parametrize("name", NETWORKS)
def test_a_few_steps_lower_the_loss(name: str) -> None:
    losses = train(network(name), 30)
    assert losses[-1] < 0.95 * losses[0]
    assert all(math.isfinite(loss) for loss in losses)


def test_moving_the_base_leaves_the_matrix_as_it_is() -> None:
    layer = network("dtriv")  # every 7 steps, made orthogonal anew every second time
    (matrix,) = layer.matrices().values()
    optimizer = adam(layer)
    for move in range(1, 5):
        train(layer, 6, optimizer=optimizer, seed=move)
        original = layer._originals("weight_hh_l0")[0]
        base = matrix.base.clone()
        assert original.abs().max() > 0
        before = layer.recurrent_weight().detach().clone()
        matrix.after_step(original)
        assert not original.any()
        assert (matrix.base - base).abs().max() > 1e-3
        if move % 2:
            assert torch.equal(layer.recurrent_weight(), before)
        assert (layer.recurrent_weight() - before).abs().max() <= 1e-7
        assert orthogonality(matrix.base) <= 8 * 10 * torch.finfo(torch.float64).eps
    assert int(matrix.steps) == 28


def test_the_base_is_made_orthogonal_anew() -> None:
    layer = network("dtriv")
    (matrix,) = layer.matrices().values()
    matrix.base.mul_(1 + 1e-9)
    matrix.steps.fill_(13)
    matrix.after_step(layer._originals("weight_hh_l0")[0])
    assert orthogonality(matrix.base) <= 8 * 10 * torch.finfo(torch.float64).eps


def test_an_infinite_period_never_moves_the_base() -> None:
    layer = network("EXPRNN", rebase_every=math.inf)
    (matrix,) = layer.matrices().values()
    start = matrix.base.clone()
    assert not layer._originals("weight_hh_l0")[0].any()
    train(layer, 5)
    assert torch.equal(matrix.base, start)
    assert layer._originals("weight_hh_l0")[0].any()


def test_with_one_step_a_period_the_descent_is_riemannian() -> None:
    """dtriv_1 by plain gradient descent: B ← B·exp(−η(BᵀG − GᵀB)), since dexp at zero is the identity."""
    from enrnn.training import attach

    layer = network("EXPRNN", rebase_every=1, dtype=torch.float64)
    (matrix,) = layer.matrices().values()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    attach(layer, optimizer)
    base = matrix.base.clone()
    x = torch.randn(5, 4, 3, dtype=torch.float64)
    weight = base.clone().requires_grad_()
    bias = layer.bias_l0.detach()
    inputs = (x @ layer.weight_ih_l0.mT).detach()
    h = torch.zeros(4, 10, dtype=torch.float64)
    for z in inputs:
        z = z + h @ weight.mT
        h = z.sign() * torch.relu(z.abs() + bias)
    (G,) = torch.autograd.grad(h.sum(), weight)
    layer(x)[0][-1].sum().backward()
    optimizer.step()
    skew = base.mT @ G - G.mT @ base
    assert (matrix.base - base @ torch.linalg.matrix_exp(-0.1 * skew)).abs().max() <= 1e-12


@pytest.mark.parametrize("name", NETWORKS)
def test_a_run_resumes_to_the_last_digit(name: str) -> None:
    layer = network(name)
    optimizer = adam(layer)
    train(layer, 5, optimizer=optimizer)
    saved, state = copy.deepcopy(layer.state_dict()), copy.deepcopy(optimizer.state_dict())
    train(layer, 9, optimizer=optimizer)

    other = network(name, seed=1)
    resumed = adam(other)
    other.load_state_dict(saved)
    resumed.load_state_dict(state)
    train(other, 9, optimizer=resumed)
    for key, value in layer.state_dict().items():
        assert torch.equal(other.state_dict()[key], value), key


@pytest.mark.parametrize("dtype", DTYPES)
def test_geodesic_factors_drift_no_further_than_rounding(record: Recorder, dtype: str) -> None:
    eps = torch.finfo(DTYPES[dtype]).eps
    torch.manual_seed(0)
    layer = VorontsovRNN(3, 10, margin=0.2, polish_every=25, dtype=DTYPES[dtype])
    optimizer = adam(layer)
    start = layer._originals("weight_hh_l0")[0].detach().clone()
    for _ in range(4):
        train(layer, 24, optimizer=optimizer)
        U, _, V = layer._originals("weight_hh_l0")
        record(worst_drift_in_eps=max(orthogonality(U), orthogonality(V)) / eps)
        # 24 roundings of the entries, and each step is exact but for them.
        assert max(orthogonality(U), orthogonality(V)) <= 24 * 2 * 10 * eps
        train(layer, 1, optimizer=optimizer)
        assert max(orthogonality(U), orthogonality(V)) <= 2 * 10 * eps
        values = torch.linalg.svdvals(layer.recurrent_weight().detach().double())
        assert 0.8 - 10 * eps <= values.min() < values.max() <= 1.2 + 10 * eps
    assert (U - start).abs().max() > 0.05
    assert int(layer.matrices()["weight_hh_l0"].steps) == 100


def test_the_geodesic_step_descends_steepest() -> None:
    """To first order it lowers the loss by η‖GUᵀ − UGᵀ‖²/2, the most that any rotation of that length does."""
    matrix = SoftMargin()
    torch.manual_seed(0)
    U, p, V = (original.requires_grad_() for original in matrix.originals(6, torch.empty(0, dtype=torch.float64)))
    matrix.initialize_(U, p, V)
    target = torch.randn(6, 6, dtype=torch.float64)

    def loss() -> torch.Tensor:
        return (matrix(U, p, V) - target).square().sum()

    before = loss()
    before.backward()
    pull = U.grad @ U.mT - U @ U.grad.mT
    matrix.manifold_update(U, 1e-6)
    change = (loss() - before).item() / 1e-6
    assert change == pytest.approx(-0.5 * pull.square().sum().item(), rel=1e-3)
    assert orthogonality(U) <= 1e-14


def test_the_moduli_are_gamma_and_the_penalty_pulls_them_to_one() -> None:
    layer = network("NNRNN", dtype=torch.float64, hidden_size=9, gamma_penalty=0.5)
    train(layer, 50)
    skew, angles, moduli, lower = (original.detach() for original in layer._originals("weight_hh_l0"))
    assert layer.penalty().item() == pytest.approx(0.5 * float((moduli - 1).square().sum()))
    assert layer.penalty().requires_grad
    assert (moduli - 1).abs().max() > 1e-3
    values = torch.linalg.eigvals(layer.recurrent_weight().detach())
    expected = torch.cat([torch.polar(moduli[:4], angles), torch.polar(moduli[:4], -angles), moduli[4:].to(values.dtype)])
    distance = (values.unsqueeze(1) - expected).abs()
    assert distance.min(dim=0).values.max() <= 1e-8
    # Back in the basis of P there are scaled rotations on the diagonal, and zeros above them.
    P = torch.linalg.matrix_exp(skew.triu(1) - skew.triu(1).mT)
    middle = P.mT @ layer.recurrent_weight().detach() @ P
    block = torch.arange(9) // 2
    assert middle[block.unsqueeze(1) < block].abs().max() <= 1e-13
    assert (middle - lower)[block.unsqueeze(1) > block].abs().max() <= 1e-13
    assert (middle[0::2, 0::2].diagonal()[:4] - moduli[:4] * torch.cos(angles)).abs().max() <= 1e-13
    assert lower[block.unsqueeze(1) > block].abs().max() > 1e-3  # not normal

    free = NNRNN(3, 9, gamma_penalty=0.0)
    assert free.penalty() == 0
    assert network("SCORNN").penalty() == 0


def test_the_straw_man_is_renormalised_from_the_first_radius_above_one() -> None:
    torch.manual_seed(0)
    layer = ENRNN(3, 12, short_size=8, short="renormalized", dtype=torch.float64)
    optimizer = adam(layer, 0.05)
    radii = []
    for step in range(30):
        train(layer, 1, optimizer=optimizer, seed=step)
        radii.append((bool(layer.normalizing), float(torch.linalg.eigvals(layer.weight_short_l0.detach()).abs().max())))
    assert {switched for switched, _ in radii} == {False, True}
    assert all(radius <= 1 + 1e-12 for _, radius in radii)
    assert all(radius == pytest.approx(1, abs=1e-12) for switched, radius in radii if switched)
    assert layer.normalizing.all()


def test_the_straw_man_has_the_gradient_of_a_free_matrix() -> None:
    torch.manual_seed(0)
    straw, ours = (ENRNN(3, 12, short_size=8, short=short, dtype=torch.float64) for short in ("renormalized", "normalized"))
    ours.load_state_dict(straw.state_dict())
    with torch.no_grad():
        for layer in (straw, ours):
            original = layer.parametrizations["weight_short_l0"].original
            original.copy_(torch.diag(torch.linspace(0.1, 1, 8, dtype=torch.float64)))  # ρ = 1, where W = T in both
            layer.matrices()["weight_short_l0"].normalizing.fill_(True)
    x = torch.randn(6, 4, 3, dtype=torch.float64)
    for layer in (straw, ours):
        layer(x)[0].square().sum().backward()
    G, corrected = (layer.parametrizations["weight_short_l0"].original.grad for layer in (straw, ours))
    # Here C = e₈e₈ᵀ, so ours is G − ⟨G, W⟩e₈e₈ᵀ.
    expected = G.clone()
    expected[7, 7] -= (G * straw.weight_short_l0).sum()
    assert torch.allclose(corrected, expected, rtol=1e-10, atol=1e-12)
    assert not torch.allclose(corrected, G)


@pytest.mark.parametrize("dtype", DTYPES)
def test_by_the_spectral_norm_the_radius_falls_far_below_one(dtype: str) -> None:
    eps = torch.finfo(DTYPES[dtype]).eps
    torch.manual_seed(0)
    layer = ENRNN(3, 16, short_size=12, short="spectral_norm", dtype=DTYPES[dtype])
    train(layer, 50)
    W = layer.weight_short_l0.detach().double()
    assert float(torch.linalg.matrix_norm(W, 2)) == pytest.approx(1, abs=8 * 12 * eps)
    assert torch.linalg.eigvals(W).abs().max() < 0.95
    assert layer.constraint_error() <= 8 * 12 * eps
    assert layer.normalizing.numel() == 0


@pytest.mark.parametrize("long", ["exponential", "householder", "givens"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_long_part_may_be_any_orthogonal_family(long: str, dtype: str) -> None:
    eps = torch.finfo(DTYPES[dtype]).eps
    torch.manual_seed(0)
    layer = ENRNN(3, 16, long=long, dtype=DTYPES[dtype])
    start = layer.weight_long_l0.detach().clone()
    losses = train(layer, 50)
    assert losses[-1] < losses[0]
    assert orthogonality(layer.weight_long_l0) <= 8 * 10 * eps
    assert (layer.weight_long_l0 - start).abs().max() > 0.05
    assert [len(group["params"]) for group in layer.parameter_groups(1e-3, 1e-4)] == [4, 1]


def test_settings_without_effect_are_refused() -> None:
    with pytest.raises(ValueError, match="negative_ones has no effect"):
        ENRNN(2, 8, long="exponential", negative_ones=2)
    with pytest.raises(ValueError, match="epsilon has no effect"):
        ENRNN(2, 8, short="spectral_norm", epsilon=0.1)
    for kind in (ENRNN, ENRNNCell):
        with pytest.raises(ValueError, match="solver has no effect on short='spectral_norm'; leave it out, got: 'dense'"):
            kind(2, 8, short="spectral_norm", solver="dense")
        for option in ({"epsilon": 0.1}, {"solver": "dense"}, {"short": "spectral_norm"}, {"short": "renormalized"}):
            ((name, value),) = option.items()
            with pytest.raises(
                ValueError, match=f"{name} has no effect without a short-term state; leave it out, got: {value!r}"
            ):
                kind(2, 8, short_size=0, **option)
        with pytest.raises(ValueError, match="long has no effect without a long-term state; leave it out, got: 'givens'"):
            kind(2, 8, short_size=8, long="givens")
        kind(2, 8, short_size=0, epsilon=0.0, solver="auto", short="normalized")
    with pytest.raises(ValueError, match="Select from 'cayley', 'exponential', 'givens', 'householder'"):
        ENRNN(2, 8, long="fourier")
    with pytest.raises(ValueError, match="reflectors"):
        network("ORNN", reflectors=11)
    with pytest.raises(ValueError, match="margin"):
        network("VorontsovRNN", margin=1.0)
    with pytest.raises(ValueError, match="rebase_every"):
        EXPRNN(2, 8, rebase_every=0)
    with pytest.raises(TypeError, match="has no argument 'negative_ones'"):
        EXPRNN(2, 8, negative_ones=3)


def test_the_plain_gradient_is_the_first_term_of_proposition_3_2() -> None:
    """`G/ρ`, while the matrix is the same to the bit, also before the switch."""
    torch.manual_seed(4)
    T = torch.randn(9, 9, dtype=torch.float64)
    G = torch.randn(9, 9, dtype=torch.float64)
    for factor in (0.1, 3.0):  # ρ(T) below and above one
        original = (factor * T).requires_grad_()
        ours, plain = EigenvalueNormalized(), PlainlyNormalized()
        W, plainly = ours(original), plain(original)
        assert torch.equal(W, plainly)
        assert plain.normalizing == (factor > 1)
        divisor = float(plain.radius) if factor > 1 else 1.0
        gradient = torch.autograd.grad(plainly, original, G)[0]
        torch.testing.assert_close(gradient, G / divisor, rtol=1e-6, atol=0)
        assert torch.allclose(gradient, torch.autograd.grad(W, original, G)[0]) == (factor < 1)
