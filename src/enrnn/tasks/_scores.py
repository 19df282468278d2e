"""How good reconstructed speech sounds: SegSNR, STOI and PESQ, as Wisdom et al.'s scoring script takes them.

They need packages beyond torch (the extra `enrnn[speech]`, for PESQ `enrnn[pesq]`), imported when a score is asked for.
"""

import importlib
import importlib.util
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ._stft import RATE

PACKAGES = {"segsnr": ("scipy", "speech"), "stoi": ("pystoi", "speech"), "pesq": ("pesq", "pesq")}
"""The package that each score needs, and the extra that brings it."""

MARGIN = 15.9
"""By how many dB the threshold of activity lies below the active level, in ITU-T P.56."""


class Pair(NamedTuple):
    """An utterance as the network makes it, and as it is: float64 `[n]`, 8 kHz, on the CPU."""

    name: str
    estimate: Tensor
    reference: Tensor


class Scores(NamedTuple):
    means: dict[str, float]
    """Over the utterances that could be scored; NaN where there was none."""
    scored: dict[str, int]
    failed: dict[str, list[str]]
    """"name: reason", of each utterance that could not."""


def available() -> dict[str, str | None]:
    """For each score, None or the reason why it cannot be taken here."""
    return {
        score: None if importlib.util.find_spec(package) else f"needs the package {package} (the extra enrnn[{extra}] brings it)"
        for score, (package, extra) in PACKAGES.items()
    }


def score(pairs: Iterable[Pair], scores: Sequence[str] = ("segsnr", "stoi", "pesq")) -> Scores:
    """The mean of each score. An utterance that a score is not defined for, silence for instance, is counted and named."""
    here = available()
    if unknown := [name for name in scores if name not in PACKAGES]:
        raise ValueError(f"Unknown score {unknown[0]!r}. Select from {', '.join(map(repr, PACKAGES))}.")
    if missing := [f"{name} {here[name]}" for name in scores if here[name]]:
        raise ModuleNotFoundError("; ".join(missing))
    values: dict[str, list[float]] = {name: [] for name in scores}
    failed: dict[str, list[str]] = {name: [] for name in scores}
    for pair in pairs:
        shorter = min(len(pair.estimate), len(pair.reference))
        for name in scores:
            try:
                if not pair.estimate.isfinite().all():
                    raise ValueError("the estimate is not finite")
                values[name].append(_FUNCTIONS[name](pair.estimate[:shorter], pair.reference[:shorter]))
            except ValueError as error:
                failed[name].append(f"{pair.name}: {error}")
    means = {name: math.fsum(of) / len(of) if of else math.nan for name, of in values.items()}
    return Scores(means, {name: len(of) for name, of in values.items()}, failed)


def segsnr(estimate: Tensor, reference: Tensor) -> float:
    """Segmental signal-to-noise ratio in dB, as VOICEBOX's `snrseg` with its defaults.

    The mean of 10·log₁₀(Σr²/Σe²) over those frames of 10 ms, not overlapping, of which more than half is active speech; ±100 only
    where a sum is exactly zero. In each frame the estimate may be shifted by up to one sample either way, by linear
    interpolation, to make the error least.
    """
    size = RATE // 100
    frames = (min(len(estimate), len(reference)) - 2) // size
    if frames < 1:
        raise ValueError("shorter than a frame of 10 ms")
    body = slice(1, 1 + frames * size)
    estimates, references = estimate[body].view(frames, size), reference[body].view(frames, size)
    missed = estimates - references
    errors = []
    for shift in (-1, 1):
        step = estimates - estimate[body.start + shift : body.stop + shift].view(frames, size)
        part = ((missed * step).sum(1) / step.square().sum(1)).nan_to_num(0.0).clamp(0.0, 1.0)
        errors.append((missed - part[:, None] * step).square().sum(1))
    error, power = torch.minimum(*errors), references.square().sum(1)
    ratio = 10 * torch.log10(power / error)
    ratio = ratio.where(power > 0, -100.0).where(error > 0, 100.0)
    spoken = active(reference)[body].view(frames, size).sum(1) > size / 2
    if not spoken.any():
        raise ValueError("no active speech in the reference")
    return float(ratio[spoken].mean())


def active(signal: Tensor) -> Tensor:
    """Which samples are active speech: method B of ITU-T P.56, as VOICEBOX's `activlev` has it.

    High-passed at 200 Hz, rectified, smoothed twice with a time constant of 30 ms and held for 200 ms, the signal is active where
    it exceeds a threshold that lies 15.9 dB below the active level: the energy of the signal over the time that it is active.
    The level is where both agree, interpolated between thresholds at powers of two.
    """
    signals = importlib.import_module("scipy.signal")
    with_end = F.pad(signal.to(torch.float64), (0, math.ceil(0.35 * RATE)))
    filtered = torch.from_numpy(signals.sosfilt(_high_pass(), with_end.numpy()))
    pole = math.exp(-1 / (0.03 * RATE))
    smoothed = torch.from_numpy(signals.lfilter([(1 - pole) ** 2], [1.0, -2 * pole, pole**2], filtered.abs().numpy()))
    energy = float(filtered.square().sum())
    held = _held(smoothed)
    if not energy > 0.0:
        return torch.zeros(len(signal), dtype=torch.bool)
    exponents = torch.frexp(held.square()).exponent.to(torch.int64)
    highest = int(exponents[held > 0].max()) + 1
    steps = torch.where(held > 0, highest - exponents, 20).clamp(max=20)
    above = torch.bincount(steps, minlength=21)[1:].cumsum(0).to(torch.float64)  # samples that exceed each of 20 thresholds
    level = 10 * torch.log10(energy / above)
    threshold = 10 * math.log10(2) * (highest - 1 - torch.arange(1, 21, dtype=torch.float64))
    excess = (level - threshold - MARGIN).tolist()
    place = next((place for place in range(19) if excess[place] < 0 <= excess[place + 1]), None)
    if place is not None:
        part = 1 / (1 - excess[place + 1] / excess[place])
    else:
        place, part = (18, 1.0) if excess[-1] <= 0 else (0, 0.0)
    low, high = float(level[place]), float(level[place + 1])
    active_level = low if part == 0.0 else low + part * (high - low)
    return held[: len(signal)] > 10 ** ((active_level - MARGIN) / 20)


def stoi(estimate: Tensor, reference: Tensor) -> float:
    """Short-time objective intelligibility (Taal et al., 2011), not the extended one."""
    package = importlib.import_module("pystoi")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return float(package.stoi(reference.numpy(), estimate.numpy(), RATE, extended=False))
        except (RuntimeWarning, ValueError) as error:
            raise ValueError(str(error)) from None


def pesq(estimate: Tensor, reference: Tensor) -> float:
    """Perceptual evaluation of speech quality (ITU-T P.862, narrow-band) on its raw scale, −0.5 … 4.5.

    The package gives P.862.1's opinion score, LQO = 0.999 + 4/(1 + exp(4.6607 − 1.4945·raw)), which is solved for `raw`, because
    that is what Loizou's MATLAB function, and so the literature, reports.
    """
    package = importlib.import_module("pesq")
    if not (reference.any() and estimate.any()):
        raise ValueError("silence, which PESQ would divide by")
    try:
        opinion = float(package.pesq(RATE, reference.numpy(), estimate.numpy(), "nb"))
    except (package.PesqError, ValueError, ZeroDivisionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None
    if not 0.999 < opinion < 4.999:
        raise ValueError(f"PESQ gave {opinion}")
    return (4.6607 - math.log(4 / (opinion - 0.999) - 1)) / 1.4945


_FUNCTIONS: dict[str, Callable[[Tensor, Tensor], float]] = {"segsnr": segsnr, "stoi": stoi, "pesq": pesq}


def _high_pass() -> Any:
    """Chebyshev's second kind, order 5: −50 dB in the stop band and −0.25 dB at 200 Hz.

    With the stop band's edge at w_s (analogue, 200 Hz at 1), |H(1)|² = ε²C₅²(1/w_s) / (1 + ε²C₅²(1/w_s)), ε² = 1/(10⁵ − 1).
    """
    ratio = math.cosh(math.acosh(math.sqrt((1e5 - 1) / (10**0.025 - 1))) / 5)
    edge = math.atan(math.tan(math.pi * 200 / RATE) / ratio) * RATE / math.pi
    return importlib.import_module("scipy.signal").cheby2(5, 50, edge, "highpass", fs=RATE, output="sos")


def _held(envelope: Tensor) -> Tensor:
    """The greatest value of the last 200 ms, at each sample."""
    hold = RATE // 5
    return F.max_pool1d(F.pad(envelope, (hold, 0)).view(1, 1, -1), hold + 1, stride=1).flatten()
