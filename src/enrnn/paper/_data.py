"""Which data there are, and what they are called: a stand-in must not pass for the paper's."""

from typing import NamedTuple

from ..tasks._task import DATA_VARIABLE, data_folder
from ..tasks._timit import TIMIT, listing

PTB = "c65a5a01c1ae37596d689925e6e97d409468a1a9e45b309fdf2ba5b0ad2b3659"
"""The fingerprint of the Penn Treebank in Mikolov's files, as `enrnn.tasks.Characters` takes it."""

PTB_NAME, PYTHON_NAME, TIMIT_NAME = "Penn Treebank", "Python's standard library (not the Penn Treebank)", TIMIT


class Available(NamedTuple):
    """The name of what is there, or else None and the reason."""

    name: str | None
    reason: str = ""


def text(folder: str | None, quick: bool) -> Available:
    """For character prediction. The small version makes do with the sources of Python's library."""
    found = data_folder(folder)
    if found is not None and any((place / "ptb.train.txt").is_file() for place in (found, found / "ptb")):
        return Available(PTB_NAME)
    if quick:
        return Available(PYTHON_NAME)
    where = f"{found} has no ptb/ptb.train.txt" if found is not None else f"give --data FOLDER or set {DATA_VARIABLE}"
    return Available(None, f"the Penn Treebank is not here: {where}")


def speech(folder: str | None) -> Available:
    """TIMIT, which needs a licence, or any folder of recordings that stands in for it."""
    found = data_folder(folder)
    if found is None:
        return Available(None, f"there is no speech: give --data FOLDER or set {DATA_VARIABLE}; it must hold a TIMIT tree")
    try:
        return Available(listing(found).source)
    except (ValueError, OSError) as error:
        return Available(None, f"there is no speech: {error}")
