"""Many runs: a search over settings, on one machine or a cluster. A sweep is a set of runs; an engine only schedules them."""

from ._local import LocalRunner as LocalRunner
from ._outcome import Measure as Measure
from ._outcome import Outcome as Outcome
from ._outcome import outcome as outcome
from ._ray import RayRunner as RayRunner
from ._ray import ray_runner as ray_runner
from ._run import local_runner as local_runner
from ._run import opened as opened
from ._run import points_of as points_of
from ._run import run_sweep as run_sweep
from ._standing import Row as Row
from ._standing import Standing as Standing
from ._stopped import SweepStoppedError as SweepStoppedError
from ._surfaces import Findings as Findings
from ._surfaces import findings as findings
from ._surfaces import report as report
from ._sweep import Sweep as Sweep
from ._work import Job as Job
