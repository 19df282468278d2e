"""What GPU tests may ask for."""

from __future__ import annotations

import pytest
import torch

from enrnn.recurrence import _cuda


@pytest.fixture
def kernels() -> None:
    """The recurrence's kernels run here."""
    if reason := _cuda.unavailable(torch.device("cuda", 0)):
        pytest.skip(reason)


@pytest.fixture
def exact_library() -> None:
    """cuBLAS, which products are compared with, takes no TF32."""
    assert torch.get_float32_matmul_precision() == "highest"
