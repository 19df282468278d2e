"""What is formed on another stream while a graph is captured: nothing is read too early, nor written over while it is read.

No GPU is needed to see that. Streams are stood in for by vector clocks: a stream's clock counts its own operations and, of every
other stream, those that it has waited for. Each operation that torch dispatches notes what it reads and writes, and when two of
them touch the same memory, and one writes, the later must have waited for the earlier.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import enrnn
from enrnn import _streams
from enrnn.layers import _long_short, _module
from enrnn.matrices import _eigenvalue_normalized, _normalization
from enrnn.spectrum import _solve
from enrnn.training import ModelSettings, Network, OptimizerSettings, _step
from enrnn.training._distributed import Processes
from tests.training._runs import text_task


class Stream:
    def __init__(self, name: str) -> None:
        self.name, self.stream_id, self.device = name, hash(name), torch.device("cpu")
        self.clock = {name: 0}

    def tick(self) -> int:
        self.clock[self.name] += 1
        return self.clock[self.name]

    def wait(self, clock: dict[str, int]) -> None:
        for name, time in clock.items():
            self.clock[name] = max(self.clock.get(name, 0), time)

    def wait_stream(self, other: Stream) -> None:
        self.wait(other.clock)

    def wait_event(self, event: Any) -> None:
        self.wait(event.clock)


class Detector(TorchDispatchMode):
    """Operations on simulated streams, and those of them that race."""

    def __init__(self) -> None:
        super().__init__()
        self.here, self.others = Stream("here"), dict[int, Stream]()
        self.current, self.races = self.here, list[str]()
        self.without_kernels = False
        self._written: dict[int, tuple[str, int]] = {}
        self._read: dict[int, list[tuple[str, int]]] = {}
        self._kept: list[Tensor] = []  # so that no address is used twice

    @contextlib.contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def event(self) -> Any:
        return _Event(self)

    def another(self, device: torch.device, number: int) -> Stream:
        return self.others.setdefault(number, Stream(f"stream {number}"))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if "normalize_spectrum." in str(func) or any(a.alias_info and not a.alias_info.is_write for a in func._schema.returns):
            return result  # the operator is seen from inside; a view touches nothing
        stream, now = self.current, self.current.tick()
        over = {
            _memory(given)
            for argument, several in zip(func._schema.arguments, args, strict=False)
            if argument.alias_info and argument.alias_info.is_write
            for given in tree_leaves(several)
            if isinstance(given, Tensor)
        }
        for tensor in tree_leaves((args, kwargs)):
            if isinstance(tensor, Tensor):
                self._kept.append(tensor)
                self._check(f"{func} on {stream.name} reads too early", self._written.get(_memory(tensor)))
                if _memory(tensor) in over:
                    for earlier in self._read.get(_memory(tensor), []):
                        self._check(f"{func} on {stream.name} writes too early", earlier)
                self._read.setdefault(_memory(tensor), []).append((stream.name, now))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._kept.append(tensor)
                over.add(_memory(tensor))
        self._written.update(dict.fromkeys(over, (stream.name, now)))
        return result

    def _check(self, what: str, earlier: tuple[str, int] | None) -> None:
        if earlier is not None and self.current.clock.get(earlier[0], 0) < earlier[1]:
            self.races.append(what)


class _Event:
    def __init__(self, detector: Detector) -> None:
        self._detector = detector

    def record(self, stream: Stream | None = None) -> None:
        self.clock = dict((stream or self._detector.current).clock)


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


class Note:
    """Stands in for the kernels of the normalisation."""

    @staticmethod
    def note(grid: int, threads: int, *arguments: Any, early: bool) -> None:
        finite, certified, switched, applied, simple, fell_back, radius, *kept, training = arguments
        not_finite, uncertified, normalizing, nearly_defective, fallbacks, last = kept
        not_finite.logical_or_(~finite)
        uncertified.logical_or_(~certified & finite)
        if training:
            normalizing.copy_(switched)
            nearly_defective.add_(applied & ~simple)
            fallbacks.add_(fell_back)
            last.copy_(radius)


@pytest.fixture
def detector(monkeypatch: pytest.MonkeyPatch) -> Detector:
    """As if a graph were captured on a GPU, the kernel that notes what was found included."""
    found, within = Detector(), [False]
    real = _eigenvalue_normalized._normalized

    def normalized(*arguments: Any) -> Any:
        within[0] = True
        try:
            with found:  # inside an operator no mode is active
                _streams.there_is_room()
                return real(*arguments)
        finally:
            within[0] = False

    def kernels_for(like: Tensor) -> Any:
        return None if within[0] or found.without_kernels else Note

    monkeypatch.setattr(_eigenvalue_normalized, "_normalized", normalized)
    monkeypatch.setattr(_normalization, "kernels_for", kernels_for)
    monkeypatch.setattr(_normalization, "pulled_back", lambda _, *rest: _eigenvalue_normalized._pulled_back(*rest))
    monkeypatch.setattr(_streams, "another", found.another)
    for module in (_streams, _eigenvalue_normalized, _solve, _long_short, _module):
        monkeypatch.setattr(module, "capturing", lambda like: True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: found.current)
    monkeypatch.setattr(torch.cuda, "stream", found.on)
    monkeypatch.setattr(torch.cuda, "Event", found.event)
    monkeypatch.setattr(Tensor, "record_stream", lambda *_: None)
    return found


class Halved(nn.Module):
    def forward(self, matrix: Tensor) -> Tensor:
        return matrix / 2


def layer(**settings: Any) -> enrnn.ENRNN:
    torch.manual_seed(0)
    return enrnn.ENRNN(5, 10, backend="reference", **{"short_size": 4, **settings})


def halved() -> enrnn.ENRNN:
    found = layer()
    parametrize.register_parametrization(found, "weight_short_l0", Halved(), unsafe=True)
    return found


def looked_at() -> enrnn.ENRNN:
    found = layer()
    found.parametrizations["weight_short_l0"][0].register_forward_hook(lambda module, given, matrix: matrix * 1)  # type: ignore[index]
    return found


def went(detector: Detector, network: enrnn.ENRNN) -> bool:
    """Whether anything went elsewhere in a step of training, in which nothing may race."""
    with detector:
        output, _ = network(torch.randn(3, 2, 5, dtype=next(network.parameters()).dtype))
        output.float().sum().backward()
    assert detector.races == []
    return _streams.ELSEWHERE in detector.others


GOES = {
    "plain": layer,
    "two layers, both ways": lambda: layer(num_layers=2, bidirectional=True),
    "float64": lambda: layer(dtype=torch.float64),
    "bfloat16": lambda: layer(dtype=torch.bfloat16),
}
STAYS = {
    "plainly normalized": lambda: layer(short="plainly_normalized"),
    "renormalized": lambda: layer(short="renormalized"),
    "bfloat16 later": lambda: layer().bfloat16(),
    "two parametrizations": halved,
    "a hook": looked_at,
}


@pytest.mark.parametrize("build", [*GOES.values(), *STAYS.values()], ids=[*GOES, *STAYS])
def test_nothing_is_touched_too_early(build: Callable[[], enrnn.ENRNN], detector: Detector) -> None:
    assert went(detector, build()) == (build in GOES.values())


def test_without_a_kernel_that_notes_it_stays(detector: Detector) -> None:
    detector.without_kernels = True
    assert not went(detector, layer())


def test_what_is_saved_for_the_gradient_may_be_packed(detector: Detector) -> None:
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.clone(), lambda tensor: tensor):
        assert not went(detector, layer())


def test_without_a_graph_nothing_goes_elsewhere(detector: Detector, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (_streams, _eigenvalue_normalized, _solve, _long_short, _module):
        monkeypatch.setattr(module, "capturing", lambda like: False)
    assert not went(detector, layer())


def test_a_missing_wait_is_seen(detector: Detector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_streams.Meanwhile, "__exit__", lambda *_: None)
    with pytest.raises(AssertionError, match="reads too early"):
        went(detector, layer())


def test_a_region_within_a_region_waits_for_its_own(detector: Detector) -> None:
    outer, inner = _streams.Meanwhile(torch.ones(1)), _streams.Meanwhile(torch.ones(1))
    with detector:
        with outer:
            with _streams.leaving(), _streams.elsewhere(torch.ones(1)):
                found = torch.ones(3) + 1
            with inner:
                pass
        found.add_(1)
    assert detector.races == []


def stepped(detector: Detector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> set[int]:
    """Three steps of training, in which nothing may race, and the streams they used. The batch is found beside the forming of the
    matrices; the state is carried on."""
    monkeypatch.setattr(_step, "capturing", lambda like: True)
    data = text_task(tmp_path).load()
    model = ModelSettings(hidden_size=8, embedding=True, nonlinearity="relu", backend="torch", **settings)
    step = _step.Step(Network(model, data), data, OptimizerSettings(), Processes())
    step.start_epoch(0, 0)
    with detector:
        for _ in range(3):
            step.guarded()
    assert step.done == 3
    assert detector.races == []
    return set(detector.others)


def test_a_step_of_training_touches_nothing_too_early(
    detector: Detector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = _streams.ELSEWHERE, _streams.ASIDE, _streams.INPUTS, _streams.FORK, _streams.READING
    assert stepped(detector, tmp_path, monkeypatch, short_size=3) == set(used)


def test_nor_does_that_of_a_network_without_a_short_part(
    detector: Detector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = _streams.INPUTS, _streams.FORK, _streams.READING
    assert stepped(detector, tmp_path, monkeypatch, network="scornn") == set(used)


@pytest.mark.parametrize("wanted", [False, True])
def test_what_a_gradient_reads_aside_is_not_given_out_again(
    wanted: bool, detector: Detector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a weight that is formed anew for each call. Without a gradient there is nothing to keep."""
    kept: list[tuple[Tensor, Any]] = []
    monkeypatch.setattr(Tensor, "record_stream", lambda tensor, stream: kept.append((tensor, stream)))
    given, weight = torch.ones(3, requires_grad=True), torch.ones(3) * 2
    with detector, torch.set_grad_enabled(wanted):
        found = _streams.with_its_gradient_aside(lambda: given * weight, given, weight, None)
        found.sum()
    assert detector.races == []
    streams = [detector.others[_streams.INPUTS]] * 2 + [detector.here] if wanted else []
    assert [stream for _, stream in kept] == streams
    assert all(one is other for (one, _), other in zip(kept, (given, weight, found), strict=False))


def test_a_copy_that_is_not_waited_for_is_seen(detector: Detector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_step, "all_is_read", lambda: None)
    monkeypatch.setattr(_streams._thread, "read", [])
    with pytest.raises(AssertionError, match="writes too early"):
        stepped(detector, tmp_path, monkeypatch, network="scornn")


def test_a_batch_that_is_not_waited_for_is_seen(detector: Detector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_streams.Fork, "__exit__", lambda fork, *error: fork._on.__exit__(*error))
    with pytest.raises(AssertionError, match=r"embedding.* reads too early"):
        stepped(detector, tmp_path, monkeypatch, short_size=3)


def test_what_is_noted_while_a_copy_is_made_of_it_is_seen(
    detector: Detector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_eigenvalue_normalized, "before_writing", lambda: False)
    with pytest.raises(AssertionError, match="writes too early"):
        stepped(detector, tmp_path, monkeypatch, short_size=3)


@pytest.mark.parametrize("waits", [False, True])
def test_what_is_read_is_written_over_afterwards(waits: bool, detector: Detector) -> None:
    given = torch.ones(3)
    with detector:
        with _streams.reading(given):
            given.clone()
        if waits:
            _streams.all_is_read()
        given.add_(1)
        _streams.all_is_read()
    assert (detector.races == []) == waits
    assert not _streams.before_writing()
