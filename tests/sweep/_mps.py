"""A made-up machine with MPS: a program that answers as nvidia-cuda-mps-control does, and workers that tell what they see."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch

from enrnn.sweep import _local, _mps, _sharing
from enrnn.training import Config

UUIDS = ["GPU-00000000-0000-0000-0000-000000000000", "GPU-11111111-1111-1111-1111-111111111111"]
SEEN = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY", "CUDA_VISIBLE_DEVICES")

CONTROL = """\
#!/bin/sh
pipes=${{CUDA_MPS_PIPE_DIRECTORY:-{default}}}
if [ "$1" = -d ]; then
    echo "start $pipes $CUDA_MPS_LOG_DIRECTORY ${{CUDA_VISIBLE_DEVICES:-all}}" >> {calls}
    if [ -e {broken} ]; then cat {broken} >&2; exit 1; fi
    if [ -e {silent} ]; then exit 0; fi
    sleep 120 &  # and it keeps what it was given as output
    echo $! > "$pipes/pid"
    echo $! > {daemon}
    exit 0
fi
if [ ! -e "$pipes/pid" ]; then echo "Cannot find MPS control daemon process"; exit 1; fi
read command
if [ "$command" = quit ]; then
    echo "quit $pipes" >> {calls}
    kill "$(cat "$pipes/pid")" && rm "$pipes/pid"
fi
exit 0
"""


class FakeMps:
    """The program in `bin`, and what was done with it. `default` is where a daemon is that was started without our variables."""

    def __init__(self, folder: Path) -> None:
        self.bin, self.default = folder / "bin", folder / "no-folder-named"
        self._files = {name: folder / name for name in ("calls", "broken", "silent", "daemon")}
        for made in (self.bin, self.default):
            made.mkdir(parents=True)
        program = self.bin / "nvidia-cuda-mps-control"
        program.write_text(CONTROL.format(default=self.default, **self._files))
        program.chmod(0o755)

    @classmethod
    @contextmanager
    def installed(cls, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeMps]:
        """The machine has it, two GPUs, eight cores, and nothing about GPUs in its environment. At the end no daemon is left."""
        fake = cls(folder)
        for name in SEEN:
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("PATH", f"{fake.bin}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setattr(_mps, "gpus", lambda environment=None, use=False: UUIDS)
        monkeypatch.setattr(_sharing, "cores", lambda: 8)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        yield fake
        assert fake.has_ended()

    def breaks(self, says: str) -> None:
        self._files["broken"].write_text(says)

    def starts_in_vain(self) -> None:
        self._files["silent"].touch()

    def is_running_already(self, folder: Path | None = None) -> None:
        ((folder or self.default) / "pid").write_text("0")

    @property
    def calls(self) -> list[list[str]]:
        return [line.split() for line in self._files["calls"].read_text().splitlines()] if self._files["calls"].exists() else []

    @property
    def alive(self) -> bool:
        """Whether the daemon that was started last is still there."""
        try:
            process = int(self._files["daemon"].read_text())
            os.kill(process, 0)
            # It belongs to the machine's first process, which in a container may never look after it.
            return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except (FileNotFoundError, ProcessLookupError):
            return False

    def has_ended(self) -> bool:
        """Wait for it."""
        end = time.monotonic() + 20
        while self.alive and time.monotonic() < end:
            time.sleep(0.02)
        return not self.alive


def serve_and_tell(pipe: Connection, gpu: int | None, environment: Mapping[str, str | None]) -> None:
    """A worker of a sweep as it is, but that a run is to write down what CUDA would see."""
    _local.work = tell  # type: ignore[assignment]
    _local._serve(pipe, gpu, environment)


def serve_until_stopped(pipe: Connection, gpu: int | None, environment: Mapping[str, str | None]) -> None:
    _local.work = _tell_and_wait  # type: ignore[assignment]
    _local._serve(pipe, gpu, environment)


def serve_without_gpu(pipe: Connection, gpu: int | None, environment: Mapping[str, str | None]) -> None:
    """A worker that loses its GPU with the first run that it is given, unless the run has lost one before."""
    _local.work = lose_once  # type: ignore[assignment]
    _local._serve(pipe, gpu, environment)


def told(runs: Path) -> list[dict[str, str | None]]:
    """What the workers have seen, run by run."""
    return [json.loads(file.read_text()) for file in sorted(runs.glob("told-*.json"))]


def tell(values: Mapping[str, Any], runs: str, until: int | None) -> str:
    file = Path(runs) / f"told-{values['run']['seed']}.json"
    file.with_suffix(".part").write_text(json.dumps({name: os.environ.get(name) for name in SEEN}))
    file.with_suffix(".part").rename(file)
    return "finished"


def _tell_and_wait(values: Mapping[str, Any], runs: str, until: int | None) -> str:
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopped.append(number))
    tell(values, runs, until)
    while not stopped:
        time.sleep(0.01)
    return "stopped"


def lose_once(values: Mapping[str, Any], runs: str, until: int | None) -> str:
    lost = Path(runs) / f"lost-{values['run']['seed']}"
    if not lost.exists():
        lost.touch()
        _local.leave_error(Config.from_dict(values), Path(runs), "AcceleratorError", "the GPU is lost")
        os._exit(_local.LOST)
    return tell(values, runs, until)
