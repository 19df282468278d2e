"""Output that lacks our letters, that nobody reads, or that has no room: no command ends in a traceback, and no run ends."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from enrnn.cli import main
from tests.cli.test_commands import SMALL


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_letters_that_an_encoding_lacks_are_question_marks(
    encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding=encoding))
    assert main(["train", "adding/enrnn", *SMALL, "--runs", str(tmp_path)]) == 0
    assert main(["recipes"]) == 0
    with pytest.raises(SystemExit):
        main(["sweep", "--help"])
    assert "?(T)" in written.getvalue().decode(encoding)


@pytest.fixture
def left() -> Iterator[io.TextIOWrapper]:
    """A pipe whose reader has gone."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w", encoding="utf-8") as stream:
        yield stream


def test_a_run_goes_on_when_nobody_reads(
    left: io.TextIOWrapper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout", left)
    assert main(["train", "adding/enrnn", *SMALL, "--runs", str(tmp_path)]) == 0
    assert len(list(tmp_path.glob("*/result.json"))) == 1
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("arguments", [["info"], ["recipes"], ["--help"], ["train", "--list"]])
def test_a_reader_who_has_left_is_no_mistake(
    arguments: list[str], left: io.TextIOWrapper, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout", left)
    assert _status(arguments) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize("arguments", [["info"], ["recipes"], ["--help"]])
def test_output_without_room_is_one_line(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr("sys.stdout", full)
        assert _status(arguments) == 1
    assert capsys.readouterr().err == "enrnn: the output cannot be written: No space left on device\n"


def test_without_an_output_a_command_does_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", None)  # as Python has it where file 1 is closed
    assert main(["recipes"]) == 0


def _status(arguments: list[str]) -> int:
    try:
        return main(arguments)
    except SystemExit as ended:
        return int(ended.code or 0)
