"""The kernels under NVIDIA's compute-sanitizer: no access out of bounds, no race in shared memory."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu import _each_kernel

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_compute_sanitizer_has_nothing_to_say(tool: str, full: bool) -> None:
    if not full:
        pytest.skip("slow: runs with --full")
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        pytest.skip("there is no compute-sanitizer")
    options = ["--tool", tool]
    if tool == "memcheck":  # it would count calls that CUDA's bindings make to learn what a driver has
        options += ["--report-api-errors", "no"]
    command = [sanitizer, *options, sys.executable, "-m", "tests.gpu._each_kernel"]
    # A server of NVIDIA's that other tests share would do the work in a process of its own, which nobody looks into.
    alone = {name: value for name, value in os.environ.items() if name != "CUDA_MPS_PIPE_DIRECTORY"}
    done = subprocess.run(command, cwd=ROOT, env=alone, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert re.search(r"SUMMARY: .*\b0 errors", done.stdout), done.stdout[-4000:]  # racecheck's warnings: see recurrence/README.md
    assert [line for line in done.stdout.splitlines() if not line.startswith("=")] == [
        part.__name__ for part in _each_kernel.PARTS
    ]
