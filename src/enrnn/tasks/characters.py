"""Character prediction: each symbol of a text from those before it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from .._checks import one_of, positive_int
from ._cross_entropy import cross_entropies, mean_cross_entropy
from ._task import (
    GIVE_DATA,
    Batch,
    Data,
    Symbols,
    Task,
    check_batch_sizes,
    check_outputs,
    check_path,
    count,
    data_folder,
    total,
)
from ._text import Corpus, fingerprint, one_file, penn_treebank, standard_library

AT_ONCE = 2**14
"""Characters of a batch in evaluation, if `length` does not make them more: the state is carried, so that longer pieces give the
same, in less time."""


@dataclass(frozen=True)
class Characters(Task):
    """Predict the next character; the state is carried through the text (§5.4).

    Training cuts the text into `batch_size` contiguous rows of equal length, and the rows into pieces of `length` steps; a batch
    is one piece of each row, the next batch the pieces that follow. (The paper says only that the final state is passed on,
    which means such rows. What does not fill a piece of every row, less than 33 · 50 characters, is left out.) Evaluation cuts
    into `eval_batch_size` rows, in longer pieces, and leaves nothing out: every character but the first of the split is
    predicted once. The loss is in nats; the metric, bits per character, is summed over the split and divided once.

    Arguments:
        corpus: "ptb" (Mikolov's files under `data`), "text" (the file `text`), "python" (the sources of Python's standard
            library, on every machine), or "auto": the file if `text` is given, else the PTB if there is a data folder, else the
            sources.
        data: the folder with the data; None takes the environment variable ENRNN_DATA.
        text: a UTF-8 file. Its first 90 % are for training, the next 5 % for validation, the rest for the test. A symbol that
            only these have is one that the network never sees in training, and costs accordingly.
        eval_batch_size: rows in evaluation. Each starts from a zero state, so many rows cost a little in bits per character.
    """

    name: ClassVar[str] = "characters"

    corpus: str = "auto"
    data: str | None = None
    text: str | None = None
    length: int = 50
    batch_size: int = 32
    eval_batch_size: int = 32

    def __post_init__(self) -> None:
        one_of("corpus", self.corpus, ("auto", "ptb", "text", "python"))
        check_path("data", self.data)
        check_path("text", self.text)
        if (self.corpus == "text") != (self.text is not None) and self.corpus != "auto":
            raise ValueError(f'text goes with corpus="text" (or "auto"), got: corpus={self.corpus!r}, text={self.text!r}')
        positive_int("length", self.length)
        check_batch_sizes(self.batch_size, self.eval_batch_size)

    def load(self, device: torch.device | str = "cpu") -> "CharactersData":
        return CharactersData(self, self._corpus(), torch.device(device))

    def _corpus(self) -> Corpus:
        if self.text is not None:
            return one_file(Path(self.text))
        if self.corpus == "python":
            return standard_library()
        folder = data_folder(self.data)
        if folder is not None:
            return penn_treebank(folder)
        if self.corpus == "ptb":
            raise FileNotFoundError(f"no data folder: {GIVE_DATA}; it must hold ptb/ptb.train.txt")
        return standard_library()

    def stand_in(self) -> str | None:
        if self.text is not None or self.corpus != "auto" or data_folder(self.data) is not None:
            return None
        return (
            "no data are named, so the text is a stand-in, the sources of Python's standard library, and not the Penn Treebank; "
            f"{GIVE_DATA}, or give --text FILE (task.corpus=python takes these sources without this warning)"
        )


class CharactersData(Data):
    name = "characters"
    reads = "all"
    metric = "bits_per_character"
    direction = "min"
    carries_state = True

    def __init__(self, settings: Characters, corpus: Corpus, device: torch.device) -> None:
        self.source = corpus.source
        self.fingerprint = fingerprint(corpus)
        self.symbols, texts = _encode(corpus)
        self.characters = {split: len(text) for split, text in texts.items()}
        self.input = Symbols(len(self.symbols))
        self.output_size = len(self.symbols)
        self._rows = {split: _Rows(split, len(text), settings) for split, text in texts.items()}
        sizes = {split: rows.steps * rows.count for split, rows in self._rows.items()}
        super().__init__(sizes, settings.batch_size, settings.eval_batch_size, seed=0, device=device)
        self._texts = {split: text.to(device) for split, text in texts.items()}
        self._steps = {split: torch.arange(rows.piece + 1, device=device)[:, None] for split, rows in self._rows.items()}

    def order(self, split: str, epoch: int = 0) -> Tensor:
        """`[steps, rows]`: where each piece begins in the split's text, the same in every epoch."""
        return self._rows[self._known(split)].order(self.device)

    def batch(self, split: str, indices: Tensor) -> Batch:
        """The pieces that begin at the characters `indices`. In evaluation, weights `[T, B]` end a piece with its row."""
        text, rows = self._texts[self._known(split)], self._rows[split]
        positions = self._steps[split] + indices
        if split == "train":
            piece = text[positions]
            return Batch(piece[:-1], piece[1:], None)
        ends = (torch.div(indices, rows.length, rounding_mode="floor") + 1).mul_(rows.length).clamp_(max=len(text) - 1)
        weights = ((positions[:-1] < ends) & (indices >= 0)).to(torch.float32)
        piece = text[positions.clamp_(0, len(text) - 1)]
        return Batch(piece[:-1], piece[1:], weights)

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        check_outputs(outputs, (*batch.targets.shape, self.output_size))
        return mean_cross_entropy(outputs, batch.targets, batch.weights)

    def tally(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        check_outputs(outputs, (*batch.targets.shape, self.output_size))
        entropy = cross_entropies(outputs.to(torch.float64), batch.targets)
        right = (outputs.argmax(-1) == batch.targets).to(torch.float64)
        return {
            "nats": total(entropy, batch.weights),
            "right": total(right, batch.weights),
            "characters": count(entropy, batch.weights),
        }

    def metrics(self, sums: Mapping[str, Tensor | float]) -> dict[str, float]:
        characters = float(sums["characters"])
        return {
            "bits_per_character": float(sums["nats"]) / characters / math.log(2),
            "accuracy": float(sums["right"]) / characters,
        }


class _Rows:
    """How a split's text is cut: `count` rows of `length` predictions each, in pieces of `piece` steps."""

    def __init__(self, split: str, characters: int, settings: Characters) -> None:
        self.piece = settings.length
        self.end = characters - 1  # the last character is predicted, and predicts nothing
        if split == "train":
            self.count = settings.batch_size
            self.length = characters // self.count
            self.steps = (self.length - 1) // self.piece
            if self.steps < 1:
                wanted = self.count * (self.piece + 1)
                raise ValueError(
                    f"the text is too short: its training part has {characters} characters, but batch_size = {self.count} "
                    f"rows of at least one piece of length = {self.piece} need {wanted}"
                )
            return
        if characters < 2:
            raise ValueError(f"the text is too short: its {split} part has {characters} characters, at least 2 are needed")
        self.count = min(settings.eval_batch_size, self.end)
        self.length = -(-self.end // self.count)
        self.piece = max(self.piece, min(self.length, AT_ONCE // self.count))
        self.steps = -(-self.length // self.piece)

    def order(self, device: torch.device) -> Tensor:
        rows = torch.arange(self.count, device=device) * self.length
        starts = rows + torch.arange(self.steps, device=device)[:, None] * self.piece
        # Rows that begin behind the end of a short text hold nothing.
        return starts.where(rows < self.end, -1)


def _encode(corpus: Corpus) -> tuple[str, dict[str, Tensor]]:
    """The symbols of all parts, in the order of their code points, and each split as indices into them."""
    codes = {split: _code_points(text) for split, text in corpus.splits.items()}
    if not len(codes["train"]):
        raise ValueError(f"the text is too short: {corpus.source} has no characters to train on")
    occurs = torch.bincount(torch.cat(list(codes.values()))) > 0
    number = occurs.cumsum(0) - 1
    return "".join(map(chr, occurs.nonzero()[:, 0].tolist())), {split: number[code] for split, code in codes.items()}


def _code_points(text: str) -> Tensor:
    if not text:
        return torch.empty(0, dtype=torch.int64)
    return torch.frombuffer(bytearray(text.encode("utf-32-le")), dtype=torch.int32).to(torch.int64)
