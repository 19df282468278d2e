"""What this machine has to offer, and why something is not on offer."""

import importlib.metadata
import os
import platform
from collections import Counter
from typing import Any

import torch

from .. import __version__
from ..recipes import RECIPES
from ..recurrence import _cpu, _cuda, _engines
from ..recurrence._dispatch import BACKENDS
from ..tasks._task import DATA_VARIABLE

OPTIONAL = ("numba", "cuda-bindings", "matplotlib", "tensorboard", "scipy", "pystoi", "pesq")


def info() -> dict[str, dict[str, Any]]:
    """Versions, devices, backends of the recurrence, the data folder and the recipes."""
    devices = {"cpu": f"{os.cpu_count()} cores, {torch.get_num_threads()} threads"}
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        devices[f"cuda:{index}"] = f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB"
    if len(devices) == 1:
        devices["cuda"] = "none: " + ("torch is built without CUDA" if torch.version.cuda is None else "torch sees no GPU")
    return {
        "versions": {
            "enrnn": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            **{name: _version(name) for name in OPTIONAL},
        },
        "devices": devices,
        "backends": {
            "reference": "available",
            "torch": "available",
            "cpu": _availability(_cpu.unavailable()),
            "cuda": _of_cuda() if torch.cuda.is_available() else _availability("there is no CUDA device"),
            "ENRNN_BACKEND": _override(),
        },
        "data": {DATA_VARIABLE: os.environ.get(DATA_VARIABLE) or "not set"},
        "recipes": {task: f"{count}, see enrnn recipes" for task, count in _by_task().items()},
    }


def shown(content: dict[str, dict[str, Any]]) -> str:
    """`info()` as text."""
    blocks = []
    for title, entries in content.items():
        width = max(map(len, entries))
        blocks.append("\n".join([title, *(f"  {name:<{width}}  {value}" for name, value in entries.items())]))
    return "\n\n".join(blocks)


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _availability(reason: str | None) -> str:
    return "available" if reason is None else f"not available: {reason}"


def _override() -> str:
    override, known = _engines.OVERRIDE, BACKENDS
    if override is None:
        return "not set"
    return f"{override}, in place of auto" if override in known else f"{override!r}, which is none of {', '.join(known)}"


def _of_cuda() -> str:
    capability = torch.cuda.get_device_capability(0)
    answer = _availability(_cuda.unavailable(torch.device("cuda", 0)))
    if answer == "available" and capability not in _cuda.TESTED:
        answer += f", though never tested on compute capability {capability[0]}.{capability[1]}: each kernel checks itself first"
    return answer


def _by_task() -> Counter[str]:
    return Counter(name.partition("/")[0] for name in RECIPES)
