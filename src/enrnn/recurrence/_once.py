"""Operators with a hand-written backward are differentiated once."""

from typing import Any

from torch import Tensor


def no_second_derivative(ctx: Any, *_: Tensor) -> tuple[None, ...]:
    """The autograd formula of such a backward."""
    raise RuntimeError("the fused recurrence can be differentiated once only; for second derivatives choose backend='reference'")
