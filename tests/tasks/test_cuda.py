"""On a GPU: the same bits as on the CPU, inside a CUDA graph as well."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from enrnn.tasks import Adding, Characters, Copying, Data, Speech, Task
from tests.tasks._files import speech_folder

pytestmark = pytest.mark.gpu

GENERATED = [
    Adding(),
    Adding(length=31, seed=5, test_size=55),
    Copying(),
    Copying(layout="paper", length=7),
    Characters(corpus="python", eval_batch_size=7),
]


def assert_alike(cpu: Data, gpu: Data) -> None:
    for split in cpu.splits:
        for epoch in (0, 3):
            assert torch.equal(cpu.order(split, epoch), gpu.order(split, epoch).cpu())
        for indices in (cpu.order(split, 1)[0], cpu.order(split, 1)[-1]):
            here, there = cpu.batch(split, indices), gpu.batch(split, indices.cuda())
            for a, b in zip(here, there, strict=True):
                assert (a is None and b is None) or torch.equal(a, b.cpu())


@pytest.mark.parametrize("settings", GENERATED, ids=repr)
def test_the_bits_are_the_cpus(settings: Task) -> None:
    assert_alike(settings.load("cpu"), settings.load("cuda"))


def test_speech_is_the_cpus(tmp_path: Path) -> None:
    settings = Speech(data=str(speech_folder(tmp_path)), batch_size=2, eval_batch_size=2)
    assert_alike(settings.load("cpu"), settings.load("cuda"))


def step(data: Data, split: str, indices: torch.Tensor, outputs: torch.Tensor) -> list[torch.Tensor]:
    batch = data.batch(split, indices)
    parts = [part for part in batch if part is not None]
    return [*parts, data.loss(outputs, batch), *data.tally(outputs, batch).values()]


@pytest.mark.parametrize("settings", GENERATED, ids=repr)
def test_a_graph_holds_batch_loss_and_tally(settings: Task) -> None:
    data = settings.load("cuda")
    for split in data.splits:
        order = data.order(split)
        indices = order[0].clone()
        inputs = data.batch(split, indices).inputs
        steps = [] if data.reads == "last" else [inputs.shape[0]]
        outputs = torch.randn(*steps, len(indices), data.output_size, device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step(data, split, indices, outputs)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = step(data, split, indices, outputs)
        for chosen in (order[len(order) // 2], order[-1]):
            indices.copy_(chosen)
            graph.replay()
            torch.cuda.synchronize()
            for kept, fresh in zip(captured, step(data, split, indices, outputs), strict=True):
                assert torch.equal(kept, fresh)
