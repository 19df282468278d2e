"""The networks of complex units, against the same steps in complex numbers."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import enrnn
from enrnn import CGRNN, SCURNN, URNN, FullCapacityURNN, Stiefel, UnitaryCayley, UnitaryProduct
from enrnn.layers._complex import ComplexRNN
from enrnn.matrices import Matrix
from enrnn.matrices._complex import nearest_complex, real_form, stacked, unitarity_error, unstacked
from enrnn.training import attach
from tests._record import Recorder
from tests.zoo._zoo import DTYPES, adam, network, orthogonality, scattered, train

FAMILIES: dict[str, Callable[[], Matrix]] = {"cayley": UnitaryCayley, "product": UnitaryProduct, "stiefel": Stiefel}
NETWORKS = ("SCURNN", "URNN", "FullCapacityURNN")
SIZES = [2, 4, 6, 18, 48]
EPS = torch.finfo(torch.float64).eps


def complex_matrix(matrix: Matrix, originals: tuple[Tensor, ...]) -> Tensor:
    """`W` from its free tensors as the papers write it, in complex128."""
    first = torch.complex(*originals[0].double().chunk(2))
    n = originals[0].shape[0] // 2
    identity = torch.eye(n, dtype=torch.complex128)
    if isinstance(matrix, Stiefel):
        return first
    if isinstance(matrix, UnitaryCayley):
        above = first.triu(1) + 1j * first.imag.diagonal().diag() / 2
        A = above - above.mH
        return torch.linalg.inv(identity + A) @ (identity - A) @ torch.exp(1j * originals[1].double()).diag()
    assert isinstance(matrix, UnitaryProduct)
    D1, D2, D3 = (torch.exp(1j * angles.double()).diag() for angles in originals[1])
    R1, R2 = (identity - 2 * torch.outer(v, v.conj()) / (v.conj() @ v) for v in first.mT)
    k = torch.arange(n, dtype=torch.float64)
    F = torch.exp(-2j * math.pi * torch.outer(k, k) / n) / math.sqrt(n)
    permutation = identity[matrix.permutation]
    return D3 @ R2 @ F.mH @ D2 @ permutation @ R1 @ F @ D1


def test_the_real_form_is_a_homomorphism() -> None:
    torch.manual_seed(0)
    A, B = torch.randn(2, 4, 4, dtype=torch.complex128)
    h = torch.randn(4, 1, dtype=torch.complex128)
    form = real_form(stacked(A))
    assert torch.equal(unstacked(stacked(A)), A)
    assert torch.equal(unstacked(nearest_complex(form)), A)
    assert torch.allclose(form @ real_form(stacked(B)), real_form(stacked(A @ B)), rtol=0, atol=1e-14)
    assert torch.allclose(form @ stacked(h), stacked(A @ h), rtol=0, atol=1e-14)
    assert torch.equal(real_form(stacked(A.mH)), form.mT)


def test_the_nearest_real_form_is_a_projection() -> None:
    torch.manual_seed(0)
    M = torch.randn(6, 6, dtype=torch.float64)
    form = real_form(nearest_complex(M))
    other = real_form(torch.randn(6, 3, dtype=torch.float64))
    assert float(((M - form) * other).sum()) == pytest.approx(0, abs=1e-13)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_they_are_unitary_to_rounding_and_what_the_papers_write(record: Recorder, family: str, dtype: str) -> None:
    eps = torch.finfo(DTYPES[dtype]).eps
    for size in SIZES:
        matrix = FAMILIES[family]()
        originals = scattered(matrix, size, seed=size, dtype=DTYPES[dtype])
        W = matrix(*originals)
        assert W.dtype == DTYPES[dtype]
        assert W.shape == (size, size)
        error = orthogonality(W)
        record(cases=1, worst_error_in_eps=error / eps)
        assert error <= 8 * size * eps
        assert torch.equal(W, real_form(W[:, : size // 2]))
        # In the test the inverse of I + A has the condition of that, √(1 + ‖A‖²).
        condition = 1 + float(originals[0].abs().max()) if family == "cayley" else 1
        assert (unstacked(nearest_complex(W)) - complex_matrix(matrix, originals)).abs().max() <= (
            eps + 4 * size * condition * EPS
        )
        assert float(matrix.constraint_error(W)) == pytest.approx(error, abs=eps * 1e-3)
        assert float(matrix.constraint_error(1.5 * W)) == pytest.approx(1.25, abs=1e-5)


def test_an_orthogonal_matrix_need_not_be_complex() -> None:
    reflection = torch.diag(torch.tensor([1.0, 1.0, 1.0, -1.0]))
    assert orthogonality(reflection) == 0
    assert unitarity_error(reflection) == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_the_gradient_is_that_of_finite_differences(family: str) -> None:
    for size in (2, 4, 6):
        matrix = FAMILIES[family]()
        originals = tuple(original.requires_grad_() for original in scattered(matrix, size, seed=size))
        assert torch.autograd.gradcheck(matrix, originals, eps=1e-6, atol=1e-6, rtol=1e-6)


def test_the_gradients_of_the_scurnn_paper() -> None:
    matrix = UnitaryCayley()
    skew, angles = (original.requires_grad_() for original in scattered(matrix, 10, seed=3))
    weights = torch.randn(10, 10, dtype=torch.float64)
    W = matrix(skew, angles)
    (by_form,) = torch.autograd.grad((W * weights).sum(), W, retain_graph=True)
    (W * weights).sum().backward()

    total = 2 * unstacked(nearest_complex(by_form))  # ∂L/∂Re W + i·∂L/∂Im W: both copies of each in the real form
    G = total.conj() / 2
    n = 5
    identity = torch.eye(n, dtype=torch.complex128)
    above = unstacked(skew.detach()).triu(1) + 1j * skew.detach()[n:].diagonal().diag() / 2
    A = above - above.mH
    D = torch.exp(1j * angles.detach()).diag()
    Z = torch.linalg.solve(identity + A, identity - A)
    V = torch.linalg.solve((identity + A).mT, G @ (D + (Z @ D).mT))
    paper = V.mT - V.conj()
    expected = 2 * stacked(paper)
    assert (skew.grad[:n] - expected[:n].triu(1)).abs().max() <= 1e-12
    assert (skew.grad[n:] - expected[n:].triu(1) - paper.imag.diagonal().diag()).abs().max() <= 1e-12
    by_angles = 2 * (1j * (G.mT @ Z).diagonal() * D.diagonal()).real
    assert (angles.grad - by_angles).abs().max() <= 1e-12


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", ["cayley", "stiefel"])
def test_every_unitary_matrix_can_be_written(family: str, dtype: str) -> None:
    eps = torch.finfo(DTYPES[dtype]).eps
    for size in SIZES:
        n = size // 2
        torch.manual_seed(size)
        Q = torch.linalg.qr(torch.randn(n, n, dtype=torch.complex128))[0]
        for U in (Q, torch.eye(n, dtype=Q.dtype), -torch.eye(n, dtype=Q.dtype)):
            W = real_form(stacked(U)).to(DTYPES[dtype])
            matrix = FAMILIES[family]()
            found = matrix.right_inverse(W)
            back = matrix(*found) if isinstance(found, tuple) else matrix(found)
            # The widest of n gaps is 2π/n at least: ‖A‖ ≤ cot(π/(2n)), and rounding A turns W by twice that.
            assert (back - W).abs().max() <= 32 * size * eps


@pytest.mark.parametrize("family", ["cayley", "stiefel"])
def test_what_is_not_unitary_is_replaced_by_the_nearest_one(family: str) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(6, 6, bias=False, dtype=torch.float64)
    M = linear.weight.detach().clone()
    parametrize.register_parametrization(linear, "weight", FAMILIES[family]())
    W = linear.weight.detach()
    assert unitarity_error(W) <= 1e-14
    # Re tr(U*M) is greatest for the polar factor: U*M is then Hermitian and positive.
    product = unstacked(nearest_complex(W)).mH @ unstacked(nearest_complex(M))
    assert (product - product.mH).abs().max() <= 1e-13
    assert torch.linalg.eigvalsh(product).min() > 0


@pytest.mark.parametrize("family", FAMILIES)
def test_the_meta_device_and_wrong_shapes(family: str) -> None:
    matrix = FAMILIES[family]()
    shapes = [original.shape for original in matrix.originals(6, torch.empty(0))]
    found = matrix.right_inverse(torch.empty(6, 6, device="meta"))
    assert [original.shape for original in (found if isinstance(found, tuple) else (found,))] == shapes
    with pytest.raises(ValueError, match="square"):
        matrix.right_inverse(torch.zeros(4, 6))
    with pytest.raises(ValueError, match="must be even"):
        matrix.right_inverse(torch.eye(3))
    with pytest.raises(ValueError, match="must be even"):
        matrix.originals(5, torch.empty(0))
    with pytest.raises(ValueError, match=r"free tensor"):
        matrix(*(torch.zeros(4, 3) for _ in shapes))
    if family != "product":
        with pytest.raises(ValueError, match="not finite"):
            matrix.right_inverse(torch.full((4, 4), float("nan")))


def test_a_product_cannot_take_over_a_matrix() -> None:
    with pytest.raises(ValueError, match="cannot be told"):
        UnitaryProduct().right_inverse(torch.eye(4))


def test_the_permutation_is_kept_and_drawn_anew() -> None:
    layer = network("URNN", hidden_size=40)
    (name,) = (key for key in layer.state_dict() if "permutation" in key)
    first = layer.state_dict()[name].clone()
    assert sorted(first.tolist()) == list(range(20))
    train(layer, 3)
    assert torch.equal(layer.state_dict()[name], first)
    layer.reset_parameters()
    assert not torch.equal(layer.state_dict()[name], first)


def test_a_reflection_in_zero_is_the_identity() -> None:
    matrix = UnitaryProduct()
    vectors, angles = (original.requires_grad_() for original in matrix.originals(8, torch.empty(0, dtype=torch.float64)))
    W = matrix(vectors, angles)  # all angles zero, the permutation as it was: F⁻¹F
    assert (W - torch.eye(8, dtype=torch.float64)).abs().max() <= 1e-15
    W.sum().backward()
    assert torch.isfinite(vectors.grad).all()


def complex_step(z: Tensor, b: Tensor) -> Tensor:
    """modReLU of complex numbers."""
    return z / z.abs() * torch.relu(z.abs() + b)


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("name", NETWORKS)
def test_states_and_gradients_are_those_of_complex_numbers(name: str, backend: str) -> None:
    layer = network(name, dtype=torch.float64, backend=backend)
    assert isinstance(layer, ComplexRNN)
    assert layer.nonlinearity == "paired_modrelu"
    n = layer.complex_units
    assert n == 5
    with torch.no_grad():
        layer.bias_l0.copy_(torch.linspace(-0.8, 0.3, n))
    x = torch.randn(7, 4, 3, dtype=torch.float64)
    weights = torch.randn(7, 4, 10, dtype=torch.float64)
    output, final = layer(x)
    (output * weights).sum().backward()
    ours = [parameter.grad.clone() for parameter in layer.parameters()]

    layer.zero_grad()
    (matrix,) = layer.matrices().values()
    W = complex_matrix(matrix, layer._originals("weight_hh_l0"))
    assert (layer.complex_recurrent_weight() - W).abs().max() <= 1e-13
    V = unstacked(layer.weight_ih_l0)
    h = unstacked(layer.initial_state.mT).expand(n, 4)
    states = []
    for t in range(7):
        h = complex_step(V @ x[t].mT.to(V.dtype) + W @ h, layer.bias_l0.unsqueeze(1))
        states.append(stacked(h).mT)
    assert (output - torch.stack(states)).abs().max() <= 1e-13
    assert torch.equal(final[0], output[-1])
    assert (output == 0).any()  # some units are below their threshold
    (torch.stack(states) * weights).sum().backward()
    for found, (key, parameter) in zip(ours, layer.named_parameters(), strict=True):
        assert (found - parameter.grad).abs().max() <= 1e-10 * (1 + parameter.grad.abs().max()), key


@pytest.mark.parametrize("name", NETWORKS)
def test_the_layer_has_the_gradient_of_finite_differences(name: str) -> None:
    layer = network(name, hidden_size=6, dtype=torch.float64, backend="torch")
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    _check_slope(layer, x)


def test_every_other_nonlinearity_acts_on_both_parts() -> None:
    layer = SCURNN(3, 8, nonlinearity="relu")
    assert layer.bias_l0.shape == (8,)
    assert (layer(torch.randn(5, 2, 3))[0] >= 0).all()
    assert SCURNN(3, 8).bias_l0.shape == (4,)
    assert SCURNN(3, 8, nonlinearity="modrelu").nonlinearity == "paired_modrelu"
    with pytest.raises(ValueError, match="paired_modrelu"):
        SCURNN(3, 8, nonlinearity="sine")
    with pytest.raises(ValueError, match="Unknown nonlinearity 'paired_modrelu'"):
        enrnn.SCORNN(3, 8, nonlinearity="paired_modrelu")


@pytest.mark.parametrize("name", NETWORKS)
def test_the_backend_is_that_of_the_real_networks(name: str) -> None:
    assert network(name).backend_used == network("SCORNN").backend_used
    assert network(name, backend="torch").backend_used == "torch"
    assert network(name, bias=False, nonlinearity="modrelu")(torch.randn(3, 2, 3))[0].shape == (3, 2, 10)


def test_the_step_on_the_manifold_is_the_papers() -> None:
    matrix = Stiefel()
    (original,) = scattered(matrix, 12, seed=1)
    original.requires_grad_()
    target = torch.randn(12, 12, dtype=torch.float64)

    def loss() -> Tensor:
        return (matrix(original) - target).square().sum()

    before = loss()
    before.backward()
    W, G = unstacked(original.detach().clone()), unstacked(original.grad)
    A = G @ W.mH - W @ G.mH
    identity = torch.eye(6, dtype=torch.complex128)
    for lr, tensor in ((0.05, False), (1e-6, True)):
        with torch.no_grad():
            original.copy_(stacked(W))
        matrix.manifold_update(original, torch.tensor(lr, dtype=torch.float64) if tensor else lr)
        expected = torch.linalg.solve(identity + lr / 2 * A, (identity - lr / 2 * A) @ W)
        assert (unstacked(original.detach()) - expected).abs().max() <= 1e-14
        assert orthogonality(matrix(original)) <= 1e-14
    # To first order, and for the last and shortest step, the loss falls by η·Re⟨G, AW⟩ = η‖A‖²/2.
    change = (loss() - before).item() / 1e-6
    assert change == pytest.approx(-0.5 * A.abs().square().sum().item(), rel=1e-3)


@pytest.mark.parametrize("dtype", DTYPES)
def test_drift_is_bounded_and_taken_out(record: Recorder, dtype: str) -> None:
    eps = torch.finfo(DTYPES[dtype]).eps
    layer = network("FullCapacityURNN", hidden_size=16, dtype=DTYPES[dtype])  # polished every 10 steps
    optimizer = adam(layer)
    start = layer.recurrent_weight().detach().clone()
    for _ in range(5):
        train(layer, 9, optimizer=optimizer)
        record(worst_drift_in_eps=layer.constraint_error() / eps)
        assert layer.constraint_error() <= 9 * 2 * 16 * eps  # each step is exact but for the rounding of the entries
        train(layer, 1, optimizer=optimizer)
        assert layer.constraint_error() <= 2 * 16 * eps
    assert (layer.recurrent_weight() - start).abs().max() > 0.05
    (matrix,) = layer.matrices().values()
    assert isinstance(matrix, Stiefel)
    assert int(matrix.steps) == 50
    with torch.no_grad():
        (original,) = layer._originals("weight_hh_l0")
        original.mul_(1 + 1e-4)
        matrix.steps.fill_(19)
        matrix.after_step(original)
    assert layer.constraint_error() <= 2 * 16 * eps


def head_count(layer: ComplexRNN | CGRNN, outputs: int) -> int:
    return layer.num_free_parameters() + 2 * (layer.hidden_size // 2) * outputs + outputs


@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize("n", [1, 2, 7])
def test_the_formulas_of_the_papers(n: int, m: int) -> None:
    p = 4
    rest = 2 * m * n + n + 2 * n + 2 * n * p + p
    assert head_count(URNN(m, 2 * n), p) == 3 * n + 4 * n + rest
    assert head_count(FullCapacityURNN(m, 2 * n), p) == n * n + rest
    assert head_count(SCURNN(m, 2 * n), p) == n * n + n + rest
    assert head_count(SCURNN(m, 2 * n, learn_initial=False), p) == n * n + n + rest - 2 * n
    gated = 4 * n * n + 3 * (2 * m * n + 2 * n) + 2 + 1 + 2 * n * p + p
    assert head_count(CGRNN(m, 2 * n), p) == n * n + gated
    assert head_count(CGRNN(m, 2 * n, unitary=False), p) == 2 * n * n + gated


def test_the_published_counts() -> None:
    assert head_count(FullCapacityURNN(2, 240), 1) == 15_481
    assert head_count(FullCapacityURNN(10, 256), 9) == 21_641
    assert head_count(URNN(1, 2 * 100), 10) == 32 * 100 + 10
    assert head_count(FullCapacityURNN(1, 2 * 116), 10) == 116**2 + 25 * 116 + 10


def test_where_they_start() -> None:
    torch.manual_seed(0)
    n = 200
    for kind, initial, bias in ((URNN, math.sqrt(3 / (2 * n)), 0.0), (FullCapacityURNN, math.sqrt(3 / (2 * n)), 0.01)):
        layer = kind(2, 2 * n)
        assert 0.9 * initial < layer.initial_state.abs().max() <= initial
        assert 0.9 * bias <= layer.bias_l0.abs().max() <= bias
        assert 0.9 * math.sqrt(6 / (2 + 2 * n)) < layer.weight_ih_l0.abs().max() <= math.sqrt(6 / (2 + 2 * n))
    scurnn = SCURNN(2, 2 * n)
    assert 0.009 < scurnn.initial_state.abs().max() <= 0.01
    assert 0.009 < scurnn.bias_l0.abs().max() <= 0.01
    skew, angles = scurnn._originals("weight_hh_l0")
    assert not skew[n:].any()
    turns = 2 * torch.atan(skew[:n].diagonal(1)[::2])
    for drawn in (turns % (2 * math.pi), angles):
        assert (drawn.quantile(torch.tensor([0.25, 0.5, 0.75])) / math.pi).tolist() == pytest.approx([0.5, 1.0, 1.5], abs=0.2)
    gated = CGRNN(2, 2 * n)
    assert (gated.bias_l0[: 4 * n] == 4).all()
    assert not gated.bias_l0[4 * n :].any()
    assert not gated.mixing_l0.any()
    assert 0 < gated.activation_l0.abs() <= 0.01
    assert not CGRNN(2, 4, unitary=False).bias_l0.any()
    assert 0.9 <= CGRNN(2, 4, nonlinearity="hirose").activation_l0 <= 1.1
    assert orthogonality(gated.recurrent_weight()) <= 1e-4


def test_complex_units_come_in_pairs_of_numbers() -> None:
    for kind in (SCURNN, URNN, FullCapacityURNN, CGRNN):
        with pytest.raises(ValueError, match="hidden_size must be even"):
            kind(3, 7)
        with pytest.raises(ValueError, match="hidden_size must be greater than zero"):
            kind(3, 0)
    with pytest.raises(ValueError, match="polish_every"):
        FullCapacityURNN(3, 8, polish_every=0)
    with pytest.raises(ValueError, match="polish_every"):
        CGRNN(3, 8, polish_every=0)
    with pytest.raises(ValueError, match="polish_every has no effect on unitary=False; leave it out, got: 3"):
        CGRNN(3, 8, unitary=False, polish_every=3)
    with pytest.raises(TypeError, match="has no argument 'negative_ones'"):
        SCURNN(3, 8, negative_ones=2)


def test_what_they_are_owed_to() -> None:
    def keys(module: nn.Module | str) -> set[str]:
        return {line.split("{")[1].rstrip(",") for line in enrnn.citation(module).splitlines() if line.startswith("@")}

    modrelu = "arjovsky2016unitary"
    assert keys("urnn") == keys(URNN(2, 4)) == keys(URNN(2, 4, nonlinearity="tanh")) == {modrelu}
    assert keys(SCURNN(2, 4)) == {"maduranga2019complex", modrelu}
    assert keys(FullCapacityURNN(2, 4)) == {"wisdom2016full", modrelu}
    assert keys(CGRNN(2, 4)) == {"wolter2018complex", "wisdom2016full", modrelu}
    assert keys(CGRNN(2, 4, nonlinearity="hirose", unitary=False)) == {"wolter2018complex"}


GATED = [("modrelu", True), ("hirose", True), ("modrelu", False)]


@pytest.mark.parametrize(("nonlinearity", "unitary"), GATED)
def test_the_gated_network_is_that_of_complex_numbers(nonlinearity: str, unitary: bool) -> None:
    torch.manual_seed(0)
    layer = CGRNN(3, 10, nonlinearity=nonlinearity, unitary=unitary, dtype=torch.float64)
    with torch.no_grad():  # gates half open, and not alike in Re and Im
        layer.bias_l0.normal_()
        layer.mixing_l0.copy_(torch.tensor([0.5, -1.0]))
        layer.activation_l0.fill_(1.1 if nonlinearity == "hirose" else -0.2)
    x, hx = torch.randn(6, 4, 3, dtype=torch.float64), torch.randn(1, 4, 10, dtype=torch.float64)
    weights = torch.randn(6, 4, 10, dtype=torch.float64)
    output, final = layer(x, hx)
    (output * weights).sum().backward()
    ours = [parameter.grad.clone() for parameter in layer.parameters()]
    assert torch.equal(final[0], output[-1])

    layer.zero_grad()
    parts = layer.weight_ih_l0.chunk(3), layer.bias_l0.unsqueeze(1).chunk(3)
    (Vr, Vz, V), (br, bz, b) = ([unstacked(part) for part in part_of] for part_of in parts)
    Wr, Wz = (unstacked(gate) for gate in layer.weight_gates_l0.chunk(2))
    W = unstacked(layer._originals("weight_hh_l0")[0] if unitary else layer.weight_hh_l0)
    assert (layer.complex_recurrent_weight() - W).abs().max() == 0
    (alpha_r, alpha_z), (single,) = torch.sigmoid(layer.mixing_l0), layer.activation_l0
    h = unstacked(hx[0].mT)
    states = []
    for t in range(6):
        u = x[t].mT.to(h.dtype)
        r, z = Wr @ h + Vr @ u + br, Wz @ h + Vz @ u + bz
        reset = torch.sigmoid(alpha_r * r.real + (1 - alpha_r) * r.imag)
        update = torch.sigmoid(alpha_z * z.real + (1 - alpha_z) * z.imag)
        new = W @ (reset * h) + V @ u + b
        new = complex_step(new, single) if nonlinearity == "modrelu" else torch.tanh(new.abs() / single**2) * new / new.abs()
        h = update * new + (1 - update) * h
        states.append(stacked(h).mT)
    assert (output - torch.stack(states)).abs().max() <= 1e-13
    (torch.stack(states) * weights).sum().backward()
    for found, (key, parameter) in zip(ours, layer.named_parameters(), strict=True):
        assert parameter.grad.abs().max() > 0, key
        assert (found - parameter.grad).abs().max() <= 1e-11 * (1 + parameter.grad.abs().max()), key
    layer.zero_grad()
    _check_slope(layer, x)


@pytest.mark.parametrize("nonlinearity", ["modrelu", "hirose"])
def test_the_gated_network_starts_from_nothing_without_a_nan(nonlinearity: str) -> None:
    """z̃ = 0 where the input and the state are zero: modReLU is zero there, Hirose's function has the slope 1/m²."""
    layer = CGRNN(3, 4, nonlinearity=nonlinearity, dtype=torch.float64)
    x = torch.zeros(2, 2, 3, dtype=torch.float64, requires_grad=True)
    output, _ = layer(x)
    assert not output.any()
    output.sum().backward()
    assert torch.isfinite(x.grad).all()
    assert (x.grad.abs().max() > 0) == (nonlinearity == "hirose")
    assert all(torch.isfinite(parameter.grad).all() for parameter in layer.parameters())


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_gated_networks_matrix_stays_unitary(dtype: str) -> None:
    eps = torch.finfo(DTYPES[dtype]).eps
    torch.manual_seed(0)
    layer = CGRNN(3, 12, polish_every=10, dtype=DTYPES[dtype])
    start = layer.recurrent_weight().detach().clone()
    optimizer = torch.optim.Adam(layer.parameter_groups(0.02, 2.0))
    attach(layer, optimizer)
    losses = train(layer, 50, optimizer=optimizer)
    assert losses[-1] < 0.95 * losses[0]
    assert layer.constraint_error() <= 2 * 12 * eps  # just polished
    assert (layer.recurrent_weight() - start).abs().max() > 0.05


def test_the_gated_network_has_torchs_interface() -> None:
    torch.manual_seed(0)
    layer = CGRNN(3, 6, 2, bidirectional=True, batch_first=True, dtype=torch.float64)
    x = torch.randn(4, 7, 3, dtype=torch.float64)
    output, final = layer(x)
    assert output.shape == (4, 7, 12)
    assert final.shape == (4, 4, 6)
    lengths = torch.tensor([7, 5, 5, 1])
    packed, last = layer(pack_padded_sequence(x, lengths, batch_first=True))
    padded, _ = pad_packed_sequence(packed, batch_first=True)
    for i, length in enumerate(lengths):
        alone, end = layer(x[i, :length])
        assert (padded[i, :length] - alone).abs().max() <= 1e-14
        assert (last[:, i] - end).abs().max() <= 1e-14
    first = CGRNN(3, 6, dtype=torch.float64)
    whole, _ = first(x.transpose(0, 1))
    begun, carried = first(x.transpose(0, 1)[:3])
    rest, _ = first(x.transpose(0, 1)[3:], carried)
    assert (torch.cat([begun, rest]) - whole).abs().max() <= 1e-14
    assert layer.backend_used == "reference"
    with pytest.raises(ValueError, match="backend"):
        CGRNN(3, 6, backend="cpu")
    with pytest.raises(ValueError, match="Select from 'hirose', 'modrelu'"):
        CGRNN(3, 6, nonlinearity="tanh")
    with pytest.raises(TypeError, match="unitary"):
        CGRNN(3, 6, unitary=1)


@pytest.mark.parametrize(("nonlinearity", "unitary"), GATED)
def test_the_gated_networks_copies(nonlinearity: str, unitary: bool) -> None:
    torch.manual_seed(0)
    layer, other = (CGRNN(3, 6, nonlinearity=nonlinearity, unitary=unitary) for _ in range(2))
    train(layer, 5)
    x = torch.randn(5, 2, 3)
    assert not torch.equal(other(x)[0], layer(x)[0])
    other.load_state_dict(layer.state_dict())
    twin = copy.deepcopy(layer)
    assert torch.equal(other(x)[0], layer(x)[0])
    assert torch.equal(twin(x)[0], layer(x)[0])
    train(twin, 2)
    assert torch.equal(other(x)[0], layer(x)[0])
    half = layer.to(torch.bfloat16)(x.bfloat16())[0]
    assert half.dtype == torch.bfloat16
    assert (half - other(x)[0]).abs().max() < 0.1
    assert CGRNN(3, 6, bias=False, nonlinearity=torch.tanh)(x)[0].abs().max() < 1


def _check_slope(layer: nn.Module, x: Tensor) -> None:
    """Along one direction in all parameters."""
    layer(x)[0].sin().sum().backward()
    parameters = list(layer.parameters())
    directions = [torch.randn_like(p) for p in parameters]
    slope = sum(float((p.grad * d).sum()) for p, d in zip(parameters, directions, strict=True))
    values = []
    for step in (1e-6, -2e-6):
        with torch.no_grad():
            for p, d in zip(parameters, directions, strict=True):
                p.add_(d, alpha=step)
            values.append(float(layer(x)[0].sin().sum()))
    assert (values[0] - values[1]) / 2e-6 == pytest.approx(slope, rel=1e-5, abs=1e-7)
