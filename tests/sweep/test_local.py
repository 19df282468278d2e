"""Worker processes that are killed, a driver that is killed, points that stop early: no run is lost, and none done twice."""

from __future__ import annotations

import json
import multiprocessing as mp
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from enrnn.cli import main
from enrnn.sweep import LocalRunner, Standing, Sweep
from enrnn.sweep._rungs import jobs_of, rungs
from enrnn.sweep._table import LiveTable
from enrnn.training import RunFolder, train
from tests._record import Recorder
from tests.sweep._small import ARGUMENTS, BASE, GRID, check_bits, check_every_run_is_there_once, small_sweep
from tests.training._runs import differences, outcome


def run_all(sweep: Sweep, runner: LocalRunner, retry: bool = False) -> None:
    jobs_of(sweep, retry, lambda jobs: runner.run(jobs, lambda running: None))


class Killer(threading.Thread):
    """Kills a worker of this process now and then, until it is stopped."""

    def __init__(self, seed: int, mean: float, most: int) -> None:
        super().__init__(daemon=True)
        self.draw, self.mean, self.most = random.Random(seed), mean, most
        self.kills, self.over = 0, threading.Event()

    def run(self) -> None:
        while self.kills < self.most and not self.over.wait(self.draw.expovariate(1 / self.mean)):
            workers = [process for process in mp.active_children() if process.pid is not None]
            if workers:
                os.kill(self.draw.choice(workers).pid or 0, signal.SIGKILL)
                self.kills += 1

    def __enter__(self) -> Killer:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.over.set()
        self.join()


def test_24_points_with_workers_killed_at_random(tmp_path: Path, full: bool, record: Recorder) -> None:
    kills = compared = seed = 0
    sweeps, least = (10, 100) if full else (1, 3)
    while seed < sweeps or kills < least:  # on a fast machine there is time for few
        assert seed < 5 * sweeps
        sweep = small_sweep(tmp_path / f"runs-{seed}")
        assert len(sweep.points) == 24
        with Killer(seed, mean=0.2, most=100 if full else 8) as killer:
            run_all(sweep, LocalRunner(sweep.runs, workers=2, retries=1000))
        kills += killer.kills
        check_every_run_is_there_once(sweep)
        compared += check_bits(sweep, tmp_path / "alone", every=1 if seed == 0 and full else 8)
        seed += 1
    record(cases_points=24 * seed, cases_kills=kills, cases_lost=0, cases_duplicated=0, cases_same_bits=compared)


def test_a_worker_that_dies_again_and_again_is_a_failed_run(tmp_path: Path) -> None:
    sweep = small_sweep(tmp_path, ["optimizer.lr=1e-2"], base=BASE.override({"run.steps": 1_000_000}))
    with Killer(0, mean=0.1, most=1000):
        run_all(sweep, LocalRunner(tmp_path, workers=1, retries=2))
    (row,) = Standing(sweep).rows()
    assert row.errors == ["WorkerDied: its worker process was ended 3 times, the last time by SIGKILL"]


def test_a_run_that_another_process_is_at_work_on_is_waited_for(tmp_path: Path) -> None:
    sweep = small_sweep(tmp_path, ["optimizer.lr=1e-2"])
    (trial,) = sweep.trials
    folder = RunFolder.create(trial.config, tmp_path)
    begin = time.monotonic()
    lock = folder.lock()
    lock.__enter__()

    def tick(running: set[str]) -> None:
        if time.monotonic() - begin > 0.5:
            lock.__exit__(None, None, None)

    jobs_of(sweep, False, lambda jobs: LocalRunner(tmp_path, 1).run(jobs, tick))
    assert time.monotonic() - begin > 0.5
    check_every_run_is_there_once(sweep)


def command(runs: Path, steps: int = 20) -> list[str]:
    grid = [part for axis in GRID for part in ("--grid", axis)]
    return ["sweep", "adding/enrnn", *ARGUMENTS, *grid, "--workers", "2", "--runs", str(runs), "--set", f"run.steps={steps}"]


def results(runs: Path) -> dict[str, int]:
    return {file.parent.name: file.stat().st_mtime_ns for file in runs.glob("*/result.json")}


def until(condition: object, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, "it has not come to pass"
        time.sleep(0.01)


def free(folder: Path) -> bool:
    try:
        with RunFolder(folder).lock():
            return True
    except RuntimeError:
        return False


@pytest.mark.slow
def test_a_driver_that_is_killed_leaves_no_worker_behind_and_another_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    driver = subprocess.Popen([sys.executable, "-m", "enrnn", *command(tmp_path)], stdout=subprocess.DEVNULL)
    until(lambda: len(results(tmp_path)) >= 3)
    driver.kill()
    driver.wait()
    until(lambda: all(free(file.parent) for file in tmp_path.glob("*/config.json")), 20)
    before = results(tmp_path)
    assert 3 <= len(before) < 24
    assert main(command(tmp_path)) == 0
    assert "24 points, 24 runs: 24 finished" in capsys.readouterr().out
    assert before.items() <= results(tmp_path).items()  # not a finished run was touched
    (file,) = tmp_path.glob("*/sweep.json")
    check_every_run_is_there_once(Sweep.read(file.parent))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_driver_that_is_interrupted_saves_its_runs(
    number: signal.Signals, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt() -> None:
        until(lambda: len(list(tmp_path.glob("*/metrics.jsonl"))) == 2)
        os.kill(os.getpid(), number)

    threading.Thread(target=interrupt, daemon=True).start()
    assert main(command(tmp_path, steps=1_000_000)) == 128 + number
    err = capsys.readouterr().err
    assert err == f"enrnn sweep: stopped by {number.name}; everything is saved, and the same command goes on from there\n"
    assert mp.active_children() == []
    folders = [file.parent for file in tmp_path.glob("*/config.json")]
    assert len(folders) == 2
    for folder in folders:
        assert free(folder)
        assert len(list((folder / "checkpoints").glob("*.ckpt"))) >= 1


def test_failed_runs_are_left_alone_until_a_retry(tmp_path: Path) -> None:
    sweep = small_sweep(tmp_path, ["optimizer.lr=1e30,1e-2"], base=BASE.override({"optimizer.name": "adam"}))
    runner = LocalRunner(tmp_path, workers=1)
    run_all(sweep, runner)
    file = sweep.trials[0].folder.path / "error.json"
    content = json.loads(file.read_text())
    assert content["error"] == "NotFiniteError"
    written = file.stat().st_mtime_ns
    run_all(sweep, runner)
    assert file.stat().st_mtime_ns == written
    run_all(sweep, runner, retry=True)
    assert file.stat().st_mtime_ns > written


def test_the_rungs_of_successive_halving() -> None:
    assert rungs(24, 3) == [(24, pytest.approx(1 / 9)), (8, pytest.approx(1 / 3)), (2, 1.0)]
    assert rungs(8, 2) == [(8, 0.125), (4, 0.25), (2, 0.5), (1, 1.0)]
    assert rungs(24, None) == rungs(24, 25) == [(24, 1.0)]


def test_halving_stops_bad_points_early_and_repeats_no_step(tmp_path: Path) -> None:
    sweep = small_sweep(tmp_path / "halving", ["optimizer.lr=1e-1,1e-2,1e-3,1e-4,1e-5,1e-6,1e-7,1e-8"])
    sweep.halving = 2
    rungs_seen = []

    def run(jobs: list) -> None:  # type: ignore[type-arg]
        rungs_seen.append([job.until for job in jobs])
        LocalRunner(sweep.runs, 2).run(jobs, lambda running: None)

    jobs_of(sweep, False, run)
    assert rungs_seen == [[3] * 8, [5] * 4, [10] * 2, [None]]
    steps = sorted(Standing(sweep).rows(), key=lambda row: row.step)
    # The first evaluation at or after 2.5, 5 and 10 steps: they come every four.
    assert [row.step for row in steps] == [4, 4, 4, 4, 8, 8, 12, 20]
    assert [row.status for row in steps].count("finished") == 1
    for row in steps:
        records = row.point.trials[0].folder.records()
        assert [record["step"] for record in records] == list(range(4, row.step + 1, 4))
    again: list[object] = []
    jobs_of(sweep, False, again.append)
    assert again == []


def test_a_promoted_run_is_the_run_that_was_never_stopped(tmp_path: Path) -> None:
    sweep = small_sweep(tmp_path / "halving", ["optimizer.lr=1e-2,1e-8"])
    sweep.halving = 2
    run_all(sweep, LocalRunner(sweep.runs, 2))
    finished = [trial for trial in sweep.trials if trial.folder.result is not None]
    assert len(finished) == 1
    train(finished[0].config, tmp_path / "alone")
    assert differences(outcome(finished[0].folder.path), outcome(tmp_path / "alone" / finished[0].folder.path.name)) == []


class Terminal:
    def __init__(self) -> None:
        self.text = ""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        pass


def test_the_live_table_is_best_first_and_gives_the_cursor_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = small_sweep(tmp_path, ["optimizer.lr=1e-8,1e-2"])
    terminal = Terminal()
    with LiveTable(Standing(sweep), terminal) as live:  # type: ignore[arg-type]
        jobs_of(sweep, False, lambda jobs: LocalRunner(tmp_path, 1).run(jobs, live.tick))
    frame = terminal.text.rpartition("A\x1b[2K")[2]
    assert frame.startswith("2 points, 2 runs: 2 finished")
    assert frame.index("1e-2") < frame.index("1e-8")
    assert terminal.text.count("\x1b[?25l") == terminal.text.count("\x1b[?25h") == 1
