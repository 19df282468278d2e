"""What GPU tests may ask for."""

from __future__ import annotations

import pytest
import torch

from enrnn import _replay
from enrnn.recurrence import _cuda


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first: others run beside them where tests are shared between processes."""
    items.sort(key=lambda item: not any(name in item.nodeid for name in ("test_sanitizer", "over_an_epoch")))


@pytest.fixture
def kernels() -> None:
    """The recurrence's kernels run here."""
    if reason := _cuda.unavailable(torch.device("cuda", 0)):
        pytest.skip(reason)


@pytest.fixture
def exact_library() -> None:
    """cuBLAS, which products are compared with, takes no TF32."""
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.fixture
def nothing_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that replace what a replayed call would not go through."""
    monkeypatch.setattr(_replay, "replayable", lambda like: False)
