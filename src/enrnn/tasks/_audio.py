"""Recordings as 16-bit samples: NIST SPHERE, RIFF and FLAC files, told apart by their first bytes, not by their names."""

import struct
import sys
from typing import NamedTuple

import torch
from torch import Tensor

from ._flac import decode as decode_flac


class Recording(NamedTuple):
    samples: Tensor
    """int16, one channel: the first."""
    rate: int


def decode(content: bytes) -> Recording:
    """The recording in a file's content. Whatever is wrong with it is a `ValueError` that says what."""
    if content.startswith(b"NIST_1A"):
        recording = _sphere(content)
    elif content.startswith(b"RIFF"):
        recording = _riff(content)
    elif content.startswith(b"fLaC"):
        samples, rate = decode_flac(content)
        recording = Recording(torch.tensor(samples, dtype=torch.int16), rate)
    elif not content:
        raise ValueError("the file is empty")
    else:
        raise ValueError(f"neither SPHERE, RIFF nor FLAC: it begins with {content[:8].hex(' ')}")
    if not len(recording.samples):
        raise ValueError("no samples")
    if recording.rate <= 0:
        raise ValueError(f"a sample rate of {recording.rate} Hz")
    return recording


def _sphere(content: bytes) -> Recording:
    """A header in text: its size on the second line, then `name -type value` a line up to `end_head`; then the samples."""
    lines = content[:16].split(b"\n")
    if len(lines) < 3 or not lines[1].strip().isdigit():
        raise ValueError("a SPHERE header without its size")
    header_size = int(lines[1])
    if header_size < 16 or len(content) < header_size:
        raise ValueError(f"cut off: a SPHERE header of {header_size} bytes in a file of {len(content)}")
    fields: dict[str, str] = {}
    for line in content[16:header_size].decode("latin-1").split("\n"):
        if line.strip() == "end_head":
            break
        name, _, rest = line.strip().partition(" ")
        fields[name] = rest.partition(" ")[2].strip()
    else:
        raise ValueError("a SPHERE header without end_head")
    coding = fields.get("sample_coding", "pcm")
    if coding != "pcm":
        raise ValueError(f"SPHERE samples coded as {coding!r}; only 'pcm' can be read (sph2pipe -p makes it so)")
    channels = _field(fields, "channel_count")
    width = _field(fields, "sample_n_bytes")
    if width != 2:
        raise ValueError(f"SPHERE samples of {width} bytes; 2 are wanted")
    order = fields.get("sample_byte_format")
    if order not in ("01", "10"):
        raise ValueError(f"SPHERE sample_byte_format {order!r}; '01' and '10' are known")
    data = content[header_size:]
    announced = 2 * channels * _field(fields, "sample_count")
    if len(data) < announced:
        raise ValueError(f"cut off: {announced} bytes of samples announced, {len(data)} there")
    return Recording(
        _first_channel(data[:announced], channels, "little" if order == "01" else "big"), _field(fields, "sample_rate")
    )


def _field(fields: dict[str, str], name: str) -> int:
    value = fields.get(name, "")
    if not (value.isascii() and value.isdigit()) or len(value) > 10:
        raise ValueError(f"a SPHERE header with {name} {value!r}" if value else f"a SPHERE header without {name}")
    return int(value)


def _riff(content: bytes) -> Recording:
    """Chunks of (four letters, size, content), each padded to an even size, of which `fmt ` and `data` matter."""
    if content[8:12] != b"WAVE":
        raise ValueError(f"a RIFF file of the kind {content[8:12]!r}; b'WAVE' is wanted")
    form: tuple[int, int, int, int] | None = None
    place = 12
    while place + 8 <= len(content):
        name, size = struct.unpack_from("<4sI", content, place)
        body = content[place + 8 : place + 8 + size]
        if name == b"fmt ":
            if len(body) < 16:
                raise ValueError("cut off: a RIFF file that ends in its format")
            code, channels, rate, _, _, width = struct.unpack_from("<HHIIHH", body)
            if code == 0xFFFE and len(body) >= 26:  # "extensible": the code proper comes later
                code = struct.unpack_from("<H", body, 24)[0]
            form = code, channels, rate, width
        elif name == b"data":
            if form is None:
                raise ValueError("a RIFF file whose data come before their format")
            code, channels, rate, width = form
            if code != 1 or width != 16:
                raise ValueError(f"RIFF samples of format {code} with {width} bits; PCM (1) with 16 is wanted")
            if len(body) < size:
                raise ValueError(f"cut off: {size} bytes of samples announced, {len(body)} there")
            return Recording(_first_channel(body, channels, "little"), rate)
        place += 8 + size + size % 2
    raise ValueError("cut off: a RIFF file without data")


def _first_channel(data: bytes, channels: int, order: str) -> Tensor:
    if channels < 1:
        raise ValueError("no channels")
    whole = len(data) - len(data) % (2 * channels)
    if not whole:
        return torch.empty(0, dtype=torch.int16)
    buffer = torch.frombuffer(bytearray(data[:whole]), dtype=torch.uint8).view(-1, 2)
    if order != sys.byteorder:
        buffer = buffer.flip(1)
    return buffer.contiguous().view(torch.int16).view(-1, channels)[:, 0].contiguous()
