"""A run from its beginning to its end: what is in its directory, what is chosen, and what is never done twice."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from enrnn.tasks import Characters, characters
from enrnn.tasks._text import Corpus
from enrnn.training import (
    Config,
    ModelSettings,
    OptimizerSettings,
    Progress,
    RunError,
    RunFolder,
    Start,
    Watch,
    evaluate,
    load_model,
    resume,
    train,
)
from enrnn.training import _loop as loop_module
from enrnn.training._graph import Replayed
from enrnn.training._step import Step
from tests.training._runs import COPYING, differences, outcome, text_task, tiny


class Notes(Watch):
    def __init__(self) -> None:
        self.starts: list[Start] = []
        self.progress: list[Progress] = []
        self.records: list[dict[str, Any]] = []
        self.messages: list[str] = []
        self.results: list[dict[str, Any]] = []

    def started(self, start: Start) -> None:
        self.starts.append(start)

    def advanced(self, progress: Progress) -> None:
        self.progress.append(progress)

    def evaluated(self, record: dict[str, Any]) -> None:
        self.records.append(record)

    def said(self, message: str) -> None:
        self.messages.append(message)

    def finished(self, result: dict[str, Any]) -> None:
        self.results.append(result)


def test_a_run_leaves_its_configuration_its_metrics_its_checkpoints_and_its_result(tmp_path: Path) -> None:
    config, notes = tiny(), Notes()
    result = train(config, tmp_path, notes)
    folder = tmp_path / config.folder_name
    assert sorted(path.name for path in folder.iterdir()) == [
        ".lock",
        "best.tensors",
        "checkpoints",
        "config.json",
        "metrics.jsonl",
        "result.json",
    ]
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == [
        "step-000000000021.ckpt",
        "step-000000000025.ckpt",
    ]
    assert json.loads((folder / "config.json").read_text()) == {"id": config.id, **config.as_dict()}
    assert json.loads((folder / "result.json").read_text()) == result
    records = RunFolder(folder).records()
    assert records == notes.records
    assert [record["step"] for record in records] == [4, 8, 12, 16, 20, 24, 25]
    assert [record["epoch"] for record in records] == [0, 0, 1, 1, 1, 2, 2]
    assert list(records[0]) == [
        *("step", "epoch", "loss", "split", "mse"),
        *("spectral_radius", "switched_at", "fallbacks", "nearly_defective", "seconds"),
    ]
    assert result["last"]["test"]["mse"] == records[-1]["mse"]
    assert result["best"]["value"] == min(record["mse"] for record in records)
    (start,) = notes.starts
    assert (start.steps, start.done, start.metric, start.parameters) == (25, 0, "mse", result["parameters"])
    assert notes.results == [result]
    assert notes.progress[0].done == 1


def test_a_run_is_the_same_when_it_is_done_again_elsewhere_and_leaves_torchs_generator_alone(tmp_path: Path) -> None:
    torch.manual_seed(11)
    state = torch.get_rng_state()
    train(tiny(), tmp_path / "one")
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(12)
    train(tiny(), tmp_path / "other")
    name = tiny().folder_name
    assert differences(outcome(tmp_path / "one" / name), outcome(tmp_path / "other" / name)) == []


def test_a_finished_run_is_not_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = train(tiny(), tmp_path)
    monkeypatch.setattr(Step, "plain", lambda self: pytest.fail("a step was done"))
    notes = Notes()
    assert train(tiny(), tmp_path, notes) == result
    assert resume(tiny().folder_name, tmp_path) == result
    assert "this run is finished" in notes.messages[0]
    assert notes.results == [result]


def test_another_seed_is_another_run(tmp_path: Path) -> None:
    losses = {train(tiny(seed=seed), tmp_path)["last"]["test"]["mse"] for seed in range(3)}
    assert len(losses) == 3
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("optimizer", ["adam", "adagrad", "rmsprop"])
def test_every_optimizer_learns(optimizer: str, tmp_path: Path) -> None:
    config = tiny(optimizer=OptimizerSettings(optimizer, lr=1e-2), steps=60, evaluate_every=20)
    train(config, tmp_path)
    first, *_, last = RunFolder(tmp_path / config.folder_name).records()
    assert last["loss"] < first["loss"]


def test_the_best_on_validation_is_kept_and_scored_on_the_test(tmp_path: Path) -> None:
    config = tiny(text_task(tmp_path), ModelSettings("lstm", hidden_size=8), OptimizerSettings("adam", lr=0.5), steps=40)
    result = train(config, tmp_path)
    records = RunFolder(tmp_path / config.folder_name).records()
    assert {record["split"] for record in records} == {"valid"}
    best = min(records, key=lambda record: record["bits_per_character"])
    assert result["best"] == {"step": best["step"], "value": best["bits_per_character"]}
    assert result["chosen"]["valid"]["bits_per_character"] == best["bits_per_character"]
    assert result["last"]["valid"]["bits_per_character"] == records[-1]["bits_per_character"]
    model = load_model(tmp_path / config.folder_name)
    assert evaluate(model, config.task.load(), "test") == result["chosen"]["test"]


def test_longer_pieces_in_evaluation_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny(text_task(tmp_path), ModelSettings("enrnn", hidden_size=12, short_size=4), steps=20)
    train(config, tmp_path)
    model, at_once = load_model(tmp_path / config.folder_name), config.task.load()
    monkeypatch.setattr(characters, "AT_ONCE", 1)
    in_pieces = config.task.load()
    assert len(in_pieces.order("test")) > len(at_once.order("test"))
    found, expected = evaluate(model, at_once, "test"), evaluate(model, in_pieces, "test")
    assert found == pytest.approx(expected, rel=1e-5)


def test_a_run_of_epochs_is_evaluated_and_saved_once_an_epoch(tmp_path: Path) -> None:
    config = dataclasses.replace(tiny(COPYING), run=tiny().run.__class__(epochs=3))
    train(config, tmp_path)
    folder = RunFolder(tmp_path / config.folder_name)
    assert [record["step"] for record in folder.records()] == [3, 6, 9]
    assert [record["epoch"] for record in folder.records()] == [0, 1, 2]


def test_rates_fall_after_each_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = []
    plain = Step.plain

    def noted(step: Step) -> None:
        rates.append(step.optimizers[0].param_groups[0]["lr"])
        plain(step)

    monkeypatch.setattr(Step, "plain", noted)
    train(tiny(optimizer=OptimizerSettings(lr=1.0, lr_decay=0.5), steps=21, evaluate_every=21), tmp_path)
    assert rates == [1.0] * 10 + [0.5] * 10 + [0.25]


def test_a_run_by_guarded_steps_is_the_run_by_plain_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU does, but for the graph itself: many steps between looks, on the same tensors."""
    config = tiny(steps=32, evaluate_every=8, checkpoint_every=11)
    train(config, tmp_path / "plain")
    monkeypatch.setattr(loop_module.Loop, "_runner", lambda loop: Replayed(loop.step, loop.step.guarded))
    monkeypatch.setattr(loop_module.Loop, "_next_stop", lambda loop: min(loop.steps, *_boundaries(loop)))
    train(config, tmp_path / "guarded")
    one, other = (outcome(tmp_path / which / config.folder_name) for which in ("plain", "guarded"))
    assert differences(one, other) == []


def _boundaries(loop: Any) -> list[int]:
    return [(loop.done // every + 1) * every for every in (loop.evaluate_every, loop.checkpoint_every, loop.per_epoch)]


def test_a_run_is_found_by_the_beginning_of_its_name_or_id(tmp_path: Path) -> None:
    configs = [tiny(seed=seed, steps=2) for seed in (0, 1)]
    for config in configs:
        RunFolder.create(config, tmp_path)
    for name in (configs[0].id[:8], configs[0].folder_name[:-4], str(tmp_path / configs[0].folder_name)):
        assert RunFolder.find(name, tmp_path).config() == configs[0]
    with pytest.raises(ValueError, match="several runs match 'adding'"):
        RunFolder.find("adding", tmp_path)
    with pytest.raises(
        ValueError, match=f"no run is called 'copying' under .*; there: adding-enrnn-{min(c.id for c in configs)[:12]}"
    ):
        RunFolder.find("copying", tmp_path)


def test_two_processes_do_not_work_in_one_directory(tmp_path: Path) -> None:
    with RunFolder.create(tiny(), tmp_path).lock(), pytest.raises(RunError, match="another process is at work in"):
        train(tiny(), tmp_path)


def test_a_configuration_that_was_changed_by_hand_is_refused(tmp_path: Path) -> None:
    folder = RunFolder.create(tiny(), tmp_path)
    file = folder.path / "config.json"
    file.write_text(file.read_text().replace('"hidden_size": 6', '"hidden_size": 7'))
    with pytest.raises(RunError, match=r"config\.json was changed"):
        resume(folder.path)
    file.write_text("{")
    with pytest.raises(RunError, match=r"config\.json is damaged"):
        resume(folder.path)


def test_a_model_of_an_unfinished_run_is_refused(tmp_path: Path) -> None:
    folder = RunFolder.create(tiny(), tmp_path)
    with pytest.raises(RunError, match="is not finished"):
        load_model(folder.path)


def test_data_that_have_changed_are_noticed(tmp_path: Path) -> None:
    config = tiny(text_task(tmp_path), steps=20)
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path, _StopAt(12))
    assert isinstance(config.task, Characters)
    Path(str(config.task.text)).write_text("another text. " * 200)
    with pytest.raises(RunError, match="the data are not those that the run was begun with"):
        train(config, tmp_path)


def test_a_finished_run_is_that_of_its_data_alone(tmp_path: Path) -> None:
    config = tiny(text_task(tmp_path), steps=8)
    result = train(config, tmp_path)
    text = Path(str(config.task.text))  # type: ignore[attr-defined]
    content = text.read_text()
    text.write_text("another text. " * 200)
    for again in (lambda: train(config, tmp_path), lambda: resume(config.folder_name, tmp_path)):
        with pytest.raises(RunError, match="the data are not those that the run was begun with"):
            again()
    text.unlink()
    notes = Notes()
    assert train(config, tmp_path, notes) == result  # it is finished, whatever has become of its data
    assert "cannot be seen: no such text file" in notes.messages[0]
    text.write_text(content)
    assert train(config, tmp_path) == result


def test_a_stand_in_is_told_first_and_the_result_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ENRNN_DATA", raising=False)
    corpus = Corpus("a small library", {"train": "abc" * 40, "valid": "abc", "test": "cab"})
    monkeypatch.setattr(characters, "standard_library", lambda: corpus)
    config, notes = tiny(Characters(length=5, batch_size=4), steps=4), Notes()
    result = train(config, tmp_path, notes)
    assert notes.messages[0].startswith("WARNING: no data are named, so the text is a stand-in")
    assert notes.starts[0].data == result["data"] == "a small library"
    assert json.loads((tmp_path / config.folder_name / "result.json").read_text())["data"] == "a small library"
    chosen = Notes()
    train(tiny(Characters(corpus="python", length=5, batch_size=4), steps=4), tmp_path, chosen)
    assert chosen.messages == []


def test_a_relative_path_is_of_the_folder_that_the_run_was_begun_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("here", "elsewhere"):
        (tmp_path / name).mkdir()
    text_task(tmp_path / "here")
    config, runs = tiny(Characters(text="text.txt", length=5, batch_size=4), steps=12), tmp_path / "runs"
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(KeyboardInterrupt):
        train(config, runs, _StopAt(8))
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(FileNotFoundError, match=r"no such text file: text\.txt"):
        train(config, runs)  # in which the path is what was given just now
    result = resume(config.folder_name, runs)
    assert (result["steps"], result["data"]) == (12, str(tmp_path / "here" / "text.txt"))
    assert RunFolder(runs / config.folder_name).config() == config
    assert load_model(runs / config.folder_name).num_parameters() == result["parameters"]


@pytest.mark.parametrize("task", [Characters(text="no such file"), Characters(data="no such folder")])
def test_data_that_cannot_be_read_leave_no_directory_behind(task: Characters, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such"):
        train(tiny(task), tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_a_backend_that_cannot_run_leaves_no_directory_behind(tmp_path: Path) -> None:
    config = tiny(model=ModelSettings(hidden_size=6, short_size=3, backend="cuda"))
    with pytest.raises(ValueError, match="backend='cuda' cannot run this"):
        train(config, tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '"id"', "3", "\0"])
def test_a_damaged_result_is_refused_with_a_way_out(content: str, tmp_path: Path) -> None:
    config = tiny(steps=8)
    train(config, tmp_path)
    expected = outcome(tmp_path / config.folder_name)
    file = tmp_path / config.folder_name / "result.json"
    file.write_text(content)
    for again in (lambda: train(config, tmp_path), lambda: resume(config.folder_name, tmp_path)):
        with pytest.raises(
            RunError, match=r"result\.json is damaged: .*; remove it, and the run goes on from its last checkpoint"
        ):
            again()
    file.unlink()
    train(config, tmp_path)
    assert differences(outcome(tmp_path / config.folder_name), expected) == []


class _StopAt(Watch):
    def __init__(self, step: int) -> None:
        self.step = step

    def evaluated(self, record: dict[str, Any]) -> None:
        if record["step"] >= self.step:
            raise KeyboardInterrupt


def test_another_version_of_torch_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(tiny(), tmp_path, _StopAt(12))
    monkeypatch.setattr(loop_module, "_versions", lambda: {"enrnn": "0.1.0", "torch": "9.9"})
    notes = Notes()
    train(tiny(), tmp_path, notes)
    assert any("this is 9.9: digits may differ" in message for message in notes.messages)


def test_a_configuration_of_defaults_is_the_adding_problem() -> None:
    assert Config().folder_name.startswith("adding-enrnn-")
