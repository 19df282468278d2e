"""`enrnn paper`: its options, and what is done with them."""

import argparse
from typing import Any

EPILOG = """\
what: table1 table2 table3 figure-adding figure-copying figure-timit figure-gradients figure-sizes, and beyond the paper
figure-coupling figure-spectrum figure-transient figure-gradient-rule table-rates table-beyond table-cost. The same command again
goes on with what is not finished; no run is done twice."""


def add_command(commands: Any) -> None:
    """It, to the parser's commands."""
    paper = commands.add_parser(
        "paper",
        help="the paper's tables and figures, from runs of our own",
        description="Do the runs that the paper's tables and figures need, and show them next to what was published.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    paper.add_argument("what", metavar="WHAT", nargs="*", help="tables and figures (default: all)")
    paper.add_argument("--quick", action="store_true", help="a small version, in some three minutes on two cores")
    paper.add_argument("--rows", metavar="PATTERN", help="only the runs of such names, as '*/enrnn*' (see --dry-run)")
    paper.add_argument("--seeds", metavar="N", type=int, default=1, help="runs of each row (default: 1)")
    paper.add_argument("--device", default="auto", help="cpu, cuda, cuda:N or auto (the default)")
    paper.add_argument("--jobs", metavar="N", type=int, help="runs at a time (default: one a core, or as many as share the GPU)")
    paper.add_argument("--data", metavar="FOLDER", help="the folder with the data sets (else the variable ENRNN_DATA)")
    paper.add_argument("--runs", metavar="FOLDER", default="runs", help="where the directories of runs are (default: runs)")
    paper.add_argument("--out", metavar="FOLDER", help="where the page goes (default: report, or report-quick)")
    paper.add_argument("--retry", action="store_true", help="do runs that have failed once more")
    paper.add_argument("--collect", action="store_true", help="run nothing, show what is there")
    paper.add_argument("--dry-run", action="store_true", help="say what would be run")
    paper.set_defaults(command=_run_paper)


def _run_paper(options: argparse.Namespace) -> int:
    from ._commands import reported

    return reported("paper", lambda: _paper(options))


def _paper(options: argparse.Namespace) -> None:
    from pathlib import Path

    from .._counted import counted
    from .._room import check_folder, check_room
    from ..paper import _reproduce, collect, plan
    from ..paper._plan import on_terminal
    from ..training import RunError
    from ._progress import Screen
    from ._several import Live

    out, runs = Path(options.out or ("report-quick" if options.quick else "report")), Path(options.runs)
    if options.dry_run:
        planned = plan(
            options.what, options.quick, options.seeds, _reproduce.device_of(options.device), options.data, options.rows
        )
        _reproduce.check_folders(runs, out)
        print(on_terminal(planned, runs))
        return
    if options.collect:
        check_folder("--runs", runs)
        check_room("--out", out)
        if not runs.is_dir():
            raise ValueError(f"--runs: there is no folder {runs}; --collect shows the runs that are there")
        print(_reproduce.write(collect(runs, options.quick, options.what), out))
        return
    with Screen() as screen:
        results = _reproduce.reproduce(
            options.what,
            quick=options.quick,
            seeds=options.seeds,
            device=options.device,
            jobs=options.jobs,
            runs=runs,
            out=out,
            data=options.data,
            rows=options.rows,
            retry=options.retry,
            display=Live(screen),
        )
    failed = sum(run["state"] == "failed" for run in results["runs"])
    if failed:
        raise RunError(f"{failed} of {counted(len(results['runs']), 'run')} failed; they are named in {out / 'results.json'}")
