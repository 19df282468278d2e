"""PTX, the text that NVRTC makes of CUDA C++, as data: kernels, what they are given, and their instructions.

It reads what NVRTC writes, not all that PTX may be. Functions that a kernel calls are left out: of ours, only the path of
`sincos` for angles beyond 2³¹ has any.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

SPECIAL = re.compile(r"%(?:tid|ntid|ctaid|nctaid)\.[xyz]|%laneid|%cluster_ctarank|%cluster_nctarank")
SIZES = {"8": 1, "16": 2, "32": 4, "64": 8}
SIZES_OF_TYPES = {letter + bits: size for letter in "busf" for bits, size in SIZES.items()} | {"pred": 1}


@dataclass(frozen=True)
class Register:
    index: int
    size: int
    """Bytes; of a predicate, which is a bool, 1."""


@dataclass(frozen=True)
class Number:
    """An immediate, or where something is that has a name: its bits, as an integer of any size."""

    bits: int
    size: int | None = None
    """Bytes, if it was written as a float."""


@dataclass(frozen=True)
class Special:
    name: str


@dataclass(frozen=True)
class Address:
    base: Operand
    offset: int


@dataclass(frozen=True)
class Vector:
    parts: tuple[Operand, ...]


@dataclass(frozen=True)
class Unknown:
    """A name that nothing is known of, or not yet: where a branch goes."""

    name: str


@dataclass(frozen=True)
class Nothing:
    """A result that nobody wants."""


Operand = Register | Number | Special | Address | Vector | Unknown | Nothing


@dataclass(frozen=True)
class Instruction:
    line: int
    text: str
    guard: Register | None
    unless: bool
    """With a guard: whether it is run where that is false."""
    opcode: tuple[str, ...]
    operands: tuple[Operand, ...]


@dataclass
class Kernel:
    name: str
    parameters: list[tuple[int, int]] = field(default_factory=list)
    """Where each one is, and its bytes."""
    registers: list[int] = field(default_factory=list)
    """Bytes of each."""
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    """The instructions that they stand before."""
    cluster: int = 1
    most_threads: int = 1024
    shared: int = 0
    """Bytes that it has beside those of the launch, which come after them."""


def kernels(text: str) -> dict[str, Kernel]:
    """Those of a text, by their names."""
    text = re.sub(r"//[^\n]*", "", text)
    return {kernel.name: kernel for kernel in _Module(text).kernels}


class _Module:
    def __init__(self, text: str) -> None:
        self._text = text
        entries = list(re.finditer(r"\.entry\s+(\w+)\(", text))
        self._static = re.findall(r"^\.shared \.align (\d+) \.(\w+) (\w+)(?:\[(\d+)\])?;", text, re.M)
        self._dynamic = re.findall(r"\.extern \.shared \.align (\d+) \.\w+ (\w+)\[\];", text)
        self.kernels = [self._kernel(found) for found in entries]

    def _kernel(self, entry: re.Match[str]) -> Kernel:
        text, kernel = self._text, Kernel(entry[1])
        parameters_end, body = text.index(")", entry.end()), text.index("\n{", entry.end()) + 1
        at, names = 0, {}
        for align, kind, name, count in re.findall(
            r"\.param (?:\.align (\d+) )?\.(\w+) (\w+)(?:\[(\d+)\])?", text[entry.end() : parameters_end]
        ):
            size = SIZES_OF_TYPES[kind] * int(count or 1)
            at = _up(at, int(align or size))
            names[name] = Number(at)
            kernel.parameters.append((at, size))
            at += size
        given = text[parameters_end:body]
        if found := re.search(r"\.reqnctapercluster (\d+), (\d+), (\d+)", given):
            kernel.cluster = int(found[1])
            assert (int(found[2]), int(found[3])) == (1, 1), "clusters are rows of thread blocks"
        if found := re.search(r"\.maxntid (\d+), (\d+), (\d+)", given):
            kernel.most_threads = int(found[1]) * int(found[2]) * int(found[3])
        _Body(text, body, kernel, names, self._static, self._dynamic).read()
        return kernel


class _Body:
    """Of a kernel, which is read from its first brace to its last."""

    def __init__(
        self,
        text: str,
        at: int,
        kernel: Kernel,
        names: dict[str, Number],
        static: list[tuple[str, str, str, str]],
        dynamic: list[tuple[str, str]],
    ) -> None:
        self._text, self._at, self._kernel = text, at, kernel
        self._scopes: list[dict[str, Operand]] = [dict(names)]
        for each in static:
            self._place(*each)
        end = text.index("\n}", at)
        for each in re.findall(r"^\t\.shared \.align (\d+) \.(\w+) (\w+)(?:\[(\d+)\])?;", text[at:end], re.M):
            self._place(*each)
        for align, name in dynamic:
            kernel.shared = _up(kernel.shared, int(align))
            self._scopes[0][name] = Number(kernel.shared)

    def _place(self, align: str, kind: str, name: str, count: str) -> None:
        kernel = self._kernel
        kernel.shared = _up(kernel.shared, int(align))
        self._scopes[0][name] = Number(kernel.shared)
        kernel.shared += SIZES_OF_TYPES[kind] * int(count or 1)

    def read(self) -> None:
        statement = re.compile(r"\s*(?:(?P<open>\{)|(?P<close>\})|(?P<label>[\w$]+):(?!:)|(?P<rest>[^;]*);)")
        line, counted = self._text.count("\n", 0, self._at) + 1, self._at
        while found := statement.match(self._text, self._at):
            start = found.start(found.lastgroup or 0)
            line, counted = line + self._text.count("\n", counted, start), start
            self._at = found.end()
            if found["open"]:
                self._scopes.append({})
            elif found["close"]:
                self._scopes.pop()
                if len(self._scopes) == 1:
                    self._resolve()
                    return
            elif found["label"]:
                self._kernel.labels[found["label"]] = len(self._kernel.instructions)
            elif found["rest"].lstrip().startswith("."):
                self._declare(found["rest"])
            else:
                self._instruct(found["rest"], line)
        raise ValueError(f"{self._kernel.name} does not end")

    def _resolve(self) -> None:
        """Branches go to numbers."""
        kernel = self._kernel
        for place, each in enumerate(kernel.instructions):
            if each.opcode[0] == "bra":
                (to,) = each.operands
                assert isinstance(to, Unknown)
                kernel.instructions[place] = replace(each, operands=(Number(kernel.labels[to.name]),))

    def _declare(self, text: str) -> None:
        found = re.match(r"\.reg\s+\.(\w+)\s+(.*)", text.strip(), re.S)
        if not found:  # of a called function's parameters, a hint, or shared memory, which has been read before
            return
        size = SIZES_OF_TYPES[found[1]]
        for name in found[2].split(","):
            many = re.fullmatch(r"(\S+)<(\d+)>", name.strip())
            names = [f"{many[1]}{i}" for i in range(int(many[2]))] if many else [name.strip()]
            for each in names:
                self._scopes[-1][each] = Register(len(self._kernel.registers), size)
                self._kernel.registers.append(size)

    def _instruct(self, text: str, line: int) -> None:
        text = " ".join(text.split())
        found = re.match(r"(?:@(!?)(\S+) )?(\S+) ?(.*)", text)
        assert found is not None
        guard = self._operand(found[2]) if found[2] else None
        assert guard is None or isinstance(guard, Register)
        opcode = tuple(found[3].split("."))
        operands = () if opcode[0] == "call" else tuple(self._operand(each) for each in _apart(found[4]))
        self._kernel.instructions.append(Instruction(line, text, guard, found[1] == "!", opcode, operands))

    def _operand(self, text: str) -> Operand:
        text = text.strip()
        if text[0] in "{[":
            inner = text[1:-1].strip()
            if text[0] == "{":
                return Vector(tuple(self._operand(each) for each in _apart(inner)))
            found = re.fullmatch(r"(.+?)\s*(?:\+\s*(-?\d+))?", inner)
            assert found is not None
            return Address(self._operand(found[1]), int(found[2] or 0))
        if "|" in text:
            return Vector(tuple(self._operand(each) for each in text.split("|")))
        if text == "_":
            return Nothing()
        if SPECIAL.fullmatch(text):
            return Special(text)
        if found := re.fullmatch(r"0([fd])([0-9A-F]+)", text):
            return Number(int(found[2], 16), 4 if found[1] == "f" else 8)
        if re.fullmatch(r"-?(0x[0-9a-fA-F]+|\d+)", text):
            return Number(int(text, 0))
        for scope in reversed(self._scopes):
            if text in scope:
                return scope[text]
        return Unknown(text)


def _apart(text: str) -> list[str]:
    """Operands, at whose commas they are apart but for those within brackets."""
    return re.findall(r"(?:\{[^}]*\}|\[[^\]]*\]|[^,{\[])+", text)


def _up(at: int, multiple: int) -> int:
    return -(-at // multiple) * multiple
