"""Calls that are made again and again with other tensors of the same sizes: what was launched is launched once more.

    @replayed
    def run(x: Tensor, …) -> Tensor:    # launches kernels of ours, and does little else
        …

To find out which kernels a call needs, and what they are to be told, takes Python many small decisions, all of which come out the
same when sizes are the same. So two such calls are watched (`_tape.py`), and if both did the same, the calls after them do that
without any decisions. Those that do something else are never replayed, nor is any while a CUDA graph is captured, where the time
of the host does not matter.
"""

import contextlib
import ctypes
import functools
import os
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.nn import Parameter

from . import _launch
from ._precision import lower_precision
from ._streams import BESIDE, another
from ._tape import SIDE, Launch, Tape, View

MOST_PROGRAMS = 256
"""That are kept of a function; the one that was not called for the longest time goes first."""

ALIGNED = 256
"""Bytes, at multiples of which memory begins."""

Given = ParamSpec("Given")
Found = TypeVar("Found")


def replayed(function: Callable[Given, Found]) -> Callable[Given, Found]:
    """A decorator for functions of tensors, the first argument one of them, and of other things that can be compared. They return
    new tensors, and change none."""
    known = _known[function] = OrderedDict()

    @functools.wraps(function)
    def run(*arguments: Any) -> Any:
        key = _alike(arguments)
        now = None if key is None else known.get(key)
        if now is not None:
            with contextlib.suppress(KeyError):  # another thread may have had to make room
                known.move_to_end(key)
        if type(now) is Program:
            return now(arguments)
        if key is None or now is False:
            return function(*arguments)  # type: ignore[call-arg]
        if now is None:  # most often it will not come again
            known[key] = True
            while len(known) > MOST_PROGRAMS:
                known.popitem(last=False)
            return function(*arguments)  # type: ignore[call-arg]
        tape = Tape(arguments)
        found = tape.watch(function, arguments)
        known[key] = tape.fault is None and (tape if now is True else now == tape and Program(tape))
        return found

    return run  # type: ignore[return-value]


_known: dict[Callable[..., Any], "OrderedDict[Any, Program | Tape | bool]"] = {}
"""Of each function, by what calls are like: how to replay them, what one did, that there was one, or that they cannot be."""


def _alike(arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """The same for two calls that launch the same kernels; None if it cannot be told, or this one is not to be replayed."""
    like = arguments[0]
    if not replayable(like) or _launch.thread.witness is not None:  # then it is a part of another call, which is watched
        return None
    found: list[Any] = [like.device, lower_precision()]
    for each in arguments:
        if type(each) is Tensor or type(each) is Parameter:
            found += each.shape, each.stride(), each.dtype, each.data_ptr() % 16
        elif isinstance(each, Tensor):
            return None
        else:
            found.append(tuple(each) if type(each) is list else each)
    return tuple(found)


def replayable(like: Tensor) -> bool:
    """Whether there is something to be gained, now, for tensors on its device."""
    if not like.is_cuda or like.get_device() != torch.cuda.current_device():
        return False
    return not torch.cuda.is_current_stream_capturing()


class Program:
    """What a call did, to be done with other tensors."""

    def __init__(self, tape: Tape) -> None:
        self.steps, self._given, self._outputs, self._alone = tape.steps, tape.given, tape.outputs, tape.alone
        self._asked_for = len(tape.sizes)
        self._context = next(step.launch.kernel.context for step in tape.steps if step.launch is not None)
        self._beside = any(step.stream == SIDE for step in tape.steps)
        returned = {output.slot for output in tape.outputs}
        self.own: dict[int, int] = {}
        """The slots of what a call has for itself, all in one tensor, and where each begins in that, in bytes."""
        self._size = 0
        for slot, size in enumerate(tape.sizes, len(tape.given)):
            if slot not in returned:
                self.own[slot] = self._size
                self._size += -(-size // ALIGNED) * ALIGNED
        self._free: list[_Ready] = []
        """Those that no thread is using now."""

    def __call__(self, arguments: tuple[Any, ...]) -> Any:
        like = arguments[0]
        found = [like.new_empty(output.shape, dtype=output.dtype) for output in self._outputs]
        memory = like.new_empty(self._size, dtype=torch.uint8)
        tensors = [arguments[index] for index in self._given] + [memory] * self._asked_for
        for output, tensor in zip(self._outputs, found, strict=True):
            if output.slot is not None:
                tensors[output.slot] = tensor
        _launch.use_context(self._context)
        current = torch._C._cuda_getCurrentRawStream(like.get_device())
        beside = another(like.device, BESIDE) if self._beside else None
        try:
            ready = self._free.pop()
        except IndexError:  # another thread is at it
            ready = _Ready(self)
        try:
            ready.run(tensors, current, beside)
        except BaseException:
            if beside is not None:  # memory is given back now
                torch.cuda.current_stream(like.device).wait_stream(beside)
            raise
        self._free.append(ready)
        return found[0] if self._alone else tuple(found)


LAUNCH, CALL, MARK, WAIT = range(4)


class _Ready:
    """What is to be done, in memory of its own: from call to call only addresses change."""

    def __init__(self, program: Program) -> None:
        self._own = program.own
        self._memory = ctypes.create_string_buffer(sum(len(step.launch.words) for step in program.steps if step.launch))
        self._words = memoryview(self._memory).cast("B").cast("q")
        self._addresses: list[tuple[int, int, int]] = []
        """Which of the words, its slot, and how many bytes from the beginning of that slot's tensor."""
        self._kept: list[Any] = []
        self._configs: list[tuple[int, Any]] = []
        """Of launches, with the number of each one's stream."""
        self._streams: tuple[int, ...] = ()
        """That they were told."""
        self._actions: list[tuple[int, Any, Any, Any]] = []
        events = [_launch.new_event() for _ in {step.event for step in program.steps if step.event is not None}]
        weakref.finalize(self, _launch.forget_events, events, os.getpid()).atexit = False
        at = 0
        for step in program.steps:
            event = None if step.event is None else events[step.event]
            if step.launch is not None:
                self._actions.append(self._launch(step.launch, step.stream, event, at))
                at += len(step.launch.words)
            elif step.call is not None:
                self._actions.append((CALL, step.call.operation, (step.call.operands, step.call.named), step.stream))
            else:
                self._actions.append((WAIT if step.waits else MARK, step.stream, event, None))

    def _launch(self, launch: Launch, stream: int, event: Any, at: int) -> tuple[int, Any, Any, Any]:
        config = _launch.launch_config(launch.kernel.shared, _launch.attributes(launch.early, event, launch.lets))
        config.gridDimX, config.gridDimY, config.blockDimX = *launch.grid, launch.block
        self._configs.append((stream, config))
        first = ctypes.addressof(self._memory) + at
        ctypes.memmove(first, launch.words, len(launch.words))
        pointers = (ctypes.c_void_p * len(launch.places))(*(first + place for place in launch.places))
        self._kept.append(pointers)
        for place, slot, offset in launch.addresses:
            self._addresses.append(((at + place) // 8, slot, self._own.get(slot, 0) + offset))
        return LAUNCH, config, launch.kernel.function, ctypes.addressof(pointers)

    def run(self, tensors: list[Tensor], current: int, beside: torch.cuda.Stream | None) -> None:
        """With these for slots; on the current stream, whose handle is given, and the one beside it, if that is used."""
        words, driver = self._words, _launch.driver()
        starts = [tensor.data_ptr() for tensor in tensors]
        for at, slot, offset in self._addresses:
            words[at] = starts[slot] + offset
        streams = (current, current if beside is None else beside.cuda_stream)
        if streams != self._streams:
            for stream, config in self._configs:
                config.hStream = streams[stream]
            self._streams = streams
        for kind, first, second, third in self._actions:
            if kind == LAUNCH:
                _launch.checked(driver.cuLaunchKernelEx(first, second, third, 0))
            elif kind == CALL:
                with torch.cuda.stream(beside) if third == SIDE else _NOTHING:
                    self._call(first, second, tensors)
            elif kind == MARK:
                _launch.checked(driver.cuEventRecord(second, streams[first]))
            else:
                _launch.checked(driver.cuStreamWaitEvent(streams[first], second, 0))

    def _call(self, operation: Any, operands: tuple[Any, Any], tensors: list[Tensor]) -> None:
        given, named = operands
        operation(
            *(self._operand(each, tensors) for each in given), **{name: self._operand(each, tensors) for name, each in named}
        )

    def _operand(self, operand: Any, tensors: list[Tensor]) -> Any:
        """Of a call."""
        if type(operand) is not View:
            return operand
        slot, offset, shape, stride, dtype = operand
        tensor, own = tensors[slot], self._own.get(slot)
        if own is not None:
            tensor, offset = tensor.view(dtype), offset + own // dtype.itemsize
        return tensor.as_strided(shape, stride, tensor.storage_offset() + offset)


_NOTHING = contextlib.nullcontext()
