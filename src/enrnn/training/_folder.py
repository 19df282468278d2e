"""A run's directory: config.json, metrics.jsonl, checkpoints/, result.json, and best.tensors at the end.

A task with relative paths has origin.json as well: the folder that they were given in, which is no part of what the run is.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .._nearest import nearest, shortly
from . import _container
from ._config import Config

ORIGIN = "origin.json"


class RunError(RuntimeError):
    """A run's directory cannot be used, for a reason that the message gives."""


class BusyError(RunError):
    """Another process is at work in a run's directory."""


class RunFolder:
    """The directory of one run, named by what it is and by its id. A process at work in it holds a lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.metrics = path / "metrics.jsonl"

    @staticmethod
    def create(config: Config, runs: Path) -> "RunFolder":
        """The directory of this configuration under `runs`, made if it is not there."""
        folder = RunFolder(runs / config.folder_name)
        folder.checkpoints.mkdir(parents=True, exist_ok=True)
        if config.task.beginning_at(Path.cwd()) != config.task and not (folder.path / ORIGIN).exists():
            folder._write_json(ORIGIN, {"folder": str(Path.cwd())})
        if not (folder.path / "config.json").exists():
            folder._write_json("config.json", {"id": config.id, **config.as_dict()})
        if folder.config().id != config.id:
            raise RunError(f"{folder.path} holds another run than its name says: config.json was changed")
        return folder

    @staticmethod
    def find(run: str | Path, runs: Path) -> "RunFolder":
        """A run by its directory, by its name under `runs`, or by the beginning of its name or id."""
        for path in (Path(run), runs / run):
            if (path / "config.json").is_file():
                return RunFolder(path)
        there = sorted(path.parent for path in runs.glob("*/config.json"))
        matching = [path for path in there if path.name.startswith(str(run)) or path.name.split("-")[-1].startswith(str(run))]
        if len(matching) == 1:
            return RunFolder(matching[0])
        if matching:
            found = shortly(path.name for path in matching)
            raise ValueError(f"several runs match {str(run)!r} under {runs}: {found}; give more of the name")
        names = [path.name for path in there]
        instead = nearest(str(run), names, f"there: {shortly(names)}") if names else "there is none"
        raise ValueError(f"no run is called {str(run)!r} under {runs}; {instead}")

    def config(self) -> Config:
        """The configuration, which must still have the id it was written with."""
        file = self.path / "config.json"
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
            identifier = values.pop("id")
            config = Config.from_dict(values)
        except (ValueError, KeyError, AttributeError) as error:
            raise RunError(f"{file} is damaged: {error}") from None
        if config.id != identifier:
            raise RunError(f"{file} was changed: its settings have the id {config.id[:12]}, but it says {str(identifier)[:12]}")
        return config

    @property
    def origin(self) -> Path:
        """The folder that relative paths of the task were given in; where nobody has written it down, the current one."""
        file = self.path / ORIGIN
        try:
            return Path(json.loads(file.read_text(encoding="utf-8"))["folder"])
        except FileNotFoundError:
            return Path.cwd()
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(f"{file} is damaged: {error}; without it, paths are taken from the current folder") from None

    @property
    def result(self) -> dict[str, Any] | None:
        """What a finished run came to; None while it is not finished."""
        file = self.path / "result.json"
        try:
            result: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            if not isinstance(result, dict) or "id" not in result:
                raise ValueError("it is not what a run comes to")
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise RunError(f"{file} is damaged: {error}; remove it, and the run goes on from its last checkpoint") from None
        return result

    def finish(self, result: dict[str, Any]) -> None:
        self._write_json("result.json", result)

    def add_record(self, record: dict[str, Any]) -> None:
        try:
            with self.metrics.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(record) + "\n")
        except OSError as error:
            raise type(error)(error.errno, f"cannot write {self.metrics.name}: {error.strerror}", str(self.path)) from None

    def records(self) -> list[dict[str, Any]]:
        text = self.metrics.read_text(encoding="utf-8") if self.metrics.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    def metrics_mark(self) -> dict[str, Any]:
        """How far metrics.jsonl has come, put on disk first: a checkpoint that points at it must not outlive it."""
        if not self.metrics.exists():
            self.metrics.touch()
        with self.metrics.open("rb") as stream:
            os.fsync(stream.fileno())
            content = stream.read()
        return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}

    def metrics_back_to(self, mark: dict[str, Any] | None) -> None:
        """Cut off what was written after a checkpoint: those steps are about to be done again."""
        content = self.metrics.read_bytes() if self.metrics.exists() else b""
        kept = content[: mark["bytes"] if mark else 0]
        if mark and hashlib.sha256(kept).hexdigest() != mark["sha256"]:
            raise RunError(f"{self.metrics} is not what it was when the checkpoint was written")
        if kept != content or not self.metrics.exists():
            _container.replace(self.metrics, kept)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """For this process alone. The system lets go of it when the process ends, however it ends."""
        try:
            import fcntl
        except ImportError:  # on Windows
            yield
            return
        with (self.path / ".lock").open("w") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise BusyError(f"another process is at work in {self.path}") from None
            yield

    def _write_json(self, name: str, content: dict[str, Any]) -> None:
        _container.replace(self.path / name, (json.dumps(content, indent=2) + "\n").encode())
