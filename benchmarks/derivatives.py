"""What derivatives cost beyond an ordinary gradient: the fused recurrence beside its specification and torch.nn.RNN, in one run.

    python benchmarks/derivatives.py [--threads 1] [--sizes 200,20,96/64 …] [--rounds 5] [--device cpu]

For each size T,B,q/s, in ms: outputs; a gradient; a product with the Jacobian (`torch.func.jvp`); one with the Hessian, of the
loss by all parameters and the input, reverse over reverse; and a gradient for every sequence (`vmap(grad)`). All by tanh, whose
derivative is not constant. Rounds are interleaved, the best of each is taken. Before anything is reported, what the first two
find is compared. A dash: torch cannot do it (nor does cuDNN differentiate twice, so that on a GPU it is told to stay out).
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import enrnn

SIZES = ["200,20,96/64", "200,20,172/20", "100,28,374/94", "50,32,310/720"]
WAYS = ["outputs", "gradient", "jvp", "Hessian product", "each sequence"]

Call = Callable[[], Any]


def calls(layer: nn.Module, steps: int, batch: int, device: str) -> dict[str, Call]:
    """What is timed, each on the same numbers."""
    generator = torch.Generator().manual_seed(0)
    parameters = {name: value.detach() for name, value in layer.named_parameters()}
    buffers = dict(layer.named_buffers())
    x, by_x = torch.randn(2, steps, batch, 2, generator=generator).to(device).unbind()
    by = {name: torch.randn(value.shape, generator=generator).to(device) / 10 for name, value in parameters.items()}

    def outputs(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        with torch.backends.cudnn.flags(enabled=False):
            found: Tensor = torch.func.functional_call(layer, (parameters, buffers), (x,))[0]
        return found

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return outputs(parameters, x).square().mean()

    def plain() -> Tensor:
        with torch.no_grad():
            return outputs(parameters, x)

    def leaves() -> tuple[dict[str, Tensor], list[Tensor]]:
        there = {name: value.clone().requires_grad_() for name, value in parameters.items()}
        return there, [*there.values()]

    def gradient() -> tuple[Tensor, ...]:
        there, all_of = leaves()
        return torch.autograd.grad(loss(there, x), all_of)

    def jvp() -> Tensor:
        moved: Tensor = torch.func.jvp(outputs, (parameters, x), (by, by_x))[1]
        return moved

    def product() -> tuple[Tensor, ...]:
        there, all_of = leaves()
        first = torch.autograd.grad(loss(there, x), all_of, create_graph=True)
        return torch.autograd.grad(first, all_of, [*by.values()])

    def each() -> dict[str, Tensor]:
        found: dict[str, Tensor] = torch.func.vmap(torch.func.grad(loss), (None, 1))(parameters, x)
        return found

    return dict(zip(WAYS, (plain, gradient, jvp, product, each), strict=True))


def tensors(found: Any) -> list[Tensor]:
    if isinstance(found, Tensor):
        return [found]
    return [*found.values()] if isinstance(found, dict) else [*found]


def check(fused: dict[str, Call], reference: dict[str, Call]) -> None:
    for way in WAYS:
        for ours, theirs in zip(tensors(fused[way]()), tensors(reference[way]()), strict=True):
            error = float((ours - theirs).abs().max() / theirs.abs().max().clamp_min(1e-30))
            if not error < 1e-3:
                raise SystemExit(f"{way}: off by {error:.1e} of the largest; nothing is reported until it is right")


def timed(call: Call, device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - start)


def works(call: Call) -> bool:
    try:
        call()
    except RuntimeError:
        return False
    return True


def run(size: str, rounds: int, device: str) -> None:
    steps, batch, parts = size.split(",")
    q, s = map(int, parts.split("/"))
    torch.manual_seed(0)
    fused = enrnn.ENRNN(2, q + s, short_size=s, nonlinearity="tanh").to(device).eval()
    reference = enrnn.ENRNN(2, q + s, short_size=s, nonlinearity="tanh", backend="reference").to(device).eval()
    reference.load_state_dict(fused.state_dict())
    layers = {"enrnn": fused, "specification": reference, "torch.nn.RNN": nn.RNN(2, q + s).to(device)}
    contenders = {name: calls(layer, int(steps), int(batch), device) for name, layer in layers.items()}
    check(contenders["enrnn"], contenders["specification"])
    best = {(name, way): float("inf") for name in contenders for way in WAYS if works(contenders[name][way])}
    for _ in range(rounds):
        for name, way in best:
            best[name, way] = min(best[name, way], timed(contenders[name][way], device))
    print(f"\n{size:>16s}, {fused.backend_used}" + "".join(f"{way:>17s}" for way in WAYS))
    for name in contenders:
        times = [best.get((name, way)) for way in WAYS]
        print(f"{name:>21s}" + "".join(f"{'–' if each is None else f'{each:.2f}':>17s}" for each in times))
    for name in ("specification", "torch.nn.RNN"):
        ratios = [best[name, way] / best["enrnn", way] if (name, way) in best else None for way in WAYS]
        print(f"{'× ' + name:>21s}" + "".join(f"{'–' if each is None else f'{each:.1f}':>17s}" for each in ratios))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--sizes", nargs="+", default=SIZES)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    print(f"ms, best of {options.rounds}, {options.threads} threads, {options.device}, torch {torch.__version__}")
    for size in options.sizes:
        run(size, options.rounds, options.device)


if __name__ == "__main__":
    main()
