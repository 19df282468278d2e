"""Two processes under DistributedDataParallel train as one process does with both their batches."""

from __future__ import annotations

import copy
import datetime
import faulthandler
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from enrnn import ENRNN
from tests._record import Recorder
from tests.conformance._layers import relative_error, rounding, scatter_

STEPS, BATCH, INPUTS, HIDDEN = 6, 4, 3, 5
UPDATES, WORLD = 6, 2

RUNS: dict[str, dict[str, Any]] = {
    # ρ(T) stays well below 1, so that W_S = T throughout.
    "switch off": {"radius": 0.5, "num_layers": 1, "bidirectional": False},
    # ρ(T) starts just below 1, and the loss asks for louder states: the switch turns on along the way.
    "switch turns on": {"radius": 0.99, "num_layers": 2, "bidirectional": True},
}

pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="torch without gloo")


class Model(nn.Module):
    def __init__(self, radius: float, num_layers: int, bidirectional: bool) -> None:
        super().__init__()
        layer = ENRNN(INPUTS, HIDDEN, num_layers, bidirectional=bidirectional, dtype=torch.float64)
        scatter_(layer, radius=radius)
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        output, _ = self.layer(x)
        loss: Tensor = -output.square().log1p().mean()  # louder is better, but never by much
        return loss


def batch(update: int) -> Tensor:
    """[T, WORLD · BATCH, m], of which process r has its own BATCH sequences."""
    generator = torch.Generator().manual_seed(100 + update)
    return torch.randn(STEPS, WORLD * BATCH, INPUTS, dtype=torch.float64, generator=generator)


def train(model: nn.Module, layer: ENRNN, rank: int | None) -> list[list[bool]]:
    """Some updates on all data, or on those of `rank`; the switches after each."""
    optimiser = torch.optim.SGD(layer.parameter_groups(lr=0.02, long_lr=0.005), momentum=0.9)
    switches = []
    for update in range(UPDATES):
        x = batch(update)
        optimiser.zero_grad()
        model(x if rank is None else x[:, rank * BATCH : (rank + 1) * BATCH]).backward()
        optimiser.step()
        switches.append(layer.normalizing.tolist())
    return switches


def tensors_of(layer: ENRNN) -> dict[str, Tensor]:
    return {**{name: p.detach() for name, p in layer.named_parameters()}, **dict(layer.named_buffers())}


def worker(rank: int, folder: str) -> None:
    """One of the processes: all runs, one after the other."""
    faulthandler.enable()
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting-point",
        rank=rank,
        world_size=WORLD,
        timeout=datetime.timedelta(seconds=60),
    )
    try:
        for name, settings in RUNS.items():
            model = Model(**settings)
            if rank == 1:  # DDP starts every process from the first one's weights and buffers
                for parameter in model.parameters():
                    parameter.data.add_(1)
            switches = train(DistributedDataParallel(model), model.layer, rank)
            torch.save({"tensors": tensors_of(model.layer), "switches": switches}, f"{folder}/{name} {rank}.pt")
    finally:
        dist.destroy_process_group()
    os._exit(0)  # not by Python's way out: threads of gloo's outlive the group, and once such a process was aborted


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which each process has left what became of each run."""
    folder = tmp_path_factory.mktemp("ddp")
    mp.spawn(worker, args=(str(folder),), nprocs=WORLD)
    return folder


def results(folder: Path, run: str) -> list[dict[str, Any]]:
    return [torch.load(folder / f"{run} {rank}.pt", weights_only=True) for rank in range(WORLD)]


@pytest.mark.parametrize("run", RUNS)
def test_both_processes_end_with_the_same_weights_and_buffers(trained: Path, run: str) -> None:
    first, second = results(trained, run)
    assert first["switches"] == second["switches"]
    assert first["tensors"].keys() == second["tensors"].keys()
    different = [name for name, tensor in first["tensors"].items() if not torch.equal(tensor, second["tensors"][name])]
    assert not different


@pytest.mark.parametrize("run", RUNS)
def test_they_end_where_one_process_with_all_data_does(trained: Path, run: str, record: Recorder) -> None:
    together, _ = results(trained, run)
    model = Model(**RUNS[run])
    before = copy.deepcopy(model.layer)
    assert train(model, model.layer, None) == together["switches"]
    expected = tensors_of(model.layer)
    assert together["tensors"].keys() == expected.keys()
    for name, tensor in expected.items():
        if tensor.dtype == torch.float64:
            if name in dict(before.named_parameters()):  # the radius is of this dtype too
                assert not torch.equal(tensor, dict(before.named_parameters())[name])
            error = relative_error(together["tensors"][name], tensor)
            record(cases=1, worst_relative_error=error)
            # Each update is a pass forwards and back through all layers, from the result of the last.
            assert error <= rounding(UPDATES * 2 * model.layer.num_layers * STEPS, INPUTS + 2 * HIDDEN)
        else:
            assert torch.equal(together["tensors"][name], tensor)


def test_the_switch_turned_on_in_one_run_only_and_in_mid_course(trained: Path) -> None:
    off, on = (results(trained, run)[0]["switches"] for run in RUNS)
    assert not any(any(switches) for switches in off)
    assert not any(on[0])
    assert any(on[-1])
