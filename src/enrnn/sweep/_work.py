"""One run of a sweep in a worker's process, whoever has started that. What becomes of it is in the run's directory."""

import gc
import json
import os
import platform
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import torch

from .._memory import keep_freed_memory
from ..training import BusyError, Config, RunFolder, StoppedError, Watch, train
from ..training._container import replace
from ..training._watch import Watches
from ._outcome import ERROR

Ended = Literal["finished", "paused", "stopped", "busy", "failed"]

UNHEARD = 74
"""The status of a process that cannot even leave an error in the run's directory; whoever has started it says why (EX_IOERR)."""
LOST = 75
"""The status of a process that ends because it has lost its GPU; another can go on with its run (EX_TEMPFAIL)."""


@dataclass(frozen=True)
class Job:
    """A run to do under `runs`, to its end, or to its first evaluation at or after the step `until`."""

    config: Config
    until: int | None = None

    @property
    def name(self) -> str:
        return self.config.folder_name


def work(values: Mapping[str, Any], runs: str, until: int | None, watch: Watch | None = None) -> Ended:
    """Do the run, or go on with it. An error of its own is left in error.json; "busy": another process is at work on it.

    If the GPU is lost with the error, or the error cannot be left, this ends the process, which can do no other run either.
    """
    keep_freed_memory()
    config = Config.from_dict(values)
    pause = Pause(until)
    try:
        forget_error(config, Path(runs))
        train(config, runs, pause if watch is None else Watches(watch, pause))
    except StoppedError:
        return "paused" if pause.reached else "stopped"
    except BusyError:
        return "busy"
    except Exception as error:
        leave_error_or_end(config, Path(runs), type(error).__name__, str(error))
        end_if_lost(config.run.device)
        return "failed"
    finally:
        _tidy()
    return "finished"


def leave_error(config: Config, runs: Path, kind: str, message: str) -> None:
    """Write error.json, whole or not at all. Of a directory that is not what its name says, the error is just that."""
    folder = RunFolder(runs / config.folder_name)
    if not (folder.path / "config.json").exists():
        folder = RunFolder.create(config, runs)
    content = {
        "id": config.id,
        "error": kind,
        "message": " ".join(message.split()),
        "host": platform.node(),
        "process": os.getpid(),
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    replace(folder.path / ERROR, (json.dumps(content, indent=2) + "\n").encode())


def leave_error_or_end(config: Config, runs: Path, kind: str, message: str) -> None:
    """The same in a worker. If nothing can be written, the process ends without a word: its driver tries again, and says so."""
    try:
        leave_error(config, runs, kind, message)
    except OSError:
        raise SystemExit(UNHEARD) from None


def forget_error(config: Config, runs: Path) -> None:
    """The run is tried again."""
    (runs / config.folder_name / ERROR).unlink(missing_ok=True)


def end_if_lost(device: str) -> None:
    """End this process if CUDA no longer works in it: after a fault, for good; under MPS also after that of another process."""
    if not device.startswith("cuda") or (torch.device(device).index or 0) >= torch.cuda.device_count():
        return
    try:
        torch.cuda.synchronize(device)
    except Exception:
        os._exit(LOST)  # not by way of destructors, which would call CUDA


class Pause(Watch):
    """Stops a run, with a checkpoint, at its first evaluation at or after a step. It can go on from there as any other."""

    def __init__(self, until: int | None) -> None:
        self.until, self.reached = until, False

    def evaluated(self, record: dict[str, Any]) -> None:
        if self.until is not None and record["step"] >= self.until and not self.reached:
            self.reached = True
            signal.raise_signal(signal.SIGTERM)


def _tidy() -> None:
    """The runs beside this one on the GPU want its memory."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        gc.collect()
        torch.cuda.empty_cache()
