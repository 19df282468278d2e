"""A training step of a whole layer as one calls it, beside cuDNN's RNN: projection, matrices, recurrence and all gradients.

    python benchmarks/layer_step.py [--sizes 50,32,310/720 …] [--json FILE]

A size is T,B,q/s: steps, sequences, long-term and short-term units. It is timed twice: launched by Python, and as a CUDA graph
that `torch.cuda.make_graphed_callables` makes of the layer; what is not in the table is the optimiser. `nn.RNN` with nothing to
do, 8 units for 4 steps, tells what the host takes for any step. Times are medians of rounds in which all take turns.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from recurrence_cuda import INPUTS, SIZES, Size, check, measure, refuse_without_a_gpu, size
from torch import Tensor, nn

import enrnn

Step = Callable[[], tuple[Tensor, ...]]


def step(layer: nn.Module, run: Any, x: Tensor, upstream: Tensor) -> Step:
    parameters = list(layer.parameters())
    return lambda: torch.autograd.grad(run(x)[0], parameters, upstream)


def steps(made: Callable[[], nn.Module], x: Tensor, upstream: Tensor) -> dict[str, Step]:
    """Of two layers that are alike, since one of which a graph was made stays one."""
    layer, graphed = made(), made()
    graphed.load_state_dict(layer.state_dict())
    return {
        "called": step(layer, layer, x, upstream),
        "as a graph": step(graphed, torch.cuda.make_graphed_callables(graphed, (x,)), x, upstream),
    }


def contenders(at: Size, features: int) -> dict[str, Step]:
    x = torch.randn(at.steps, at.batch, features, device="cuda")
    upstream = torch.randn(at.steps, at.batch, at.n, device="cuda")
    ours = steps(lambda: enrnn.ENRNN(features, at.n, short_size=at.short, device="cuda"), x, upstream)
    for found, right in zip(*(each() for each in ours.values()), strict=True):
        if not (found - right).norm() <= 1e-4 * right.norm():
            raise SystemExit(f"{at}: the graph's gradients are not the layer's. Nothing is reported until they are.")
    theirs = steps(lambda: nn.RNN(features, at.n, nonlinearity="relu").cuda(), x, upstream)
    idle = nn.RNN(2, 8, nonlinearity="relu").cuda()
    nothing = step(idle, idle, torch.randn(4, 2, 2, device="cuda"), torch.randn(4, 2, 8, device="cuda"))
    return {
        **{f"ENRNN, {how}": work for how, work in ours.items()},
        **{f"cuDNN RNN, {how}": work for how, work in theirs.items()},
        "nothing to do": nothing,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", nargs="+", default=SIZES)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    refuse_without_a_gpu()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    warnings.filterwarnings("ignore", "The AccumulateGrad node's stream")  # of torch's own warm-up
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}; float32, TF32 off")
    rows = []
    for text in options.sizes:
        at = size(text)
        check(at)
        found = measure(contenders(at, INPUTS.get(text, 1)), set(), repeats=20)
        if not rows:
            print(f"{'ms':16}" + "".join(f"{name:>24}" for name in found))
        rows.append({"size": text, **found})
        print(f"{text:16}" + "".join(f"{value / 1e3:24.3f}" for value in found.values()), flush=True)
    if options.json:
        facts = {"torch": torch.__version__, "device": torch.cuda.get_device_name(), "rows": rows}
        options.json.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
