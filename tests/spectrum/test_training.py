"""The fast solver over consecutive steps of training, after the switch: what it certifies is the dense solution, every time."""

from __future__ import annotations

import torch
from torch import nn

import enrnn
from enrnn.spectrum import dominant
from enrnn.spectrum._squaring import squaring
from tests._record import Recorder
from tests.spectrum.test_solvers import check_against_dense

LENGTH, BATCH = 60, 20


def adding_batch(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    values = torch.rand(LENGTH, BATCH, generator=generator)
    markers = torch.zeros(LENGTH, BATCH)
    columns = torch.arange(BATCH)
    markers[torch.randint(0, LENGTH // 2, (BATCH,), generator=generator), columns] = 1.0
    markers[torch.randint(LENGTH // 2, LENGTH, (BATCH,), generator=generator), columns] = 1.0
    return torch.stack([values, markers], dim=-1), (values * markers).sum(0)


def test_training_on_the_adding_problem_with_squaring_forced(full: bool, record: Recorder) -> None:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    layer = enrnn.ENRNN(2, 160, solver="squaring")  # 96/64, as in the paper
    head = nn.Linear(160, 1)
    free = layer.parametrizations["weight_short_l0"].original
    with torch.no_grad():
        free.mul_(1.05 / dominant(free.double()).radius)
    groups = [*layer.parameter_groups(lr=1e-3, long_lr=1e-4), {"params": head.parameters(), "lr": 1e-3}]
    optimizer = torch.optim.RMSprop(groups, alpha=0.9)
    steps = 2000 if full else 40
    for _ in range(steps):
        matrix = free.detach().double()
        found = squaring(matrix)
        if found is not None and found.certified:
            check_against_dense(matrix, enrnn.spectral_radius(matrix, "squaring"), record)
        x, y = adding_batch(generator)
        loss = (head(layer(x)[0][-1]).squeeze(-1) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert layer.normalizing.item()
        torch.testing.assert_close(layer.spectral_radius.double(), dominant(matrix).radius.reshape(1), rtol=1e-6, atol=0)
    record(cases_fallback=layer.fallbacks.item(), steps=steps)
    assert layer.fallbacks.item() <= 0.05 * steps
    assert torch.isfinite(loss)


def test_squaring_and_dense_train_alike() -> None:
    """Two layers that differ in the solver alone stay together to rounding: the derivative is the same as well."""
    torch.manual_seed(1)
    layers = [enrnn.ENRNN(2, 60, short_size=40, solver=solver, dtype=torch.float64) for solver in ("squaring", "dense")]
    layers[1].load_state_dict(layers[0].state_dict())
    optimizers = [torch.optim.SGD(layer.parameters(), lr=1e-4) for layer in layers]
    for layer in layers:
        with torch.no_grad():
            layer.parametrizations["weight_short_l0"].original.mul_(2.0)
    generator = torch.Generator().manual_seed(1)
    for _ in range(10):
        x, y = adding_batch(generator)
        for layer, optimizer in zip(layers, optimizers, strict=True):
            optimizer.zero_grad()
            (layer(x.double())[0][-1].sum(-1) - y).square().mean().backward()
            optimizer.step()
    for ours, theirs in zip(layers[0].parameters(), layers[1].parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-10)
