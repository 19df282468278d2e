"""A sweep that was asked to stop."""

import signal

from ..training import StoppedError


class SweepStoppedError(StoppedError):
    """SIGINT, SIGTERM or SIGHUP came; every run is saved, and the same command goes on."""

    def __init__(self, number: int) -> None:
        name = signal.Signals(number).name
        Exception.__init__(self, f"stopped by {name}; everything is saved, and the same command goes on from there")
        self.exit_code = 128 + number
