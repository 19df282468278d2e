"""The demo: three processes side by side, a table, a figure; stopped, it goes on; broken, it says where."""

from __future__ import annotations

import dataclasses
import io
import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from torch import Tensor

from enrnn.cli import _demo, main
from enrnn.cli._demo import contenders, demo, table
from enrnn.training import Network, RunError, RunFolder
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
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.delitem(sys.modules, "enrnn.cli._figure", raising=False)
    assert _demo._figure({}, Path(), 10) == "not drawn: matplotlib is not installed (the extra enrnn[demo] brings it)"


def test_a_run_that_fails_is_named_and_the_others_are_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(length: int, steps: int, seed: int) -> dict[str, Config]:
        lstm = contenders(length, steps, seed)["LSTM 30"]
        return {"sound": lstm, "LSTM 30": dataclasses.replace(lstm, run=dataclasses.replace(lstm.run, device="cuda:99"))}

    monkeypatch.setattr(_demo, "contenders", broken)
    with pytest.raises(RunError, match=r"^LSTM 30: run\.device is 'cuda:99'"):
        demo(tmp_path, length=10, steps=100_000)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_what_is_finished_is_not_done_again_and_has_no_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for config in contenders(10, 4, 0).values():
        result = {"id": config.id, "parameters": 4000, "last": {"test": {"mse": 0.1}}, "best": {"value": 0.1}}
        RunFolder.create(config, tmp_path).finish(result | {"steps": 4, "seconds": 1.0})
    monkeypatch.setattr(_demo, "_figure", lambda *_: "none")
    monkeypatch.setattr(_demo, "_started", lambda *_: pytest.fail("a process was started"))
    monkeypatch.setattr("sys.stdout", screen := Terminal())
    assert list(demo(tmp_path, length=10, steps=4)) == ["ENRNN 48/32", "scoRNN 86", "LSTM 30"]
    assert "starting" not in screen.getvalue()
    assert screen.getvalue().count("is finished, and not done again") == 3


@pytest.mark.skipif(os.name == "nt", reason="has no such signal for a process")
def test_stopped_it_says_that_it_goes_on_and_everything_is_saved(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "enrnn", "demo", "--runs", str(tmp_path), "--length", "10", "--steps", "1000000"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True)
    folders = [RunFolder(tmp_path / config.folder_name) for config in contenders(10, 1_000_000, 0).values()]
    deadline = time.monotonic() + 120
    try:
        while not all(folder.path.is_dir() and folder.records() for folder in folders):
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline, "it has not begun"
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does it, to all of its processes
        _, told = process.communicate(timeout=60)
    finally:
        if process.poll() is None:  # nothing of it stays behind
            os.killpg(process.pid, signal.SIGKILL)
    assert told == "enrnn demo: stopped by SIGINT; everything is saved, and the same command goes on from there\n"
    assert process.returncode == 130
    assert all(list(folder.checkpoints.glob("*.ckpt")) for folder in folders)


def test_the_table_is_aligned() -> None:
    result = {"parameters": 4009, "last": {"test": {"mse": 0.01}}, "best": {"value": 0.009}, "steps": 3500, "seconds": 70.0}
    lines = table({"ENRNN": result, "a longer name": result}).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert lines[2].split() == ["ENRNN", "4,009", "0.0100", "0.0090", "50", "70"]


def test_every_curve_is_inside_the_figure_and_no_word_on_one(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    from matplotlib.figure import Figure

    from enrnn.cli._figure import _curves

    configs = contenders(10, 300, 0)
    for config, highest in zip(configs.values(), (0.9, 0.17, 0.16), strict=True):
        folder = RunFolder.create(config, tmp_path)
        for step, error in ((100, highest), (200, 0.165), (300, 0.16)):
            folder.add_record({"step": step, "mse": error})
    axes = Figure().subplots()
    _curves(axes, configs, tmp_path, 10)
    low, high = axes.get_ylim()
    assert all(low <= y <= high for line in axes.lines for y in line.get_ydata())  # type: ignore[union-attr]
    assert all(text.get_position()[0] > 0 and text.xy[0] == 300 for text in axes.texts), "names stand behind the ends"  # type: ignore[attr-defined]
    assert axes.get_legend_handles_labels()[1] == ["1/6: who always answers 1"]


def test_the_figures_labels_keep_apart() -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    from matplotlib.figure import Figure

    from enrnn.cli._figure import _label_ends

    axes = Figure().subplots()
    _label_ends(axes, [(0.1, 5, "a", "red"), (0.1, 5, "b", "blue"), (0.09, 5, "c", "green")])
    places = sorted(text.xy[1] for text in axes.texts)  # type: ignore[attr-defined]
    assert all(high - low > 0.05 * axes.get_ylim()[1] for low, high in itertools.pairwise(places))


def test_eigenvalues_are_those_of_the_matrix() -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    from enrnn.cli._figure import _eigenvalues

    real, imaginary = _eigenvalues(Tensor([[0.0, -1.0], [1.0, 0.0]]))
    assert sorted(imaginary) == pytest.approx([-1, 1])
    assert real == pytest.approx([0, 0])
