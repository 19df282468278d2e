"""What the spectral radius by a Schur form costs, beside the rest of a training step (§3.2).

The Schur form is scipy's. Without it torch's eigenvalues and eigenvectors are timed, which are something else and are called so.
"""

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from .. import recurrence
from ..training._container import replace

FOLDER = "measured"
SHAPES = {"adding": (96, 64, 50, 750), "copying": (172, 20, 20, 2020), "TIMIT": (374, 94, 28, 200), "PTB": (310, 720, 32, 50)}
"""q, s, B and L of the paper's experiments. (TIMIT: about as many frames as an utterance has.)"""
LONGEST = 200
"""Steps that are timed of longer sequences, and then scaled: the time of a step does not depend on how many there are."""


SCHUR, EIGEN = "Schur form", "eigenvalues and eigenvectors"


def cost_file(runs: Path, device: str) -> Path:
    """Where the times of a machine like this one are; those without scipy are others, so that with it they are taken."""
    without = "" if _scipy() is not None else "-without-scipy"
    return runs / FOLDER / f"cost-{device.partition(':')[0]}{without}.json"


def timed(cost: Mapping[str, Any]) -> str:
    """What the times in such a file, which are called "schur" there, are of."""
    return SCHUR if SCHUR in cost["method"] else EIGEN


def measure_cost(runs: Path, device: str) -> None:
    """Time both, for each shape, on one thread, and write them down."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        content = {
            "device": device,
            "method": method(),
            "shapes": {name: _shape(*shape, device) for name, shape in SHAPES.items()},
        }
    finally:
        torch.set_num_threads(threads)
    file = cost_file(runs, device)
    file.parent.mkdir(parents=True, exist_ok=True)
    replace(file, (json.dumps(content, indent=2) + "\n").encode())


def _shape(q: int, s: int, B: int, L: int, device: str) -> dict[str, Any]:
    T = torch.randn(s, s, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) / s**0.5
    n, steps = q + s, min(L, LONGEST)
    W = (torch.linalg.qr(torch.randn(n, n))[0]).to(device).requires_grad_()
    inputs = torch.randn(steps, B, n, device=device, requires_grad=True)

    def rest() -> None:
        recurrence.recurrence(inputs, W, None, torch.zeros(B, n, device=device), "tanh", backend="torch").sum().backward()  # type: ignore[no-untyped-call]
        if device != "cpu":
            torch.cuda.synchronize()

    schur, whole = _seconds(lambda: _schur(T)), _seconds(rest) * L / steps
    return {"q": q, "s": s, "BL": B * L, "schur": schur, "rest": whole, "ratio": schur / whole}


def _seconds(work: Callable[[], object], repeats: int = 4) -> float:
    """The least of a few, or of two where one takes more than a second."""
    found: list[float] = []
    while len(found) < repeats and not (len(found) == 2 and found[0] > 1):
        begun = time.perf_counter()
        work()
        found.append(time.perf_counter() - begun)
    return min(found)


def method() -> str:
    return f"complex {SCHUR} (scipy)" if _scipy() is not None else f"{EIGEN} (torch; no scipy here)"


def _schur(T: torch.Tensor) -> None:
    schur = _scipy()
    if schur is None:
        torch.linalg.eig(T)
    else:
        schur(T.numpy(), output="complex")


def _scipy() -> Callable[..., Any] | None:
    try:
        from scipy.linalg import schur  # type: ignore[import-untyped, unused-ignore]
    except ModuleNotFoundError:
        return None
    return schur  # type: ignore[no-any-return, unused-ignore]
