"""Where nobody learns a matrix is formed once; and whatever changes what it is formed from, the next call knows."""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as fwAD
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import enrnn
from enrnn.layers._remembered import Remembered

CONSTRAINED = [name for name in enrnn.networks() if hasattr(enrnn.build(name, 2, 6), "parametrizations")]
X = torch.linspace(-1, 1, 9 * 3 * 2).view(9, 3, 2)
SETTINGS: dict[str, dict[str, Any]] = {"clockwork": {"periods": (1, 2, 4)}}  # all of which move within X


@pytest.fixture
def formed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the weights that were formed, in order, whatever was served without."""
    names: list[str] = []
    plain = Remembered.matrix

    def watched(self: Remembered, name: str, chain: Any, originals: tuple[Tensor, ...], form: Callable[[], Tensor]) -> Tensor:
        def noted() -> Tensor:
            names.append(name)
            return form()

        return plain(self, name, chain, originals, noted)

    monkeypatch.setattr(Remembered, "matrix", watched)
    return names


def layer_of(name: str = "enrnn") -> Any:
    torch.manual_seed(0)
    return enrnn.build(name, 2, 6, **SETTINGS.get(name, {})).eval()


def run(layer: nn.Module) -> Tensor:
    with torch.no_grad():
        output: Tensor = layer(X)[0]
    return output


def served(layer: nn.Module) -> Tensor:
    """Its output when all that can be remembered is: forming may write what it found to buffers, so that twice is not enough."""
    return [run(layer) for _ in range(3)][-1]


def fresh(layer: nn.Module) -> Tensor:
    """By a copy, which remembers nothing."""
    return run(copy.deepcopy(layer))


def originals(layer: nn.Module) -> dict[str, nn.Parameter]:
    return {name: value for name, value in layer.named_parameters() if "original" in name}


@pytest.mark.parametrize("name", CONSTRAINED)
def test_is_formed_once_and_gives_the_same_bits(name: str, formed: list[str]) -> None:
    layer = layer_of(name)
    first = run(layer)
    served(layer)
    formed.clear()
    assert torch.equal(run(layer), first)
    assert not formed
    assert torch.equal(fresh(layer), first)
    assert formed


@pytest.mark.parametrize("name", CONSTRAINED)
@pytest.mark.parametrize("way", ["in place", "data", "numpy", "state"])
def test_every_change_of_a_parameter_counts(name: str, way: str) -> None:
    layer = layer_of(name)
    for key, original in originals(layer).items():
        before, moved = served(layer), torch.randn_like(original)
        with torch.no_grad():
            if way == "in place":
                original.add_(moved)
            elif way == "data":
                original.data = original.data + moved
            elif way == "numpy":
                original.detach().numpy()[...] += moved.numpy()
            else:
                layer.load_state_dict({key: original + moved}, strict=False)
        after = run(layer)
        assert torch.equal(after, fresh(layer)), key
        assert not torch.equal(after, before), key


def test_one_bit_is_a_change(formed: list[str]) -> None:
    layer = layer_of("scornn")
    (original,) = originals(layer).values()
    with torch.no_grad():
        original.view(-1)[0] = 0.0
    served(layer)
    formed.clear()
    with torch.no_grad():
        original.view(-1)[0] = -0.0
    run(layer)
    assert formed


def test_settings_and_buffers_count() -> None:
    layer = enrnn.ENRNN(2, 6).eval()
    matrix = layer.parametrizations["weight_short_l0"][0]
    before = served(layer)
    matrix.normalizing.fill_(True)
    normalized = run(layer)
    assert torch.equal(normalized, fresh(layer))
    assert not torch.equal(normalized, before)
    served(layer)
    matrix.epsilon = 0.5
    assert torch.equal(run(layer), fresh(layer))
    assert not torch.equal(run(layer), normalized)


def test_of_another_dtype() -> None:
    layer = layer_of()
    served(layer)
    layer.double()
    with torch.no_grad():
        assert torch.equal(layer(X.double())[0], copy.deepcopy(layer)(X.double())[0])
        layer.bfloat16()
        assert torch.equal(layer(X.bfloat16())[0], copy.deepcopy(layer)(X.bfloat16())[0])


def test_training_between_evaluations() -> None:
    layer = layer_of()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for _ in range(3):
        before = served(layer)
        layer.train()
        layer(X)[0].square().sum().backward()
        optimizer.step()
        layer.eval()
        after = run(layer)
        assert torch.equal(after, fresh(layer))
        assert not torch.equal(after, before)


@pytest.mark.parametrize("name", CONSTRAINED)
def test_gradients_are_as_ever(name: str) -> None:
    """In evaluation mode too, as one differentiates by the input or by the parameters."""
    layer, other = layer_of(name), layer_of(name)
    served(layer)
    for each in (layer, other):
        each(X)[0].square().sum().backward()
    for mine, expected in zip(layer.parameters(), other.parameters(), strict=True):
        assert (mine.grad is None) == (expected.grad is None)
        assert mine.grad is None or torch.equal(mine.grad, expected.grad)


@pytest.mark.parametrize("mode", [nullcontext, torch.no_grad, torch.inference_mode])
def test_of_a_frozen_network_derivatives_by_the_input(
    mode: Callable[[], AbstractContextManager[object]], formed: list[str]
) -> None:
    layer = layer_of().requires_grad_(False)
    with mode():
        for _ in range(3):
            layer(X)
    formed.clear()
    x = X.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(layer(x)[0].square().sum(), x)
    assert not formed
    (expected,) = torch.autograd.grad(copy.deepcopy(layer)(x)[0].square().sum(), x)
    assert torch.equal(gradient, expected)


def test_what_is_returned_may_be_changed() -> None:
    for layer in (layer_of(), enrnn.ENRNN(2, 6, short_size=6).eval(), enrnn.ENRNN(2, 6, short_size=0).eval(), layer_of("scornn")):
        before = served(layer)
        with torch.no_grad():
            layer.recurrent_weight().zero_()
            assert torch.equal(run(layer), before)


def test_copies_begin_with_none() -> None:
    layer = layer_of()
    before = served(layer)
    other = copy.deepcopy(layer)
    assert not vars(other)["_remembered"]._formed
    with torch.no_grad():
        for original in originals(layer).values():
            original.mul_(-1)
    assert torch.equal(run(other), before)
    assert torch.equal(run(layer), fresh(layer))


class _Watch(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **kwargs or {})


class _Overridden(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **kwargs or {})


@pytest.mark.parametrize("mode", [_Watch, _Overridden, lambda: torch.autocast("cpu", torch.bfloat16), fwAD.dual_level])
def test_who_watches_sees_it_formed(mode: Callable[[], AbstractContextManager[object]], formed: list[str]) -> None:
    layer = layer_of()
    served(layer)
    formed.clear()
    with mode():
        run(layer)
    assert formed


def test_hooks_are_called() -> None:
    layer = layer_of()
    served(layer)
    seen: list[Tensor] = []
    matrix = layer.parametrizations["weight_short_l0"][0]
    hook = matrix.register_forward_hook(lambda module, inputs, output: seen.append(output))
    run(layer)
    run(layer)
    assert len(seen) == 2
    hook.remove()
    served(layer)
    assert len(seen) == 2


def test_what_others_put_behind_it_is_applied() -> None:
    class Drawn(nn.Module):
        def forward(self, W: Tensor) -> Tensor:
            return W * torch.rand(())

    layer = layer_of()
    before = served(layer)
    parametrize.register_parametrization(layer, "weight_short_l0", Drawn())
    layer.eval()
    assert not torch.equal(run(layer), before)
    assert not torch.equal(run(layer), run(layer))


def test_functional_calls() -> None:
    layer, other = layer_of(), layer_of()
    before = served(layer)
    with torch.no_grad():
        for original in originals(other).values():
            original.mul_(-0.5)
        given = dict(other.named_parameters())
        expected = fresh(other)
        for _ in range(3):
            assert torch.equal(torch.func.functional_call(layer, given, (X,))[0], expected)
        assert torch.equal(run(layer), before)
        stacked = {name: torch.stack([value, given[name]]) for name, value in layer.named_parameters()}
        both = torch.func.vmap(lambda parameters: torch.func.functional_call(layer, parameters, (X,))[0])(stacked)
    torch.testing.assert_close(both, torch.stack([before, expected]))
    assert torch.equal(run(layer), before)


def test_within_cached_there_is_torchs_cache() -> None:
    layer = layer_of()
    served(layer)
    with parametrize.cached(), torch.no_grad():
        first = layer(X)[0]
        for original in originals(layer).values():
            original.mul_(-1)
        assert torch.equal(layer(X)[0], first)
    assert not torch.equal(run(layer), first)


def test_cells_and_final_states(formed: list[str]) -> None:
    cell, layer = enrnn.ENRNNCell(2, 6).eval(), layer_of()
    with torch.no_grad():
        for _ in range(3):
            cell(X[0]), layer.final_state(X)
        formed.clear()
        cell(X[0]), layer.final_state(X)
    assert not formed


def test_from_several_threads() -> None:
    layer = layer_of()
    expected = fresh(layer)
    with ThreadPoolExecutor(8) as threads:
        assert all(torch.equal(output, expected) for output in threads.map(lambda _: run(layer), range(64)))


def test_under_compile() -> None:
    layer = layer_of()
    served(layer)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        with torch.no_grad():
            torch.testing.assert_close(compiled(X)[0], fresh(layer))
            for original in originals(layer).values():
                original.mul_(-0.5)
