"""Where the nodes of a cluster leave their runs: a folder that all of them see, or object storage, by way of fsspec.

A run needs a file system, for its lock and for files that are replaced whole. So in object storage there are copies: a node takes
the run from there, works on it in a folder of its own, and puts it back when it is finished, paused or failed, result.json last.
What a node had done of a run when the node was lost is done again; after the loss of a worker alone, its node goes on with it.
"""

import shutil
import tempfile
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import fsspec

from ..training import Config
from ._outcome import ERROR
from ._work import Ended, work

LAST = ("result.json", ERROR)


def work_in_storage(values: Mapping[str, Any], storage: str, until: int | None) -> Ended:
    """`work`, on a run that is kept at a URL."""
    runs = Path(tempfile.gettempdir()) / "enrnn-scratch" / sha256(storage.encode()).hexdigest()[:12]
    name = Config.from_dict(values).folder_name
    if _progress(storage, name) > _progress(str(runs), name):
        fetch(storage, name, runs)
    ended = work(values, str(runs), until)
    if ended != "busy":
        put(runs / name, storage)
        shutil.rmtree(runs / name)
    return ended


def fetch(storage: str, name: str, runs: Path) -> None:
    """The run's directory as it is at the URL, in place of what is in `runs`; nothing if it is not there."""
    fs, root = fsspec.core.url_to_fs(storage)
    if not fs.exists(f"{root}/{name}"):
        return
    runs.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".", suffix=".part", dir=runs) as part:
        for file in fs.find(f"{root}/{name}"):
            local = Path(part) / name / Path(file).relative_to(f"{root}/{name}")
            local.parent.mkdir(parents=True, exist_ok=True)
            fs.get_file(file, str(local))
        shutil.rmtree(runs / name, ignore_errors=True)
        (Path(part) / name).rename(runs / name)


def put(folder: Path, storage: str) -> None:
    """A run's directory to the URL. What says that it has ended goes last, when all the rest is there."""
    fs, root = fsspec.core.url_to_fs(storage)
    there = f"{root}/{folder.name}"
    files = [file for file in sorted(folder.rglob("*")) if file.is_file() and not file.name.startswith(".")]
    kept = {f"{there}/{file.relative_to(folder).as_posix()}" for file in files}
    for file in sorted(files, key=lambda file: file.name in LAST):
        target = f"{there}/{file.relative_to(folder).as_posix()}"
        fs.makedirs(target.rpartition("/")[0], exist_ok=True)
        fs.put_file(str(file), target)
    for old in set(fs.find(there)) - kept:
        fs.rm_file(old)


def leave_token(storage: str, name: str, text: str) -> None:
    fs, root = fsspec.core.url_to_fs(storage)
    fs.makedirs(root, exist_ok=True)
    fs.pipe_file(f"{root}/{name}", text.encode())


def read_token(storage: str, name: str) -> str | None:
    fs, root = fsspec.core.url_to_fs(storage)
    try:
        return bytes(fs.cat_file(f"{root}/{name}")).decode()
    except FileNotFoundError:
        return None


def remove_token(storage: str, name: str) -> None:
    fs, root = fsspec.core.url_to_fs(storage)
    fs.rm_file(f"{root}/{name}")


def _progress(storage: str, name: str) -> tuple[bool, str]:
    """Whether a run is finished, and the name of its newest checkpoint."""
    fs, root = fsspec.core.url_to_fs(storage)
    names = {file.rpartition("/")[2] for file in fs.find(f"{root}/{name}")} if fs.exists(f"{root}/{name}") else set()
    return "result.json" in names, max((file for file in names if file.endswith(".ckpt")), default="")
