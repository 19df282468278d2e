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
from ._graphs import Graphs
from ._precision import lower_precision
from ._streams import BESIDE, another
from ._tape import SIDE, Launch, Step, Tape, View, loose_end, unmet

MOST_PROGRAMS = 256
"""That are kept of a function; the one that was not called for the longest time goes first."""

ALIGNED = 256
"""Bytes, at multiples of which memory begins."""

Given = ParamSpec("Given")
Found = TypeVar("Found")


def replayed(function: Callable[Given, Found]) -> Callable[Given, Found]:
    """A decorator for functions of tensors, the first argument one of them, and of other things that can be compared. They return
    new tensors, and change none but such as autograd need not be told of: buffers in which something is noted."""
    known = _known[function] = OrderedDict()

    def find(arguments: tuple[Any, ...]) -> tuple[Any, Any]:
        key = _alike(arguments)
        try:
            now = None if key is None else known.get(key)
        except TypeError:  # what cannot be compared is for the function to refuse
            return None, None
        if now is not None:
            with contextlib.suppress(KeyError):  # another thread may have had to make room
                known.move_to_end(key)
        return key, now

    @functools.wraps(function)
    def run(*arguments: Any) -> Any:
        key, now = find(arguments)
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

    def again(arguments: tuple[Any, ...]) -> Program | None:
        now = find(arguments)[1]
        return now if type(now) is Program else None

    run.again = again  # type: ignore[attr-defined]
    return run  # type: ignore[return-value]


_known: dict[Callable[..., Any], "OrderedDict[Any, Program | Tape | bool]"] = {}
"""Of each function, by what calls are like: how to replay them, what one did, that there was one, or that they cannot be."""


def _alike(arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """The same for two calls that launch the same kernels; None if it cannot be told, or this one is not to be replayed."""
    if not replayable(arguments[0]) or _launch.thread.witness is not None:  # then it is a part of another call, which is watched
        return None
    found: list[Any] = [lower_precision()]
    for each in arguments:
        kind = type(each)
        if kind is Tensor or kind is Parameter:
            if each.is_neg() or each.is_conj() or each._is_zerotensor():  # what it is has yet to be formed, by the dispatcher
                return None
            try:
                start = each.data_ptr()
                found += each.shape, each.stride(), each.dtype, each.get_device(), start % 16
            except RuntimeError:  # it has no memory of its own: it is sparse, or has left a transform of `torch.func`
                return None
            if not start and each.numel():
                return None
        elif kind is list:
            found.append(tuple(each))
        elif isinstance(each, Tensor):
            return None
        else:
            found.append(each)
    return tuple(found)


def replayable(like: Tensor) -> bool:
    """Whether there is something to be gained, now, for tensors on its device."""
    if not like.is_cuda or like.get_device() != torch.cuda.current_device():
        return False
    return not torch.cuda.is_current_stream_capturing()


def copied(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Without gaps, and in two operations of which a replayed call can do both."""
    return torch.empty(tensor.shape, dtype=dtype, device=tensor.device).copy_(tensor)


def gapless(tensor: Tensor) -> Tensor:
    """`contiguous()`, likewise."""
    return tensor if tensor.is_contiguous() else copied(tensor, tensor.dtype)


class Program:
    """What a call did, to be done with other tensors."""

    def __init__(self, tape: Tape) -> None:
        self.steps, self._given, self._outputs, self._alone = tape.steps, tape.given, tape.outputs, tape.alone
        self._context = next(step.launch.kernel.context for step in tape.steps if step.launch is not None)
        self._filled = [index for index, output in enumerate(tape.outputs) if output.slot is not None]
        slots = [*range(len(tape.given)), *(tape.outputs[index].slot for index in self._filled)]
        self.places: dict[int, tuple[int, int]] = {slot: (place, 0) for place, slot in enumerate(slots) if slot is not None}
        """Where each slot begins: in which tensor, of those given, those returned, and one for what a call has for itself; and
        after how many bytes."""
        self.own, self._size = len(slots), 0
        for slot, size in enumerate(tape.sizes, len(tape.given)):
            if slot not in self.places:
                self.places[slot] = self.own, self._size
                self._size += -(-size // ALIGNED) * ALIGNED
        self._free: list[_Ready] = []
        """Those that no thread is using now."""

    def __call__(self, arguments: tuple[Any, ...]) -> Any:
        like = arguments[0]
        found = [
            like.new_empty(shape, dtype=dtype) if same is None else torch.empty_like(arguments[same])  # which is faster
            for _, shape, dtype, same in self._outputs
        ]
        tensors = [arguments[index] for index in self._given]
        tensors += [found[index] for index in self._filled]
        if self._size:
            tensors.append(like.new_empty(self._size, dtype=torch.uint8))
        _launch.use_context(self._context)
        try:
            ready = self._free.pop()
        except IndexError:  # another thread is at it
            ready = _Ready(self)
        ready.run(tensors)
        self._free.append(ready)
        return found[0] if self._alone else tuple(found)


LAUNCH, CALL, MARK, WAIT = range(4)

CAPTURED = {torch.ops.aten.add_.Tensor, torch.ops.aten.copy_.default, torch.ops.aten.zero_.default}
"""What may be called in a graph. Products may not: cuBLAS has memory for each stream, which two graphs must not use at once."""

FEWEST = 2
"""Steps between two such products that are worth a graph."""


class _Ready:
    """What is to be done, in memory of its own: from call to call only addresses change."""

    def __init__(self, program: Program) -> None:
        events = [_launch.new_event() for _ in {step.event for step in program.steps if step.event is not None}]
        weakref.finalize(self, _launch.forget_events, events, os.getpid()).atexit = False
        self._parts = [_Part(steps, program, events, graph) for steps, graph in _parts(program.steps)]
        self._beside = any(step.stream == SIDE for step in program.steps)

    def run(self, tensors: list[Tensor]) -> None:
        """With these for slots, on the current stream, and on the one beside it, if that is used."""
        starts = tuple([tensor.data_ptr() for tensor in tensors])
        current = torch._C._cuda_getCurrentRawStream(tensors[0].get_device())
        beside = None
        try:
            for part in self._parts:
                if part.as_graph(tensors, starts, current):
                    continue
                if beside is None and self._beside:
                    beside = another(tensors[0].device, BESIDE)
                part.do(tensors, starts, (current, current if beside is None else beside.cuda_stream), (None, beside))
        except BaseException:
            if beside is not None:  # memory is given back now
                torch.cuda.current_stream(tensors[0].device).wait_stream(beside)
            raise

    @property
    def graphs(self) -> list[Graphs]:
        """Of its parts, those that have some."""
        return [part.graphs for part in self._parts if part.graphs is not None]


def _parts(steps: list[Step]) -> list[tuple[list[Step], bool]]:
    """All of it, if it can be a graph; else what lies between the calls that cannot, and these; and whether each is to be one."""
    cut: list[tuple[list[Step], bool]] = []
    for step in steps:
        captured = step.call is None or step.call.operation in CAPTURED
        if not cut or cut[-1][1] != captured:
            cut.append(([], captured))
        cut[-1][0].append(step)
    found, all_closed = [], True
    for at, (each, captured) in enumerate(cut):
        closed, beside = loose_end(each) is None, any(step.stream == SIDE for step in each)
        told = {step.event for step in each if not step.waits}
        fits = captured and closed and told.isdisjoint(unmet(step for later, _ in cut[at + 1 :] for step in later))
        fits = fits and (all_closed or not beside)  # what is beside in a graph does not come after what is still there
        found.append((each, fits and (len(cut) == 1 or len(each) >= FEWEST)))
        all_closed = all_closed and closed
    return found


class _Part:
    """Steps that follow one another."""

    def __init__(self, steps: list[Step], program: Program, events: list[Any], graph: bool) -> None:
        self._places, self._own = program.places, program.own
        self._memory = ctypes.create_string_buffer(sum(len(step.launch.words) for step in steps if step.launch))
        self._words = memoryview(self._memory).cast("B").cast("q")
        self._addresses: list[tuple[int, int, int]] = []
        """Which of the words, of which tensor, and how many bytes from its beginning."""
        self._kept: list[Any] = []
        self._configs: list[tuple[int, Any]] = []
        """Of launches, with the number of each one's stream."""
        self._streams: tuple[int, ...] = ()
        """That they were told."""
        self._actions: list[tuple[int, Any, Any, Any]] = []
        self._calls = any(step.call is not None for step in steps)
        self.graphs = Graphs() if graph else None
        at = 0
        for step in steps:
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
            tensor, start = self._places[slot]
            self._addresses.append(((at + place) // 8, tensor, start + offset))
        return LAUNCH, config, launch.kernel.function, ctypes.addressof(pointers)

    def as_graph(self, tensors: list[Tensor], starts: tuple[int, ...], stream: int) -> bool:
        """Launched on the stream; False if there is no graph for such addresses."""
        return self.graphs is not None and self.graphs.run(
            starts, stream, lambda streams: self._captured(tensors, starts, streams)
        )

    def _captured(self, tensors: list[Tensor], starts: tuple[int, ...], streams: tuple[int, int]) -> None:
        known: Any = torch.cuda.ExternalStream if self._calls else lambda stream: None
        main, side = map(known, streams)
        self.do(tensors, starts, streams, (main, side))

    def do(self, tensors: list[Tensor], starts: tuple[int, ...], streams: tuple[int, int], as_torch_has: tuple[Any, Any]) -> None:
        """Everything, with tensors that begin there. Torch's operations need to be told of streams, but for the current one."""
        words, driver = self._words, _launch.driver()
        for at, tensor, offset in self._addresses:
            words[at] = starts[tensor] + offset
        if streams != self._streams:
            for stream, config in self._configs:
                config.hStream = streams[stream]
            self._streams = streams
        for kind, first, second, third in self._actions:
            if kind == LAUNCH:
                _launch.checked(driver.cuLaunchKernelEx(first, second, third, 0))
            elif kind == CALL:
                with _NOTHING if as_torch_has[third] is None else torch.cuda.stream(as_torch_has[third]):
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
        place, start = self._places[slot]
        tensor = tensors[place]
        if place == self._own:
            tensor, offset = tensor.view(dtype), offset + start // dtype.itemsize
        return tensor.as_strided(shape, stride, tensor.storage_offset() + offset)


_NOTHING = contextlib.nullcontext()
