"""The demo: three processes side by side, a table, a figure; stopped, it goes on; broken, it says where."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import pytest
from torch import Tensor

from enrnn.cli import _demo, main
from enrnn.cli._demo import contenders, demo, table
from enrnn.training import Network, RunError
from enrnn.training._config import Config


def test_the_networks_are_of_equal_size_and_see_the_same_data() -> None:
    configs = contenders(300, 4000, 0)
    sizes = [Network(config.model, config.task.load()).num_parameters() for config in configs.values()]
    assert max(sizes) / min(sizes) < 1.01
    assert len({config.task for config in configs.values()}) == 1
    assert len({config.run for config in configs.values()}) == 1


def test_the_demo_leaves_a_table_a_figure_and_the_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    assert main(["demo", "--runs", str(tmp_path), "--length", "10", "--steps", "4"]) == 0
    out = capsys.readouterr().out
    for name in ("ENRNN 48/32", "scoRNN 86", "LSTM 30", "4,009", "test error"):
        assert name in out
    assert (tmp_path / "demo.png").read_bytes()[:4] == b"\x89PNG"
    assert len(list(tmp_path.glob("*/result.json"))) == 3


def test_without_matplotlib_the_rest_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.delitem(sys.modules, "enrnn.cli._figure", raising=False)
    assert _demo._figure({}, Path(), 10) == "not drawn: matplotlib is not installed (pip install 'enrnn[demo]')"


def test_a_run_that_fails_is_named_and_the_others_are_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(length: int, steps: int, seed: int) -> dict[str, Config]:
        lstm = contenders(length, steps, seed)["LSTM 30"]
        return {"sound": lstm, "LSTM 30": dataclasses.replace(lstm, run=dataclasses.replace(lstm.run, device="cuda:99"))}

    monkeypatch.setattr(_demo, "contenders", broken)
    with pytest.raises(RunError, match=r"^LSTM 30: run\.device is 'cuda:99'"):
        demo(tmp_path, length=10, steps=100_000)


def test_the_table_is_aligned() -> None:
    result = {"parameters": 4009, "last": {"test": {"mse": 0.01}}, "best": {"value": 0.009}, "steps": 3500, "seconds": 70.0}
    lines = table({"ENRNN": result, "a longer name": result}).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert lines[2].split() == ["ENRNN", "4,009", "0.0100", "0.0090", "50", "70"]


def test_the_figures_labels_keep_apart() -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    from matplotlib.figure import Figure

    from enrnn.cli._figure import _label_ends

    axes = Figure().subplots()
    _label_ends(axes, [(0.1, 5, "a", "red"), (0.1, 5, "b", "blue"), (0.09, 5, "c", "green")])
    places = sorted(text.xy[1] for text in axes.texts)  # type: ignore[attr-defined]
    assert all(high - low > 0.0129 for low, high in itertools.pairwise(places))


def test_eigenvalues_are_those_of_the_matrix() -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    from enrnn.cli._figure import _eigenvalues

    real, imaginary = _eigenvalues(Tensor([[0.0, -1.0], [1.0, 0.0]]))
    assert sorted(imaginary) == pytest.approx([-1, 1])
    assert real == pytest.approx([0, 0])
