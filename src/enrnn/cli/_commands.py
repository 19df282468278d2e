"""The commands as ordinary functions, and what becomes of their errors."""

import argparse
import io
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from .. import training
from .._room import check_folder, check_room
from ..recipes import RECIPES, recipe
from ..tasks import TASKS
from . import FAILED, USAGE_ERROR
from ._errors import out_of_memory, words
from ._interrupts import INTERRUPTED, raising_again
from ._progress import Screen


def train(
    name: str, changes: Mapping[str, object] | None = None, device: str = "auto", runs: str | Path = "runs"
) -> dict[str, Any]:
    """Do the run of a recipe, with other settings at paths such as "optimizer.lr", and show how it goes."""
    chosen = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    config = recipe(name).override({"run.device": chosen, **(changes or {})})
    check_folder("--runs", runs)
    if not (Path(runs) / config.folder_name / "result.json").exists():  # which can be shown, wherever it is
        check_room("--runs", runs)
    with _screen() as screen:
        return training.train(config, runs, screen.watch(name))


def resume(run: str | Path, runs: str | Path = "runs") -> dict[str, Any]:
    """Go on with a run, and show how it goes."""
    check_folder("--runs", runs)
    with _screen() as screen:
        return training.resume(run, runs, screen.watch(""))


def changes(options: argparse.Namespace) -> dict[str, object]:
    """What `--set`, `--data` and `--text` say of a recipe's settings."""
    found: dict[str, object] = {}
    for change in options.changes:
        key, equals, value = change.partition("=")
        if not equals or not key:
            raise ValueError(f"--set takes KEY=VALUE, got: {change!r}")
        found[key] = value
    for name in ("data", "text"):
        if getattr(options, name) is not None:
            _check_taken(name, options.recipe)
            found[f"task.{name}"] = getattr(options, name)
    return found


def _check_taken(name: str, chosen: str) -> None:
    """An option for a task that has no such setting is a mistake, to be named as it was typed."""
    task = chosen.partition("/")[0]
    if chosen in RECIPES and not hasattr(TASKS[task], name):
        takers = [other for other, kind in TASKS.items() if hasattr(kind, name)]
        raise ValueError(f"--{name} is for {', '.join(takers)}, and {task} has no use for it; leave it out")


def reported(command: str, run: Callable[[], object]) -> int:
    """Call `run`; turn what goes wrong into one clear line and an exit status."""
    raising_again()
    try:
        run()
    except training.StoppedError as stopped:
        return _told(command, stopped, stopped.exit_code)
    except (training.NotFiniteError, training.RunError, training.DamagedError) as error:
        return _told(command, words(error), FAILED)
    except (ValueError, FileNotFoundError) as error:
        return _told(command, words(error), USAGE_ERROR)
    except OSError as error:
        return _told(command, words(error), FAILED)
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        return _told(command, words(error), FAILED)
    except KeyboardInterrupt:
        return _told(command, "interrupted", INTERRUPTED)
    return 0


def _screen() -> Screen:
    """Standard output; under torchrun, that of the first process alone."""
    return Screen() if os.environ.get("RANK", "0") == "0" else Screen(io.StringIO())


def _told(command: str, error: object, status: int) -> int:
    print(f"enrnn {command}: {error}", file=sys.stderr)
    return status
