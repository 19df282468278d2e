"""One page in a folder, whole or not at all."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ._page import page


def write(results: Mapping[str, Any], folder: Path) -> Path:
    """Write `folder/index.html`, which needs no other file and no network, and return its path."""
    content = page(results)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "index.html"
    unfinished = folder / f".index.html.{os.getpid()}"
    unfinished.write_text(content, encoding="utf-8")
    unfinished.replace(file)
    return file
