"""Damaged, forged and unwritable checkpoints: noticed, refused, and nothing lost."""

from __future__ import annotations

import errno
import os
import pickle
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from enrnn.training import Config, DamagedError, RunError, RunFolder, Watch, _container, train
from tests._record import Recorder
from tests.training._runs import differences, outcome, tiny


class StopAt(Watch):
    """Ends the run without a checkpoint, and keeps what was said."""

    def __init__(self, step: int | None = None) -> None:
        self.step, self.messages = step, list[str]()

    def evaluated(self, record: dict[str, Any]) -> None:
        if record["step"] == self.step:
            raise KeyboardInterrupt

    def said(self, message: str) -> None:
        self.messages.append(message)


def stopped(config: Config, runs: Path) -> list[Path]:
    """The checkpoints of a run that was cut off after step 16, the newest first: steps 14 and 7."""
    with pytest.raises(KeyboardInterrupt):
        train(config, runs, StopAt(16))
    return sorted((runs / config.folder_name / "checkpoints").glob("*.ckpt"), reverse=True)


def flip(file: Path, bit: int) -> None:
    content = bytearray(file.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    file.write_bytes(content)


def test_every_flipped_bit_is_noticed(tmp_path: Path, full: bool, record: Recorder) -> None:
    newest, _ = stopped(tiny(), tmp_path)
    whole = newest.read_bytes()
    about, tensors = _container.read(newest)
    draw = random.Random(5)
    bits = 8 * len(whole)
    places = [*range(0, 64 * 8, 37), bits - 1, *(draw.randrange(bits) for _ in range(200 if full else 40))]
    detected = 0
    for bit in places:
        flip(newest, bit)
        with pytest.raises(DamagedError):
            _container.read(newest)
        detected += 1
        newest.write_bytes(whole)
    record(cases_flips=len(places), cases_detected=detected)
    again = _container.read(newest)
    assert again[0] == about
    assert all(torch.equal(tensor, again[1][name]) for name, tensor in tensors.items())


@pytest.mark.parametrize("length", [0, 1, 16, 47, 48, 60, 1000])
def test_a_cut_off_file_is_noticed(length: int, tmp_path: Path) -> None:
    newest, _ = stopped(tiny(), tmp_path)
    newest.write_bytes(newest.read_bytes()[:length])
    with pytest.raises(DamagedError):
        _container.read(newest)


def test_a_run_whose_newest_checkpoint_is_damaged_goes_back_to_the_one_before_and_says_so(tmp_path: Path) -> None:
    train(tiny(), tmp_path / "alone")
    newest, _ = stopped(tiny(), tmp_path / "damaged")
    flip(newest, 8 * 1000 + 3)
    watch = StopAt()
    train(tiny(), tmp_path / "damaged", watch)
    assert watch.messages[0].startswith("WARNING: ")
    assert newest.name in watch.messages[0]
    assert "SHA-256" in watch.messages[0]
    assert watch.messages[1] == "going on after step 7"
    one, other = (outcome(tmp_path / which / tiny().folder_name) for which in ("alone", "damaged"))
    assert differences(one, other) == []


def test_a_run_without_a_sound_checkpoint_is_not_begun_anew_behind_the_users_back(tmp_path: Path) -> None:
    for file in stopped(tiny(), tmp_path):
        flip(file, 5000)
    with pytest.raises(DamagedError, match="to start the run anew, remove its folder"):
        train(tiny(), tmp_path)


class Malicious:
    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.trace),)


@pytest.mark.parametrize("how", ["pickle", "torch"])
def test_a_malicious_pickle_is_refused_and_not_executed(how: str, tmp_path: Path) -> None:
    newest, before = stopped(tiny(), tmp_path)
    trace = tmp_path / "was-executed"
    for file in (newest, before):
        if how == "pickle":
            file.write_bytes(pickle.dumps(Malicious(trace)))
        else:
            torch.save({"model": Malicious(trace)}, file)
    watch = StopAt()
    with pytest.raises(DamagedError):
        train(tiny(), tmp_path, watch)
    assert "is not a file of enrnn's tensors" in watch.messages[0]
    assert not trace.exists()


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    newest, _ = stopped(tiny(), tmp_path)
    others = stopped(tiny(seed=1), tmp_path)
    newest.write_bytes(others[0].read_bytes())
    with pytest.raises(RunError, match="is of another run"):
        train(tiny(), tmp_path)


def test_metrics_that_were_changed_are_noticed(tmp_path: Path) -> None:
    stopped(tiny(), tmp_path)
    metrics = tmp_path / tiny().folder_name / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace("loss", "gain", 1))
    with pytest.raises(RunError, match="is not what it was when the checkpoint was written"):
        train(tiny(), tmp_path)


class FullDisk:
    """No space left, from the `after`-th write of a whole file on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
        fdopen, self.writes = os.fdopen, 0

        def opened(handle: int, *arguments: Any, **options: Any) -> Any:
            stream = fdopen(handle, *arguments, **options)
            self.writes += 1
            return _Failing(stream) if self.writes > after else stream

        monkeypatch.setattr(_container.os, "fdopen", opened)


class _Failing:
    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __enter__(self) -> _Failing:
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()

    def write(self, content: bytes) -> None:
        self.stream.write(content[: len(content) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_a_clear_error_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(tiny(), tmp_path / "alone")
    with monkeypatch.context() as patch:
        FullDisk(patch, after=3)  # config.json, metrics.jsonl, the first checkpoint
        with pytest.raises(OSError, match=r"cannot write step-000000000014\.ckpt: No space left on device") as caught:
            train(tiny(), tmp_path / "full")
    assert caught.value.errno == errno.ENOSPC
    folder = tmp_path / "full" / tiny().folder_name
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step-000000000007.ckpt"]
    train(tiny(), tmp_path / "full")
    assert differences(outcome(tmp_path / "alone" / tiny().folder_name), outcome(folder)) == []


def test_what_a_killed_save_has_left_is_removed_by_the_next(tmp_path: Path) -> None:
    left = RunFolder.create(tiny(), tmp_path).checkpoints / ".abc.part"
    left.write_bytes(b"half of a checkpoint")
    train(tiny(), tmp_path)
    assert not left.exists()


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (2, 3)])
def test_tensors_come_back_as_they_were(dtype: torch.dtype, shape: tuple[int, ...], tmp_path: Path) -> None:
    tensor = (torch.arange(torch.Size(shape).numel()) - 1).reshape(shape).to(dtype)
    transposed = torch.randn(3, 4).to(dtype).mT
    written = {"tensor": tensor, "transposed": transposed, "last": torch.tensor(float("nan"))}
    _container.write(tmp_path / "file", {"a": 1}, written)
    about, tensors = _container.read(tmp_path / "file")
    assert about == {"a": 1}
    assert (tensors["tensor"].dtype, tensors["tensor"].shape) == (dtype, tensor.shape)
    assert torch.equal(tensors["tensor"], tensor)
    assert torch.equal(tensors["transposed"], transposed)
    assert tensors["last"].isnan()
