"""Layers of rotations in blocks are the plain product of rotations, and EURNN is the plain complex recurrence with it. (What they
cost, `benchmarks/zoo.py` measures.)"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence

from enrnn import EURNN, Givens, UnitaryGivens, build
from tests._record import Recorder
from tests.zoo._zoo import DTYPES, orthogonality

EPS = torch.finfo(torch.float64).eps


def pairs(size: int, layer: int, style: str) -> list[tuple[int, int]]:
    """As the paper has them; layers count from zero."""
    if style == "tunable":
        return [(a, a + 1) for a in range(layer % 2, size - 1, 2)]
    distance = size // 2 ** (layer + 1)
    return [(a, a + distance) for a in range(size) if a // distance % 2 == 0]


def one_by_one(angles: Tensor, phases: Tensor | None, layers: int, style: str = "tunable") -> Tensor:
    """`F_L ⋯ F_1`, rotation by rotation."""
    size = len(angles)
    W = torch.eye(size, dtype=torch.float64 if phases is None else torch.complex128)
    for layer in range(layers):
        for p, (a, b) in enumerate(pairs(size, layer, style)):
            place = 2 * p + layer % 2, layer // 2
            c, s = torch.cos(angles[place]), torch.sin(angles[place])
            e = 1 if phases is None else torch.exp(1j * phases[place])
            rows = torch.stack([c * W[a] - e * s * W[b], s * W[a] + e * c * W[b]])
            W = W.index_copy(0, torch.tensor([a, b]), rows)
    return W


def drawn(matrix: Givens | UnitaryGivens, size: int, seed: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    torch.manual_seed(seed)
    originals = matrix.originals(size, torch.empty(0, dtype=dtype))
    matrix.initialize_(*originals)
    return [original.requires_grad_() for original in originals]


# Diamonds of one, two, four, eight and sixteen, with and without edges that are cut; capacities below, at and above the size.
CASES = [(2, 1), (2, 2), (3, 3), (4, 7), (5, 2), (7, 7), (8, 8), (9, 4), (16, 5), (17, 17), (33, 20), (40, 40), (21, 50)]


@pytest.mark.parametrize(("size", "layers"), CASES)
def test_it_is_the_product_of_rotations(record: Recorder, size: int, layers: int) -> None:
    matrix = Givens(layers)
    (angles,) = drawn(matrix, size, seed=size)
    W, plain = matrix(angles), one_by_one(angles, None, layers)
    G = torch.randn_like(plain)
    (ours,), (theirs,) = (torch.autograd.grad(product, angles, G) for product in (W, plain))
    error = (W - plain).abs().max()
    record(cases=1, worst_error=error)
    assert error <= 4 * layers * EPS
    assert orthogonality(W) <= 8 * layers * EPS
    assert (ours - theirs).abs().max() <= 8 * layers * size * EPS


@pytest.mark.parametrize(("size", "layers"), CASES)
def test_the_complex_one_is_the_product_of_rotations(record: Recorder, size: int, layers: int) -> None:
    matrix = UnitaryGivens(layers)
    angles, omega = drawn(matrix, 2 * size, seed=size)
    plain = torch.exp(1j * omega).unsqueeze(1) * one_by_one(*angles.chunk(2), layers)
    W = matrix(angles, omega)
    form = torch.cat([torch.cat([plain.real, -plain.imag], 1), torch.cat([plain.imag, plain.real], 1)])
    G = torch.randn_like(form)
    ours, theirs = (torch.autograd.grad(product, (angles, omega), G) for product in (W, form))
    error = (W - form).abs().max()
    record(cases=1, worst_error=error)
    assert error <= 4 * layers * EPS
    assert float(matrix.constraint_error(W)) <= 8 * layers * EPS
    for mine, plains in zip(ours, theirs, strict=True):
        assert (mine - plains).abs().max() <= 8 * layers * size * EPS


@pytest.mark.parametrize("size", [2, 4, 8, 32])
def test_so_is_that_of_a_fourier_transform(size: int) -> None:
    layers = int(math.log2(size))
    matrix, unitary = Givens(style="fft"), UnitaryGivens(style="fft")
    (angles,) = drawn(matrix, size, seed=size)
    assert (matrix(angles) - one_by_one(angles, None, layers, "fft")).abs().max() <= 8 * EPS
    both, omega = drawn(unitary, 2 * size, seed=size)
    plain = torch.exp(1j * omega).unsqueeze(1) * one_by_one(*both.chunk(2), layers, "fft")
    W = unitary(both, omega)
    assert (W[:size, :size] - plain.real).abs().max() <= 8 * EPS
    assert (W[size:, :size] - plain.imag).abs().max() <= 8 * EPS
    assert float(unitary.constraint_error(W)) <= 16 * EPS
    if size in (2, 8):
        assert torch.autograd.gradcheck(unitary, (both, omega), eps=1e-6, atol=1e-6, rtol=1e-6)


def test_with_the_angles_of_a_fourier_transform_it_is_one() -> None:
    """θ = π/4 and φ = π is a sum and a difference: Walsh and Hadamard's transform, the FFT without its twiddle factors."""
    size = 8
    unitary = UnitaryGivens(style="fft")
    both = torch.tensor([[math.pi / 4] * 2] * size + [[math.pi] * 2] * size, dtype=torch.float64)
    W = unitary(both, torch.zeros(size, dtype=torch.float64))[:size, :size]
    signs = [[(-1) ** (i & j).bit_count() for j in range(size)] for i in range(size)]
    assert (W - torch.tensor(signs, dtype=torch.float64) / math.sqrt(size)).abs().max() <= 8 * EPS


@pytest.mark.parametrize("style", ["tunable", "fft"])
def test_one_unit_has_no_pair_to_turn(style: str) -> None:
    matrix = Givens(style=style)
    assert torch.equal(matrix(*drawn(matrix, 1, seed=0)), torch.ones(1, 1, dtype=torch.float64))
    unitary = UnitaryGivens(style=style)
    angles, omega = drawn(unitary, 2, seed=0)
    c, s = math.cos(omega.item()), math.sin(omega.item())
    assert torch.allclose(unitary(angles, omega), torch.tensor([[c, -s], [s, c]], dtype=torch.float64), rtol=0, atol=EPS)
    unitary(angles, omega).sum().backward()
    assert float(omega.grad) == pytest.approx(-2 * s)
    assert angles.grad is None or not angles.grad.any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_ones_are_unitary_to_rounding(record: Recorder, dtype: str) -> None:
    eps = torch.finfo(DTYPES[dtype]).eps
    for matrix, size in ((Givens(), 150), (UnitaryGivens(), 150), (Givens(style="fft"), 128), (UnitaryGivens(3), 151 * 2)):
        W = matrix(*drawn(matrix, size, seed=1, dtype=DTYPES[dtype]))
        record(cases=1, worst_error_in_eps=float(matrix.constraint_error(W)) / eps)
        assert float(matrix.constraint_error(W)) <= size * eps


@pytest.mark.parametrize("layers", [3, 5, 8])
def test_the_gradient_of_the_complex_one_is_that_of_finite_differences(layers: int) -> None:
    matrix = UnitaryGivens(layers)
    assert torch.autograd.gradcheck(matrix, drawn(matrix, 10, seed=0), eps=1e-6, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(("size", "layers"), [(1, 1), (2, 1), (3, 4), (4, 3)])
def test_the_second_derivative_is_that_of_finite_differences(size: int, layers: int) -> None:
    for matrix, units in ((Givens(layers), size), (UnitaryGivens(layers), 2 * size)):
        originals = drawn(matrix, units, seed=size)
        assert torch.autograd.gradgradcheck(matrix, originals, eps=1e-6, atol=1e-6, rtol=1e-6)
        # With a graph, the first derivative takes another way than without.
        total = matrix(*originals).sin().sum()
        for graph, plain in zip(
            torch.autograd.grad(total, originals, create_graph=True), torch.autograd.grad(total, originals), strict=True
        ):
            assert (graph - plain).abs().max() <= 8 * layers * size * EPS


@pytest.mark.parametrize("name", ["eurnn", "goru", "enrnn"])
def test_a_layer_has_second_derivatives_by_its_angles_as_the_fused_ones_say(name: str) -> None:
    torch.manual_seed(0)
    options = {"long": "givens"} if name == "enrnn" else {}
    layer = build(name, 3, 6, backend="reference", dtype=torch.float64, **options)
    with torch.no_grad():
        layer.weight_ih_l0.normal_()
    x, parameters = torch.randn(4, 2, 3, dtype=torch.float64), list(layer.parameters())
    directions = [torch.randn_like(parameter) for parameter in parameters]

    def slopes(step: float = 0.0) -> tuple[Tensor, ...]:
        with torch.no_grad():
            for parameter, direction in zip(parameters, directions, strict=True):
                parameter.add_(direction, alpha=step)
        return torch.autograd.grad(layer(x)[0].square().sum(), parameters, create_graph=True)

    along = sum((slope * direction).sum() for slope, direction in zip(slopes(), directions, strict=True))
    found = torch.autograd.grad(along, parameters)
    for second, ahead, behind in zip(found, slopes(1e-5), slopes(-2e-5), strict=True):
        assert ((ahead - behind) / 2e-5 - second).abs().max() <= 1e-5 * (1 + second.abs().max())


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 8, 12])
def test_as_many_layers_as_units_write_every_unitary_matrix(size: int) -> None:
    torch.manual_seed(size)
    matrix = UnitaryGivens()
    for given in (torch.randn(size, size, dtype=torch.complex128), torch.eye(size, dtype=torch.complex128)):
        Q = torch.linalg.qr(given)[0]
        form = torch.cat([torch.cat([Q.real, -Q.imag], 1), torch.cat([Q.imag, Q.real], 1)])
        assert (matrix(*matrix.right_inverse(form)) - form).abs().max() <= 16 * size * EPS


def test_half_turns_of_pairs_are_rotations_too() -> None:
    for minus in ([0, 4], [1, 2], [0, 1, 2, 5]):
        signs = torch.ones(6, dtype=torch.float64)
        signs[minus] = -1
        assert (Givens()(Givens().right_inverse(torch.diag(signs))) - torch.diag(signs)).abs().max() <= 16 * EPS


def test_what_cannot_be_written_is_refused() -> None:
    with pytest.raises(ValueError, match="determinant"):
        Givens().right_inverse(torch.diag(torch.tensor([-1.0, 1.0, 1.0])))
    with pytest.raises(ValueError, match="takes 4 layers"):
        Givens(3).right_inverse(torch.eye(4))
    with pytest.raises(ValueError, match="takes 2 layers"):
        UnitaryGivens(style="fft").right_inverse(torch.eye(4))
    with pytest.raises(ValueError, match=r"capacity has no effect on style='fft'.*got: 2"):
        Givens(2, style="fft")
    with pytest.raises(ValueError, match="power of two, got: 6"):
        Givens(style="fft").originals(6, torch.empty(0))
    with pytest.raises(ValueError, match=r"shape \[6, 3\], got \[6, 2\]"):
        Givens()(torch.zeros(6, 2))
    with pytest.raises(ValueError, match="must be even"):
        UnitaryGivens().originals(5, torch.empty(0))


def test_the_counts_of_the_paper() -> None:
    for n in (4, 8, 16):
        k = int(math.log2(n))
        for m in (1, 3):
            rest = 2 * m * n + n
            for L in (2, 4, n):
                assert EURNN(m, 2 * n, capacity=L).num_free_parameters() == L * (n - 1) + n + rest
                assert Givens(L).free_parameters(n) == L * (n - 1) // 2
            assert EURNN(m, 2 * n, style="fft").num_free_parameters() == n * k + n + rest
            assert Givens(style="fft").free_parameters(n) == n // 2 * k
        assert UnitaryGivens().free_parameters(2 * n) == n * n
    for n, L in ((5, 2), (5, 3), (6, 3), (1, 1)):  # odd ones: as many as there are pairs
        assert Givens(L).free_parameters(n) == sum(len(pairs(n, layer, "tunable")) for layer in range(L))


@pytest.mark.parametrize("options", [{}, {"capacity": 3}, {"capacity": 4}, {"style": "fft"}], ids=str)
@pytest.mark.parametrize("backend", ["reference", "torch", "auto"])
def test_a_step_is_the_plain_complex_one(backend: str, options: dict) -> None:
    torch.manual_seed(0)
    n = 4
    layer = EURNN(3, 2 * n, backend=backend, dtype=torch.float64, **options)
    with torch.no_grad():
        layer.weight_ih_l0.normal_()
        layer.bias_l0.uniform_(-0.5, 0.2)
    x, hx = torch.randn(9, 5, 3, dtype=torch.float64), torch.randn(1, 5, 2 * n, dtype=torch.float64)
    output, final = layer(x, hx)
    loss = (output * torch.linspace(-1, 1, 2 * n, dtype=torch.float64)).sum()
    gradients = torch.autograd.grad(loss, list(layer.parameters()))

    angles, omega = layer._originals("weight_hh_l0")
    (matrix,) = layer.matrices().values()
    W = torch.exp(1j * omega).unsqueeze(1) * one_by_one(*angles.chunk(2), matrix._count(n), matrix.style)
    V = torch.complex(*layer.weight_ih_l0.chunk(2))
    h = torch.complex(*hx[0].chunk(2, dim=-1))
    plain = []
    for t in range(9):
        z = x[t].to(V.dtype) @ V.T + h @ W.T
        h = z / z.abs() * torch.relu(z.abs() + layer.bias_l0)
        plain.append(torch.cat([h.real, h.imag], dim=-1))
    expected = torch.stack(plain)
    assert output.shape == (9, 5, 2 * n)
    assert (output - expected).abs().max() <= 1e-12
    assert torch.equal(final[0], output[-1])
    plain_loss = (expected * torch.linspace(-1, 1, 2 * n, dtype=torch.float64)).sum()
    for ours, theirs in zip(gradients, torch.autograd.grad(plain_loss, list(layer.parameters())), strict=True):
        assert (ours - theirs).abs().max() <= 1e-11
    packed = pack_padded_sequence(x, torch.tensor([9, 9, 4, 2, 1]))
    assert (layer(packed, hx)[1][0, 3] - expected[1, 3]).abs().max() <= 1e-12


def test_where_eurnn_starts_and_what_it_refuses() -> None:
    torch.manual_seed(0)
    layer = EURNN(2, 400)
    angles, omega = layer._originals("weight_hh_l0")
    assert layer.matrices()["weight_hh_l0"].capacity == 2
    for part in (angles, omega):
        assert 0.97 * math.pi < part.abs().max() <= math.pi
    assert 0.009 < layer.weight_ih_l0.abs().max() <= 0.01
    assert layer.bias_l0.shape == (200,)
    assert not layer.bias_l0.any()
    assert layer.initial_state is None
    with pytest.raises(ValueError, match="hidden_size must be twice a power of two for style='fft', got: 12"):
        EURNN(2, 12, style="fft")
    with pytest.raises(ValueError, match="hidden_size must be even"):
        EURNN(2, 7)
    with pytest.raises(ValueError, match="capacity has no effect"):
        EURNN(2, 8, style="fft", capacity=2)
    with pytest.raises(ValueError, match="style"):
        EURNN(2, 8, style="butterfly")
    with pytest.raises(ValueError, match="capacity must be greater"):
        EURNN(2, 8, capacity=0)


def test_it_compiles_with_the_rotations_as_one_operator() -> None:
    layer = EURNN(3, 10, capacity=3, dtype=torch.float64)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x = torch.randn(4, 2, 3, dtype=torch.float64)
    gradients = []
    for run in (compiled, layer):
        layer.zero_grad()
        run(x)[0].square().sum().backward()
        gradients.append([parameter.grad.clone() for parameter in layer.parameters()])
    for ours, theirs in zip(*gradients, strict=True):
        assert (ours - theirs).abs().max() <= 1e-12
