"""A sweep is a set of runs: what is added, what is refused, and what a driver leaves to another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from enrnn.cli import main
from enrnn.sweep import Standing, Sweep, opened, points_of
from enrnn.sweep._work import UNHEARD, leave_error, work
from enrnn.tasks import characters
from enrnn.tasks._text import Corpus
from enrnn.training import RunError, RunFolder
from tests.sweep._small import ARGUMENTS, BASE, small_sweep


def test_a_sweep_is_read_as_it_was_written(tmp_path: Path) -> None:
    sweep = small_sweep(tmp_path, seeds=2)
    again = Sweep.read(sweep.path)
    assert [trial.config for trial in again.trials] == [trial.config for trial in sweep.trials]
    assert len({trial.config.id for trial in again.trials}) == 48
    assert (again.measure, again.halving, again.base) == (sweep.measure, None, sweep.base)
    assert again.measure.metric == "mse"


def test_other_values_add_runs_and_the_same_add_none(tmp_path: Path) -> None:
    sweep = small_sweep(tmp_path, ["optimizer.lr=1e-2,1e-3"])
    ids = {trial.config.id for trial in sweep.trials}
    more = points_of(BASE, ["optimizer.lr=0.001,1e-4"], paper=False, random=None)
    assert Sweep.read(sweep.path).extend(more, seeds=1) == 1  # 0.001 is 1e-3
    assert sweep.extend(more, seeds=3) == 5
    assert ids < {trial.config.id for trial in sweep.trials}


def test_what_another_driver_has_added_stays(tmp_path: Path) -> None:
    one, other = small_sweep(tmp_path, ["optimizer.lr=1e-2"]), Sweep.of("adding/enrnn", BASE, tmp_path)
    other.extend(points_of(BASE, ["optimizer.lr=1e-3"], paper=False, random=None), 1)
    other.write()
    one.extend(points_of(BASE, ["optimizer.lr=1e-4"], paper=False, random=None), 1)
    one.write()
    assert {point.values["optimizer.lr"] for point in Sweep.read(one.path).points} == {"1e-2", "1e-3", "1e-4"}


SMALL = ["sweep", "adding/enrnn", *ARGUMENTS]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*SMALL, "--grid", "optimizer.lr=1e-3,-1"], "point 2 of 2 (optimizer.lr=-1): optimizer: lr must be finite"),
        ([*SMALL, "--grid", "optimizer.lr=fast"], "optimizer.lr should be a number, got: 'fast'"),
        ([*SMALL, "--grid", "optimizer.lrr=1"], "unknown setting optimizer.lrr; did you mean optimizer.lr"),
        (
            [*SMALL, "--grid", "model.short_size=2,8", "--grid", "model.negative_ones=0,3"],
            "point 4 of 4 (model.short_size=8 model.negative_ones=3): model: negative_ones must lie between 0 and the long",
        ),
        ([*SMALL, "--grid", "run.seed=1,2"], "run.seed is not an axis; use --seeds"),
        ([*SMALL, "--grid", "optimizer.lr=1", "--grid", "optimizer.lr=2"], "--grid optimizer.lr is given twice"),
        ([*SMALL, "--seeds", "0"], "--seeds takes the number of seeds, at least 1, got: 0"),
        ([*SMALL, "--random", "0"], "--random takes the number of points, at least 1, got: 0"),
        ([*SMALL, "--halving", "1"], "--halving takes a whole number of at least 2, got: 1"),
        ([*SMALL, "--workers", "0"], "--workers must be at least 1, got: 0"),
        ([*SMALL, "--gpus-per-run", "0.5"], "--gpus-per-run is for --runner ray"),
        ([*SMALL, "--gpus-per-run", "0.5", "--dry-run"], "--gpus-per-run is for --runner ray"),
        ([*SMALL, "--name", "../out"], "--name takes a name without a path, got: '../out'"),
        ([*SMALL, "--name", ".."], "--name takes a name without a path, got: '..'"),
        ([*SMALL, "--text", "x"], "--text is for characters, and adding has no use for it"),
        ([*SMALL, "--set", "optimizer.lr"], "--set takes KEY=VALUE, got: 'optimizer.lr'"),
        (["sweep", "ading/enrnn"], "unknown recipe 'ading/enrnn' (did you mean adding/enrnn"),
        (["report", "nothing"], "no sweep is called 'nothing' under"),
        ([*SMALL, "--grid", "lr=1e-3"], "point 1 of 1 (lr=1e-3): unknown setting lr; did you mean optimizer.lr?; nothing was"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main([*arguments, "--runs", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_says_how_many_and_writes_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["sweep", "adding/enrnn", "--paper-grid", "--dry-run", "--device", "cpu", "--runs", str(tmp_path)]) == 0
    assert "540 points, 540 runs: 540 waiting" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_points_of_earlier_searches_are_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    sweep = small_sweep(tmp_path, ["optimizer.lr=1e-2,1e-3"])
    again = [*SMALL, "--runs", str(tmp_path), "--dry-run"]
    told = f"of earlier searches {{}} in {sweep.path}, too; --name NAME keeps searches apart"
    expected = {"1e-2,1e-3": None, "1e-2,1e-4": f"1 point {told.format('is')}", "1e-4": f"2 points {told.format('are')}"}
    for values, line in expected.items():
        assert main([*again, "--grid", f"optimizer.lr={values}"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[:-1] == ([] if line is None else [line])
    assert main([*again, "--grid", "optimizer.lr=1e-4", "--name", "mine"]) == 0
    assert capsys.readouterr().out.count("\n") == 1


def test_several_that_match_are_listed_shortly(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    names = [small_sweep(tmp_path, ["optimizer.lr=1e-2"], base=BASE.override({"task.seed": seed})).path.name for seed in range(7)]
    assert main(["report", "sweep-adding", "--runs", str(tmp_path)]) == 2
    listed = ", ".join(sorted(names)[:5])
    err = capsys.readouterr().err
    assert err.endswith(f"several sweeps match 'sweep-adding' under {tmp_path}: {listed} and 2 more; give more of the name\n")


def test_a_worker_that_cannot_even_leave_its_error_ends_without_a_word(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as caught:
        work(BASE.as_dict(), str(tmp_path / "file"), None)
    assert caught.value.code == UNHEARD
    assert capfd.readouterr() == ("", "")


def test_a_run_whose_settings_were_changed_by_hand_has_failed(tmp_path: Path) -> None:
    sweep = small_sweep(tmp_path, ["optimizer.lr=1e-2"])
    (trial,) = sweep.trials
    file = RunFolder.create(trial.config, tmp_path).path / "config.json"
    file.write_text(file.read_text().replace('"seed": 0', '"seed": 1'))
    assert work(trial.config.as_dict(), str(tmp_path), None) == "failed"
    (row,) = Standing(sweep).rows()
    assert row.status == "failed"
    assert "was changed" in row.errors[0]


UNFIT = ["sweep", "adding/enrnn", "--set", "model.hidden_size=32", "--dry-run", "--device", "cpu"]
"""The recipe has 64 short-term units."""


def test_what_the_grid_replaces_need_not_fit(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    grids = (["--set", "model.negative_ones=4", "--grid", "model.short_size=0.1:0.4:0.1"], ["--paper-grid"])
    for grid, count in zip(grids, (4, 540), strict=True):
        assert main([*UNFIT, *grid, "--runs", str(tmp_path)]) == 0
        assert f"{count} points, {count} runs: {count} waiting" in capsys.readouterr().out
    assert main([*UNFIT, "--grid", "optimizer.lr=1e-3", "--runs", str(tmp_path)]) == 2
    assert "short_size must lie between 0 and hidden_size = 32, got: 64" in capsys.readouterr().err
    assert main([*UNFIT, "--grid", "model.short_size=3,40", "--runs", str(tmp_path)]) == 2
    assert "point 2 of 2 (model.short_size=40)" in capsys.readouterr().err  # the first one has room for the recipe's 29 times −1


def test_a_base_that_fits_is_the_recipes_whatever_the_grid(tmp_path: Path) -> None:
    plain = opened("adding/enrnn", {}, "cpu", tmp_path)
    assert opened("adding/enrnn", {}, "cpu", tmp_path, None, ["model.short_size=0.1,0.2"], True).path == plain.path


TEXT = [
    "sweep",
    "characters/enrnn",
    "--set",
    "model.hidden_size=8",
    "--set",
    "model.short_size=4",
    "--set",
    "model.negative_ones=1",
]
TEXT += ["--set", "task.length=5", "--set", "task.batch_size=4", "--set", "run.steps=2", "--device", "cpu"]


def test_a_stand_in_is_told_at_the_beginning(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ENRNN_DATA", raising=False)
    corpus = Corpus("a small library", {"train": "abc" * 40, "valid": "abc", "test": "cab"})
    monkeypatch.setattr(characters, "standard_library", lambda: corpus)
    rest = ["--grid", "optimizer.lr=1e-3,1e-4", "--dry-run", "--runs", str(tmp_path)]
    assert main([*TEXT, *rest]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("WARNING: no data are named, so the text is a stand-in")
    assert len(lines) == 2
    assert main([*TEXT, *rest, "--set", "task.corpus=python"]) == 0
    assert "WARNING" not in capsys.readouterr().out


def test_a_finished_run_of_other_data_does_not_count(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text, runs = tmp_path / "text", tmp_path / "runs"
    text.write_text("abc" * 60)
    rest = ["--text", str(text), "--dry-run", "--runs", str(runs)]
    assert main(["train", *TEXT[1:], "--text", str(text), "--runs", str(runs)]) == 0
    assert main([*TEXT, *rest]) == 0
    assert "1 point, 1 run: 1 finished" in capsys.readouterr().out
    text.write_text("abd" * 60)
    assert main([*TEXT, *rest]) == 1
    assert "the data are not those that the run was begun with" in capsys.readouterr().err


def test_a_damaged_result_is_no_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = small_sweep(tmp_path, ["optimizer.lr=1e-2,1e-3"])
    for trial in sweep.trials:
        work(trial.config.as_dict(), str(tmp_path), None)
    (sweep.trials[0].folder.path / "result.json").write_text("{")
    sound, damaged = Standing(sweep).rows()
    assert (sound.status, damaged.status, damaged.score) == ("finished", "failed", None)
    assert "result.json is damaged" in damaged.errors[0]
    assert "remove it" in damaged.errors[0]
    assert main(["report", str(sweep.path), "--runs", str(tmp_path)]) == 0
    assert "1 finished, 1 failed" in capsys.readouterr().out


def test_a_page_in_the_place_of_a_folder_is_a_clear_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = small_sweep(tmp_path, ["optimizer.lr=1e-2"])
    assert main(["report", str(sweep.path), "--out", str(tmp_path)]) == 2
    assert f"{tmp_path} is a folder; give {tmp_path / 'report.html'}" in capsys.readouterr().err


def test_a_sweep_that_was_changed_by_hand_is_refused(tmp_path: Path) -> None:
    sweep = small_sweep(tmp_path, ["optimizer.lr=1e-2"])
    file = sweep.path / "sweep.json"
    content = json.loads(file.read_text())
    content["points"][0]["values"]["optimizer.lr"] = "1e-1"
    file.write_text(json.dumps(content))
    with pytest.raises(RunError, match="do not have the id"):
        Sweep.read(sweep.path)
    file.write_text(file.read_text()[:-9])
    with pytest.raises(RunError, match=r"sweep\.json is damaged"):
        Sweep.read(sweep.path)


def test_a_name_belongs_to_one_base(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rest = ["--runs", str(tmp_path), "--name", "mine"]
    assert main([*SMALL, *rest, "--dry-run"]) == 0
    sweep = Sweep.of("adding/enrnn", BASE, tmp_path, "mine")
    sweep.extend([{}], 1)
    sweep.write()
    assert main([*SMALL, *rest, "--set", "task.length=11"]) == 2
    assert "is a sweep around other settings; choose another --name" in capsys.readouterr().err


def test_a_failed_run_stays_visible_until_it_is_done_again(tmp_path: Path) -> None:
    sweep = small_sweep(tmp_path, ["optimizer.lr=1e30,1e-2"], base=BASE.override({"optimizer.name": "adam"}))
    for trial in sweep.trials:
        work(trial.config.as_dict(), str(tmp_path), None)
    good, bad = Standing(sweep).rows()
    assert (good.status, bad.status, bad.score) == ("finished", "failed", None)
    assert bad.errors[0].startswith("NotFiniteError: ")
    leave_error(sweep.trials[1].config, tmp_path, "WorkerDied", "two\nlines")
    assert Standing(sweep).rows()[0].status == "finished"  # a result outlives an error


def test_seeds_for_a_sweep_are_for_its_points(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = small_sweep(tmp_path, ["optimizer.lr=1e-2,1e-3"])
    again = ["sweep", sweep.path.name, "--runs", str(tmp_path), "--dry-run"]
    assert main([*again, "--seeds", "3"]) == 0
    assert "2 points, 6 runs" in capsys.readouterr().out
    assert main([*again, "--seeds", "0"]) == 2
    assert "--seeds takes the number of seeds, at least 1, got: 0" in capsys.readouterr().err


def test_a_sweep_has_its_device_already(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = small_sweep(tmp_path, ["optimizer.lr=1e-2,1e-3"])
    assert main(["sweep", sweep.path.name, "--runs", str(tmp_path), "--dry-run", "--device", "cuda"]) == 2
    assert "has runs on cpu; --device cuda is for a recipe" in capsys.readouterr().err


def test_an_optimiser_that_fits_one_size_is_tried_with_the_others(tmp_path: Path) -> None:
    base = BASE.override({"optimizer.long_lr": 1e-3, "model.negative_ones": None})
    with pytest.raises(ValueError, match=r"point 2 of 2 .*long_lr has no effect.*nothing was started"):
        small_sweep(tmp_path, ["model.short_size=0.5,1.0"], base=base)
