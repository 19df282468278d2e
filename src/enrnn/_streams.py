"""Other streams of a GPU, for what need not wait for what runs on the current one.

Forming `W_S` keeps the whole chip busy for a while, then a few multiprocessors for as long again, while `W_L` and `U x` could be
formed on the others. While a CUDA graph is captured they are:

    with Meanwhile(x):              # a layer
        with leaving():
            short = form_short()    #   an operator that has `with elsewhere(T):` around it
        with aside(x):
            long = form_long()      #   any operations
        inputs = …                  #   what follows runs beside the rest of both
    run(inputs, long, short)        # the current stream has waited

Two more have rules of their own: `with_its_gradient_aside`, for what comes before a layer, and `reading`, for a copy of what a
step of training changes.

Whoever says `leaving` must know that nothing touches the operator's results before `Meanwhile` ends. Outside of a graph nothing
changes: there the host's launches take longer than such kernels. Autograd knows nothing of what goes `elsewhere`. It is one
operator's kernels, and what they write is allocated there; their gradient runs on the current stream. What goes `aside` has its
gradient there too, which is autograd's doing, and so is the waiting for it; a result that the current stream reads should be told
of that (`record_stream`). Each of these streams belongs to the current one, and waits for it whenever it is given something to
do: so nothing is written over that is still being read.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ._precision import capturing


class _Thread(threading.local):
    """This thread's other streams; how many `Meanwhile`s it is in, and what these have to wait for; whether something may go
    elsewhere now, and since when there is room beside it; and what is being read."""

    def __init__(self) -> None:
        self.streams: dict[tuple[int, int, int], torch.cuda.Stream] = {}
        self.depth = 0
        self.pending: list[torch.cuda.Stream] = []
        self.leaving = False
        self.room: list[torch.cuda.Event] = []
        self.read: list[torch.cuda.Event] = []


_thread = _Thread()

BESIDE, ELSEWHERE, ASIDE, INPUTS, FORK, READING = range(6)
"""The numbers of the streams: of `recurrence/_beside.py`, `elsewhere`, `aside`, `with_its_gradient_aside`, `Fork`, `reading`."""


def another(device: torch.device, number: int) -> torch.cuda.Stream | None:
    """A stream that is always the same for this thread, the device's current stream and this number; None on a CPU."""
    if device.type != "cuda":
        return None
    current = torch.cuda.current_stream(device)
    key = index_of(device), current.stream_id, number
    while _thread.streams.get(key, current) == current:  # torch has 32 in all, and gives them out in turns
        _thread.streams[key] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return _thread.streams[key]


def index_of(device: torch.device) -> int:
    """The GPU's number; -1 for a CPU."""
    if device.type != "cuda":
        return -1
    return torch.cuda.current_device() if device.index is None else device.index


class Fork:
    """Made, it remembers how far the current stream has come. What is launched within it begins there, beside what was launched
    since; when it ends, the current stream waits for that. Outside of a graph nothing changes."""

    def __init__(self, like: Tensor) -> None:
        self._stream = another(like.device, FORK) if capturing(like) else None
        if self._stream is not None:
            self._here = torch.cuda.current_stream(like.device)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record(self._here)

    def __enter__(self) -> None:
        if self._stream is not None:
            self._stream.wait_event(self._event)
            self._on = torch.cuda.stream(self._stream)
            self._on.__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        if self._stream is not None:
            self._on.__exit__(*error)
            self._here.wait_stream(self._stream)


class Meanwhile:
    """Within it an operator may be sent elsewhere, and anything aside; when it ends, the current stream waits for that. One
    within another waits for what was sent in either."""

    def __init__(self, like: Tensor) -> None:
        self._captured = capturing(like)

    def __enter__(self) -> None:
        if self._captured:
            _thread.depth += 1

    def __exit__(self, *_: object) -> None:
        if not self._captured:
            return
        _thread.depth -= 1
        for stream in _thread.pending:
            torch.cuda.current_stream(stream.device).wait_stream(stream)
        _thread.pending.clear()


@contextlib.contextmanager
def leaving() -> Iterator[None]:
    """An operator that can may do its work elsewhere."""
    _thread.leaving = True
    try:
        yield
    finally:
        _thread.leaving = False


@contextlib.contextmanager
def elsewhere(read: Tensor) -> Iterator[None]:
    """What is launched within it runs on another stream, if it is `leaving`, `Meanwhile`; else on the current one.

    `read`: what is read there, and may be freed before that.
    """
    stream = another(read.device, ELSEWHERE) if _thread.leaving and _thread.depth else None
    if stream is None:
        yield
        return
    here = torch.cuda.current_stream(stream.device)
    stream.wait_stream(here)
    read.record_stream(stream)
    _thread.pending.append(stream)
    _thread.room.clear()
    with torch.cuda.stream(stream):
        yield
    for event in _thread.room:
        here.wait_event(event)


@contextlib.contextmanager
def aside(like: Tensor) -> Iterator[None]:
    """What is launched within it, `Meanwhile`, runs on another stream, beside what follows; and so does its gradient."""
    stream = another(like.device, ASIDE) if _thread.depth else None
    if stream is None:
        yield
        return
    stream.wait_stream(torch.cuda.current_stream(stream.device))
    _thread.pending.append(stream)
    with torch.cuda.stream(stream):
        yield


def with_its_gradient_aside(form: Callable[[], Tensor], *read: Tensor | None) -> Tensor:
    """What `form` makes of tensors that it reads. While a graph is captured it is made on a stream of its own, which the current
    one waits for at once: so that its gradient, which often only the optimiser waits for, runs beside others. What is read, and
    what comes of it, is then not given out again in this graph."""
    given = [each for each in read if each is not None]
    wanted = torch.is_grad_enabled() and any(each.requires_grad for each in given)
    stream = another(given[0].device, INPUTS) if wanted and capturing(given[0]) else None
    if stream is None:
        return form()
    here = torch.cuda.current_stream(stream.device)
    stream.wait_stream(here)
    try:
        with torch.cuda.stream(stream):
            found = form()
    finally:
        here.wait_stream(stream)
    for each in given:
        each.record_stream(stream)  # the gradient reads it too
    found.record_stream(here)
    return found


def there_is_room() -> None:
    """What was launched up to now takes the whole chip, and what is launched from now on little of it: only from here on should
    anything run beside it."""
    if _thread.leaving and _thread.depth:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        _thread.room.append(event)


@contextlib.contextmanager
def reading(like: Tensor) -> Iterator[None]:
    """What is launched within it reads what a step of training changes, and runs beside that step: whoever changes such a thing
    before `all_is_read` says `before_writing` first. Outside of a graph nothing changes."""
    stream = another(like.device, READING) if capturing(like) else None
    if stream is None:
        yield
        return
    stream.wait_stream(torch.cuda.current_stream(stream.device))
    with torch.cuda.stream(stream):
        yield
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
    _thread.read.append(event)


def before_writing() -> bool:
    """The current stream waits for what is being read, if anything is."""
    for event in _thread.read:
        torch.cuda.current_stream().wait_event(event)
    return bool(_thread.read)


def all_is_read() -> None:
    """From now on all that the current stream does comes after it."""
    try:
        before_writing()
    finally:
        _thread.read.clear()
