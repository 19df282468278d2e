"""The same on a Ray cluster of two nodes: workers killed, a node lost, a driver killed; and what cannot work is said at once."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from enrnn.cli import main
from enrnn.sweep import RayRunner, Standing, Sweep, ray_runner
from enrnn.sweep._rungs import jobs_of
from enrnn.training import RunError
from tests._record import Recorder
from tests.sweep._small import ARGUMENTS, BASE, GRID, check_bits, check_every_run_is_there_once, small_sweep
from tests.sweep.test_local import free, results, until

pytest.importorskip("ray", reason="ray is not installed")

# Ray's: it leaves pipes and sockets of its processes to the garbage collector, and warns of its own settings to come.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning:ray"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray"),
]


class TwoNodes:
    """A cluster of two nodes of one CPU each on this machine, at addresses that do not leave it."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self.options = {"num_cpus": 1, "include_dashboard": False}
        self.cluster = Cluster(initialize_head=True, head_node_args={**self.options, "node_ip_address": "127.0.0.2"})
        self.second = self._another()

    def _another(self) -> Any:
        return self.cluster.add_node(node_ip_address="127.0.0.3", **self.options)

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def workers(self) -> list[int]:
        """The processes that do tasks: children of the nodes' raylets, by the title that Ray gives them while they do one."""
        raylets = {node.all_processes["raylet"][0].process.pid for node in self.cluster.list_all_nodes()}
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                if parent in raylets and (folder / "cmdline").read_bytes().startswith(b"ray::adding"):
                    found.append(int(folder.name))
        return found

    def lose_a_node(self) -> None:
        os.kill(self.second.all_processes["raylet"][0].process.pid, signal.SIGKILL)

    def replace_the_lost_node(self) -> None:
        self.cluster.remove_node(self.second, allow_graceful=False)
        self.second = self._another()


@pytest.fixture(scope="module")
def nodes() -> Iterator[TwoNodes]:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    cluster = TwoNodes()
    yield cluster
    cluster.cluster.shutdown()


@contextlib.contextmanager
def connected(sweep: Sweep, address: str, **options: Any) -> Iterator[RayRunner]:
    runner = ray_runner(sweep, address, **options)
    try:
        yield runner
    finally:
        runner.close()


def run_all(sweep: Sweep, runner: RayRunner) -> None:
    jobs_of(sweep, False, lambda jobs: runner.run(jobs, lambda running: None))


class Killer(threading.Thread):
    """Kills a busy worker now and then, and after so many kills a node, until it is stopped."""

    def __init__(self, nodes: TwoNodes, seed: int, mean: float, most: int, node_after: int | None = None) -> None:
        super().__init__(daemon=True)
        self.nodes, self.draw, self.mean, self.most, self.node_after = nodes, random.Random(seed), mean, most, node_after
        self.kills, self.over = 0, threading.Event()

    def run(self) -> None:
        while self.kills < self.most and not self.over.wait(self.draw.expovariate(1 / self.mean)):
            if workers := self.nodes.workers():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.draw.choice(workers), signal.SIGKILL)
                    self.kills += 1
                if self.kills == self.node_after:
                    self.nodes.lose_a_node()

    def __enter__(self) -> Killer:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.over.set()
        self.join()


@pytest.mark.slow
def test_a_killed_worker_costs_nothing_but_time(nodes: TwoNodes, tmp_path: Path) -> None:
    sweep = small_sweep(tmp_path / "runs", GRID[:1])
    with connected(sweep, nodes.address) as runner, Killer(nodes, 0, mean=0.05, most=1) as killer:
        run_all(sweep, runner)
    assert killer.kills == 1
    check_every_run_is_there_once(sweep)
    check_bits(sweep, tmp_path / "alone", every=1)


@pytest.mark.slow
def test_24_points_with_workers_killed_at_random_and_a_node_lost(nodes: TwoNodes, tmp_path: Path, record: Recorder) -> None:
    kills = compared = 0
    for seed in range(2):
        sweep = small_sweep(tmp_path / f"runs-{seed}")
        assert len(sweep.points) == 24
        killer = Killer(nodes, seed, mean=0.5, most=10, node_after=3)
        with connected(sweep, nodes.address, retries=1000) as runner, killer:
            run_all(sweep, runner)
        nodes.replace_the_lost_node()
        kills += killer.kills
        check_every_run_is_there_once(sweep)
        compared += check_bits(sweep, tmp_path / "alone", every=4)
        assert not list(sweep.runs.glob(".seen*"))
    counts = {"cases_points": 48, "cases_kills": kills, "cases_nodes_lost": 2, "cases_lost": 0, "cases_duplicated": 0}
    record(**counts, cases_same_bits=compared)
    assert kills >= 8


@pytest.mark.slow
def test_a_driver_that_is_killed_is_followed_by_another(nodes: TwoNodes, tmp_path: Path) -> None:
    grid = [part for axis in GRID for part in ("--grid", axis)]
    command = ["sweep", "adding/enrnn", *ARGUMENTS, *grid, "--runs", str(tmp_path), "--runner", "ray", "--address", nodes.address]
    driver = subprocess.Popen([sys.executable, "-m", "enrnn", *command], stdout=subprocess.DEVNULL)
    until(lambda: len(results(tmp_path)) >= 3)
    driver.kill()
    driver.wait()
    until(lambda: all(free(file.parent) for file in tmp_path.glob("*/config.json")), 30)
    before = results(tmp_path)
    assert 3 <= len(before) < 24
    again = subprocess.run([sys.executable, "-m", "enrnn", *command], capture_output=True, text=True, check=True)
    assert "24 points, 24 runs: 24 finished" in again.stdout
    assert before.items() <= results(tmp_path).items()
    (file,) = tmp_path.glob("*/sweep.json")
    check_every_run_is_there_once(Sweep.read(file.parent))


@pytest.mark.slow
def test_a_driver_that_is_interrupted_saves_its_runs(nodes: TwoNodes, tmp_path: Path) -> None:
    command = ["sweep", "adding/enrnn", *ARGUMENTS, "--grid", GRID[0], "--set", "run.steps=1000000", "--runs", str(tmp_path)]
    driver = subprocess.Popen(
        [sys.executable, "-m", "enrnn", *command, "--runner", "ray", "--address", nodes.address],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    until(lambda: len(list(tmp_path.glob("*/metrics.jsonl"))) == 2)
    driver.send_signal(signal.SIGINT)
    _, err = driver.communicate(timeout=60)
    assert (driver.returncode, err.count("\n")) == (130, 1)
    for file in tmp_path.glob("*/metrics.jsonl"):
        assert free(file.parent)
        assert list((file.parent / "checkpoints").glob("*.ckpt"))


@pytest.mark.slow
def test_halving_on_a_cluster_repeats_no_step(nodes: TwoNodes, tmp_path: Path) -> None:
    sweep = small_sweep(tmp_path, ["optimizer.lr=1e-2,1e-3,1e-4,1e-8"])
    sweep.halving = 2
    with connected(sweep, nodes.address) as runner:
        run_all(sweep, runner)
    assert sorted(row.step for row in Standing(sweep).rows()) == [8, 8, 12, 20]


@pytest.mark.slow
def test_runs_come_back_from_object_storage(nodes: TwoNodes, tmp_path: Path) -> None:
    storage = f"file://{tmp_path}/bucket"
    sweep = small_sweep(tmp_path / "runs", ["optimizer.lr=1e-2,1e-3,1e-4,1e-8"])
    sweep.halving = 2
    with connected(sweep, nodes.address, storage=storage) as runner:
        run_all(sweep, runner)
    assert sorted(row.step for row in Standing(sweep).rows()) == [8, 8, 12, 20]
    (finished,) = [trial for trial in sweep.trials if trial.folder.result is not None]
    assert (tmp_path / "bucket" / finished.folder.path.name / "result.json").exists()
    finished_alone = small_sweep(tmp_path / "other", ["optimizer.lr=1e-2"])
    assert finished.config.id == finished_alone.trials[0].config.id


@pytest.mark.slow
def test_a_failed_run_and_a_worker_that_always_dies(nodes: TwoNodes, tmp_path: Path) -> None:
    sweep = small_sweep(tmp_path, ["optimizer.lr=1e30,1e-2"], base=BASE.override({"optimizer.name": "adam"}))
    with connected(sweep, nodes.address) as runner:
        run_all(sweep, runner)
    assert [row.status for row in Standing(sweep).rows()] == ["finished", "failed"]
    endless = small_sweep(tmp_path / "endless", ["optimizer.lr=1e-2"], base=BASE.override({"run.steps": 1_000_000}))
    with connected(endless, nodes.address, retries=1) as runner, Killer(nodes, 0, mean=0.1, most=1000):
        run_all(endless, runner)
    (row,) = Standing(endless).rows()
    assert row.errors[0].startswith("WorkerCrashedError: ")


@pytest.mark.slow
def test_a_folder_that_not_all_nodes_see_is_said_before_anything_is_written(
    nodes: TwoNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    here = Path("/proc/self/cwd")  # another folder for every process that asks
    sweep = Sweep.of("adding/enrnn", BASE, here / "runs")
    with pytest.raises(RunError, match=r"the node .* does not see /proc/self/cwd/runs; name a folder that all nodes share"):
        ray_runner(sweep, nodes.address)
    assert list(tmp_path.iterdir()) == []


def test_an_address_where_nothing_is_is_said_within_seconds(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    command = ["sweep", "adding/enrnn", *ARGUMENTS, "--runs", str(tmp_path / "runs"), "--runner", "ray"]
    begin = time.monotonic()
    assert main([*command, "--address", "127.0.0.1:1"]) == 1
    assert time.monotonic() - begin < 5
    err = capsys.readouterr().err
    assert err.startswith("enrnn sweep: no Ray cluster at 127.0.0.1:1: ")
    assert err.count("\n") == 1
    for address in ("ray://127.0.0.1:1", "somewhere", "127.0.0.1:port"):
        assert main([*command, "--address", address]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_an_address_of_something_else_is_said_within_seconds(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        begin = time.monotonic()
        command = ["sweep", "adding/enrnn", *ARGUMENTS, "--runs", str(tmp_path / "runs"), "--runner", "ray"]
        assert main([*command, "--address", address]) == 1
    assert time.monotonic() - begin < 30
    assert capsys.readouterr().err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_cluster_without_room_is_said_before_anything_is_written(nodes: TwoNodes, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no node of the cluster has 7 CPUs and 0 GPUs for a run"):
        ray_runner(Sweep.of("adding/enrnn", BASE, tmp_path / "runs"), nodes.address, cpus=7)
    assert list(tmp_path.iterdir()) == []
