"""Wisdom's features: how many frames, what they are, and that the way back leads back."""

from __future__ import annotations

import cmath
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from enrnn.tasks._stft import features, halve_rate, inverse, magnitude, transform
from tests._record import Recorder
from tests.tasks._files import noise

EPS = torch.finfo(torch.float64).eps


@given(n=st.integers(1, 3000))
def test_the_number_of_frames_and_the_silent_ends(n: int) -> None:
    found = features(noise(n, seed=n))
    assert found.shape == (math.ceil(n / 128) + 3, 129)
    assert found.dtype == torch.float32
    assert (found[[0, -1]] == -50.0).all()
    assert (found[1:-1] > -50.0).any()


def test_a_frame_by_its_definition() -> None:
    samples = noise(1000, seed=1)
    padded = [0.0] * 256 + [sample / 32768 for sample in samples.tolist()] + [0.0] * (256 + 24)
    found = features(samples)
    for frame, k in ((1, 0), (2, 5), (4, 128), (9, 77)):
        hann = [0.5 - 0.5 * math.cos(2 * math.pi * place / 256) for place in range(256)]
        X = sum(padded[128 * frame + place] * hann[place] * cmath.exp(-2j * math.pi * k * place / 256) for place in range(256))
        assert found[frame, k].item() == pytest.approx(10 * math.log10(1e-5 + abs(X) ** 2), rel=1e-6)


def test_a_tone_stands_in_its_bin() -> None:
    tone = (10_000 * torch.sin(2 * math.pi * 1000 / 8000 * torch.arange(4000))).to(torch.int16)
    found = features(tone)[10]
    assert int(found.argmax()) == 32  # 1000 Hz / 31.25 Hz
    assert found[32].item() == pytest.approx(20 * math.log10(10_000 / 32768 / 2 * 128), abs=0.01)


@given(n=st.integers(1, 3000))
def test_the_inverse_gives_the_signal_back(record: Recorder, n: int) -> None:
    samples = noise(n, seed=n)
    found = inverse(transform(samples))
    assert len(found) == 128 * math.ceil(n / 128)
    wanted = torch.nn.functional.pad(samples.double() / 32768, (0, len(found) - n))
    # A transform and its inverse, eight stages each, and a division by at least 1/2.
    error = (found - wanted).abs().max() / max(wanted.abs().max(), EPS)
    record(cases=1, worst_error=error)
    assert error < 32 * EPS


def test_magnitude_undoes_the_logarithm_but_for_the_floor() -> None:
    samples = noise(1000, seed=3)
    truth = transform(samples).abs()
    torch.testing.assert_close(magnitude(features(samples)), (truth.square() + 1e-5).sqrt(), rtol=1e-5, atol=0)


@given(n=st.integers(1, 500), seed=st.integers(0, 100))
def test_half_the_rate_as_scipy_does_it(n: int, seed: int) -> None:
    signal = pytest.importorskip("scipy.signal")
    samples = noise(n, seed, scale=9000.0)
    wanted = torch.from_numpy(signal.resample_poly(samples.double().numpy(), 1, 2))
    found = halve_rate(samples)
    assert found.dtype == torch.int16
    assert len(found) == math.ceil(n / 2)
    assert ((found - wanted.clamp(-32768, 32767)).abs() <= 0.5 + 1e-9).all()


def test_half_the_rate_keeps_what_can_be_heard_and_takes_what_would_fold() -> None:
    t = torch.arange(4000)
    for frequency, wanted in ((1000, 1.0), (3000, 1.0), (5200, 0.0), (7000, 0.0)):
        tone = (10_000 * torch.sin(2 * math.pi * frequency / 16000 * t)).round().to(torch.int16)
        strength = halve_rate(tone)[100:-100].double().square().mean().sqrt() * math.sqrt(2) / 10_000
        assert strength.item() == pytest.approx(wanted, abs=0.01)
