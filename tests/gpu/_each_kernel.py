"""Every CUDA kernel once or twice, at a small size: what compute-sanitizer is to see (`test_sanitizer.py`).

compute-sanitizer --tool racecheck python -m tests.gpu._each_kernel
"""

from __future__ import annotations

import dataclasses
import tempfile

import torch

from enrnn.recipes import recipe
from enrnn.recurrence import _cuda, _product, _rotations_cuda
from enrnn.recurrence._shapes import shape_for, split_block
from enrnn.recurrence._wide import wide_for
from enrnn.spectrum import _square
from enrnn.spectrum._device import squaring_on_device
from enrnn.tasks._cross_entropy import mean_cross_entropy
from enrnn.training import train
from tests.gpu._kernels import Both, Forced
from tests.recurrence import _gated, _problems, _rotations


def recurrences() -> None:
    """A warp, a block, one of complex units, a cluster, and one with two groups."""
    for n, batch, name in [
        (20, 3, "modrelu"),
        (96, 3, "relu"),
        (192, 2, "paired_modrelu"),
        (310, 3, "tanh"),
        (720, 32, "modrelu"),
    ]:
        assert _problems.excess(_cuda, _problems.problem(4, batch, n, name, lengths=True), "cuda") < 4


def zeros_left_out() -> None:
    shape = split_block(96, 64, _cuda.limits_of(torch.device("cuda", 0)))
    given = _problems.problem(4, 3, 160, "modrelu")
    given.weight[96:, :96] = 0
    assert _problems.excess(Forced(lambda *_: shape, 96), given, "cuda") < 4


def many_sequences() -> None:
    """Two rows of tiles to a warp, and one; complex units."""
    for n, q, name in [(160, 96, "modrelu"), (70, None, "tanh"), (128, None, "paired_modrelu")]:
        given = _problems.problem(4, 21, n, name, lengths=n == 70)
        if q is not None:
            given.weight[q:, :q] = 0
        layout = lambda *sizes: wide_for(*sizes) or shape_for(*sizes[:5])  # noqa: E731
        assert _problems.excess(Forced(layout, q), given, "cuda") < 4


def linked_sweeps() -> None:
    """A sweep of either size follows the other."""
    for q, s in [(60, 500), (400, 60)]:
        given = _problems.problem(4, 9, q + s, "modrelu", lengths=True)
        given.weight[q:, :q] = 0
        assert _problems.excess(Both(q), given, "cuda") < 4


def other_recurrences() -> None:
    assert _gated.excess(_gated.problem(_gated.Case(20, lengths=True)), "cuda") < 4
    for case in (_rotations.Case(33, 3, lengths=True), _rotations.Case(64, 6, butterfly=True)):
        assert _rotations.excess(_rotations_cuda.forward, _rotations_cuda.backward, _rotations.problem(case), "cuda") < 4


def products() -> None:
    """With shares and without; operands that lie along the sum, and across; rows and columns that come before."""
    for m, n, k in [(70, 91, 2000), (200, 33, 65)]:
        a, b, added = torch.randn(m, k, device="cuda"), torch.randn(k, n, device="cuda"), torch.randn(m, n, device="cuda")
        for first, second in [(a, b), (a.mT.contiguous().mT, b.mT.contiguous().mT)]:
            found = _product.product(first[9:], second, added, first=first[:9])
            torch.testing.assert_close(found.double(), added + a.double() @ b.double(), rtol=1e-4, atol=1e-4)
            found = _product.product(first[:, 9:], second[9:], before=(first[:, :9], second[:9]))
            torch.testing.assert_close(found.double(), a.double() @ b.double(), rtol=1e-4, atol=1e-4)


def spectral_radii() -> None:
    """One block, four, six; the kernels of large matrices, with tiles that are full and that are not."""
    generator = torch.Generator("cuda").manual_seed(0)
    for m in (20, 50, 70, 120):
        assert squaring_on_device(torch.randn(m, m, dtype=torch.float64, device="cuda", generator=generator)).certified
    kernels = _square.kernels_for(torch.device("cuda", 0))
    for m in (131, 144):
        matrix = torch.randn(m, m, dtype=torch.float64, device="cuda", generator=generator)
        assert _square.squared(matrix, 3, kernels).isfinite().all()


def cross_entropies() -> None:
    outputs = torch.randn(7, 5, 50, device="cuda", requires_grad=True)
    mean_cross_entropy(outputs, torch.randint(50, (7, 5), device="cuda")).backward()


def training() -> None:
    """Matrices, gradients of weights, steps of both optimisers, and what is kept of them, in a captured step."""
    for optimizer in ("rmsprop_tf", "adam"):
        config = recipe("adding/enrnn")
        config = dataclasses.replace(
            config,
            task=dataclasses.replace(config.task, length=20, train_size=200, test_size=50, batch_size=20),
            optimizer=dataclasses.replace(config.optimizer, name=optimizer),
            run=dataclasses.replace(config.run, steps=4, epochs=None, device="cuda"),
        )
        with tempfile.TemporaryDirectory() as runs:
            train(config, runs)


PARTS = [
    recurrences,
    zeros_left_out,
    many_sequences,
    linked_sweeps,
    other_recurrences,
    products,
    spectral_radii,
    cross_entropies,
    training,
]


if __name__ == "__main__":
    for part in PARTS:
        part()
        print(part.__name__, flush=True)
