"""How many runs a minute an engine does with one worker and with several: how it scales.

    python benchmarks/sweep.py                                   one worker and two, in processes of this machine
    python benchmarks/sweep.py --runner ray --workers 1 2

Every worker has as many runs to do as any other: the adding problem, each with a seed of its own. Beside the engine stand as many
processes without one, which do the same runs one after the other: that is what the machine can do, since two cores seldom do
twice what one does. Worker counts and engines take turns, and the best of the rounds is reported. The clock starts when the
workers have done a first run each.
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import os
import tempfile
from pathlib import Path
from typing import Any

from enrnn.recipes import recipe
from enrnn.sweep import Job, LocalRunner, RayRunner
from enrnn.sweep._ray import _ray
from enrnn.training import Config, train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runner", choices=("local", "ray"), default="local")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--each", type=int, default=4, help="runs of each worker (default: 4)")
    parser.add_argument("--length", type=int, default=200)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()

    best: dict[tuple[str, int], float] = {}
    for _ in range(options.rounds):
        for workers in options.workers:
            for engine in (options.runner, "none"):
                rate = runs_a_minute(engine, workers, options)
                best[engine, workers] = max(rate, best.get((engine, workers), 0.0))
    where = f"{options.runner}, {os.cpu_count()} cores"
    print(f"adding problem, T = {options.length}, {options.steps} steps a run; {where}")
    print("workers  runs/minute  times the first  without an engine  of that")
    first = best[options.runner, options.workers[0]]
    for workers in options.workers:
        rate, alone = best[options.runner, workers], best["none", workers]
        print(f"{workers:7}  {rate:11.2f}  {rate / first:15.2f}  {alone:17.2f}  {rate / alone:7.0%}")


def runs_a_minute(engine: str, workers: int, options: argparse.Namespace) -> float:
    changes = {"task.length": options.length, "run.steps": options.steps, "run.device": "cpu"}
    changes |= {"task.test_size": 1000, "run.evaluate_every": options.steps, "run.checkpoint_every": options.steps}
    base = recipe("adding/enrnn").override(changes)
    configs = [base.override({"run.seed": seed}) for seed in range(workers * (options.each + 1))]
    with tempfile.TemporaryDirectory() as folder:
        runs = Path(folder)
        if engine == "none":
            without_an_engine(configs, workers, runs)
        else:
            runner = started(engine, workers, runs)
            runner.run([Job(config) for config in configs], lambda running: None)
            runner.close()
        ends = sorted((runs / config.folder_name / "result.json").stat().st_mtime for config in configs)
    begin = sum(ends[:workers]) / workers
    return 60 * (len(ends) - workers) / (ends[-1] - begin)


def started(engine: str, workers: int, runs: Path) -> Any:
    if engine == "local":
        return LocalRunner(runs, workers)
    ray = _ray()
    ray.init(address="local", num_cpus=workers, include_dashboard=False, _node_ip_address="127.0.0.1", logging_level="ERROR")
    return RayRunner(ray, runs, 1.0, 0.0, 0, None)


def without_an_engine(configs: list[Config], workers: int, runs: Path) -> None:
    context = mp.get_context("spawn")
    processes = [
        context.Process(target=one_after_the_other, args=([c.as_dict() for c in configs[worker::workers]], str(runs)))
        for worker in range(workers)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


def one_after_the_other(configs: list[dict[str, Any]], runs: str) -> None:
    for values in configs:
        train(Config.from_dict(values), runs)


if __name__ == "__main__":
    main()
