"""Operators as torch sees them; that each formula is right is tested where the operator is."""

from __future__ import annotations

import subprocess
import sys
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from enrnn._operators import Operator


@Operator
def _tripled(x: Tensor, times: int, other: Tensor | None) -> Tensor:
    return 3 * times * x


@_tripled.register_fake
def _(x: Tensor, times: int, other: Tensor | None) -> Tensor:
    return torch.empty_like(x)


@Operator
def _without_formula(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.clone(), 2 * x


@_without_formula.register_fake
def _(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(x)


def _setup_context(ctx: Any, inputs: tuple[Tensor, int, Tensor | None], output: Tensor) -> None:
    assert output.shape == inputs[0].shape
    ctx.times = inputs[1]


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    assert ctx.needs_input_grad[0]
    return 3 * ctx.times * gradient, None, None


_tripled.register_autograd(_backward, setup_context=_setup_context)


def test_torch_accepts_it() -> None:
    for other in (None, torch.ones(2)):
        torch.library.opcheck(torch.ops.enrnn.tripled.default, (torch.ones(4, requires_grad=True), 2, other))
        torch.library.opcheck(torch.ops.enrnn.tripled.default, (torch.ones(4), 2, other))
    torch.library.opcheck(torch.ops.enrnn.without_formula.default, (torch.ones(4),))


def test_its_gradient_and_where_there_is_none() -> None:
    x = torch.ones(4, requires_grad=True)
    assert torch.equal(torch.autograd.grad(_tripled(x, 5, None).sum(), x)[0], torch.full((4,), 15.0))
    with torch.no_grad():
        assert not _tripled(x, 5, None).requires_grad
    assert not _tripled(x.detach(), 5, None).requires_grad
    first, second = _without_formula(x)
    with pytest.raises(RuntimeError, match="enrnn::without_formula has no formula for a gradient"):
        (first + second).sum().backward()


def test_it_is_one_call_for_whoever_watches() -> None:
    seen: list[str] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    with Watch():
        _tripled(torch.ones(4), 2, None)
    assert seen[-2:].count("enrnn.tripled.default") == 1
    graph = torch.fx.experimental.proxy_tensor.make_fx(lambda x: _tripled(x, 2, None))(torch.ones(4))
    assert [node.target for node in graph.graph.nodes if node.op == "call_function"] == [torch.ops.enrnn.tripled.default]


def test_a_compiled_function_calls_it_without_a_break() -> None:
    compiled = torch.compile(lambda x: _tripled(x, 2, None) + 1, fullgraph=True, backend="aot_eager")
    x = torch.ones(4, requires_grad=True)
    assert torch.equal(compiled(x), torch.full((4,), 7.0))
    assert torch.equal(torch.autograd.grad(compiled(x).sum(), x)[0], torch.full((4,), 6.0))


def test_a_layer_that_is_not_compiled_does_not_load_the_compiler() -> None:
    """Which takes two seconds."""
    lines = [
        "import sys, torch, enrnn",
        "enrnn.ENRNN(3, 8, short_size=4)(torch.randn(5, 2, 3))[0].sum().backward()",
        "assert 'torch._dynamo' not in sys.modules",
    ]
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True, timeout=120)


class Program:
    """What a call that is replayed is done by."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self, arguments: tuple[Any, ...]) -> Tensor:
        self.times += 1
        x, times, _ = arguments
        return 3 * times * x


class Noting(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Watching(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_a_call_that_is_replayed_goes_there_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    program, x = Program(), torch.randn(4, requires_grad=True)
    monkeypatch.setattr(_tripled, "_replayed", lambda arguments: program if arguments[1] == 5 else None)
    assert _tripled.again(x, 4, None) is None
    found = _tripled.again(x, 5, None)
    assert found.grad_fn.name() == "enrnn_tripled_Backward" == _tripled(x, 5, None).grad_fn.name()
    assert torch.equal(torch.autograd.grad(found, x, torch.ones(4))[0], torch.full((4,), 15.0))
    with torch.no_grad():
        assert not _tripled.again(x, 5, None).requires_grad
    assert not _tripled.again(x.detach(), 5, None).requires_grad
    assert program.times == 4


def test_it_does_not_where_somebody_has_to_know_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    program, x, asked = Program(), torch.randn(4), []
    monkeypatch.setattr(_tripled, "_replayed", lambda arguments: program)

    def call(x: Tensor) -> Tensor:
        asked.append(_tripled.again(x, 5, None) is not None)
        return _tripled(x, 5, None)

    call(x)
    assert asked == [True]
    torch.func.grad(lambda x: call(x).sum())(x)
    torch.func.vmap(call)(x[None])
    torch.func.jvp(lambda x: 2 * x if call(x.detach()) is None else x, (x,), (x,))
    for listener in (Noting(), Watching(), torch.device("cpu"), torch.profiler.profile()):
        with listener:  # type: ignore[attr-defined]
            call(x)
    with torch._C._AutoDispatchBelowAutograd():
        call(x)
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        torch.jit.trace(call, x, check_trace=False)
    compiled = torch.compile(lambda x: call(x) + 1, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x), 15 * x + 1)
    assert asked[1:] == [False] * (len(asked) - 1)
    assert len(asked) == 11
    call(x)
    assert asked[-1]
