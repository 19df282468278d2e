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
    _nvrtc.wait_for(begun, side)
    with torch.cuda.stream(side):
        work()


def at_once(first: Callable[[], None], second: Callable[[], None], device: torch.device) -> None:
    """Both, in any order; on a GPU the second beside the first."""
    if device.type == "cuda":
        side = _side(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            second()
        first()
    else:
        first()
        second()


def _side(device: torch.device) -> torch.cuda.Stream:
    number = _number(device)
    if number not in _sides.streams:
        _sides.streams[number] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    _sides.used.add(number)
    return _sides.streams[number]


def _number(device: torch.device) -> int:
    if device.type != "cuda":
        return -1
    return torch.cuda.current_device() if device.index is None else device.index
