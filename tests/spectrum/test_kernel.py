"""The kernel compiles for every chip it is meant for, on a machine without a GPU too."""

from __future__ import annotations

from pathlib import Path

import pytest

from enrnn import _nvrtc
from enrnn.spectrum import _compressed, _square
from enrnn.spectrum._device import FUSED_UP_TO, SOURCE


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"])
def test_it_compiles(arch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if reason := _nvrtc.unavailable():
        pytest.skip(reason)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source = _nvrtc.text(SOURCE)
    clusters = int(arch.removeprefix("sm_")) >= 90
    variants = [(tiles, 1) for tiles in range(1, FUSED_UP_TO // 32 + 1)] + [(2, 4), (3, 6)] * clusters
    for tiles, blocks in variants:
        given = {"TILES": tiles, "BLOCKS": blocks}
        cubin = _nvrtc.compile_cubin(source, arch, given)
        assert cubin.startswith(b"\x7fELF")
        assert _nvrtc.compile_cubin(source, arch, given) == cubin  # from the cache, this time
    assert len(list((tmp_path / "enrnn").iterdir())) == len(variants)
    assert _nvrtc.compile_cubin(_nvrtc.text(_compressed.SOURCE), arch, {}).startswith(b"\x7fELF")
    for even in (True, False):
        cubin = _nvrtc.compile_cubin(_nvrtc.text(_square.SOURCE), arch, _square.defines(even))
        assert cubin.startswith(b"\x7fELF")


def test_every_size_has_its_thread_blocks() -> None:
    """As in the source: full tiles, and edges of up to 16 rows and columns in blocks of another shape; one wave at 720."""
    assert _square.grid(720) == 11 * 11 + 6 + 5
    assert _square.grid(128) == 4  # no edge
    assert _square.grid(145) == 9  # 17 are more than an edge
    assert [_square.grid(size) for size in (97, 1000)] == [4, 256]


def test_a_kernel_that_does_not_compile_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if reason := _nvrtc.unavailable():
        pytest.skip(reason)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(RuntimeError, match=r"did not compile for sm_90(.|\n)*undefined"):
        _nvrtc.compile_cubin('extern "C" __global__ void f() { nonsense(); }', "sm_90", {})
