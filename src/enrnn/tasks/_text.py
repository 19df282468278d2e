"""Texts for the character task: the Penn Treebank, a file of the user's, or the sources of Python's standard library."""

import hashlib
import sysconfig
from pathlib import Path
from typing import NamedTuple

PTB_CHARACTERS = {"train": 5_101_618, "valid": 399_782, "test": 449_945}
PTB_SYMBOLS = 50
LIBRARY_SYMBOLS = {"\n", *map(chr, range(32, 127))}


class Corpus(NamedTuple):
    source: str
    """What it is, for people."""
    splits: dict[str, str]


def penn_treebank(folder: Path) -> Corpus:
    """Mikolov's word files `ptb.{train,valid,test}.txt`, every character kept: spaces, newlines and the five of `<unk>`.

    That these are the paper's data is inferred from its counts, 5102k/400k/450k and 50 symbols; files with others are refused.
    """
    home = next((place for place in (folder, folder / "ptb") if (place / "ptb.train.txt").is_file()), None)
    if home is None:
        raise FileNotFoundError(f"no ptb.train.txt in {folder} nor in {folder / 'ptb'}: Mikolov's PTB files are wanted there")
    splits = {split: read(home / f"ptb.{split}.txt") for split in PTB_CHARACTERS}
    found = {split: len(text) for split, text in splits.items()}
    if found != PTB_CHARACTERS:
        raise ValueError(f"the files in {home} have {_numbers(found)} characters; Mikolov's have {_numbers(PTB_CHARACTERS)}")
    if (symbols := len(set().union(*splits.values()))) != PTB_SYMBOLS:
        raise ValueError(f"the files in {home} have {symbols} distinct characters; Mikolov's have {PTB_SYMBOLS}")
    return Corpus("the Penn Treebank", splits)


def one_file(file: Path) -> Corpus:
    """Any UTF-8 text: its first 90 % to train on, the next 5 % to validate, the rest to test."""
    return Corpus(str(file.absolute()), _parted(read(file)))


def standard_library() -> Corpus:
    """The modules at the top of Python's own library, in the order of their names.

    Only newlines and printable ASCII are kept, so that there are 96 symbols whatever the version of Python; the text itself
    differs from version to version, which is why `Data.fingerprint` is there.
    """
    folder = Path(sysconfig.get_path("stdlib"))
    files = sorted(folder.glob("*.py"), key=lambda file: file.name)
    if not files:
        raise FileNotFoundError(f"Python's standard library has no sources in {folder}; name a text with --text FILE")
    whole = "".join(file.read_bytes().decode("utf-8", errors="replace") for file in files)
    kept = "".join(character for character in whole if character in LIBRARY_SYMBOLS)
    return Corpus(f"the sources of Python {sysconfig.get_python_version()}'s standard library", _parted(kept))


def read(file: Path) -> str:
    """A UTF-8 file as it is: no character is translated, neither line ends nor a byte-order mark."""
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        raise FileNotFoundError(f"no such text file: {file}") from None
    except OSError as error:
        raise type(error)(f"cannot read the text file {file}: {error.strerror}") from None
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = content[error.start]
        raise ValueError(f"{file} is not UTF-8: byte 0x{byte:02x} at offset {error.start} ({error.reason})") from None


def fingerprint(corpus: Corpus) -> str:
    digest = hashlib.sha256()
    for split, text in corpus.splits.items():
        content = text.encode()
        digest.update(f"{split}:{len(content)}:".encode())
        digest.update(content)
    return digest.hexdigest()


def _parted(text: str) -> dict[str, str]:
    train, valid = len(text) * 90 // 100, len(text) * 95 // 100
    return {"train": text[:train], "valid": text[train:valid], "test": text[valid:]}


def _numbers(counts: dict[str, int]) -> str:
    return "/".join(f"{count:,}" for count in counts.values())
