"""Speech: the spectrum of the next frame from those before it, as Wisdom et al. (2016) set the task on TIMIT."""

import hashlib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from .._checks import boolean, one_of
from . import _cache
from ._audio import decode
from ._scores import Pair as Pair
from ._scores import Scores as Scores
from ._scores import available as available
from ._scores import score as score
from ._stft import BINS, RATE, SILENCE, features, frame_count, halve_rate, inverse, magnitude, transform
from ._task import (
    GIVE_DATA,
    Batch,
    Data,
    Features,
    Task,
    check_batch_sizes,
    check_outputs,
    check_path,
    data_folder,
    total,
    whole_number,
)
from ._timit import Listing, listing

FEATURES_VERSION = 1
"""Part of the cache's key: to be raised with any change of the features."""


@dataclass(frozen=True)
class Speech(Task):
    """129 log magnitudes a frame in, 129 out, at every step (§5.3); features as in `_stft.py`, utterances whole and padded.

    | variant   | input     | target    |                                                                             |
    |-----------|-----------|-----------|-----------------------------------------------------------------------------|
    | "predict" | frame t   | frame t+1 | the paper's text, and Wisdom's                                              |
    | "copy"    | frame t+1 | frame t   | a delay of one step, exactly solvable: what the published numbers point to  |

    A step counts if its t is less than the utterance's number of frames; the frame after the last is silence, −50 dB. The loss is
    the squared error in dB², summed over the steps that count, over the number of entries of the padded batch ("padded": Wisdom,
    and the nearest to the paper's words) or of those that count ("valid": expRNN). `metrics` has both. Training is padded to its
    longest utterance, validation and test to the longest of both (for TIMIT, of all TEST but SA), as Wisdom did.

    Arguments:
        data: a TIMIT tree, or a folder with folders train, valid and test; SPHERE, RIFF or FLAC, 8 or 16 kHz, 16 bits. Or a
            folder with a folder `timit` or `speech` of that kind, TIMIT rather than another. None takes ENRNN_DATA.
        cache: a folder for computed features, keyed by the content of all recordings; None computes them each time.
        complete: whether a TIMIT tree must be whole: 3696/400/192 utterances. If not, the speakers there are make the splits.
    """

    name: ClassVar[str] = "speech"

    variant: str = "predict"
    normalization: str = "padded"
    data: str | None = None
    cache: str | None = None
    complete: bool = True
    batch_size: int = 28
    eval_batch_size: int = 28
    seed: int = 0

    def __post_init__(self) -> None:
        one_of("variant", self.variant, ("predict", "copy"))
        one_of("normalization", self.normalization, ("padded", "valid"))
        check_path("data", self.data)
        check_path("cache", self.cache)
        boolean("complete", self.complete)
        check_batch_sizes(self.batch_size, self.eval_batch_size)
        whole_number("seed", self.seed, 0)

    def load(self, device: torch.device | str = "cpu") -> "SpeechData":
        folder = data_folder(self.data)
        if folder is None:
            raise FileNotFoundError(f"no data folder: {GIVE_DATA}; it must hold a TIMIT tree")
        recordings = listing(folder, complete=self.complete)
        if len(recordings.splits["train"]) < self.batch_size:
            found = len(recordings.splits["train"])
            raise ValueError(f"batch_size must be at most the number of training utterances, {found}, got: {self.batch_size}")
        corpus = _corpus(recordings, Path(self.cache) if self.cache is not None else None)
        return SpeechData(self, corpus, torch.device(device))


class SpeechData(Data):
    name = "speech"
    input = Features(BINS)
    output_size = BINS
    reads = "all"
    metric = "mse"
    direction = "min"

    def __init__(self, settings: Speech, corpus: "_Corpus", device: torch.device) -> None:
        sizes = {split: len(names) for split, names in corpus.names.items()}
        super().__init__(sizes, settings.batch_size, settings.eval_batch_size, settings.seed, device)
        self.source = corpus.source
        self.fingerprint = corpus.key
        self.names = corpus.names
        """Each utterance's file, relative to the folder."""
        self._predicts = settings.variant == "predict"
        self._padded = settings.normalization == "padded"
        self._samples = corpus.samples
        # One row of silence behind all frames, for the padding to point at.
        self._frames = torch.cat([corpus.frames, torch.full((1, BINS), SILENCE)]).to(device)
        sizes_in_order = list(sizes.values())
        frames_in = frame_count(corpus.samples_in)
        first_frames = torch.split(frames_in.cumsum(0) - frames_in, sizes_in_order)
        counts = torch.split(frames_in, sizes_in_order)
        self._places = {
            split: (first.to(device), of.to(device)) for split, first, of in zip(sizes, first_frames, counts, strict=True)
        }
        ends = corpus.samples_in.cumsum(0)
        spans = torch.split(torch.stack([ends - corpus.samples_in, ends], dim=1), sizes_in_order)
        self._spans = {split: span.tolist() for split, span in zip(sizes, spans, strict=True)}
        longest = {split: int(of.max()) for split, of in zip(sizes, counts, strict=True)}
        evaluation = max(longest["valid"], longest["test"], corpus.longest_rest)
        self.lengths = {"train": longest["train"], "valid": evaluation, "test": evaluation}
        """Steps that each split is padded to."""
        self._steps = torch.arange(1 + max(self.lengths.values()), device=device)[:, None]

    def batch(self, split: str, indices: Tensor) -> Batch:
        """Inputs and targets `[T, B, 129]`, weights `[T, B]`, in training as well."""
        starts, counts = self._places[self._known(split)]
        present = indices.clamp(min=0)
        count = counts[present] * (indices >= 0)
        steps = self._steps[: self.lengths[split] + 1]
        spoken = steps < count
        frames = self._frames[torch.where(spoken, starts[present] + steps, len(self._frames) - 1)]  # [T + 1, B, 129]
        inputs, targets = (frames[:-1], frames[1:]) if self._predicts else (frames[1:], frames[:-1])
        return Batch(inputs, targets, spoken[:-1].to(torch.float32))

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        weights = _weights(batch)
        error = self._squared_error(outputs, batch)
        return (error * weights).sum() / (self._entries(weights) if self._padded else weights.sum() * BINS)

    def counted(self, batch: Batch) -> Tensor | None:
        """The frames that count, by the normalisation "valid"; the entries of a padded batch go by its size."""
        return None if self._padded else _weights(batch).sum()

    def tally(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        weights = _weights(batch)
        error = self._squared_error(outputs.to(torch.float64), batch)
        return {
            "squared_error": total(error, weights),
            "valid": weights.to(torch.float64).sum() * BINS,
            "padded": self._entries(weights.to(torch.float64)),
        }

    def metrics(self, sums: Mapping[str, Tensor | float]) -> dict[str, float]:
        """The error by both normalisations; `mse` is the one that was chosen."""
        by = {f"mse_{which}": float(sums["squared_error"]) / float(sums[which]) for which in ("padded", "valid")}
        return {"mse": by["mse_padded" if self._padded else "mse_valid"], **by}

    def audio(self, split: str, indices: Tensor, outputs: Tensor, *, placed: str = "next") -> list[Pair]:
        """The utterances `indices` as the network makes them, for `score`: outputs as magnitudes, the phases the true ones.

        Wisdom's script takes output t for frame t + 1, and frame 0 as it is ("next"). For the variant "predict" that is right;
        for "copy" it hears every frame one late, which is what the paper's scores point to. "target" puts each output where its
        target stands. Louder than 16 bits can hold is scaled to fit. The reference is the same inverse of the true transform.
        """
        one_of("placed", placed, ("next", "target"))
        shift = 1 if self._predicts or placed == "next" else 0
        pairs: list[Pair] = []
        for column, index in enumerate(indices.tolist()):
            if index < 0:
                continue
            start, stop = self._spans[self._known(split)][index]
            truth = transform(self._samples[start:stop])
            heard = magnitude(outputs[: len(truth) - shift, column].detach().cpu())
            phases = torch.polar(torch.ones_like(heard), truth[shift:].angle())
            estimate = inverse(torch.cat([truth[:shift], heard * phases]))
            pairs.append(Pair(self.names[split][index], _as_stored(estimate), _as_stored(inverse(truth))))
        return pairs

    def _squared_error(self, outputs: Tensor, batch: Batch) -> Tensor:
        """`[T, B]`: summed over the 129 bins."""
        check_outputs(outputs, tuple(batch.targets.shape))
        return (outputs - batch.targets).square().sum(-1)

    def _entries(self, weights: Tensor) -> Tensor:
        """Of the padded batch: every utterance has a first frame, so the first step's weights count them."""
        return weights[0].sum() * (len(weights) * BINS)


class _Corpus(NamedTuple):
    source: str
    key: str
    names: dict[str, list[str]]
    samples: Tensor
    """int16 at 8 kHz, all utterances of all splits on end."""
    samples_in: Tensor
    """How many each of them has."""
    frames: Tensor
    """Their features on end, float32 `[frames, 129]`."""
    longest_rest: int
    """Frames in the longest recording that is in no split."""


def _corpus(recordings: Listing, cache: Path | None) -> _Corpus:
    folder = recordings.home
    names = {split: [file.relative_to(folder).as_posix() for file in files] for split, files in recordings.splits.items()}
    groups = {**recordings.splits, "rest": recordings.rest}
    key = _key(folder, groups)
    file = cache / f"speech-{key[:32]}.cache" if cache is not None else None
    tensors: dict[str, Tensor] | None = None
    if file is not None:
        try:
            tensors = _cache.load(file)
        except ValueError as error:
            warnings.warn(f"{error}; the features are computed again", stacklevel=4)
    if tensors is None:
        tensors = _computed(folder, groups)
        if file is not None:
            _cache.save(file, tensors)
    return _Corpus(
        recordings.source, key, names, tensors["samples"], tensors["samples_in"], tensors["frames"], int(tensors["longest_rest"])
    )


def _key(folder: Path, groups: Mapping[str, list[Path]]) -> str:
    """SHA-256 over the split, name and content of every recording."""
    digest = hashlib.sha256(f"features {FEATURES_VERSION}".encode())
    unreadable: list[str] = []
    for group, files in groups.items():
        for file in files:
            name = file.relative_to(folder).as_posix()
            try:
                content = hashlib.sha256(file.read_bytes()).hexdigest()
            except OSError as error:
                unreadable.append(f"{name}: {error.strerror}")
                continue
            digest.update(f"\n{group} {content} {name}".encode("utf-8", "surrogateescape"))
    if unreadable:
        raise OSError(_all_at_once(unreadable, folder))
    return digest.hexdigest()


def _computed(folder: Path, groups: Mapping[str, list[Path]]) -> dict[str, Tensor]:
    samples: list[Tensor] = []
    longest_rest = 0
    bad: list[str] = []
    for group, files in groups.items():
        for file in files:
            try:
                recording = decode(file.read_bytes())
                if recording.rate not in (RATE, 2 * RATE):
                    raise ValueError(f"a sample rate of {recording.rate} Hz; {RATE} or {2 * RATE} is wanted")
            except (ValueError, OSError) as error:
                bad.append(f"{file.relative_to(folder).as_posix()}: {error}")
                continue
            utterance = recording.samples if recording.rate == RATE else halve_rate(recording.samples)
            if group == "rest":
                longest_rest = max(longest_rest, frame_count(len(utterance)))
            else:
                samples.append(utterance)
    if bad:
        raise ValueError(_all_at_once(bad, folder))
    return {
        "samples": torch.cat(samples),
        "samples_in": torch.tensor([len(utterance) for utterance in samples]),
        "frames": torch.cat([features(utterance) for utterance in samples]),
        "longest_rest": torch.tensor(longest_rest),
    }


def _all_at_once(problems: list[str], folder: Path) -> str:
    return f"{len(problems)} recordings in {folder} cannot be used:\n  " + "\n  ".join(problems)


def _weights(batch: Batch) -> Tensor:
    assert batch.weights is not None, "every batch of this task has weights"
    return batch.weights


def _as_stored(signal: Tensor) -> Tensor:
    """As a 16-bit file would hold it, after scaling to fit where it does not."""
    peak = float(signal.abs().max())
    if peak > 1:
        signal = signal / peak
    return (signal * 32768).round().clamp(-32768, 32767) / 32768
