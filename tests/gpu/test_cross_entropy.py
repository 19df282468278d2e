"""The mean cross-entropy by kernels, against torch's in float64: values, gradients, in a graph, and always the same."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from enrnn.tasks import _cross_entropy
from enrnn.tasks._cross_entropy import mean_cross_entropy
from tests._record import Recorder

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("kernels")]

SIZES = [(50, 32, 50), (2020, 20, 9), (1, 1, 1), (7, 3, 2), (5, 13, 33), (3, 1, 1024), (64, 64, 32)]


def drawn(steps: int, batch: int, classes: int, scale: float = 3.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator("cuda").manual_seed(classes)
    outputs = scale * torch.randn(steps, batch, classes, device="cuda", generator=generator)
    return outputs, torch.randint(classes, (steps, batch), device="cuda", generator=generator)


def by_torch(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs.flatten(0, -2), targets.flatten())


def differentiated(function: object, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    leaf = outputs.detach().requires_grad_()
    loss = function(leaf, targets)  # type: ignore[operator]
    return loss.detach(), torch.autograd.grad(2.5 * loss, leaf)[0]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scale", [0.01, 3.0, 300.0])
def test_values_and_gradients(size: tuple[int, int, int], scale: float, record: Recorder) -> None:
    outputs, targets = drawn(*size, scale)
    exact = differentiated(by_torch, outputs.double(), targets)
    plain, found = differentiated(by_torch, outputs, targets), differentiated(mean_cross_entropy, outputs, targets)
    assert _cross_entropy.kernels_for(outputs) is not None
    for right, usual, ours in zip(exact, plain, found, strict=True):
        floor = 4 * torch.finfo(torch.float32).eps * right.abs().max()
        error = float((ours - right).abs().max() / torch.maximum((usual - right).abs().max(), floor).clamp(min=1e-30))
        record(cases=1, worst_error_over_torchs=error)
        assert error < 2


def test_views_and_what_is_not_there() -> None:
    """Outputs of any strides between NaN; a target beyond the classes, and an output that is not finite."""
    outputs, targets = drawn(9, 5, 20)
    expected = differentiated(mean_cross_entropy, outputs, targets)
    wide = torch.full((20, 11, 9), float("nan"), device="cuda")
    for view in (wide[:, 2:7].permute(2, 1, 0), torch.full((9, 7, 31), float("nan"), device="cuda")[:, 1:6, 3:23]):
        found = differentiated(mean_cross_entropy, view.copy_(outputs), targets)
        assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))
    wider = torch.full((9, 10), -1, device="cuda")
    for gaps in (wider[:, ::2], wider[:, 3:8]):
        found = differentiated(mean_cross_entropy, outputs, gaps.copy_(targets))
        assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))
    one = differentiated(mean_cross_entropy, outputs[:, :1], gaps[:, :1])  # whose targets, in a row, are a view with gaps
    alone = differentiated(mean_cross_entropy, outputs[:, :1].clone(), targets[:, :1].clone())
    assert all(torch.equal(*pair) for pair in zip(one, alone, strict=True))
    for wrong in (-1, 20, 2**40):
        beyond = targets.clone()
        beyond[3, 2] = wrong
        loss, gradient = differentiated(mean_cross_entropy, outputs, beyond)
        assert loss.isnan()
        assert gradient[3, 2].isnan().all()
        assert torch.equal(gradient.isnan().any(-1), beyond == wrong)
    outputs[1, 1, 1] = float("nan")
    assert mean_cross_entropy(outputs, targets).isnan()


def test_it_can_be_differentiated_again() -> None:
    outputs, targets = drawn(4, 3, 5)
    second = []
    for function in (mean_cross_entropy, by_torch):
        leaf = outputs.detach().requires_grad_()
        (first,) = torch.autograd.grad(function(leaf, targets), leaf, create_graph=True)
        second.append(torch.autograd.grad(first.square().sum(), leaf)[0])
    torch.testing.assert_close(*second)


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream:UserWarning")  # the warm-up was not on the graph's stream
def test_in_a_graph() -> None:
    outputs, targets = drawn(50, 32, 50)
    leaf = outputs.clone().requires_grad_()
    for _ in range(2):
        torch.autograd.grad(mean_cross_entropy(leaf, targets), leaf)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = mean_cross_entropy(leaf, targets)
        (gradient,) = torch.autograd.grad(loss, leaf)
    for factor in (1.0, 0.5):
        leaf.data.copy_(factor * outputs)
        graph.replay()
        eager = mean_cross_entropy(leaf, targets)
        assert torch.equal(loss, eager)
        assert torch.equal(gradient, torch.autograd.grad(eager, leaf)[0])
