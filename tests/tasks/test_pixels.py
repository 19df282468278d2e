"""MNIST a pixel at a time: which image goes where, in which order its pixels come, and what a bad file is called."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from enrnn.tasks import Features, Pixels
from enrnn.tasks.pixels import FILES, numpy_permutation, read_idx
from tests.conformance._errors import raised_by
from tests.tasks._files import real


def idx(content: bytes, *shape: int) -> bytes:
    return bytes([0, 0, 8, len(shape)]) + b"".join(size.to_bytes(4, "big") for size in shape) + content


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60,000 and 10,000 images that tell their number: its digits in base 256 in the first pixels, then 0, 1, 2, …"""
    home = tmp_path_factory.mktemp("mnist")
    tail = bytes(range(256)) + bytes(525)
    for part, size in (("train", 60_000), ("test", 10_000)):
        images = b"".join(number.to_bytes(3, "big") + tail for number in range(size))
        labels = bytes(number % 10 for number in range(size))
        (home / FILES[part, "images"]).write_bytes(gzip.compress(idx(images, size, 28, 28), 1))
        (home / FILES[part, "labels"]).write_bytes(gzip.compress(idx(labels, size), 1))
    return home


def test_images_go_to_their_splits_and_pixels_come_row_by_row(folder: Path) -> None:
    data = Pixels(data=str(folder)).load()
    assert data.sizes == {"train": 55_000, "valid": 5_000, "test": 10_000}
    assert (data.input, data.output_size, data.reads, data.metric, data.direction) == (Features(1), 10, "last", "accuracy", "max")
    for split, offset in (("train", 5_000), ("valid", 0), ("test", 0)):
        some = torch.tensor([0, 1, data.sizes[split] - 1])
        inputs, targets, weights = data.batch(split, some)
        assert (inputs.shape, inputs.dtype) == ((784, 3, 1), torch.float32)
        grey = (inputs[..., 0] * 255).round().long()
        assert (grey[0] * 65536 + grey[1] * 256 + grey[2]).tolist() == (some + offset).tolist()
        assert targets.tolist() == ((some + offset) % 10).tolist()
        assert (weights is None) == (split == "train")
        assert inputs[3:259, 0, 0].tolist() == [torch.tensor(level / 255, dtype=torch.float32).item() for level in range(256)]


def test_permuted_pixels_are_the_same_in_a_fixed_order(folder: Path) -> None:
    numpy = pytest.importorskip("numpy")
    plain = Pixels(data=str(folder)).load().batch("train", torch.arange(5))
    permuted = Pixels(data=str(folder), permuted=True).load().batch("train", torch.arange(5))
    order = torch.from_numpy(numpy.random.RandomState(92916).permutation(784))
    assert torch.equal(permuted.inputs, plain.inputs[order])
    assert torch.equal(permuted.targets, plain.targets)
    other = Pixels(data=str(folder), permuted=True, permutation_seed=1234).load().batch("train", torch.arange(5))
    assert not torch.equal(permuted.inputs, other.inputs)


@given(seed=st.integers(0, 2**32 - 1), size=st.integers(0, 300))
def test_the_permutation_is_numpys(seed: int, size: int) -> None:
    numpy = pytest.importorskip("numpy")
    assert numpy_permutation(seed, size) == numpy.random.RandomState(seed).permutation(size).tolist()


def test_order_and_evaluation(folder: Path) -> None:
    data = Pixels(data=str(folder), batch_size=64, eval_batch_size=3000).load()
    orders = [data.order("train", epoch) for epoch in (0, 1)]
    assert [len(order.unique()) for order in orders] == [859 * 64] * 2
    assert not torch.equal(*orders)
    sums: dict[str, torch.Tensor] = {}
    for indices in data.order("valid"):
        batch = data.batch("valid", indices)
        right = indices % 3 == 0  # which the guess below gets right, and the others wrong
        guess = torch.where(right, batch.targets, (batch.targets + 1) % 10)
        outputs = torch.nn.functional.one_hot(guess, 10).float()
        for name, value in data.tally(outputs, batch).items():
            sums[name] = sums.get(name, torch.zeros((), dtype=torch.float64)) + value
    found = data.metrics(sums)
    assert sums["images"] == 5000
    assert found["accuracy"] == 1667 / 5000
    log_sum = torch.tensor([1.0] + [0.0] * 9, dtype=torch.float64).logsumexp(0).item()
    assert found["cross_entropy"] == pytest.approx(log_sum - 1667 / 5000, rel=1e-12)


def test_the_loss_is_the_cross_entropy(folder: Path) -> None:
    data = Pixels(data=str(folder)).load()
    batch = data.batch("train", torch.arange(4))
    outputs = torch.randn(4, 10, generator=torch.Generator().manual_seed(0))
    by_hand = -torch.log_softmax(outputs.double(), 1)[torch.arange(4), batch.targets].mean()
    assert data.loss(outputs, batch).item() == pytest.approx(by_hand.item(), rel=1e-6)


GOOD = gzip.compress(idx(bytes(range(24)), 2, 3, 4), mtime=0)


def refusal(tmp_path: Path, content: bytes) -> str:
    file = tmp_path / "some.gz"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"some\.gz") as caught:
        read_idx(file, (2, 3, 4))
    return str(caught.value)


def test_a_good_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "some.gz"
    file.write_bytes(GOOD)
    assert read_idx(file, (2, 3, 4)).flatten().tolist() == list(range(24))


def test_a_bad_file_is_refused_in_words(tmp_path: Path) -> None:
    for length in range(2, len(GOOD)):
        assert "cut off" in refusal(tmp_path, GOOD[:length])
    assert "is not an idx file" in refusal(tmp_path, b"")
    assert "not a sound gzip file" in refusal(tmp_path, b"hello")
    assert "not an idx file of bytes with shape [2, 3, 4]" in refusal(tmp_path, gzip.compress(idx(bytes(24), 2, 4, 3)))
    assert "less than the 24 bytes" in refusal(tmp_path, gzip.compress(idx(bytes(23), 2, 3, 4)))
    assert "more than the 24 bytes" in refusal(tmp_path, gzip.compress(idx(bytes(10_000_000), 2, 3, 4)))
    with pytest.raises(FileNotFoundError, match=r"no such file: .*absent"):
        read_idx(tmp_path / "absent", (2, 3, 4))


@given(place=st.integers(0, len(GOOD) - 1), bit=st.integers(0, 7))
def test_a_flipped_bit_is_noticed_or_harmless(tmp_path_factory: pytest.TempPathFactory, place: int, bit: int) -> None:
    damaged = bytearray(GOOD)
    damaged[place] ^= 1 << bit
    file = tmp_path_factory.mktemp("fuzz") / "some.gz"
    file.write_bytes(damaged)
    error = raised_by(lambda: read_idx(file, (2, 3, 4)))
    if error is None:
        assert read_idx(file, (2, 3, 4)).flatten().tolist() == list(range(24))
    else:
        assert type(error) is ValueError
        assert str(file) in str(error)


def test_missing_and_foreign_files_of_a_folder_are_named(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ENRNN_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match=r"data=FOLDER\) or set ENRNN_DATA"):
        Pixels().load()
    with pytest.raises(FileNotFoundError, match=r"no train-images-idx3-ubyte\.gz in "):
        Pixels(data=str(tmp_path)).load()
    for name in FILES.values():
        (tmp_path / name).symlink_to(folder / name)
    labels = tmp_path / FILES["train", "labels"]
    labels.unlink()
    with pytest.raises(FileNotFoundError, match=r"no such file: .*train-labels-idx1-ubyte\.gz"):
        Pixels(data=str(tmp_path)).load()
    labels.write_bytes(gzip.compress(idx(bytes(59_999) + b"\x0a", 60_000), 1))
    with pytest.raises(ValueError, match=r"train-labels-idx1-ubyte\.gz has the label 10"):
        Pixels(data=str(tmp_path)).load()
    monkeypatch.setenv("ENRNN_DATA", str(folder.parent))
    folder.parent.joinpath("mnist").symlink_to(folder)
    assert Pixels().load().sizes["train"] == 55_000


def test_mnist_itself() -> None:
    data = Pixels(data=str(real("mnist").parent)).load()
    assert data.batch("valid", torch.arange(10)).targets.tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert data.batch("test", torch.arange(10)).targets.tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    inputs = data.batch("test", torch.arange(10_000)).inputs
    assert inputs.mean().item() == pytest.approx(0.1325, abs=5e-5)  # the well-known mean of the test images
    assert (inputs[0] == 0).all(), "the corner pixel is blank"
