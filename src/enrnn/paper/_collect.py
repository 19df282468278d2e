"""Everything in one place: tables, figures, claims and runs, as plain values for results.json and the page."""

import platform
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from ._claims import judged
from ._figures import figures
from ._found import Found, read
from ._items import chosen
from ._quick import TITLE
from ._tables import tables

NAME = "Eigenvalue Normalized Recurrent Neural Networks for Short Term Memory"


def collect(runs: str | Path, quick: bool = False, what: Sequence[str] = ()) -> dict[str, Any]:
    """What the directories under `runs` come to, of the items asked for (all). It reads, and changes nothing.

    Arguments:
        quick: take the runs of the small version instead of the paper's. The two never mix.
        what: names of `ITEMS`.
    """
    items = chosen(what)
    found = read(Path(runs), quick)
    return {
        "title": f"{NAME}: {TITLE}" if quick else NAME,
        "made": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "environment": _environment(found),
        "quick": quick,
        "tables": tables(found, items, quick),
        "figures": figures(found, items, quick),
        "claims": judged(found, quick),
        "runs": [
            {
                "id": run.values["id"],
                "recipe": run.name,
                "seed": run.seed,
                "state": run.state,
                "seconds": run.result["seconds"] if run.result is not None else None,
                "error": run.error,
            }
            for run in found.all
        ],
    }


def _environment(found: Found) -> dict[str, Any]:
    """Of the runs, as they have written it down, and of the machine that collects them."""
    versions = Counter(
        ", ".join(f"{name} {version}" for name, version in run.result["versions"].items()) for run in found.all if run.result
    )
    devices = Counter((run.result or {}).get("device_name", run.values["run"]["device"]) for run in found.all)
    return {
        "enrnn": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "runs made with": "; ".join(versions) or "no run yet",
        "device": ", ".join(f"{name} ({count} runs)" for name, count in devices.items()) or "no run yet",
    }
