"""Tensors in a file that appears whole or not at all, and that notices when a bit of it has changed."""

import hashlib
import io
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

MAGIC = b"enrnn cache 1\n"
DIGEST = hashlib.sha256().digest_size


def save(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write to a temporary file in the same folder, and give it its name when it is complete and on disk."""
    buffer = io.BytesIO()
    torch.save(dict(tensors), buffer)
    content = buffer.getbuffer()
    temporary: str | None = None
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
        with os.fdopen(handle, "wb") as stream:
            stream.write(MAGIC + hashlib.sha256(content).digest())
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, file)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise type(error)(f"cannot write the cache {file}: {error.strerror}") from None


def load(file: Path) -> dict[str, Tensor] | None:
    """What `save` wrote, or None where there is no such file. A file that is not what was written is a `ValueError`."""
    try:
        content = memoryview(file.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise type(error)(f"cannot read the cache {file}: {error.strerror}") from None
    start = len(MAGIC) + DIGEST
    if content[: len(MAGIC)] != MAGIC or hashlib.sha256(content[start:]).digest() != content[len(MAGIC) : start]:
        raise ValueError(f"the cache {file} is damaged: its content is not what was written")
    tensors: dict[str, Tensor] = torch.load(io.BytesIO(content[start:]), weights_only=True)
    return tensors
