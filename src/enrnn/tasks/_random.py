"""Random numbers that are a function of where they stand, on every device to the bit.

The generator is SplitMix64 (Steele, Lea & Flood, 2014), which needs no state beyond a counter: word n of the stream with key k is

    z = k + (n + 1)·γ;  z = (z ⊕ (z ≫ 30))·m₁;  z = (z ⊕ (z ≫ 27))·m₂;  z ⊕ (z ≫ 31)        (mod 2⁶⁴)

A stream holds a whole split of a task: sequence i takes the words i·draws … i·draws + draws − 1. So what a split contains is
one contiguous stretch of SplitMix64, the thing that was put through BigCrush, and not a construction of ours on top of it. The
map from n to the word is a bijection of 64-bit numbers: within a split, no word comes twice. Keys are the first 64 bits of a
SHA-256 over (seed, split, purpose), so that two streams of N words share any stretch with probability below 2N/2⁶⁴: 10⁻¹¹ for the
adding problem's 7.5·10⁷ words.

Everything is integer arithmetic in int64. Torch multiplies int64 modulo 2⁶⁴ on every device (two's complement), and its right
shift copies the sign bit, so a logical shift is that shift and a mask. The tests hold it against Python's integers.
"""

import hashlib

import torch
from torch import Tensor

GAMMA = 0x9E3779B97F4A7C15
FIRST = 0xBF58476D1CE4E5B9
SECOND = 0x94D049BB133111EB


def key(*place: int | str) -> int:
    """64 bits for a place such as ("adding", seed, "train")."""
    text = "/".join(f"{type(part).__name__}:{part}" for part in place)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


class Stream:
    """The words of a split: `draws` for each sequence."""

    def __init__(self, key: int, draws: int, device: torch.device) -> None:
        self._first = _counters(key, draws, device)[:, None]
        self._stride = _signed(draws * GAMMA)

    def bits(self, indices: Tensor) -> Tensor:
        """The leading 31 bits of each word, as int64 `[draws, B]` for `indices` `[B]`. (⊕ (z ≫ 31) does not reach them.)"""
        return _logical_shift(_multiplied(self._first + indices * self._stride), 33)


def uniform(bits: Tensor) -> Tensor:
    """U[0, 1) in float32: the leading 24 of 31 bits, over 2²⁴. Both the conversion and the product are exact."""
    return (bits >> 7).to(torch.float32).mul_(2.0**-24)


def below(bits: Tensor, bound: Tensor) -> Tensor:
    """An integer in 0 … bound − 1. Each comes with a probability within bound/2³¹ of 1/bound, relatively."""
    return (bits * bound) >> 31


def permutation(key: int, size: int, device: torch.device) -> Tensor:
    """The order of the first `size` words by value. No two words are equal, so every device sorts them alike."""
    z = _multiplied(_counters(key, size, device))
    return torch.argsort(z ^ _logical_shift(z, 31))


def _counters(key: int, size: int, device: torch.device) -> Tensor:
    """k + (n + 1)·γ for n = 0 … size − 1."""
    return torch.arange(1, size + 1, device=device).mul_(_signed(GAMMA)).add_(_signed(key))


def _multiplied(z: Tensor) -> Tensor:
    """Both rounds of shift, ⊕ and product. `z` is overwritten."""
    z ^= _logical_shift(z, 30)
    z *= _signed(FIRST)
    z ^= _logical_shift(z, 27)
    z *= _signed(SECOND)
    return z


def _logical_shift(z: Tensor, by: int) -> Tensor:
    return (z >> by).bitwise_and_((1 << (64 - by)) - 1)


def _signed(word: int) -> int:
    """The int64 with the same bits as `word` mod 2⁶⁴."""
    return (word + 2**63) % 2**64 - 2**63
