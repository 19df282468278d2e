"""The orthogonal networks learn to copy ten digits over a hundred steps."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

import enrnn
from enrnn.training import attach
from tests._record import Recorder

LENGTH, BATCH, HIDDEN = 100, 20, 128
BASELINE = 10 * math.log(8) / (LENGTH + 20)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "lr", "long_lr", "options"),
    [
        pytest.param("scornn", 1e-3, 1e-4, {}, id="scoRNN"),
        pytest.param("exprnn", 1e-3, 1e-4, {}, id="EXPRNN"),
        pytest.param("exprnn", 1e-3, 1e-4, {"rebase_every": 100}, id="dtriv"),
        pytest.param("scurnn", 1e-3, 1e-4, {}, id="scuRNN"),
        pytest.param("urnn", 1e-3, 1e-3, {}, id="uRNN"),
        pytest.param("full_capacity_urnn", 1e-3, 1e-3, {}, id="full-capacity uRNN"),
        pytest.param("eurnn", 1e-3, 1e-3, {}, id="EURNN"),
        pytest.param("nnrnn", 5e-4, 1e-6, {}, id="nnRNN"),
        # With the leaky ReLU of its paper it stays at the baseline.
        pytest.param("ornn", 1e-3, 1e-3, {"nonlinearity": "modrelu"}, id="oRNN with modReLU"),
    ],
)
def test_copying_below_half_the_baseline(record: Recorder, name: str, lr: float, long_lr: float, options: dict[str, Any]) -> None:
    torch.manual_seed(5544)
    layer = enrnn.build(name, 10, HIDDEN, **options)
    head = nn.Linear(HIDDEN, 9)
    model = nn.ModuleList([layer, head])
    others, *slow = layer.parameter_groups(lr, long_lr)
    groups = [{**others, "params": others["params"] + list(head.parameters())}, *slow]
    optimizer = torch.optim.Adam(groups) if name == "ornn" else torch.optim.RMSprop(groups, alpha=0.9)
    attach(model, optimizer)
    one_hot = torch.eye(10)
    average = 1.0
    iterations = 0
    while average >= BASELINE / 2 and iterations < 2000:
        iterations += 1
        digits = torch.randint(1, 9, (10, BATCH))
        inputs = torch.zeros(LENGTH + 20, BATCH, dtype=torch.int64)
        inputs[:10], inputs[LENGTH + 9] = digits, 9
        targets = torch.zeros_like(inputs)
        targets[-10:] = digits
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(head(layer(one_hot[inputs])[0]).flatten(0, 1), targets.flatten())
        (loss + layer.penalty()).backward()
        optimizer.step()
        average += 0.05 * (loss.item() - average)
    record(**{f"worst_iterations_{name}": iterations})
    assert average < BASELINE / 2
