"""MNIST a pixel at a time, sequential or permuted: the field's common yardstick. It is not in the ENRNN paper."""

import gzip
import hashlib
import random
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from .._checks import boolean
from ._task import (
    GIVE_DATA,
    Batch,
    Data,
    Features,
    Task,
    check_batch_sizes,
    check_outputs,
    check_path,
    count,
    data_folder,
    mean,
    total,
    whole_number,
)

STEPS = 28 * 28
VALIDATION = 5_000
FILES = {
    ("train", "images"): "train-images-idx3-ubyte.gz",
    ("train", "labels"): "train-labels-idx1-ubyte.gz",
    ("test", "images"): "t10k-images-idx3-ubyte.gz",
    ("test", "labels"): "t10k-labels-idx1-ubyte.gz",
}


@dataclass(frozen=True)
class Pixels(Task):
    """784 steps of one grey value in [0, 1], row by row; the digit is read at the last step.

    The first 5,000 training images are for validation and 55,000 remain, as in TensorFlow's tutorial loader, which scoRNN used.
    Batches of 50 are scoRNN's too. Training visits its set in a new order each epoch.

    Arguments:
        permuted: whether all images have their pixels in one fixed random order.
        permutation_seed: of that order, NumPy's `RandomState(seed).permutation(784)`; 92916 is scoRNN's, Wisdom's and expRNN's.
        data: a folder with the four original `.gz` files, or with a folder `mnist` that has them; None takes ENRNN_DATA.
    """

    name: ClassVar[str] = "pixels"

    permuted: bool = False
    permutation_seed: int = 92916
    data: str | None = None
    batch_size: int = 50
    eval_batch_size: int = 500
    seed: int = 0

    def __post_init__(self) -> None:
        boolean("permuted", self.permuted)
        whole_number("permutation_seed", self.permutation_seed, 0, 2**32 - 1)
        check_path("data", self.data)
        check_batch_sizes(self.batch_size, self.eval_batch_size)
        whole_number("seed", self.seed, 0)
        if self.batch_size > 60_000 - VALIDATION:
            raise ValueError(f"batch_size must be at most {60_000 - VALIDATION}, the training images, got: {self.batch_size}")

    def load(self, device: torch.device | str = "cpu") -> "PixelsData":
        folder = data_folder(self.data)
        if folder is None:
            raise FileNotFoundError(f"no data folder: {GIVE_DATA}; it must hold MNIST's four .gz files")
        return PixelsData(self, folder, torch.device(device))


class PixelsData(Data):
    name = "pixels"
    input = Features(1)
    output_size = 10
    reads = "last"
    metric = "accuracy"
    direction = "max"
    baseline = 0.1
    baseline_rule = "a digit at random"

    def __init__(self, settings: Pixels, folder: Path, device: torch.device) -> None:
        home = next((place for place in (folder, folder / "mnist") if (place / FILES["train", "images"]).is_file()), None)
        if home is None:
            raise FileNotFoundError(f"no {FILES['train', 'images']} in {folder} nor in {folder / 'mnist'}")
        digest = hashlib.sha256()
        parts: dict[str, tuple[Tensor, Tensor]] = {}
        for part, size in (("train", 60_000), ("test", 10_000)):
            images = read_idx(home / FILES[part, "images"], (size, 28, 28), digest).view(size, STEPS)
            labels = read_idx(home / FILES[part, "labels"], (size,), digest)
            if labels.max() > 9:
                raise ValueError(f"{home / FILES[part, 'labels']} has the label {int(labels.max())}; 0 to 9 are digits")
            parts[part] = images, labels
        (images, labels), test = parts["train"], parts["test"]
        parts = {
            "train": (images[VALIDATION:], labels[VALIDATION:]),
            "valid": (images[:VALIDATION], labels[:VALIDATION]),
            "test": test,
        }
        super().__init__(
            {split: len(labels) for split, (_, labels) in parts.items()},
            settings.batch_size,
            settings.eval_batch_size,
            settings.seed,
            device,
        )
        self.fingerprint = digest.hexdigest()
        order = numpy_permutation(settings.permutation_seed, STEPS) if settings.permuted else list(range(STEPS))
        self._images = {split: images[:, order].to(device) for split, (images, _) in parts.items()}  # [N, 784], uint8
        self._labels = {split: labels.to(device, torch.int64) for split, (_, labels) in parts.items()}
        # A table, because a division by 255 is rounded differently on a GPU.
        self._grey = (torch.arange(256, dtype=torch.float32) / 255).to(device)

    def batch(self, split: str, indices: Tensor) -> Batch:
        indices, weights = self._present(self._known(split), indices)
        pixels = self._images[split][indices].t().to(torch.int64)  # [784, B]
        return Batch(self._grey[pixels].unsqueeze(-1), self._labels[split][indices], weights)

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return mean(self._cross_entropy(outputs, batch), batch.weights)

    def tally(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        entropy = self._cross_entropy(outputs.to(torch.float64), batch)
        right = (outputs.argmax(-1) == batch.targets).to(torch.float64)
        return {
            "nats": total(entropy, batch.weights),
            "right": total(right, batch.weights),
            "images": count(entropy, batch.weights),
        }

    def metrics(self, sums: Mapping[str, Tensor | float]) -> dict[str, float]:
        images = float(sums["images"])
        return {"accuracy": float(sums["right"]) / images, "cross_entropy": float(sums["nats"]) / images}

    def _cross_entropy(self, outputs: Tensor, batch: Batch) -> Tensor:
        check_outputs(outputs, (len(batch.targets), 10))
        return F.cross_entropy(outputs, batch.targets, reduction="none")


def read_idx(file: Path, shape: tuple[int, ...], digest: "hashlib._Hash | None" = None) -> Tensor:
    """The bytes of a gzipped idx file, which must have this shape: two zeros, 8 for bytes, the number of axes, their sizes."""
    wanted = bytes([0, 0, 8, len(shape)]) + b"".join(size.to_bytes(4, "big") for size in shape)
    size = torch.Size(shape).numel()
    try:
        with gzip.open(file) as stream:
            header = stream.read(len(wanted))
            # Not a byte more than is wanted: a few bytes of gzip can stand for gigabytes.
            content = stream.read(size + 1) if header == wanted else b""
    except FileNotFoundError:
        raise FileNotFoundError(f"no such file: {file}") from None
    except EOFError:
        raise ValueError(f"{file} is cut off: the gzip stream does not end") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{file} is not a sound gzip file: {error}") from None
    except OSError as error:
        raise type(error)(f"cannot read {file}: {error.strerror}") from None
    if header != wanted:
        raise ValueError(f"{file} is not an idx file of bytes with shape {list(shape)}: it begins with {header.hex(' ')}")
    if len(content) != size:
        less = "less" if len(content) < size else "more"
        raise ValueError(f"{file} holds {less} than the {size} bytes that its header announces")
    if digest is not None:
        digest.update(content)
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).view(shape)


def numpy_permutation(seed: int, size: int) -> list[int]:
    """`numpy.random.RandomState(seed).permutation(size)`, without NumPy.

    Python's `random` is the same Mersenne Twister, but spreads its seed differently; so the state is set to what the generator's
    authors' initialisation makes of the seed. Then follows Fisher and Yates' shuffle from the end, where an index below i + 1 is
    drawn as the low bits of a 32-bit word, again until it fits.
    """
    words = [seed]
    for place in range(1, 624):
        words.append((1812433253 * (words[-1] ^ (words[-1] >> 30)) + place) % 2**32)
    twister = random.Random()
    twister.setstate((3, (*words, 624), None))
    order = list(range(size))
    for last in range(size - 1, 0, -1):
        mask = (1 << last.bit_length()) - 1
        while (other := twister.getrandbits(32) & mask) > last:
            pass
        order[last], order[other] = order[other], order[last]
    return order
