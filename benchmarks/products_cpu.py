"""Products of matrices on a CPU by our tiles, beside those of torch's library, in turn.

    python benchmarks/products_cpu.py [--threads 1 2] [--rounds 7]

Billions of operations a second, the most of all rounds; and how many times as fast as torch. They are taken where `ours` is yes
(`src/enrnn/recurrence/_cpu_products.py`); here they are timed wherever Numba is.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

from enrnn.recurrence import _cpu_products
from enrnn.recurrence._cpu_products import product

SINGLE, DOUBLE = torch.float32, torch.float64
CASES = [
    # what it is for; dtype; rows, inner size, columns; whether the left one is transposed, with many rows
    ("gradient of W_L, W_C: adding", SINGLE, 96, 37_500, 160, True),
    ("copying", SINGLE, 172, 40_400, 192, True),
    ("TIMIT", SINGLE, 374, 13_720, 468, True),
    ("PTB", SINGLE, 310, 1_600, 1_030, True),
    ("the way in: copying", SINGLE, 40_400, 10, 192, False),
    ("TIMIT", SINGLE, 13_720, 129, 468, False),
    ("PTB", SINGLE, 1_600, 50, 1_030, False),
    ("the way out: TIMIT", SINGLE, 13_720, 468, 129, False),
    ("matrices: 94", DOUBLE, 94, 94, 94, False),
    ("374", DOUBLE, 374, 374, 374, False),
    ("720", DOUBLE, 720, 720, 720, False),
]


def seconds(function: Callable[[], object]) -> float:
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    print(f"torch {torch.__version__}; ours here: {'yes' if _cpu_products.library_is_slow() else 'no'}")
    _cpu_products.library_is_slow = lambda: True  # type: ignore[assignment]
    for threads in arguments.threads:
        torch.set_num_threads(threads)
        print(f"\n{threads} thread{'s' * (threads > 1)}{'':<30}{'torch':>8}{'ours':>8}{'ours / torch':>14}")
        for name, dtype, rows, inner, columns, transposed in CASES:
            left = torch.randn(inner, rows, dtype=dtype).mT if transposed else torch.randn(rows, inner, dtype=dtype)
            right = torch.randn(inner, columns, dtype=dtype)
            torch.testing.assert_close(product(left, right), left @ right, rtol=1e-3, atol=1e-2)
            times = [(seconds(lambda: left @ right), seconds(lambda: product(left, right))) for _ in range(arguments.rounds)]  # noqa: B023
            theirs, ours = (2e-9 * rows * inner * columns / min(each) for each in zip(*times, strict=True))
            print(f"{name:<38}{theirs:8.0f}{ours:8.0f}{ours / theirs:14.2f}", flush=True)


if __name__ == "__main__":
    main()
