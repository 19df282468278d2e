"""What the driver is told of a launch, without a GPU: a stand-in reads it from where the driver would."""

from __future__ import annotations

import ctypes
import struct
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

from enrnn import _launch

driver = pytest.importorskip("cuda.bindings.driver")


class Told(NamedTuple):
    function: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    stream: int
    attributes: list[Any]
    words: list[int]


class Driver:
    """As much of the driver as a launch needs."""

    CUlaunchConfig, CUlaunchAttribute, CUlaunchAttributeID = (
        driver.CUlaunchConfig,
        driver.CUlaunchAttribute,
        driver.CUlaunchAttributeID,
    )

    def __init__(self) -> None:
        self.told: list[Told] = []
        self.context, self.status, self.meanwhile = 1, 0, lambda: None

    def cuCtxGetCurrent(self) -> tuple[int, int]:
        return 0, self.context

    def cuCtxSetCurrent(self, context: int) -> tuple[int]:
        self.context = context
        return (0,)

    def cuLaunchKernelEx(self, config: Any, function: int, pointers: int, extra: int) -> tuple[int]:
        self.meanwhile()
        many = len(ARGUMENTS)
        addresses = (ctypes.c_void_p * many).from_address(pointers)
        words = [ctypes.c_longlong.from_address(address).value for address in addresses]
        grid, block = (config.gridDimX, config.gridDimY, config.gridDimZ), (config.blockDimX, config.blockDimY, config.blockDimZ)
        assert config.numAttrs == len(config.attrs)
        self.told.append(Told(function, grid, block, config.sharedMemBytes, int(config.hStream), config.attrs, words))
        return (self.status,)


class Pair(ctypes.Structure):
    _fields_ = (("first", ctypes.c_longlong), ("second", ctypes.c_longlong))


class Nested(ctypes.Structure):
    _fields_ = (("pairs", Pair * 2), ("start", ctypes.c_void_p), ("sizes", ctypes.c_int * 2), ("last", ctypes.c_longlong))


class Gap(ctypes.Structure):
    _fields_ = (("first", ctypes.c_longlong), ("second", ctypes.c_int))


TENSOR = torch.arange(3)
ARGUMENTS: list[_launch.Argument] = [TENSOR, None, 2**40, -1, Pair(5, 6), True]
WORDS = [TENSOR.data_ptr(), 0, 2**40, -1, 5, 1]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Driver:
    fake = Driver()
    monkeypatch.setattr(_launch, "driver", lambda: fake)
    monkeypatch.setattr(_launch, "driver_version", lambda: 13000)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 77 + index, raising=False)
    monkeypatch.setattr(_launch, "_event", lambda index: driver.CUevent(4321))
    return fake


def kernel(fake: Driver, index: int = 0) -> _launch.Kernel:
    return _launch.Kernel(11, 300, torch.device("cuda", index), 99)


def test_arguments_and_sizes(fake: Driver) -> None:
    launch = kernel(fake)
    assert launch((3, 4), 256, *ARGUMENTS) is None
    launch(5, 32, None, 1, 2, 3, Pair(7, 8), 4)
    launch((3, 4), 64, *ARGUMENTS)
    first, second, third = fake.told
    assert first == Told(11, (3, 4, 1), (256, 1, 1), 300, 77, [], WORDS)
    assert (second.grid, second.block, second.words) == ((5, 1, 1), (32, 1, 1), [0, 1, 2, 3, 7, 4])
    assert third == first._replace(block=(64, 1, 1))


def test_a_structure_is_filled_in_the_order_of_its_numbers() -> None:
    found = _launch.filled(Nested, 1, -2, 3, 4, 2**47, 6, -7, 8)
    assert [(pair.first, pair.second) for pair in found.pairs] == [(1, -2), (3, 4)]
    assert (found.start, list(found.sizes), found.last) == (2**47, [6, -7], 8)
    with pytest.raises(struct.error):
        _launch.filled(Nested, 1, 2)
    with pytest.raises(AssertionError, match="gaps"):
        _launch.filled(Gap, 1, 2)


def test_beginning_early_is_said_of_that_launch_alone(fake: Driver) -> None:
    launch = kernel(fake)
    for early in (True, False, True):
        launch(1, 32, *ARGUMENTS, early=early)
    kinds = driver.CUlaunchAttributeID
    assert [len(told.attributes) for told in fake.told] == [1, 0, 1]
    (said,) = fake.told[2].attributes
    assert said.id == kinds.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    assert said.value.programmaticStreamSerializationAllowed == 1


@pytest.mark.parametrize("lets", [False, True])
def test_an_event_that_tells_when_it_has_begun(lets: bool, fake: Driver) -> None:
    launch = kernel(fake)
    launch(1, 32, *ARGUMENTS, early=True)
    assert int(launch(1, 32, *ARGUMENTS, early=True, begun=True, lets=lets)) == 4321
    launch(1, 32, *ARGUMENTS, early=True)
    assert [len(told.attributes) for told in fake.told] == [1, 2, 1]
    said, kinds = fake.told[1].attributes[1], driver.CUlaunchAttributeID
    names = ("LAUNCH_COMPLETION_EVENT", "PROGRAMMATIC_EVENT")
    assert said.id == getattr(kinds, f"CU_LAUNCH_ATTRIBUTE_{names[lets]}")
    assert int((said.value.programmaticEvent if lets else said.value.launchCompletionEvent).event) == 4321


def test_a_launch_within_a_launch_has_its_own_memory(fake: Driver) -> None:
    """As of another thread, while the driver reads what this one has told it."""
    launch = kernel(fake)
    launch(1, 32, *ARGUMENTS)

    def another() -> None:
        fake.meanwhile = lambda: None
        launch(9, 128, *[None] * 4, Pair(1, 2), 0)

    fake.meanwhile = another
    launch(2, 64, *ARGUMENTS)
    _, within, around = fake.told
    assert (within.grid[0], within.block[0], within.words) == (9, 128, [0, 0, 0, 0, 1, 0])
    assert (around.grid[0], around.block[0], around.words) == (2, 64, WORDS)


def test_threads_do_not_get_in_one_another_s_way(fake: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    launch, mixed = kernel(fake), []

    def told(config: Any, function: int, pointers: int, extra: int) -> tuple[int]:
        words = [ctypes.c_longlong.from_address(each).value for each in (ctypes.c_void_p * 3).from_address(pointers)]
        mixed.extend(words if len({config.gridDimX, config.blockDimX, *words}) > 1 else [])
        return (0,)

    def repeat(number: int) -> None:
        for _ in range(300):
            launch(number, number, number, number, number)

    monkeypatch.setattr(fake, "cuLaunchKernelEx", told)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(repeat, range(1, 9)))
    finally:
        sys.setswitchinterval(before)
    assert not mixed


def test_another_device_is_made_the_current_one(fake: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0]

    class On:
        def __init__(self, index: int) -> None:
            self.index = index

        def __enter__(self) -> None:
            self.before, now[0] = now[0], self.index

        def __exit__(self, *_: object) -> None:
            now[0] = self.before

    launch = kernel(fake, 2)
    monkeypatch.setattr(torch, "cuda", SimpleNamespace(current_device=lambda: now[0], device=On))
    launch(1, 32, *ARGUMENTS)
    assert fake.told[0].stream == 79
    assert now == [0]


def test_a_thread_without_a_context_is_given_one(fake: Driver) -> None:
    launch = kernel(fake)
    for _ in range(2):  # somebody may take it away
        fake.context = 0
        launch(1, 32, *ARGUMENTS)
        assert fake.context == 99


def test_a_launch_that_fails_says_so(fake: Driver) -> None:
    fake.status = 700
    with pytest.raises(RuntimeError, match="CUDA answered 700"):
        kernel(fake)(1, 32, *ARGUMENTS)
