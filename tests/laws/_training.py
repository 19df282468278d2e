"""A layer some optimiser steps away from its start."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from enrnn import ENRNN


def train(layer: ENRNN, steps: int, lr: float, seed: int, optimiser: type[torch.optim.Optimizer] = torch.optim.RMSprop) -> None:
    """Fit random targets with steps that are far too large: a law must hold wherever the parameters go."""
    generator = torch.Generator().manual_seed(seed)
    dtype = next(layer.parameters()).dtype
    x = torch.randn(6, 4, layer.input_size, dtype=dtype, generator=generator)
    target = torch.randn(6, 4, layer.hidden_size * layer.num_directions, dtype=dtype, generator=generator)
    adapt = optimiser(layer.parameters(), lr=lr)
    for _ in range(steps):
        adapt.zero_grad()
        output, _ = layer(x)
        nn.functional.mse_loss(output, target).backward()
        adapt.step()


def original(layer: nn.Module, name: str) -> torch.Tensor:
    """The free matrix behind a constrained weight."""
    return layer.parametrizations[name].original


def exact(matrix: torch.Tensor) -> NDArray[np.float64]:
    return matrix.detach().double().numpy()
