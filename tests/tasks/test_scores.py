"""Scores of reconstructed speech: SegSNR by its definition, STOI and PESQ where their packages are, and honest counts."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from enrnn.tasks import _scores
from enrnn.tasks._scores import Pair, active, available, score, segsnr
from tests.tasks._files import noise

pytest.importorskip("scipy", reason="scipy is not installed")


def bursts(n: int = 16_000, seed: int = 0) -> Tensor:
    """Noise in the second and fourth quarter, near silence in the others."""
    loud = (torch.arange(n) // (n // 4)) % 2 == 1
    return noise(n, seed).double() / 32768 * torch.where(loud, 1.0, 1e-4)


def test_activity_is_where_the_sound_is_and_a_fifth_of_a_second_longer() -> None:
    found = active(bursts())
    assert found.dtype == torch.bool
    assert not found[:3900].any()
    assert found[4200:8000].all()
    assert found[8000:9600].all(), "held for 200 ms"
    assert not found[10_600:11_900].any()
    assert found[12_300:].all()


def test_activity_does_not_depend_on_loudness_and_silence_has_none() -> None:
    signal = bursts()
    assert torch.equal(active(signal), active(signal / 8))
    assert not active(torch.zeros(1000)).any()
    hum = torch.sin(2 * math.pi * 50 / 8000 * torch.arange(16_000)).double()
    assert torch.equal(active(signal + 0.02 * hum)[4200:8000], active(signal)[4200:8000])
    assert not active(signal + 0.02 * hum)[2000:3900].any(), "50 Hz is not speech"


def test_the_high_pass_is_down_a_quarter_decibel_at_200_hz_and_50_in_the_stop_band() -> None:
    signal = pytest.importorskip("scipy.signal")
    _, response = signal.freqz_sos(_scores._high_pass(), worN=[200, 3999, 20, 70], fs=8000)
    decibels = (20 * torch.from_numpy(abs(response)).log10()).tolist()
    assert decibels[0] == pytest.approx(-0.25, abs=1e-9)
    assert decibels[1] == pytest.approx(0.0, abs=1e-6)
    assert max(decibels[2:]) <= -50 + 1e-6


def segsnr_by_loops(estimate: list[float], reference: list[float], spoken: list[bool]) -> float:
    ratios = []
    for start in range(1, min(len(estimate), len(reference)) - 80, 80):
        frame = range(start, start + 80)
        if sum(spoken[place] for place in frame) <= 40:
            continue
        best = math.inf
        for shift in (-1, 1):
            top = sum((estimate[i] - reference[i]) * (estimate[i] - estimate[i + shift]) for i in frame)
            under = sum((estimate[i] - estimate[i + shift]) ** 2 for i in frame)
            a = min(max(top / under, 0.0), 1.0) if under else 0.0
            best = min(best, sum(((1 - a) * estimate[i] + a * estimate[i + shift] - reference[i]) ** 2 for i in frame))
        ratios.append(10 * math.log10(sum(reference[i] ** 2 for i in frame) / best))
    return math.fsum(ratios) / len(ratios)


@pytest.mark.parametrize("n", [3200, 3281, 3282, 3283])
def test_segsnr_by_its_definition(n: int) -> None:
    reference = bursts(n)
    estimate = reference + noise(n, seed=5, scale=400).double() / 32768
    by_loops = segsnr_by_loops(estimate.tolist(), reference.tolist(), active(reference).tolist())
    assert segsnr(estimate, reference) == pytest.approx(by_loops, rel=1e-10)


def test_segsnr_hears_only_active_frames_and_forgives_a_sample_of_delay() -> None:
    reference = bursts()
    error = noise(16_000, seed=1).double() / 32768
    steady = noise(16_000, seed=2).double() / 32768
    assert segsnr(steady + 0.1 * error, steady) == pytest.approx(20, abs=0.2)
    assert segsnr(steady + 0.01 * error, steady) == pytest.approx(40, abs=0.2)
    spoken = active(reference)
    assert segsnr(reference + torch.where(spoken, 0.0, error), reference) > 60
    assert segsnr(reference.roll(1), reference) == pytest.approx(100.0)
    assert segsnr(reference.roll(2), reference) < 5
    assert segsnr(reference, reference) == 100.0


def test_what_cannot_be_scored_is_counted_and_named() -> None:
    good = Pair("good", bursts(seed=1), bursts())
    pairs = [
        good,
        Pair("silent", bursts(), torch.zeros(16_000).double()),
        Pair("brief", torch.ones(50).double(), torch.ones(50).double()),
        good,
    ]
    found = score(pairs, ["segsnr"])
    assert found.scored == {"segsnr": 2}
    assert found.failed == {"segsnr": ["silent: no active speech in the reference", "brief: shorter than a frame of 10 ms"]}
    assert found.means["segsnr"] == segsnr(good.estimate, good.reference)
    diverged = score([Pair("diverged", bursts().index_fill(0, torch.tensor([7]), math.nan), bursts())], ["segsnr"])
    assert diverged.failed == {"segsnr": ["diverged: the estimate is not finite"]}
    assert math.isnan(score([], ["segsnr"]).means["segsnr"])
    longer = score([Pair("longer", bursts(seed=1), torch.cat([bursts(), torch.ones(777).double()]))], ["segsnr"])
    assert longer.means == {"segsnr": pytest.approx(found.means["segsnr"])}


def test_a_missing_package_is_named_with_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert all(available().values())
    with pytest.raises(
        ModuleNotFoundError,
        match=r"stoi needs the package pystoi \(the extra enrnn\[speech\] brings it\); pesq needs .*enrnn\[pesq\]",
    ):
        score([], ["stoi", "pesq"])
    with pytest.raises(ValueError, match="Unknown score 'mos'"):
        score([], ["mos"])


@pytest.mark.parametrize("name", ["stoi", "pesq"])
def test_scores_of_other_packages_fall_with_noise(name: str) -> None:
    if reason := available()[name]:
        pytest.skip(f"{name} {reason}")
    t = torch.arange(24_000) / 8000
    tone = sum(torch.sin(2 * math.pi * pitch * t) / pitch for pitch in range(120, 3600, 120))
    reference = (tone * (0.55 + 0.45 * torch.sin(2 * math.pi * 3 * t)) * 20).double().clamp(-1, 1)  # type: ignore[union-attr]
    error = noise(24_000, seed=0).double() / 32768
    made = [score([Pair("a", reference + gain * error, reference)], [name]) for gain in (0.0, 0.3, 3.0)]
    assert [one.scored[name] for one in made] == [1, 1, 1]
    means = [one.means[name] for one in made]
    assert means[0] > means[1] > means[2]
    assert means[0] == pytest.approx(1.0 if name == "stoi" else 4.5, abs=0.06)
    silent = score([Pair("silent", torch.zeros(24_000).double(), torch.zeros(24_000).double())], [name])
    assert silent.scored[name] + len(silent.failed[name]) == 1
