"""Work on a stream of its own: beside a sweep that leaves multiprocessors free, or beside other work.

    with Joined(device):
        begun = ...  # the event of a kernel that was launched
        beside([begun], work, device)
        at_once(first, second, device)

What is done there writes to memory that was there before, and is done before whatever is launched after `Joined`.
"""

import contextlib
import threading
from collections.abc import Callable, Iterable
from typing import Any

import torch

from .. import _launch
from .._streams import BESIDE, another, index_of


class _Used(threading.local):
    """This thread's second streams that something was launched on, by the GPU's number."""

    def __init__(self) -> None:
        self.streams: dict[int, torch.cuda.Stream] = {}


_used = _Used()


class Joined:
    """When it ends, the current stream waits for what was done beside it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        stream = _used.streams.pop(index_of(self._device), None)
        if stream is not None:
            _wait(torch.cuda.current_stream(self._device), stream)


def beside(events: Iterable[Any], work: Callable[[], None], device: torch.device) -> None:
    """`work` begins after these: perhaps when a kernel of the current stream has taken its place on the GPU. (That this has come
    about CUDA tells to the best of its knowledge, which is enough to find a moment, and not to know that something is there.)"""
    side = _side(device)
    if side is None:
        work()
        return
    for event in events:
        _launch.wait_for(event, side)
    with torch.cuda.stream(side):
        work()


def at_once(first: Callable[[], None], second: Callable[[], None] | None, device: torch.device) -> None:
    """Both, in any order; on a GPU the second beside the first, which is launched first and so finds its places free."""
    side = None if second is None else _side(device)
    if side is not None:
        _wait(side, torch.cuda.current_stream(device))
    first()
    if second is not None:
        with contextlib.nullcontext() if side is None else torch.cuda.stream(side):
            second()


def _wait(later: torch.cuda.Stream, earlier: torch.cuda.Stream) -> None:
    """What is launched on the one from now on begins after what has been launched on the other."""
    _launch.wait_for(_launch.mark(earlier), later)


def _side(device: torch.device) -> torch.cuda.Stream | None:
    """The other stream, which will be waited for; None if there is none."""
    stream = another(device, BESIDE)
    if stream is not None:
        _used.streams[index_of(device)] = stream
    return stream
