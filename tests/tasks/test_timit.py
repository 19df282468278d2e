"""TIMIT's tree: 3696, 400 and 192 utterances, whatever the letter case, and everything that is missing named at once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from enrnn.tasks._timit import CORE_SPEAKERS, DEV_SPEAKERS, listing

SENTENCES = ["sa1", "sa2", "si1", "si2", "si3", "sx1", "sx2", "sx3", "sx4", "sx5"]


def grow(folder: Path, *, train: list[str], test: list[str], upper: bool = True, suffix: str = ".WAV") -> Path:
    for part, speakers in (("train", train), ("test", test)):
        for number, speaker in enumerate(speakers):
            home = folder.joinpath(*(name.upper() if upper else name for name in (part, f"dr{number % 8 + 1}", speaker)))
            home.mkdir(parents=True)
            for sentence in SENTENCES:
                (home / ((sentence.upper() if upper else sentence) + suffix)).touch()
            (home / "SX1.PHN").touch()
    return folder


TRAIN = [*(f"mtr{number:03}" for number in range(455)), "fsag0", "fsah0", "fsak0", "msah1", "msas0", "msat0", "msat1"]
TEST = [*DEV_SPEAKERS, *CORE_SPEAKERS, *(f"fxx{number:02}" for number in range(94))]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return grow(tmp_path_factory.mktemp("timit"), train=TRAIN, test=TEST)


def test_the_split(tree: Path) -> None:
    assert (len(set(DEV_SPEAKERS)), len(set(CORE_SPEAKERS)), len({*DEV_SPEAKERS, *CORE_SPEAKERS})) == (50, 24, 74)
    found = listing(tree)
    assert {split: len(files) for split, files in found.splits.items()} == {"train": 3696, "valid": 400, "test": 192}
    assert len(found.rest) == 94 * 8
    assert len({file for files in [*found.splits.values(), found.rest] for file in files}) == 3696 + 400 + 192 + 752
    assert not [file for files in found.splits.values() for file in files if file.name.startswith("SA")]
    assert {file.parent.name.lower() for file in found.splits["valid"]} == set(DEV_SPEAKERS)
    assert {file.parent.name.lower() for file in found.splits["test"]} == set(CORE_SPEAKERS)
    with_sa = {file.parent.name for file in found.splits["train"] if "SA" in file.parent.name}
    assert len(with_sa) == 7, "a speaker with SA in the name is not an SA sentence"
    assert listing(tree) == found


def test_letter_case_and_suffix_mean_nothing(tmp_path: Path) -> None:
    some = {"train": ["maaa0", "mbbb0"], "test": [DEV_SPEAKERS[0], CORE_SPEAKERS[0]]}
    names = []
    for number, (upper, suffix) in enumerate([(True, ".WAV"), (False, ".wav"), (False, ".sph"), (True, ".WAV.wav")]):
        folder = grow(tmp_path / str(number), upper=upper, suffix=suffix, **some)
        splits = listing(folder, complete=False).splits
        names.append({split: [file.name.lower().partition(".")[0] for file in files] for split, files in splits.items()})
    assert names[0] == names[1] == names[2] == names[3]
    assert names[0]["train"] == SENTENCES[2:] * 2


def test_a_sentence_that_is_there_twice_is_taken_once(tmp_path: Path) -> None:
    folder = grow(tmp_path, train=["maaa0"], test=[DEV_SPEAKERS[0], CORE_SPEAKERS[0]])
    for file in list(folder.rglob("*.WAV")):
        file.with_name(file.name + ".wav").touch()
    assert [file.name for file in listing(folder, complete=False).splits["valid"]] == [
        f"{name.upper()}.WAV" for name in SENTENCES[2:]
    ]


def test_all_that_is_missing_is_named_at_once(tree: Path, tmp_path: Path) -> None:
    for part in ("TRAIN", "TEST"):
        for speaker in (tree / part).glob("*/*"):
            home = tmp_path / speaker.relative_to(tree)
            if speaker.name not in ("MTR007", DEV_SPEAKERS[3].upper(), CORE_SPEAKERS[5].upper()):
                home.parent.mkdir(parents=True, exist_ok=True)
                home.symlink_to(speaker, target_is_directory=True)
    short = tmp_path / "TRAIN" / "DR1" / "MTR000"
    short.unlink()
    short.mkdir()
    (short / "SX1.WAV").touch()
    with pytest.raises(ValueError, match="is not all of TIMIT") as caught:
        listing(tmp_path)
    message = str(caught.value)
    for part in (f"missing speaker {DEV_SPEAKERS[3]}", f"missing speaker {CORE_SPEAKERS[5]}", "461 speakers instead of 462"):
        assert part in message
    assert "1 sentences of mtr000 instead of 8" in message
    found = {split: len(files) for split, files in listing(tmp_path, complete=False).splits.items()}
    assert found == {"train": 3696 - 8 - 7, "valid": 392, "test": 184}


def test_other_folders(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="neither a TIMIT tree"):
        listing(tmp_path)
    for split in ("Train", "VALID", "test"):
        (tmp_path / split / "deeper").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"no audio .* in .*Train and .*VALID and .*test"):
        listing(tmp_path)
    for number, split in enumerate(("Train", "VALID", "test")):
        for name in ("b.FLAC", "a.wav", "deeper/c.sph", "notes.txt")[: number + 1]:
            (tmp_path / split / name).touch()
    found = listing(tmp_path)
    assert {split: [file.name for file in files] for split, files in found.splits.items()} == {
        "train": ["b.FLAC"],
        "valid": ["a.wav", "b.FLAC"],
        "test": ["a.wav", "b.FLAC", "c.sph"],
    }
    with pytest.raises(ValueError, match=r"has no recordings for the split 'valid' and 'test'"):
        listing(grow(tmp_path / "partial", train=["maaa0"], test=["mzzz9"]), complete=False)


def test_a_link_that_leads_back_is_followed_once(tmp_path: Path) -> None:
    folder = grow(tmp_path, train=["maaa0"], test=[DEV_SPEAKERS[0], CORE_SPEAKERS[0]])
    (folder / "TRAIN" / "DR1" / "loop").symlink_to(folder / "TRAIN", target_is_directory=True)
    assert len(listing(folder, complete=False).splits["train"]) == 8


def test_a_folder_that_cannot_be_read_is_named_and_not_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = grow(tmp_path, train=["maaa0", "mbbb0"], test=[DEV_SPEAKERS[0], CORE_SPEAKERS[0]])
    scandir = os.scandir

    def denied(place: str) -> Any:
        if Path(place).name == closed:
            raise PermissionError(13, "Permission denied", str(place))
        return scandir(place)

    monkeypatch.setattr("os.scandir", denied)
    monkeypatch.setattr("os.listdir", lambda place: [entry.name for entry in denied(place)])
    for closed in ("MBBB0", folder.name):
        with pytest.raises(PermissionError, match=f"cannot read the folder .*{closed}: Permission denied"):
            listing(folder, complete=False)


def test_what_begins_with_a_dot_is_no_recording(tmp_path: Path) -> None:
    folder = grow(tmp_path, train=["maaa0"], test=[DEV_SPEAKERS[0], CORE_SPEAKERS[0]])
    expected = listing(folder, complete=False)
    for file in list(folder.rglob("*.WAV")):
        file.with_name(f"._{file.name}").touch()
    hidden = folder / "TRAIN" / ".AppleDouble"
    hidden.mkdir()
    (hidden / "SX9.WAV").touch()
    assert listing(folder, complete=False) == expected


@pytest.mark.parametrize("called", ["timit", "TIMIT", "Timit"])
def test_letter_case_does_not_say_which_of_two_corpora_is_taken(tmp_path: Path, called: str) -> None:
    for split in ("train", "valid", "test"):
        (tmp_path / "speech" / split).mkdir(parents=True)
        (tmp_path / "speech" / split / "a.wav").touch()
    other = tmp_path / called
    other.mkdir()
    assert listing(tmp_path).home == tmp_path / "speech", "a folder without recordings is no corpus"
    grow(other, train=["maaa0"], test=[DEV_SPEAKERS[0], CORE_SPEAKERS[0]])
    assert listing(tmp_path, complete=False).home == other, "TIMIT rather than what stands in for it"
    (other / "valid").mkdir()
    with pytest.raises(ValueError, match=f"({called}|speech) and .*(speech|{called}) may both be meant"):
        listing(tmp_path, complete=False)


def test_splits_that_differ_in_letter_case_alone_are_refused(tmp_path: Path) -> None:
    for split in ("TRAIN", "train", "test"):
        (tmp_path / split).mkdir(exist_ok=True)
    if len(list(tmp_path.iterdir())) < 3:
        pytest.skip("a file system on which letter case means nothing")
    with pytest.raises(ValueError, match=r"TRAIN and .*train differ in letter case alone"):
        listing(tmp_path)


def test_what_the_recordings_are_is_told(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert listing(tree).source == "TIMIT"
    part = grow(tmp_path / "part", train=["maaa0"], test=[DEV_SPEAKERS[0], CORE_SPEAKERS[0]])
    assert listing(part, complete=False).source == "a part of TIMIT, 8/8/8 utterances"
    for split in ("train", "valid", "test"):
        (tmp_path / "mine" / split).mkdir(parents=True)
        (tmp_path / "mine" / split / "a.wav").touch()
    monkeypatch.chdir(tmp_path / "mine")
    assert listing(Path()).source == "recordings in mine, 1/1/1 utterances (not TIMIT)"
