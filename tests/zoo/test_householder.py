"""The product of reflections in compact form is the product of reflections. (What it costs, `benchmarks/zoo.py` measures.)"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from enrnn import Householder
from tests._record import Recorder


def one_by_one(free: Tensor) -> Tensor:
    """As the paper writes it."""
    size, count = free.shape
    W = torch.eye(size, dtype=free.dtype)
    for j in range(count):
        if j == size - 1:
            W = W @ torch.diag(torch.cat([torch.ones(size - 1, dtype=free.dtype), free[-1:, -1].sign()]))
        else:
            u = free[:, j].clone()
            u[:j] = 0
            W = W @ (torch.eye(size, dtype=free.dtype) - 2 * torch.outer(u, u) / u.square().sum())
    return W


@pytest.mark.parametrize(("size", "count"), [(1, 1), (2, 1), (2, 2), (7, 3), (7, 6), (7, 7), (40, 16), (40, 40)])
def test_it_is_the_product_of_reflections(record: Recorder, size: int, count: int) -> None:
    for seed in range(3):
        free = torch.randn(size, count, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        error = (Householder(count)(free) - one_by_one(free)).abs().max()
        record(cases=1, worst_error=error)
        assert error <= 4 * size * torch.finfo(torch.float64).eps


def test_the_last_of_as_many_reflections_as_units_is_a_sign() -> None:
    free = torch.randn(5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    free[-1, -1] = 0.3
    W = Householder()(free)
    assert torch.equal(Householder()(free * 2), W)
    free[-1, -1] = -7.0
    assert torch.equal(Householder()(free)[:, :-1], W[:, :-1])
    assert torch.equal(Householder()(free)[:, -1], -W[:, -1])
    assert torch.linalg.det(W) * torch.linalg.det(Householder()(free)) == pytest.approx(-1)
    free.requires_grad_()
    Householder()(free).sin().sum().backward()
    assert free.grad[-1, -1] == 0
    assert torch.equal(free.grad, free.grad.tril())


def test_scaling_the_vectors_changes_nothing_and_after_a_step_they_have_length_one() -> None:
    free = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    matrix = Householder(4)
    W = matrix(free)
    assert (matrix(free * torch.tensor([1e-3, 1.0, 10.0, 1e4])) - W).abs().max() <= 1e-14
    matrix.after_step(free)
    assert torch.allclose(free.norm(dim=0), torch.ones(4, dtype=torch.float64))
    assert torch.equal(free, free.tril())
    assert (matrix(free) - W).abs().max() <= 1e-14


def test_a_vector_of_zeros_is_the_identity_and_has_a_gradient() -> None:
    free = torch.zeros(4, 2, dtype=torch.float64, requires_grad=True)
    W = Householder(2)(free)
    assert torch.equal(W, torch.eye(4, dtype=torch.float64))
    W.sum().backward()
    assert torch.isfinite(free.grad).all()
