"""ENRNN, scoRNN and an LSTM of equal size on the adding problem, side by side: the paper's first figure in two minutes."""

import multiprocessing as mp
import signal
from collections.abc import Mapping
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from .. import training
from .._memory import keep_freed_memory
from ..sweep._processes import deaf, follow_the_driver, for_cuda
from ..tasks import Adding
from ..training import Config, ModelSettings, OptimizerSettings, RunFolder, RunSettings, StoppedError
from ..training._signals import StopSignals
from ..training._wire import Sent
from ._errors import words
from ._progress import Bar, Screen

TICK = 0.25
INTRODUCTION = """\
Two numbers in a sequence of {length} are marked; the network puts out their sum at the end.
Who always answers 1 has a mean squared error of 1/6 = 0.1667; who remembers comes down to zero.
Three networks with some 4,000 parameters each:
"""


class DemoStoppedError(StoppedError):
    """SIGINT, SIGTERM or SIGHUP came; what was done is saved, and the same command goes on."""

    def __init__(self, number: int) -> None:
        name = signal.Signals(number).name
        Exception.__init__(self, f"stopped by {name}; everything is saved, and the same command goes on from there")
        self.exit_code = 128 + number


def contenders(length: int, steps: int, seed: int) -> dict[str, Config]:
    """The three runs. Optimisers and rates are the paper's, but for ENRNN's: since steps are few here, ten times its 1e-4. For
    all three, rates fall by a fifth after each epoch of 500 steps, and gradients have norm 1 at most."""
    task = Adding(length=length, train_size=25_000, test_size=1_000, eval_batch_size=500, seed=seed)
    run = RunSettings(steps=steps, evaluate_every=min(100, steps), checkpoint_every=max(1, steps // 5), seed=seed)

    def config(model: ModelSettings, name: str, lr: float, **long: Any) -> Config:
        return Config(task, model, OptimizerSettings(name, lr=lr, lr_decay=0.8, clip_norm=1.0, **long), run)

    return {
        "ENRNN 48/32": config(ModelSettings(hidden_size=80, short_size=32), "rmsprop_tf", 1e-3),
        "scoRNN 86": config(ModelSettings(hidden_size=86, short_size=0), "adam", 1e-3, long_name="rmsprop_tf", long_lr=1e-4),
        "LSTM 30": config(ModelSettings("lstm", hidden_size=30), "adam", 1e-2),
    }


def demo(runs: str | Path = "runs/demo", length: int = 300, steps: int = 4000, seed: int = 0) -> dict[str, dict[str, Any]]:
    """Train the three in as many processes, show how they do, and leave a table, a figure and the runs in `runs`. Those that are
    finished are not done again; those that were begun go on."""
    runs = Path(runs)
    configs = contenders(length, steps, seed)
    with Screen() as screen:
        screen.say(INTRODUCTION.format(length=length))
        found = _finished(configs, runs)
        for name in found:
            screen.say(f"{name} is finished, and not done again.")
        waiting = {name: config for name, config in configs.items() if name not in found}
        found |= _side_by_side(waiting, runs, {name: screen.watch(name, announced=False) for name in waiting})
    results = {name: found[name] for name in configs}
    print("\n" + table(results))
    print(f"\nruns     {runs}")
    for name, config in configs.items():
        print(f"         {config.folder_name}  {name}")
    print(f"figure   {_figure(configs, runs, length)}")
    return results


def table(results: dict[str, dict[str, Any]]) -> str:
    """What the three came to."""
    rows = [("network", "parameters", "test error", "best", "steps/s", "seconds")]
    for name, result in results.items():
        last, best = result["last"]["test"]["mse"], result["best"]["value"]
        speed = result["steps"] / result["seconds"]
        rows.append((name, f"{result['parameters']:,}", f"{last:.4f}", f"{best:.4f}", f"{speed:.0f}", f"{result['seconds']:.0f}"))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]
    return "\n".join([lines[0], "─" * len(lines[0]), *lines[1:]])


def _finished(configs: Mapping[str, Config], runs: Path) -> dict[str, dict[str, Any]]:
    """What came of the runs that are done already. Their data are made, not read, and cannot have become others."""
    found = {name: RunFolder(runs / config.folder_name).result for name, config in configs.items()}
    return {name: result for name, result in found.items() if result is not None}


def _side_by_side(configs: Mapping[str, Config], runs: Path, bars: Mapping[str, Bar]) -> dict[str, dict[str, Any]]:
    """All runs at once, each in a process of its own; what a process reports goes to its bar. On a signal, all save and stop."""
    names: dict[Connection, str] = {}
    workers: list[Any] = []
    results: dict[str, dict[str, Any]] = {}
    failure: str | None = None
    with StopSignals() as signals:
        try:
            for name, config in configs.items():
                receiver, worker = _started(config, runs)
                names[receiver] = name
                workers.append(worker)
            while names and failure is None and not signals.received:
                for ready in wait(list(names), TICK):
                    receiver = next(one for one in names if one is ready)
                    name = names[receiver]
                    try:
                        event, content = receiver.recv()
                    except EOFError:
                        if name not in results:
                            failure = failure or f"{name}: the process has ended without a result"
                        del names[receiver]
                        continue
                    if event == "failed":
                        failure = f"{name}: {content}"
                    elif event == "result":
                        results[name] = content
                    else:
                        getattr(bars[name], event)(content)
        finally:
            for worker in workers:
                if len(results) < len(configs):
                    worker.terminate()  # SIGTERM: it saves, so that the demo can go on another time
                worker.join()
    if failure is not None:
        raise training.RunError(failure)
    if len(results) < len(configs):
        raise DemoStoppedError(signals.received)
    return results


def _started(config: Config, runs: Path) -> tuple[Connection, Any]:
    """A process for a run, and where it reports. Ctrl-C is for the process that started it, which tells it."""
    context = mp.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    worker = context.Process(target=_work, args=(config.as_dict(), str(runs), for_cuda({}), sender))
    with deaf():
        worker.start()
    sender.close()
    return receiver, worker


def _work(values: dict[str, Any], runs: str, environment: Mapping[str, str | None], sender: Connection) -> None:
    follow_the_driver(environment)
    keep_freed_memory()
    try:
        sender.send(("result", training.train(Config.from_dict(values), runs, Sent(sender))))
    except StoppedError:
        pass
    except Exception as error:
        sender.send(("failed", words(error)))


def _figure(configs: dict[str, Config], runs: Path, length: int) -> str:
    try:
        from ._figure import draw
    except ModuleNotFoundError as error:
        return f"not drawn: {str(error.name).partition('.')[0]} is not installed (the extra enrnn[demo] brings it)"
    return str(draw(configs, runs, length))
