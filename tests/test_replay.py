"""Calls that are replayed do what the function does, and functions that cannot be are not; without a GPU.

Kernels are stood in for by functions of Python, which find their arguments where the driver would, and read and write the memory
of tensors on the CPU.
"""

from __future__ import annotations

import ctypes
import functools
import gc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from enrnn import _graphs, _launch, _replay, _tape
from enrnn._launch import Kernel, address, filled
from enrnn._replay import replayed
from tests._captures import Captures
from tests.recurrence._replayed import at_first, programs

driver = pytest.importorskip("cuda.bindings.driver")

STREAMS = {"main": 70, "side": 71, "other": 72}


class Driver(Captures):
    """Runs what it is told at once, and notes in which order, and on which stream."""

    CUlaunchConfig, CUlaunchAttribute, CUlaunchAttributeID, CUevent_flags = (
        driver.CUlaunchConfig,
        driver.CUlaunchAttribute,
        driver.CUlaunchAttributeID,
        driver.CUevent_flags,
    )

    def __init__(self) -> None:
        super().__init__(driver, STREAMS["side"])
        self.log: list[str] = []
        self.fails = False
        self.events = self.last = 0
        self.marked: dict[int, int] = {}

    def cuCtxGetCurrent(self) -> tuple[int, int]:
        return 0, 1

    def cuEventCreate(self, flags: int) -> tuple[int, Any]:
        self.events, self.last = self.events + 1, self.last + 1
        return 0, driver.CUevent(self.last)

    def cuEventDestroy(self, event: Any) -> tuple[int]:
        self.events -= 1
        return (0,)

    def cuEventRecord(self, event: Any, stream: int) -> tuple[int]:
        if not self._keeps(lambda: self.cuEventRecord(event, stream)):
            self.marked[int(event)] = len(self.log)
            self.log.append(f"{self._now_on(stream)} marks")
        return (0,)

    def cuStreamWaitEvent(self, stream: int, event: Any, flags: int) -> tuple[int]:
        if not self._keeps(lambda: self.cuStreamWaitEvent(stream, event, flags)):
            self.log.append(f"{self._now_on(stream)} waits for {self.marked.get(int(event), 'a beginning')}")
        return (0,)

    def cuLaunchKernelEx(self, config: Any, function: Callable[..., None], pointers: int, extra: int) -> tuple[int]:
        names = function.__code__.co_varnames[: function.__code__.co_argcount]
        places = (ctypes.c_void_p * len(names)).from_address(pointers)
        given = [
            ctypes.string_at(at, ctypes.sizeof(Rows) if name == "rows" else 8) for name, at in zip(names, places, strict=True)
        ]
        told = int(config.hStream), function, (config.gridDimX, config.blockDimX, len(config.attrs)), given
        return (0,) if self._keeps(lambda: self._run(*told)) else self._run(*told)

    def _run(self, stream: int, function: Callable[..., None], sizes: tuple[int, ...], given: list[bytes]) -> tuple[int]:
        self.log.append(f"{self._now_on(stream)} {function.__name__} " + " ".join(map(str, sizes)))
        if self.fails:
            return (700,)
        kept = [ctypes.create_string_buffer(each, len(each)) for each in given]
        function(*map(ctypes.addressof, kept))
        return (0,)


class Event:
    """torch's."""

    def __int__(self) -> int:
        return id(self)


class Stream:
    def __init__(self, cuda_stream: int) -> None:
        self.cuda_stream = cuda_stream

    def record_event(self) -> Event:
        event = Event()
        _launch.driver().cuEventRecord(event, self.cuda_stream)
        return event

    def wait_event(self, event: Event) -> None:
        _launch.driver().cuStreamWaitEvent(self.cuda_stream, event, 0)

    def wait_stream(self, other: Stream) -> None:
        self.wait_event(other.record_event())


MAIN, SIDE, OTHER = (Stream(handle) for handle in STREAMS.values())


class On:
    """What torch calls the current stream."""

    now = MAIN

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        self.before, On.now = On.now, self.stream

    def __exit__(self, *_: object) -> None:
        On.now = self.before


@pytest.fixture(autouse=True, params=[13000, 12080], ids=["graphs", "launches"])
def fake(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    fake = Driver()
    monkeypatch.setattr(_launch, "driver", lambda: fake)
    monkeypatch.setattr(_launch, "driver_version", lambda: request.param)
    monkeypatch.setattr(_launch.thread, "events", {})
    monkeypatch.setattr(_replay, "replayable", lambda like: True)
    monkeypatch.setattr(_replay, "CAPTURED", set())  # there is no GPU that could do it again
    for module in (_replay, _tape):
        monkeypatch.setattr(module, "another", lambda device, number: SIDE)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: On.now)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "stream", On)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: On.now.cuda_stream, raising=False)
    yield fake
    assert _launch.thread.witness is None


def kernel(function: Callable[..., None]) -> Callable[..., Any]:
    made = functools.cache(lambda: Kernel(function, 0, torch.device("cuda", 0), 1))
    return lambda *arguments, **told: made()(*arguments, **told)


def number(at: int) -> int:
    return ctypes.c_longlong.from_address(at).value


def floats(start: int, many: int) -> Any:
    return (ctypes.c_float * many).from_address(start)


@kernel
def plus(a: int, b: int, out: int, many: int) -> None:
    """`out = a + b`"""
    first, second, to = (floats(number(at), number(many)) for at in (a, b, out))
    to[:] = [x + y for x, y in zip(first, second, strict=True)]


class Row(ctypes.Structure):
    _fields_ = (("many", ctypes.c_int), ("times", ctypes.c_int), ("start", ctypes.c_void_p))


class Rows(ctypes.Structure):
    _fields_ = (("of", Row * 2), ("last", ctypes.c_longlong))


@kernel
def scale(rows: int, by: int) -> None:
    """The first of two, times a number, to the second."""
    given = Rows.from_address(rows)
    first, second = (floats(row.start, row.many) for row in given.of)
    second[:] = [x * given.of[0].times * number(by) for x in first]


class Counted:
    """A function that is replayed, and how often it has been called itself."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.times = 0

        def counted(*arguments: Any) -> Any:
            self.times += 1
            return function(*arguments)

        self.run = replayed(counted)

    def __call__(self, *arguments: Any) -> Any:
        return self.run(*arguments)


def sums(x: Tensor, y: Tensor, times: int = 1) -> tuple[Tensor, Tensor]:
    """`3·times·(x + y)` of the second half of the rows, and `x + y`. By way of memory of its own, and of a structure."""
    whole, half = torch.empty_like(x), x.new_empty(x.shape[0] // 2, x.shape[1])
    plus(1, 32, x, y, whole, x.numel())
    start = address(whole) + 4 * half.numel()
    own = x.new_empty(half.numel() + 7)
    rows = [half.numel(), 3, start, half.numel(), 0, address(own), 5]
    scale((2, 1), 64, filled(Rows, *rows), times, early=True)
    plus(3, 32, own, torch.empty(0), half, 0, early=True)
    scale(1, 64, filled(Rows, half.numel(), 1, address(own), half.numel(), 0, address(half), 5), 1)
    return half, whole


def test_the_fourth_call_is_replayed_and_right(fake: Driver) -> None:
    run, logs, kept = Counted(sums), [], []
    for seed in range(8):
        x, y = torch.randn(2, 6, 5, generator=torch.Generator().manual_seed(seed)).unbind()
        x, y = x.clone(), y.clone()
        half, whole = run(x, y, 2)
        torch.testing.assert_close(whole, x + y, rtol=0, atol=0)
        torch.testing.assert_close(half, 6 * (x + y)[3:])
        kept.append((half, whole, half.clone(), whole.clone()))
        logs.append(fake.log.copy())
        fake.log.clear()
    assert run.times == 3
    assert all(log == logs[0] for log in logs)
    assert all(torch.equal(a, c) and torch.equal(b, d) for a, b, c, d in kept)  # no call wrote to another's


def test_other_sizes_strides_and_numbers_are_other_calls() -> None:
    run = Counted(sums)
    for times in range(1, 4):
        for rows in (4, 6):
            for shift in (0, 1):
                for _ in range(6):
                    x, y = torch.randn(rows * 5 + 4)[shift : shift + rows * 5].view(rows, 5), torch.randn(rows, 5)
                    half, whole = run(x, y, times)
                    torch.testing.assert_close(half, 3 * times * (x + y)[rows // 2 :])
                    torch.testing.assert_close(whole, x + y, rtol=0, atol=0)
    assert run.times == 3 * 2 * 2 * 3


def test_a_view_is_read_where_it_is() -> None:
    run = Counted(lambda x, y: plus_of(x[1:], y))
    for _ in range(6):
        x, y = torch.randn(3, 8)[:, 4:].contiguous()[:3], torch.randn(2, 4)
        torch.testing.assert_close(run(x, y), x[1:] + y, rtol=0, atol=0)
    assert run.times == 3


def plus_of(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(y)
    plus(1, 32, x, y, out, y.numel())
    return out


def test_products_of_torch_are_replayed() -> None:
    def run(x: Tensor, y: Tensor) -> Tensor:
        own, out = plus_of(x, y), x.new_empty(x.shape[0], x.shape[0])
        torch.mm(own, y.mT, out=out)
        torch.addmm(out, x[:, 1:], y[:, 1:].mT, out=out)
        own[:, :1] += x[:, :1]
        out[:, :1].copy_(own[:, :1])
        return out

    counted = Counted(run)
    for _ in range(6):
        x, y = torch.randn(2, 5, 7).clone().unbind()
        x, y = x.clone(), y.clone()
        expected = (x + y) @ y.mT + x[:, 1:] @ y[:, 1:].mT
        expected[:, 0] = 2 * x[:, 0] + y[:, 0]
        torch.testing.assert_close(counted(x, y), expected)
    assert counted.times == 3


def among_products(x: Tensor, y: Tensor) -> Tensor:
    """Kernels, the numbers of whose threads tell them apart, and products of torch's; some of them on another stream."""
    out, square = torch.empty_like(x), x.new_empty(x.shape[0], x.shape[0])

    def sums(*threads: int, **told: bool) -> Any:
        return [plus(1, each, x, y, out, x.numel(), **told) for each in threads][-1]

    def beside(*threads: int, after: Any) -> Event:
        _launch.wait_for(after, SIDE)  # type: ignore[arg-type]
        with On(SIDE):
            sums(*threads)
            return _launch.mark(SIDE)  # type: ignore[arg-type, no-any-return]

    sums(1, 2, 3)
    torch.mm(x, y.mT, out=square)
    sums(4)
    torch.addmm(square, out, y.mT, out=square)
    sums(5, early=True)
    first = beside(6, 7, after=sums(8, early=True, begun=True))
    second = beside(9, after=first)
    sums(10)
    _launch.wait_for(second, MAIN)  # type: ignore[arg-type]
    torch.mm(x, y.mT, out=square)
    sums(11)
    third = beside(12, after=_launch.mark(MAIN))  # type: ignore[arg-type]
    torch.addmm(square, out, y.mT, out=square)
    sums(13, 14)
    _launch.wait_for(third, MAIN)  # type: ignore[arg-type]
    torch.mm(x, y.mT, out=square)
    sums(24)
    event = sums(15, begun=True)
    torch.addmm(square, out, y.mT, out=square)
    _launch.wait_for(beside(16, 17, after=event), MAIN)  # type: ignore[arg-type]
    torch.mm(x, y.mT, out=square)
    sums(25, 26)
    _launch.wait_for(_launch.mark(MAIN), SIDE)  # type: ignore[arg-type]
    torch.addmm(square, out, y.mT, out=square)
    with On(SIDE):
        sums(27)
        done = _launch.mark(SIDE)  # type: ignore[arg-type]
    sums(28, 29)
    _launch.wait_for(done, MAIN)  # type: ignore[arg-type]
    torch.mm(x, y.mT, out=square)
    sums(18, 19)
    _launch.wait_for(beside(20, after=sums(21, begun=True)), MAIN)  # type: ignore[arg-type]
    torch.addmm(square, out, y.mT, out=square)
    sums(22, 23)
    return square


def test_among_products_there_are_graphs(fake: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what lies between two of them, unless it waits for what was before, or what comes after waits for it, or some of it is
    on another stream where it is not waited for, or where something else may still be under way."""
    run, logs = Counted(among_products), []
    for times in range(6):
        if times == 5:
            monkeypatch.setattr(_graphs.Graphs, "run", at_first)
        x, y = torch.randn(2, 3, 4).clone()
        torch.testing.assert_close(run(x.clone(), y.clone()), (2 * x + y) @ y.mT)
        logs.append(fake.log.copy())
        fake.log.clear()
    assert run.times == 3
    assert all(log == logs[0] for log in logs)
    program = programs()[-1]
    assert isinstance(program, _replay.Program)
    parts = _replay._parts(program.steps)
    graphs = [[step.launch.block for step in steps if step.launch is not None] for steps, as_graph in parts if as_graph]
    assert graphs == [[1, 2, 3], [5, 8, 6, 7, 9, 10], [22, 23]]
    assert fake.graphs_launched == len(graphs)
    assert [each for steps, _ in parts for each in steps] == program.steps


def beside(x: Tensor, y: Tensor) -> Tensor:
    """The second of two sums on another stream."""
    first, second = torch.empty_like(x), torch.empty_like(x)
    event = plus(1, 32, x, y, first, x.numel(), begun=True, lets=True)
    _launch.wait_for(event, SIDE)  # type: ignore[arg-type]
    with On(SIDE):
        plus(2, 32, first, y, second, x.numel(), early=True)
        done = _launch.mark(SIDE)  # type: ignore[arg-type]
    _launch.wait_for(done, MAIN)  # type: ignore[arg-type]
    return second


def test_streams_wait_as_they_did(fake: Driver) -> None:
    run, logs = Counted(beside), []
    for _ in range(6):
        x, y = torch.randn(3, 4), torch.randn(3, 4)
        torch.testing.assert_close(run(x, y), x + y + y)
        logs.append(fake.log.copy())
        fake.log.clear()
    assert run.times == 3
    assert logs[0] == ["70 plus 1 32 1", "71 waits for a beginning", "71 plus 2 32 1", "71 marks", "70 waits for 3"]
    assert all(log == logs[0] for log in logs)


def calls_beside(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    _launch.wait_for(plus(1, 32, x, y, out, x.numel(), begun=True), SIDE)  # type: ignore[arg-type]
    with On(SIDE):
        out += y
        done = _launch.mark(SIDE)  # type: ignore[arg-type]
    _launch.wait_for(done, MAIN)  # type: ignore[arg-type]
    return out


def test_operations_are_called_on_the_stream_they_were_called_on(monkeypatch: pytest.MonkeyPatch) -> None:
    run, streams = Counted(calls_beside), []
    entered = On.__enter__
    monkeypatch.setattr(On, "__enter__", lambda on: (streams.append(on.stream), entered(on))[1])
    for _ in range(6):
        x, y = torch.randn(3, 4), torch.randn(3, 4)
        torch.testing.assert_close(run(x, y), x + 2 * y)
    assert run.times == 3
    assert streams == [SIDE] * 6


def test_what_fails_half_way_is_waited_for(fake: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    run, x = Counted(beside), torch.randn(3, 4)
    for _ in range(4):
        run(x, x.clone())
    fake.log.clear()
    launches, launch = iter([False, True]), fake.cuLaunchKernelEx
    monkeypatch.setattr(fake, "cuLaunchKernelEx", lambda *given: (700,) if next(launches) else launch(*given))
    with pytest.raises(RuntimeError, match="CUDA answered 700"):
        run(x, x.clone())
    assert fake.log[-2:] == ["71 marks", f"70 waits for {len(fake.log) - 2}"]


def of_no_rows(x: Tensor, y: Tensor) -> Tensor:
    """What has no entries has no address."""
    out = plus_of(x, y)
    plus(1, 32, x[1:], out[1:], y[1:], 0)
    torch.addmm(out, x[1:].mT, y[1:], out=out)
    return out


def test_tensors_without_entries() -> None:
    run = Counted(of_no_rows)
    x, y = torch.randn(1, 1), torch.randn(1, 1)
    for _ in range(6):  # at the same addresses
        torch.testing.assert_close(run(x, y), x + y)
    assert run.times == 3


def test_one_that_is_replayed_within_another(fake: Driver) -> None:
    inner = Counted(plus_of)
    outer = Counted(lambda x, y: inner(inner(x, y), y))
    for _ in range(5):
        x, y = torch.randn(2, 3), torch.randn(2, 3)
        torch.testing.assert_close(inner(x, y), x + y)
    assert inner.times == 3
    for _ in range(6):
        x, y = torch.randn(2, 3), torch.randn(2, 3)
        torch.testing.assert_close(outer(x, y), x + 2 * y)
    assert (outer.times, inner.times) == (3, 3 + 2 * 2)  # replayed in the first call, and a part of the two that are watched


def test_bytes_of_its_own() -> None:
    def run(x: Tensor, y: Tensor, flags: Tensor) -> tuple[Tensor, Tensor]:
        out, before, kept = plus_of(x, y), torch.empty_like(x), torch.empty_like(flags)
        before.copy_(x)
        kept.copy_(flags)
        found = torch.empty_like(flags)
        found.copy_(kept)
        return out, found

    counted = Counted(run)
    for seed in range(6):
        x, y, flags = torch.randn(3), torch.randn(3), torch.arange(seed, seed + 5, dtype=torch.uint8)
        out, found = counted(x, y, flags)
        torch.testing.assert_close(out, x + y)
        assert torch.equal(found, flags)
    assert counted.times == 3


def test_an_address_is_known_as_one_however_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_tape, "LARGEST", 2**62)
    tape, given = _tape.Tape((OWN, OWN.clone())), (OWN, OWN.clone())
    tape.watch(loses_an_address, given)
    assert tape.fault is not None


def test_nothing_is_kept_of_what_cannot_be_replayed() -> None:
    x = torch.randn(3)
    tape, seen = _tape.Tape((x,)), []

    def run(x: Tensor) -> Tensor:
        x.clone()
        for _ in range(3):
            torch.empty_like(x)
            seen.append(len(tape._kept))
        return plus_of(x, x)

    tape.watch(run, (x,))
    assert seen == [0, 0, 0]
    assert tape.fault


def test_the_current_stream_may_be_another_one(fake: Driver) -> None:
    run = Counted(beside)
    for _ in range(4):
        run(torch.randn(3), torch.randn(3))
    fake.log.clear()
    with On(OTHER):
        run(torch.randn(3), torch.randn(3))
    assert fake.log == ["72 plus 1 32 1", "71 waits for a beginning", "71 plus 2 32 1", "71 marks", "72 waits for 3"]


OWN = torch.ones(2, 2)
COUNTER = iter(range(1, 1000))


def reads_a_value(x: Tensor, y: Tensor) -> Tensor:
    return plus_of(x, y) if x[0, 0].item() < 1e9 else y


def calls_another_operation(x: Tensor, y: Tensor) -> Tensor:
    return plus_of(x.clone(), y)


def has_zeros(x: Tensor, y: Tensor) -> Tensor:
    plus(1, 32, x, y, out := torch.zeros_like(x), x.numel())
    return out


def has_memory_of_its_own(x: Tensor, y: Tensor) -> Tensor:
    return plus_of(OWN, plus_of(x, y))


def returns_what_it_was_given(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return plus_of(x, y), x


def returns_a_view(x: Tensor, y: Tensor) -> Tensor:
    return plus_of(x, y)[:1]


def loses_an_address(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    plus(1, 32, int(address(x)), y, out, x.numel())
    return out


def fills_a_structure_by_hand(x: Tensor, y: Tensor) -> Tensor:
    out = plus_of(x, y)
    many = x.numel()
    scale(1, 32, Rows((Row * 2)(Row(many, 1, out.data_ptr()), Row(many, 1, out.data_ptr())), 5), 1)
    return out


def changes_from_call_to_call(x: Tensor, y: Tensor) -> Tensor:
    out = plus_of(x, y)
    many = x.numel()
    scale(next(COUNTER), 32, filled(Rows, many, 1, address(out), many, 0, address(out), 5), 1)
    return out


def begins_early(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    plus(1, 32, x, y, out, x.numel(), early=True)
    return out


def begins_beside(x: Tensor, y: Tensor) -> Tensor:
    plus(1, 32, x, y, out := torch.empty_like(x), x.numel())
    with On(SIDE):
        plus(1, 32, x, y, out, x.numel())
        done = _launch.mark(SIDE)  # type: ignore[arg-type]
    _launch.wait_for(done, MAIN)  # type: ignore[arg-type]
    return out


def does_not_wait(x: Tensor, y: Tensor) -> Tensor:
    _launch.wait_for(plus(1, 32, x, y, out := torch.empty_like(x), x.numel(), begun=True), SIDE)  # type: ignore[arg-type]
    with On(SIDE):
        _launch.wait_for(_launch.mark(SIDE), MAIN)  # type: ignore[arg-type]
        plus(1, 32, x, y, out, x.numel())
    return out


def waits_for_a_beginning(x: Tensor, y: Tensor) -> Tensor:
    _launch.wait_for(plus(1, 32, x, y, out := torch.empty_like(x), x.numel(), begun=True), SIDE)  # type: ignore[arg-type]
    with On(SIDE):
        begun = plus(1, 32, x, y, out, x.numel(), begun=True)
    _launch.wait_for(begun, MAIN)  # type: ignore[arg-type]
    return out


def uses_a_third_stream(x: Tensor, y: Tensor) -> Tensor:
    _launch.wait_for(plus(1, 32, x, y, out := torch.empty_like(x), x.numel(), begun=True), OTHER)  # type: ignore[arg-type]
    with On(OTHER):
        plus(1, 32, x, y, out, x.numel())
        done = _launch.mark(OTHER)  # type: ignore[arg-type]
    _launch.wait_for(done, MAIN)  # type: ignore[arg-type]
    return out


BEFORE = Event()


def waits_for_what_was_before(x: Tensor, y: Tensor) -> Tensor:
    out = plus_of(x, y)
    _launch.wait_for(BEFORE, MAIN)  # type: ignore[arg-type]
    return out


def takes_much_memory(x: Tensor, y: Tensor) -> Tensor:
    x.new_empty(_tape.MOST_MEMORY // 4 + 1)
    return plus_of(x, y)


def returns_the_same_twice(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    out = plus_of(x, y)
    return out, out.view(-1).view(2, 2)


def asks_for_much_memory(x: Tensor, y: Tensor) -> Tensor:
    for _ in range(3):
        x.new_empty(_tape.MOST_ASKED_FOR // 8)
    return plus_of(x, y)


def has_memory_elsewhere(x: Tensor, y: Tensor) -> Tensor:
    torch.empty(3, device="meta")
    return plus_of(x, y)


def launches_nothing(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    out.copy_(x)
    out += y
    return out


FAULTY: dict[Callable[..., Any], str | None] = {
    reads_a_value: "calls aten._local_scalar_dense",
    calls_another_operation: "calls aten.clone",
    has_zeros: "calls aten.zeros_like",
    has_memory_of_its_own: "memory that is not its own",
    returns_what_it_was_given: "not new",
    returns_a_view: "not new",
    loses_an_address: "unknown origin",
    fills_a_structure_by_hand: "in another way",
    changes_from_call_to_call: None,  # a single one shows nothing
    begins_early: "waits for all before it",
    begins_beside: "does not begin after it",
    waits_for_a_beginning: "is not waited for",
    does_not_wait: "is not waited for",
    returns_the_same_twice: "not new",
    asks_for_much_memory: "too much memory",
    has_memory_elsewhere: "other memory",
    uses_a_third_stream: "other streams",
    waits_for_what_was_before: "what was before it",
    takes_much_memory: "too much memory",
    launches_nothing: "waits for all before it",
}
"""What cannot be replayed, and why not."""


@pytest.mark.parametrize("function", FAULTY, ids=lambda function: function.__name__)
def test_what_cannot_be_replayed_is_not(function: Callable[..., Any]) -> None:
    run, reason = Counted(function), FAULTY[function]
    for _ in range(6):
        x, y = torch.randn(2, 2), torch.randn(2, 2)
        found = run(x, y)
        expected = x + y + (function is has_memory_of_its_own)
        torch.testing.assert_close(
            found[0] if isinstance(found, tuple) else found, expected[:1] if function is returns_a_view else expected
        )
    assert run.times == 6
    tape = _tape.Tape((x, y))
    tape.watch(function, (x, y))
    assert (reason is None and tape.fault is None) or reason in tape.fault


def test_tensors_that_share_memory_are_not_told_apart() -> None:
    run = Counted(sums)
    for _ in range(6):
        both = torch.randn(2, 4, 5)
        torch.testing.assert_close(run(*both)[1], both.sum(0))
    assert run.times == 6


def test_they_may_share_it_when_it_is_replayed() -> None:
    run = Counted(sums)
    for _ in range(3):
        run(torch.randn(4, 4), torch.randn(4, 4))
    both = torch.randn(2, 4, 4)
    assert torch.equal(run(*both)[1], both.sum(0))
    assert run.times == 3


def test_a_launch_that_fails_says_so_and_the_next_is_right(fake: Driver) -> None:
    run, x = Counted(sums), torch.randn(4, 5)
    for _ in range(4):
        run(x, x.clone())
    fake.fails = True
    with pytest.raises(RuntimeError, match="CUDA answered 700"):
        run(x, x.clone())
    fake.fails = False
    assert torch.equal(run(x, x.clone())[1], 2 * x)
    assert run.times == 3


def test_a_call_that_fails_while_it_is_watched_is_watched_again(fake: Driver) -> None:
    run, x = Counted(sums), torch.randn(4, 5)
    run(x, x.clone())
    fake.fails = True
    with pytest.raises(RuntimeError, match="CUDA answered 700"):
        run(x, x.clone())
    fake.fails = False
    for _ in range(5):
        assert torch.equal(run(x, x.clone())[1], 2 * x)
    assert run.times == 4


def test_nothing_is_replayed_where_it_should_not_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """On another device than the current one, or while a graph is captured."""
    run, x = Counted(sums), torch.randn(4, 5)
    for _ in range(4):
        run(x, x.clone())
    monkeypatch.setattr(_replay, "replayable", lambda like: False)
    run(x, x.clone())
    assert run.times == 4


def test_what_was_not_called_for_long_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_replay, "MOST_PROGRAMS", 3)
    run = Counted(sums)
    often = torch.randn(4, 5)
    for rows in (2, 6, 8, 10, 12):
        for _ in range(4):
            run(often, often.clone())
        for _ in range(4):
            run(torch.randn(rows, 5), torch.randn(rows, 5))
    assert run.times == 6 * 3
    run(torch.randn(2, 5), torch.randn(2, 5))
    assert run.times == 6 * 3 + 1


def test_events_are_not_kept_for_what_is_forgotten(fake: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_replay, "MOST_PROGRAMS", 2)
    run = Counted(beside)
    for rows in range(1, 6):
        for _ in range(4):
            run(torch.randn(rows), torch.randn(rows))
    gc.collect()
    of_this_thread = len(_launch.thread.events)
    assert fake.events <= of_this_thread + 2 * 2  # two for each program that is kept


def test_threads_do_not_get_in_one_another_s_way() -> None:
    run = Counted(sums)

    def repeat(seed: int) -> bool:
        generator = torch.Generator().manual_seed(seed)
        right = True
        for _ in range(50):
            x, y = torch.randn(4, 5, generator=generator), torch.randn(4, 5, generator=generator)
            right = right and torch.equal(run(x, y)[1], x + y)
        return right

    for _ in range(3):
        repeat(0)
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(repeat, range(8)))
    assert run.times == 3
