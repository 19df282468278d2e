"""What a call of a function did on a GPU, as far as it launched kernels of ours: to be done again by `_replay.py`.

A call is watched, and not understood. Kernels are written down with their arguments, addresses as offsets into the tensors that
they belong to, and so are streams that wait for one another, and a few operations of torch's. Whatever else a call does than to
view tensors and to ask for memory is seen, and is a fault: such a call cannot be done again from what is written here.
"""

import ctypes
import functools
import struct
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from . import _launch
from ._launch import Bits, Launched
from ._streams import BESIDE, another

MOST_MEMORY, MOST_ASKED_FOR = 2**28, 2**30
"""Bytes that a call may take for itself, and with what it returns. When it is watched, or done again, it has all of them from
beginning to end, where it could use the same memory twice before; and what takes as much is not over before Python has launched
it."""

LARGEST = 2**40
"""Numbers beyond are no sizes, but addresses whose origin was lost."""

MAIN, SIDE = 0, 1
"""The numbers of the stream that is the current one as the call begins, and of the one beside it."""

Found = TypeVar("Found")


class Address(int):
    """Where something is in memory, and in which tensor of the call."""

    slot: int
    offset: int

    @classmethod
    def of(cls, slot: int, start: int, offset: int) -> "Address":
        found = cls(start + offset)
        found.slot, found.offset = slot, offset
        return found

    def __add__(self, more: int) -> "Address":
        return Address.of(self.slot, int(self) - self.offset, self.offset + more)

    __radd__ = __add__


class Launch(NamedTuple):
    """A kernel and what it is told. Two are equal if they do the same to other tensors."""

    kernel: _launch.Kernel
    grid: tuple[int, int]
    block: int
    early: bool
    lets: bool
    words: bytes
    """The arguments one after the other, each at a multiple of eight, with nothing in place of addresses."""
    places: tuple[int, ...]
    """Where each argument begins."""
    addresses: tuple[tuple[int, int, int], ...]
    """Where an address belongs, in which slot it is, and how far from its beginning."""


class View(NamedTuple):
    """Of numbers in a slot; how far from its beginning, and strides, in numbers."""

    slot: int
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


class Call(NamedTuple):
    """An operation of torch's, which writes to what it is given."""

    operation: Any
    operands: tuple[View | int | float, ...]
    named: tuple[tuple[str, View | int | float], ...]


OPERATIONS = {
    torch.ops.aten.mm.out,
    torch.ops.aten.addmm.out,
    torch.ops.aten.add_.Tensor,
    torch.ops.aten.copy_.default,
    torch.ops.aten.zero_.default,
}


class Step(NamedTuple):
    """A launch, a call, or, if it is neither, an event that a stream marks or waits for. Streams and events have numbers."""

    stream: int
    launch: Launch | None = None
    call: Call | None = None
    event: int | None = None
    waits: bool = False


class Output(NamedTuple):
    """A tensor that is returned, and its slot, None if it is empty; and which of the arguments, if one, is laid out like it."""

    slot: int | None
    shape: tuple[int, ...]
    dtype: torch.dtype
    like: int | None


class Tape:
    """What a call did. Two are equal if they did the same, each to its own tensors.

    Memory has slots: first the tensors that are given, then what was asked for, in that order.
    """

    def __init__(self, arguments: tuple[Any, ...]) -> None:
        self.fault: str | None = None
        """Why it cannot be done again, if so."""
        self.device: torch.device = arguments[0].device
        self.steps: list[Step] = []
        self.outputs: list[Output] = []
        self.alone = False
        """Whether one tensor is returned, and not a tuple."""
        self.given = [index for index, each in enumerate(arguments) if isinstance(each, Tensor) and each.numel()]
        whole = {index: each for index, each in enumerate(arguments) if isinstance(each, Tensor) and each.is_contiguous()}
        self._like = {(tuple(each.shape), each.dtype): index for index, each in whole.items()}
        self.sizes: list[int] = []
        """Bytes of what was asked for."""
        self._starts: list[int] = []
        self._slots: dict[int, int] = {}
        """By where memory begins."""
        self._kept: list[Tensor] = []
        self._events: list[Any] = []
        self._streams = [torch.cuda.current_stream(self.device).cuda_stream]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tape) and all(
            getattr(self, name) == getattr(other, name)
            for name in ("fault", "device", "steps", "outputs", "alone", "given", "sizes")
        )

    __hash__ = None  # type: ignore[assignment]

    def watch(self, function: Callable[..., Found], arguments: tuple[Any, ...]) -> Found:
        """Call it, and write down what it does."""
        assert _launch.thread.witness is None
        _launch.thread.witness = self
        try:
            for index in self.given:
                self._add(arguments[index], arguments[index].data_ptr())
            with _Watching(self):
                found = function(*arguments)
            for check in (self._return, self._check_memory, self._check_order):
                if self.fault is None:
                    check(found)
        finally:
            _launch.thread.witness = None
            self._forget()
        return found

    def _fails(self, reason: str) -> None:
        """It is not watched any longer, and keeps nothing."""
        self.fault = reason
        _launch.thread.witness = None
        self._forget()

    def _forget(self) -> None:
        for each in (self._kept, self._events, self._starts, self._slots):
            each.clear()

    def _add(self, tensor: Tensor, start: int) -> None:
        """A slot for its memory."""
        beginning = tensor.untyped_storage().data_ptr()
        if self.fault is not None:
            return
        if beginning in self._slots:
            self._fails("two tensors share their memory")
            return
        self._slots[beginning] = len(self._starts)
        self._starts.append(start)
        self._kept.append(tensor)  # so that its memory is not given out again meanwhile

    def asked_for(self, tensor: Tensor) -> None:
        """Memory, and so has it now."""
        if self.fault is not None or not tensor.numel():
            return
        self.sizes.append(tensor.untyped_storage().nbytes())
        if tensor.device != self.device or sum(self.sizes) > MOST_ASKED_FOR:
            self._fails("it takes too much memory, or other memory")
        self._add(tensor, tensor.untyped_storage().data_ptr())

    def did(self, operation: Any, operands: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Something else."""
        if self.fault is not None:
            return
        if operation not in OPERATIONS:
            self._fails(f"it calls {operation}")
            return
        given = tuple(self._viewed(each) for each in operands)
        by_name = tuple((name, self._viewed(each)) for name, each in named.items())
        if None in given or None in dict(by_name).values():
            self._fails("it calls operations on other numbers than its own")
            return
        stream = self._stream(torch.cuda.current_stream(self.device).cuda_stream)
        self.steps.append(Step(stream, call=Call(operation, given, by_name)))

    def _viewed(self, operand: Any) -> Any:
        """A tensor as what it is a view of, None if that is something else."""
        if not isinstance(operand, Tensor):
            return operand
        slot = self._slots.get(operand.untyped_storage().data_ptr())
        if slot is None or self._kept[slot].dtype != operand.dtype:
            return None
        offset = operand.data_ptr() - self._starts[slot] if operand.numel() else 0
        return View(slot, offset // operand.itemsize, tuple(operand.shape), operand.stride(), operand.dtype)

    def address(self, tensor: Tensor) -> int:
        if not tensor.numel():
            return 0
        slot = self._slots.get(tensor.untyped_storage().data_ptr())
        if slot is None:
            self._fails("it reads or writes memory that is not its own")
            return tensor.data_ptr()
        return Address.of(slot, self._starts[slot], tensor.data_ptr() - self._starts[slot])

    def launched(self, launch: Launched, stream: int, event: Any) -> None:
        words, places, addresses = b"", [], []
        for argument in launch.arguments:
            numbers, form = _numbers(argument)
            if numbers is None:
                self._fails("a structure was filled in another way")
            if self.fault is not None or numbers is None:
                return
            for place, number in zip(_places(form.format), numbers, strict=True):
                if isinstance(number, Address):
                    addresses.append((len(words) + place, number.slot, number.offset))
                elif not isinstance(number, Bits) and (abs(number) >= LARGEST or self._in_memory(number)):
                    self._fails("it has an address of unknown origin")
                    return
            places.append(len(words))
            packed = form.pack(*(0 if isinstance(number, Address) else number for number in numbers))
            words += packed + bytes(-len(packed) % 8)
        told = launch.kernel, launch.grid, launch.block, launch.early, launch.lets
        written = Launch(*told, words, tuple(places), tuple(addresses))
        self.steps.append(Step(self._stream(stream), written, event=None if event is None else self._event(event)))

    def _in_memory(self, number: int) -> bool:
        return any(
            0 <= number - beginning < self._kept[slot].untyped_storage().nbytes() for beginning, slot in self._slots.items()
        )

    def marked(self, event: Any, stream: int) -> None:
        self.steps.append(Step(self._stream(stream), event=self._event(event)))

    def waited(self, event: Any, stream: int) -> None:
        if any(event is each for each in self._events):
            self.steps.append(Step(self._stream(stream), event=self._event(event), waits=True))
        else:
            self._fails("it waits for what was before it")

    def _stream(self, handle: int) -> int:
        if handle not in self._streams:
            self._streams.append(handle)
        return self._streams.index(handle)

    def _event(self, event: Any) -> int:
        for number, each in enumerate(self._events):
            if each is event:
                return number
        self._events.append(event)
        return len(self._events) - 1

    def _return(self, found: Any) -> None:
        self.alone = isinstance(found, Tensor)
        for each in [found] if self.alone else found:
            slot = self._slots.get(each.untyped_storage().data_ptr()) if each.numel() else None
            whole = each.is_contiguous() and each.nbytes == each.untyped_storage().nbytes()
            before = {output.slot for output in self.outputs}
            if each.numel() and (slot is None or slot < len(self.given) or not whole or slot in before):
                self._fails("it returns a tensor that is not new")
                return
            kind = tuple(each.shape), each.dtype
            self.outputs.append(Output(slot, *kind, self._like.get(kind)))

    def _check_memory(self, _: Any) -> None:
        returned = {output.slot for output in self.outputs}
        if sum(size for slot, size in enumerate(self.sizes, len(self.given)) if slot not in returned) > MOST_MEMORY:
            self._fails("it takes too much memory for itself")

    def _check_order(self, _: Any) -> None:
        """When it is done again all memory is the current stream's. So nothing may begin before what that stream did earlier,
        with memory that may have been the same; and in the end it must have waited for the other."""
        launches = [step.launch for step in self.steps if step.launch is not None]
        first = self.steps[0] if launches else Step(SIDE)
        if first.stream != MAIN or launches[0].early or (first.event is not None and first.launch is None):
            self._fails("it does not begin with a kernel that waits for all before it")
            return
        if len(self._streams) == 1:
            return
        side = another(self.device, BESIDE)
        if side is None or self._streams[SIDE:] != [side.cuda_stream]:
            self._fails("it uses other streams")
        elif reason := loose_end(self.steps):
            self._fails(reason)


def loose_end(steps: list[Step]) -> str | None:
    """Why what these do beside is not theirs alone; None if it begins after something of theirs on the other stream, and that
    waits for all of it."""
    marked: dict[int | None, tuple[int, int]] = {}
    """For each event its stream, and how much was done beside by then. That a kernel has begun does not tell that it is done."""
    begun, done, waited_for = False, 0, 0
    if unmet(steps):
        return "it waits for what was before it"
    for step in steps:
        beside = step.stream == SIDE
        done += beside
        if step.waits:
            stream, many = marked[step.event]
            begun = begun or (beside and stream != SIDE)
            waited_for = waited_for if beside else max(waited_for, many)
        elif beside and not begun:
            return "what is beside it does not begin after it"
        elif step.event is not None:
            marked[step.event] = step.stream, done if step.launch is None else 0
    return None if waited_for == done else "what is beside it is not waited for"


def unmet(steps: Iterable[Step]) -> set[int]:
    """The events that these wait for before they mark them: what others have marked."""
    marked, found = set(), set()
    for step in steps:
        if step.event is not None and not step.waits:
            marked.add(step.event)
        elif step.event is not None and step.event not in marked:
            found.add(step.event)
    return found


WORD = struct.Struct("q")


def _numbers(argument: _launch.Argument) -> tuple[tuple[int, ...] | None, struct.Struct]:
    """Of an argument of a kernel, and how they are laid out."""
    if isinstance(argument, ctypes.Structure):
        return getattr(argument, "numbers", None), _launch.layout(type(argument))
    return (_launch.word(argument),), WORD


@functools.cache
def _places(letters: str) -> tuple[int, ...]:
    """Where the numbers of a structure are."""
    return tuple(struct.calcsize(letters[: at + 1]) - struct.calcsize(letters[at]) for at in range(len(letters)))


class _Watching(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees what torch is asked to do."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tape = tape

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func.overloadpacket in MEMORY:
            self._tape.asked_for(found)
        elif not func.is_view:
            self._tape.did(func, args, kwargs or {})
        return found


MEMORY = {torch.ops.aten.empty, torch.ops.aten.empty_like, torch.ops.aten.empty_strided, torch.ops.aten.new_empty}
