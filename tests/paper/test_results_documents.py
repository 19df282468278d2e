"""RESULTS.md, README.md's table and the figures are what the runs under results/ come to, and only whole runs get there."""

from __future__ import annotations

import json
import platform
import re
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from enrnn.paper import ITEMS, TABLE2, TABLE3, Run, collect, read
from enrnn.paper._runs import BEYOND, named
from enrnn.recipes import RECIPES
from enrnn.tasks import Adding
from enrnn.training import Config, RunSettings, train
from tests.paper._made_up import look, made_up, written
from tools import results

MOST_BYTES = 3_000_000
README = f"# A project\n\nBefore, 17.\n\n{results.BEGIN}\n{results.END}\n\nAfter, 18.\n"

committed = pytest.mark.skipif(not (results.ROOT / results.RUNS).is_dir(), reason="no results are committed yet")


def laid(run: Run, runs: Path, state: str = "finished", **task: str) -> Path:
    """The directory of a made-up run, as a machine leaves it: with weights, a lock, and the place of its data."""
    assert run.result is not None
    run.values["task"].update(task)
    run.result["id"] = Config.from_dict({key: value for key, value in run.values.items() if key != "id"}).id
    folder = written(run, runs, state)
    (folder.path / "best.tensors").write_bytes(b"weights")
    (folder.checkpoints / "step-000000002000.ckpt").write_bytes(b"weights")
    (folder.path / ".lock").touch()
    return folder.path


def several(runs: Path) -> Path:
    """Of every kind: with seeds, with data, with measures, failed."""
    for seed, last in enumerate((0.002345678901234, 0.00298, 0.0031)):
        folder = laid(made_up("adding/enrnn", 0.1, last, seed=seed), runs)
        eyes = {"0": look(0.9, 1.0, 0.8), "4000": look(1.0, 1.0, 1.3, 1.1)}
        (folder / "measures.json").write_text(json.dumps({"complete": True, "data": None, "short": eyes}))
    laid(made_up("adding/lstm", 0.17, 0.00001234), runs)
    laid(made_up("adding/scornn", 0.17, 0.169), runs, "failed")
    laid(made_up("copying/enrnn", 0.02, 0.00123), runs)
    for seed, last in enumerate((1.4312, 1.4371)):
        laid(made_up("characters/enrnn", 1.6, last, seed=seed), runs, data="/home/somebody/data")
    laid(made_up("characters/enrnn_renormalized", 1.7, 1.5), runs)
    laid(made_up("characters/gru415", 1.65, data="another"), runs)
    (runs / "measured").mkdir()
    shape = {"q": 9, "s": 9, "BL": 90, "schur": 0.1, "rest": 0.2, "ratio": 0.5}
    cost = {"device": "cpu", "method": "a Schur form", "shapes": {"adding": shape}}
    (runs / "measured" / "cost-cpu.json").write_text(json.dumps(cost))
    return runs


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with nothing but a README.md, and the tool at work in it."""
    home = tmp_path / "repository"
    home.mkdir()
    (home / results.README).write_text(README, encoding="utf-8")
    monkeypatch.setattr(results, "ROOT", home)
    return home


@pytest.fixture
def filled(root: Path, tmp_path: Path) -> Path:
    """The same with runs imported."""
    assert results.main(["import", str(several(tmp_path / "runs")), "--device-name", "an abacus"]) == 0
    return root


def test_times_can_be_imported_on_their_own(root: Path, tmp_path: Path) -> None:
    runs = several(tmp_path / "runs")
    (tmp_path / "alone").mkdir()
    (runs / "measured").rename(tmp_path / "alone" / "measured")
    assert results.main(["import", str(tmp_path / "alone")]) == 0
    assert [*tree(root / results.RUNS)] == ["measured/cost-cpu.json"]


def tree(folder: Path) -> dict[str, bytes]:
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def block_of(readme: str) -> str:
    return readme.split(results.BEGIN)[1].split(results.END)[0]


def agree_with_the_tool(root: Path) -> None:
    made = results.documents(root)
    for name, text in made.items():
        assert (root / name).exists(), f"{name} is not there: run `make results`"
        assert (root / name).read_text(encoding="utf-8") == text, f"{name} is not what the results give: run `make results`"
    assert results.figures_there(root) <= made.keys(), "a figure is left of runs that are gone: run `make results`"


def are_whole_and_neutral(root: Path, tmp_path: Path) -> None:
    """Importing them once more changes nothing: each is finished or failed, one of the paper's, and has no place of a machine."""
    runs = root / results.RUNS
    assert results.import_runs([runs], tmp_path / "again") == []
    assert tree(tmp_path / "again") == tree(runs)
    for name, content in tree(runs).items():
        text = content.decode()
        assert not re.search(r'"(/|~|[A-Z]:\\\\)', text), f"{name} names a place on a machine"


NUMBER = re.compile(r"−?\d[\d\u202f]*(?:\.\d+)?(?: × 10[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)?")
LABELS = {
    **{("adding", RECIPES[name].title): (name, None) for name in ITEMS["figure-adding"].runs},
    **{("copying", RECIPES[name].title): (name, None) for name in ITEMS["figure-copying"].runs},
    **{("speech, next", f"{row.model} {row.n}"): (row.recipe, row.test_mse) for row in TABLE2},
    **{("speech, delayed", f"{row.model} {row.n}"): (f"{row.recipe}_copy", row.test_mse) for row in TABLE2},
    **{("characters", f"{row.model} {row.n}"): (row.recipe, row.test_bpc) for row in TABLE3},
}


def number(text: str) -> tuple[float, float]:
    """What is printed, and half a unit of its last digit."""
    digits, _, exponent = text.replace("\u202f", "").replace("−", "-").partition(" × 10")
    power = 10.0 ** int(exponent.translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789"))) if exponent else 1.0
    return float(digits) * power, 0.5001 * power * 10.0 ** -len(digits.partition(".")[2])


def is_printed(text: str, value: float) -> bool:
    printed, tolerance = number(text)
    return abs(printed - value) <= tolerance


def finals(runs: Path) -> dict[str, dict[int, tuple[float, float]]]:
    """By name and seed the test error and the seconds, straight from the files."""
    found: dict[str, dict[int, tuple[float, float]]] = {}
    for file in runs.glob("*/result.json"):
        values, result = (json.loads((file.parent / name).read_text()) for name in ("config.json", "result.json"))
        name = named(values)
        assert name is not None
        error = result.get("chosen", result["last"])["test"][result["metric"]]
        assert values["run"]["seed"] not in found.setdefault(name.run, {}), f"{name.run} is there twice with one seed"
        found[name.run][values["run"]["seed"]] = error, result["seconds"]
    return found


def every_number_is_measured(block: str, runs: Path) -> int:
    """Every one in the table is a row's own, in the text a count of verdicts. Returns how many rows there were."""
    there, task, rows = finals(runs), "", 0
    lines = [line for line in block.splitlines() if line.startswith("|")][2:]
    for line in lines:
        what, label, published, ours, time = (cell.strip() for cell in line.strip("|").split("|"))
        task = what or task
        label, _, elsewhere = label.partition(", on ")
        name, stated = next(found for (prefix, title), found in LABELS.items() if task.startswith(prefix) and title == label)
        errors, seconds = zip(*there.pop(name).values(), strict=True)
        assert published == ("–" if stated is None or elsewhere else published)
        assert published == "–" or is_printed(published, stated or 0.0)
        printed = NUMBER.findall(ours.replace("*", ""))
        assert is_printed(printed[0], statistics.fmean(errors)), line
        assert printed[1:] == [] if len(errors) == 1 else is_printed(printed[1], statistics.stdev(errors)), line
        assert len(errors) == (int(printed[2]) if len(printed) > 2 else 1), line
        units = {"s": 1, "min": 60, "h": 3600}
        parts = re.findall(r"([\d.]+) (s|min|h)", time)
        told = sum(float(count) * units[unit] for count, unit in parts)
        # A row's seconds are rounded to a tenth before they are printed.
        assert told > 0, line
        assert abs(told - statistics.fmean(seconds)) <= units[parts[-1][1]] / 2 + 0.05, line
        rows += 1
    tables = {name for name, _ in LABELS.values()}
    assert not tables & there.keys(), "a run has no line"
    counts = Counter(claim["verdict"] for claim in collect(runs)["claims"])
    text = "\n".join(line for line in block.splitlines() if not line.startswith(("|", "![", "##")))
    beyond = re.search(r" Beyond the paper, ENRNN reaches ([\d.]+) bits per character \((.*?)\)\.", text)
    if beyond is not None:
        (name,) = (name for name, (label, _) in BEYOND.items() if label == beyond[2])
        assert is_printed(beyond[1], statistics.fmean(error for error, _ in there[name].values()))
        text = text.replace(beyond[0], "")
    assert sorted(re.findall(r"\d+", text)) == sorted(str(count) for count in (counts.total(), *counts.values()))
    return rows


@committed
def test_the_documents_are_what_the_committed_results_give() -> None:
    agree_with_the_tool(results.ROOT)


@committed
def test_the_committed_results_are_whole_and_small(tmp_path: Path) -> None:
    are_whole_and_neutral(results.ROOT, tmp_path)
    assert sum(len(content) for content in tree(results.ROOT / results.RUNS).values()) <= MOST_BYTES


@committed
def test_every_number_in_the_readme_is_measured() -> None:
    readme = (results.ROOT / results.README).read_text(encoding="utf-8")
    assert every_number_is_measured(block_of(readme), results.ROOT / results.RUNS) > 0


def test_the_readme_has_a_place_for_the_results() -> None:
    readme = (results.ROOT / results.README).read_text(encoding="utf-8")
    assert readme.count(results.BEGIN) == readme.count(results.END) == 1
    assert readme.index(results.BEGIN) < readme.index(results.END)


def test_what_is_written_agrees_and_is_written_once(filled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert results.main(["write"]) == 0
    agree_with_the_tool(filled)
    are_whole_and_neutral(filled, tmp_path)
    readme = (filled / results.README).read_text(encoding="utf-8")
    assert readme.startswith("# A project\n\nBefore, 17.\n")
    assert readme.endswith("After, 18.\n")
    assert every_number_is_measured(block_of(readme), filled / results.RUNS) == 5
    before = tree(filled)
    capsys.readouterr()
    assert results.main(["write"]) == 0
    assert tree(filled) == before
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("old", "new"), [("1.434", "1.433"), ("(3)", "(4)"), ("2.0 s", "9.0 s"), ("| 1.429 |", "| 1.428 |")])
def test_a_number_that_was_not_measured_is_found(filled: Path, old: str, new: str) -> None:
    results.main(["write"])
    block = block_of((filled / results.README).read_text(encoding="utf-8"))
    assert old in block
    with pytest.raises(AssertionError):
        every_number_is_measured(block.replace(old, new, 1), filled / results.RUNS)


@pytest.mark.parametrize("name", [results.PAGE, results.README, f"{results.IMAGES}/figure-adding.svg"])
def test_a_document_that_was_edited_is_found(filled: Path, name: str) -> None:
    results.main(["write"])
    text = (filled / name).read_text(encoding="utf-8")
    (filled / name).write_text(text.replace("ENRNN", "ERNN", 1), encoding="utf-8")
    with pytest.raises(AssertionError, match="make results"):
        agree_with_the_tool(filled)


def test_the_page_tells_what_was_run_what_failed_and_what_was_not_run(filled: Path) -> None:
    results.main(["write"])
    page = (filled / results.PAGE).read_text(encoding="utf-8")
    assert "| ENRNN | 310/720 | 1.475 | **1.434** ± 0.004 (2) | −0.041 | 1.429 | **1.434** ± 0.004 (2) | +0.005 |" in page
    assert "✕ **not reproduced**" in page
    assert "22 claims: " in page
    assert "NotFiniteError: the loss is nan" in page
    assert "an abacus (9 runs)" in page
    assert "| `characters/gru415` | 6 | – | model.embedding = False, optimizer.lr = 0.001" in page
    missing = page.split("## Not run yet")[1].split("## ")[0]
    assert "`copying/lstm192`" in missing
    assert "speech/enrnn" in missing
    assert "`adding/scornn`" not in missing
    assert "Table 2" not in page.split("## Not run yet")[0].replace("Tables", "").split("## Table 1")[1]
    for picture in re.findall(r"!\[[^]]*\]\(([^)]+)\)", page):
        assert (filled / picture).read_text(encoding="utf-8").startswith("<svg")
    assert {"figure-adding", "figure-gradient-rule-characters", "figure-spectrum-adding"} <= {
        Path(name).stem for name in results.figures_there(filled)
    }


def test_other_data_than_the_papers_have_no_published_number_beside_them(filled: Path) -> None:
    results.main(["write"])
    block = block_of((filled / results.README).read_text(encoding="utf-8"))
    (line,) = [line for line in block.splitlines() if "GRU 415" in line]
    assert "GRU 415, on " in line
    assert "1.601" not in line


def test_a_figure_of_runs_that_are_gone_goes_too(filled: Path) -> None:
    results.main(["write"])
    stale = filled / results.IMAGES / "figure-timit.svg"
    stale.write_text("<svg/>")
    own = filled / results.IMAGES / "logo.svg"
    own.write_text("<svg/>")
    with pytest.raises(AssertionError, match="make results"):
        agree_with_the_tool(filled)
    results.main(["write"])
    assert not stale.exists()
    assert own.exists()


def test_what_is_imported_says_the_same_without_what_only_its_machine_could_use(filled: Path, tmp_path: Path) -> None:
    runs, kept = tmp_path / "runs", filled / results.RUNS
    files = {Path(name).name for name in tree(kept)}
    assert files == {"config.json", "metrics.jsonl", "result.json", "measures.json", "error.json", "cost-cpu.json"}
    text = "".join(content.decode() for content in tree(kept).values())
    assert "/home" not in text
    before, after = ({(run.name, run.seed): run for run in read(place, quick=False).all} for place in (runs, kept))
    assert before.keys() == after.keys()
    for key, run in before.items():
        other = after[key]
        assert (run.state, run.error, run.data, run.measures) == (other.state, other.error, other.data, other.measures)
        assert run.final() == other.final(), "not a digit of what a run came to is lost"
        assert other.curve() == [(step, pytest.approx(value, rel=1e-6)) for step, value in run.curve()]
    moved = after["characters/enrnn", 0]
    assert moved.values["task"]["data"] is None
    assert moved.folder.endswith(moved.values["id"][:12])
    assert moved.values["id"] != before["characters/enrnn", 0].values["id"]


def test_names_of_folders_and_hosts_in_an_error_are_left_out(root: Path, tmp_path: Path) -> None:
    path = laid(made_up("adding/enrnn", 0.1), tmp_path / "runs", "failed")
    message = "cannot read '/home/somebody/data/ptb.train.txt', loss/step is 1/6"
    (path / "error.json").write_text(json.dumps({"error": "OSError", "message": message, "host": "abc", "process": 1}))
    assert results.main(["import", str(path)]) == 0
    (kept,) = (root / results.RUNS).glob("*/error.json")
    error = json.loads(kept.read_text())
    assert error.keys() == {"id", "error", "message"}
    assert error["message"] == "cannot read 'ptb.train.txt', loss/step is 1/6"


def test_a_device_that_a_run_names_itself_stays(root: Path, tmp_path: Path) -> None:
    run = made_up("adding/enrnn", 0.1)
    assert run.result is not None
    run.result["device_name"] = "a slide rule"
    results.main(["import", str(laid(run, tmp_path)), "--device-name", "an abacus"])
    (kept,) = (root / results.RUNS).glob("*/result.json")
    assert json.loads(kept.read_text())["device_name"] == "a slide rule"


def test_a_run_says_what_it_was_done_on(tmp_path: Path) -> None:
    config = Config(Adding(length=4, train_size=4, test_size=2, batch_size=2), run=RunSettings(steps=1))
    result = train(config, tmp_path)
    assert result["device_name"] == platform.machine()
    assert json.loads((tmp_path / config.folder_name / "result.json").read_text()) == result


def unfinished(runs: Path) -> Path:
    return laid(made_up("adding/enrnn", 0.1), runs, "unfinished")


def small(runs: Path) -> Path:
    return laid(made_up("adding/enrnn", 0.1, quick=True), runs)


def other_settings(runs: Path) -> Path:
    run = made_up("adding/enrnn", 0.1)
    run.values["optimizer"]["lr"] = 0.123
    return laid(run, runs)


def changed(runs: Path) -> Path:
    path = laid(made_up("adding/enrnn", 0.1), runs)
    config = path / "config.json"
    config.write_text(config.read_text().replace('"seed": 0,\n    "threads"', '"seed": 1,\n    "threads"'))
    return path


def of_another_run(runs: Path) -> Path:
    path = laid(made_up("adding/enrnn", 0.1), runs)
    result: dict[str, Any] = json.loads((path / "result.json").read_text())
    (path / "result.json").write_text(json.dumps(result | {"steps": 4000}))
    return path


def damaged(runs: Path) -> Path:
    path = laid(made_up("adding/enrnn", 0.1), runs)
    (path / "metrics.jsonl").write_text('{"step": 20')
    return path


def nothing(runs: Path) -> Path:
    runs.mkdir()
    return runs


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (unfinished, "is not finished: adding/enrnn, seed 0"),
        (small, "of the small version"),
        (other_settings, "none of the paper"),
        (changed, "was changed"),
        (of_another_run, "does not fit together"),
        (damaged, "is damaged"),
        (nothing, "no directory of a run"),
    ],
)
def test_what_is_no_whole_run_of_the_paper_is_refused_in_one_line(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], make: Any, words: str
) -> None:
    assert results.main(["import", str(make(tmp_path / "runs"))]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
    assert not (root / results.RUNS).exists()


def test_one_that_is_refused_does_not_keep_the_others_out(root: Path, tmp_path: Path) -> None:
    runs = several(tmp_path / "runs")
    laid(made_up("copying/lstm", 0.1), runs, "unfinished")
    assert results.main(["import", str(runs)]) == 2
    assert len(read(root / results.RUNS, quick=False).all) == 10


def test_a_run_that_is_there_is_replaced_only_when_asked(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def error() -> float | None:
        (run,) = read(root / results.RUNS, quick=False).all
        return run.final()

    first, second = (str(laid(made_up("adding/enrnn", value), tmp_path / str(value))) for value in (0.1, 0.2))
    assert results.main(["import", first]) == results.main(["import", first]) == 0
    assert results.main(["import", second]) == 2
    assert "--replace" in capsys.readouterr().err
    assert error() == 0.1
    assert results.main(["import", "--replace", second]) == 0
    assert error() == 0.2


def test_without_results_nothing_is_written(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert results.main(["write"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "no finished run yet" in line
    assert tree(root) == {results.README: README.encode()}


@pytest.mark.parametrize("text", ["no place", results.BEGIN, results.END + results.BEGIN])
def test_a_readme_without_a_place_is_left_alone(filled: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    (filled / results.README).write_text(text, encoding="utf-8")
    before = tree(filled)
    assert results.main(["write"]) == 2
    assert results.BEGIN in capsys.readouterr().err
    assert tree(filled) == before
