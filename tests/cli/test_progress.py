"""The progress of runs, on a terminal and elsewhere."""

from __future__ import annotations

import dataclasses
import io
import os
from typing import Any

import pytest

from enrnn.cli._progress import Screen, _clock, _short
from enrnn.cli._several import Live
from enrnn.training import Progress, Start

START = Start("run", "runs/run", 200, 0, 1234, "mse", 1 / 6, "always 1")
RECORD: dict[str, Any] = {"step": 100, "loss": 0.25, "mse": 0.0001, "spectral_radius": 0.9}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_shows_loss_metric_radius_speed_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr("time.monotonic", lambda: float(next(clock)))
    bar = Screen(io.StringIO()).watch("name")
    bar.started(START)
    bar.evaluated(RECORD)
    line = bar.text(200)
    for part in ("━━━━━━━━━━━━────────────", "100/200", "loss 0.2500", "mse 1.0e-04", "ρ(T) 0.9000", "steps/s", "left"):
        assert part in line


@pytest.mark.parametrize("width", [10, 20, 40, 79, 200])
def test_a_bar_fits_its_terminal(width: int) -> None:
    bar = Screen(io.StringIO()).watch("a rather long name")
    assert len(bar.text(width)) <= width
    bar.started(START)
    bar.evaluated(RECORD)
    assert len(bar.text(width)) <= width


def test_bars_stay_in_place_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((80, 24)))
    stream = Terminal()
    with Screen(stream) as screen:
        one, two = screen.watch("one"), screen.watch("two", announced=False)
        one.started(START)
        two.started(START)
        one.advanced(Progress(7, 0.5, None))
        screen.say("a word")
    lines = replay(stream.getvalue())
    assert lines[:3] == ["one: 1,234 parameters, 200 steps, in runs/run", "baseline: mse 0.16667 (always 1)", "a word"]
    assert [line[:3] for line in lines[3:]] == ["one", "two"]
    assert stream.getvalue().endswith("\x1b[?25h")


def replay(text: str) -> list[str]:
    """What a terminal shows that has been sent `text`."""
    lines, row = [""], 0
    for piece in text.replace("\x1b[?25l", "").replace("\x1b[?25h", "").split("\x1b["):
        if piece.startswith("2K"):
            lines[row], piece = "", piece[2:]
        elif piece.startswith("J"):
            del lines[row + 1 :]
            lines[row], piece = "", piece[1:]
        elif piece[:2].rstrip("A").isdigit() and "A" in piece[:3]:
            up, _, piece = piece.partition("A")
            row -= int(up)
        for index, part in enumerate(piece.split("\n")):
            if index:
                row += 1
                lines += [""] * (row + 1 - len(lines))
            lines[row] = lines[row] + part if not index else part or lines[row]
    return [line for line in lines if line]


def test_elsewhere_there_are_plain_lines_and_only_at_evaluations() -> None:
    stream = io.StringIO()
    with Screen(stream) as screen:
        bar = screen.watch("name")
        bar.started(START)
        bar.advanced(Progress(50, 0.5, None))
        bar.evaluated(RECORD)
    assert len(stream.getvalue().splitlines()) == 3
    assert "\x1b" not in stream.getvalue()


RESULT: dict[str, Any] = {"metric": "mse", "last": {"test": {"mse": 0.25}}, "steps": 7, "switched_at": None}


def test_what_was_read_is_said_at_the_beginning_and_at_the_end() -> None:
    stream = io.StringIO()
    with Screen(stream) as screen:
        bar = screen.watch("name")
        bar.started(dataclasses.replace(START, data="a text"))
        bar.finished({**RESULT, "data": "a text"})
    lines = stream.getvalue().splitlines()
    assert lines[1] == "data: a text"
    assert lines[-1] == "name: test mse 0.25 after 7 steps, on a text"


def test_a_result_can_be_shown_of_a_run_that_was_not_started() -> None:
    stream = io.StringIO()
    with Screen(stream) as screen:
        screen.watch("").finished(RESULT)
    assert stream.getvalue() == "test mse 0.25 after 7 steps\n"


def test_several_runs_have_a_bar_each_while_they_are_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((80, 24)))
    stream = Terminal()
    with Screen(stream) as screen:
        live = Live(screen)
        live.say("3 runs")
        for name in ("one", "two"):
            watch = live.begun(name)
            watch.started(START)
            watch.said("going on after step 7")
            watch.advanced(Progress(7, 0.5, None))
        live.ended("one", "[1/3, 5 s] one: finished")
        live.begun("three")
        lines = replay(stream.getvalue())
        assert lines[:2] == ["3 runs", "[1/3, 5 s] one: finished"]
        assert [line.split()[0] for line in lines[2:]] == ["two", "three"]
        assert "7/200" in lines[2]
        live.begun("two")  # anew, for its process has died
        assert [line.split() for line in replay(stream.getvalue())[2:]] == [["three", "starting"], ["two", "starting"]]


def test_elsewhere_a_run_has_a_line_when_it_begins_and_one_when_it_has_ended() -> None:
    stream = io.StringIO()
    with Screen(stream) as screen:
        live = Live(screen)
        watch = live.begun("one")
        watch.started(START)
        watch.evaluated(RECORD)
        watch.finished(RESULT)
        live.ended("one", "[1/1, 5 s] one: finished")
    assert stream.getvalue() == "one: begun\n[1/1, 5 s] one: finished\n"


def test_more_bars_than_lines_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((80, 5)))
    stream = Terminal()
    with Screen(stream) as screen:
        for number in range(7):
            screen.watch(str(number))
        screen.draw()
        screen.draw()
    assert [line.split()[0] for line in replay(stream.getvalue())] == ["0", "1", "2", "…"]
    assert replay(stream.getvalue())[-1] == "… and 4 more"


def test_sizes_are_short_however_large() -> None:
    values = (0.25, 5e-4, 4.9e-4, 0.0, 99999.0, 14257520212540705996800.0, -2e6)
    assert [_short(value) for value in values] == ["0.2500", "0.0005", "4.9e-04", "0.0000", "99999.0000", "1.4e+22", "-2.0e+06"]


def test_time_is_read_as_on_a_clock() -> None:
    assert [_clock(seconds) for seconds in (0, 59.6, 61, 3725)] == ["0:00", "1:00", "1:01", "1:02:05"]
