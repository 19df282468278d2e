"""Launches that come again with the same addresses are a graph, which is made where that pays; without a GPU."""

from __future__ import annotations

import gc

import pytest

from enrnn import _graphs, _launch
from enrnn._graphs import MOST, PATIENCE, WORTH, Graphs
from tests._captures import Captures

driver = pytest.importorskip("cuda.bindings.driver")

BESIDE, STREAM = 71, 70


class Driver(Captures):
    def __init__(self) -> None:
        super().__init__(driver, BESIDE)
        self.log: list[tuple[str, int]] = []

    def cuLaunch(self, name: str, stream: int) -> None:
        if not self._keeps(lambda: self.cuLaunch(name, stream)):
            self.log.append((name, self._now_on(stream)))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Driver:
    fake = Driver()
    monkeypatch.setattr(_launch, "driver", lambda: fake)
    monkeypatch.setattr(_launch, "driver_version", lambda: _graphs.LEAST_DRIVER)
    monkeypatch.setattr(_graphs, "_alive", set())
    return fake


class Work:
    """Two launches, on two streams."""

    def __init__(self, fake: Driver) -> None:
        self.fake, self.graphs, self.fails = fake, Graphs(), False

    def __call__(self, *addresses: int, stream: int = STREAM) -> bool:
        """Whether a graph did it."""

        def launch(streams: tuple[int, int]) -> None:
            if self.fails:
                raise RuntimeError("CUDA answered 700")
            for name, on in zip(("first", "second"), streams, strict=True):
                self.fake.cuLaunch(f"{name} {addresses}", on)

        self.fake.log.clear()
        found = self.graphs.run(addresses, stream, launch)
        if not found:
            launch((stream, BESIDE))
        assert self.fake.log == [(f"first {addresses}", stream), (f"second {addresses}", BESIDE)]
        return found


def test_addresses_that_come_again(fake: Driver) -> None:
    work = Work(fake)
    assert [work(1, 2), work(1, 2), work(1, 3), work(1, 2), work(1, 3)] == [False, True, False, True, True]
    assert (fake.graphs, fake.graphs_launched) == (2, 3)
    assert work(1, 2, stream=99)


def test_a_few_take_turns(fake: Driver) -> None:
    work = Work(fake)
    found = [[work(each) for each in range(MOST)] for _ in range(5)]
    assert found == [[False] * MOST, *[[True] * MOST] * 4]
    assert fake.graphs == MOST


def test_no_graph_for_what_does_not_come_again(fake: Driver) -> None:
    work = Work(fake)
    for _ in range(5):
        assert not any(work(each) for each in range(MOST + 1))
    assert (fake.graphs, fake.graphs_launched) == (0, 0)


def test_graphs_that_were_not_worth_it_make_one_wait_and_others_end_that(fake: Driver) -> None:
    work = Work(fake)
    for each in range(MOST + 84):  # twice, and then never again
        work(each)
        work(each)
    made = fake.graphs_launched
    assert made < MOST + 4  # and then: no more
    waited = next(times for times in range(1000) if work(1000))
    assert 1 < waited <= PATIENCE
    assert all(work(1000) for _ in range(WORTH - 1))
    for each in range(2000, 2000 + MOST):  # now it is forgotten, and was worth it
        work(each)
    assert next(times for times in range(1000) if work(1000)) < waited


def test_a_process_has_only_so_many(fake: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_graphs, "ENOUGH", 3)
    works = [Work(fake) for _ in range(10)]
    for _ in range(5):
        for work in works:
            work(1)
    assert fake.graphs == 3
    waited = next(times for times in range(1000) if works[3](1))
    assert waited > PATIENCE / 2
    for _ in range(2 * PATIENCE):
        for work in works:
            work(1)
    assert fake.graphs == 6
    del work, works[:2]
    gc.collect()
    assert fake.graphs == len(_graphs._alive) == 4
    assert next(times for times in range(1000) if works[-1](1)) < 2 * PATIENCE


def test_what_is_forgotten_is_destroyed(fake: Driver) -> None:
    work = Work(fake)
    for each in range(3):
        work(each)
        work(each)
    for each in range(10, 10 + MOST - 2):
        work(each)
    assert fake.graphs == 2
    del work
    gc.collect()
    assert fake.graphs == 0


def test_a_driver_that_will_not_capture_is_not_asked_again(fake: Driver) -> None:
    work, fake.refuses = Work(fake), True
    assert not any(work(1) for _ in range(5))
    fake.refuses = False
    assert not any(work(1) for _ in range(5))
    assert not any(work(2) for _ in range(5))


def test_what_fails_while_it_is_captured_is_done_one_by_one(fake: Driver) -> None:
    work = Work(fake)
    work(1)
    work.fails = True
    with pytest.raises(RuntimeError, match="CUDA answered 700"):
        work(1)
    work.fails = False
    assert not work(1)
    assert not work(1)


def test_an_older_driver(fake: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_launch, "driver_version", lambda: _graphs.LEAST_DRIVER - 1)
    work = Work(fake)
    assert not any(work(1) for _ in range(5))
    assert not work.graphs._known


def test_a_launch_of_a_graph_that_fails_says_so(fake: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(fake)
    work(1)
    work(1)
    monkeypatch.setattr(fake, "cuGraphLaunch", lambda graph, stream: (700,))
    with pytest.raises(RuntimeError, match="CUDA answered 700"):
        work(1)
