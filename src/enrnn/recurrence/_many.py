"""An operator under `torch.vmap`: sequences do not see each other, so many batches of them are one."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._operators import Operator


def at_once(operator: Operator, axes: dict[int, int]) -> Callable[..., Any]:
    """The rule for an operator whose arguments number `axes` have a dimension for sequences, and which one that is. If any other
    argument comes in many, such as the matrices of many networks, it is run once for each."""

    def rule(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> Any:
        many = info.batch_size
        if any(dim is not None and i not in axes for i, dim in enumerate(in_dims)):
            return operator.one_by_one(info, in_dims, *arguments)
        joined = list(arguments)
        for i, axis in axes.items():
            if arguments[i] is not None:
                joined[i] = _joined(arguments[i], in_dims[i], axis, many)
        found = operator(*joined)
        if isinstance(found, tuple):
            return tuple(_parted(each, many) for each in found), tuple(each.dim() - 2 for each in found)
        return _parted(found, many), found.dim() - 2

    return rule


def _joined(tensor: Tensor, dim: int | None, axis: int, many: int) -> Tensor:
    if dim is None:
        shape = tensor.shape
        tensor = tensor.unsqueeze(axis).expand(*shape[:axis], many, *shape[axis:])
    else:
        tensor = tensor.movedim(dim, axis)
    return tensor.flatten(axis, axis + 1)


def _parted(found: Tensor, many: int) -> Tensor:
    """All that is found has sequences in the last dimension but one."""
    return torch.unflatten(found, -2, (many, found.shape[-2] // many))
