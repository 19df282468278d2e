"""Events for TensorBoard: what metrics.jsonl says, once, whatever happened to the run on its way."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from enrnn.training import Config, RunFolder, Watch, Watches, resume, train
from tests.training._runs import differences, outcome, tiny

needs_tensorboard = pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="needs the package tensorboard")


class KilledError(Exception):
    pass


class KilledAt(Watch):
    def __init__(self, step: int) -> None:
        self.step = step

    def evaluated(self, record: dict[str, Any]) -> None:
        if record["step"] == self.step:
            raise KilledError


def events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """All scalars that are in the files, those included that TensorBoard would hide."""
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
    from tensorboard.util import tensor_util

    found: dict[str, list[tuple[int, float]]] = {}
    for file in sorted((folder / "tensorboard").iterdir()):
        for event in LegacyEventFileLoader(str(file)).Load():
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "scalars":
                    found.setdefault(value.tag, []).append((event.step, float(tensor_util.make_ndarray(value.tensor))))
                elif value.HasField("simple_value"):
                    found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found


def expected(config: Config, runs: Path) -> dict[str, list[tuple[int, float]]]:
    records = RunFolder(runs / config.folder_name).records()
    names = {"loss": "train/loss", "epoch": "train/epoch", "mse": "test/mse", "spectral_radius": "spectrum/spectral_radius"}
    names |= {name: f"spectrum/{name}" for name in ("switched_at", "fallbacks", "nearly_defective")}
    curves = {
        tag: [(r["step"], pytest.approx(r[name], rel=1e-6)) for r in records if r[name] is not None]
        for name, tag in names.items()
    }
    return {tag: curve for tag, curve in curves.items() if curve}


@needs_tensorboard
def test_the_events_are_the_records(tmp_path: Path) -> None:
    config = tiny(tensorboard=True)
    train(config, tmp_path)
    assert events(tmp_path / config.folder_name) == expected(config, tmp_path)
    assert json.loads((tmp_path / config.folder_name / "config.json").read_text())["run"]["tensorboard"] is True


@needs_tensorboard
def test_a_resumed_run_has_no_event_twice(tmp_path: Path) -> None:
    config = tiny(tensorboard=True)
    with pytest.raises(KilledError):
        train(config, tmp_path, KilledAt(16))
    resume(config.folder_name, tmp_path)
    found = events(tmp_path / config.folder_name)
    assert [step for step, _ in found["test/mse"]] == [4, 8, 12, 16, 20, 24, 25]
    assert found == expected(config, tmp_path)
    assert len(list((tmp_path / config.folder_name / "tensorboard").iterdir())) == 1


@needs_tensorboard
def test_a_run_that_was_begun_without_has_all_of_its_history(tmp_path: Path) -> None:
    with pytest.raises(KilledError):
        train(tiny(), tmp_path, KilledAt(16))
    train(tiny(tensorboard=True), tmp_path)
    assert events(tmp_path / tiny().folder_name) == expected(tiny(), tmp_path)


@needs_tensorboard
def test_it_changes_no_digit_of_the_run(tmp_path: Path) -> None:
    assert tiny(tensorboard=True).id == tiny().id
    train(tiny(), tmp_path / "without")
    train(tiny(tensorboard=True), tmp_path / "with")
    assert differences(*(outcome(tmp_path / name / tiny().folder_name) for name in ("without", "with"))) == []


def test_a_missing_package_is_named_before_there_is_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"needs the package tensorboard, which the extra enrnn\[tensorboard\] brings"):
        train(tiny(tensorboard=True), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_several_watchers_all_hear_everything(tmp_path: Path) -> None:
    heard: list[list[str]] = [[], []]

    def watcher(notes: list[str]) -> Watch:
        watch = Watch()
        for name in ("started", "advanced", "evaluated", "said", "finished"):
            setattr(watch, name, lambda about, name=name: notes.append(name))
        return watch

    train(tiny(), tmp_path, Watches(*map(watcher, heard)))
    train(tiny(), tmp_path, Watches(*map(watcher, heard)))
    assert heard[0] == heard[1]
    assert set(heard[0]) == {"started", "advanced", "evaluated", "said", "finished"}
