"""Threads for compiled loops: those that torch has for its own products.

Threads of our own would have to share the cores with these, which go on looking for work for some milliseconds after each product
before they go to sleep (GNU's OpenMP, unless `OMP_WAIT_POLICY` is `passive`). So a sweep over a sequence had two cores for three
threads: on two cores, at 2020, 20, 172/20, forward took 14 to 17 ms, where it takes 9.8 if they sleep. Asked to do the sweep
themselves they have not even to be woken.

They are asked by the function that compilers call for a parallel section of C. Where torch has no such runtime, and in a process
that was forked, which has none of those threads, there is a pool instead.
"""

import contextlib
import ctypes
import functools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

Function = Callable[[Any], None]
"""One of C's of an address, called by `ctypes`, which lets go of the interpreter's lock."""

_is_child = False


def run(function: Function, told: Sequence[int], threads: int) -> None:
    """Call `function(address)` on so many threads at once. At the address stand a zero, how this thread computes (whether tiny
    numbers are zero: `torch.set_flush_denormal`) or −1, and what else is `told`, 64 bits each.

    The function shares the work out by itself, by counting up that zero: how many threads call it, and which, does not matter.
    """
    numbers = (ctypes.c_int64 * (2 + len(told)))(0, -1, *told)
    section = None
    if threads > 1:
        _note_mode(numbers)
        section = None if _is_child else _parallel_section()
    if threads == 1:
        function(numbers)
    elif section is not None:
        section(function, numbers, threads, 0)
    else:
        others = [_pool().submit(function, numbers) for _ in range(threads - 1)]
        function(numbers)
        for other in others:
            other.result()


def _note_mode(numbers: Any) -> None:
    from ._cpu_kernels import machine_code, note_mode

    machine_code(note_mode, torch.float64)(numbers)


@functools.cache
def _parallel_section() -> Callable[[Function, Any, int, int], None] | None:
    """`GOMP_parallel(function, argument, threads, flags)` of the OpenMP that torch runs in, if it can be found: in what has been
    preloaded, and then in what torch is linked with, as torch finds it."""
    for library in (None, torch._C.__file__):
        with contextlib.suppress(OSError, AttributeError, TypeError):  # there is none; or it has none; or no library has no name
            section = ctypes.CDLL(library).GOMP_parallel
            section.argtypes, section.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint), None
            return section
    return None


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="enrnn")


def _in_child() -> None:
    global _is_child
    _is_child = True
    _pool.cache_clear()  # a child has the pool, but not its threads


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
