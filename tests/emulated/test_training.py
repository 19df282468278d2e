"""The kernels of a step of training: optimisers, what is kept of a step and noted of it, embeddings, losses."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from enrnn import _nvrtc
from enrnn.tasks._cross_entropy import mean_cross_entropy
from enrnn.training import _embedding, _fused, _keep, _ledger
from tests.emulator._chip import Emulated

pytestmark = pytest.mark.usefixtures("in_any_order_too")

SHAPES = [(1,), (7, 5), (1025,), (3000,), *((n,) for n in range(2, 34))]
"""More than a launch has room for."""


def noise(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def near(found: Tensor, exact: Tensor) -> None:
    torch.testing.assert_close(found.double(), exact.double(), rtol=2e-6, atol=2e-6 * float(exact.abs().max()))


@pytest.mark.parametrize("steps", [0, 7])
def test_adam(steps: int, emulated: Emulated) -> None:
    first_decay, second_decay, epsilon, rate = 0.875, 1 - 2**-10, 1e-8, torch.tensor(1e-2)
    updates, wanted = [], []
    for seed, shape in enumerate(SHAPES):
        p, g, m = (noise(*shape, seed=3 * seed + i) for i in range(3))
        v, count = noise(*shape, seed=seed).square(), torch.tensor(float(steps))
        updates.append(((first_decay, second_decay, epsilon), _fused.Updated(p, g, m, v, count, rate)))
        P, G, M, V = (each.double() for each in (p, g, m, v))
        M, V = first_decay * M + (1 - first_decay) * G, second_decay * V + (1 - second_decay) * G**2
        M_hat, V_hat = M / (1 - first_decay ** (steps + 1)), V / (1 - second_decay ** (steps + 1))
        wanted.append((P - rate.double() * M_hat / (V_hat.sqrt() + epsilon), M, V, torch.tensor(steps + 1.0)))
    assert _fused.adam(torch.optim.SGD([torch.zeros(1)], 1.0), updates)
    assert emulated.launched == ["adam"] * 2
    for (_, each), exact in zip(updates, wanted, strict=True):
        for found, right in zip((each.parameter, each.first, each.second, each.steps), exact, strict=True):
            near(found, right)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_rmsprop(momentum: float, emulated: Emulated) -> None:
    decay, epsilon, rate = 0.9, 1e-10, torch.tensor(1e-3)
    p, g, square = noise(50, 30), noise(50, 30, seed=1), noise(50, 30, seed=2).square()
    moved = noise(50, 30, seed=3) if momentum else None
    P, G, V = (each.double() for each in (p, g, square))
    V = decay * V + (1 - decay) * G**2
    step = rate.double() * G / (V + epsilon).sqrt()
    if moved is not None:
        step = momentum * moved.double() + step
    update = _fused.Updated(p, g, square, moved, None, rate)
    assert _fused.rmsprop_tf([((decay, 1 - decay, momentum, epsilon), update)])
    for found, exact in ((p, P - step), (square, V), *([(moved, step)] if moved is not None else [])):
        near(found, exact)


def test_a_step_is_kept_and_taken_back(emulated: Emulated) -> None:
    """As on a GPU, where tensors know that they are there."""
    tensors = [noise(700), noise(3, 5), torch.arange(9), torch.tensor(True), torch.empty(0)]
    before = [tensor.clone() for tensor in tensors]
    kept = _keep.Kept(tensors)
    (kept._kernel,) = _nvrtc.load(_nvrtc.text(_keep.SOURCE), {"copy": 0}, torch.device("cpu"))
    kept._there, kept._back = _keep._table(kept._copies, tensors), _keep._table(tensors, kept._copies)
    kept.keep()
    for tensor in tensors:
        tensor.zero_()
    kept.restore_unless(torch.tensor(True))
    assert not any(tensor.any() for tensor in tensors)
    kept.restore_unless(torch.tensor(False))
    assert all(torch.equal(*pair) for pair in zip(tensors, before, strict=True))


def test_a_step_is_judged(emulated: Emulated) -> None:
    ledger = _ledger.Ledger(torch.device("cpu"), 2)
    values, down = [torch.ones(size) for size in (1, 255, 4097)], torch.tensor(False)
    assert ledger.judge(values, [down] * 3)
    assert not ledger.judge(values, [down, ~down])
    assert ledger.stopped
    ledger.stopped.zero_()
    for each in values:
        each[-1] = torch.inf
        assert not ledger.judge(values, [])
        ledger.stopped.zero_()
        each[-1] = 3e38
    assert ledger.judge(values, [])


def test_steps_are_counted_and_so_are_switches(emulated: Emulated) -> None:
    ledger = _ledger.Ledger(torch.device("cpu"), 2)
    for number, on in enumerate([(False, False), (False, True), (True, True), (True, False)], start=1):
        ledger.count(torch.tensor(number / 3), [torch.tensor(each) for each in on])
    assert emulated.launched == ["count_step"] * 4
    assert (ledger.place.tolist(), ledger.done.item(), ledger.switched_at.tolist()) == ([4], 4, [3, 2])
    near(ledger.losses, torch.tensor([10 / 3, 4]))


def test_gradients_of_embeddings(emulated: Emulated) -> None:
    symbols, gradient = torch.randint(4, (150, 14), generator=torch.Generator().manual_seed(0)), noise(150, 14, 150)
    exact = torch.zeros(5, 150, dtype=torch.float64).index_add(0, symbols.flatten(), gradient.double().flatten(0, 1))
    near(_embedding.embedding_gradient(gradient, symbols, 5), exact)
    assert emulated.launched == ["embedding_gradient"]


@pytest.mark.parametrize("size", [(7, 5, 50), (3, 1, 200), (50, 32, 2)])
def test_cross_entropies(size: tuple[int, int, int], emulated: Emulated) -> None:
    outputs = (3 * noise(*size)).requires_grad_()
    targets = torch.randint(size[-1], size[:-1], generator=torch.Generator().manual_seed(0))
    loss = mean_cross_entropy(outputs, targets)
    (found,) = torch.autograd.grad(2.5 * loss, outputs)
    leaf = outputs.detach().double().requires_grad_()
    exact = F.cross_entropy(leaf.flatten(0, 1), targets.flatten())
    near(loss.detach(), exact.detach())
    near(found, torch.autograd.grad(2.5 * exact, leaf)[0])
    assert emulated.launched == ["entropies", "mean", "gradient"]


def test_a_mean_waits_for_what_it_is_of(emulated: Emulated) -> None:
    outputs, targets = noise(40, 3), torch.arange(40) % 3
    with emulated.at_once():
        loss = mean_cross_entropy(outputs, targets)
    near(loss, F.cross_entropy(outputs.double(), targets))
