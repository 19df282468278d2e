"""What a process of our own has given back stays with it, unless the environment says otherwise."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from enrnn._memory import TUNED

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is GNU's C library that is told")

RESIDENT_AFTER_FREEING = """
import os, torch
from enrnn._memory import keep_freed_memory
keep_freed_memory()
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
before = resident()
tensors = [torch.ones(2**24) for _ in range(2)]
del tensors
print(resident() - before)
"""


def kept(**environment: str) -> float:
    """MiB of 128 that a process still has."""
    others = {name: value for name, value in os.environ.items() if name not in TUNED}
    command = [sys.executable, "-c", RESIDENT_AFTER_FREEING]
    done = subprocess.run(command, env=others | environment, check=True, capture_output=True, text=True, timeout=120)
    return float(done.stdout)


def test_it_stays() -> None:
    assert kept() > 100


@pytest.mark.parametrize("name", TUNED)
def test_it_is_as_the_environment_says(name: str) -> None:
    value = "glibc.malloc.trim_threshold=131072" if name == "GLIBC_TUNABLES" else "131072"
    assert kept(**{name: value}) < 28
