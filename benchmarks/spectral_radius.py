"""What the dominant eigenvalue costs, method by method, side by side in one run, with the arithmetic bound beside it.

    python benchmarks/spectral_radius.py [--threads 1 2] [--sizes 20 64 94 160 320 720] [--json FILE]

Contenders: `torch.linalg.eig` (all eigenvalues and right vectors), SciPy's complex Schur form (what the paper's authors use), and
this package's dense and squaring solvers, which also give the left vector. Matrices are those of `trained()` below, non-normal
with near ties, and Gaussian ones; with ENRNN_DATA set, the 720×720 ones of a real training run are added. Rounds are interleaved,
so that a busy machine slows all alike; the median of each is taken. Each number of threads is a process of its own, because
SciPy's BLAS fixes its own when it is loaded. Before anything is reported, squaring is checked against dense on every matrix.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from enrnn import EigenvalueNormalized
from enrnn.spectrum import dominant
from enrnn.spectrum._device import SQUARINGS, squaring_on_device
from enrnn.spectrum._squaring import squaring


def trained(size: int) -> Tensor:
    """A random matrix such as training makes: rotations, noise and a part of low rank, ‖T‖₂ a few times ρ."""
    generator = torch.Generator().manual_seed(size)
    torch.manual_seed(size)
    start = torch.empty(size, size, dtype=torch.float64)
    EigenvalueNormalized().initialize_(start)
    low = max(size // 8, 1)
    noise = torch.randn(size, size, dtype=torch.float64, generator=generator) / size**0.5
    left = torch.randn(size, low, dtype=torch.float64, generator=generator)
    right = torch.randn(low, size, dtype=torch.float64, generator=generator)
    return start + 0.2 * noise + 0.3 * left @ right / (size * low) ** 0.5


def matrices(sizes: list[int]) -> dict[str, Tensor]:
    found = {f"trained {size}": trained(size) for size in sizes}
    generator = torch.Generator().manual_seed(0)
    found |= {f"Gaussian {size}": torch.randn(size, size, dtype=torch.float64, generator=generator) for size in sizes}
    folder = Path(os.environ.get("ENRNN_DATA", "")) / "short_term_matrices"
    if folder.is_dir() and 720 in sizes:
        import numpy

        found |= {file.stem: torch.from_numpy(numpy.load(file)).double() for file in sorted(folder.glob("T_*.npy"))}
    return found


def contenders(matrix: Tensor) -> dict[str, Callable[[], object]]:
    methods: dict[str, Callable[[], object]] = {
        "eig": lambda: torch.linalg.eig(matrix),
        "dense": lambda: dominant(matrix),
        "squaring": lambda: squaring(matrix),
        "one product": lambda: matrix @ matrix,
    }
    if matrix.device.type == "cuda":
        methods["squaring"] = lambda: squaring_on_device(matrix)
        graph = torch.cuda.CUDAGraph()
        squaring_on_device(matrix)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            squaring_on_device(matrix)
        methods["graph"] = lambda: replay(graph)
    else:
        try:
            import scipy.linalg
        except ImportError:
            return methods
        array = matrix.numpy()
        methods["schur"] = lambda: scipy.linalg.schur(array, output="complex")
    return methods


def replay(graph: torch.cuda.CUDAGraph, times: int = 50) -> float:
    """Milliseconds on the device for one replay, the mean of many in a row."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(times):
        graph.replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / times


def measure(methods: dict[str, Callable[[], object]], cuda: bool) -> dict[str, float]:
    """The median time of each, in milliseconds, over interleaved rounds."""
    times: dict[str, list[float]] = {name: [] for name in methods}
    for round_ in range(6):
        for name, method in methods.items():
            if name == "schur" and round_ > 1:
                continue
            begin = time.perf_counter()
            answer = method()
            if cuda:
                torch.cuda.synchronize()
            if round_ > 0:  # the first is a warm-up
                times[name].append(answer if isinstance(answer, float) else 1e3 * (time.perf_counter() - begin))
    return {name: statistics.median(values) for name, values in times.items()}


def check(matrix: Tensor) -> str:
    """Refuse to time what is wrong; say whether it was certified."""
    found, truth = squaring_on_device(matrix) if matrix.is_cuda else squaring(matrix), dominant(matrix)
    if found is None or not found.certified:
        return "no"
    error = (found.pair.radius / truth.radius - 1).abs().item()
    if error > 1e-11:
        raise SystemExit(f"squaring is off by {error:.1e}: nothing is reported until it is right")
    return "yes"


def run(threads: int, sizes: list[int], device: str) -> list[dict[str, object]]:
    """Time everything in this process and print a row for each matrix."""
    torch.set_num_threads(threads)
    rows: list[dict[str, object]] = []
    for name, matrix in matrices(sizes).items():
        matrix = matrix.to(device)
        certified = check(matrix)
        times = measure(contenders(matrix), device != "cpu")
        products = SQUARINGS if matrix.is_cuda else 6
        fast, bound, schur = times["squaring"], products * times["one product"], times.get("schur", float("nan"))
        rows.append({"matrix": name, "threads": threads, "certified": certified, "bound": bound, **times})
        print(
            f"{name:>12} {threads:3d} {times['eig']:8.2f} {schur:8.2f} {times['dense']:8.2f} {fast:8.2f} {bound:8.2f}"
            f"  {times['eig'] / fast:6.2f} {schur / fast:8.2f}  {certified}"
            + (
                f"; in a CUDA graph {times['graph']:.3f} ms, eig/graph {times['eig'] / times['graph']:.0f}"
                if matrix.is_cuda
                else ""
            ),
            flush=True,
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--sizes", type=int, nargs="+", default=[20, 64, 94, 160, 320, 720])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.device != "cpu":
        options.threads = options.threads[:1]
    if len(options.threads) == 1:
        rows = run(options.threads[0], options.sizes, options.device)
        if options.json:
            options.json.write_text(json.dumps({"torch": torch.__version__, "rows": rows}, indent=2) + "\n", encoding="utf-8")
        return
    print("times in ms; bound: the products of two m×m matrices (6 on a CPU, 27 on a GPU) at the speed of one measured here")
    print(
        f"{'matrix':>12} thr {'eig':>8} {'schur':>8} {'dense':>8} {'squaring':>8} {'bound':>8}  eig/sq schur/sq  certified",
        flush=True,
    )
    for threads in options.threads:
        limits = {name: str(threads) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
        sizes = [str(size) for size in options.sizes]
        command = [sys.executable, __file__, "--threads", str(threads), "--device", options.device, "--sizes", *sizes]
        if options.json:
            command += ["--json", str(options.json.with_suffix(f".{threads}.json"))]
        subprocess.run(command, env={**os.environ, **limits}, check=True)


if __name__ == "__main__":
    main()
