"""The recurrence layer by layer of rotations is the one under their product: in outputs, in gradients, and in a whole EURNN."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.library import opcheck
from torch.nn.utils import parametrize
from torch.nn.utils.rnn import pack_padded_sequence

from enrnn import EURNN, UnitaryGivens
from enrnn.recurrence import _cuda, _engines, _rotations, _rotations_cuda, reference
from enrnn.recurrence._rotations_torch import reference as by_layers
from enrnn.recurrence._shapes import Limits
from tests._record import Recorder
from tests.recurrence._layers import assert_alike, assert_compiles_in_one_graph
from tests.recurrence._rotations import Case, Problem, problem

SIZES = [(1, 1), (1, 2), (2, 1), (2, 2), (2, 3), (3, 3), (4, 2), (5, 2), (6, 5), (10, 4), (34, 3), (34, 34)]
CASES = [Case(units, layers, lengths=layers % 2 == 0) for units, layers in SIZES]
CASES += [Case(10, 3, nonlinearity=name) for name in ("identity", "relu", "leaky_relu", "tanh")]
CASES += [Case(units, layers, True) for units, layers in [(2, 1), (4, 2), (8, 3), (32, 5)]]
CASES += [Case(6, 2, steps=1, batch=1), Case(6, 2, steps=1, lengths=True), Case(5, 3, nonlinearity="identity", lengths=True)]
H200 = Limits(65536, 232448, (132, 66, 39, 30, 22, 17, 15, 15, 9, 7, 7, 7, 7, 7, 7, 7))
NO_CLUSTERS = Limits(65536, 101376, (82,))


def pulled(states: Tensor, leaves: list[Tensor], upstream: Tensor) -> list[Tensor]:
    found = torch.autograd.grad(states, leaves, upstream, allow_unused=True)  # one unit alone has no angle that matters
    return [torch.zeros_like(leaf) if each is None else each for leaf, each in zip(leaves, found, strict=True)]


def with_gradients(given: Problem, how: str) -> list[Tensor]:
    """States, and the gradients of inputs, angles, phases, bias if there is one, and initial state."""
    arguments = given.leaves()
    inputs, angles, phases, bias, initial, nonlinearity, lengths, layers, butterfly = arguments
    if how == "matrix":
        family = UnitaryGivens(style="fft") if butterfly else UnitaryGivens(layers)
        states = reference.recurrence(inputs, family(angles, phases), bias, initial, nonlinearity, lengths)
    else:
        states = {"layers": by_layers, "operator": _rotations.rotations}[how](*arguments)
    leaves = [each for each in (inputs, angles, phases, bias, initial) if each is not None]
    return [states.detach(), *pulled(states, leaves, given.upstream)]


@pytest.mark.parametrize("how", ["layers", "operator"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_is_the_recurrence_under_the_matrix(case: Case, how: str, record: Recorder) -> None:
    given = problem(case)
    worst = 0.0
    for found, exact in zip(with_gradients(given, how), with_gradients(given, "matrix"), strict=True):
        worst = max(worst, float((found - exact).abs().max() / exact.abs().max().clamp_min(1)))
    record(cases=1, worst_difference=worst)
    assert worst <= 32 * case.layers * case.steps * torch.finfo(torch.float64).eps


@pytest.mark.parametrize("case", [Case(3, 3), Case(4, 2, True, lengths=True), Case(3, 2, nonlinearity="tanh")], ids=str)
def test_its_gradient_by_differences_and_what_torch_asks_of_an_operator(case: Case) -> None:
    arguments = problem(case).leaves()
    leaves = [each for each in arguments if isinstance(each, Tensor) and each.requires_grad]
    places = [place for place, each in enumerate(arguments) if isinstance(each, Tensor) and each.requires_grad]

    def run(*values: Tensor) -> Tensor:
        given = list(arguments)
        for place, value in zip(places, values, strict=True):
            given[place] = value
        states: Tensor = _rotations.rotations(*given)
        return states

    assert torch.autograd.gradcheck(run, leaves)
    opcheck(torch.ops.enrnn.rotations.default, tuple(arguments))
    given = problem(case)
    states = by_layers(*given.arguments())
    opcheck(torch.ops.enrnn.rotations_backward.default, (given.upstream, states, *given.arguments()[1:]))


def test_a_second_derivative_is_refused() -> None:
    arguments = problem(Case(3, 2)).leaves()
    (gradient,) = torch.autograd.grad(_rotations.rotations(*arguments).square().sum(), arguments[0], create_graph=True)
    with pytest.raises(RuntimeError, match="differentiated once only"):
        gradient.sum().backward()


def test_no_sequences_at_all() -> None:
    arguments = problem(Case(3, 2, batch=0)).leaves()
    states = _rotations.rotations(*arguments)
    assert states.shape == (5, 0, 6)
    states.sum().backward()
    assert not arguments[1].grad.any()
    assert arguments[3].grad.shape == (3,)


def twins(*arguments: object, **options: object) -> tuple[EURNN, EURNN]:
    """The same network by rotations and by its matrix."""
    torch.manual_seed(0)
    layer = EURNN(*arguments, **options, dtype=torch.float64)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if name.startswith("bias"):
                parameter.uniform_(-0.1, 0)
    dense = EURNN(*arguments, **options, dtype=torch.float64, backend="reference")
    dense.load_state_dict(layer.state_dict())
    assert (layer.backend_used, dense.backend_used) == ("rotations", "reference")
    return layer, dense


@pytest.mark.parametrize(
    "options", [{}, {"bias": False}, {"nonlinearity": "tanh"}, {"num_layers": 2, "bidirectional": True}], ids=str
)
def test_a_large_network_runs_without_its_matrix(options: dict[str, object]) -> None:
    layer, dense = twins(3, 1024, **options)
    places = layer.num_layers * layer.num_directions
    x, hx = torch.randn(3, 2, 3, dtype=torch.float64), torch.randn(places, 2, 1024, dtype=torch.float64)
    formed = []
    for matrix in layer.matrices().values():
        matrix.register_forward_hook(lambda *_: formed.append(1))
    assert_alike(layer, dense, x, hx)
    assert not formed
    assert list(layer.state_dict()) == list(dense.state_dict())
    assert torch.equal(layer.recurrent_weight(), dense.recurrent_weight())
    assert formed


def test_and_so_does_a_packed_one_in_the_other_style(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_rotations, "CPU_A_LAYER", 1)
    layer, dense = twins(3, 64, style="fft")
    packed = pack_padded_sequence(torch.randn(5, 3, 3, dtype=torch.float64), torch.tensor([5, 3, 1]))
    assert_alike(layer, dense, packed, None)


def test_parameters_in_half_precision() -> None:
    """States are held in float32, as everywhere."""
    layer = EURNN(3, 1024).bfloat16()
    dense = EURNN(3, 1024, backend="torch").bfloat16()
    dense.load_state_dict(layer.state_dict())
    x = torch.randn(4, 2, 3).bfloat16()
    found, exact = (each(x)[0] for each in (layer, dense))
    assert layer.backend_used == "rotations"
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, exact, rtol=0.02, atol=1e-3)
    found.sum().backward()
    assert all(parameter.grad.dtype == torch.bfloat16 for parameter in layer.parameters())


def test_it_compiles_in_one_graph() -> None:
    layer, _ = twins(3, 1024)
    assert_compiles_in_one_graph(layer, torch.randn(3, 2, 3, dtype=torch.float64))


def test_what_stays_with_the_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small networks, callables, backends that were asked for, and a matrix that is no longer a product of rotations."""
    small = EURNN(3, 510)
    assert small.backend_used == EURNN(3, 510, nonlinearity="tanh").backend_used != "rotations"
    assert EURNN(3, 1024, capacity=8).backend_used == small.backend_used
    assert EURNN(3, 1024, nonlinearity=torch.sin).backend_used == "reference"
    for backend in ("reference", "torch"):
        assert EURNN(3, 1024, backend=backend).backend_used == backend
    layer = EURNN(3, 1024)
    monkeypatch.setattr(_engines, "OVERRIDE", "torch")
    assert layer.backend_used == "torch"
    monkeypatch.setattr(_engines, "OVERRIDE", None)
    assert layer.backend_used == "rotations"
    before = layer(torch.ones(2, 1, 3))[0]
    parametrize.remove_parametrizations(layer, "weight_hh_l0")
    assert layer.backend_used != "rotations"
    torch.testing.assert_close(layer(torch.ones(2, 1, 3))[0], before, rtol=1e-4, atol=1e-6)


def test_where_a_gpu_would_take_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a chip's limits say, which are made up here."""
    device, trusted = torch.device("cuda", 0), True

    def taken(size: int, layers: int, limits: Limits = H200, dtype: torch.dtype = torch.float32, backend: str = "auto") -> bool:
        monkeypatch.setattr(_cuda, "unavailable", lambda device: None)
        monkeypatch.setattr(_rotations_cuda, "trusted", lambda device: trusted)
        for module in (_cuda, _rotations_cuda):
            monkeypatch.setattr(module, "limits_of", lambda device: limits)
        found: bool = _rotations.pays(backend, device, dtype, size // 2, layers, "paired_modrelu", True)
        return found

    assert taken(4096, 2)
    assert taken(4096, 2, backend="cuda")
    assert taken(4096, 2, NO_CLUSTERS)
    assert taken(400, 2, NO_CLUSTERS)  # no room for the matrix
    assert taken(4096, 11)
    assert taken(4096, 2, dtype=torch.bfloat16)  # whose states are float32
    assert not taken(200, 2)
    assert taken(512, 2)
    assert not taken(512, 8)
    assert not taken(4096, 2048)
    trusted = False
    assert not taken(4096, 2)
    assert not taken(4096, 2, dtype=torch.float64)
    assert not taken(4096, 2, backend="torch")
    assert not taken(100_000, 2)  # no room for the state


@pytest.mark.parametrize("limits", [H200, NO_CLUSTERS])
def test_a_plan_is_within_the_chips_limits(limits: Limits, record: Recorder) -> None:
    cases = 0
    for units in [*range(1, 200), 1023, 1024, 1025, 2047, 2048, 2049, 3000]:
        for layers in (1, 2, 11, 500):
            for sequences in (1, 32, 10_000):
                plan = _rotations_cuda.plan_for(units, layers, sequences, limits.shared, limits.clusters[0])
                assert plan is not None
                assert plan.slots * 2 in (units, units + 1)
                assert plan.threads % 32 == 0
                assert 32 <= plan.threads <= _rotations_cuda.THREADS
                assert 1 <= plan.blocks <= sequences
                assert plan.state_bytes <= plan.sweep_bytes <= limits.shared
                assert plan.ahead == (units <= 2048)
                assert plan.sums_in_shared or layers == 500 or units > 1000
                cases += 1
    record(cases=cases)
    assert _rotations_cuda.plan_for(20_000, 2, 32, limits.shared, limits.clusters[0]) is None
