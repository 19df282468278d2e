"""What a driver knows of CUDA graphs, for those that stand in for the real one: what a stream is told that is captured is kept,
and is done when the graph is launched."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

CALLS = (
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuGraphInstantiate",
    "cuGraphLaunch",
    "cuStreamBeginCapture",
    "cuStreamCreate",
    "cuStreamDestroy",
    "cuStreamEndCapture",
    "cuThreadExchangeStreamCaptureMode",
)

Kept = list[Callable[[], object]]


class Captures:
    """To be inherited from. `_keeps` is asked by whatever a stream can be told to do."""

    refuses = False
    """Whether captures fail."""

    def __init__(self, names: Any, beside: int) -> None:
        """`names` is the real driver's module; `beside`, the stream for what is not on a graph's first one."""
        self._driver_names, self._beside = names, beside
        self._now = threading.local()
        self._handles = itertools.count(1_000_000)
        self._graphs: dict[int, Kept] = {}
        self.CUstream_flags, self.CUstreamCaptureMode = names.CUstream_flags, names.CUstreamCaptureMode
        self.graphs = 0
        """That can be launched, and have not been destroyed."""
        self.graphs_launched = 0

    def _keeps(self, do: Callable[[], object]) -> bool:
        """Whether this thread is capturing; then it will be done later."""
        kept: Kept | None = getattr(self._now, "kept", None)
        if kept is not None:
            kept.append(do)
        return kept is not None

    def _now_on(self, stream: Any) -> int:
        """Where it is done: within a graph that is being launched, in the place of the streams that were captured."""
        streams: dict[int, int] = getattr(self._now, "streams", {})
        return streams.get(int(stream), self._beside) if streams else int(stream)

    def cuStreamCreate(self, flags: int) -> tuple[int, Any]:
        return 0, self._driver_names.CUstream(next(self._handles))

    def cuStreamDestroy(self, stream: Any) -> tuple[int]:
        return (0,)

    def cuThreadExchangeStreamCaptureMode(self, mode: Any) -> tuple[int, Any]:
        return 0, mode

    def cuStreamBeginCapture(self, stream: Any, mode: Any) -> tuple[int]:
        assert getattr(self._now, "kept", None) is None
        self._now.kept = [int(stream)]
        return (0,)

    def cuStreamEndCapture(self, stream: Any) -> tuple[int, Any]:
        kept, self._now.kept = self._now.kept, None
        assert kept[0] == int(stream)
        handle = next(self._handles)
        self._graphs[handle] = kept
        return (900 if self.refuses else 0), self._driver_names.CUgraph(handle)

    def cuGraphInstantiate(self, graph: Any, flags: int) -> tuple[int, Any]:
        self.graphs += 1
        handle = next(self._handles)
        self._graphs[handle] = self._graphs[int(graph)]
        return 0, self._driver_names.CUgraphExec(handle)

    def cuGraphDestroy(self, graph: Any) -> tuple[int]:
        del self._graphs[int(graph)]
        return (0,)

    def cuGraphExecDestroy(self, graph: Any) -> tuple[int]:
        del self._graphs[int(graph)]
        self.graphs -= 1
        return (0,)

    def cuGraphLaunch(self, graph: Any, stream: Any) -> tuple[int]:
        first, *kept = self._graphs[int(graph)]
        self.graphs_launched += 1
        self._now.streams = {first: int(stream)}
        try:
            for do in kept:
                do()  # type: ignore[operator]
        finally:
            self._now.streams = {}
        return (0,)
