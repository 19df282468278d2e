"""The commands as ordinary functions, and what becomes of their errors."""

import io
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from .. import training
from ..recipes import recipe
from . import FAILED, USAGE_ERROR
from ._progress import Screen


def train(
    name: str, changes: Mapping[str, object] | None = None, device: str = "auto", runs: str | Path = "runs"
) -> dict[str, Any]:
    """Do the run of a recipe, with other settings at paths such as "optimizer.lr", and show how it goes."""
    chosen = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    config = recipe(name).override({"run.device": chosen, **(changes or {})})
    with _screen() as screen:
        return training.train(config, runs, screen.watch(name))


def resume(run: str | Path, runs: str | Path = "runs") -> dict[str, Any]:
    """Go on with a run, and show how it goes."""
    with _screen() as screen:
        return training.resume(run, runs, screen.watch(""))


def reported(command: str, run: Callable[[], object]) -> int:
    """Call `run`; turn what goes wrong into one clear line and an exit status."""
    try:
        run()
    except training.StoppedError as stopped:
        return _told(command, stopped, stopped.exit_code)
    except (training.NotFiniteError, training.RunError, training.DamagedError) as error:
        return _told(command, error, FAILED)
    except (ValueError, FileNotFoundError) as error:
        return _told(command, error, USAGE_ERROR)
    except OSError as error:
        return _told(command, error.strerror if error.strerror else error, FAILED)
    except KeyboardInterrupt:
        return _told(command, "interrupted", 130)
    return 0


def _screen() -> Screen:
    """Standard output; under torchrun, that of the first process alone."""
    return Screen() if os.environ.get("RANK", "0") == "0" else Screen(io.StringIO())


def _told(command: str, error: object, status: int) -> int:
    print(f"enrnn {command}: {error}", file=sys.stderr)
    return status
