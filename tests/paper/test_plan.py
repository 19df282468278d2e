"""What was published, what stands for it, and what has to be run."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from enrnn.paper import ITEMS, TABLE1, TABLE2, TABLE3, configured, plan
from enrnn.paper._data import speech, text
from enrnn.paper._items import chosen, runs_of
from enrnn.paper._plan import left_out, on_terminal
from enrnn.paper._quick import QUICK
from enrnn.paper._runs import Name, base, known, named
from enrnn.recipes import RECIPES
from enrnn.training import Config


def test_the_tables_agree_with_the_recipes() -> None:
    assert (len(TABLE1), len(TABLE2), len(TABLE3)) == (18, 4, 8)
    for row in TABLE1:
        recipe = RECIPES[row.recipe]
        parts = 2 if recipe.network in ("full_capacity_urnn", "eurnn") else 1
        assert recipe.values["model.hidden_size"] == row.n * parts
        assert recipe.published == row.parameters
    for row2 in (*TABLE2, *TABLE3):
        recipe = RECIPES[row2.recipe]
        parts = 2 if recipe.network == "eurnn" else 1
        assert sum(map(int, row2.n.split("/"))) * parts == recipe.values["model.hidden_size"]
        assert recipe.published == row2.parameters


def test_a_run_is_known_by_its_configuration_wherever_and_however_it_was_run() -> None:
    for quick in (False, True):
        for name in known(quick):
            config = configured(name, quick, **{"run.seed": 3, "run.device": "cuda:1", "run.checkpoint_every": 7})
            assert named(config.as_dict()) == Name(name, quick)
    assert named(configured("adding/enrnn", **{"optimizer.lr": 0.5}).as_dict()) is None
    elsewhere = configured("characters/enrnn", **{"task.data": "/somewhere", "task.corpus": "ptb"})
    assert named(elsewhere.as_dict()) == Name("characters/enrnn", False)


def test_every_run_of_every_item_is_known() -> None:
    for item in ITEMS.values():
        assert set(item.runs) <= set(known(quick=False))
    assert set(QUICK) <= set(known(quick=True))
    assert {base(name) for name in runs_of(ITEMS, quick=True)} <= set(RECIPES)


def test_all_rows_of_all_tables_are_run() -> None:
    runs = set(runs_of(ITEMS, quick=False))
    assert {row.recipe for row in (*TABLE1, *TABLE2, *TABLE3)} <= runs
    assert {f"{row.recipe}_copy" for row in TABLE2} <= runs


def test_an_unknown_item_is_named_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"unknown item 'figure-size'; did you mean figure-sizes"):
        chosen(["table1", "figure-size"])
    assert chosen([]) == list(ITEMS)


def test_each_run_is_planned_once_for_each_seed(tmp_path: Path) -> None:
    planned = plan(["figure-adding", "table1", "figure-sizes"], seeds=2)
    pairs = [(job.name, job.config.run.seed) for job in planned.jobs]
    assert len(pairs) == len(set(pairs)) == 2 * len(set(runs_of(["table1", "figure-sizes"], quick=False)))
    assert [seed for seed, _ in itertools.groupby(seed for _, seed in pairs)] == [0, 1]
    assert "50 runs, 50 to do" in on_terminal(planned, tmp_path)
    with pytest.raises(ValueError, match="at least 1, got: 0"):
        plan(seeds=0)


def test_some_rows_of_all() -> None:
    planned = plan(["table1", "figure-sizes"], rows="*/enrnn*")
    assert {job.name for job in planned.jobs} == {
        name for name in runs_of(["table1", "figure-sizes"], quick=False) if "/enrnn" in name
    }
    with pytest.raises(ValueError, match="no run is called 'nothing'"):
        plan(["table1"], rows="nothing")


def test_what_lacks_data_is_left_out_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ENRNN_DATA", raising=False)
    planned = plan(["table2", "table3"])
    assert not planned.jobs
    assert "needs" not in planned.left_out["characters/enrnn"]
    assert "Penn Treebank is not here" in planned.left_out["characters/enrnn"]
    assert "TIMIT" in planned.left_out["speech/enrnn"]
    small = plan(["table2", "table3"], quick=True)
    assert {job.config.task.corpus for job in small.jobs} == {"python"}  # type: ignore[attr-defined]
    assert small.left_out["speech/enrnn"] == "not in the small version"


def test_many_that_are_left_out_are_counted_and_few_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ENRNN_DATA", raising=False)
    planned = plan(quick=True)
    count = len(planned.left_out)
    assert left_out(planned) == [f"left out: {count} runs (--dry-run names them): not in the small version"]
    assert on_terminal(planned, tmp_path).count("left out: not in the small version") == count
    (line,) = left_out(plan(["table3"], rows="characters/lstm"))
    assert line.startswith("left out: characters/lstm: ")


def test_data_are_called_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "ptb").mkdir()
    (tmp_path / "ptb" / "ptb.train.txt").touch()
    assert text(str(tmp_path), quick=False).name == "Penn Treebank"
    for split in ("train", "valid", "test"):
        (tmp_path / "speech" / split).mkdir(parents=True)
        (tmp_path / "speech" / split / "a.wav").touch()
    assert speech(str(tmp_path)).name == "recordings in speech, 1/1/1 utterances (not TIMIT)"
    (tmp_path / "speech" / "valid" / "a.wav").unlink()
    assert "no audio" in speech(str(tmp_path)).reason
    job = plan(["table3"], data=str(tmp_path)).jobs[0]
    assert (job.config.task.data, job.data) == (str(tmp_path), "Penn Treebank")  # type: ignore[attr-defined]


def test_the_small_version_is_small() -> None:
    for name in runs_of(ITEMS, quick=True):
        small, whole = configured(name, quick=True), configured(name)
        assert small.model.hidden_size <= whole.model.hidden_size
        assert small.run.steps is not None
        assert small.run.steps <= 2_000
        assert isinstance(small, Config)
