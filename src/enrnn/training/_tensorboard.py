"""A run for TensorBoard: what metrics.jsonl says, as events, in the folder `tensorboard` of the run's directory."""

import importlib.util
from typing import Any

from ._folder import RunFolder
from ._watch import Start, Watch

FOLDER = "tensorboard"
ABOUT = ("step", "split", "seconds")
"""What a record says that is not a curve of its own."""


def check_tensorboard() -> None:
    if importlib.util.find_spec("tensorboard") is None:
        raise ValueError("run.tensorboard needs the package tensorboard, which the extra enrnn[tensorboard] brings")


class TensorBoard(Watch):
    """Writes events for each record: `loss`, `test/mse` and the like, and ρ(T) under `spectrum`.

    The records are the truth. When a run goes on, its events are written anew from metrics.jsonl, which has been cut back to the
    checkpoint by then: no step is there twice, and a run that was begun without TensorBoard has all of its history.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

    def started(self, start: Start) -> None:
        from torch.utils.tensorboard import SummaryWriter

        events = self._folder.path / FOLDER
        for old in events.glob("events.out.tfevents.*"):
            old.unlink()
        self._writer = SummaryWriter(str(events))
        self._writer.add_text(
            "config", f"    {(self._folder.path / 'config.json').read_text().replace(chr(10), chr(10) + '    ')}"
        )
        for record in self._folder.records():
            self._write(record)
        self._writer.flush()

    def evaluated(self, record: dict[str, Any]) -> None:
        self._write(record)
        self._writer.flush()

    def finished(self, result: dict[str, Any]) -> None:
        self._writer.close()

    def _write(self, record: dict[str, Any]) -> None:
        for name, value in record.items():
            if name not in ABOUT and value is not None:
                self._writer.add_scalar(_tag(name, record["split"]), value, record["step"])


def _tag(name: str, split: str) -> str:
    if name in ("loss", "epoch"):
        return f"train/{name}"
    spectrum = ("spectral_radius", "switched_at", "fallbacks", "nearly_defective")
    return f"spectrum/{name}" if name in spectrum else f"{split}/{name}"
