"""Matrices that act after the optimiser's step, or in its place.

Some networks re-project their matrix after each update, rebase it, or move it along a manifold instead of letting the optimiser
step on its entries. Such a family of matrices has one or both of these methods (`enrnn.matrices.Matrix` says more), and no more
is asked of it:

    after_step(*originals)           called when all parameters have been updated
    manifold_update(original, lr)    called instead of the optimiser's update of each original that `on_manifold` names, whose
                                     gradient is in `original.grad`

Originals are the free tensors that torch's parametrization keeps, `lr` is the rate of their parameter group: a number, or a
tensor on the device. Both must be tensor operations without a look at a value, on state in registered buffers. Then captured
steps, resumed runs and several processes need to know nothing of them.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize


def attach(model: nn.Module, *optimizers: torch.optim.Optimizer) -> None:
    """Let the optimisers, which step in this order, honour the contract for all matrices of `model`. Most families have neither
    method, and it is then as if this had not been called."""
    moving = [
        (matrix, originals[place])
        for matrix, originals in matrices_of(model)
        if hasattr(matrix, "manifold_update")
        for place in getattr(matrix, "on_manifold", (0,))
    ]
    for optimizer in optimizers:
        _attach_updates(optimizer, moving)
    following = [(matrix, originals) for matrix, originals in matrices_of(model) if hasattr(matrix, "after_step")]
    if following:
        optimizers[-1].register_step_post_hook(lambda *_: _follow(following))


def matrices_of(model: nn.Module) -> Iterator[tuple[Any, list[Tensor]]]:
    """Every parametrization that stands alone on a weight, with its free tensors."""
    for module in model.modules():
        if isinstance(module, parametrize.ParametrizationList) and len(module) == 1:
            names = ["original"] if module.is_tensor else [f"original{index}" for index in range(module.ntensors)]
            yield module[0], [getattr(module, name) for name in names]


def _attach_updates(optimizer: torch.optim.Optimizer, moving: list[tuple[Any, Tensor]]) -> None:
    groups: dict[int, dict[str, Any]] = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    mine = [(matrix, original, groups[id(original)]) for matrix, original in moving if id(original) in groups]
    if not mine:
        return
    gradients: list[Tensor | None] = []

    def before(*arguments: object) -> None:
        gradients[:] = [original.grad for _, original, _group in mine]
        for _, original, _group in mine:
            original.grad = None  # which optimisers pass over

    def after(*arguments: object) -> None:
        with torch.no_grad():
            for (matrix, original, group), gradient in zip(mine, gradients, strict=True):
                original.grad = gradient
                if gradient is not None:
                    matrix.manifold_update(original, group["lr"])

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)


@torch.no_grad()
def _follow(matrices: list[tuple[Any, list[Tensor]]]) -> None:
    for matrix, originals in matrices:
        matrix.after_step(*originals)
