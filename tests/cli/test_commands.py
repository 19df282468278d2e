"""The command line: one line for a mistake, the right exit status, and no import that `--help` does not need."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch

import enrnn
from enrnn._nearest import nearest_setting
from enrnn.cli import main
from enrnn.cli._commands import reported
from enrnn.cli._errors import words
from enrnn.cli._interrupts import ending_at_once
from enrnn.recurrence import _engines

SMALL = [
    *("--device", "cpu", "--set", "task.length=12", "--set", "task.train_size=100", "--set", "task.test_size=20"),
    *("--set", "model.hidden_size=6", "--set", "model.short_size=3", "--set", "model.negative_ones=1", "--set", "run.steps=8"),
    *("--set", "run.evaluate_every=4", "--set", "model.backend=torch"),
]


def test_help_is_there_in_half_a_second_and_imports_no_torch() -> None:
    code = "import sys; from enrnn.cli import main\ntry: main(['--help'])\nfinally: assert 'torch' not in sys.modules"
    begin = time.perf_counter()
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert time.perf_counter() - begin < 0.5
    assert "train" in run.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "ading/enrnn"], "enrnn train: unknown recipe 'ading/enrnn'; did you mean adding/enrnn"),
        (["train", "adding/enrnn", "--set", "optimizer.lrr=1"], "unknown setting optimizer.lrr; did you mean optimizer.lr"),
        (["train", "adding/enrnn", "--set", "optimizer.lr=fast"], "optimizer.lr should be a number, got: 'fast'"),
        (["train", "adding/enrnn", "--set", "optimizer.lr"], "--set takes KEY=VALUE, got: 'optimizer.lr'"),
        (
            ["train", "adding/ornn", "--set", "model.options.reflecters=8"],
            "network 'ornn' has no option 'reflecters'; did you mean",
        ),
        (["train", "adding/enrnn", "--device", "gpu"], "device must be cpu, cuda or cuda:N, got: 'gpu'"),
        (["train", "adding/enrnn", "--text", "file.txt"], "--text is for characters, and adding has no use for it; leave it out"),
        (["train", "copying/lstm", "--data", "x"], "--data is for speech, characters, pixels, and copying has no use for it"),
        (["sweep", "speech/enrnn", "--text", "x"], "--text is for characters, and speech has no use for it; leave it out"),
        (["train", "speech/enrnn"], "no data folder: give --data FOLDER (in Python, data=FOLDER) or set ENRNN_DATA"),
        (["train", "characters/enrnn", "--text", "no/such/file"], "no such text file: no/such/file"),
        (["train", "adding/enrnn", "--set", "model.backend=cuda", "--device", "cpu"], "backend='cuda' cannot run this"),
        (["train", "pixels/enrnn", "--data", "no/such/folder"], "data names a folder that does not exist: no/such/folder"),
        (["resume", "no-such-run"], "no run is called 'no-such-run' under"),
        (["train", "adding/enrnn", "--set", "lr=1e-3"], "enrnn train: unknown setting lr; did you mean optimizer.lr?\n"),
        (["train", "adding/enrnn", "--set", "task.name=copying"], "task.name cannot be changed: it is what the recipe is for"),
    ],
)
def test_a_mistake_is_one_line_and_exit_status_two(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("ENRNN_DATA", raising=False)
    assert main([*arguments, "--runs", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert "Traceback" not in captured.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [[], ["trian"], ["train"], ["train", "adding/enrnn", "--nonsense"]])
def test_a_line_that_cannot_be_parsed_is_one_line_and_exit_status_two(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_gpu_that_is_not_there_is_a_clear_mistake(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert main(["train", "adding/enrnn", "--device", "cuda", "--runs", str(tmp_path)]) == 2
    assert "run.device is 'cuda', but torch sees no such device here" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_run_from_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["train", "adding/enrnn", *SMALL, "--runs", str(tmp_path)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("adding/enrnn: ")
    assert out[1] == "baseline: mse 0.16667 (always 1)"
    assert "4/8  loss " in out[2]
    assert "\x1b" not in "".join(out)
    (folder,) = tmp_path.iterdir()
    assert json.loads((folder / "result.json").read_text())["steps"] == 8
    assert main(["train", "adding/enrnn", *SMALL, "--runs", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines() == [f"this run is finished: {folder}", out[-1]]
    assert main(["resume", folder.name[:-3], "--runs", str(tmp_path)]) == 0


def test_a_network_of_the_zoo_with_its_own_option_and_events(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    changes = ["task.length=12", "task.train_size=100", "task.test_size=20", "run.steps=4", "model.options.reflectors=3"]
    options = [f"--set={change}" for change in changes]
    assert main(["train", "adding/ornn", *options, "--device", "cpu", "--tensorboard", "--runs", str(tmp_path)]) == 0
    assert "adding/ornn: test mse " in capsys.readouterr().out
    (folder,) = tmp_path.iterdir()
    assert folder.name.startswith("adding-ornn-")
    assert json.loads((folder / "config.json").read_text())["model"]["options"] == {"reflectors": 3}
    assert len(list((folder / "tensorboard").iterdir())) == 1


def test_a_failed_run_is_one_line_and_exit_status_one(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    changes = ["--set", "optimizer.name=adam", "--set", "optimizer.lr=1e30"]
    assert main(["train", "adding/enrnn", *SMALL, *changes, "--runs", str(tmp_path)]) == 1
    assert "step" in capsys.readouterr().err


# Both ways out of a run are tested in tests/faults; here it is the command's own part.
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow)])
def test_a_stopped_command_saves_and_has_the_signals_exit_status(number: signal.Signals, status: int, tmp_path: Path) -> None:
    arguments = ["train", "adding/enrnn", *SMALL, "--set", "run.steps=1000000", "--runs", str(tmp_path)]
    command = subprocess.Popen(
        [sys.executable, "-m", "enrnn", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert command.stdout is not None
    while "loss" not in command.stdout.readline():
        assert command.poll() is None
    command.send_signal(number)
    _, err = command.communicate(timeout=60)
    assert command.returncode == status
    assert "everything is saved" in err
    assert "Traceback" not in err
    (folder,) = tmp_path.iterdir()
    assert len(list((folder / "checkpoints").glob("*.ckpt"))) >= 1


def test_info_says_what_is_there_and_why_something_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    assert main(["info"]) == 0
    out = capsys.readouterr().out
    for word in ("torch", "devices", "backends", "reference", "cuda", "ENRNN_DATA", "tensorboard", "enrnn recipes"):
        assert word in out


@pytest.mark.parametrize(("value", "said"), [("torch", "torch, in place of auto"), ("bogus", "'bogus', which is none of auto, ")])
def test_info_says_which_backend_the_environment_asks_for(
    value: str, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_engines, "OVERRIDE", value)
    assert main(["info"]) == 0
    assert f"ENRNN_BACKEND  {said}" in capsys.readouterr().out


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"enrnn {enrnn.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "adding/enrnn", "--lr", "1e-3"], "unrecognized arguments: --lr 1e-3; did you mean --set optimizer.lr=1e-3?"),
        (["train", "adding/enrnn", "--seed=3"], "--seed=3; did you mean --set run.seed=3 or --set task.seed=3?"),
        (["sweep", "adding/enrnn", "--tensorboard"], "--tensorboard; did you mean --set run.tensorboard=true?"),
        (["train", "adding/enrnn", "--hidden-size"], "--hidden-size; did you mean --set model.hidden_size=VALUE?"),
        (["paper", "--quik"], "unrecognized arguments: --quik; did you mean --quick?"),
        (["paper", "--zzz"], "unrecognized arguments: --zzz"),
        (["resume", "a", "b"], "unrecognized arguments: b"),
    ],
)
def test_an_argument_that_a_command_does_not_take_is_told_by_that_command(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith(f"enrnn {arguments[0]}: unrecognized arguments: ")
    assert err.endswith(f"{message} (see enrnn {arguments[0]} --help)\n")


COMMANDS = [
    *(["train", "adding/enrnn", *SMALL], ["sweep", "adding/enrnn", *SMALL], ["sweep", "adding/enrnn", *SMALL, "--dry-run"]),
    *(["demo"], ["paper", "table1", "--quick"], ["resume", "x"], ["report", "x"], ["paper", "--collect"]),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: f"{command[0]} {command[-1]}")
def test_a_file_in_the_place_of_runs_is_a_mistake(command: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for runs in (tmp_path / "file", tmp_path / "file" / "below"):
        assert main([*command, "--runs", str(runs)]) == 2
        message = f"enrnn {command[0]}: --runs takes a folder, and {tmp_path / 'file'} is a file\n"
        assert capsys.readouterr() == ("", message)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="there is no folder that nobody can write to")
@pytest.mark.parametrize("command", COMMANDS[:5], ids=lambda command: f"{command[0]} {command[-1]}")
def test_runs_where_nothing_can_be_written_are_a_mistake(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--runs", "/proc/enrnn"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"enrnn {command[0]}: --runs /proc/enrnn: nothing can be written in /proc (")
    assert err.count("\n") == 1


def test_a_full_disk_is_no_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(prefix: str, dir: Path) -> str:
        raise OSError(errno.ENOSPC, "No space left on device", str(dir))

    monkeypatch.setattr(tempfile, "mkdtemp", full)
    assert main(["train", "adding/enrnn", *SMALL, "--runs", str(tmp_path)]) == 1


def test_a_finished_run_is_shown_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", "adding/enrnn", *SMALL, "--runs", str(tmp_path)]
    assert main(command) == 0

    def refused(prefix: str, dir: Path) -> str:
        raise PermissionError(errno.EACCES, "Permission denied", str(dir))

    monkeypatch.setattr(tempfile, "mkdtemp", refused)
    capsys.readouterr()
    assert main(command) == 0
    assert "this run is finished" in capsys.readouterr().out


def test_a_run_that_is_not_there_is_answered_with_a_few_names(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for seed in range(7):
        (tmp_path / f"adding-enrnn-{seed}").mkdir()
        (tmp_path / f"adding-enrnn-{seed}" / "config.json").touch()
    few = ", ".join(f"adding-enrnn-{seed}" for seed in range(5))
    answers = {
        "adding/enrnn": f"no run is called 'adding/enrnn' under {tmp_path}; did you mean adding-enrnn-",
        "zzzz": f"no run is called 'zzzz' under {tmp_path}; there: {few} and 2 more\n",
        "adding": f"several runs match 'adding' under {tmp_path}: {few} and 2 more; give more of the name\n",
    }
    for name, answer in answers.items():
        assert main(["resume", name, "--runs", str(tmp_path)]) == 2
        assert answer in capsys.readouterr().err


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("lr", "did you mean optimizer.lr?"),
        ("seed", "did you mean task.seed or run.seed?"),
        ("optimiser.lr", "did you mean optimizer.lr?"),
        ("sed", "did you mean task.seed or run.seed?"),
        ("run.sed", "did you mean run.seed?"),
        ("run.qqqq", "there are: run.seed, run.steps"),
        ("qqqq", "settings are called task.…, run.…, optimizer.…"),
    ],
)
def test_the_nearest_setting(path: str, answer: str) -> None:
    assert nearest_setting(path, ["task.seed", "run.seed", "run.steps", "optimizer.lr"]) == answer


OF_TORCH = "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 1024 bytes. Error code 12"


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "runs"), 1, "runs: Permission denied"),
        (OSError(errno.ENOSPC, "No space left on device"), 1, "No space left on device"),
        (FileNotFoundError("no such text file: t"), 2, "no such text file: t"),
        (RuntimeError(OF_TORCH), 1, "out of memory (1024 bytes were asked for at once); choose a smaller network or"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), 1, "out of memory (2.00 GiB were asked for"),
        (MemoryError(), 1, "out of memory; choose"),
    ],
)
def test_an_error_is_one_line_with_what_it_is_about(
    error: Exception, status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing() -> None:
        raise error

    assert reported("train", failing) == status
    err = capsys.readouterr().err
    assert err.startswith(f"enrnn train: {message}")
    assert err.count("\n") == 1


def test_what_nobody_has_foreseen_is_not_hidden() -> None:
    assert words(KeyError("x")) == "KeyError: 'x'"
    with pytest.raises(RuntimeError, match="strange"):
        reported("train", _strange)


def _strange() -> None:
    raise RuntimeError("strange")


INTERRUPTING = """
import os, signal, sys
from enrnn.cli import main

class Torch:
    def find_spec(self, name, *others):
        if name == "torch":
            try:
                os.kill(os.getpid(), signal.SIGINT)
                for _ in range(1000): pass
            except BaseException:
                pass  # as compiled modules do, which take it for a module that is missing

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Torch())
main(["info"])
"""


def test_an_interrupt_while_torch_is_imported_ends_the_command_quietly() -> None:
    run = subprocess.run([sys.executable, "-c", INTERRUPTING], capture_output=True, text=True)
    assert (run.returncode, run.stdout, run.stderr) == (130, "", "")


def test_an_interrupt_later_on_is_an_exception_again() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with ending_at_once():
            assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
            assert reported("train", lambda: os.kill(os.getpid(), signal.SIGINT)) == 130
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
