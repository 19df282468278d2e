"""The gated recurrence as one operator is the one under autograd: in outputs, in gradients, and in a whole GORU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.library import opcheck
from torch.nn.utils import parametrize
from torch.nn.utils.rnn import pack_padded_sequence

from enrnn import GORU
from enrnn.recurrence import _engines, _gated
from tests._record import Recorder
from tests.recurrence._gated import Case, plain, problem, sweeps
from tests.recurrence._layers import assert_alike, assert_compiles_in_one_graph

NAMES = list(_gated.SIGMA)
CASES = [Case(units, lengths=units % 2 == 0) for units in (1, 2, 3, 8, 33, 100)]
CASES += [Case(7, nonlinearity=name, lengths=lengths) for name in NAMES for lengths in (False, True)]
CASES += [Case(6, steps=1, batch=1), Case(6, steps=1, lengths=True), Case(6, batch=1), Case(5, steps=60, batch=2, lengths=True)]
EPS = torch.finfo(torch.float64).eps


@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_is_the_recurrence_under_autograd(case: Case, record: Recorder) -> None:
    given, worst = problem(case), 0.0
    exact = sweeps(plain, given)
    for found, value in zip(sweeps(_gated.gated, given), exact, strict=True):
        assert found.shape == value.shape
        worst = max(worst, float((found - value).abs().max() / value.abs().max().clamp_min(1)))
    record(cases=1, worst_difference=worst)
    assert worst <= 16 * case.steps * case.units**0.5 * EPS
    *arguments, _ = given.arguments()
    states, kept = _gated.gated(*arguments, False)
    assert torch.equal(states, _gated.gated(*arguments, True)[0])
    assert kept.numel() == 0


def test_a_strided_problem_is_the_same() -> None:
    """As a layer with `batch_first`, a start that is expanded and an upstream gradient of one number hand it over."""
    given = problem(Case(5, batch=4))
    strided = given._replace(
        inputs=given.inputs.transpose(0, 1).contiguous().transpose(0, 1),
        weight=given.weight.mT.contiguous().mT,
        initial=given.initial[:1].expand(4, -1),
        upstream=torch.ones((), dtype=torch.float64).expand_as(given.upstream),
    )
    assert strided.inputs.stride() != given.inputs.stride()
    for found, value in zip(sweeps(_gated.gated, strided), sweeps(plain, strided), strict=True):
        torch.testing.assert_close(found, value, rtol=1e-12, atol=1e-13)


def test_padding_that_is_not_finite_is_not_heard() -> None:
    given = problem(Case(5, steps=6, batch=4, lengths=True))
    assert given.lengths is not None
    expected = sweeps(_gated.gated, given)
    past = torch.arange(6).unsqueeze(1) >= given.lengths
    assert past.any()
    padded = given._replace(inputs=given.inputs.masked_fill(past.unsqueeze(-1), float("nan")))
    for found, value in zip(sweeps(_gated.gated, padded), expected, strict=True):
        assert torch.equal(found, value)


@pytest.mark.parametrize("case", [Case(3), Case(4, lengths=True), Case(3, nonlinearity="tanh")], ids=str)
def test_its_gradient_by_differences_and_what_torch_asks_of_an_operator(case: Case) -> None:
    arguments = problem(case).leaves()
    places = [place for place, each in enumerate(arguments) if isinstance(each, Tensor) and each.requires_grad]

    def run(*values: Tensor) -> Tensor:
        given = list(arguments)
        for place, value in zip(places, values, strict=True):
            given[place] = value
        states: Tensor = _gated.gated(*given)[0]
        return states

    assert torch.autograd.gradcheck(run, [arguments[place] for place in places])
    opcheck(torch.ops.enrnn.gated.default, tuple(arguments))
    given = problem(case)
    _, *others, keep = given.arguments()
    opcheck(torch.ops.enrnn.gated.default, (given.inputs, *others, False))
    states, kept = _gated.gated(given.inputs, *others, keep)
    opcheck(torch.ops.enrnn.gated_backward.default, (given.upstream, states, kept, *others, True))


def test_a_second_derivative_is_refused() -> None:
    arguments = problem(Case(3)).leaves()
    (gradient,) = torch.autograd.grad(_gated.gated(*arguments)[0].square().sum(), arguments[0], create_graph=True)
    with pytest.raises(RuntimeError, match="differentiated once only"):
        gradient.square().sum().backward()


def test_an_empty_batch() -> None:
    arguments = problem(Case(3, batch=0)).leaves()
    states = _gated.gated(*arguments)[0]
    assert states.shape == (5, 0, 3)
    states.sum().backward()
    assert not arguments[1].grad.any()
    assert arguments[2].grad.shape == (3,)


@pytest.mark.parametrize("nonlinearity", ["modrelu", "tanh"])
def test_a_threshold_is_modrelus_alone(nonlinearity: str) -> None:
    """A kernel would read it where there is none, or not read it."""
    inputs, weight, _, initial, *_ = problem(Case(3)).arguments()
    bias = None if nonlinearity == "modrelu" else initial[0]
    with pytest.raises(ValueError, match="threshold"):
        _gated.gated(inputs, weight, bias, initial, nonlinearity, None, True)


def twins(*arguments: object, **options: object) -> tuple[GORU, GORU]:
    """The same network by the operator and under autograd."""
    torch.manual_seed(0)
    layer = GORU(*arguments, **options, dtype=torch.float64)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if "original" not in name:
                parameter.normal_().mul_(0.5)
    slow = GORU(*arguments, **options, dtype=torch.float64, backend="reference")
    slow.load_state_dict(layer.state_dict())
    assert (layer.backend_used, slow.backend_used) == ("gated", "reference")
    return layer, slow


OPTIONS = [{}, {"bias": False}, {"style": "fft"}, {"batch_first": True}, {"num_layers": 2, "bidirectional": True}]
OPTIONS += [{"nonlinearity": name, "bias": bias} for name in NAMES for bias in (False, True)]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_network_is_the_one_under_autograd(options: dict[str, object]) -> None:
    layer, slow = twins(3, 8, **options)
    places = layer.num_layers * layer.num_directions
    x, hx = torch.randn(6, 4, 3, dtype=torch.float64), torch.randn(places, 6 if layer.batch_first else 4, 8, dtype=torch.float64)
    assert_alike(layer, slow, x, hx)
    if not layer.batch_first:
        packed = pack_padded_sequence(x, torch.tensor([5, 6, 1, 3]), enforce_sorted=False)
        assert_alike(layer, slow, packed, hx)
    with torch.no_grad():
        torch.testing.assert_close(layer(x)[0], slow(x)[0])


def test_parameters_in_half_precision() -> None:
    """States are held in float32, as everywhere."""
    layer, slow = GORU(3, 8).bfloat16(), GORU(3, 8, backend="reference").bfloat16()
    slow.load_state_dict(layer.state_dict())
    x = torch.randn(4, 2, 3).bfloat16()
    found, exact = (each(x)[0] for each in (layer, slow))
    assert layer.backend_used == "gated"
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, exact, rtol=0.01, atol=1e-4)
    found.sum().backward()
    assert all(parameter.grad.dtype == torch.bfloat16 for parameter in layer.parameters())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert GORU(3, 8)(x.float())[0].dtype == torch.float32


def test_it_compiles_in_one_graph() -> None:
    layer, _ = twins(3, 8)
    assert_compiles_in_one_graph(layer, torch.randn(3, 2, 3, dtype=torch.float64))


def test_what_stays_on_the_reference_path(monkeypatch: pytest.MonkeyPatch) -> None:
    assert GORU(3, 8, nonlinearity=torch.sin).backend_used == "reference"
    layer = GORU(3, 8, backend="reference")
    (gradient,) = torch.autograd.grad(layer(torch.ones(2, 1, 3))[0].sum(), layer.weight_gates_l0, create_graph=True)
    gradient.square().sum().backward()
    free = GORU(3, 8)
    parametrize.remove_parametrizations(free, "weight_hh_l0")
    assert free.backend_used == "gated"  # which needs no constraint
    for override, used in (("reference", "reference"), ("torch", "reference"), ("cuda", "reference"), ("cpu", "gated")):
        monkeypatch.setattr(_engines, "OVERRIDE", override)
        assert free.backend_used == used
        assert free(torch.ones(2, 1, 3))[0].shape == (2, 1, 8)


def test_a_grid_covers_every_unit_of_every_sequence() -> None:
    for units in (1, 31, 32, 33, 127, 128, 129, 512, 1000):
        for sequences in (1, 32, 65535, 65536):
            (across, down), threads = _gated._grid(sequences, units)
            assert threads % 32 == 0
            assert threads <= _gated.THREADS
            assert (across - 1) * threads < units <= across * threads
            assert down == min(sequences, 65535)
