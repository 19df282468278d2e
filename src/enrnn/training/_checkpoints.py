"""The checkpoints of a run: the newest, and the one before it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from . import _container

KEPT = 2


class Checkpoints:
    """Files `step-….ckpt` in a folder. `say` is told, loudly, of what should not have happened."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self._folder, self._say = folder, say

    def save(self, step: int, about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Write one, and only when it is safely there remove those that are no longer needed."""
        self._folder.mkdir(parents=True, exist_ok=True)
        _container.write(self._folder / f"step-{step:012d}.ckpt", about, tensors)
        for old in self.files()[KEPT:]:
            old.unlink(missing_ok=True)
        for left_over in self._folder.glob(".*.part"):  # by a process that was killed in the middle of a save
            left_over.unlink(missing_ok=True)

    def newest(self) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
        """The newest one that is sound, or None if there is none at all; `DamagedError` if none of several is sound."""
        files = self.files()
        for file in files:
            try:
                return _container.read(file)
            except (_container.DamagedError, OSError) as error:
                self._say(f"WARNING: {error}. Going back to the checkpoint before it.")
        if files:
            raise _container.DamagedError(
                f"no checkpoint in {self._folder} can be read; to start the run anew, remove its folder"
            )
        return None

    def files(self) -> list[Path]:
        """The newest first."""
        return sorted(self._folder.glob("step-*.ckpt"), reverse=True)
