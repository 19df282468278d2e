"""The whole of it: run what is missing, collect, write."""

import contextlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from .._counted import counted
from .._room import check_room
from ..sweep._outcome import outcome
from ..sweep._processes import cores
from ..sweep._sharing import Sharing, shared
from ..training import RunFolder, RunSettings, Watch
from ..training._loop import check_device
from ._collect import collect
from ._cost import cost_file, measure_cost, method
from ._plan import Plan, left_out, plan
from ._pool import perform
from ._work import Job, failure


class Display:
    """How the runs of a table are shown while they are done: a line for each that begins, and for each that ends."""

    def say(self, line: str) -> None:
        print(line, flush=True)

    def begun(self, name: str) -> Watch:
        """What is returned is told how the run goes."""
        self.say(f"{name}: begun")
        return Watch()

    def ended(self, name: str, line: str) -> None:
        self.say(line)


def reproduce(
    what: Sequence[str] = (),
    *,
    quick: bool = False,
    seeds: int = 1,
    device: str = "auto",
    jobs: int | None = None,
    runs: str | Path = "runs",
    out: str | Path = "report",
    data: str | None = None,
    rows: str | None = None,
    retry: bool = False,
    display: Display | None = None,
) -> dict[str, Any]:
    """Do the runs that the items need and that are not there, and write results.json, and the page, into `out`.

    A finished run is never repeated, a begun one goes on, one that has failed is left alone unless `retry`. Returns the results.
    """
    if jobs is not None and jobs < 1:
        raise ValueError(f"--jobs takes the number of runs at a time, at least 1, got: {jobs}")
    runs, out, display = Path(runs), Path(out), display or Display()
    chosen = device_of(device)
    planned = plan(what, quick, seeds, chosen, data, rows)
    check_device(RunSettings(steps=1, device=chosen).device)
    check_folders(runs, out)
    for line in left_out(planned):
        display.say(line)
    _run(planned, runs, jobs, chosen, retry, display)
    for _ in planned.measures:
        if not cost_file(runs, chosen).exists():
            display.say(f"timing: {method()}")
            measure_cost(runs, chosen)
    results = collect(runs, quick, what)
    display.say(f"results: {write(results, out)}")
    return results


def write(results: dict[str, Any], out: Path) -> Path:
    """results.json and, where there is something that can, the page. Returns what to open."""
    out.mkdir(parents=True, exist_ok=True)
    file = out / "results.json"
    file.write_text(json.dumps(results, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
    try:
        from .. import report
    except ImportError:
        return file
    return Path(report.write(results, out))


def check_folders(runs: Path, out: Path) -> None:
    """Hours of runs are not to end with a page that has no place."""
    check_room("--runs", runs)
    check_room("--out", out)


def device_of(name: str) -> str:
    return ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name


def at_once(jobs: int | None, device: str, todo: int) -> Sharing:
    """As many as asked for; else one a core on a CPU, and as many as can share a GPU. To be closed."""
    if device.startswith("cuda"):
        return shared(1, jobs, todo)
    processes = jobs or (cores() if device == "cpu" else 1)
    return Sharing(processes, f"{processes} at a time", {})


def _run(planned: Plan, runs: Path, jobs: int | None, device: str, retry: bool, display: Display) -> None:
    waiting = planned.waiting(runs)
    todo = [job for job in waiting if retry or outcome(RunFolder(runs / job.folder_name)).status != "failed"]
    old = len(waiting) - len(todo)
    failed = f"; {old} failed before and are left alone (--retry)" if old else ""
    begun, count = time.monotonic(), 0

    def ended(job: Job) -> None:
        nonlocal count
        count += 1
        display.ended(_named(job), f"[{count}/{len(todo)}, {time.monotonic() - begun:.0f} s] {_told(job, runs)}")

    with contextlib.closing(at_once(jobs, device, len(todo))) as sharing:
        display.say(f"{counted(len(planned.jobs), 'run')}, {len(todo)} to do, {sharing.words}{failed}")
        if todo:
            perform(todo, runs, sharing.processes, ended, sharing.environment, lambda job: display.begun(_named(job)))


def _named(job: Job) -> str:
    return f"{job.name}, seed {job.config.run.seed}"


def _told(job: Job, runs: Path) -> str:
    folder = RunFolder(runs / job.folder_name)
    standing = outcome(folder)
    what = f"{_named(job)}: {standing.status if standing.status in ('finished', 'failed') else 'stopped'}"
    error = standing.error or failure(folder)
    result = folder.result if standing.status == "finished" else None
    if result is not None:
        metric = result["metric"]
        scores = result.get("chosen", result["last"])
        what += f", test {metric} {scores['test'][metric]:.4g}, {result['seconds']:.0f} s"
    return f"{what}, {error}" if error else what
