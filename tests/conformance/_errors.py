"""What an error must be, and how to see that it has changed nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn


def raised_by(call: Callable[[], Any]) -> Exception | None:
    try:
        call()
    except Exception as error:
        return error
    return None


def assert_explained(error: Exception | None, parts: tuple[str, ...], torchs: Exception | None = None) -> None:
    """A `ValueError` or `TypeError` whose message has all `parts`: the argument, what came, what was wanted. Where torch.nn
    raises a `RuntimeError` for the same mistake, code that catches that one catches ours too."""
    assert error is not None, "nothing was raised"
    assert isinstance(error, ValueError | TypeError), f"{type(error).__name__}: {error}"
    missing = [part for part in parts if part not in str(error)]
    assert not missing, f"{missing} not in the message: {error}"
    if isinstance(torchs, RuntimeError):
        assert isinstance(error, RuntimeError), f"torch.nn: RuntimeError: {torchs}; here: {type(error).__name__}: {error}"


def snapshot(module: nn.Module) -> dict[str, Tensor]:
    """All of the module's tensors, those too that a state dict leaves out."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers()), **module.state_dict()}
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def assert_unchanged(module: nn.Module, before: dict[str, Tensor]) -> None:
    now = snapshot(module)
    assert now.keys() == before.keys()
    for name, tensor in before.items():
        torch.testing.assert_close(now[name], tensor, rtol=0, atol=0, equal_nan=True, msg=f"{name} has changed")
    assert all(parameter.grad is None for parameter in module.parameters())


def case(name: str, *values: Any) -> Any:
    return pytest.param(*values, id=name)
