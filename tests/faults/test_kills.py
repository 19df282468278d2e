"""A run that is stopped, however and wherever, and resumed, ends as if it had not been stopped: in every bit."""

from __future__ import annotations

import dataclasses
import random
import signal
from pathlib import Path

import pytest

from enrnn.tasks import Characters
from enrnn.training import Config, ModelSettings, OptimizerSettings, Progress, Start, StoppedError, Watch, train
from enrnn.training import _loop as loop_module
from enrnn.training._signals import StopSignals
from tests._record import Recorder
from tests.faults._child import SAVE_FAULTS, Fault, run_child
from tests.training._runs import COPYING, differences, outcome, text_task, tiny

EXIT_CODES = {signal.SIGKILL: -9, signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGHUP: 129}


def configs(folder: Path) -> dict[str, Config]:
    text: Characters = text_task(folder)
    return {
        "enrnn, adding": tiny(),
        "lstm, text, carried state": tiny(
            text, ModelSettings("lstm", hidden_size=5, embedding=True), OptimizerSettings("adam", lr=1e-2)
        ),
        "scornn, copying": tiny(
            COPYING,
            ModelSettings(hidden_size=6, short_size=0, backend="torch"),
            OptimizerSettings("adagrad", lr=0.1, clip_norm=1.0),
        ),
        "enrnn, text, normalising": tiny(
            text,
            ModelSettings(hidden_size=8, short_size=6, nonlinearity="relu", embedding=True, backend="torch"),
            OptimizerSettings("rmsprop", lr=3e-2, momentum=0.5),
        ),
    }


NAMES = ("enrnn, adding", "lstm, text, carried state", "scornn, copying", "enrnn, text, normalising")


def finished(config: Config, runs: Path, faults: list[Fault]) -> int:
    """The run to its end through all the faults; how many of them came to pass."""
    happened = 0
    for fault in faults:
        code = run_child(config, runs, fault)
        assert code in (0, EXIT_CODES[signal.Signals(fault.number)])
        happened += code != 0
    assert run_child(config, runs, None) == 0
    return happened


@pytest.mark.parametrize("name", NAMES)
def test_a_killed_run_ends_as_one_that_was_left_alone(name: str, tmp_path: Path, full: bool, record: Recorder) -> None:
    config = configs(tmp_path)[name]
    train(config, tmp_path / "alone")
    expected = outcome(tmp_path / "alone" / config.folder_name)
    draw = random.Random(name)
    kills = 0
    for attempt in range(9 if full else 1):
        runs = tmp_path / f"killed-{attempt}"
        faults = [
            Fault("step", draw.randint(1, 12), draw.choice([signal.SIGKILL, signal.SIGTERM])),
            Fault(draw.choice(SAVE_FAULTS), draw.randint(1, 4)),
            Fault("step", draw.randint(1, 8), draw.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT])),
        ]
        kills += finished(config, runs, faults)
        assert differences(outcome(runs / config.folder_name), expected) == []
    record(cases_kills=kills, cases_lost=0)
    assert kills >= (2 if not full else 18)


@pytest.mark.parametrize("where", SAVE_FAULTS)
@pytest.mark.parametrize("count", [1, 3])
def test_a_run_killed_in_the_middle_of_a_save_loses_nothing(where: str, count: int, tmp_path: Path, record: Recorder) -> None:
    config = tiny()
    train(config, tmp_path / "alone")
    assert finished(config, tmp_path / "killed", [Fault(where, count)]) == 1
    one, other = (outcome(tmp_path / which / config.folder_name) for which in ("alone", "killed"))
    assert differences(one, other) == []
    record(cases_kills=1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_run_asked_to_stop_saves_its_very_step(number: signal.Signals, tmp_path: Path) -> None:
    config = tiny(checkpoint_every=100)
    assert run_child(config, tmp_path, Fault("step", 5, number)) == EXIT_CODES[number]
    (checkpoint,) = (tmp_path / config.folder_name / "checkpoints").glob("*.ckpt")
    assert checkpoint.name == "step-000000000005.ckpt"


def test_who_was_told_to_outlive_the_terminal_does() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with StopSignals() as signals:
            signal.raise_signal(signal.SIGHUP)
            assert signals.received == 0
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_every_step_is_a_place_to_stop(tmp_path: Path, full: bool, record: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, by SIGTERM after each step in turn: one run that is stopped over and over."""
    monkeypatch.setattr(loop_module, "BETWEEN_LOOKS", 0.0)
    config = dataclasses.replace(tiny(), run=dataclasses.replace(tiny().run, checkpoint_every=None))
    train(config, tmp_path / "alone")
    stops = 0
    for every in (1, 2, 3, 5, 8) if full else (1, 3):
        runs = tmp_path / f"stopped-{every}"
        while True:
            try:
                train(config, runs, StopAfter(every))
            except StoppedError:
                stops += 1
            else:
                break
        one, other = (outcome(path / config.folder_name) for path in (tmp_path / "alone", runs))
        assert differences(one, other) == []
    record(cases_stops=stops)
    assert stops >= 24


class StopAfter(Watch):
    """Sends SIGTERM once `count` steps were done."""

    def __init__(self, count: int) -> None:
        self.count, self.goal = count, 0

    def started(self, start: Start) -> None:
        self.goal = start.done + self.count

    def advanced(self, progress: Progress) -> None:
        if progress.done >= self.goal:
            signal.raise_signal(signal.SIGTERM)
            self.goal = 10**9
