"""The loop: steps, evaluations, checkpoints, in that order, until the end or a wish to stop."""

import contextlib
import math
import platform
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from ..tasks import Data, Task
from . import _container
from ._checkpoints import Checkpoints
from ._config import Config
from ._distributed import Processes, processes_of
from ._evaluate import evaluate
from ._folder import RunError, RunFolder
from ._graph import CaptureError, OneByOne, Replayed, captured
from ._model import Network
from ._signals import StoppedError, StopSignals
from ._step import NotFiniteError, Step
from ._tensorboard import TensorBoard, check_tensorboard
from ._watch import Progress, Start, Watch, Watches

BETWEEN_LOOKS = 0.2
"""Seconds between two calls of `Watch.advanced`, at least."""
OTHER_DATA = (
    "the data are not those that the run was begun with: their content has another SHA-256; bring those back, or choose another "
    "--runs FOLDER"
)


def train(config: Config, runs: str | Path = "runs", watch: Watch | None = None) -> dict[str, Any]:
    """Do the run that `config` describes, in its directory under `runs`, and return what result.json says.

    A run that was begun goes on from its last checkpoint, and a finished one is not done again.

    Raises:
        NotFiniteError: a loss, a gradient or ρ(T) was not finite. The last checkpoint is good.
        StoppedError: SIGTERM, SIGINT or SIGHUP came; the run is saved and can go on.
        RunError, DamagedError: the directory is in use, or not as it was left; or the data are not those of the run.
    """
    return _train(config, RunFolder(Path(runs) / config.folder_name), watch or Watch(), config.task)


def resume(run: str | Path, runs: str | Path = "runs", watch: Watch | None = None) -> dict[str, Any]:
    """Go on with a run, given by its directory or by the beginning of its name or id.

    Relative paths in its settings are taken from the folder that it was begun in.
    """
    folder = RunFolder.find(run, Path(runs))
    config = folder.config()
    home = RunFolder(folder.path.parent / config.folder_name)
    return _train(config, home, watch or Watch(), config.task.beginning_at(folder.origin))


def load_model(run: str | Path, device: str = "cpu") -> Network:
    """The network of a finished run, with its best weights if they were chosen on validation data, else its last."""
    folder = RunFolder(Path(run))
    if folder.result is None:
        raise RunError(f"{folder.path} is not finished; resume it first")
    config = folder.config()
    network = Network(config.model, config.task.beginning_at(folder.origin).load(device)).to(device)
    network.load_state_dict(_container.read(folder.path / "best.tensors")[1])
    return network.eval()


def _train(config: Config, folder: RunFolder, watch: Watch, task: Task) -> dict[str, Any]:
    """`task` is the configuration's, with paths as they are to be read here."""
    check_device(config.run.device)
    if config.run.tensorboard:
        check_tensorboard()
    with processes_of(config.run.device) as (processes, device):
        result = folder.result
        if result is not None:
            _check_finished(result, task, watch)
            watch.said(f"this run is finished: {folder.path}")
            watch.finished(result)
            return result
        if config.run.tensorboard and processes.writes:
            watch = Watches(watch, TensorBoard(folder))
        here = torch.cuda.device(device) if device.startswith("cuda") else contextlib.nullcontext()
        with contextlib.ExitStack() as claims, here, _arithmetic(config.run.threads), StopSignals() as signals:
            begun = bool(processes.largest(folder.path.exists(), torch.device(device)))
            if begun:
                claims.enter_context(_claimed(config, folder, processes))
            loop = Loop(config, task, folder, watch, signals, processes, torch.device(device))
            if not begun:  # so that what cannot be loaded or built leaves no directory behind
                claims.enter_context(_claimed(config, folder, processes))
            return loop.run()


class Loop:
    """One run, from wherever its last checkpoint has left it."""

    def __init__(
        self,
        config: Config,
        task: Task,
        folder: RunFolder,
        watch: Watch,
        signals: StopSignals,
        processes: Processes,
        device: torch.device,
    ) -> None:
        self.config, self.task, self.folder, self.watch = config, task, folder, watch
        self.signals, self.processes = signals, processes
        self.data: Data = task.load(device)
        self.model = _network(config, self.data).to(device)
        getattr(self.model.layer, "backend_used", None)  # raises, where the backend asked for cannot run the layer
        self.step = Step(self.model, self.data, config.optimizer, processes)
        self.per_epoch = len(self.step.order)
        run = config.run
        self.steps = run.steps if run.steps is not None else (run.epochs or 0) * self.per_epoch
        self.evaluate_every = run.evaluate_every or self.per_epoch
        self.checkpoint_every = run.checkpoint_every or self.per_epoch
        self.split = "valid" if "valid" in self.data.splits else "test"
        self.checkpoints = Checkpoints(folder.checkpoints, watch.said)
        self.done = 0
        self.best: dict[str, Any] | None = None
        self.best_weights = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        self.saved_at = -1
        self.seconds_before = 0.0
        self._begun = 0.0
        self._evaluated: tuple[int, dict[str, float]] = (-1, {})
        self._looked = 0.0

    def run(self) -> dict[str, Any]:
        if (stand_in := self.task.stand_in()) is not None:
            self.watch.said(f"WARNING: {stand_in}")
        self._restore()
        self.watch.started(self._start())
        self._begun = time.perf_counter() - self.seconds_before
        self.step.start_epoch(*divmod(self.done, self.per_epoch))
        steps = self._runner()
        while self.done < self.steps:
            until = self._next_stop()
            steps.advance(until - self.done)
            self.done = until
            self._look()
            if self._due(self.evaluate_every):
                self._evaluate()
            if self.done % self.per_epoch == 0:
                self.step.start_epoch(self.done // self.per_epoch, 0)
            number = self.processes.largest(self.signals.received, self.data.device)
            if number or self._due(self.checkpoint_every):
                self._save()
            if number and self.done < self.steps:
                raise StoppedError(number, self.done)
        return self._finish()

    def _runner(self) -> OneByOne | Replayed:
        on_gpu, capturable = self.data.device.type == "cuda", self.config.model.solver != "dense" and self.processes.alone
        if on_gpu and capturable and self.config.run.graph and self.done < self.steps:
            try:
                return Replayed(self.step, captured(self.step))
            except CaptureError as error:
                self.watch.said(f"steps run one by one, because a CUDA graph cannot hold them: {error}")
        return OneByOne(self.step)

    def _next_stop(self) -> int:
        """The step after which there is something to do. On a CPU that is every step, since looking costs nothing there."""
        every = [self.evaluate_every, self.checkpoint_every, self.per_epoch]
        every.append(self.config.run.look_every if self.data.device.type == "cuda" else 1)
        return min(self.steps, *((self.done // interval + 1) * interval for interval in every))

    def _due(self, interval: int) -> bool:
        return self.done % interval == 0 or self.done == self.steps

    def _look(self) -> None:
        now = time.monotonic()
        if now - self._looked >= BETWEEN_LOOKS:
            self._looked = now
            self.watch.advanced(Progress(self.done, self.step.mean_loss(), self.step.spectrum()["spectral_radius"]))

    def _seconds(self) -> float:
        """Since the run's first step, evaluations included, and time when it was stopped not."""
        return round(time.perf_counter() - self._begun, 3)

    def _evaluate(self) -> None:
        metrics = evaluate(self.model, self.data, self.split)
        value = metrics[self.data.metric]
        if not math.isfinite(value):
            raise NotFiniteError(f"after step {self.done}: {self.data.metric} on {self.split} is {value}")
        self._evaluated = self.done, metrics
        record = {
            "step": self.done,
            "epoch": (self.done - 1) // self.per_epoch,
            "loss": self.step.mean_loss(),
            "split": self.split,
            **metrics,
            **self.step.spectrum(),
            "seconds": self._seconds(),
        }
        self.step.forget_losses()
        if self.best is None or _better(value, self.best["value"], self.data.direction):
            self.best = {"step": self.done, "value": value}
            for name, tensor in self.model.state_dict().items():
                self.best_weights[name].copy_(tensor)
        if self.processes.writes:
            self.folder.add_record(record)
        self.watch.evaluated(record)

    def _save(self) -> None:
        if self.saved_at == self.done:
            return
        tensors = self.step.tensors | {f"best/{name}": tensor for name, tensor in self.best_weights.items()}
        tensors |= {name: self.processes.joined(tensor) for name, tensor in tensors.items() if name.startswith("carried/")}
        if self.processes.writes:
            about = {
                "id": self.config.id,
                "done": self.done,
                "best": self.best,
                "seconds": self._seconds(),
                "metrics": self.folder.metrics_mark(),
                "fingerprint": self.data.fingerprint,
                "processes": self.processes.count,
                "versions": _versions(),
            }
            self.checkpoints.save(self.done, about, tensors)
        self.saved_at = self.done

    def _restore(self) -> None:
        found = self.checkpoints.newest()
        if found is not None:
            self._check(found[0])
        self.processes.wait()  # until all have read what the first one is about to change
        if self.processes.writes:
            self.folder.metrics_back_to(found[0]["metrics"] if found else None)
        if found is None:
            return
        about, tensors = found
        wanted = self.step.tensors | {f"best/{name}": tensor for name, tensor in self.best_weights.items()}
        if wanted.keys() != tensors.keys():
            raise RunError(
                f"the checkpoint in {self.folder.path} was written by another version of enrnn: its tensors are others"
            )
        for name, tensor in wanted.items():
            tensor.copy_(self.processes.columns(tensors[name]) if name.startswith("carried/") else tensors[name])
        self.done, self.best, self.seconds_before = about["done"], about["best"], about["seconds"]
        self.saved_at = self.done
        self.watch.said(f"going on after step {self.done}")

    def _check(self, about: dict[str, Any]) -> None:
        if about["id"] != self.config.id:
            raise RunError(f"the checkpoint in {self.folder.path} is of another run, {about['id'][:12]}")
        if about["fingerprint"] != self.data.fingerprint:
            raise _other_data(self.data)
        if about["processes"] != self.processes.count:
            raise RunError(f"the run was begun with {about['processes']} processes, and goes on with as many")
        now = _versions()
        for name, version in about["versions"].items():
            if version != now[name]:
                self.watch.said(f"WARNING: the run was begun with {name} {version}, this is {now[name]}: digits may differ")

    def _start(self) -> Start:
        return Start(
            self.folder.path.name,
            str(self.folder.path),
            self.steps,
            self.done,
            self.model.num_parameters(),
            self.data.metric,
            self.data.baseline,
            self.data.baseline_rule,
            self.data.source,
        )

    def _finish(self) -> dict[str, Any]:
        """What the run came to: the last weights, and the best ones if they were chosen on validation data, on every split."""
        assert self.best is not None, "the last step is always followed by an evaluation"
        splits = [split for split in self.data.splits if split != "train"]
        result: dict[str, Any] = {
            "id": self.config.id,
            "steps": self.done,
            "parameters": self.model.num_parameters(),
            "metric": self.data.metric,
            "last": {split: self._last_metrics(split) for split in splits},
            "best": self.best,
            **self.step.spectrum(),
            "seconds": self._seconds(),
            "fingerprint": self.data.fingerprint,
            **({} if self.data.source is None else {"data": self.data.source}),
            "versions": _versions(),
            "device_name": _device_name(self.data.device),
        }
        if self.split == "valid":
            self.model.load_state_dict(self.best_weights)
            result["chosen"] = {split: evaluate(self.model, self.data, split) for split in splits}
        if self.processes.writes:
            about = {"id": self.config.id, "step": self.best["step"] if self.split == "valid" else self.done}
            _container.write(self.folder.path / "best.tensors", about, self.model.state_dict())
            self.folder.finish(result)
        self.processes.wait()
        self.watch.finished(result)
        return result

    def _last_metrics(self, split: str) -> dict[str, float]:
        """Those of the last evaluation, unless they were lost with a process that was killed right after it."""
        step, metrics = self._evaluated
        return metrics if split == self.split and step == self.done else evaluate(self.model, self.data, split)


def check_device(name: str) -> None:
    """A GPU that is not there is a mistake that can be named before anything else is done."""
    if name.startswith("cuda") and (torch.device(name).index or 0) >= torch.cuda.device_count():
        raise ValueError(f"run.device is {name!r}, but torch sees no such device here; choose cpu")


def _check_finished(result: dict[str, Any], task: Task, watch: Watch) -> None:
    """That the data are those that a finished run was done with. Where they cannot be read, that cannot be seen, and is said."""
    if result.get("fingerprint") is None:
        return
    try:
        data = task.load()
    except OSError as error:
        watch.said(f"WARNING: whether the data are still those of the run cannot be seen: {error}")
        return
    if data.fingerprint != result["fingerprint"]:
        raise _other_data(data)


def _other_data(data: Data) -> RunError:
    return RunError(OTHER_DATA if data.source is None else f"{OTHER_DATA}; these are {data.source}")


def first_network(config: Config) -> Network:
    """The network of a run as it is before the first step."""
    return _network(config, config.task.load())


def _network(config: Config, data: Data) -> Network:
    """The network as its seed makes it, on the CPU: the same weights on every device. The caller's generator is left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.run.seed)
        return Network(config.model, data)


@contextlib.contextmanager
def _arithmetic(threads: int) -> Iterator[None]:
    """So many threads, and what is too small to be a normal number is zero: the vanishing gradients of an LSTM would otherwise
    cost a CPU most of its time (a factor of 4.6 at T = 200)."""
    before = torch.get_num_threads(), float(torch.tensor(1e-40) * 1.0) == 0
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        torch.set_flush_denormal(before[1])


@contextlib.contextmanager
def _claimed(config: Config, folder: RunFolder, processes: Processes) -> Iterator[None]:
    """The run's directory, made if it is not there, for this process and those it works with."""
    if processes.writes:
        RunFolder.create(config, folder.path.parent)
    processes.wait()
    with folder.lock() if processes.writes else contextlib.nullcontext():
        yield


def _better(value: float, than: float, direction: str) -> bool:
    if math.isnan(than):
        return True
    return value < than if direction == "min" else value > than


def _versions() -> dict[str, str]:
    return {"enrnn": __version__, "torch": torch.__version__}


def _device_name(device: torch.device) -> str:
    """What seconds depend on: the name of the GPU, or the kind of processor."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
