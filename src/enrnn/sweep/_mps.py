"""NVIDIA's Multi-Process Service: without it the kernels of two processes on one GPU take turns, with it they run side by side.

A daemon stands between the processes and the GPU. A process finds it, when CUDA starts there, by the folder of its pipes.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

CONTROL = "nvidia-cuda-mps-control"
PIPES, VISIBLE = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_VISIBLE_DEVICES"
ANSWER = 60.0
"""Seconds for a daemon or a GPU to answer; the first process under MPS waits for a server to start."""


class NoDaemonError(Exception):
    """There is no daemon to share a GPU through. Says why, as the end of a sentence."""


class Daemon(NamedTuple):
    """One that was started for this process. `environment`: what those that are to use it must have in theirs."""

    environment: dict[str, str]
    keeper: subprocess.Popen[str]

    def close(self) -> None:
        """Its clients must have ended. If this process is killed before, the daemon ends by itself as soon as they have."""
        assert self.keeper.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.keeper.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.keeper.wait(ANSWER)


def there() -> bool:
    """Whether this machine may have MPS."""
    return bool(os.environ.get(PIPES)) or shutil.which(CONTROL) is not None


def daemon() -> Daemon | None:
    """One of our own, or None where a process started from this one finds another's: it has their variable, or their default.

    Raises:
        NoDaemonError: there is none, and none can be started.
    """
    named = os.environ.get(PIPES)
    if shutil.which(CONTROL) is None:
        if named:  # by a container whose machine has the daemon
            return None
        raise NoDaemonError(f"there is no {CONTROL}")
    if _answers():
        return None
    if named:
        raise NoDaemonError(f"no MPS daemon answers at {named}, which {PIPES} names")
    try:
        return _started()
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise NoDaemonError(f"MPS could not be started ({error})") from None


def gpus(environment: dict[str, str] | None = None, use: bool = False) -> list[str]:
    """The UUIDs of the GPUs that a process with such an environment sees, or, with `use`, can begin to work on."""
    command = [sys.executable, "-I", str(Path(__file__).with_name("_probe.py")), *(["use"] if use else [])]
    asked = subprocess.run(command, env=os.environ | (environment or {}), capture_output=True, text=True, timeout=ANSWER)
    if asked.returncode != 0:
        raise OSError((asked.stderr.strip().splitlines() or [f"status {asked.returncode}"])[-1])
    return asked.stdout.split()


def _answers() -> bool:
    quiet = subprocess.DEVNULL
    try:
        asked = subprocess.run([CONTROL], input="get_server_list\n", text=True, stdout=quiet, stderr=quiet, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0


def _started() -> Daemon:
    # A daemon that sees GPUs 2 and 3 shows them to its clients as 0 and 1. UUIDs are the same for both.
    visible = os.environ.get(VISIBLE)
    by_number = visible is not None and all(part.strip().isdigit() for part in visible.split(","))
    environment = {VISIBLE: ",".join(gpus())} if by_number else {}
    keeper = subprocess.Popen(
        [sys.executable, "-I", str(Path(__file__).with_name("_keeper.py"))],
        env=os.environ | environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,  # the terminal's Ctrl-C is for the driver
    )
    started = Daemon(environment, keeper)
    try:
        assert keeper.stdout is not None
        with keeper.stdout as stream:
            answer = json.loads(stream.readline() or '{"failure": "what should keep it has died"}')
        if "failure" in answer:
            raise OSError(answer["failure"])
        environment[PIPES] = answer["pipes"]
        gpus(environment, use=True)
    except BaseException:
        started.close()
        raise
    return started
