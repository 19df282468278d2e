"""CUDA C++ as PTX, which the emulator runs, in the place of machine code."""

from __future__ import annotations

import functools


class Compiler:
    """As `enrnn._nvrtc.compile_cubin`, for the one chip that there is; sources may be changed before."""

    def __init__(self) -> None:
        self._changes: list[tuple[str, str]] = []
        self._made: set[str] = set()

    def change(self, text: str, to: str) -> None:
        self._changes.append((text, to))

    def unmade(self) -> list[str]:
        """Changes of text that no source had."""
        return [text for text, _ in self._changes if text not in self._made]

    def __call__(self, source: str, arch: str, defines: dict[str, int]) -> bytes:
        assert arch == "sm_90"
        for text, to in self._changes:
            if text in source:
                self._made.add(text)
                source = source.replace(text, to)
        return _compiled(source, tuple(sorted(defines.items())))


@functools.lru_cache(maxsize=256)
def _compiled(source: str, defines: tuple[tuple[str, int], ...]) -> bytes:
    from cuda.bindings import nvrtc

    options = ["--gpu-architecture=compute_90", "--std=c++17", "--device-as-default-execution-space"]
    options += [f"-D{name}={value}" for name, value in defines]
    program = nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], [])[1]
    status = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])[0]
    log, text = bytearray(nvrtc.nvrtcGetProgramLogSize(program)[1]), bytearray(nvrtc.nvrtcGetPTXSize(program)[1])
    nvrtc.nvrtcGetProgramLog(program, log)
    assert int(status) == 0, log.decode()
    nvrtc.nvrtcGetPTX(program, text)
    nvrtc.nvrtcDestroyProgram(program)
    return bytes(text).rstrip(b"\0")
