"""Validation of what users pass in: every message names the argument, what came and what was wanted."""

import numbers
from collections.abc import Iterable

import torch
from torch import Tensor


class InputError(ValueError, RuntimeError):
    """An input tensor of the wrong rank, size or device.

    It is a `ValueError`, as everywhere in this package, and also a `RuntimeError`, because that is what
    `torch.nn.RNN` raises for the same mistake and what existing code may catch.
    """


class InputTypeError(TypeError, ValueError, RuntimeError):
    """Something of the wrong kind or dtype: a `TypeError`, and also what `torch.nn.RNN` raises in its place."""


def tensor(name: str, value: object) -> None:
    if not isinstance(value, Tensor):
        raise InputTypeError(f"{name} must be a Tensor, got: {type(value).__name__}")


def dense_tensor(name: str, value: object) -> None:
    tensor(name, value)
    if isinstance(value, Tensor) and (value.layout is not torch.strided or value.is_nested):
        kind = "a nested tensor" if value.is_nested else f"a tensor of layout {value.layout}"
        raise InputError(f"{name} must be dense, got {kind}")


def floating_tensor(name: str, value: object) -> None:
    dense_tensor(name, value)
    if isinstance(value, Tensor) and (not value.is_floating_point() or value.dtype.itemsize == 1):  # torch only stores float8
        raise InputTypeError(f"{name} must be a floating-point tensor of 16 bits or more, got dtype {value.dtype}")


def positive_int(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} should be of type int, got: {type(value).__name__} ({value!r})")
    if int(value) <= 0:
        raise ValueError(f"{name} must be greater than zero, got: {value}")
    return int(value)


def boolean(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} should be of type bool, got: {type(value).__name__} ({value!r})")
    return value


def one_of(name: str, value: object, choices: Iterable[str]) -> str:
    known = sorted(choices)
    if not isinstance(value, str):
        raise TypeError(f"{name} should be a string out of {known}, got: {type(value).__name__} ({value!r})")
    if value not in known:
        raise ValueError(f"Unknown {name} {value!r}. Select from {', '.join(map(repr, known))}.")
    return value


def count_within(name: str, value: object, default: float, whole: int, of: str, *, fraction: bool) -> int:
    """How many of `whole` units `value` means: an int counts them, a float (if allowed) is a fraction, None is `default`."""
    if value is None:
        return round(default * whole)
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        kinds = "an int, a float or None" if fraction else "an int or None"
        raise TypeError(f"{name} should be {kinds}, got: {type(value).__name__} ({value!r})")
    if isinstance(value, numbers.Integral):
        if not 0 <= int(value) <= whole:
            raise ValueError(f"{name} must lie between 0 and {of} = {whole}, got: {value}")
        return int(value)
    if not fraction:
        raise TypeError(f"{name} should be an int or None, got: float ({value!r})")
    if not 0.0 <= float(value) <= 1.0:
        raise ValueError(f"{name} given as a float is a fraction of {of} and must lie in [0, 1], got: {value}")
    return round(float(value) * whole)


def non_negative(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} should be a number, got: {type(value).__name__} ({value!r})")
    number = float(value)
    if not 0.0 <= number < float("inf"):
        raise ValueError(f"{name} must be finite and not negative, got: {value}")
    return number


def probability(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 <= float(value) <= 1:
        raise ValueError(
            f"{name} should be a number in range [0, 1] representing the probability of an element being zeroed, got: {value!r}"
        )
    return float(value)


def floating_dtype(name: str, dtype: torch.dtype | None) -> None:
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise InputTypeError(f"{name} should be a floating-point torch.dtype, got: {dtype!r}")


def square_matrix(name: str, matrix: Tensor) -> None:
    """Reject what is not a real floating-point square matrix."""
    floating_tensor(name, matrix)
    if matrix.dim() != 2 or matrix.shape[0] != matrix.shape[1] or matrix.shape[0] == 0:
        raise InputError(f"{name} must be a square matrix, got a tensor of shape {list(matrix.shape)}")
