"""Files for the tasks to read: made here, byte by byte, or real ones where ENRNN_DATA names a folder that has them."""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor


def real(name: str) -> Path:
    """A file or folder of the real data, or a skipped test."""
    place = Path(os.environ.get("ENRNN_DATA", "")) / name
    if not os.environ.get("ENRNN_DATA") or not place.exists():
        pytest.skip(f"no {name}: set ENRNN_DATA to a folder that holds it")
    return place


def noise(samples: int, seed: int, scale: float = 3000.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(samples, generator=generator)).round().clamp(-32768, 32767).to(torch.int16)


def packed(samples: Tensor, order: str = "<") -> bytes:
    values = samples.flatten().tolist()
    return struct.pack(f"{order}{len(values)}h", *values)


def riff(samples: Tensor, rate: int = 8000, *, channels: int = 1, before: bytes = b"") -> bytes:
    data = packed(samples)
    form = struct.pack("<HHIIHH", 1, channels, rate, 2 * channels * rate, 2 * channels, 16)
    body = b"WAVE" + before + b"fmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


def sphere(samples: Tensor, rate: int = 16000, *, order: str = "01", channels: int = 1, **fields: str) -> bytes:
    lines = {
        "channel_count": f"-i {channels}",
        "sample_count": f"-i {samples.numel() // channels}",
        "sample_rate": f"-i {rate}",
        "sample_n_bytes": "-i 2",
        "sample_byte_format": f"-s2 {order}",
        "sample_sig_bits": "-i 16",
    } | fields
    text = "NIST_1A\n   1024\n" + "".join(f"{name} {value}\n" for name, value in lines.items() if value) + "end_head\n"
    return text.encode().ljust(1024) + packed(samples, "<" if order == "01" else ">")


class FlacWriter:
    """A FLAC file of one channel, a frame for each call of a method; the MD5 is that of what was to be written."""

    def __init__(self, rate: int = 8000) -> None:
        self.rate = rate
        self.frames = b""
        self.samples: list[int] = []

    def constant(self, value: int, size: int) -> None:
        self._frame([value] * size, "0" * 7 + "0" + self._signed(value, 16))

    def verbatim(self, samples: Sequence[int], wasted: int = 0) -> None:
        flag = "1" + "0" * (wasted - 1) + "1" if wasted else "0"
        body = "".join(self._signed(sample >> wasted, 16 - wasted) for sample in samples)
        self._frame(samples, f"{1:07b}" + flag + body)

    def predicted(
        self,
        samples: Sequence[int],
        factors: Sequence[int],
        shift: int,
        *,
        fixed: bool,
        parts: int = 0,
        escape: bool = False,
        method: int = 0,
    ) -> None:
        """`fixed` frames have their factors by their order alone; `method` 1 has Rice parameters of 5 bits instead of 4."""
        order = len(factors)
        residual = [
            samples[place] - (sum(a * b for a, b in zip(factors, samples[place - order : place][::-1], strict=True)) >> shift)
            for place in range(order, len(samples))
        ]
        kind = 8 + order if fixed else 31 + order
        text = f"{kind:07b}0" + "".join(self._signed(sample, 16) for sample in samples[:order])
        if not fixed:
            text += f"{14:04b}" + self._signed(shift, 5) + "".join(self._signed(factor, 15) for factor in factors)
        text += f"{method:02b}{parts:04b}"
        each = len(samples) >> parts
        for part in range(1 << parts):
            values = residual[max(part * each - order, 0) : (part + 1) * each - order]
            if escape:
                text += "1" * (4 + method) + f"{20:05b}" + "".join(self._signed(value, 20) for value in values)
                continue
            parameter = max(sum(map(abs, values)) // max(len(values), 1), 1).bit_length() % 15
            text += f"{parameter:0{4 + method}b}"
            for value in values:
                folded = 2 * value if value >= 0 else -2 * value - 1
                low = f"{folded & (1 << parameter) - 1:0{parameter}b}" if parameter else ""
                text += "0" * (folded >> parameter) + "1" + low
        self._frame(samples, text)

    def content(
        self,
        *,
        channels: int = 1,
        width: int = 16,
        md5: bytes | None = None,
        padding: bool = True,
        announced: int | None = None,
    ) -> bytes:
        count = len(self.samples) if announced is None else announced
        fields = self.rate << 44 | (channels - 1) << 41 | (width - 1) << 36 | count
        digest = hashlib.md5(struct.pack(f"<{len(self.samples)}h", *self.samples)).digest() if md5 is None else md5
        info = struct.pack(">HH", 16, 65535) + bytes(6) + fields.to_bytes(8, "big") + digest
        metadata = bytes([0 if padding else 0x80]) + len(info).to_bytes(3, "big") + info
        if padding:
            metadata += bytes([0x81, 0, 0, 5]) + b"hello"
        return b"fLaC" + metadata + self.frames

    def _frame(self, samples: Sequence[int], subframe: str) -> None:
        number = chr(len(self.frames)).encode()  # any number will do, in any width of UTF-8
        header = bytes([0xFF, 0xF8, 7 << 4 | 0, 4 << 1]) + number + struct.pack(">H", len(samples) - 1) + b"\0"
        bits = subframe + "0" * (-len(subframe) % 8)
        frame = header + int(bits, 2).to_bytes(len(bits) // 8, "big")
        self.frames += frame + self._checksum(frame)
        self.samples += samples

    @staticmethod
    def _checksum(frame: bytes) -> bytes:
        """The remainder of the frame and 16 zeros by 0x18005, by long division."""
        rest = int.from_bytes(frame, "big") << 16
        while rest.bit_length() > 16:
            rest ^= 0x18005 << rest.bit_length() - 17
        return rest.to_bytes(2, "big")

    @staticmethod
    def _signed(value: int, width: int) -> str:
        assert -(1 << width - 1) <= value < 1 << width - 1
        return f"{value % (1 << width):0{width}b}"


def speech_folder(folder: Path, counts: dict[str, int] | None = None, *, rate: int = 8000) -> Path:
    """Noise of several lengths in the folders train, valid and test."""
    for split, count in (counts or {"train": 5, "valid": 3, "test": 4}).items():
        (folder / split).mkdir(parents=True)
        for number in range(count):
            samples = noise(700 + 331 * number + 128 * len(split), seed=hash_of(split, number))
            (folder / split / f"{number:03}.wav").write_bytes(riff(samples, rate))
    return folder


def hash_of(*parts: object) -> int:
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:4], "big")
