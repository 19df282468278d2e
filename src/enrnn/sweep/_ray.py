"""Runs over the machines of a Ray cluster, with Ray Core: a run is a task, with its CPUs and its share of a GPU.

Ray starts a task again when its worker or node is lost, and the run goes on from its last checkpoint. Everything a task leaves is
in the run's directory, so a task that is done twice finds its run finished.
"""

import json
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import __version__
from ..training import RunError
from ..training._signals import StopSignals
from ._local import BUSY, TICK, Tick
from ._stopped import SweepStoppedError
from ._storage import fetch, leave_token, read_token, remove_token, work_in_storage
from ._sweep import Sweep
from ._work import Job, leave_error, work

REACHED, ANSWERED, SEEN, SAVED = 3.0, 10.0, 120.0, 120.0
"""Seconds to wait for a connection; for Ray to answer on it; for every node to look at the storage; for runs to be saved."""


def ray_runner(
    sweep: Sweep,
    address: str | None = None,
    cpus: float | None = None,
    gpus: float | None = None,
    retries: int = 3,
    storage: str | None = None,
) -> "RayRunner":
    """Connect to a cluster (None: start one of this machine alone), and see that all its nodes can do the runs.

    Raises:
        ValueError: Ray is not installed, or what was asked for does not fit together.
        RunError: the cluster is not there, or has no room for a run, or a node does not see the storage.
    """
    run = sweep.base.run
    cpus = float(run.threads) if cpus is None else cpus
    gpus = float(run.device.startswith("cuda")) if gpus is None else gpus
    if cpus < 0 or gpus < 0 or (gpus > 1 and gpus != int(gpus)):
        raise ValueError(f"--cpus-per-run and --gpus-per-run must not be negative, nor 1.5 GPUs, got: {cpus:g} and {gpus:g}")
    if gpus and run.device != "cuda":
        raise ValueError(f"--gpus-per-run is for run.device=cuda, since Ray chooses which GPU; got: {run.device!r}")
    ray = _ray()
    place = storage if storage is not None else str(sweep.runs.absolute())
    try:
        _connect(ray, address)
        _check_room(ray, cpus, gpus)
        _check_nodes(ray, place)
    except BaseException:
        ray.shutdown()
        raise
    return RayRunner(ray, sweep.runs.absolute(), cpus, gpus, retries, storage)


@dataclass
class RayRunner:
    """An engine on a cluster that this process is connected to."""

    ray: Any
    runs: Path
    cpus: float
    gpus: float
    retries: int
    storage: str | None

    def __post_init__(self) -> None:
        # A process stays on the GPU it has begun with, so where Ray has several to give, each run gets a process of its own.
        several = self.gpus > 0 and any(node["Resources"].get("GPU", 0) > 1 for node in self.ray.nodes())
        self._remote = self.ray.remote(max_calls=1)(_task) if several else self.ray.remote(_task)

    @property
    def about(self) -> str:
        return ""

    def run(self, jobs: Sequence[Job], tick: Tick) -> None:
        """Do the jobs; return when all have ended. SIGINT or SIGTERM: save and stop them all, and raise."""
        pending = {self._submitted(job): job for job in jobs}
        later: list[tuple[float, Job]] = []
        with StopSignals() as signals:
            while (pending or later) and not signals.received:
                for reference in self._ready(pending):
                    job = pending.pop(reference)
                    if self._ended(reference, job) == "busy":
                        later.append((time.monotonic() + BUSY, job))
                now = time.monotonic()
                pending |= {self._submitted(job): job for earliest, job in later if earliest <= now}
                later = [(earliest, job) for earliest, job in later if earliest > now]
                tick({job.name for job in pending.values() if (self.runs / job.name).exists()})
            if signals.received:
                self._stop(list(pending))
                raise SweepStoppedError(signals.received)

    def _ready(self, pending: dict[Any, Job]) -> list[Any]:
        if not pending:
            time.sleep(TICK)
            return []
        ready: list[Any] = self.ray.wait(list(pending), timeout=TICK)[0]
        return ready

    def close(self) -> None:
        self.ray.shutdown()

    def _submitted(self, job: Job) -> Any:
        options = {"num_cpus": self.cpus, "num_gpus": self.gpus, "max_retries": self.retries, "name": job.name}
        task = self._remote.options(scheduling_strategy="SPREAD", **options)
        return task.remote(job.config.as_dict(), str(self.runs), self.storage, job.until)

    def _ended(self, reference: Any, job: Job) -> str:
        try:
            ended: str = self.ray.get(reference)
        except self.ray.exceptions.RayError as error:
            leave_error(job.config, self.runs, type(error).__name__, str(error).strip().splitlines()[-1])
            return "failed"
        if self.storage is not None and ended != "busy":
            fetch(self.storage, job.name, self.runs)
        return ended

    def _stop(self, references: list[Any]) -> None:
        """Ray's way to cancel a task is a SIGINT in its process, on which a run saves and stops."""
        for reference in references:
            self.ray.cancel(reference, force=False)
        if references:
            self.ray.wait(references, num_returns=len(references), timeout=SAVED)


def _task(values: dict[str, Any], runs: str, storage: str | None, until: int | None) -> str:
    return work(values, runs, until) if storage is None else work_in_storage(values, storage, until)


def _ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ModuleNotFoundError:
        raise ValueError("--runner ray needs Ray, which the extra enrnn[ray] brings") from None
    return ray


def _connect(ray: Any, address: str | None) -> None:
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "ignore_reinit_error": True}
    if address is None:
        ray.init(address="local", include_dashboard=False, _node_ip_address="127.0.0.1", **quiet)
        return
    if address.startswith("ray://"):
        raise ValueError(f"--address {address}: the driver must run on a machine of the cluster; give HOST:PORT of its head")
    if address != "auto":
        _reach(address)
    options = {"address": address, **quiet}
    host = address.rpartition(":")[0]
    if host.startswith("127.") and host != "127.0.0.1":  # for which Ray puts the machine's own address, and for others not
        options["_node_ip_address"] = host
    _ask(options)
    try:
        ray.init(**options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise RunError(f"no Ray cluster at {address}: {_last_line(str(error))}") from None


def _reach(address: str) -> None:
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit():
        raise ValueError(f"--address should be HOST:PORT or auto, got: {address!r}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACHED).close()
    except (OSError, OverflowError) as error:
        raise RunError(f"no Ray cluster at {address}: {error}") from None


def _ask(options: dict[str, Any]) -> None:
    """Try it in another process first: on a wrong address Ray waits for minutes, and may end the process that asks."""
    code, address = "import json, sys, ray; ray.init(**json.loads(sys.argv[1]))", options["address"]
    command = [sys.executable, "-c", code, json.dumps(options)]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=ANSWERED)
    except subprocess.TimeoutExpired:
        raise RunError(f"no Ray cluster at {address}: what is there has not answered in {ANSWERED:.0f} seconds") from None
    if asked.returncode != 0:
        raise RunError(f"no Ray cluster at {address}: {_last_line(asked.stderr)}")


def _check_room(ray: Any, cpus: float, gpus: float) -> None:
    """A task that fits on no node would wait for ever."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(node.get("CPU", 0) >= cpus and node.get("GPU", 0) >= gpus for node in nodes):
        there = "; ".join(f"{node.get('CPU', 0):g} CPUs, {node.get('GPU', 0):g} GPUs" for node in nodes)
        raise RunError(f"no node of the cluster has {cpus:g} CPUs and {gpus:g} GPUs for a run; there are: {there}")


def _check_nodes(ray: Any, place: str) -> None:
    """Every node must have this version of enrnn, and see in the storage what this process leaves there."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    name, text = f".seen-by-all-{uuid.uuid4().hex}", uuid.uuid4().hex
    made = None if "://" in place or Path(place).exists() else Path(place)
    leave_token(place, name, text)
    try:
        nodes = [node for node in ray.nodes() if node["Alive"]]
        look = ray.remote(_look)
        answers = {
            look.options(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote(
                place, name
            ): f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
            for node in nodes
        }
        for reference, node in answers.items():
            try:
                version, seen = ray.get(reference, timeout=SEEN)
            except ray.exceptions.RayError as error:
                raise RunError(f"the node {node} cannot do runs: {_last_line(str(error))}") from None
            if version != __version__:
                raise RunError(f"the node {node} has enrnn {version}, this one {__version__}; install the same on all")
            if seen != text:
                raise RunError(f"the node {node} does not see {place}; name a folder that all nodes share, or --storage URL")
        made = None
    finally:
        remove_token(place, name)
        if made is not None:
            with suppress(OSError):  # someone has put something there
                made.rmdir()


def _look(place: str, name: str) -> tuple[str, str | None]:
    return __version__, read_token(place, name)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it says nothing"
