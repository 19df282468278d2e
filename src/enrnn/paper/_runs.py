"""Runs by name: a recipe, or a variant of one, as the paper has it or in the small version.

A run's directory does not say what it was for, and need not: `named` tells it from the configuration, whatever the device and the
seed, so that runs of `enrnn train`, of sweeps and of other machines count.
"""

import functools
import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from ..recipes import RECIPES, recipe
from ..training import Config
from ._quick import QUICK

_TUNED: dict[str, object] = {"optimizer.lr_decay": 0.9, "run.epochs": 30}
_FASTER: dict[str, object] = {"optimizer.lr": 2e-3, "optimizer.long_lr": 5e-4, "optimizer.lr_decay": 0.88}
_SPLIT: dict[str, object] = {"model.hidden_size": 1040, "model.short_size": 640, "model.negative_ones": 240}

BEYOND: dict[str, tuple[str, dict[str, object]]] = {
    "characters/enrnn_decayed": ("rates × 0.9 after each epoch", {"optimizer.lr_decay": 0.9}),
    "characters/enrnn_longer": ("30 epochs", {"run.epochs": 30}),
    "characters/enrnn_tuned": ("30 epochs, rates × 0.9 after each", _TUNED),
    "characters/enrnn_tuned_faster": ("the same from rates of 0.002 and 0.0005, × 0.88", {**_TUNED, **_FASTER}),
    "characters/enrnn_tuned_clipped": ("the same, gradient's norm at most 1", {**_TUNED, "optimizer.clip_norm": 1.0}),
    "characters/enrnn_tuned_split": ("the same, sizes 400/640", {**_TUNED, **_SPLIT}),
    "characters/enrnn_tuned_modrelu": ("the same with modReLU", {**_TUNED, "model.nonlinearity": "modrelu"}),
    "characters/enrnn_tuned_uncoupled": ("the same without W_C", {**_TUNED, "model.coupling": False}),
}
"""Beyond the paper, with no more parameters than its ENRNN: what each changes, in words and in settings."""

RATES = {
    "adding/spectral_rnn": ("1e-3", "1e-4"),
    "adding/spectral_rnn_15k": ("1e-3", "1e-4"),
    "adding/ornn": ("1e-3", "1e-4"),
    "adding/full_capacity_urnn": ("1e-3", "1e-4"),
}
"""Where ours came out unlike the paper: rates beside the paper's."""


def at_rate(name: str, rate: str) -> str:
    """What the run of another learning rate is called."""
    return f"{name}_rate_{rate}"


VARIANTS: dict[str, tuple[str, dict[str, object]]] = {
    "adding/enrnn_uncoupled": ("adding/enrnn", {"model.coupling": False}),
    "adding/enrnn_sixth_epoch": ("adding/enrnn_t50", {"run.steps": 10_000}),
    **{
        f"{task}/enrnn_{rule}": (f"{task}/enrnn", {"model.options.short": rule})
        for task in ("adding", "characters")
        for rule in ("plainly_normalized", "renormalized", "spectral_norm")
    },
    **{name: ("characters/enrnn", settings) for name, (_, settings) in BEYOND.items()},
    **{at_rate(name, rate): (name, {"optimizer.lr": float(rate)}) for name, rates in RATES.items() for rate in rates},
}
"""Beside the recipes: without W_C; up to the first batch of the sixth epoch; other ways to write and to train W_S; the rest."""

_FULL_ONLY = {*BEYOND, *(at_rate(name, rate) for name, rates in RATES.items() for rate in rates)}

BESIDE = {
    "task": ("data", "cache"),
    "run": ("seed", "device", "threads", "graph", "look_every", "checkpoint_every", "tensorboard"),
}
"""Settings that are no part of what a run stands for."""


class Name(NamedTuple):
    run: str
    quick: bool


def base(name: str) -> str:
    """The recipe that a run is, or is a variant of."""
    return VARIANTS[name][0] if name in VARIANTS else name


def changes(name: str, quick: bool) -> dict[str, object]:
    """What a run has other than its recipe."""
    own = VARIANTS[name][1] if name in VARIANTS else {}
    return {**own, **QUICK.get(name, QUICK.get(base(name), {}))} if quick else dict(own)


def configured(name: str, quick: bool = False, **others: object) -> Config:
    """The configuration of a run; `others` are settings by their paths."""
    return recipe(base(name)).override({**changes(name, quick), **others})


def titled(name: str, quick: bool = False) -> str:
    """What a run's network is called, with the sizes that it has: of complex networks, the number of units."""
    title = RECIPES[base(name)].title
    if not quick or name not in known(quick=True):
        return title
    model = configured(name, quick).model
    size: object = model.hidden_size // 2 if model.network in ("full_capacity_urnn", "eurnn") else model.hidden_size
    if isinstance(model.short_size, int) and model.short_size:
        size = f"{model.hidden_size - model.short_size}/{model.short_size}"
    return re.sub(r"\d+(/\d+)?", str(size), title, count=1)


def known(quick: bool) -> list[str]:
    """All names. In the small version, those that it has."""
    names = [name for name in RECIPES if not name.startswith("pixels/")] + list(VARIANTS)
    return [name for name in names if name not in _FULL_ONLY and (name in QUICK or base(name) in QUICK)] if quick else names


def named(values: Mapping[str, Any]) -> Name | None:
    """What the run of a config.json is; None if it is none of the paper's."""
    return _names().get(_essence(values))


@functools.cache
def _names() -> dict[str, Name]:
    found: dict[str, Name] = {}
    for quick in (False, True):
        for name in known(quick):
            for corpus in ("auto", "ptb", "python") if name.startswith("characters/") else (None,):
                config = configured(name, quick, **({} if corpus is None else {"task.corpus": corpus}))
                found.setdefault(_essence(config.as_dict()), Name(name, quick))
    return found


def _essence(values: Mapping[str, Any]) -> str:
    kept = {
        section: {key: value for key, value in values[section].items() if key not in BESIDE.get(section, ())}
        for section in ("task", "model", "optimizer", "run")
    }
    return json.dumps(kept, sort_keys=True)
