"""What is collected has the shape that the page expects, says which version it is, and is only read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from enrnn.paper import collect
from enrnn.paper._published import TABLE1, Hyperparameters
from enrnn.paper._tables import optimizer_text
from tests.paper._made_up import look, made_up, written

HEAT = {
    "epoch": 6,
    "place": 1,
    "short": [[1.0, 0.0], [0.1, 1.0]],
    "long": [[1.0, 0.0], [1.0, 1.0]],
    "lifetimes": {"short": 1.0, "long": 1.5},
}


def fill(runs: Path, quick: bool = False) -> None:
    for seed, value in enumerate((0.002, 0.004)):
        written(made_up("adding/enrnn", 0.1, value, seed=seed, quick=quick), runs)
    folder = written(made_up("adding/enrnn_sixth_epoch", 0.1, quick=quick), runs)
    (folder.path / "measures.json").write_text(
        json.dumps({"complete": True, "gradients": HEAT, "short": {"2000": look(1.0, 1.0)}})
    )
    written(made_up("adding/lstm", 0.16, quick=quick), runs, "failed")
    written(made_up("adding/scornn", 0.16, quick=quick), runs, "unfinished")
    for seed, value in enumerate((1.43, 1.44)):
        written(made_up("characters/enrnn", value, seed=seed, quick=quick), runs)
    (runs / "not a run").mkdir()
    (runs / "not a run" / "config.json").write_text("{}")


def tree(folder: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def named(entries: list[dict[str, Any]], name: str) -> dict[str, Any]:
    (entry,) = [entry for entry in entries if entry["name"] == name]
    return entry


def row(table: dict[str, Any], recipe: str) -> dict[str, Any]:
    (found,) = [row for row in table["rows"] if row["recipe"] == recipe]
    return found


def test_what_is_collected(tmp_path: Path) -> None:
    fill(tmp_path)
    before = tree(tmp_path)
    results = collect(tmp_path)
    assert tree(tmp_path) == before
    assert json.loads(json.dumps(results, allow_nan=False)) == results
    assert results["quick"] is False

    table3 = named(results["tables"], "table3")
    ours = row(table3, "characters/enrnn")
    assert ours["cells"]["test"]["published"] == 1.429
    assert ours["cells"]["test"]["ours"]["mean"] == pytest.approx(1.435)
    assert ours["cells"]["test"]["ours"]["spread"] == pytest.approx(0.00707, rel=1e-2)
    assert ours["cells"]["test"]["difference"] == pytest.approx(0.006)
    assert ours["settings"]["optimizer.lr"] == [1e-3, "paper"]
    assert ours["seconds"] == 2.0
    assert len(ours["runs"]) == 2
    assert row(table3, "characters/lstm")["cells"]["test"]["ours"] is None
    spectral = row(named(results["tables"], "table1"), "adding/spectral_rnn")["parameters"]
    assert (spectral["ours"], spectral["published"]) == (1_981, "≈15k")
    assert "2,000" in spectral["note"]

    lstm = row(named(results["tables"], "table1-adding"), "adding/lstm")
    assert lstm["failed"][0]["error"] == "NotFiniteError: the loss is nan"

    (series,) = named(results["figures"], "figure-adding")["series"]
    assert series["points"] == [[2000, pytest.approx(0.1)], [4000, pytest.approx(0.003)]]
    assert series["band"][1] == [4000, 0.002, 0.004]
    panels = named(results["figures"], "figure-gradients")["panels"]
    assert [panel["values"] for panel in panels] == [HEAT["short"], HEAT["long"]]

    states = {run["recipe"]: run["state"] for run in results["runs"]}
    assert states["adding/lstm"] == "failed"
    assert states["adding/scornn"] == "unfinished"
    assert states["adding/enrnn"] == "finished"
    assert len(results["runs"]) == 7


def test_the_small_version_says_so_everywhere_and_never_mixes(tmp_path: Path) -> None:
    fill(tmp_path, quick=True)
    assert collect(tmp_path)["runs"] == []
    results = collect(tmp_path, quick=True)
    assert results["quick"] is True
    assert "small version" in results["title"]
    for table in results["tables"]:
        if table["name"] != "table-cost":
            assert "small version" in table["title"]
            assert "not to be compared" in table["caption"]
            assert all(cell["difference"] is None for one in table["rows"] for cell in one["cells"].values())
    assert results["figures"]
    for figure in results["figures"]:
        assert "small version" in figure["title"]


def test_the_small_version_names_the_sizes_and_optimisers_that_were_run(tmp_path: Path) -> None:
    fill(tmp_path, quick=True)
    shown = collect(tmp_path, quick=True)["tables"]
    first, third = named(shown, "table1"), named(shown, "table3")

    def told(table: dict[str, Any], recipe: str, *keys: str) -> list[object]:
        return [row(table, recipe)["cells"][key]["published"] for key in keys]

    assert told(first, "adding/enrnn", "n", "optimizer") == ["48/32", "R 1e-3, × 0.8 an epoch"]
    assert told(first, "copying/full_capacity_urnn", "n") == ["64"]
    assert told(first, "speech/enrnn", "n", "optimizer") == [None, None], "of which there is no small version"
    assert "not the published ones" in first["caption"]
    assert told(third, "characters/enrnn", "n", "published_n") == ["62/144", "310/720"]
    assert [column["label"] for column in third["columns"]][:2] == ["n, ours", "n, published"]


@pytest.mark.parametrize("stated", TABLE1, ids=lambda stated: stated.recipe)
def test_optimisers_are_written_as_the_paper_writes_them(stated: Hyperparameters) -> None:
    assert str(optimizer_text(stated.recipe, quick=False)).partition(",")[0] == stated.optimizer


def test_only_what_is_asked_for(tmp_path: Path) -> None:
    fill(tmp_path)
    results = collect(tmp_path, what=["figure-adding"])
    assert results["tables"] == []
    assert [figure["name"] for figure in results["figures"]] == ["figure-adding"]


def test_a_run_on_a_gpu_counts_once_for_its_seed(tmp_path: Path) -> None:
    run = made_up("adding/enrnn", 0.1, 0.004)
    written(run, tmp_path)
    on_gpu = made_up("adding/enrnn", 0.1, 0.002)
    on_gpu.values["run"]["device"] = "cuda"
    written(on_gpu, tmp_path)
    cell = row(named(collect(tmp_path)["tables"], "table1-adding"), "adding/enrnn")["cells"]["final"]["ours"]
    assert cell["values"] == [0.002]
