"""What it pays to do several runs at once on one GPU: runs of the adding problem a minute, one at a time and packed.

    python benchmarks/packing.py [--steps 12000] [--at-once 1 12] [--runs-each 1] [--most 300] [--json FILE]

Each line is a sweep over seeds, as `enrnn sweep --workers N` would do it; every worker has as many runs to do as any other. Two
rates: by the clock, with the start of the processes and of MPS, and by the runs' own seconds, which begin when a run does. The
server that starts the processes is up before the clock is. A line that would take the whole thing beyond `--most` seconds, if
the GPU were full already, is left out.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from enrnn.recipes import recipe
from enrnn.sweep import Sweep, local_runner, run_sweep
from enrnn.sweep._processes import context_with


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12_000, help="of a run (default: 12000, as the recipe's)")
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 12], help="processes (default: 1 12)")
    parser.add_argument("--runs-each", type=int, default=1, help="runs of each process (default: 1)")
    parser.add_argument("--most", type=float, default=300, help="seconds for all of it (default: 300)")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    if min(options.steps, options.runs_each, *options.at_once) < 1:
        parser.error("--steps, --at-once and --runs-each take whole numbers of at least 1")
    if not torch.cuda.is_available():
        sys.exit("packing.py: torch sees no CUDA device here, and this is about GPUs")

    process = context_with("enrnn.sweep._work").Process(target=int)
    process.start()
    process.join()
    print(f"adding problem, {options.steps:,} steps a run, {options.runs_each} of each process; {torch.cuda.get_device_name(0)}")
    print(f"{'at once':>7}{'seconds':>9}{'runs/min':>10}{'ratio':>7}{'a run':>9}{'runs/min':>10}{'ratio':>7}", flush=True)
    found: list[dict[str, Any]] = []
    begun = time.monotonic()
    for at_once in options.at_once:
        expected = longest(at_once, found)
        if found and time.monotonic() - begun + expected > options.most:
            print(f"{at_once:>7}  left out: it may take {expected:.0f} s, and --most is {options.most:g}", flush=True)
            continue
        found.append(measured(at_once, options.runs_each, options.steps))
        print(line(found[-1], found[0]), flush=True)
        if options.json:
            options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def measured(at_once: int, each: int, steps: int) -> dict[str, Any]:
    """Do `each` runs in each of the processes. "seconds" are the clock's, "own" a run's in the mean."""
    base = recipe("adding/enrnn").override({"run.device": "cuda:0", "run.steps": steps})
    with tempfile.TemporaryDirectory() as folder:
        sweep = Sweep.of("adding/enrnn", base, Path(folder))
        sweep.extend([{}], at_once * each)
        begun, about = time.monotonic(), ""

        def runner() -> Any:
            nonlocal about
            engine = local_runner(sweep, at_once)
            about = engine.about
            return engine

        with contextlib.redirect_stdout(io.StringIO()):
            run_sweep(sweep, runner)
        seconds = time.monotonic() - begun
        results = [trial.folder.result for trial in sweep.trials]
    own = [result["seconds"] for result in results if result is not None]
    if len(own) < len(results):
        sys.exit(f"packing.py: {len(results) - len(own)} of {len(results)} runs failed, {at_once} at once; {about}")
    return {
        "at_once": at_once,
        "runs": len(own),
        "steps": steps,
        "seconds": seconds,
        "own": statistics.fmean(own),
        "runs_a_minute": 60 * len(own) / seconds,
        "own_runs_a_minute": 60 * at_once / statistics.fmean(own),
        "about": about,
        "gpu": torch.cuda.get_device_name(0),
    }


def longest(at_once: int, found: list[dict[str, Any]]) -> float:
    """Seconds that so many at once take, if none goes faster for the others' being there."""
    if not found:
        return 0.0
    last = found[-1]
    working = last["own"] * last["runs"] / last["at_once"]
    return float(last["seconds"] + working * max(0.0, at_once / last["at_once"] - 1))


def line(row: dict[str, Any], first: dict[str, Any]) -> str:
    by_clock, by_own = (row[rate] / first[rate] for rate in ("runs_a_minute", "own_runs_a_minute"))
    clock = f"{row['seconds']:>9.1f}{row['runs_a_minute']:>10.2f}{by_clock:>7.2f}"
    own = f"{row['own']:>9.1f}{row['own_runs_a_minute']:>10.2f}{by_own:>7.2f}"
    return f"{row['at_once']:>7}{clock}{own}  {row['about']}"


if __name__ == "__main__":
    main()
