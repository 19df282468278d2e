"""A decoder for FLAC (RFC 9639): one channel of 16 bits, which is what speech corpora ship.

It is plain Python and takes about a second for 50 seconds of speech at 8 kHz; features are cached, so a corpus is decoded once.
Each frame's checksum and, where the file has one, the MD5 of all samples are checked, so what comes out is what was encoded. (An
encoder that writes into a pipe knows the MD5 too late and leaves it out.)
"""

import hashlib
from array import array
from functools import reduce
from sys import byteorder

BLOCK_SIZES = {1: 192, **{code: 576 << (code - 2) for code in range(2, 6)}, **{code: 256 << (code - 8) for code in range(8, 16)}}
FIXED_PREDICTORS: tuple[tuple[int, ...], ...] = ((), (1,), (2, -1), (3, -3, 1), (4, -6, 4, -1))
SYNC = f"{0x7FFC:b}"
"""What every frame begins with; a tag that some programs put behind the frames does not."""
REMAINDERS = [reduce(lambda rest, _: rest << 1 ^ (rest >> 15) * 0x18005, range(8), byte << 8) for byte in range(256)]
"""Of each byte, eight places up, by the polynomial of a frame's checksum."""


def decode(content: bytes) -> tuple[list[int], int]:
    """The samples, and their rate in Hz."""
    place, last, info = 4, False, b""
    while not last:
        head = content[place : place + 4]
        body = content[place + 4 : place + 4 + int.from_bytes(head[1:], "big")]
        if len(head) < 4 or len(body) < int.from_bytes(head[1:], "big"):
            raise ValueError("cut off: a FLAC file that ends in its metadata")
        last = bool(head[0] & 0x80)
        if head[0] & 0x7F == 0:
            info = body
        place += 4 + len(body)
    if len(info) != 34:
        raise ValueError("a FLAC file without stream information")
    packed = int.from_bytes(info[10:18], "big")
    rate, channels, width, announced = packed >> 44, (packed >> 41 & 7) + 1, (packed >> 36 & 31) + 1, packed & (1 << 36) - 1
    if channels != 1 or width != 16:
        raise ValueError(f"FLAC with {channels} channels of {width} bits; one of 16 bits is wanted")
    samples = array("h")
    bits = _Bits(content[place:])
    while bits.place < bits.end and (not announced or len(samples) < announced):
        block = _frame(bits)
        if block and not -32768 <= min(block) <= max(block) <= 32767:
            raise ValueError("damaged: a FLAC sample that does not fit 16 bits")
        samples.extend(block)
    if len(samples) < announced:
        raise ValueError(f"cut off: {announced} FLAC samples announced, {len(samples)} there")
    if announced and (len(samples) > announced or bits.text.startswith(SYNC, bits.place)):
        raise ValueError(f"damaged: {announced} FLAC samples announced, more there")
    little = array("h", samples)
    if byteorder == "big":
        little.byteswap()
    if any(info[18:]) and hashlib.md5(little.tobytes(), usedforsecurity=False).digest() != info[18:]:
        raise ValueError("damaged: the FLAC samples have another MD5 than the file announces")
    return samples.tolist(), rate


class _Bits:
    """Bits as a text of 0s and 1s: Python finds the next 1 in a text, and reads a number from it, at the speed of C."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.end = 8 * len(content)
        self.text = f"{int.from_bytes(content, 'big'):0{self.end}b}" if content else ""
        self.place = 0

    def number(self, width: int) -> int:
        start, self.place = self.place, self.place + width
        if self.place > self.end:
            raise ValueError("cut off: a FLAC file that ends within a frame")
        return int(self.text[start : self.place], 2) if width else 0

    def signed(self, width: int) -> int:
        number = self.number(width)
        return number - (1 << width) if width and number >> (width - 1) else number

    def zeros(self) -> int:
        """How many 0s come before the next 1, which is taken as well."""
        start, found = self.place, self.text.find("1", self.place)
        if found < 0:
            raise ValueError("cut off: a FLAC file that ends within a frame")
        self.place = found + 1
        return found - start


def _frame(bits: _Bits) -> list[int]:
    start = bits.place // 8
    if bits.number(15) != int(SYNC, 2):
        raise ValueError(f"damaged: no FLAC frame where one should begin, at bit {bits.place - 15} of the frames")
    bits.number(1)
    size_code, rate_code, channel_code, width_code = bits.number(4), bits.number(4), bits.number(4), bits.number(3)
    bits.number(1)
    if channel_code != 0 or width_code not in (0, 4):
        raise ValueError("damaged: a FLAC frame of another format than the file")
    lead = bits.number(8)  # the frame's number, in UTF-8's manner: as many further bytes as it has leading ones, less one
    bits.number(8 * max(8 - (lead ^ 0xFF).bit_length() - 1, 0))
    if size_code in (6, 7):
        size = bits.number(8 * (size_code - 5)) + 1
    elif size_code in BLOCK_SIZES:
        size = BLOCK_SIZES[size_code]
    else:
        raise ValueError("damaged: a FLAC frame of an unknown size")
    bits.number({12: 8, 13: 16, 14: 16}.get(rate_code, 0))
    bits.number(8)  # the header's own checksum; that of the frame covers the header as well
    samples = _subframe(bits, size)
    bits.number(-bits.place % 8)
    bits.number(16)
    if _remainder(bits.content[start : bits.place // 8]):
        raise ValueError(f"damaged: a FLAC frame with a wrong checksum, at byte {start} of the frames")
    return samples


def _remainder(frame: bytes) -> int:
    """Of the division by x¹⁶ + x¹⁵ + x² + 1: zero for a frame with its checksum, which is its last two bytes."""
    remainder = 0
    for byte in frame:
        remainder = (remainder << 8 & 0xFFFF) ^ REMAINDERS[remainder >> 8 ^ byte]
    return remainder


def _subframe(bits: _Bits, size: int) -> list[int]:
    kind = bits.number(7)
    wasted = bits.zeros() + 1 if bits.number(1) else 0
    width = 16 - wasted
    if width < 1:
        raise ValueError("damaged: a FLAC frame without bits")
    if kind == 0:
        samples = [bits.signed(width)] * size
    elif kind == 1:
        samples = [bits.signed(width) for _ in range(size)]
    elif 8 <= kind <= 12:
        start = _start(bits, kind - 8, width, size)
        samples = _predicted(start, _residual(bits, size, len(start)), FIXED_PREDICTORS[kind - 8], 0)
    elif kind >= 32:
        start = _start(bits, kind - 31, width, size)
        precision = bits.number(4) + 1
        shift = bits.signed(5)
        if precision == 16 or shift < 0:
            raise ValueError("damaged: a FLAC predictor that the format does not allow")
        factors = tuple(bits.signed(precision) for _ in start)
        samples = _predicted(start, _residual(bits, size, len(start)), factors, shift)
    else:
        raise ValueError("damaged: a FLAC frame of an unknown kind")
    return [sample << wasted for sample in samples] if wasted else samples


def _start(bits: _Bits, order: int, width: int, size: int) -> list[int]:
    if order > size:
        raise ValueError("damaged: a FLAC frame shorter than its predictor")
    return [bits.signed(width) for _ in range(order)]


def _residual(bits: _Bits, size: int, order: int) -> list[int]:
    """What the prediction misses by, Rice-coded in 2ᵖ parts: quotient in unary, remainder in `parameter` bits, sign last."""
    method = bits.number(2)
    if method > 1:
        raise ValueError("damaged: a FLAC residual of an unknown kind")
    width = 4 + method
    parts = 1 << bits.number(4)
    if size % parts or size // parts < order:
        raise ValueError("damaged: a FLAC residual whose parts do not fit the frame")
    residual: list[int] = []
    for part in range(parts):
        length = size // parts - (order if part == 0 else 0)
        parameter = bits.number(width)
        if parameter == (1 << width) - 1:
            raw = bits.number(5)
            residual += [bits.signed(raw) for _ in range(length)]
        else:
            residual += _rice(bits, length, parameter)
    return residual


def _rice(bits: _Bits, length: int, parameter: int) -> list[int]:
    text, place, find = bits.text, bits.place, bits.text.find
    values: list[int] = []
    for _ in range(length):
        one = find("1", place)
        if one < 0:
            raise ValueError("cut off: a FLAC file that ends within a frame")
        after = one + 1 + parameter
        # From the 1 on, so that there is always a digit to read; the 1 itself turns the quotient q into q + 1.
        folded = int(text[one:after], 2) + ((one - place - 1) << parameter)
        values.append((folded >> 1) ^ -(folded & 1))
        place = after
    if place > bits.end:
        raise ValueError("cut off: a FLAC file that ends within a frame")
    bits.place = place
    return values


def _predicted(samples: list[int], residual: list[int], factors: tuple[int, ...], shift: int) -> list[int]:
    """Each sample is the residual plus the weighted sum of those before it; `factors` begin with the latest."""
    order = len(factors)
    if not order:
        return residual
    backwards = factors[::-1]
    for place, missed in enumerate(residual):
        past = samples[place : place + order]
        samples.append(missed + (sum([a * b for a, b in zip(backwards, past, strict=True)]) >> shift))
    return samples
