"""Wisdom et al.'s features of speech (2016), and the way back to sound.

From their published scripts: 8 kHz, frames of 256 samples every 128, a periodic Hann window, the signal padded with zeros at its
end to a multiple of 128 and then with 256 zeros on both sides. So n samples make ⌈n/128⌉ + 3 frames, the first and the last all
zero.
A feature is 10·log₁₀(10⁻⁵ + |X|²), in dB, with a floor of −50; nothing is normalised.
"""

import math
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

RATE = 8_000
FRAME, HOP = 256, 128
BINS = FRAME // 2 + 1
FLOOR = 1e-5
SILENCE = 10 * math.log10(FLOOR)
"""−50 dB: the feature of a frame of zeros, in every bin."""

Size = TypeVar("Size", int, Tensor)


def frame_count(samples: Size) -> Size:
    """⌈n/128⌉ + 3, for one n or many."""
    return (samples + HOP - 1) // HOP + 3


def transform(samples: Tensor) -> Tensor:
    """The short-time Fourier transform of int16 samples `[n]`, as complex128 `[frames, 129]`."""
    signal = samples.to(torch.float64) / 32768
    padded = F.pad(signal, (FRAME, FRAME + -len(signal) % HOP))
    spectra: Tensor = torch.fft.rfft(padded.unfold(0, FRAME, HOP) * _window())
    return spectra


def features(samples: Tensor) -> Tensor:
    """float32 `[frames, 129]`, in dB."""
    return (10 * torch.log10(FLOOR + transform(samples).abs().square())).to(torch.float32)


def magnitude(features: Tensor) -> Tensor:
    """√(10^(feature/10)): the floor is not taken off again, as in Wisdom's script."""
    return torch.pow(10.0, features.to(torch.float64) / 20)


def inverse(spectra: Tensor) -> Tensor:
    """The signal of which `spectra` is the transform, or nearest to it in the least squares of Griffin & Lim (1984): float64.

    Overlapping frames are windowed again, added, and divided by the sum of the squared windows; the padding is cut off.
    """
    frames: Tensor = torch.fft.irfft(spectra, n=FRAME) * _window()
    squared = _window().square()
    whole = (frames[1:, :HOP] + frames[:-1, HOP:]) / (squared[:HOP] + squared[HOP:])
    # Block k of `whole` begins at sample 128·(k + 1) of the padded signal, which has 256 zeros before and after.
    return whole[1:-1].flatten()


def halve_rate(samples: Tensor) -> Tensor:
    """16 kHz to 8 kHz, as MATLAB's `resample(x, 1, 2)`: a half-band sinc of 41 taps under a Kaiser window, β = 5.

    MATLAB designs the filter by least squares without a transition band, whose solution is that sinc. Wisdom stored the result as
    16-bit WAV, so it is rounded to int16 here.
    """
    place = torch.arange(-20, 21, dtype=torch.float64)
    taps = torch.sinc(place / 2) * torch.kaiser_window(41, periodic=False, beta=5.0, dtype=torch.float64)
    taps /= taps.sum()
    halved = F.conv1d(samples.to(torch.float64).view(1, 1, -1), taps.view(1, 1, -1), stride=2, padding=20)
    return halved.flatten().round().clamp(-32768, 32767).to(torch.int16)


def _window() -> Tensor:
    return torch.hann_window(FRAME, periodic=True, dtype=torch.float64)
