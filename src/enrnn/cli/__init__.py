"""The command line: parse, call, print. What a command needs is imported when it runs, so that `--help` is there at once."""

import argparse
import contextlib
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TextIO, cast

from .. import __version__
from .._memory import keep_freed_memory
from ._interrupts import ending_at_once
from ._output import Output
from ._paper import add_command as add_paper_command
from ._sweep import add_commands as add_sweep_commands

USAGE_ERROR = 2
FAILED = 1


class Parser(argparse.ArgumentParser):
    """One line for a mistake, not a page of usage, and from the command that it was made with. Options are not shortened: of
    `--seed 3` nobody could tell whether it is a seed or three."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "allow_abbrev": False})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[argparse.Namespace, list[str]]:  # type: ignore[override]
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            from ._unknown import told

            self.error(told(unknown, list(self._option_string_actions)))
        return found, unknown

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE_ERROR, f"{self.prog}: {message} (see {self.prog} --help)\n")


class ListRecipes(argparse.Action):
    """Like `--help`: prints, and that is all."""

    def __call__(self, parser: argparse.ArgumentParser, *arguments: Any) -> NoReturn:
        from ._recipes import table

        print(table())
        parser.exit()


def main(arguments: Sequence[str] | None = None) -> int:
    """The command `enrnn`. Returns the exit status: 0; 1 if a run failed, or the output was lost; 2 for a mistake; 128 and the
    number of the signal, such as 130 for Ctrl-C, if it was stopped."""
    keep_freed_memory()
    output = Output(sys.stdout)
    with contextlib.redirect_stdout(cast(TextIO, output)), ending_at_once():
        try:
            status = _called(arguments)
        except SystemExit:  # of --help, and for a line that cannot be parsed
            if output.whole():
                raise
            return FAILED
    return status if output.whole() else status or FAILED


def _called(arguments: Sequence[str] | None) -> int:
    options = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = options.command
    return command(options)


def _parser() -> Parser:
    parser = Parser(prog="enrnn", description="Recurrent networks with a controlled spectrum: train them and look at them.")
    parser.add_argument("--version", action="version", version=f"enrnn {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    train = commands.add_parser(
        "train",
        help="do the run that a recipe describes, or go on with it",
        description="Do the run that a recipe describes. A run that was begun goes on; a finished one is not done again. "
        "If nobody reads the output any more, it goes on without.",
    )
    train.add_argument("recipe", metavar="RECIPE", help="such as adding/enrnn (see --list)")
    train.add_argument("--list", action=ListRecipes, nargs=0, help="list all recipes")
    train.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], dest="changes", help="such as optimizer.lr=1e-3; repeatable"
    )
    train.add_argument("--tensorboard", action="store_true", help="write events for TensorBoard, too (run.tensorboard=true)")
    train.add_argument("--device", default="auto", help="cpu, cuda, cuda:N or auto (the default)")
    train.add_argument("--data", metavar="FOLDER", help="the folder with the data sets (else the variable ENRNN_DATA)")
    train.add_argument("--text", metavar="FILE", help="for characters: any UTF-8 text")
    _add_runs(train)
    train.set_defaults(command=_run_train)

    resume = commands.add_parser("resume", help="go on with a run", description="Go on with a run from its last checkpoint.")
    resume.add_argument("run", metavar="RUN", help="its folder, or the beginning of its name or id")
    _add_runs(resume)
    resume.set_defaults(command=_run_resume)

    add_sweep_commands(commands)
    add_paper_command(commands)

    recipes = commands.add_parser(
        "recipes",
        help="list all recipes, or say what is in one",
        description="All recipes, or one with the source of each value.",
    )
    recipes.add_argument("recipe", metavar="RECIPE", nargs="?", help="such as adding/enrnn")
    recipes.set_defaults(command=_run_recipes)

    info = commands.add_parser("info", help="versions, devices, backends and recipes", description="What is there, and what not.")
    info.set_defaults(command=_run_info)

    demo = commands.add_parser(
        "demo",
        help="ENRNN, scoRNN and an LSTM side by side, in about two minutes",
        description="Train three networks of equal size on an adding problem, side by side, and draw what they did.",
    )
    demo.add_argument("--runs", metavar="FOLDER", default="runs/demo", help="where everything goes (default: runs/demo)")
    demo.add_argument("--length", type=int, default=300, help="steps in a sequence (default: 300)")
    demo.add_argument("--steps", type=int, default=4000, help="training steps (default: 4000)")
    demo.add_argument("--seed", type=int, default=0)
    demo.set_defaults(command=_run_demo)
    return parser


def _add_runs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", metavar="FOLDER", default="runs", help="where the directories of runs are (default: runs)")


def _run_train(options: argparse.Namespace) -> int:
    from ._commands import changes, reported, train

    if options.tensorboard:
        options.changes.append("run.tensorboard=true")
    return reported("train", lambda: train(options.recipe, changes(options), options.device, options.runs))


def _run_resume(options: argparse.Namespace) -> int:
    from ._commands import reported, resume

    return reported("resume", lambda: resume(options.run, options.runs))


def _run_recipes(options: argparse.Namespace) -> int:
    from ._recipes import description, table

    try:
        print(table() if options.recipe is None else description(options.recipe))
    except ValueError as error:
        print(f"enrnn recipes: {error}", file=sys.stderr)
        return USAGE_ERROR
    return 0


def _run_info(options: argparse.Namespace) -> int:
    from ._info import info, shown

    print(shown(info()))
    return 0


def _run_demo(options: argparse.Namespace) -> int:
    from .._room import check_room
    from ._commands import reported
    from ._demo import demo

    def checked() -> None:
        check_room("--runs", options.runs)
        demo(options.runs, options.length, options.steps, options.seed)

    return reported("demo", checked)
