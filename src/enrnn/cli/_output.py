"""Standard output for whoever still reads it: no run ends because its progress cannot be shown."""

import io
import os
import sys
from collections.abc import Callable
from typing import Any, TextIO


class Output:
    """`stream`, whose encoding may lack our letters (they become "?"), and which may fail, or not be there at all.

    What comes after a failure goes nowhere, and the command goes on. That the reader has left, as in `enrnn train … | head`, is
    no mistake; anything else, such as a full disk, is told at the end (see `whole`).
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = io.StringIO() if stream is None else stream
        self._problem: OSError | None = None
        if isinstance(self._stream, io.TextIOWrapper):
            self._stream.reconfigure(errors="replace")

    def write(self, text: str) -> int:
        self._attempt(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._attempt(self._stream.flush)

    def whole(self) -> bool:
        """Whether all of it was written, or nobody was there to read it. If not, it says so."""
        self.flush()
        if self._problem is not None:
            print(f"enrnn: the output cannot be written: {self._problem.strerror}", file=sys.stderr)
        return self._problem is None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _attempt(self, action: Callable[[], object]) -> None:
        try:
            action()
        except OSError as error:
            if not isinstance(error, BrokenPipeError):
                self._problem = error
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
