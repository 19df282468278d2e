"""What all tests share: the two tiers, the machine's limits, and the promise to test the wheel."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

if "PYTEST_XDIST_WORKER" in os.environ:  # before torch: fifteen workers of sixteen threads each stand in each other's way
    os.environ.setdefault("OMP_NUM_THREADS", "1")

pytest_plugins = ["tests._record"]

ROOT = Path(__file__).resolve().parent.parent

try:
    from hypothesis import settings
except ImportError:
    # A GPU machine may offer torch and pytest alone. The property tests then fail to import, and say so themselves.
    settings = None
else:
    # No deadline in either: the first call into torch is slow, and a busy machine is not a fault of the code.
    settings.register_profile("sample", max_examples=25, derandomize=True, database=None, deadline=None)
    # Other examples on every run, since this tier is there to find what the sample does not contain.
    settings.register_profile("full", max_examples=1000, deadline=None, print_blob=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="the second tier: raised counts, and the tests marked slow")


def pytest_configure(config: pytest.Config) -> None:
    if settings is not None:
        settings.load_profile("full" if config.getoption("--full") else "sample")
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests of who hears it would wait for ever under nohup


def pytest_sessionstart() -> None:
    if os.environ.get("ENRNN_EXPECT_WHEEL"):
        import enrnn

        imported = Path(enrnn.__file__ or "").resolve()
        wheel = ROOT / "build" / "wheel"
        if not imported.is_relative_to(wheel):
            raise pytest.UsageError(f"the tests must see the wheel under {wheel}, but enrnn comes from {imported}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--full"):
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(pytest.mark.skip(reason="slow: runs with --full"))
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if on_gpu and not has_cuda():
        for item in on_gpu:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


def has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


@pytest.fixture(autouse=True)
def nothing_is_known_of_calls(request: pytest.FixtureRequest) -> None:
    """On a GPU calls are replayed as they were: what one test has replaced is not to be met again in another."""
    if request.node.get_closest_marker("gpu"):
        from enrnn import _replay

        for known in _replay._known.values():
            known.clear()


@pytest.fixture(scope="session")
def full(pytestconfig: pytest.Config) -> bool:
    """Whether this is the second tier, in which a test raises its counts."""
    return bool(pytestconfig.getoption("--full"))
