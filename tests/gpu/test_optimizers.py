"""The optimisers' kernels against the operations of torch that they take the place of, on the same GPU."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from enrnn import _nvrtc
from enrnn.training import RMSPropTF, _fused
from enrnn.training._optimizers import Adam, _make_states
from tests._record import Recorder

pytestmark = [
    pytest.mark.gpu,
    # torch's, of a step outside of a graph with an optimiser that could be inside of one.
    pytest.mark.filterwarnings("ignore:This instance was constructed with capturable=True:UserWarning"),
]

# More tensors than a launch has room for, around the sizes of a thread's, a warp's and a block's share.
SHAPES = [(1,), (3,), (7, 5), (1000, 33), (), (0, 3), (1023,), (1024,), (1025,), (64, 64), *((n,) for n in range(2, 40))]
EPS = torch.finfo(torch.float32).eps
BETAS = (0.875, 1 - 2**-10)
"""Such that float32 has them: versions of torch differ in whether theirs are rounded to it."""

RULES = {
    "adam": lambda groups: Adam(groups, betas=BETAS, capturable=True, fused=True),
    "rmsprop_tf": lambda groups: RMSPropTF(groups),
    "rmsprop_tf with momentum": lambda groups: RMSPropTF(groups, decay=0.95, momentum=0.9),
}


@pytest.fixture(autouse=True)
def kernels() -> None:
    if reason := _nvrtc.unavailable():
        pytest.skip(reason)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of tensors of every step that a kernel has done."""
    numbers: list[int] = []
    launch = _fused._launch

    def counted(kernel: Any, updates: list[Any], *arguments: Tensor) -> None:
        numbers.append(len(updates))
        launch(kernel, updates, *arguments)

    monkeypatch.setattr(_fused, "_launch", counted)
    return numbers


class Problem:
    """Parameters in two groups, their optimiser, and gradients over several orders of magnitude."""

    def __init__(
        self,
        rule: Callable[[Any], torch.optim.Optimizer],
        dtype: torch.dtype = torch.float32,
        rates_dtype: torch.dtype = torch.float32,
    ) -> None:
        self._generator = torch.Generator().manual_seed(0)
        self.parameters = [nn.Parameter(self._draw(shape, dtype)) for shape in SHAPES]
        half = len(SHAPES) // 2
        self.rates = [torch.tensor(rate, dtype=rates_dtype, device="cuda") for rate in (1e-2, 1e-3)]
        parts = (self.parameters[:half], self.parameters[half:])
        groups = [{"params": part, "lr": rate} for part, rate in zip(parts, self.rates, strict=True)]
        self.optimizer = rule(groups)
        if isinstance(self.optimizer, torch.optim.Adam):
            _make_states(self.optimizer)

    def _draw(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        scale = 10 ** (4 * torch.rand((), generator=self._generator) - 3)
        return (scale * torch.randn(shape, generator=self._generator)).to("cuda", dtype)

    def new_gradients(self) -> None:
        for parameter in self.parameters:
            parameter.grad = self._draw(tuple(parameter.shape), parameter.dtype)

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.new_gradients()
            self.optimizer.step()

    def tensors(self) -> dict[str, Tensor]:
        found = {f"{place} parameter": parameter.detach() for place, parameter in enumerate(self.parameters)}
        for place, parameter in enumerate(self.parameters):
            found |= {f"{place} {name}": value for name, value in self.optimizer.state[parameter].items()}
        return found


def make_odd(parameters: Iterable[nn.Parameter]) -> None:
    """Gradients that are not simply there: of matrices transposed, of vectors expanded, or at an odd address."""
    for place, parameter in enumerate(parameters):
        gradient = parameter.grad
        assert gradient is not None
        if gradient.dim() == 2:
            parameter.grad = gradient.t().contiguous().t()
        elif place % 2:
            parameter.grad = torch.cat([gradient.new_zeros(1), gradient.reshape(-1)])[1:].reshape(gradient.shape)
        elif gradient.dim() == 1:
            parameter.grad = gradient[:1].clone().expand_as(gradient)


def plainly(monkeypatch: pytest.MonkeyPatch, action: Callable[[], None]) -> None:
    """Without our kernels."""
    with monkeypatch.context() as patch:
        patch.setattr(_fused, "kernels_for", lambda tensor: None)
        action()


def distance(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    """The largest difference of entries, in units of the rounding of their tensor's largest entry; for parameters, of 0.1 at
    least, which is how far they have come."""
    assert ours.keys() == theirs.keys()
    found = [0.0]
    for name, one in ours.items():
        if one.numel():
            largest = theirs[name].double().abs().max().item()
            scale = max(largest, 0.1) if name.endswith("parameter") else max(largest, 1e-30)
            found.append((one.double() - theirs[name].double()).abs().max().item() / scale / EPS)
    return max(found)


@pytest.mark.parametrize("rule", RULES)
def test_steps_are_torchs(rule: str, launched: list[int], monkeypatch: pytest.MonkeyPatch, record: Recorder) -> None:
    ours, theirs = Problem(RULES[rule]), Problem(RULES[rule])
    for step in range(50):
        for problem in (ours, theirs):
            problem.new_gradients()
            if step % 3 == 1:
                make_odd(problem.parameters)
            if step % 10 == 7:
                problem.parameters[3].grad = problem.parameters[-1].grad = None
            if step % 10 == 9:
                problem.rates[0].mul_(0.5)
        for parameter in theirs.parameters:
            parameter.grad = None if parameter.grad is None else parameter.grad.clone(memory_format=torch.contiguous_format)
        ours.optimizer.step()
        assert len(launched) == step + 1
        plainly(monkeypatch, theirs.optimizer.step)
        assert len(launched) == step + 1
    assert set(launched) == {len(SHAPES), len(SHAPES) - 2}
    error = distance(ours.tensors(), theirs.tensors())
    record(cases=50, worst_error_in_roundings=error)
    assert error < 16
    if rule == "adam":
        counts = [ours.optimizer.state[parameter]["step"].item() for parameter in ours.parameters]
        assert counts == [45 if place in (3, len(SHAPES) - 1) else 50 for place in range(len(SHAPES))]


def test_adam_with_its_usual_betas_is_adam() -> None:
    """Against float64, in which β₂ is another number: the squares differ by as much, and the updates by less."""
    ours = Problem(lambda groups: Adam(groups, capturable=True, fused=True))
    exact = Problem(lambda groups: Adam(groups, capturable=True, fused=True), torch.float64)
    for problem in (ours, exact):
        problem.steps(50)
    for name, tensor in ours.tensors().items():
        torch.testing.assert_close(tensor.double(), exact.tensors()[name].double(), rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("rule", RULES)
def test_two_runs_have_the_same_bits(rule: str) -> None:
    one, other = Problem(RULES[rule]), Problem(RULES[rule])
    for problem in (one, other):
        problem.steps(20)
    assert all(torch.equal(tensor, other.tensors()[name]) for name, tensor in one.tensors().items())


@pytest.mark.parametrize("rule", RULES)
def test_replays_are_steps(rule: str, launched: list[int]) -> None:
    eager, replayed = Problem(RULES[rule]), Problem(RULES[rule])
    for problem in (eager, replayed):
        problem.steps(3)
    static = [torch.zeros_like(parameter) for parameter in replayed.parameters]
    for parameter, gradient in zip(replayed.parameters, static, strict=True):
        parameter.grad = gradient
    graph = torch.cuda.CUDAGraph()
    before = len(launched)
    with torch.cuda.graph(graph):
        replayed.optimizer.step()
    assert len(launched) == before + 1
    for step in range(20):
        for problem in (eager, replayed):
            problem.rates[1].fill_(1e-3 / (1 + step))
        eager.steps(1)
        replayed.new_gradients()
        for parameter, gradient in zip(replayed.parameters, static, strict=True):
            gradient.copy_(parameter.grad)  # type: ignore[arg-type]
        graph.replay()
    assert all(torch.equal(tensor, replayed.tensors()[name]) for name, tensor in eager.tensors().items())


@pytest.mark.parametrize("rule", RULES)
def test_a_state_goes_to_the_plain_steps_and_back(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reference, by_turns = Problem(RULES[rule]), Problem(RULES[rule])
    plainly(monkeypatch, lambda: reference.steps(15))
    ours = by_turns.optimizer
    keys = {name for states in ours.state.values() for name in states}
    by_turns.steps(5)
    groups = [{"params": group["params"]} for group in ours.param_groups]
    theirs = torch.optim.Adam(groups) if rule == "adam" else RULES[rule](groups)
    theirs.load_state_dict(copy.deepcopy(ours.state_dict()))
    by_turns.optimizer = theirs
    plainly(monkeypatch, lambda: by_turns.steps(5))
    ours.load_state_dict(copy.deepcopy(theirs.state_dict()))
    by_turns.optimizer = ours
    by_turns.steps(5)
    assert {name for states in ours.state.values() for name in states} == keys
    assert distance(by_turns.tensors(), reference.tensors()) < 16


@pytest.mark.parametrize(
    "rule",
    [
        lambda groups: Adam(groups, weight_decay=0.1, capturable=True, fused=True),
        lambda groups: Adam(groups, amsgrad=True, capturable=True, fused=True),
        lambda groups: Adam(groups, maximize=True, capturable=True, fused=True),
        lambda groups: Adam(groups, capturable=True),
    ],
)
def test_what_the_kernel_is_not_for_is_left_to_torch(rule: Callable[[Any], torch.optim.Optimizer], launched: list[int]) -> None:
    Problem(rule).steps(2)
    assert launched == []


@pytest.mark.parametrize("rule", RULES)
def test_other_dtypes_are_left_to_torch(rule: str, launched: list[int]) -> None:
    Problem(RULES[rule], torch.float64, torch.float32 if rule == "adam" else torch.float64).steps(2)
    assert launched == []
