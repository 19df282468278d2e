"""Which recordings a speech corpus has, and to which split each belongs."""

import os
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple, NoReturn

TIMIT = "TIMIT"
"""What all of it is called, and nothing else."""
AUDIO = {".wav", ".sph", ".nist", ".flac"}
TRAIN_SPEAKERS = 462
SENTENCES = 8
"""A speaker's, without the two that everyone speaks (SA1 and SA2)."""
COMPLETE = (3696, 400, 192)
"""Utterances to train, validate and test with."""

# fmt: off
DEV_SPEAKERS = (
    "faks0", "fdac1", "fjem0", "mgwt0", "mjar0", "mmdb1", "mmdm2", "mpdf0", "fcmh0", "fkms0", "mbdg0", "mbwm0", "mcsh0", "fadg0",
    "fdms0", "fedw0", "mgjf0", "mglb0", "mrtk0", "mtaa0", "mtdt0", "mthc0", "mwjg0", "fnmr0", "frew0", "fsem0", "mbns0", "mmjr0",
    "mdls0", "mdlf0", "mdvc0", "mers0", "fmah0", "fdrw0", "mrcs0", "mrjm4", "fcal1", "mmwh0", "fjsj0", "majc0", "mjsw0", "mreb0",
    "fgjd0", "fjmg0", "mroa0", "mteb0", "mjfc0", "mrjr0", "fmml0", "mrws1",
)
CORE_SPEAKERS = (
    "mdab0", "mwbt0", "felc0", "mtas1", "mwew0", "fpas0", "mjmp0", "mlnt0", "fpkt0", "mlll0", "mtls0", "fjlm0", "mbpm0", "mklt0",
    "fnlp0", "mcmj0", "mjdh0", "fmgd0", "mgrt0", "mnjm0", "fdhc0", "mjln0", "mpam0", "fmld0",
)
# fmt: on


class Listing(NamedTuple):
    home: Path
    """The folder that names are relative to."""
    splits: dict[str, list[Path]]
    rest: list[Path]
    """Recordings in no split, whose lengths count for the padding nevertheless."""
    source: str
    """What they are, for people: a stand-in must not pass for TIMIT."""


def listing(folder: Path, *, complete: bool = True) -> Listing:
    """The recordings of a TIMIT tree (TRAIN and TEST), or any audio in folders train, valid and test.

    `folder` is one of these, or holds one that is called timit or speech. Of several the only TIMIT tree is taken.
    """
    home = _home(folder)
    inside = _parts(home)
    if _is_timit(inside):
        return _timit(home, inside["train"], inside["test"], complete)
    if not {"train", "valid", "test"} <= inside.keys():
        raise FileNotFoundError(f"{home} has neither a TIMIT tree (folders TRAIN and TEST) nor the folders train, valid and test")
    splits = {split: _audio(inside[split]) for split in ("train", "valid", "test")}
    if empty := [split for split, files in splits.items() if not files]:
        kinds = ", ".join(sorted(AUDIO))
        raise ValueError(f"no audio ({kinds}) in {' and '.join(str(inside[split]) for split in empty)}")
    return Listing(home, splits, [], f"recordings in {_name(home)}, {_counts(splits)} utterances (not TIMIT)")


def _home(folder: Path) -> Path:
    """Where the corpus is. Letter case decides nothing: it is not for the order of names to say which data are taken."""
    named = sorted(entry for entry in _entries(folder) if entry.name.lower() in ("timit", "speech") and entry.is_dir())
    parts = {home: _parts(home) for home in (folder, *named)}
    corpora = [home for home, inside in parts.items() if {"train", "test"} <= inside.keys()]
    chosen = [home for home in corpora if _is_timit(parts[home])] or corpora or named or [folder]
    if len(chosen) > 1:
        raise ValueError(f"{' and '.join(map(str, chosen))} may both be meant by {folder}: name the one that is")
    return chosen[0]


def _parts(home: Path) -> dict[str, Path]:
    """Its folders train, valid and test, in whatever letter case."""
    parts: dict[str, Path] = {}
    for entry in sorted(_entries(home)):
        part = entry.name.lower()
        if part not in ("train", "valid", "test") or not entry.is_dir():
            continue
        if part in parts:
            raise ValueError(f"{parts[part]} and {entry} differ in letter case alone: which is meant?")
        parts[part] = entry
    return parts


def _is_timit(inside: dict[str, Path]) -> bool:
    return inside.keys() == {"train", "test"}


def _timit(folder: Path, train: Path, test: Path, complete: bool) -> Listing:
    """3696/400/192: all of TRAIN, and of TEST the 50 development and the 24 core speakers, without the SA sentences.

    SA sentences are told by their file names. Wisdom's script dropped each *path* with "sa" in it, and with that seven speakers,
    for 3640; the paper's 3696 says that ENRNN did not.
    """
    training, testing = _speakers(train), _speakers(test)
    groups = {"train": sorted(training), "valid": DEV_SPEAKERS, "test": CORE_SPEAKERS}
    of = {"train": training, "valid": testing, "test": testing}
    if complete:
        problems = [f"missing speaker {name} of TEST" for name in (*DEV_SPEAKERS, *CORE_SPEAKERS) if name not in testing]
        if len(training) != TRAIN_SPEAKERS:
            problems.append(f"TRAIN has {len(training)} speakers instead of {TRAIN_SPEAKERS}")
        for split, names in groups.items():
            short = {name: len(of[split][name]) for name in names if name in of[split]}
            problems += [
                f"{count} sentences of {name} instead of {SENTENCES}" for name, count in short.items() if count != SENTENCES
            ]
        if problems:
            raise ValueError(f"{folder} is not all of TIMIT (complete=False takes what is there): " + "; ".join(problems))
    splits = {split: [file for name in names for file in of[split].get(name, [])] for split, names in groups.items()}
    if empty := [split for split, files in splits.items() if not files]:
        raise ValueError(f"{folder} has no recordings for the split {' and '.join(map(repr, empty))}")
    used = {*DEV_SPEAKERS, *CORE_SPEAKERS}
    rest = [file for name in sorted(testing) if name not in used for file in testing[name]]
    whole = tuple(map(len, splits.values())) == COMPLETE
    return Listing(folder, splits, rest, TIMIT if whole else f"a part of TIMIT, {_counts(splits)} utterances")


def _speakers(folder: Path) -> dict[str, list[Path]]:
    """Each speaker's sentences, SA apart, in the order of their names. Letter case means nothing anywhere.

    Some copies of TIMIT have a sentence twice, as SX37.WAV (SPHERE) and SX37.WAV.wav (RIFF): the shorter name is taken.
    """
    sentences: dict[str, dict[str, Path]] = defaultdict(dict)
    for file in sorted(_audio(folder), key=lambda file: (-len(file.name), file)):
        sentence = file.name.lower().partition(".")[0]
        if not sentence.startswith("sa"):
            sentences[file.parent.name.lower()][sentence] = file
    return {name: [files[sentence] for sentence in sorted(files)] for name, files in sentences.items()}


def _audio(folder: Path) -> list[Path]:
    """In all folders below, through links as well, but none twice. What begins with a dot is no recording.

    (macOS puts a `._SX37.WAV` beside SX37.WAV on disks that are not its own.)
    """
    files: list[Path] = []
    seen: set[str] = set()
    for home, folders, names in os.walk(folder, followlinks=True, onerror=_unreadable):
        if (place := os.path.realpath(home)) in seen:
            folders.clear()
            continue
        seen.add(place)
        folders[:] = [name for name in folders if not name.startswith(".")]
        files += [Path(home, name) for name in names if not name.startswith(".") and Path(name).suffix.lower() in AUDIO]
    return sorted(files)


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError as error:
        _unreadable(error)


def _unreadable(error: OSError) -> NoReturn:
    raise type(error)(f"cannot read the folder {error.filename}: {error.strerror}") from None


def _counts(splits: dict[str, list[Path]]) -> str:
    return "/".join(str(len(splits[split])) for split in ("train", "valid", "test"))


def _name(folder: Path) -> str:
    """Its last part, of `.` as well."""
    return os.path.basename(os.path.abspath(folder))
