"""Layers that are trained outside of a graph: their matrices and the recurrence in one call, the same bits as one by one."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import enrnn
from enrnn import _replay
from enrnn.layers._long_short import LongShort
from enrnn.spectrum import _solve
from enrnn.spectrum._dense import Dominant, dominant
from tests.recurrence._one_call import CASES, alike, answers, called, layer_for, projected_within, second

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("kernels")]

SIZES = [(6, 5), (96, 64), (374, 94), (310, 720)]


def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LongShort, "_unformed", lambda layer, suffix, x: None)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("within", [True, False], ids=["projected within", "projected before"])
@pytest.mark.parametrize("name", CASES)
def test_the_same_bits(name: str, within: bool, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    if within:
        projected_within(monkeypatch)
    given = layer_for(CASES[name], *size, "cuda")
    found = [answers(*given) for _ in range(6)]
    assert _replay.Program in called("one_call")
    one_by_one(monkeypatch)
    right = answers(*layer_for(CASES[name], *size, "cuda"))
    for each in found:
        assert alike(each, right, name) if within else all(torch.equal(*pair) for pair in zip(each, right, strict=True))


@pytest.mark.parametrize("batch_first", [True, False], ids=["sequences first", "steps first"])
@pytest.mark.parametrize(
    ("steps", "features", "size"), [(300, 2, (96, 64)), (300, 129, (374, 94)), (60, 500, (310, 720))], ids=str
)
def test_a_layer_as_large_as_the_papers(
    steps: int, features: int, size: tuple[int, int], batch_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose inputs are projected within the call, and learn; everything is replayed."""

    def learned() -> list[torch.Tensor]:
        torch.manual_seed(0)
        layer = enrnn.ENRNN(features, sum(size), short_size=size[1], batch_first=batch_first, device="cuda")
        x = torch.randn(*(32, steps) if batch_first else (steps, 32), features, device="cuda").requires_grad_()
        return list(torch.autograd.grad(layer(x)[0].square().sum(), [x, *layer.parameters()]))

    found = [learned() for _ in range(5)]
    assert called("one_call") == called("one_call_backward") == [_replay.Program]
    assert _replay.Program not in called("projection")
    one_by_one(monkeypatch)
    right = learned()
    for each in found:
        assert all(torch.equal(*pair) for pair in zip(each, right, strict=True))


@pytest.mark.parametrize("size", [*SIZES, (200, 30), (512, 512)], ids=str)
def test_launches_that_come_again_are_graphs(size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """All of a call, or what lies between its products."""
    layer, x, first = layer_for(CASES["modrelu"], *size, "cuda")
    for _ in range(8):
        found: list[torch.Tensor] = []  # what was found before is freed before: addresses come again at once
        found = answers(layer, x, first)
    for name in ("_noted_on_device", "one_call", "one_call_backward"):
        (program,) = (
            each for function in _replay._known if function.__name__ == name for each in _replay._known[function].values()
        )
        assert type(program) is _replay.Program
        graphs = [each for ready in program._free for each in ready.graphs]
        assert graphs
        assert all(any(known.graph is not None for known in each._known.values()) for each in graphs)
    one_by_one(monkeypatch)
    assert all(torch.equal(*pair) for pair in zip(found, answers(layer, x, first), strict=True))


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_a_matrix_that_is_not_finite(size: tuple[int, int]) -> None:
    """It is said before the layer returns, whatever the recurrence has made of it meanwhile."""
    layer, x, first = layer_for(CASES["modrelu"], *size, "cuda")
    right = answers(layer, x, first)
    T = layer.parametrizations["weight_short_l0"].original
    entry = T[1, 2].item()
    for value in (torch.nan, torch.inf, -torch.inf, 3e38, entry):
        T.data[1, 2] = value
        for _ in range(4):
            if value == entry:
                assert all(torch.equal(*pair) for pair in zip(answers(layer, x, first)[:-4], right[:-4], strict=True))
            elif value == 3e38:
                assert layer(x, first)[0].isfinite().all()
            else:
                with pytest.raises(ValueError, match="not finite"):
                    layer(x, first)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_a_matrix_that_cannot_be_certified(size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """All of its eigenvalues are as large. What was found with it before anybody looked is not used, late as the chip may be."""
    pairs: list[Dominant] = []
    """By the dense solver: which eigenvalue comes first is a matter of rounding, and T's gradient a function of it."""

    def learned() -> dict[str, torch.Tensor]:
        layer, x, first = layer_for(CASES["modrelu"], *size, "cuda")
        learning = {"first state": first, **dict(layer.named_parameters())}
        T = layer.parametrizations["weight_short_l0"].original
        T.detach().copy_(torch.eye(len(T)).roll(1, 0))
        found = {}
        for step in range(4):
            torch.cuda._sleep(3_000_000)
            output, last = layer(x, first)
            torch.cuda._sleep(3_000_000)
            gradients = torch.autograd.grad(output.square().sum() + last.sum(), learning.values())
            found |= {f"{name}, step {step}": each for name, each in zip(learning, gradients, strict=True)}
            found[f"output, step {step}"] = output.detach()
            with torch.no_grad():
                T.mul_(1.1)
        assert int(layer.fallbacks) == 4
        return found

    def solved(matrix: torch.Tensor) -> Dominant:
        pairs.append(dominant(matrix))
        return pairs[-1]

    monkeypatch.setattr(_solve, "dominant", solved)
    found = learned()
    assert pairs
    monkeypatch.setattr(_solve, "dominant", lambda matrix: pairs.pop(0))
    one_by_one(monkeypatch)
    right = learned()
    assert not pairs
    differ = {name: float((found[name] - right[name]).norm() / right[name].norm()) for name in right}
    assert not {name: by for name, by in differ.items() if not torch.equal(found[name], right[name])}


@pytest.mark.parametrize("size", SIZES[:2], ids=str)
@pytest.mark.parametrize("name", ["modrelu", "no coupling", "long", "short"])
def test_second_derivatives(name: str, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    projected_within(monkeypatch)
    case = CASES[name]
    layer, x, first = layer_for(case._replace(options={**case.options, "nonlinearity": "tanh"}), *size, "cuda")
    exact = copy.deepcopy(layer).double()
    exact.backend = "reference"
    right = second(exact, x.double(), first.detach().double().requires_grad_())
    for each, truth in zip(second(layer, x, first), right, strict=True):
        torch.testing.assert_close(each.double(), truth, rtol=1e-3, atol=1e-4 * float(truth.abs().max()))


def test_learning_on_a_chip_that_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters are changed while kernels that read them are still to run; matrices note what they find as they did."""

    def learned() -> list[torch.Tensor]:
        layer, x, first = layer_for(CASES["two layers, both directions"], 96, 64, "cuda")
        optimizer = torch.optim.SGD(layer.parameters(), 1e-3)
        for _ in range(8):
            torch.cuda._sleep(3_000_000)
            optimizer.zero_grad()
            layer(x, first)[0].square().sum().backward()
            optimizer.step()
        return [*layer.parameters(), layer.normalizing, layer.nearly_defective, layer.spectral_radius]

    found = learned()
    assert _replay.Program in called("one_call")
    one_by_one(monkeypatch)
    assert all(torch.equal(*pair) for pair in zip(found, learned(), strict=True))


def test_threads_train_layers_of_their_own() -> None:
    """On streams of their own, with calls of the same kinds, of which each is replayed by one thread at a time."""

    def repeat(_: int) -> list[list[torch.Tensor]]:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            given = layers.pop()
            found = [answers(*given) for _ in range(12)]
        stream.synchronize()
        return found

    layers = [layer_for(CASES["modrelu"], 96, 64, "cuda") for _ in range(5)]
    right = answers(*layers.pop())
    torch.cuda.synchronize()
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(repeat, range(4)):
            assert all(torch.equal(*pair) for each in found for pair in zip(each, right, strict=True))
