"""torch's streams and events, for tensors that pass for a GPU's: what they are told, the driver of the emulator is told."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import torch

from tests.emulator._driver import Driver


class Streams:
    """Of one chip: the current stream, and the classes that take the place of torch's."""

    def __init__(self, driver: Driver) -> None:
        handles = itertools.count(1)

        class Event:
            def __init__(self, *_: object, **__: object) -> None:
                self.handle = driver.cuEventCreate(0)[1]

            def record(self, stream: Stream | None = None) -> None:
                (stream or streams.current).record_event(self)

            def synchronize(self) -> None:
                """What is not held has ended."""

        class Stream:
            device = torch.device("cpu")

            def __init__(self, *_: object, **__: object) -> None:
                self.cuda_stream = self.stream_id = next(handles)

            def record_event(self, event: Event | None = None) -> Event:
                event = event or Event()
                driver.cuEventRecord(event.handle, self.cuda_stream)
                return event

            def wait_event(self, event: Event) -> None:
                driver.cuStreamWaitEvent(self.cuda_stream, event.handle, 0)

            def wait_stream(self, stream: Stream) -> None:
                self.wait_event(stream.record_event())

            def synchronize(self) -> None:
                """What is not held has ended."""

        streams, self.Event, self.Stream = self, Event, Stream
        self.current, self.side = Stream(), Stream()

    @contextlib.contextmanager
    def on(self, stream: Any) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before
