"""Named tensors and a few words of JSON in one file, which appears whole or not at all, and in which no flipped bit goes unseen.

    magic, 16 bytes | SHA-256 of all that follows | length of the JSON, 8 bytes | JSON | the tensors' bytes, one after the other

Nothing in it is ever executed: there is no pickle. (torch.save and safetensors load a file with a flipped bit without a word.)
"""

import ctypes
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

MAGIC = b"enrnn tensors 1\n"
DIGEST = hashlib.sha256().digest_size
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.bool, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64)
}


class DamagedError(ValueError):
    """A file is not what was written."""


def write(file: Path, about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write to a temporary file beside `file`, put it on disk, and only then give it its name. On failure nothing has changed."""
    table: dict[str, Any] = {}
    parts: list[bytes] = []
    for name, tensor in tensors.items():
        flat = tensor.detach().cpu().contiguous()
        table[name] = {"dtype": str(flat.dtype).removeprefix("torch."), "shape": list(flat.shape)}
        parts.append(ctypes.string_at(flat.data_ptr(), flat.nbytes) if flat.numel() else b"")
    header = json.dumps({"about": about, "byteorder": sys.byteorder, "tensors": table}, allow_nan=False).encode()
    content = b"".join([len(header).to_bytes(8, "little"), header, *parts])
    replace(file, MAGIC + hashlib.sha256(content).digest() + content)


def read(file: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What `write` was given, on the CPU; `DamagedError` if a single bit is not."""
    content = memoryview(file.read_bytes())
    start = len(MAGIC) + DIGEST
    if content[: len(MAGIC)] != MAGIC:
        raise DamagedError(f"{file} is not a file of enrnn's tensors, or its beginning is damaged")
    if hashlib.sha256(content[start:]).digest() != content[len(MAGIC) : start]:
        raise DamagedError(f"{file} is damaged: its content does not have the SHA-256 that was written with it")
    length = int.from_bytes(content[start : start + 8], "little")
    header = json.loads(bytes(content[start + 8 : start + 8 + length]))
    if header["byteorder"] != sys.byteorder:
        raise DamagedError(f"{file} was written on a {header['byteorder']}-endian machine; this one is {sys.byteorder}-endian")
    place = start + 8 + length
    tensors: dict[str, Tensor] = {}
    for name, entry in header["tensors"].items():
        tensor = torch.empty(entry["shape"], dtype=DTYPES[entry["dtype"]])
        if tensor.numel():
            ctypes.memmove(tensor.data_ptr(), bytes(content[place : place + tensor.nbytes]), tensor.nbytes)
        place += tensor.nbytes
        tensors[name] = tensor
    return header["about"], tensors


def replace(file: Path, content: bytes) -> None:
    """`file` with this content, or as it was: never anything between."""
    temporary: Path | None = None
    try:
        handle, name = tempfile.mkstemp(prefix=".", suffix=".part", dir=file.parent)
        temporary = Path(name)
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, file)
        _sync_folder(file.parent)
    except OSError as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        raise type(error)(error.errno, f"cannot write {file.name}: {error.strerror}", str(file.parent)) from None


def _sync_folder(folder: Path) -> None:
    """Put the new name on disk, too. (Windows has no such call, and no need of it.)"""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
