"""What the tests of the zoo share: every family and network, and steps of an optimiser that honours their contract."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from enrnn import (
    EURNN,
    EXPRNN,
    IRNN,
    NNRNN,
    ORNN,
    SCORNN,
    SCURNN,
    SVD,
    URNN,
    BlockTriangular,
    Cayley,
    Exponential,
    FullCapacityURNN,
    Givens,
    Householder,
    OrthogonalRNN,
    Renormalized,
    Schur,
    SoftMargin,
    SpectralNorm,
    SpectralRNN,
    VorontsovRNN,
)
from enrnn.layers._one_matrix import OneMatrixRNN
from enrnn.matrices import Matrix
from enrnn.training import attach

ORTHOGONAL: dict[str, Callable[[], Matrix]] = {
    "cayley": Cayley,
    "exponential": Exponential,
    "exponential by cayley": lambda: Exponential(init="cayley"),
    "dtriv_3": lambda: Exponential(rebase_every=3, polish_every=2),
    "dtriv_inf": lambda: Exponential(rebase_every=math.inf),
    "householder": Householder,
    "householder of 3": lambda: Householder(3),
    "givens": Givens,
}
FAMILIES: dict[str, Callable[[], Matrix]] = ORTHOGONAL | {
    "svd": lambda: SVD(margin=0.2),
    "soft margin": lambda: SoftMargin(margin=0.3),
    "schur": Schur,
    "block triangular": lambda: BlockTriangular(3),
    "renormalized": Renormalized,
    "spectral norm": SpectralNorm,
}
NETWORKS: dict[str, tuple[type[OneMatrixRNN], dict[str, Any]]] = {
    "SCORNN": (SCORNN, {}),
    "EXPRNN": (EXPRNN, {}),
    "dtriv": (EXPRNN, {"rebase_every": 7, "polish_every": 2}),
    "ORNN": (ORNN, {}),
    "SpectralRNN": (SpectralRNN, {"margin": 0.1}),
    "VorontsovRNN": (VorontsovRNN, {"polish_every": 10}),
    "NNRNN": (NNRNN, {}),
    "SCURNN": (SCURNN, {}),
    "URNN": (URNN, {}),
    "FullCapacityURNN": (FullCapacityURNN, {"polish_every": 10}),
    "EURNN": (EURNN, {}),
    "EURNN of 5": (EURNN, {"capacity": 5}),
    "IRNN": (IRNN, {}),
    "OrthogonalRNN": (OrthogonalRNN, {}),
}
DTYPES = {"float32": torch.float32, "float64": torch.float64}


def network(name: str, input_size: int = 3, hidden_size: int = 10, seed: int = 0, **options: Any) -> OneMatrixRNN:
    torch.manual_seed(seed)
    kind, own = NETWORKS[name]
    return kind(input_size, hidden_size, **own, **options)


def scattered(matrix: Matrix, size: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    """Free tensors away from the start, where some are zero and some eigenvalues are multiple. Those on a manifold stay on it."""
    torch.manual_seed(seed)
    originals = matrix.originals(size, torch.empty(0, dtype=dtype))
    matrix.initialize_(*originals)
    moved = matrix.on_manifold if hasattr(matrix, "manifold_update") else ()
    for place, original in enumerate(originals):
        if place not in moved:
            original.add_(0.3 * torch.randn_like(original))
    return originals


def train(
    layer: nn.Module, steps: int, lr: float = 0.02, seed: int = 0, optimizer: torch.optim.Optimizer | None = None
) -> list[float]:
    """Fit random targets by Adam, and return the losses."""
    generator = torch.Generator().manual_seed(seed)
    like = next(layer.parameters())
    x = torch.randn(8, 6, layer.input_size, dtype=like.dtype, generator=generator)
    target = 0.5 * torch.randn(8, 6, layer.hidden_size, dtype=like.dtype, generator=generator)
    if optimizer is None:
        optimizer = adam(layer, lr)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(layer(x)[0], target)
        if isinstance(layer, OneMatrixRNN):
            loss = loss + layer.penalty()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def adam(layer: nn.Module, lr: float = 0.02) -> torch.optim.Optimizer:
    # A geodesic step is as long as the gradient, Adam's are all alike.
    groups = layer.parameter_groups(lr, 2.0) if isinstance(layer, VorontsovRNN | FullCapacityURNN) else layer.parameters()
    optimizer = torch.optim.Adam(groups, lr=lr)
    attach(layer, optimizer)
    return optimizer


def orthogonality(matrix: Tensor) -> float:
    exact = matrix.detach().double()
    return float((exact.mT @ exact - torch.eye(len(exact), dtype=torch.float64)).abs().max())
