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

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize


def attach(model: nn.Module, *optimizers: torch.optim.Optimizer) -> None:
    """Let the optimisers, which step in this order, honour the contract for all matrices of `model`. Most families have neither
    method, and it is then as if this had not been called."""
    if not optimizers:
        raise TypeError("attach needs the optimisers that train the model, one at least")
    moving = [
        (matrix, originals[place])
        for matrix, originals in matrices_of(model)
        if hasattr(matrix, "manifold_update")
        for place in getattr(matrix, "on_manifold", (0,))
    ]
    for optimizer in optimizers if moving else ():
        Moving(optimizer, moving)
    following = [(matrix, originals) for matrix, originals in matrices_of(model) if hasattr(matrix, "after_step")]
    if following:
        optimizers[-1].register_step_post_hook(lambda *_: _follow(following))


def matrices_of(model: nn.Module) -> Iterator[tuple[Any, list[Tensor]]]:
    """Every parametrization that stands alone on a weight, with its free tensors."""
    for module in model.modules():
        if isinstance(module, parametrize.ParametrizationList) and len(module) == 1:
            names = ["original"] if module.is_tensor else [f"original{index}" for index in range(module.ntensors)]
            yield module[0], [getattr(module, name) for name in names]


class Moving:
    """What moves on a manifold while an optimiser steps. That one passes over what has no gradient: so gradients are taken away
    before its step, and when a closure has computed them anew within it."""

    def __init__(self, optimizer: torch.optim.Optimizer, moving: list[tuple[Any, Tensor]]) -> None:
        self._moving = moving
        self._taken: dict[Tensor, Tensor] = {}
        optimizer.register_step_pre_hook(self._before)
        optimizer.register_step_post_hook(lambda stepped, *_: self._after(stepped))

    def _before(
        self, optimizer: torch.optim.Optimizer, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        rates = self._rates(optimizer)
        mine = [original for _, original in self._moving if original in rates]
        self._taken = {}
        self._take(mine)

        def wrapped(given: Any) -> Any:
            return self._then_take(given, mine) if callable(given) else given

        first, *others = arguments  # the first one is the optimiser
        return (first, *map(wrapped, others)), {name: wrapped(given) for name, given in named.items()}

    def _take(self, originals: list[Tensor]) -> None:
        for original in originals:
            if original.grad is not None:
                self._taken[original], original.grad = original.grad, None

    def _then_take(self, closure: Callable[[], Any], originals: list[Tensor]) -> Callable[[], Any]:
        def evaluated() -> Any:
            for original in originals:  # the closure may add to what is there, or clear it
                original.grad = self._taken.pop(original, None)
            loss = closure()
            self._take(originals)
            return loss

        return evaluated

    def _after(self, optimizer: torch.optim.Optimizer) -> None:
        rates = self._rates(optimizer)
        for matrix, original in self._moving:
            if original in self._taken:
                original.grad = self._taken[original]
                with torch.no_grad():
                    matrix.manifold_update(original, rates[original])
        self._taken = {}

    def _rates(self, optimizer: torch.optim.Optimizer) -> dict[Tensor, Any]:
        """Of all of its parameters, which may have become more since the last step."""
        return {parameter: group["lr"] for group in optimizer.param_groups for parameter in group["params"]}


@torch.no_grad()
def _follow(matrices: list[tuple[Any, list[Tensor]]]) -> None:
    for matrix, originals in matrices:
        matrix.after_step(*originals)
