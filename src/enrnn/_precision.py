"""In which precision the constrained matrices are computed, and how to tell that a graph is being recorded."""

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

_NOTHING = contextlib.nullcontext()


def working_dtype(tensor: Tensor) -> torch.dtype:
    """The dtype a constraint is computed in: float64, or float32 on devices that have no float64.

    A solve in float32 loses orthogonality as the condition of `I + A` grows with training; in float64 what is left
    is the single rounding back to the parameter's dtype.
    """
    return torch.float32 if tensor.device.type == "mps" else torch.float64


def state_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype matrices and states are held in: at least float32, whatever the module's parameters are stored as."""
    return torch.promote_types(dtype, torch.float32)


def held_in(dtype: torch.dtype, tensor: Tensor) -> Tensor:
    """`tensor.to(dtype)`, which takes Python a while to find that there is nothing to do."""
    return tensor if tensor.dtype == dtype else tensor.to(dtype)


def recording(tensor: Tensor) -> bool:
    """Whether this call is being traced, so that there is no value to look at."""
    return torch.compiler.is_compiling() or tensor.is_meta or isinstance(tensor, FakeTensor)


def capturing(tensor: Tensor) -> bool:
    """Whether this call is being captured in a CUDA graph."""
    return tensor.is_cuda and not recording(tensor) and torch.cuda.is_current_stream_capturing()


def autocasting(tensor: Tensor) -> bool:
    """Whether autocast is on for the device of `tensor`. (Meta tensors have none. Asking `torch.amp.is_autocast_available`
    would say so too, but torch 2.11 cannot compile the question.)"""
    return not tensor.is_meta and torch.is_autocast_enabled(tensor.device.type)


def full_precision(tensor: Tensor) -> contextlib.AbstractContextManager[None]:
    """Keep autocast out: over thousands of orthogonal steps, bfloat16 products would be all that is left of the state."""
    return torch.autocast(tensor.device.type, enabled=False) if autocasting(tensor) else _NOTHING


@contextlib.contextmanager
def exact_products() -> Iterator[None]:
    """Without TF32 on a GPU, whatever is allowed."""
    allowed = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.fp32_precision = allowed


def lower_precision() -> bool:
    """Whether products on a GPU may be less precise than float32: `torch.set_float32_matmul_precision("high")` says so, or any
    other of torch's switches for TF32."""
    return bool(torch._C._get_fp32_precision_getter("cuda", "matmul") == "tf32")  # `torch.backends.cuda.matmul.fp32_precision`
