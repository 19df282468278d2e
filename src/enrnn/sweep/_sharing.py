"""How many processes work on a machine's GPUs at a time, and how those on one GPU share it."""

from typing import NamedTuple

from ._mps import Daemon, NoDaemonError, daemon, there
from ._processes import cores

RUNS_A_GPU = 12
"""Runs at a time on a GPU that is shared through MPS, where nobody says how many, and the machine has four cores for three of
them.

From measurements (benchmarks/packing.py) of the adding problem on an H200 with 16 cores: 3.3 times as many runs a minute as one
at a time. Before evaluations went to the tensor cores, 8 at a time were 2.7 times as many, 12 were 2.9.
"""


class Sharing(NamedTuple):
    """`processes` on the GPUs. `words` tell how they share them; `environment` is for theirs, before CUDA starts there."""

    processes: int
    words: str
    environment: dict[str, str]
    daemon: Daemon | None = None

    def close(self) -> None:
        """To be called when the processes have ended."""
        if self.daemon is not None:
            self.daemon.close()


def shared(gpus: int, processes: int | None, runs: int) -> Sharing:
    """Have `runs` runs done on so many GPUs, by so many processes; None: by as many as pay."""
    wanted = processes if processes is not None else gpus * by_default(gpus)
    at_once = max(1, min(wanted, runs))
    if at_once <= gpus:
        return Sharing(wanted, _words(at_once, gpus), {})
    try:
        ours = daemon()
    except NoDaemonError as reason:
        if processes is None:
            return Sharing(gpus, _words(gpus, gpus, f"as {reason}"), {})
        return Sharing(wanted, _words(at_once, gpus, f"taking turns, as {reason}: that is hardly faster than one at a time"), {})
    if ours is None:
        return Sharing(wanted, _words(at_once, gpus, "through the MPS daemon that is running"), {})
    return Sharing(wanted, _words(at_once, gpus, "through MPS"), ours.environment, ours)


def by_default(gpus: int) -> int:
    """Processes on each of so many GPUs: one where they would take turns."""
    return max(1, min(RUNS_A_GPU, 3 * cores() // (4 * gpus))) if there() else 1


def _words(at_once: int, gpus: int, how: str = "") -> str:
    where = "one GPU" if gpus == 1 else f"{gpus} GPUs"
    return f"{at_once} at a time on {where}" + (f", {how}" if how else "")
