"""The report says what the runs' directories say: which point is best, how flat the optimum is, and on one page."""

from __future__ import annotations

import json
import re
import shlex
from html.parser import HTMLParser
from pathlib import Path

import pytest

from enrnn.cli import main
from enrnn.recipes import recipe
from enrnn.sweep import Standing, Sweep, findings
from enrnn.sweep._page import page
from enrnn.training import Config, RunError, RunFolder
from tests.sweep._small import small_sweep


def with_scores(runs: Path, scores: dict[tuple[str, str], list[float]]) -> Sweep:
    """A sweep whose runs were never done: their directories say that they came to these scores, one a seed."""
    rates, shares = (list(dict.fromkeys(key[place] for key in scores)) for place in (0, 1))
    grid = [f"optimizer.lr={','.join(rates)}", f"model.short_size={','.join(shares)}"]
    sweep = small_sweep(runs, grid, seeds=len(next(iter(scores.values()))))
    for point in sweep.points:
        values = scores.get((point.values["optimizer.lr"], point.values["model.short_size"]), [])
        for trial, score in zip(point.trials, values, strict=False):
            folder = RunFolder.create(trial.config, runs)
            folder.add_record({"step": 20, "mse": score})
            folder.finish({"id": trial.config.id})
    return sweep


SCORES = {
    **{("1e-2", "0.25"): [0.30, 0.34], ("1e-2", "0.5"): [0.102, 0.102], ("1e-2", "0.75"): [0.5, 0.5]},
    **{("1e-3", "0.25"): [0.20, 0.20], ("1e-3", "0.5"): [0.09, 0.11], ("1e-3", "0.75"): [0.4, 0.4]},
}


def test_what_a_sweep_has_found(tmp_path: Path) -> None:
    found = findings(with_scores(tmp_path, SCORES))
    assert found.best.values == {"optimizer.lr": "1e-3", "model.short_size": "0.5"}
    assert found.best.score == pytest.approx(0.1)
    assert found.within(0.05) == 2
    variances = [0.02**2 * 2, 0, 0, 0, 0.01**2 * 2, 0]
    assert found.spread == pytest.approx((sum(variances) / 6) ** 0.5)
    assert found.within_spread == 2
    profile = next(one for one in found.profiles if one.key == "model.short_size")
    assert [profile.at(value) for value in ("0.25", "0.5", "0.75")] == pytest.approx([0.2, 0.1, 0.4])


def test_the_command_of_the_best_point_is_the_best_points_run(tmp_path: Path) -> None:
    found = findings(with_scores(tmp_path, SCORES))
    assert of_command(found.command).id == found.best.point.trials[0].config.id


def of_command(command: str) -> Config:
    words = shlex.split(command)
    changes = dict(word.split("=", 1) for place, word in enumerate(words) if words[place - 1] == "--set")
    return recipe(words[2]).override({"run.device": words[-1], **changes})


def test_the_command_has_options_and_names_with_spaces(tmp_path: Path) -> None:
    text = tmp_path / "some text.txt"
    text.write_text("all work and no play " * 200, encoding="utf-8")
    base = recipe("characters/enrnn").override({"task.text": str(text), "model.hidden_size": 8, "model.short_size": 4} | SMALL)
    sweep = Sweep.of("characters/enrnn", base, tmp_path)
    sweep.extend([{"model.options.short": "renormalized"}], seeds=1)
    folder = RunFolder.create(sweep.trials[0].config, tmp_path)
    folder.add_record({"step": 20, "bits_per_character": 4.0})
    assert of_command(findings(sweep).command).id == sweep.trials[0].config.id


SMALL = {"model.negative_ones": 1, "task.length": 5, "task.batch_size": 2, "task.eval_batch_size": 2, "run.steps": 20}


def test_points_of_several_grids_are_told_apart(tmp_path: Path) -> None:
    """What a point does not name it has from the base, and a value has one name however it was given."""
    sweep = small_sweep(tmp_path, ["optimizer.lr=1e-2,1e-3"])
    sweep.extend([{"optimizer.lr": "0.01", "model.short_size": "0.25"}, {}], seeds=1)
    standing = Standing(sweep)
    assert standing.axes == {"optimizer.lr": ["0.0001", "1e-3", "1e-2"], "model.short_size": ["0.25", "0.5"]}
    shown = [tuple(row.values.values()) for row in standing.rows()]
    assert sorted(shown) == [("0.0001", "0.5"), ("1e-2", "0.25"), ("1e-2", "0.5"), ("1e-3", "0.5")]


class Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]


def test_the_page_needs_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = with_scores(tmp_path, SCORES)
    assert main(["report", sweep.path.name[:12], "--runs", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "2 of 6 points within 5% of the best, 2 within one standard deviation over seeds" in out
    assert re.search(r"model\.short_size +0\.5 +0\.1 +\+100\.0% +\+300\.0% +\+300\.0% at 0\.75", out)
    reader = Page()
    text = (sweep.path / "report.html").read_text(encoding="utf-8")
    reader.feed(text)
    assert reader.counts["svg"] == 3  # two settings, and one pair of them
    assert reader.counts["rect"] == 6
    assert (reader.links, reader.counts.get("script", 0)) == ([], 0)
    assert "prefers-color-scheme: dark" in text


def strengths(text: str) -> dict[str, float]:
    """Of a map's cells, by their values."""
    return {
        score: float(share) for share, score in re.findall(r'<rect class="cell" fill-opacity="([\d.]+)".*?<title>(\S+)', text)
    }


def test_a_maps_colour_is_in_proportion_to_the_value(tmp_path: Path) -> None:
    rates = dict(zip(("1e-2", "1e-3", "1e-4"), ((0.14457, 0.05), (0.14467, 0.1), (0.15, 0.145)), strict=True))
    scores = {(rate, share): [score] for rate, pair in rates.items() for share, score in zip(("0.25", "0.5"), pair, strict=True)}
    text = page(findings(with_scores(tmp_path, scores)))
    found = strengths(text)
    assert (found["0.05"], found["0.15"]) == (0.8, 0.05)
    assert found["0.1"] == pytest.approx((0.8 + 0.05) / 2, abs=0.01)
    assert found["0.14457"] - found["0.14467"] < 0.01
    assert re.findall(r'<text class="of"[^>]*>([^<]*)', text) == ["mse"]


def test_a_map_of_several_decades_is_on_a_logarithmic_scale_and_says_so(tmp_path: Path) -> None:
    rates = {"1e-2": (1.0, 0.1), "1e-3": (0.01, 0.03)}
    scores = {(rate, share): [score] for rate, pair in rates.items() for share, score in zip(("0.25", "0.5"), pair, strict=True)}
    text = page(findings(with_scores(tmp_path, scores)))
    assert strengths(text)["0.1"] == pytest.approx((0.8 + 0.05) / 2, abs=0.01)
    assert re.findall(r'<text class="of"[^>]*>([^<]*)', text) == ["mse (log scale)"]


def test_a_plots_axis_has_a_name_and_round_numbers(tmp_path: Path) -> None:
    scores = {("1e-2", "0.25"): [0.0386], ("1e-2", "0.5"): [0.155], ("1e-3", "0.25"): [0.1], ("1e-3", "0.5"): [0.07]}
    text = page(findings(with_scores(tmp_path, scores)))
    plot = text[text.index("<svg") : text.index("</svg>")]
    assert re.findall(r'rotate\(-90\)" text-anchor="middle">([^<]+)', plot) == ["mse"]
    assert re.findall(r'text-anchor="end">([^<]+)', plot) == ["0.05", "0.1", "0.15"]


def test_a_sweep_without_an_evaluation_has_no_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = small_sweep(tmp_path)
    with pytest.raises(RunError, match="no run has been evaluated yet"):
        findings(sweep)
    assert main(["report", str(sweep.path), "--runs", str(tmp_path)]) == 1
    assert not (sweep.path / "report.html").exists()
    assert capsys.readouterr().err.count("\n") == 1


def test_a_random_search_is_drawn_along_a_scale(tmp_path: Path) -> None:
    scores = {(f"{10 ** -(1 + k / 5):.3g}", "0.5"): [1 + (k - 7) ** 2] for k in range(20)}
    found = findings(with_scores(tmp_path, scores))  # type: ignore[arg-type]
    text = page(found)
    assert "polyline" not in text
    assert len(re.findall(r'<circle class="all"', text)) == 20
    places = [float(x) for x in re.findall(r'<circle class="all" cx="([\d.]+)"', text)]
    assert max(places) <= 330
    assert min(places) >= 66
    assert json.dumps(found.best.values["optimizer.lr"]) == json.dumps(f"{10 ** -(1 + 7 / 5):.3g}")
