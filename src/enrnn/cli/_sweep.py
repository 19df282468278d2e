"""`enrnn sweep` and `enrnn report`: their options, and what is done with them."""

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..sweep import Sweep
    from ..sweep._run import Runner

EPILOG = """\
values: optimizer.lr=1e-3,1e-4  model.short_size=0.1:0.6:0.1  optimizer.lr=1e-5:1e-3:*10  model.negative_ones=10%:100%:10%;
with --random also optimizer.lr=1e-5:1e-2:log and task.length=100:900. The same command again goes on with what is not finished;
other values add runs; no run is done twice."""


def add_commands(commands: Any) -> None:
    """The two, to the parser's commands."""
    sweep = commands.add_parser(
        "sweep",
        help="search over settings, on this machine or a cluster",
        description="Do the runs of all points of a search. Each is a run as `enrnn train` would do it, in the same directory.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sweep.add_argument("recipe", metavar="RECIPE|SWEEP", help="such as adding/enrnn, or a sweep that is there")
    sweep.add_argument("--grid", metavar="KEY=VALUES", action="append", default=[], help="an axis of the grid; repeatable")
    sweep.add_argument("--paper-grid", action="store_true", help="the axes that the paper has searched for this network")
    sweep.add_argument("--random", metavar="N", type=int, help="N points drawn at random instead of all")
    sweep.add_argument("--search-seed", metavar="N", type=int, default=0, help="of --random (default: 0)")
    sweep.add_argument("--halving", metavar="ETA", type=int, help="stop bad points early: one in ETA goes on, ETA times as far")
    sweep.add_argument(
        "--seeds", metavar="N", type=int, help="runs of each point, with seeds of their own (default: 1, or as many as there are)"
    )
    sweep.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], dest="changes", help="for all points")
    sweep.add_argument("--device", default="auto", help="cpu, cuda or auto (the default)")
    sweep.add_argument("--data", metavar="FOLDER", help="the folder with the data sets (else the variable ENRNN_DATA)")
    sweep.add_argument("--text", metavar="FILE", help="for characters: any UTF-8 text")
    sweep.add_argument("--name", help="of the sweep's directory (default: from the recipe and its settings)")
    sweep.add_argument("--retry", action="store_true", help="do runs that have failed once more")
    sweep.add_argument("--retries", metavar="N", type=int, default=3, help="of a run whose worker was killed (default: 3)")
    sweep.add_argument("--dry-run", action="store_true", help="check everything, say how many runs there are, and do none")
    sweep.add_argument("--runner", choices=("local", "ray"), default="local", help="processes here (the default), or Ray")
    sweep.add_argument(
        "--workers", metavar="N", type=int, help="local: processes (default: by cores, or as many as share the GPUs)"
    )
    sweep.add_argument("--address", help="ray: the cluster's HOST:PORT, or auto (default: a cluster of this machine alone)")
    sweep.add_argument("--cpus-per-run", metavar="X", type=float, help="ray: (default: the runs' threads)")
    sweep.add_argument("--gpus-per-run", metavar="X", type=float, help="ray: such as 0.25 for four on a GPU (default: 1 on cuda)")
    sweep.add_argument("--storage", metavar="URL", help="ray: where nodes without a common folder leave runs, such as s3://…")
    _add_runs(sweep)
    sweep.set_defaults(command=_run_sweep)

    report = commands.add_parser(
        "report",
        help="what a sweep has found",
        description="Metric against each setting, the best point, and how flat the optimum is: a table here, and a page of HTML.",
    )
    report.add_argument("sweep", metavar="SWEEP", help="its directory, or the beginning of its name")
    report.add_argument("--out", metavar="FILE", help="of the page (default: report.html in the sweep's directory)")
    _add_runs(report)
    report.set_defaults(command=_run_report)


def _add_runs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", metavar="FOLDER", default="runs", help="where the directories of runs are (default: runs)")


def _run_sweep(options: argparse.Namespace) -> int:
    from ._commands import reported

    return reported("sweep", lambda: _sweep(options))


def _run_report(options: argparse.Namespace) -> int:
    from ._commands import reported

    return reported("report", lambda: _report(options))


def _sweep(options: argparse.Namespace) -> None:
    from .._counted import counted
    from .._room import check_folder, check_room
    from ..recipes import RECIPES
    from ..sweep import Standing, opened, points_of, run_sweep
    from ..sweep._run import stand_ins
    from ..sweep._table import summary
    from ..training import RunError
    from ._commands import changes

    settings = changes(options)
    check_folder("--runs", options.runs)
    sweep = opened(options.recipe, settings, options.device, options.runs, options.name, options.grid, options.paper_grid)
    runner = _runner(options, sweep)
    asked = bool(options.grid or options.paper_grid or options.random is not None or not sweep.points)
    if asked:
        points = points_of(sweep.base, options.grid, options.paper_grid, options.random, options.search_seed)
        sweep.extend(points, 1 if options.seeds is None else options.seeds)
    elif options.seeds is not None:
        sweep.extend([point.values for point in sweep.points], options.seeds)
    if options.halving is not None:
        if options.halving < 2:
            raise ValueError(f"--halving takes a whole number of at least 2, got: {options.halving}")
        sweep.halving = options.halving
    check_room("--runs", options.runs)
    if asked and sweep.earlier and options.recipe in RECIPES and options.name is None:
        print(_earlier(sweep))
    for warning in stand_ins(sweep):
        print(f"WARNING: {warning}")
    if options.dry_run:
        print(f"{sweep.path}: {summary(Standing(sweep).rows())}")
        return
    rows = run_sweep(sweep, runner, options.retry)
    print(f"report: enrnn report {sweep.path}")
    failed = sum(row.statuses["failed"] for row in rows)
    if failed:
        raise RunError(f"{failed} of {counted(len(sweep.trials), 'run')} failed; --retry does them once more")


def _earlier(sweep: "Sweep") -> str:
    from .._counted import counted

    verb = "is" if sweep.earlier == 1 else "are"
    return f"{counted(sweep.earlier, 'point')} of earlier searches {verb} in {sweep.path}, too; --name NAME keeps searches apart"


def _runner(options: argparse.Namespace, sweep: "Sweep") -> Callable[[], "Runner"]:
    if options.runner == "local":
        for name in ("address", "cpus_per_run", "gpus_per_run", "storage"):
            if getattr(options, name) is not None:
                raise ValueError(f"--{name.replace('_', '-')} is for --runner ray")
        from ..sweep import local_runner

        return lambda: local_runner(sweep, options.workers, options.retries)
    if options.workers is not None:
        raise ValueError("--workers is for --runner local; Ray starts as many as its CPUs and GPUs have room for")
    from ..sweep import ray_runner

    return lambda: ray_runner(
        sweep, options.address, options.cpus_per_run, options.gpus_per_run, options.retries, options.storage
    )


def _report(options: argparse.Namespace) -> None:
    from pathlib import Path

    from .._room import check_folder
    from ..sweep import Sweep, report

    check_folder("--runs", options.runs)
    sweep = Sweep.find(options.sweep, Path(options.runs))
    file = Path(options.out) if options.out else sweep.path / "report.html"
    if file.is_dir():
        raise ValueError(f"--out takes the file of the page, and {file} is a folder; give {file / 'report.html'}")
    print(report(sweep, file))
