"""What a step of training takes on a GPU, batch, guard and optimiser included, as the CUDA graph that `enrnn train` replays.

    python benchmarks/training_step.py [characters/enrnn adding/enrnn …] [--rounds 4] [--json FILE]

Twice, in turns: as it is, with W_S, W_L and the batch formed beside one another, and with everything one after the other. The
data of a recipe must be there, as for `enrnn train`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import torch

from enrnn import _streams
from enrnn.recipes import recipe
from enrnn.training._distributed import Processes
from enrnn.training._graph import captured
from enrnn.training._loop import _network
from enrnn.training._step import Step

REPLAYS, WARM_UP = 60, 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", default=["characters/enrnn", "adding/enrnn"])
    parser.add_argument("--rounds", type=int, default=4, help="of which the best is taken (default: 4)")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds takes a whole number of at least 1")
    if not torch.cuda.is_available():
        sys.exit("training_step.py: torch sees no CUDA device here, and this is about GPUs")

    warnings.filterwarnings("ignore", "The AccumulateGrad node's stream")  # torch's; `enrnn train` has none
    print(f"microseconds a step; {torch.cuda.get_device_name(0)}, torch {torch.__version__}")
    print(f"{'recipe':<24}{'in order':>10}{'beside':>10}{'ratio':>8}", flush=True)
    found = {}
    for name in options.recipes:
        steps = step_of(name, "cuda"), step_of(name, "cuda")  # kept: the graphs read and write their tensors
        with mock.patch.object(_streams, "capturing", return_value=False):
            in_order = captured(steps[0])
        beside = captured(steps[1])
        pairs = [*zip(steps, (in_order, beside), strict=True)]
        times = [[microseconds(*pair) for pair in pairs] for _ in range(options.rounds)]
        found[name] = [min(each) for each in zip(*times, strict=True)]
        print(f"{name:<24}{found[name][0]:>10.1f}{found[name][1]:>10.1f}{found[name][0] / found[name][1]:>8.2f}", flush=True)
        if options.json:
            options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def step_of(name: str, device: str) -> Step:
    """The first step of a recipe's run."""
    config = recipe(name)
    data = config.task.load(torch.device(device))
    step = Step(_network(config, data).to(device), data, config.optimizer, Processes())
    step.start_epoch(0, 0)
    return step


def microseconds(step: Step, replay: Callable[[], None]) -> float:
    """Of a step, on the average over the first of an epoch."""
    count = min(REPLAYS, len(step.order) - WARM_UP)
    if count < 1:
        sys.exit(f"training_step.py: an epoch must have more than {WARM_UP} steps, and has {len(step.order)}")
    step.start_epoch(0, 0)
    for _ in range(WARM_UP):
        replay()
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(count):
        replay()
    torch.cuda.synchronize()
    return (time.perf_counter() - begun) / count * 1e6


if __name__ == "__main__":
    main()
