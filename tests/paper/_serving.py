"""Processes of the paper's runs that do no run, but tell what they see of GPUs, or lose theirs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from enrnn.paper import _pool
from enrnn.sweep._work import LOST
from tests.sweep._mps import lose_once, tell


def serve_and_tell(name: str, values: dict[str, Any], runs: str, data: str | None, environment: Mapping[str, str | None]) -> None:
    _pool._work.do = lambda name, values, runs, data: tell(values, runs, None)  # type: ignore[assignment]
    _pool._serve(name, values, runs, data, environment)


def serve_without_gpu(
    name: str, values: dict[str, Any], runs: str, data: str | None, environment: Mapping[str, str | None]
) -> None:
    lose_once(values, runs, None)


def serve_without_gpu_or_a_word(
    name: str, values: dict[str, Any], runs: str, data: str | None, environment: Mapping[str, str | None]
) -> None:
    os._exit(LOST)
