"""The speech task: both variants, the masked losses, the cache, and what is said about bad recordings."""

from __future__ import annotations

import math
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from enrnn.tasks import Features, Speech
from enrnn.tasks import speech as module
from enrnn.tasks._audio import decode
from enrnn.tasks._stft import features, halve_rate, inverse, transform
from enrnn.tasks.speech import SpeechData
from tests.tasks._files import noise, real, riff, speech_folder, sphere
from tests.tasks.test_timit import CORE_SPEAKERS, DEV_SPEAKERS, grow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return speech_folder(tmp_path_factory.mktemp("speech"))


def load(folder: Path, **settings: Any) -> SpeechData:
    return Speech(data=str(folder), **({"batch_size": 2, "eval_batch_size": 2} | settings)).load()


def utterances(folder: Path, split: str) -> list[Tensor]:
    return [features(decode(file.read_bytes()).samples) for file in sorted((folder / split).iterdir())]


def test_the_defaults_are_the_papers(folder: Path) -> None:
    assert (Speech().batch_size, Speech().variant, Speech().normalization) == (28, "predict", "padded")
    data = load(folder)
    assert (data.input, data.output_size, data.reads, data.metric, data.direction) == (Features(129), 129, "all", "mse", "min")
    assert data.sizes == {"train": 5, "valid": 3, "test": 4}
    assert data.names["valid"] == ["valid/000.wav", "valid/001.wav", "valid/002.wav"]
    assert data.source == f"recordings in {folder.name}, 5/3/4 utterances (not TIMIT)"


@pytest.mark.parametrize("variant", ["predict", "copy"])
@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_inputs_targets_and_weights_frame_by_frame(folder: Path, variant: str, split: str) -> None:
    """Past the end of an utterance is silence, and the step before it counts."""
    data = load(folder, variant=variant)
    frames = utterances(folder, split)
    both = frames + (utterances(folder, "test") if split == "valid" else utterances(folder, "valid") if split == "test" else [])
    T = max(map(len, both))
    indices = torch.tensor([1, 0, 2])
    inputs, targets, weights = data.batch(split, indices)
    assert inputs.shape == targets.shape == (T, 3, 129)
    assert weights is not None
    assert weights.shape == (T, 3)
    for column, index in enumerate(indices.tolist()):
        padded = torch.cat([frames[index], torch.full((T + 1 - len(frames[index]), 129), -50.0)])
        now, later = padded[:-1], padded[1:]
        assert torch.equal(inputs[:, column], now if variant == "predict" else later)
        assert torch.equal(targets[:, column], later if variant == "predict" else now)
        assert weights[:, column].tolist() == [1.0] * len(frames[index]) + [0.0] * (T - len(frames[index]))


@pytest.mark.parametrize("variant", ["predict", "copy"])
def test_both_normalisations_against_loops(folder: Path, variant: str) -> None:
    """Training's loss for a batch, and the metrics of a split whose last batch is filled up."""
    frames = utterances(folder, "valid")
    T = max(len(of) for of in frames + utterances(folder, "test"))
    generator = torch.Generator().manual_seed(0)
    outputs = [torch.randn(T, 129, generator=generator) * 20 - 40 for _ in frames]
    squared = 0.0
    for of, output in zip(frames, outputs, strict=True):
        padded = torch.cat([of, torch.full((1, 129), -50.0)]).double()
        target = padded[1:] if variant == "predict" else padded[:-1]
        for step in range(len(of)):
            squared += float((output[step].double() - target[step]).square().sum())
    wanted = {"mse_padded": squared / (3 * T * 129), "mse_valid": squared / (sum(map(len, frames)) * 129)}
    for normalization in ("padded", "valid"):
        data = load(folder, variant=variant, normalization=normalization)
        sums: dict[str, Tensor] = {}
        order = data.order("valid")
        assert order.tolist() == [[0, 1], [2, -1]]
        for indices in order:
            batch = data.batch("valid", indices)
            made = torch.stack([outputs[index] if index >= 0 else torch.full((T, 129), 1e9) for index in indices.tolist()], dim=1)
            for name, value in data.tally(made, batch).items():
                assert value.dtype == torch.float64
                sums[name] = sums.get(name, torch.zeros((), dtype=torch.float64)) + value
        assert data.metrics(sums) == pytest.approx({"mse": wanted[f"mse_{normalization}"], **wanted}, rel=1e-12)
        whole = data.batch("valid", torch.arange(3))
        assert data.loss(torch.stack(outputs, 1), whole).item() == pytest.approx(wanted[f"mse_{normalization}"], rel=1e-5)


def test_no_gradient_comes_from_padding(folder: Path) -> None:
    data = load(folder)
    batch = data.batch("train", torch.tensor([0, 4]))
    outputs = torch.zeros_like(batch.targets, requires_grad=True)
    data.loss(outputs, batch).backward()
    assert outputs.grad is not None
    assert batch.weights is not None
    assert ((outputs.grad != 0).any(-1) == batch.weights.bool()).all()


@pytest.mark.parametrize("variant", ["predict", "copy"])
def test_perfect_outputs_give_the_utterance_back(folder: Path, variant: str) -> None:
    """Up to the floor of 1e-5 in the power, and 16 bits."""
    data = load(folder, variant=variant)
    indices = torch.tensor([2, -1, 0])
    batch = data.batch("test", indices)
    pairs = data.audio("test", indices, batch.targets, placed="target")
    assert [pair.name for pair in pairs] == ["test/002.wav", "test/000.wav"]
    for pair in pairs:
        samples = decode((folder / pair.name).read_bytes()).samples.double() / 32768
        assert len(pair.reference) == len(pair.estimate) == 128 * math.ceil(len(samples) / 128)
        assert torch.equal(pair.reference[: len(samples)], samples)
        assert (pair.estimate - pair.reference).abs().max() < 1e-3


def test_where_outputs_are_placed(folder: Path) -> None:
    """Wisdom's script hears the outputs of the variant "copy" one frame late; that of "predict" where it should."""
    predict, copy = load(folder), load(folder, variant="copy")
    index = torch.tensor([1])
    truth = transform(decode((folder / "test/001.wav").read_bytes()).samples)
    late = torch.polar(truth.abs().square().add(1e-5).sqrt()[:-1], truth[1:].angle())
    heard = inverse(torch.cat([truth[:1], late]))
    for data in (predict, copy):
        frames = data.batch("test", index)
        seen = frames.inputs if data is predict else frames.targets  # frame t, at step t
        [pair] = data.audio("test", index, seen)
        torch.testing.assert_close(pair.estimate, heard, rtol=0, atol=1 / 32768)
    [as_target] = predict.audio("test", index, predict.batch("test", index).inputs, placed="target")
    torch.testing.assert_close(as_target.estimate, heard, rtol=0, atol=1 / 32768)
    with pytest.raises(ValueError, match="Unknown placed 'before'"):
        copy.audio("test", index, seen, placed="before")


@pytest.mark.parametrize("gain", [8.0, 12.0, 40.0])
def test_too_loud_is_scaled_to_fit(folder: Path, gain: float) -> None:
    data = load(folder)
    index = torch.tensor([0])
    targets = data.batch("test", index).targets
    [soft], [loud] = (data.audio("test", index, targets + louder) for louder in (-20.0, gain))
    # Frame 0, which is not made by the network, is silent here, so all is louder by the same factor, up to 16 bits.
    wanted = soft.estimate * 10 ** ((gain + 20) / 20)
    wanted = wanted / wanted.abs().max().clamp(min=1.0)
    torch.testing.assert_close(loud.estimate, wanted, rtol=0, atol=10 ** ((gain + 20) / 20) / 32768)
    assert loud.estimate.abs().max() <= 1


def test_sixteen_kilohertz_is_halved_and_both_formats_mean_the_same(tmp_path: Path) -> None:
    samples = noise(4000, seed=0)
    for split in ("train", "valid", "test"):
        (tmp_path / split).mkdir()
        (tmp_path / split / "a.wav").write_bytes(riff(samples, 16000))
        (tmp_path / split / "b.wav").write_bytes(sphere(samples, 16000, order="10"))
        (tmp_path / split / "c.wav").write_bytes(riff(halve_rate(samples), 8000))
    inputs = load(tmp_path).batch("train", torch.arange(3)).inputs
    assert torch.equal(inputs[:, 0], inputs[:, 1])
    assert torch.equal(inputs[:, 0], inputs[:, 2])
    assert torch.equal(inputs[:, 0], features(halve_rate(samples)))


def test_timit_is_padded_to_the_longest_of_all_of_test(tmp_path: Path) -> None:
    tree = grow(tmp_path / "timit", train=["maaa0", "mbsa0"], test=[DEV_SPEAKERS[0], CORE_SPEAKERS[0], "mzzz0"])
    for file in tree.rglob("*.WAV"):
        longer = 5000 if "MZZZ0" in file.parts else 0
        file.write_bytes(sphere(noise(1000 + longer, seed=len(file.name)), 8000))
    data = Speech(data=str(tmp_path), complete=False, batch_size=4).load()
    assert data.source == "a part of TIMIT, 16/8/8 utterances"
    assert data.sizes == {"train": 16, "valid": 8, "test": 8}
    assert data.lengths == {"train": 11, "valid": 50, "test": 50}
    with pytest.raises(ValueError, match="is not all of TIMIT"):
        Speech(data=str(tmp_path)).load()


def test_every_bad_recording_is_reported_at_once_by_name(tmp_path: Path) -> None:
    folder = speech_folder(tmp_path / "speech")
    good = riff(noise(1000, seed=0))
    bad = {
        "train/001.wav": (good[:-7], "cut off"),
        "valid/002.wav": (riff(noise(1000, seed=0), 22050), "22050 Hz; 8000 or 16000 is wanted"),
        "test/000.wav": (sphere(noise(1000, seed=0), sample_coding="-s26 pcm,embedded-shorten-v2.00"), "shorten"),
        "test/001.wav": (b"", "the file is empty"),
        "test/003.wav": (b"MZ\x90", "neither SPHERE, RIFF nor FLAC"),
    }
    for name, (content, _) in bad.items():
        (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=r"5 recordings in .* cannot be used") as caught:
        load(folder, cache=str(tmp_path / "cache"))
    lines = str(caught.value).splitlines()[1:]
    assert len(lines) == 5
    for (name, (_, reason)), line in zip(bad.items(), lines, strict=True):
        assert line.startswith(f"  {name}: ")
        assert reason in line
    assert not (tmp_path / "cache").exists(), "nothing is cached of what could not be read"


def test_a_file_that_cannot_be_read_is_an_os_error_with_its_name(tmp_path: Path) -> None:
    folder = speech_folder(tmp_path / "speech")
    (folder / "train" / "gone.wav").symlink_to(folder / "nowhere")
    with pytest.raises(OSError, match=r"1 recordings in (.|\n)*train/gone\.wav: No such file"):
        load(folder)


def test_missing_folders_and_settings_that_do_not_fit(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ENRNN_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match=r"data=FOLDER\) or set ENRNN_DATA"):
        Speech().load()
    with pytest.raises(FileNotFoundError, match="neither a TIMIT tree"):
        load(tmp_path)
    with pytest.raises(ValueError, match="batch_size must be at most the number of training utterances, 5, got: 28"):
        Speech(data=str(folder)).load()


def test_the_cache_is_found_again_and_keyed_by_content(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "deep" / "cache"
    first = load(folder, cache=str(cache))
    [file] = cache.iterdir()
    plain = load(folder)
    assert first.fingerprint == plain.fingerprint
    with monkeypatch.context() as patch:
        patch.setattr(module, "_computed", lambda *_: pytest.fail("computed although cached"))
        again = load(folder, cache=str(cache), variant="copy")
    batches = [data.batch("test", torch.arange(4)) for data in (first, plain, again)]
    assert torch.equal(batches[0].inputs, batches[1].inputs)
    assert torch.equal(batches[0].inputs, batches[2].targets)
    [one], [other] = (data.audio("test", torch.tensor([3]), batches[0].targets) for data in (plain, first))
    assert torch.equal(one.estimate, other.estimate)
    changed = speech_folder(tmp_path / "changed")
    (changed / "test" / "000.wav").write_bytes(riff(noise(1000, seed=99)))
    assert load(changed, cache=str(cache)).fingerprint != first.fingerprint
    assert len(list(cache.iterdir())) == 2
    assert file.exists()


def test_a_damaged_cache_is_noticed_and_made_anew(folder: Path, tmp_path: Path) -> None:
    first = load(folder, cache=str(tmp_path))
    [file] = tmp_path.iterdir()
    whole = file.read_bytes()
    for damaged in (whole[:-1], whole[:20], b"", whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:]):
        file.write_bytes(damaged)
        with pytest.warns(UserWarning, match=r"is damaged: .* the features are computed again"):
            again = load(folder, cache=str(tmp_path))
        assert torch.equal(again.batch("test", torch.arange(4)).inputs, first.batch("test", torch.arange(4)).inputs)
        assert file.read_bytes() == whole
        assert list(tmp_path.iterdir()) == [file], "no temporary file is left"


def test_a_cache_that_cannot_be_written_is_a_clear_error_and_leaves_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"cannot (write|read) the cache .*file"):
        load(folder, cache=str(tmp_path / "file"))

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match=r"cannot write the cache .*: No space left on device"):
        load(folder, cache=str(tmp_path / "cache"))
    assert list((tmp_path / "cache").iterdir()) == []


def test_real_speech(tmp_path: Path) -> None:
    """Persistence, the last seen frame, is off by tens of dB² a valid entry, as it should be."""
    with tarfile.open(real("timit_sample/timit_nltk_sample.tar.xz")) as archive:
        for member in archive:
            speaker, name = Path(member.name).parts[-2:] if member.name.count("/") > 1 else ("", "")
            split = {"dr1-fvmh0": "train", "dr2-faem0": "valid", "dr3-falk0": "test"}.get(speaker)
            if split and name.endswith(".wav") and not name.startswith("sa"):
                (tmp_path / split).mkdir(exist_ok=True)
                (tmp_path / split / name).write_bytes(archive.extractfile(member).read())  # type: ignore[union-attr]
    data = load(tmp_path)
    assert data.sizes == {"train": 8, "valid": 8, "test": 8}
    batch = data.batch("test", torch.arange(8))
    found = data.metrics(data.tally(batch.inputs, batch))
    assert 20 < found["mse_valid"] < 80
    assert found["mse_padded"] < found["mse_valid"]
