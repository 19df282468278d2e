"""A layer in use, on a CPU: one step of one sequence, as on a stream, and a batch; beside `bake()` and `torch.nn.RNN`.

    python benchmarks/inference.py [--sizes 2,96/64 …] [--threads 1] [--json FILE]

A size is d,q/s: inputs, long-term and short-term units. All are in evaluation mode, without gradients. Of the layer there are two
figures: with its matrices formed at every call, as they were before they were remembered (`forming`), and as it is. Times are the
least of many, in turns.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import enrnn

SIZES = ["2,96/64", "10,172/20", "129,374/94", "50,310/720"]
SHAPES = {"one step": (1, 1), "50 steps, 32 sequences": (50, 32)}
SECONDS = 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", type=size, default=[size(text) for text in SIZES], metavar="INPUTS,Q/S")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rows = [row for size in arguments.sizes for row in measured(*size)]
    print(f"{'size':<12}{'':<26}{'forming':>10}{'layer':>10}{'baked':>10}{'nn.RNN':>10}  µs   forming/layer")
    for row in rows:
        times = "".join(f"{row[name]:>10.0f}" for name in ("forming", "layer", "baked", "nn.RNN"))
        print(f"{row['size']:<12}{row['call']:<26}{times}{row['forming'] / row['layer']:>17.1f}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"torch": torch.__version__, "threads": arguments.threads, "rows": rows}, indent=1))


def size(text: str) -> tuple[int, int, int]:
    inputs, units = text.split(",")
    q, s = map(int, units.split("/"))
    return int(inputs), q, s


def measured(inputs: int, q: int, s: int) -> list[dict[str, float | str]]:
    layer = enrnn.ENRNN(inputs, q + s, short_size=s).eval()
    others = {"baked": layer.bake(), "nn.RNN": torch.nn.RNN(inputs, q + s)}
    rows = []
    for call, (steps, batch) in SHAPES.items():
        x, h = torch.randn(steps, batch, inputs), torch.zeros(1, batch, q + s)

        def forming(x: Tensor = x, h: Tensor = h) -> None:
            layer._remembered._formed.clear()
            layer(x, h)

        calls: dict[str, Callable[[], object]] = {"forming": forming, "layer": lambda x=x, h=h: layer(x, h)}
        calls |= {name: lambda x=x, h=h, other=other: other(x, h) for name, other in others.items()}
        with torch.no_grad():
            assert relative_difference(layer(x, h)[0], others["baked"](x, h)[0]) < 1e-4
            rows.append({"size": f"{inputs},{q}/{s}", "call": call, **least(calls)})
    return rows


def least(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Microseconds of each."""
    best = dict.fromkeys(calls, float("inf"))
    end = time.perf_counter() + SECONDS * len(calls)
    while time.perf_counter() < end:
        for name, call in calls.items():
            call()  # what another has pushed out of the caches
            start = time.perf_counter()
            call()
            best[name] = min(best[name], 1e6 * (time.perf_counter() - start))
    return best


def relative_difference(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max() / other.abs().max())


if __name__ == "__main__":
    main()
