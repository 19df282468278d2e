"""The largest singular value as a GPU finds it, on the CPU: value, gradient, certificate, and what is done without one."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from enrnn import ENRNN, EigenvalueNormalized, SpectralNorm
from enrnn.matrices import _eigenvalue_normalized, _spectral_norm
from enrnn.matrices._spectral_norm import largest_singular
from enrnn.spectrum import accuracy_for
from enrnn.training import ModelSettings
from enrnn.training._graph import OneByOne, Replayed
from tests._record import Recorder
from tests.training.test_step import changed, snapshot, step_of
from tests.zoo._zoo import DTYPES

UNIT = 2.0**-53
SIZES = [1, 2, 3, 8, 33, 64, 97, 150]


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU."""
    monkeypatch.setattr(_spectral_norm, "fast", lambda matrix: True)


@pytest.fixture
def captured(fast: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As inside a CUDA graph."""
    for module in (_spectral_norm, _eigenvalue_normalized):
        monkeypatch.setattr(module, "capturing", lambda tensor: True)


def gaussian(size: int, seed: int = 0) -> Tensor:
    return torch.randn(size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(100 * size + seed))


def with_values(values: Tensor, seed: int) -> Tensor:
    left, right = (torch.linalg.qr(gaussian(len(values), 2 * seed + which))[0] for which in (0, 1))
    return left @ torch.diag(values) @ right


def near_tie(gap: float, size: int = 12, seed: int = 0, times: int = 2) -> Tensor:
    """The largest singular value 1, others a gap below, and the rest at 0.9 at most."""
    values = torch.linspace(0.1, 0.9, size, dtype=torch.float64)
    values[:times] = 1 - gap * torch.arange(times)
    return with_values(values, seed)


def start(size: int) -> Tensor:
    """Where training starts: rotations, so that every singular value is there twice."""
    torch.manual_seed(size)
    T = torch.zeros(size, size, dtype=torch.float64)
    SpectralNorm().initialize_(T)
    return T


def relative_error(T: Tensor, norm: Tensor) -> float:
    return abs(float(norm / torch.linalg.svdvals(T)[0]) - 1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_random_matrix_is_certified_and_its_norm_exact(dtype: str, record: Recorder) -> None:
    for size in SIZES:
        for scale in (1.0, 1e-30, 1e30) + ((1e-300, 1e300) if dtype == "float64" else ()):
            T = (scale * gaussian(size)).to(DTYPES[dtype]).double()
            found = largest_singular(T, accuracy_for(DTYPES[dtype]))
            assert found.certified
            error = relative_error(T, found.norm)
            record(cases=1, worst_error=error)
            # The residual enters squared: what is left is the rounding of m products, in svdvals as well.
            assert error <= 4 * size * UNIT
            assert float((found.left @ (T / scale) @ found.right) * scale / found.norm) == pytest.approx(1, abs=4 * size * UNIT)


@pytest.mark.parametrize("gap", [0.0, *(10.0**-digits for digits in range(1, 17))])
@pytest.mark.parametrize("times", [2, 3, 5])
def test_whatever_is_certified_is_exact_however_near_the_next_one(gap: float, times: int, full: bool, record: Recorder) -> None:
    """Where the solver has taken the second of two for the first, which it does at gaps below 1e-7, the certificate must fail."""
    for seed in range(200 if full else 20):
        for accuracy in (1e-12, 1e-10):
            T = near_tie(gap, seed=seed, times=times)
            found = largest_singular(T, accuracy)
            record(cases=1, cases_uncertified=int(not found.certified))
            if found.certified:
                assert relative_error(T, found.norm) <= accuracy + 50 * UNIT
            else:
                assert found.norm == 0
                assert gap < 1e-6


@pytest.mark.parametrize("phase", [1, 1j, 0.6 + 0.8j])
def test_the_certificate_refuses_the_runner_up(phase: complex, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an eigenvector with whatever phase."""
    T = torch.diag(torch.tensor([0.3, 1.0 - 1e-9, 1.0, 0.2], dtype=torch.float64))
    solver = _spectral_norm.squaring_on_device
    for place, certified in ((2, True), (1, False), (0, False)):
        vector = phase * torch.eye(4, dtype=torch.complex128)[place]

        def offers(matrix: Tensor, accuracy: float, vector: Tensor = vector) -> object:
            found = solver(matrix, accuracy)
            return found._replace(pair=found.pair._replace(right=vector))

        monkeypatch.setattr(_spectral_norm, "squaring_on_device", offers)
        assert bool(largest_singular(T, 1e-12).certified) == certified


@pytest.mark.parametrize("size", [2, 3, 4, 5, 20, 64])
def test_at_the_start_every_singular_value_is_double_and_W_is_right(fast: None, size: int) -> None:
    """Its eigenvectors may come out complex there."""
    T = start(size)
    W = SpectralNorm()(T)
    assert torch.allclose(W, T / torch.linalg.svdvals(T)[0], rtol=4 * size * UNIT, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_gradient_is_that_of_torchs_singular_values(fast: None, dtype: str, record: Recorder) -> None:
    eps = torch.finfo(DTYPES[dtype]).eps
    for size in SIZES[1:]:
        values = torch.linspace(0.0, 0.9, size, dtype=torch.float64)
        values[0] = 1.0
        T = (3 * with_values(values, size)).to(DTYPES[dtype])
        G = gaussian(size, 7).to(DTYPES[dtype])
        matrix, ours = SpectralNorm(), T.clone().requires_grad_()
        (matrix(ours) * G).sum().backward()
        exact = T.double().requires_grad_()
        ((exact / torch.linalg.svdvals(exact)[0]) * G.double()).sum().backward()
        assert ours.grad is not None
        assert exact.grad is not None
        error = float((ours.grad.double() - exact.grad).norm() / exact.grad.norm())
        record(cases=1, worst_error=error)
        assert matrix.fallbacks == 0
        # In float32, the one rounding of the result, and 1e-10 of the vectors over a gap of a tenth.
        assert error <= (1e-9 if dtype == "float64" else eps)


def test_at_a_tie_the_gradient_is_a_subgradient() -> None:
    torch.manual_seed(0)
    for T in (start(20), near_tie(0.0), near_tie(1e-13)):
        found = largest_singular(T, 1e-12)
        assert found.certified
        for _ in range(20):
            D = torch.randn_like(T)
            supported = found.norm + (torch.outer(found.left, found.right) * D).sum()
            assert torch.linalg.svdvals(T + D)[0] >= supported - 1e-12


@pytest.mark.parametrize("accuracy", [1e-12, 1e-10])
def test_every_start_of_a_training_is_certified(accuracy: float, record: Recorder) -> None:
    """Pairs of equal singular values, which rounding may turn into anything."""
    for size in [*range(2, 40), 64, 94]:
        T = start(size)
        found = largest_singular(T, accuracy)
        record(cases=1, worst_error=relative_error(T, found.norm))
        assert found.certified
        assert relative_error(T, found.norm) <= accuracy


def test_second_derivatives_are_right(fast: None) -> None:
    for size in (2, 3, 5):
        T = near_tie(0.3, size).requires_grad_()
        assert torch.autograd.gradgradcheck(SpectralNorm(), T, atol=1e-6)
        assert torch.autograd.gradcheck(SpectralNorm(), T, atol=1e-6, check_forward_ad=True)


def test_second_derivatives_inside_a_graph_are_refused(captured: None) -> None:
    T = near_tie(0.3, 5).requires_grad_()
    with pytest.raises(RuntimeError, match="second derivatives"):
        torch.autograd.grad(SpectralNorm()(T).sum(), T, create_graph=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_on_a_CPU_it_is_torchs_norm_to_the_bit(dtype: str) -> None:
    for size in SIZES:
        T = gaussian(size).to(DTYPES[dtype])
        assert torch.equal(SpectralNorm()(T), (T.double() / torch.linalg.svdvals(T.double())[0]).to(T.dtype))


@pytest.mark.parametrize("where", ["fast", "captured"])
def test_zero_is_left_as_it_is(where: str, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue(where)
    matrix, T = SpectralNorm(), torch.zeros(4, 4, requires_grad=True)
    W = matrix(T)
    W.sum().backward()
    assert torch.equal(W, T)
    assert T.grad is not None
    assert torch.equal(T.grad, torch.ones(4, 4))
    matrix.check()
    assert matrix.fallbacks == 0


@pytest.mark.parametrize("entry", [float("nan"), float("inf")])
def test_what_is_not_finite_is_named(entry: float, monkeypatch: pytest.MonkeyPatch) -> None:
    T = gaussian(4)
    T[1, 2] = entry
    for pretended in (False, True):
        monkeypatch.setattr(_spectral_norm, "fast", lambda matrix, pretended=pretended: pretended)
        with pytest.raises(ValueError, match=r"not finite .*‖T‖₂ is undefined"):
            SpectralNorm()(T)


@pytest.mark.parametrize("where", ["captured", "compiled"])
def test_where_nobody_looks_what_is_not_finite_is_flagged(where: str, request: pytest.FixtureRequest) -> None:
    matrix, T = SpectralNorm(), gaussian(4)
    form = torch.compile(matrix, backend="aot_eager", fullgraph=True) if where == "compiled" else matrix
    if where == "captured":
        request.getfixturevalue("captured")
    form(T)
    matrix.check()
    T[1, 2] = float("nan")
    form(T)
    with pytest.raises(ValueError, match="not finite"):
        matrix.check()
    assert not matrix.uncertified


def test_what_is_not_certified_is_left_alone_in_a_graph_and_flagged(captured: None) -> None:
    T = torch.eye(5, dtype=torch.float64).mul(3).requires_grad_()
    matrix = SpectralNorm()
    W = matrix(T)
    W.sum().backward()
    assert torch.equal(W, T)
    assert T.grad is not None
    assert torch.equal(T.grad, torch.ones_like(T))
    assert matrix.uncertified
    assert matrix.fallbacks == 0
    with pytest.raises(RuntimeError, match=r"‖T‖₂ could not be certified inside a CUDA graph"):
        matrix.check()
    matrix.initialize_(T.detach().clone())
    matrix.check()


def test_what_is_not_certified_is_torchs_outside_of_a_graph_and_counted_in_training(fast: None) -> None:
    matrix, T = SpectralNorm(), torch.eye(5).mul(3)
    assert torch.allclose(matrix(T), torch.eye(5))
    assert matrix.fallbacks == 1
    matrix.eval()(T)
    assert matrix.fallbacks == 1
    matrix.check()


MODEL = ModelSettings(hidden_size=8, short_size=5, backend="torch", options={"short": "spectral_norm"})


@pytest.mark.parametrize("doubtful", [set(), {1}, {2, 3}])
def test_guarded_steps_are_plain_steps_and_what_is_not_certified_is_done_over(
    doubtful: set[int], fast: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the solver unsure of itself at some steps, inside the graph and outside."""
    solver = _spectral_norm.largest_singular
    steps = [step_of(model=MODEL) for _ in range(2)]
    for step in steps:  # away from the start, where every singular value is double and the first step may be uncertified
        free = next(p for name, p in step.model.named_parameters() if name.endswith("weight_short_l0.original"))
        free.data.add_(gaussian(len(free)).to(free))
    running = steps[0]
    in_graph = False

    def unsure(matrix: Tensor, accuracy: float) -> object:
        found = solver(matrix, accuracy)
        sure = torch.tensor(running.done + 1 not in doubtful) & found.certified
        return found._replace(norm=torch.where(sure, found.norm, 0), certified=sure)

    monkeypatch.setattr(_spectral_norm, "largest_singular", unsure)
    for module in (_spectral_norm, _eigenvalue_normalized):
        monkeypatch.setattr(module, "capturing", lambda tensor: in_graph)

    def guarded() -> None:
        nonlocal in_graph
        in_graph = True
        running.guarded()
        in_graph = False

    OneByOne(steps[0]).advance(6)
    running = steps[1]
    Replayed(steps[1], guarded).advance(6)
    assert changed(steps[1], snapshot(steps[0])) == set()
    assert steps[1].done == 6
    assert steps[1].spectrum()["fallbacks"] == len(doubtful)


def test_a_state_dict_has_no_more_in_it_than_the_free_matrix_and_loading_forgets_the_flags() -> None:
    layer = ENRNN(3, 6, short="spectral_norm")
    assert [name for name in layer.state_dict() if "weight_short" in name] == ["parametrizations.weight_short_l0.original"]
    empty = nn.utils.skip_init(ENRNN, 3, 6, short="spectral_norm")
    for buffer in empty.buffers():
        buffer.fill_(True)
    empty.load_state_dict(layer.state_dict())
    given = ENRNN(3, 6, short="spectral_norm", device="meta")
    given.load_state_dict(copy.deepcopy(layer.state_dict()), assign=True)
    for other in (empty, given):
        other.check()
        assert torch.equal(other.weight_short_l0, layer.weight_short_l0)


def test_an_eigenvalue_normalized_matrix_says_what_it_said(captured: None) -> None:
    matrix = EigenvalueNormalized()
    matrix.uncertified.fill_(True)
    with pytest.raises(RuntimeError, match=r"ρ\(T\) could not be certified inside a CUDA graph"):
        matrix.check()
    matrix.not_finite.fill_(True)
    with pytest.raises(ValueError, match=r"so ρ\(T\) is undefined"):
        matrix.check()
