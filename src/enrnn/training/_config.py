"""What a run is: settings of the task, the model, the optimiser and the run itself, and the id that they come to."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .._checks import non_negative, one_of, positive_int
from .._nearest import nearest, nearest_setting
from ..layers import networks
from ..nonlinearities import NONLINEARITIES
from ..recurrence import BACKENDS
from ..spectrum import SOLVERS
from ..tasks import TASKS, Adding, Task
from ._layer import ENRNN_FIELDS, arguments, check_layer, checked_options, option_types
from ._settings import checked, field_types, parsed, settings_from

FORMAT = 1
"""Part of every id: to be raised when the same settings come to mean another run."""

LATER = (("model", "options"), ("run", "tensorboard"))
"""Settings that came after the first runs: left out while they are empty or false, so that those runs keep their ids."""

OPTIONS = "model.options."

NONLINEARITY = {"enrnn": "modrelu", "rnn": "tanh", "lstm": "modrelu", "gru": "modrelu"}
"""What these have where none is given. (Gates have none to choose; what stands for it is part of the ids of older runs.)"""

OPTIMIZERS = ("adam", "adagrad", "rmsprop_tf", "rmsprop")


@dataclass(frozen=True)
class ModelSettings:
    """One recurrent layer and a linear head. What a network has no use for must keep its default.

    Arguments:
        network: a name of `enrnn.networks()`: "enrnn" (scoRNN with short_size = 0), "lstm", "ornn", "full_capacity_urnn", …
        hidden_size: as the network's class counts it: of complex networks, twice the number of units.
        short_size, negative_ones, coupling, epsilon, coupling_init, solver: ENRNN's.
        nonlinearity: None for the network's own.
        backend: of networks that have one.
        embedding: symbols go in through a trained embedding, not one-hot: true for one of hidden_size (ENRNN: with
            `input_weight="identity"`), or its size.
        head_bias: "zero", or "glorot" as the authors' code has it for the copying problem.
        forget_bias: where the LSTM's forget gates start.
        options: further arguments of the network's class.
    """

    network: str = "enrnn"
    hidden_size: int = 160
    short_size: int | float | None = None
    negative_ones: int | None = None
    coupling: bool = True
    epsilon: float = 0.0
    coupling_init: str = "glorot"
    nonlinearity: str | None = None
    embedding: bool | int = False
    head_bias: str = "zero"
    forget_bias: float = 0.0
    solver: str = "auto"
    backend: str = "auto"
    options: dict[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if self.network not in networks():
            raise ValueError(f"unknown network {self.network!r}; {nearest(str(self.network), networks())}")
        positive_int("hidden_size", self.hidden_size)
        one_of("coupling_init", self.coupling_init, ("glorot", "truncated_orthogonal"))
        one_of("head_bias", self.head_bias, ("zero", "glorot"))
        one_of("solver", self.solver, SOLVERS)
        one_of("backend", self.backend, BACKENDS)
        non_negative("epsilon", self.epsilon)
        if not isinstance(self.embedding, bool) and self.embedding < 2:
            raise ValueError(f"embedding must be true, false or a size of 2 or more, got: {self.embedding}")
        self._check_unused()
        if self.nonlinearity is None:
            object.__setattr__(self, "nonlinearity", NONLINEARITY.get(self.network))
        if self.network == "enrnn":
            one_of("nonlinearity", self.nonlinearity, [name for name, sigma in NONLINEARITIES.items() if sigma.parts == 1])
            self._check_sizes()
        elif self.network == "rnn":
            one_of("nonlinearity", self.nonlinearity, ("relu", "tanh"))
        object.__setattr__(self, "options", checked_options(self.network, self.options))
        if self.options or self.network not in NONLINEARITY:
            check_layer(self)

    @property
    def embedding_size(self) -> int | None:
        """None without an embedding."""
        return (self.hidden_size if self.embedding else None) if isinstance(self.embedding, bool) else self.embedding

    def _check_sizes(self) -> None:
        short = self.short_size
        if isinstance(short, float) and not 0 <= short <= 1:
            raise ValueError(f"short_size given as a float is a fraction and must lie in [0, 1], got: {short}")
        if isinstance(short, int) and not 0 <= short <= self.hidden_size:
            raise ValueError(f"short_size must lie between 0 and hidden_size = {self.hidden_size}, got: {short}")
        if self.negative_ones is not None and not 0 <= self.negative_ones <= self.long_size:
            raise ValueError(f"negative_ones must lie between 0 and the long state's {self.long_size}, got: {self.negative_ones}")

    @property
    def long_size(self) -> int:
        share = 0.4 if self.short_size is None else self.short_size
        return self.hidden_size - (round(share * self.hidden_size) if isinstance(share, float) else share)

    def _check_unused(self) -> None:
        """A setting that would silently not apply is a mistake."""
        used: set[str] = {name for name in ("nonlinearity", "backend") if name in arguments(self.network)}
        used |= {"enrnn": set(ENRNN_FIELDS), "lstm": {"forget_bias"}}.get(self.network, set())
        for own in dataclasses.fields(self):
            if own.name not in (*ENRNN_FIELDS, "nonlinearity", "backend", "forget_bias") or own.name in used:
                continue
            none = (own.default, NONLINEARITY.get(self.network)) if own.name == "nonlinearity" else (own.default,)
            if getattr(self, own.name) not in none:
                instead = f"give model.options.{own.name}" if own.name in option_types(self.network) else "leave it out"
                raise ValueError(f"{own.name} has no effect on network={self.network!r}; {instead}")


@dataclass(frozen=True)
class OptimizerSettings:
    """The update of a step.

    Arguments:
        name: "adam"; "adagrad"; "rmsprop_tf", RMSProp as TensorFlow 1 has it and the paper used it; "rmsprop", torch's.
        lr: the learning rate.
        long_name, long_lr: the optimiser of the orthogonal or unitary matrix (ENRNN: W_L) and its rate; None for the same.
        decay: of RMSProp's average of squares; None: 0.9 for "rmsprop_tf", 0.99 for "rmsprop".
        momentum: of the two RMSProps.
        accumulator: where Adagrad's sum of squares starts.
        lr_decay: what both rates are multiplied by after each epoch.
        clip_value, clip_norm: bounds for each entry of the gradient, and then for its norm.
    """

    name: str = "rmsprop_tf"
    lr: float = 1e-3
    long_name: str | None = None
    long_lr: float | None = None
    decay: float | None = None
    momentum: float = 0.0
    accumulator: float = 0.1
    lr_decay: float = 1.0
    clip_value: float | None = None
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        one_of("name", self.name, OPTIMIZERS)
        if self.long_name is not None:
            one_of("long_name", self.long_name, OPTIMIZERS)
        non_negative("lr", self.lr)
        non_negative("accumulator", self.accumulator)
        if self.long_lr is not None:
            non_negative("long_lr", self.long_lr)
        for name, value in (("decay", self.decay), ("momentum", self.momentum)):
            if value is not None and not 0 <= value < 1:
                raise ValueError(f"{name} must lie in [0, 1), got: {value}")
            if value and not any(str(used).startswith("rmsprop") for used in (self.name, self.long_name)):
                raise ValueError(f"{name} has no effect on name={self.name!r}; leave it out")
        for name, value in (("lr_decay", self.lr_decay), ("clip_value", self.clip_value), ("clip_norm", self.clip_norm)):
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be greater than zero, got: {value}")


@dataclass(frozen=True)
class RunSettings:
    """How long, how often, and where.

    Arguments:
        steps, epochs: how long; one of the two, the other None.
        evaluate_every, checkpoint_every: steps from one to the next; None: once an epoch.
        look_every: on a GPU, steps from one look at the device to the next. It changes no digit.
        seed: of the weights. (The data have a seed of their own, `task.seed`.)
        threads: of torch on the CPU. Sums are split between them, so it is part of what a run is.
        device: "cpu", "cuda" or "cuda:0", …
        graph: whether steps on a GPU are captured in a CUDA graph. It changes no digit.
        tensorboard: whether events are written for TensorBoard as well. It is no part of what a run is, nor of its id.
    """

    steps: int | None = None
    epochs: int | None = None
    evaluate_every: int | None = None
    checkpoint_every: int | None = None
    look_every: int = 50
    seed: int = 0
    threads: int = 1
    device: str = "cpu"
    graph: bool = True
    tensorboard: bool = False

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError(f"one of steps and epochs must be given, got: steps={self.steps}, epochs={self.epochs}")
        for name in ("steps", "epochs", "evaluate_every", "checkpoint_every", "look_every", "threads"):
            value = getattr(self, name)
            if value is not None:
                positive_int(name, value)
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed must lie between 0 and 2**63 − 1, got: {self.seed}")
        kind, _, index = self.device.partition(":")
        if kind not in ("cpu", "cuda") or (kind == "cpu" and ":" in self.device) or (":" in self.device and not index.isdigit()):
            raise ValueError(f"device must be cpu, cuda or cuda:N, got: {self.device!r}")


@dataclass(frozen=True)
class Config:
    """A run, complete: the same configuration on the same machine gives the same digits."""

    task: Task = field(default_factory=Adding)
    model: ModelSettings = field(default_factory=ModelSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    run: RunSettings = field(default_factory=lambda: RunSettings(steps=1000))

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as `config.json` has them: all settings, but for those of `LATER` at their defaults."""
        values: dict[str, Any] = {
            "format": FORMAT,
            "task": {"name": self.task.name, **dataclasses.asdict(self.task)},
            "model": dataclasses.asdict(self.model),
            "optimizer": dataclasses.asdict(self.optimizer),
            "run": dataclasses.asdict(self.run),
        }
        for section, name in LATER:
            if not values[section][name]:
                del values[section][name]
        return values

    @property
    def id(self) -> str:
        """The SHA-256 of the resolved configuration: two runs with the same id are the same run."""
        values = self.as_dict()
        values["run"].pop("tensorboard", None)
        text = json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def folder_name(self) -> str:
        """Of the run's directory: what it is, for people, and the beginning of its id."""
        return f"{self.task.name}-{self.model.network}-{self.id[:12]}"

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> "Config":
        """What `as_dict` gave. A key or value that is not right is a `ValueError` that names it."""
        _sections(values)
        if values.get("format", FORMAT) != FORMAT:
            raise ValueError(f"this configuration is of format {values['format']!r}; this version reads format {FORMAT}")
        task = dict(values.get("task", {}))
        kind = _task(task.pop("name", Adding.name))
        return Config(
            settings_from(kind, task, "task"),
            settings_from(ModelSettings, values.get("model", {}), "model"),
            settings_from(OptimizerSettings, values.get("optimizer", {}), "optimizer"),
            settings_from(RunSettings, values.get("run", {}), "run"),
        )

    def override(self, changes: Mapping[str, object]) -> "Config":
        """This configuration with other values at paths such as "optimizer.lr" or "model.options.reflectors"; a text is read as a
        command line has it.

        Giving `run.steps` alone takes the place of `run.epochs`, and the other way round. Another `model.network` has its own
        nonlinearity, unless one is given.
        """
        values = self.as_dict()
        kinds = {"task": type(self.task), "model": ModelSettings, "optimizer": OptimizerSettings, "run": RunSettings}
        known = {f"{section}.{name}": kind for section, of in kinds.items() for name, kind in field_types(of).items()}
        options = {path: value for path, value in changes.items() if path.startswith(OPTIONS)}
        for path, value in changes.items():
            if path in options:
                continue
            if path == "task.name":
                raise ValueError("task.name cannot be changed: it is what the recipe is for; choose a recipe of another task")
            if path not in known:
                raise ValueError(f"unknown setting {path}; {nearest_setting(path, known)}")
            section, name = path.split(".")
            values[section][name] = parsed(path, value, known[path]) if isinstance(value, str) else value
            other = {"run.steps": "epochs", "run.epochs": "steps"}.get(path)
            if other is not None and f"run.{other}" not in changes:
                values["run"][other] = None
        if values["model"]["network"] != self.model.network and "model.nonlinearity" not in changes:
            del values["model"]["nonlinearity"]
        if options:
            own = dict(checked("model.options", values["model"].get("options", {}), (dict,)))  # type: ignore[call-overload]
            values["model"]["options"] = own | _parsed_options(values["model"]["network"], options)
        return Config.from_dict(values)


def _parsed_options(network: object, changes: Mapping[str, object]) -> dict[str, object]:
    """By their names alone, texts read as the network's class has them. What it does not have is for `ModelSettings` to name."""
    known = option_types(network) if isinstance(network, str) and network in networks() else {}
    found = {}
    for path, value in changes.items():
        name = path.removeprefix(OPTIONS)
        found[name] = parsed(path, value, known[name]) if isinstance(value, str) and name in known else value
    return found


def _sections(values: Mapping[str, Any]) -> None:
    known = ("format", "task", "model", "optimizer", "run")
    for name, section in values.items():
        if name not in known:
            raise ValueError(f"unknown section {name!r} of a configuration; {nearest(name, known)}")
        if name != "format" and not isinstance(section, Mapping):
            raise ValueError(f"{name} should be a section of settings, got: {section!r}")


def _task(name: object) -> type[Task]:
    if not isinstance(name, str) or name not in TASKS:
        raise ValueError(f"unknown task {name!r}; {nearest(str(name), TASKS)}")
    return TASKS[name]
