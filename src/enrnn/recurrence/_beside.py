"""Work on a stream of its own: beside a sweep that leaves multiprocessors free, or beside other work.

    with joined(device):
        begun = ...  # the event of a kernel that was launched
        beside(begun, work, device)
        at_once(first, second, device)

What is done there writes to memory that was there before, and is done before whatever is launched after `joined`.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .. import _nvrtc


class _Sides(threading.local):
    """This thread's second streams, by the GPU's number, and those that something was launched on."""

    def __init__(self) -> None:
        self.streams: dict[int, torch.cuda.Stream] = {}
        self.used: set[int] = set()


_sides = _Sides()


@contextlib.contextmanager
def joined(device: torch.device) -> Iterator[None]:
    """When it ends, the current stream waits for what was done beside it."""
    try:
        yield
    finally:
        number = _number(device)
        if number in _sides.used:
            _sides.used.discard(number)
            torch.cuda.current_stream(device).wait_stream(_sides.streams[number])


def beside(begun: Any, work: Callable[[], None], device: torch.device) -> None:
    """`work` begins with the event `begun`: when a kernel of the current stream has taken its place on the GPU."""
    side = _side(device)
    if side is None:
        work()
        return
    _nvrtc.wait_for(begun, side)
    with torch.cuda.stream(side):
        work()


def at_once(first: Callable[[], None], second: Callable[[], None] | None, device: torch.device) -> None:
    """Both, in any order; on a GPU the second beside the first."""
    side = None if second is None else _side(device)
    if second is not None and side is not None:
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            second()
        second = None
    first()
    if second is not None:
        second()


def _side(device: torch.device) -> torch.cuda.Stream | None:
    """The other stream; None on a CPU, or if it is the current one: torch has 32 in all, and gives them out in turns."""
    if device.type != "cuda":
        return None
    number = _number(device)
    if number not in _sides.streams:
        _sides.streams[number] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    side = _sides.streams[number]
    if side == torch.cuda.current_stream(device):
        return None
    _sides.used.add(number)
    return side


def _number(device: torch.device) -> int:
    if device.type != "cuda":
        return -1
    return torch.cuda.current_device() if device.index is None else device.index
