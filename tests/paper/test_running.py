"""Runs that are begun, stopped, measured, failed, killed: each is done once, and none stands in the way of another."""

from __future__ import annotations

import errno
import json
import multiprocessing as mp
import os
import signal
import tempfile
import threading
import time
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pytest
import torch

from enrnn.cli import main
from enrnn.paper import _pool, collect, configured, perform
from enrnn.paper._measure import measures, speech_scores, stops
from enrnn.paper._pool import PaperStoppedError
from enrnn.paper._work import Job, do
from enrnn.recipes import recipe
from enrnn.tasks import Speech
from enrnn.training import RunFolder, Start, Watch, train
from enrnn.training._wire import Sent
from tests.paper import _serving
from tests.tasks._files import riff, speech_folder
from tests.training._runs import differences, outcome, tiny

README = Path(__file__).parents[2] / "README.md"
SMALL = {
    **{"task.length": 10, "task.train_size": 100, "task.test_size": 20, "task.batch_size": 10, "run.device": "cpu"},
    **{"model.hidden_size": 8, "model.short_size": 4, "model.negative_ones": 1, "model.backend": "torch", "optimizer.lr": 0.05},
    **{"run.steps": 40, "run.evaluate_every": 2, "run.checkpoint_every": 40},
}
ENRNN = recipe("adding/enrnn").override(SMALL)
GRADIENTS = ENRNN.override({"run.steps": 50})


def test_a_run_is_stopped_for_looks_and_is_the_run_that_was_not(tmp_path: Path) -> None:
    do("adding/enrnn", ENRNN.as_dict(), str(tmp_path / "looked"), None)
    train(ENRNN, tmp_path / "alone")
    name = ENRNN.folder_name
    others = [
        d for d in differences(outcome(tmp_path / "looked" / name), outcome(tmp_path / "alone" / name)) if "measures" not in d
    ]
    assert others == []
    found = measures(RunFolder(tmp_path / "looked" / name))
    assert list(map(int, found["short"])) == [*stops(list(range(2, 41, 2))), 0, 40] == [2, 4, 10, 20, 0, 40]
    last = found["short"]["40"]
    assert len(last["eigenvalues"]) == 4
    assert last["radius"] == pytest.approx(max(abs(complex(*pair)) for pair in last["eigenvalues"]), rel=1e-4)
    assert last["norms"][0] == 1
    assert found["pseudospectrum"]["kreiss"] > 0
    assert found["complete"] is True


def test_heat_maps_are_those_of_the_batch_that_comes_next(tmp_path: Path) -> None:
    do("adding/enrnn_sixth_epoch", GRADIENTS.as_dict(), str(tmp_path), None)
    maps = measures(RunFolder(tmp_path / GRADIENTS.folder_name))["gradients"]
    assert (maps["epoch"], maps["place"]) == (6, 1)
    for part in ("long", "short"):
        values = torch.tensor(maps[part])
        assert values.shape == (10, 10)
        assert bool((values.triu(1) == 0).all())
        assert bool((values.diagonal() > 0).all())


def test_many_at_once_and_one_that_fails_stops_no_other(tmp_path: Path) -> None:
    bad = Job("speech/enrnn", recipe("speech/enrnn").override({"task.data": str(tmp_path / "nowhere"), "run.device": "cpu"}))
    good = [Job("adding/enrnn_96_16", ENRNN.override({"run.seed": seed})) for seed in range(2)]
    told: list[str] = []
    perform([good[0], bad, *good[1:]], tmp_path, 2, lambda job: told.append(job.name))
    assert sorted(told) == sorted(job.name for job in (bad, *good))
    assert [job.done(tmp_path) for job in good] == [True] * 2
    assert not bad.done(tmp_path)
    error = json.loads((tmp_path / bad.folder_name / "error.json").read_text())
    assert "nowhere" in error["message"]
    runs = {run["recipe"]: run for run in collect(tmp_path)["runs"]}
    assert runs["speech/enrnn"]["state"] == "failed"
    assert "nowhere" in runs["speech/enrnn"]["error"]
    before = (tmp_path / good[0].folder_name / "result.json").stat().st_mtime_ns
    perform([good[0]], tmp_path, 1, lambda job: None)
    assert (tmp_path / good[0].folder_name / "result.json").stat().st_mtime_ns == before


class Listed(Watch):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def started(self, start: Start) -> None:
        self.heard.append(f"started at {start.done}")

    def evaluated(self, record: dict[str, Any]) -> None:
        self.heard.append(str(record["step"]))

    def finished(self, result: dict[str, Any]) -> None:
        self.heard.append("finished")


def test_who_watches_is_told_how_a_run_goes(tmp_path: Path) -> None:
    job, watch = Job("adding/enrnn_96_16", ENRNN), Listed()
    events: list[str] = []

    def begun(job: Job) -> Watch:
        events.append("begun")
        return watch

    perform([job], tmp_path, 1, lambda job: events.append("ended"), begun=begun)
    assert events == ["begun", "ended"]
    assert watch.heard == ["started at 0", *(str(step) for step in range(2, 41, 2)), "finished"]


def test_a_run_does_not_mind_that_nobody_listens(tmp_path: Path) -> None:
    here, there = mp.Pipe(duplex=False)
    here.close()
    assert train(tiny(steps=2), tmp_path, Sent(there))["steps"] == 2


def test_a_run_that_was_stopped_with_the_command_is_still_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_pool, "_serve", _serving.serve_and_be_stopped)
    # It is seen that the process has ended before it is seen that the command is to stop.
    monkeypatch.setattr(_pool, "wait", lambda ready, seconds: wait([each for each in ready if isinstance(each, int)], 60))
    jobs = [Job("adding/enrnn_96_16", ENRNN.override({"run.seed": seed})) for seed in range(2)]
    ended: list[Job] = []
    with pytest.raises(PaperStoppedError, match=r"^stopped by SIGINT with 2 runs to do; everything is saved"):
        perform(jobs, tmp_path, 1, ended.append)
    assert (tmp_path / jobs[0].folder_name).is_dir()
    assert not (tmp_path / jobs[1].folder_name).exists()
    assert ended == []


def test_a_process_that_is_killed_is_a_run_that_has_failed(tmp_path: Path) -> None:
    job = Job("adding/enrnn_96_16", ENRNN.override({"run.steps": 1_000_000}))
    worker = threading.Thread(target=perform, args=([job], tmp_path, 1, lambda job: None))
    worker.start()
    while not (tmp_path / job.folder_name / "metrics.jsonl").exists():
        time.sleep(0.05)
    for process in mp.active_children():
        os.kill(process.pid or 0, signal.SIGKILL)
    worker.join(30)
    assert not worker.is_alive()
    assert "status -9" in json.loads((tmp_path / job.folder_name / "error.json").read_text())["message"]


def test_the_command_names_what_it_does_not_know(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["paper", "figure-ading"]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "did you mean figure-adding" in err
    assert main(["paper", "figure-gradients", "--quick", "--dry-run", "--runs", str(tmp_path)]) == 0
    assert "1 run, 1 to do, 0 left out" in capfd.readouterr().out
    assert main(["paper", "--jobs", "0", "--runs", str(tmp_path), "figure-gradients", "--out", str(tmp_path / "out")]) == 2
    assert "--jobs" in capfd.readouterr().err


def refused(prefix: str, dir: Path) -> str:
    raise PermissionError(errno.EACCES, "Permission denied", str(dir))


def test_what_is_wanting_is_one_line_before_anything_is_done(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    cases = {
        ("table-cost", "--quick", "--device", "cuda:99"): "run.device is 'cuda:99', but torch sees no such device here",
        ("table1", "--quick", "--device", "cuda:99"): "run.device is 'cuda:99', but torch sees no such device here",
        ("table-cost", "--quick", "--device", "gpu"): "device must be cpu, cuda or cuda:N, got: 'gpu'",
        ("table1", "--quick", "--runs", "file"): "enrnn paper: --runs takes a folder, and file is a file",
        ("table1", "--quick", "--out", "file"): "enrnn paper: --out takes a folder, and file is a file",
        ("table1", "--quick", "--out", "file", "--dry-run"): "enrnn paper: --out takes a folder, and file is a file",
        (
            "table1",
            "--quick",
            "--out",
            "file/x",
            "--collect",
            "--runs",
            ".",
        ): f"--out takes a folder, and {tmp_path / 'file'} is a file",
        ("--collect", "--runs", "tpyo"): "--runs: there is no folder tpyo",
    }
    for arguments, message in cases.items():
        assert main(["paper", *arguments]) == 2
        out, err = capfd.readouterr()
        assert out == ""
        assert message in err
        assert err.count("\n") == 1
    monkeypatch.setattr(tempfile, "mkdtemp", refused)
    for arguments in (("--quick",), ("--quick", "--dry-run")):
        assert main(["paper", "table1", *arguments]) == 2
        out, err = capfd.readouterr()
        assert (out, err) == ("", f"enrnn paper: --runs runs: nothing can be written in {tmp_path} (Permission denied)\n")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_damaged_result_is_a_run_that_has_failed(tmp_path: Path) -> None:
    config = configured("adding/enrnn_sixth_epoch", quick=True)
    folder = RunFolder.create(config, tmp_path)
    (folder.path / "result.json").write_text("{")
    (run,) = collect(tmp_path, quick=True)["runs"]
    assert run["state"] == "failed"
    assert "remove it, and the run goes on" in run["error"]


def test_the_front_page_the_help_and_the_command_agree_on_the_small_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["paper", "--help"])
    assert "a small version, in some three minutes" in " ".join(capsys.readouterr().out.split())
    (line,) = [line for line in README.read_text(encoding="utf-8").splitlines() if line.startswith("enrnn paper --quick")]
    assert "three minutes" in line
    assert line.endswith("open report-quick/index.html")


def test_without_runs_there_is_still_a_page(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    assert main(["paper", "--collect", "--runs", str(tmp_path / "none"), "--out", str(tmp_path / "out")]) == 0
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["runs"] == []
    verdicts = {claim["verdict"] for claim in results["claims"]}
    assert verdicts == {"cannot be judged", "not reproduced"}  # the parameter counts need no run
    assert list((tmp_path / "none").iterdir()) == []


def test_utterances_without_a_score_are_counted_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("scipy")
    data = speech_folder(tmp_path / "speech")
    (data / "test" / "001.wav").write_bytes(riff(torch.zeros(2000, dtype=torch.int16)))
    monkeypatch.setattr("enrnn.paper._measure.available", lambda: {"segsnr": None, "stoi": "is not wanted"})
    config = tiny(Speech(data=str(data), batch_size=2, eval_batch_size=2), steps=2)
    train(config, tmp_path / "runs")
    scores = speech_scores(config, RunFolder(tmp_path / "runs" / config.folder_name))
    assert scores["scored"] == {"segsnr": 3}
    assert scores["failed"] == {"segsnr": ["test/001.wav: no active speech in the reference"]}
    assert scores["means"].keys() == {"segsnr"}
