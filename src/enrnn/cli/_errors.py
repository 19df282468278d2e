"""What went wrong, in one line."""

import re

import torch

from ..training import NotFiniteError, RunError

FORESEEN = (ValueError, NotFiniteError, RunError)
"""Errors whose message says it all."""


def words(error: Exception) -> str:
    """Of the system's errors, with the file that they are about; of those that nobody has foreseen, with their class."""
    if isinstance(error, OSError):
        return str(error) if error.strerror is None else ": ".join(str(part) for part in (error.filename, error.strerror) if part)
    if out_of_memory(error):
        asked = re.search(r"tried to allocate ([\d.]+ \w+)", str(error), re.IGNORECASE)
        much = f" ({asked[1]} were asked for at once)" if asked else ""
        return f"out of memory{much}; choose a smaller network or smaller batches, such as by --set model.hidden_size=N"
    return str(error) if isinstance(error, FORESEEN) else f"{type(error).__name__}: {error}"


def out_of_memory(error: Exception) -> bool:
    """Of the host, which torch reports as any other error, or of a GPU."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )
