"""Recipes: one for each row of the paper, complete, of the right size, every value with its source, and listed at once."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from typing import Any

import pytest
import torch

from enrnn.cli import main
from enrnn.recipes import RECIPES, SOURCES, recipe, sources
from enrnn.tasks import Adding, Copying, Data, Features, Symbols
from enrnn.training import Network

ROWS = {
    "adding": ["enrnn", "lstm", "spectral_rnn", "spectral_rnn_15k", "scornn", "ornn", "full_capacity_urnn"],
    "copying": ["enrnn", "lstm", "lstm192", "scornn", "full_capacity_urnn"],
    "speech": ["enrnn", "scornn", "lstm", "lstm468", "enrnn_copy", "scornn_copy", "lstm_copy", "lstm468_copy"],
    "characters": ["enrnn", "lstm", "lstm1030", "gru415", "eurnn", "goru", "ornn", "nnrnn"],
}
UNLIKE_THE_PAPER = {"adding/spectral_rnn": 1_981, "characters/enrnn": 893_575}
"""Where the paper's sizes do not come to the paper's count."""

IDS = {
    "adding/enrnn": "5edc9dd9cb7c",
    "adding/scornn": "440b41a94600",
    "adding/lstm": "b3ba64ee1321",
    "copying/enrnn": "e4b68e4b0f23",
    "copying/scornn": "3683bad5299f",
    "copying/lstm": "501153613895",
    "speech/enrnn": "ade955bea809",
    "speech/scornn": "ea58491b65ae",
    "speech/lstm": "77ac9e84a132",
    "characters/enrnn": "8c43f0bf7c45",
    "characters/lstm": "b689ef6b7720",
    "pixels/enrnn": "28d44a6df3a0",
    "pixels/scornn": "574b6958a69e",
}


class Empty(Data):
    """The sizes of a task, and no data."""

    def __init__(self, name: str, inputs: Features | Symbols, outputs: int, reads: Any) -> None:
        super().__init__({"train": 1}, 1, 1, 0, torch.device("cpu"))
        self.name, self.input, self.output_size, self.reads = name, inputs, outputs, reads

    batch = loss = tally = metrics = None  # type: ignore[assignment]


def data_of(task: str) -> Data:
    if task in ("adding", "copying"):
        return Adding().load() if task == "adding" else Copying().load()
    sizes: dict[str, tuple[Any, ...]] = {
        "speech": (Features(129), 129, "all"),
        "characters": (Symbols(50), 50, "all"),
        "pixels": (Features(1), 10, "last"),
    }
    return Empty(task, *sizes[task])


@pytest.mark.parametrize("name", [f"{task}/{row}" for task, rows in ROWS.items() for row in rows])
def test_every_row_of_the_paper_has_a_recipe(name: str) -> None:
    assert name in RECIPES


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_builds_a_network_of_the_stated_size(name: str) -> None:
    config, stated = recipe(name), RECIPES[name]
    assert config.task.name == name.split("/")[0]
    assert Network(config.model, data_of(config.task.name)).num_parameters() == stated.parameters
    if not stated.published:
        return
    published = float(re.fullmatch(r"≈([\d.]+)k", stated.published)[1]) * 1000  # type: ignore[index]
    near = abs(stated.parameters - published) < 0.04 * published
    assert near == (name not in UNLIKE_THE_PAPER)
    if name in UNLIKE_THE_PAPER:
        assert stated.parameters == UNLIKE_THE_PAPER[name]
        assert stated.note


@pytest.mark.parametrize("name", RECIPES)
def test_every_value_of_a_recipe_has_one_source_and_stands_in_the_configuration(name: str) -> None:
    stated = RECIPES[name]
    of = sources(name)
    assert set(of) == set(stated.values)
    assert sum(len(getattr(stated, source)) for source in SOURCES) == len(of)
    assert set(of.values()) <= set(SOURCES)
    values = recipe(name).as_dict()
    for path, value in stated.values.items():
        found: Any = values
        for part in path.split("."):
            found = found.get(part, {})
        assert found == value or (path.startswith("model.") and not value)


@pytest.mark.parametrize("name", IDS)
def test_the_run_of_a_recipe_is_found_again_by_later_versions(name: str) -> None:
    assert recipe(name).id.startswith(IDS[name])


def test_no_two_recipes_are_the_same_run() -> None:
    assert len({recipe(name).id for name in RECIPES}) == len(RECIPES)


def test_the_papers_settings() -> None:
    """Table 1 and §5, by the numbers that the recipes are easily wrong in."""

    def settings(name: str) -> tuple[Any, ...]:
        model, optimizer = recipe(name).model, recipe(name).optimizer
        return model.hidden_size, model.short_size, model.negative_ones, optimizer.name, optimizer.lr, optimizer.long_lr

    assert settings("adding/enrnn") == (160, 64, 29, "rmsprop_tf", 1e-4, None)
    assert settings("copying/enrnn") == (192, 20, 52, "rmsprop_tf", 1e-3, 1e-5)
    assert settings("speech/enrnn") == (468, 94, 374, "adam", 1e-4, None)
    assert settings("characters/enrnn") == (1030, 720, 186, "adam", 1e-3, 1e-4)
    assert settings("copying/full_capacity_urnn") == (256, None, None, "rmsprop_tf", 1e-3, None)
    assert recipe("characters/enrnn").model.nonlinearity == "relu"
    assert recipe("adding/scornn").optimizer.long_name == "rmsprop_tf"
    assert recipe("adding/spectral_rnn").optimizer.lr_decay == 0.99
    assert [recipe(name).model.forget_bias for name in ("copying/lstm", "copying/lstm192", "speech/lstm468")] == [1.0, -2.0, -4.0]
    assert [recipe(name).task.variant for name in ("speech/enrnn", "speech/enrnn_copy")] == ["predict", "copy"]  # type: ignore[attr-defined]
    assert sources("speech/enrnn")["task.variant"] == "paper"
    assert sources("speech/enrnn_copy")["task.variant"] == "chosen"
    assert sources("adding/spectral_rnn")["model.hidden_size"] == "paper"
    assert sources("adding/spectral_rnn_15k")["model.hidden_size"] == "chosen"
    assert sources("characters/nnrnn")["task.length"] == "sheet"


def test_the_list_is_there_at_once_and_imports_no_torch() -> None:
    code = "import sys; from enrnn.cli import main\nmain(['recipes'])\nassert 'torch' not in sys.modules"
    begin = time.perf_counter()
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert time.perf_counter() - begin < 1.5
    lines = run.stdout.splitlines()
    for name, stated in RECIPES.items():
        (line,) = [line for line in lines if line.split()[:1] == [name]]
        assert stated.network in line
        assert f"{stated.parameters:,}" in line
        assert stated.title in line


def test_train_lists_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["train", "--list"])
    assert caught.value.code in (0, None)
    listed = capsys.readouterr().out
    assert main(["recipes"]) == 0
    assert capsys.readouterr().out == listed


def test_one_recipe_is_shown_with_its_sources(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "characters/nnrnn"]) == 0
    out = capsys.readouterr().out
    shown = {line.split()[0]: line.split()[-1] for line in out.splitlines() if line.startswith("  ")}
    assert shown == sources("characters/nnrnn")
    assert "1,315,138 parameters (the paper: ≈1320k)" in out


def test_a_reader_who_has_seen_enough_is_no_mistake() -> None:
    command = f"{sys.executable} -m enrnn recipes | true"
    run = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert run.stderr == ""


def test_an_unknown_recipe_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "adding/enrn"]) == 2
    assert "unknown recipe 'adding/enrn'; did you mean adding/enrnn" in capsys.readouterr().err
