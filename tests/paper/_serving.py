"""Processes of the paper's runs that do no run, but tell what they see of GPUs, or lose theirs, or are stopped."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from enrnn.paper import _pool
from enrnn.sweep._work import LOST
from enrnn.training import Config, RunFolder
from tests.sweep._mps import lose_once, tell

Environment = Mapping[str, str | None]


def serve_and_tell(name: str, values: dict[str, Any], runs: str, data: str | None, seen: Environment, pipe: Connection) -> None:
    _pool._work.do = lambda name, values, runs, data, watch: tell(values, runs, None)  # type: ignore[assignment]
    _pool._serve(name, values, runs, data, seen, pipe)


def serve_without_gpu(name: str, values: dict[str, Any], runs: str, *others: Any) -> None:
    lose_once(values, runs, None)


def serve_without_gpu_or_a_word(*arguments: Any) -> None:
    os._exit(LOST)


def serve_and_be_stopped(name: str, values: dict[str, Any], runs: str, *others: Any) -> None:
    """As a run that has heard the Ctrl-C that went to the whole group: it is begun, and its process ends well."""
    RunFolder.create(Config.from_dict(values), Path(runs))
    driver = mp.parent_process()
    assert driver is not None
    os.kill(driver.pid or 0, signal.SIGINT)
