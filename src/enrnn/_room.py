"""Whether a folder that was asked for can be written to, before hours of work end with nowhere to put them."""

import errno
import os
import tempfile
from pathlib import Path

FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))
"""That there is no space left is no mistake of whoever has named the folder."""


def check_folder(option: str, folder: str | Path) -> None:
    """That it is a folder, or is not there yet. Otherwise `ValueError`, which names the option."""
    there = _nearest(Path(folder))
    if not there.is_dir():
        raise ValueError(f"{option} takes a folder, and {there} is a file")


def check_room(option: str, folder: str | Path) -> None:
    """That it is a folder which can be written to, or can be made. It is tried out, and nothing of that stays."""
    check_folder(option, folder)
    there = _nearest(Path(folder))
    try:
        # By a name of its own: what others make at the same time is left alone.
        os.rmdir(tempfile.mkdtemp(prefix=".enrnn-", dir=there))
    except OSError as error:
        if error.errno in FULL:
            raise
        raise ValueError(f"{option} {folder}: nothing can be written in {there} ({error.strerror})") from None


def _nearest(folder: Path) -> Path:
    """It, or what there is of the way to it. (A path below a file is not there, nor is one that may not be looked at.)"""
    return next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path) or path.parent == path)
