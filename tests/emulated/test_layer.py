"""A whole layer step by step, as a user calls it outside of a graph: its matrices are formed by kernels, and looked at once."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor
from torch.nn.utils import parametrize
from torch.overrides import BaseTorchFunctionMode

import enrnn
from enrnn import _replay
from enrnn._later import Later
from enrnn.layers._long_short import LongShort
from enrnn.matrices import EigenvalueNormalized
from enrnn.matrices import _eigenvalue_normalized as normalized
from tests.emulator._chip import Emulated
from tests.recurrence._one_call import CASES, alike, answers, called, layer_for, projected_within, second


def steps(layer: enrnn.ENRNN, x: Tensor, many: int) -> list[Tensor]:
    """Outputs and gradients of steps of gradient descent."""
    found = []
    for _ in range(many):
        output, _ = layer(x)
        layer.zero_grad()
        output.square().sum().backward()
        found += [output.detach().clone(), *(each.grad.clone() for each in layer.parameters() if each.grad is not None)]
        with torch.no_grad():
            for each in layer.parameters():
                each.sub_(each.grad, alpha=0.02)  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize(("q", "s"), [(9, 8), (5, 100)])
def test_a_layer_learns_as_in_float64(q: int, s: int, emulated: Emulated) -> None:
    torch.manual_seed(q)
    layer, x = enrnn.ENRNN(3, q + s, short_size=s, nonlinearity="tanh", backend="cuda"), torch.randn(4, 3, 3)
    with torch.no_grad():
        T = layer.parametrizations["weight_short_l0"].original
        T.mul_(2 / torch.linalg.eigvals(T).abs().max())
    exact = copy.deepcopy(layer).double()
    exact.backend, exact.solver = "reference", "dense"
    matrix, reference = (each.parametrizations["weight_short_l0"][0] for each in (layer, exact))
    reference.solver = "dense"
    found, right = steps(layer, x, 5), steps(exact, x.double(), 5)
    assert len(found) == len(right)
    for each, truth in zip(found, right, strict=True):
        torch.testing.assert_close(each.double(), truth, rtol=1e-4, atol=2e-5 * float(truth.abs().max()))
    assert layer.normalizing.all()
    assert exact.normalizing.all()
    assert torch.equal(matrix.nearly_defective, reference.nearly_defective)
    assert float(matrix.radius) == pytest.approx(float(reference.radius), rel=1e-5)
    for name in ("_noted_on_device", "one_call", "one_call_backward"):
        assert called(name) == [_replay.Program]


@pytest.mark.parametrize("within", [True, False], ids=["projected within", "projected before"])
@pytest.mark.parametrize("name", CASES)
def test_one_call_gives_the_same_bits_as_matrix_by_matrix(
    name: str, within: bool, emulated: Emulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    if within:
        projected_within(monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(LongShort, "_unformed", lambda layer, suffix, x: None)
        right = answers(*layer_for(CASES[name]))
        assert not called("one_call")
    given, before = layer_for(CASES[name]), called("projection")
    assert bool(before) == within
    for _ in range(5):
        found = answers(*given)
        assert alike(found, right, name) if within else all(torch.equal(*pair) for pair in zip(found, right, strict=True))
    assert called("one_call")
    assert called("projection") == before


@pytest.mark.usefixtures("in_any_order_too")
@pytest.mark.parametrize("name", ["modrelu", "no coupling"])
def test_one_call_in_any_order_of_threads(name: str, emulated: Emulated, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that belong to one call begin before others have ended."""
    projected_within(monkeypatch)
    layer, x, first = layer_for(CASES[name], 9, 20)
    found = [answers(layer, x, first) for _ in range(4)]
    assert called("one_call") == called("one_call_backward") == called("_noted_on_device") == [_replay.Program]
    exact = copy.deepcopy(layer).double()
    exact.backend = "reference"
    exact.matrices()["weight_short_l0"].solver = "dense"
    right = answers(exact, x.double(), first.detach().double().requires_grad_())
    for each in found:
        assert all(torch.equal(*pair) for pair in zip(each, found[0], strict=True))
    for each, truth in zip(found[0], right, strict=True):
        torch.testing.assert_close(each.double(), truth.double(), rtol=1e-4, atol=2e-5 * float(truth.double().abs().max()))


def test_a_cell_is_one_call_too(emulated: Emulated, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    cell, x = enrnn.ENRNNCell(3, 11, short_size=5, backend="cuda"), torch.randn(2, 3)
    found = torch.autograd.grad(cell(x).sum(), cell.parameters())
    assert called("one_call")
    monkeypatch.setattr(LongShort, "_unformed", lambda layer, suffix, x: None)
    assert all(torch.equal(*pair) for pair in zip(found, torch.autograd.grad(cell(x).sum(), cell.parameters()), strict=True))


@pytest.mark.parametrize("name", ["modrelu", "no coupling", "long", "short", "two layers, both directions"])
@pytest.mark.parametrize("within", [True, False], ids=["projected within", "projected before"])
def test_second_derivatives(within: bool, name: str, emulated: Emulated, monkeypatch: pytest.MonkeyPatch) -> None:
    if within:
        projected_within(monkeypatch)
    case = CASES[name]
    layer, x, first = layer_for(case._replace(options={**case.options, "nonlinearity": "tanh"}))
    exact = copy.deepcopy(layer).double()
    exact.backend = "reference"
    for matrix in exact.matrices().values():
        if isinstance(matrix, EigenvalueNormalized):
            matrix.solver = "dense"
    right = second(exact, x.double(), first.detach().double().requires_grad_())
    found = second(layer, x, first)
    assert called("one_call")
    for each, truth in zip(found, right, strict=True):
        torch.testing.assert_close(each.double(), truth, rtol=1e-4, atol=2e-5 * float(truth.abs().max()))


@pytest.mark.parametrize("within", [True, False], ids=["projected within", "projected before"])
def test_many_gradients_at_once(within: bool, emulated: Emulated, monkeypatch: pytest.MonkeyPatch) -> None:
    if within:
        projected_within(monkeypatch)
    layer, x, first = layer_for(CASES["modrelu"])
    learning = [first, *layer.parameters()]
    output = layer(x, first)[0]
    assert called("one_call")
    many = torch.randn(3, *output.shape, generator=torch.Generator().manual_seed(2))
    found = torch.autograd.grad(output, learning, many, is_grads_batched=True, retain_graph=True)
    for place, upstream in enumerate(many):
        for each, right in zip(found, torch.autograd.grad(output, learning, upstream, retain_graph=True), strict=True):
            torch.testing.assert_close(each[place], right, rtol=1e-4, atol=1e-5 * float(right.abs().max()))


def test_what_the_matrices_are_formed_from_may_change_before_the_gradient_is_asked_for(emulated: Emulated) -> None:
    """But not before its own gradient is, for which they are formed anew."""
    layer, x, first = layer_for(CASES["modrelu"])
    learning = [first, *layer.parameters()]
    right = torch.autograd.grad(layer(x, first)[0].sum(), learning)
    sums = [layer(x, first)[0].sum() for _ in range(2)]
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if name.endswith("original"):
                parameter.mul_(1.5)
    assert all(torch.equal(*pair) for pair in zip(torch.autograd.grad(sums[0], learning), right, strict=True))
    with pytest.raises(RuntimeError, match="changed in place"):
        torch.autograd.grad(sums[1], learning, create_graph=True)


def test_whoever_wants_to_see_the_matrices_does(emulated: Emulated) -> None:
    layer, x, first = layer_for(CASES["modrelu"])
    chain = layer.parametrizations["weight_short_l0"]
    right, seen = layer(x, first)[0], []
    for register in (chain.register_forward_hook, chain[0].register_forward_hook):
        seen.clear()
        handle = register(lambda module, given, found: seen.append(found))
        assert torch.equal(layer(x, first)[0], right)
        assert len(seen) == 1
        handle.remove()
    with parametrize.cached():
        assert torch.equal(layer.weight_short_l0, seen[0])
        assert torch.equal(layer(x, first)[0], right)
    with BaseTorchFunctionMode():
        assert torch.equal(layer(x, first)[0], right)


class Counted(torch.nn.Module):
    """What is parametrized, and how often it was formed."""

    times = 0

    def forward(self, matrix: Tensor) -> Tensor:
        self.times += 1
        return 2 * matrix


@pytest.mark.parametrize("certified", [True, False])
@pytest.mark.parametrize("within", [True, False], ids=["projected within", "projected before"])
@pytest.mark.parametrize("name", ["weight_ih_l0", "bias_l0"])
def test_a_way_in_that_is_parametrized_is_formed_once(
    name: str, within: bool, certified: bool, emulated: Emulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    if within:
        projected_within(monkeypatch)
    if not certified:
        emulated.change("out[4] = __longlong_as_double(", "out[4] = __longlong_as_double(0 * (long long)")
    layer, x, first = layer_for(CASES["relu"])
    parametrize.register_parametrization(layer, name, counted := Counted())
    counted.times = 0
    found = answers(layer, x, first)
    assert counted.times == 1
    assert called("one_call")
    monkeypatch.setattr(LongShort, "_unformed", lambda layer, suffix, x: None)
    assert all(torch.equal(*pair) for pair in zip(found[:-2], answers(layer, x, first)[:-2], strict=True))


def test_no_sequences(emulated: Emulated, monkeypatch: pytest.MonkeyPatch) -> None:
    projected_within(monkeypatch)
    layer = enrnn.ENRNN(3, 11, short_size=5, nonlinearity="tanh", backend="cuda")
    found = torch.autograd.grad(layer(torch.randn(4, 0, 3))[0].sum(), layer.parameters())
    assert all(not each.any() for each in found)


@pytest.mark.parametrize("size", [6, 100])
def test_what_is_not_finite_is_said_at_once(size: int, emulated: Emulated) -> None:
    matrix, T = EigenvalueNormalized(), torch.randn(size, size, generator=torch.Generator().manual_seed(0))
    for _ in range(4):
        matrix(T)
    for value in (torch.nan, torch.inf):
        T[1, 2] = value
        with pytest.raises(ValueError, match="not finite"):
            matrix(T)
    T[1, 2] = 0.5
    assert matrix(T).isfinite().all()
    assert not matrix.not_finite


@pytest.mark.parametrize("training", [True, False])
def test_what_is_not_certified_is_found_in_another_way(
    training: bool, emulated: Emulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chip whose fast solver is never sure: what is found otherwise is as right, and counted."""
    emulated.change("out[4] = __longlong_as_double(", "out[4] = __longlong_as_double(0 * (long long)")
    matrix, T = EigenvalueNormalized().train(training), torch.randn(6, 6, generator=torch.Generator().manual_seed(1))
    asked: list[str] = []
    plain = normalized._normalized
    monkeypatch.setattr(normalized, "_normalized", lambda *given: (asked.append(given[-1]), plain(*given))[1])
    W = matrix(T)
    assert asked == ["auto"]
    radius = torch.linalg.eigvals(T.double()).abs().max()
    torch.testing.assert_close(W.double(), T.double() / radius, rtol=1e-5, atol=1e-6)
    assert (int(matrix.fallbacks), bool(matrix.normalizing)) == ((1, True) if training else (0, False))


def test_everything_is_launched_before_anybody_waits(emulated: Emulated, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x, first = layer_for(CASES["two layers, both directions"])
    looks: list[int] = []
    looked = Later.__bool__
    monkeypatch.setattr(Later, "__bool__", lambda later: (looks.append(emulated.launched.count("sweep")), looked(later))[1])
    for _ in range(4):
        emulated.launched.clear()
        layer(x, first)
    assert looks == [1, 2, 3, 4] * 4


@pytest.mark.parametrize("training", [True, False])
def test_a_layer_whose_matrix_is_not_certified_finds_it_in_another_way(
    training: bool, emulated: Emulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    emulated.change("out[4] = __longlong_as_double(", "out[4] = __longlong_as_double(0 * (long long)")
    layer, x, first = layer_for(CASES["modrelu"])
    layer.train(training)
    exact = copy.deepcopy(layer).double()
    exact.backend = "reference"
    exact.matrices()["weight_short_l0"].solver = "dense"
    right = answers(exact, x.double(), first.detach().double().requires_grad_())
    for times in (1, 2, 3, 4):
        found = answers(layer, x, first)
        assert int(layer.fallbacks) == times * training
        for each, truth in zip(found[:-3], right[:-3], strict=True):
            torch.testing.assert_close(each.double(), truth.double(), rtol=1e-4, atol=2e-5 * float(truth.double().abs().max()))
    assert called("one_call") == [_replay.Program]


@pytest.mark.parametrize("size", [(6, 5), (6, 40)])
def test_a_layer_whose_matrix_is_not_finite_says_so(size: tuple[int, int], emulated: Emulated) -> None:
    layer, x, first = layer_for(CASES["modrelu"], *size)
    right = answers(layer, x, first)
    T = layer.parametrizations["weight_short_l0"].original
    entry = T[1, 2].item()
    for value in (torch.nan, torch.inf, entry):
        T.data[1, 2] = value
        for _ in range(4):
            if value == entry:
                assert all(torch.equal(*pair) for pair in zip(answers(layer, x, first), right, strict=True))
            else:
                with pytest.raises(ValueError, match="not finite"):
                    layer(x, first)
