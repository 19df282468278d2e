"""Runs of the paper that share a GPU, without a GPU: through MPS where it is there, and tried again when they have lost it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from enrnn.paper import _pool, perform
from enrnn.paper._plan import Plan
from enrnn.paper._reproduce import Display, _run
from enrnn.paper._work import Job
from enrnn.recipes import recipe
from enrnn.sweep._work import LOST
from tests.paper import _serving
from tests.sweep._mps import SEEN, FakeMps, told

JOBS = [Job("adding/enrnn", recipe("adding/enrnn").override({"run.device": "cuda", "run.seed": seed})) for seed in range(3)]


class Said(Display):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)


@pytest.fixture
def mps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeMps]:
    with FakeMps.installed(tmp_path / "mps", monkeypatch) as fake:
        yield fake


def test_runs_at_a_time_on_a_gpu_find_a_daemon(mps: FakeMps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_pool, "_serve", _serving.serve_and_tell)
    said = Said()
    _run(Plan(JOBS, {}, ()), tmp_path, None, "cuda", False, said)
    assert said.lines[0] == "3 runs, 3 to do, 3 at a time on one GPU, through MPS"
    assert told(tmp_path) == [dict.fromkeys(SEEN) | {"CUDA_MPS_PIPE_DIRECTORY": mps.calls[0][1]}] * 3
    assert [call[0] for call in mps.calls] == ["start", "quit"]


def test_a_run_alone_on_its_gpu_needs_none(mps: FakeMps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_pool, "_serve", _serving.serve_and_tell)
    said = Said()
    _run(Plan(JOBS[:2], {}, ()), tmp_path, 1, "cuda", False, said)
    assert said.lines[0] == "2 runs, 2 to do, 1 at a time on one GPU"
    assert told(tmp_path) == [dict.fromkeys(SEEN)] * 2
    assert mps.calls == []


def test_a_run_whose_process_has_lost_its_gpu_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_pool, "_serve", _serving.serve_without_gpu)
    ended: list[Job] = []
    perform(JOBS, tmp_path, 2, ended.append)
    assert len(list(tmp_path.glob("lost-*"))) == len(told(tmp_path)) == len(ended) == 3
    assert not list(tmp_path.glob("*/error.json"))


@pytest.mark.parametrize(
    ("serve", "message"),
    [
        (_serving.serve_without_gpu, "the GPU is lost"),
        (_serving.serve_without_gpu_or_a_word, f"its process has ended with status {LOST}"),
    ],
)
def test_one_that_loses_it_again_and_again_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serve: Callable[..., None], message: str
) -> None:
    monkeypatch.setattr(_pool, "_serve", serve)
    monkeypatch.setattr(_pool, "RETRIES", 0)
    perform(JOBS[:1], tmp_path, 1, lambda job: None)
    error = json.loads((tmp_path / JOBS[0].folder_name / "error.json").read_text())
    assert error["message"] == message
