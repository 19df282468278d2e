"""Two processes train as one does with the joint batch."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from enrnn.tasks import Speech
from enrnn.training import Config, ModelSettings, OptimizerSettings, StoppedError, Watch, train
from tests._record import Recorder
from tests.tasks._files import speech_folder
from tests.training._runs import differences, outcome, text_task, tiny

WORLD = 2

pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="torch without gloo")


def configs(folder: Path) -> dict[str, Config]:
    return {
        "adding": tiny(),
        "text": tiny(text_task(folder), ModelSettings("lstm", hidden_size=5, embedding=True), OptimizerSettings("adam", lr=1e-2)),
        "speech": tiny(Speech(data=str(folder / "speech"), normalization="valid", batch_size=4, eval_batch_size=2)),
    }


class StopAt(Watch):
    """Asks process 1 alone to stop, at its evaluation after step 12."""

    def evaluated(self, record: dict[str, Any]) -> None:
        if record["step"] == 12:
            import signal

            signal.raise_signal(signal.SIGTERM)


def worker(rank: int, folder: str) -> None:
    os.environ["WORLD_SIZE"] = str(WORLD)
    place, timeout = f"file://{folder}/meeting-point", datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=place, rank=rank, world_size=WORLD, timeout=timeout)
    try:
        for config in configs(Path(folder)).values():
            train(config, f"{folder}/two")
            try:
                train(config, f"{folder}/stopped", StopAt() if rank == 1 else None)
            except StoppedError:
                dist.barrier()
                train(config, f"{folder}/stopped")
        with pytest.raises(ValueError, match=r"task\.batch_size must be a multiple of the 2 processes, got: 5"):
            train(tiny().override({"task.batch_size": 5}), f"{folder}/odd")
    finally:
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ddp")
    speech_folder(folder / "speech")  # of several lengths, so that the processes' halves of a batch do not count the same
    configs(folder)
    mp.spawn(worker, args=(str(folder),), nprocs=WORLD)
    return folder


@pytest.mark.parametrize("name", ["adding", "text", "speech"])
def test_two_processes_end_where_one_does_with_the_joint_batch(name: str, folder: Path, record: Recorder) -> None:
    config = configs(folder)[name]
    train(config, folder / "one")
    one, two = (outcome(folder / which / config.folder_name) for which in ("one", "two"))
    worst = 0.0
    for key, tensor in one["tensors"].items():
        other = two["tensors"][key].double()
        assert other.shape == tensor.shape, key
        if not tensor.numel():
            continue
        worst = max(worst, float((other - tensor.double()).abs().max() / (1 + tensor.double().abs().max())))
    for mine, theirs in zip(one["metrics"], two["metrics"], strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
        assert mine["step"] == theirs["step"]
    record(worst_error=worst)
    # The joint gradient is a sum in another order: one rounding a step, carried on by at most as many steps.
    assert worst <= 25 * 25 * torch.finfo(torch.float32).eps


@pytest.mark.parametrize("name", ["adding", "text", "speech"])
def test_a_signal_to_one_of_them_stops_both_and_they_go_on_to_the_bit(name: str, folder: Path) -> None:
    config = configs(folder)[name]
    two, stopped = (outcome(folder / which / config.folder_name) for which in ("two", "stopped"))
    assert differences(two, stopped) == []


@pytest.mark.slow
def test_torchrun_starts_them(tmp_path: Path) -> None:
    small = ["task.length=12", "task.train_size=100", "task.test_size=20", "run.steps=6", "model.backend=torch"]
    changes = [word for change in small for word in ("--set", change)]
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "enrnn", "train", "adding/enrnn"]
    run = subprocess.run(
        [sys.executable, *command, *changes, "--device", "cpu", "--runs", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("baseline") == 1
    (made,) = tmp_path.iterdir()
    assert (made / "result.json").is_file()
