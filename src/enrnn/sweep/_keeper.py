"""Keeps a daemon of NVIDIA's MPS for a driver, and ends it when the driver lets go of it or has died, by whatever signal.

A script, not a module: it imports nothing of ours, so that it is up at once. Its standard input is a pipe whose other end the
driver alone has, and which so ends with the driver. It prints one line of JSON: the folder of the daemon's pipes, or why there is
no daemon.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CONTROL = "nvidia-cuda-mps-control"
STARTS, ENDS = 5.0, 600.0
"""Seconds for a daemon that was started to answer; and for one that was asked to end, which waits for those who use it."""
ROOM = 48
"""Bytes in the longest folder for temporary files that will do: the daemon has sockets there, with paths of 107 bytes at most."""


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _wait_for_the_driver)
    here = tempfile.gettempdir()
    folder = Path(tempfile.mkdtemp(prefix="enrnn-mps-", dir=here if len(os.fsencode(here)) <= ROOM else "/tmp"))
    # Before anything else: without them, it would be someone else's daemon that is ended here.
    os.environ |= {"CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"), "CUDA_MPS_LOG_DIRECTORY": str(folder / "log")}
    try:
        failure = _start(folder)
        print(json.dumps({"pipes": str(folder / "pipe")} if failure is None else {"failure": failure}), flush=True)
        if failure is None:
            sys.stdin.read()
    finally:
        _end()
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for_the_driver(number: int, frame: object) -> None:
    """What is sent to all processes of a job asks the driver to stop. Its workers may need the daemon until they have saved."""


def _start(folder: Path) -> str | None:
    for name in ("pipe", "log"):
        (folder / name).mkdir()
    said = folder / "said"
    with said.open("wb") as stream:  # not a pipe, which the daemon might keep open
        try:
            started = subprocess.run([CONTROL, "-d"], stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, timeout=30)
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
    if started.returncode == 0 and _becomes(answering=True, within=STARTS):
        return None
    lines = [line.strip() for line in said.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else f"the daemon has ended with status {started.returncode}, or does not answer"


def _end() -> None:
    """Ask for it, and wait: those who use it, where the driver was killed, have to save."""
    if _told("quit", ENDS):
        _becomes(answering=False, within=ENDS)


def _becomes(answering: bool, within: float) -> bool:
    end = time.monotonic() + within
    while _told("get_server_list", STARTS) != answering:
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def _told(command: str, timeout: float) -> bool:
    quiet = subprocess.DEVNULL
    try:
        told = subprocess.run([CONTROL], input=f"{command}\n", text=True, stdout=quiet, stderr=quiet, timeout=timeout)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return told.returncode == 0


if __name__ == "__main__":
    main()
