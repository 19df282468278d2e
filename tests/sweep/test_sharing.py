"""Several processes on one GPU, without a GPU: an MPS daemon is started for them, found by them, and ended whatever happens."""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from enrnn.recipes import recipe
from enrnn.sweep import Job, LocalRunner, Sweep, SweepStoppedError, _local, _mps, _sharing, _work, local_runner, run_sweep
from enrnn.sweep._local import least_used
from enrnn.sweep._processes import context_with
from enrnn.sweep._sharing import RUNS_A_GPU, by_default, shared
from tests.sweep import _mps as made_up
from tests.sweep._mps import UUIDS, FakeMps, told
from tests.sweep._small import BASE

ROOT = Path(__file__).resolve().parents[2]
IN_THIS_DRIVER = """
import sys, time
from enrnn.sweep import _mps
_mps.gpus = lambda environment=None, use=False: ["GPU-0"]
from enrnn.sweep._sharing import shared
sharing = shared(1, 2, 2)
print(sharing.environment["CUDA_MPS_PIPE_DIRECTORY"], flush=True)
time.sleep(60)
"""
IN_ANOTHER_DRIVER = """
import os, pathlib, sys
from enrnn.sweep import Job, LocalRunner, _local
from tests.sweep._mps import serve_and_tell
from tests.sweep._small import BASE
_local._serve = serve_and_tell
for seed, visible in enumerate(["1", None, "0"]):
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    if visible is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = visible
    LocalRunner(pathlib.Path(sys.argv[1]), 1).run([Job(BASE.override({"run.seed": seed}))], lambda running: None)
"""


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment in which nothing is said of GPUs."""
    for name in made_up.SEEN:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def mps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeMps]:
    with FakeMps.installed(tmp_path / "mps", monkeypatch) as fake:
        yield fake


@pytest.fixture
def without_mps(plain: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


def cuda_sweep(runs: Path, seeds: int, device: str = "cuda") -> Sweep:
    sweep = Sweep.of("adding/enrnn", BASE.override({"run.device": device}), runs)
    sweep.extend([{}], seeds)
    sweep.write()
    return sweep


def gone(condition: object, seconds: float = 20) -> bool:
    end = time.monotonic() + seconds
    while condition() and time.monotonic() < end:  # type: ignore[operator]
        time.sleep(0.02)
    return not condition()  # type: ignore[operator]


def test_a_daemon_is_started_for_them_and_ended_after_them(mps: FakeMps) -> None:
    before = dict(os.environ)
    with contextlib.closing(shared(1, 4, 10)) as sharing:
        assert sharing.words == "4 at a time on one GPU, through MPS"
        pipes = Path(sharing.environment["CUDA_MPS_PIPE_DIRECTORY"])
        assert pipes.is_dir()
        assert pipes.parent.stat().st_mode & 0o077 == 0
        assert mps.alive
        assert [call[0] for call in mps.calls] == ["start"]
        assert mps.calls[0][1:] == [str(pipes), str(pipes.with_name("log")), "all"]
    assert mps.calls[-1] == ["quit", str(pipes)]
    assert mps.has_ended()
    assert not pipes.parent.exists()
    assert dict(os.environ) == before


def test_one_process_a_gpu_needs_none(mps: FakeMps) -> None:
    assert shared(2, 2, 10).words == "2 at a time on 2 GPUs"
    assert shared(1, 8, 1) == (8, "1 at a time on one GPU", {}, None)
    assert mps.calls == []


def test_how_many_by_default(mps: FakeMps, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [by_default(gpus) for gpus in (1, 2, 4, 8)] == [6, 3, 1, 1]  # of eight cores
    monkeypatch.setattr(_sharing, "cores", lambda: 100)
    assert [by_default(gpus) for gpus in (1, 2)] == [RUNS_A_GPU, RUNS_A_GPU]
    with contextlib.closing(shared(2, None, 100)) as sharing:
        assert sharing.processes == 2 * RUNS_A_GPU


def test_without_mps_they_are_told_to_take_turns(without_mps: None) -> None:
    assert shared(1, None, 10) == (1, "1 at a time on one GPU", {}, None)
    words = "taking turns, as there is no nvidia-cuda-mps-control: that is hardly faster than one at a time"
    assert shared(1, 3, 10) == (3, f"3 at a time on one GPU, {words}", {}, None)


def test_a_daemon_that_does_not_start_is_done_without(mps: FakeMps) -> None:
    mps.breaks("some warning\nno permission to do this\n")
    assert shared(1, None, 10)[:3] == (1, "1 at a time on one GPU, as MPS could not be started (no permission to do this)", {})
    assert "taking turns, as MPS could not be started (no permission to do this):" in shared(1, 3, 10).words
    assert not any(Path(call[1]).parent.exists() for call in mps.calls)


def test_a_daemon_that_does_not_answer_is_done_without(mps: FakeMps) -> None:
    mps.starts_in_vain()
    assert "does not answer" in shared(1, 3, 10).words
    assert not Path(mps.calls[0][1]).parent.exists()


def test_a_daemon_through_which_no_gpu_is_seen_is_done_without(mps: FakeMps, monkeypatch: pytest.MonkeyPatch) -> None:
    def look(environment: dict[str, str] | None = None, use: bool = False) -> list[str]:
        assert use
        assert environment is not None
        assert mps.alive
        raise OSError("cuInit: CUDA_ERROR_MPS_CONNECTION_FAILED")

    monkeypatch.setattr(_mps, "gpus", look)
    sharing = shared(1, 3, 10)
    assert "MPS could not be started (cuInit: CUDA_ERROR_MPS_CONNECTION_FAILED)" in sharing.words
    assert sharing.environment == {}
    assert mps.has_ended()
    assert not Path(mps.calls[0][1]).parent.exists()


def test_where_the_driver_of_the_gpu_is_missing_that_is_the_reason(
    mps: FakeMps, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("PATH", f"{mps.bin}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(_mps, "__file__", str(tmp_path / "_mps.py"))
    shutil.copy(_sharing.__file__.replace("_sharing", "_keeper"), tmp_path)
    source = Path(_sharing.__file__.replace("_sharing", "_probe")).read_text()
    assert source.count("libcuda.so.1") == 1
    (tmp_path / "_probe.py").write_text(source.replace("libcuda.so.1", "libcuda-of-nowhere.so"))
    assert "MPS could not be started (OSError: libcuda-of-nowhere.so: " in shared(1, 3, 10).words


def test_a_daemon_that_the_user_names_is_theirs(mps: FakeMps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    assert f"taking turns, as no MPS daemon answers at {tmp_path}, which CUDA_MPS_PIPE_DIRECTORY names" in shared(1, 3, 10).words
    mps.is_running_already(tmp_path)
    assert shared(1, None, 10) == (6, "6 at a time on one GPU, through the MPS daemon that is running", {}, None)
    assert mps.calls == []


def test_a_named_daemon_outside_of_a_container_is_believed_in(without_mps: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/mps")
    assert "through the MPS daemon that is running" in shared(1, 3, 10).words


def test_a_daemon_that_is_running_is_used(mps: FakeMps) -> None:
    mps.is_running_already()
    assert shared(1, 3, 10) == (3, "3 at a time on one GPU, through the MPS daemon that is running", {}, None)
    assert mps.calls == []


def test_paths_are_short_enough_for_sockets(mps: FakeMps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    far = tmp_path / ("far" * 20)
    far.mkdir()
    monkeypatch.setenv("TMPDIR", str(far))
    with contextlib.closing(shared(1, 3, 10)) as sharing:
        assert len(sharing.environment["CUDA_MPS_PIPE_DIRECTORY"]) < 107 - len("/nvidia-cuda-mps-control.pid")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_daemon_does_not_outlive_its_driver(mps: FakeMps, number: int) -> None:
    driver = subprocess.Popen(
        [sys.executable, "-c", IN_THIS_DRIVER],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert driver.stdout is not None
    with driver.stdout as stream:
        pipes = Path(stream.readline().strip())
    assert mps.alive
    os.killpg(driver.pid, number)
    driver.wait()
    assert mps.has_ended()
    assert gone(pipes.parent.exists)
    assert mps.calls[-1] == ["quit", str(pipes)]


def test_what_keeps_it_does_not_heed_the_signals_of_its_driver(mps: FakeMps) -> None:
    with contextlib.closing(shared(1, 3, 10)) as sharing:
        assert sharing.daemon is not None
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            sharing.daemon.keeper.send_signal(number)
        time.sleep(0.2)
        assert mps.alive


def test_workers_find_the_daemon_though_their_server_was_started_before(
    mps: FakeMps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    process = context_with("enrnn.sweep._work").Process(target=int)
    process.start()  # and with it, the server
    process.join()
    monkeypatch.setattr(_local, "_serve", made_up.serve_and_tell)
    sweep = cuda_sweep(tmp_path / "runs", 4, "cuda:0")
    run_sweep(sweep, lambda: local_runner(sweep, 3))
    assert "1 point, 4 runs: 4 waiting; 3 at a time on one GPU, through MPS\n" in capsys.readouterr().out
    pipes = mps.calls[0][1]
    assert told(sweep.runs) == [dict.fromkeys(made_up.SEEN) | {"CUDA_MPS_PIPE_DIRECTORY": pipes}] * 4
    assert [call[0] for call in mps.calls] == ["start", "quit"]


def test_workers_see_what_the_driver_sees_now(plain: None, tmp_path: Path) -> None:
    """Not what it saw when their server was started: that was with GPU 1."""
    subprocess.run([sys.executable, "-c", IN_ANOTHER_DRIVER, str(tmp_path)], cwd=ROOT, check=True)
    assert [seen["CUDA_VISIBLE_DEVICES"] for seen in told(tmp_path)] == ["1", None, "0"]


@pytest.mark.parametrize(
    ("visible", "daemon", "workers"),
    [
        (None, "all", ["0", "1"]),
        ("6,7", ",".join(UUIDS), UUIDS),
        ("MIG-a,MIG-b", "MIG-a,MIG-b", ["MIG-a", "MIG-b"]),
    ],
)
def test_the_daemon_and_its_clients_mean_the_same_gpus(
    mps: FakeMps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str | None, daemon: str, workers: list[str]
) -> None:
    """A daemon numbers the GPUs that it sees from 0, whatever they are called outside."""
    monkeypatch.setattr(_local, "_serve", made_up.serve_and_tell)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    sweep = cuda_sweep(tmp_path / "runs", 6)
    run_sweep(sweep, lambda: local_runner(sweep, 3))
    assert mps.calls[0][3] == daemon
    assert {seen["CUDA_VISIBLE_DEVICES"] for seen in told(sweep.runs)} == set(workers)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_sweep_that_is_stopped_ends_its_daemon_after_its_workers(
    mps: FakeMps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(_local, "_serve", made_up.serve_until_stopped)
    sweep = cuda_sweep(tmp_path / "runs", 2, "cuda:0")
    at_the_end: list[int] = []

    def stop() -> None:
        assert gone(lambda: len(told(sweep.runs)) < 2, 60)
        os.kill(os.getpid(), number)

    threading.Thread(target=stop, daemon=True).start()
    end = _sharing.Sharing.close
    monkeypatch.setattr(_sharing.Sharing, "close", lambda self: (at_the_end.append(len(mp.active_children())), end(self)))
    with pytest.raises(SweepStoppedError):
        run_sweep(sweep, lambda: local_runner(sweep, 2))
    assert at_the_end == [0]
    assert mps.has_ended()


def test_a_run_whose_process_has_lost_its_gpu_is_gone_on_with(
    plain: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_local, "_serve", made_up.serve_without_gpu)
    monkeypatch.setattr(_local, "RECOVERY", 0.1)
    jobs = [Job(BASE.override({"run.seed": seed})) for seed in range(4)]
    LocalRunner(tmp_path, 2, retries=1).run(jobs, lambda running: None)
    assert len(told(tmp_path)) == 4
    assert len(list(tmp_path.glob("lost-*"))) == 4
    assert not list(tmp_path.glob("*/error.json"))


def test_a_worker_that_takes_anothers_place_takes_its_gpu() -> None:
    crew: list[int | None] = []
    for _ in range(6):
        crew.append(least_used(3, crew))
    assert sorted(map(str, crew)) == ["0", "0", "1", "1", "2", "2"]
    for gpu in (0, 2, 1):
        crew.remove(gpu)
        assert least_used(3, crew) == gpu
        crew.append(gpu)
    assert least_used(0, [None]) is None


class Ended(BaseException):
    pass


def ended(status: int) -> None:
    raise Ended(status)


def test_an_error_after_which_cuda_does_not_work_ends_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def train(*arguments: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    lost = False

    def synchronize(device: str) -> None:
        if lost:
            raise RuntimeError("CUDA error: the same again")

    monkeypatch.setattr(_work, "train", train)
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(os, "_exit", ended)
    config = recipe("adding/enrnn").override({"run.device": "cuda"})
    assert _work.work(config.as_dict(), str(tmp_path), None) == "failed"
    lost = True
    with pytest.raises(Ended, match="75"):
        _work.work(config.as_dict(), str(tmp_path), None)
    assert "illegal memory access" in (tmp_path / config.folder_name / "error.json").read_text()
    on_cpu = config.override({"run.device": "cpu"})
    assert _work.work(on_cpu.as_dict(), str(tmp_path), None) == "failed"
    not_there = config.override({"run.device": "cuda:1"})
    assert _work.work(not_there.as_dict(), str(tmp_path), None) == "failed"


def test_a_run_that_loses_its_gpu_again_and_again_has_failed_of_its_own_error(
    plain: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(BASE)
    runner = LocalRunner(tmp_path, 1, retries=1)
    _work.leave_error(job.config, tmp_path, "AcceleratorError", "an illegal memory access")
    assert runner._may_try_again(job, _work.LOST)
    assert not runner._may_try_again(job, _work.LOST)
    assert "an illegal memory access" in (tmp_path / job.name / "error.json").read_text()


@pytest.mark.gpu
def test_the_gpus_are_those_that_torch_sees() -> None:
    seen = [f"GPU-{torch.cuda.get_device_properties(number).uuid}" for number in range(torch.cuda.device_count())]
    assert _mps.gpus() == _mps.gpus(use=True) == seen


@pytest.mark.gpu
@pytest.mark.skipif(shutil.which(_mps.CONTROL) is None, reason="no MPS here")
def test_two_runs_through_a_daemon_of_ours(plain: None, tmp_path: Path) -> None:
    sweep = cuda_sweep(tmp_path, 2, "cuda:0")
    with contextlib.closing(local_runner(sweep, 2)) as runner:
        assert runner.about.startswith("2 at a time on one GPU, through ")
        runner.run([Job(trial.config) for trial in sweep.trials], lambda running: None)
    assert [trial.folder.result is not None for trial in sweep.trials] == [True, True]
