"""Recipes: complete configurations by name, for `enrnn train NAME` and `enrnn.recipes.recipe(NAME)`.

Sizes, optimisers, rates, numbers of negative ones and lengths are those of the paper (Table 1, §5); what it leaves open is as in
the authors' code, and where that is unpublished, the plainest choice. In each, whatever is not named keeps its default. This file
imports no torch, so that the names can be listed at once.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .training import Config

_ADDING = {"steps": 12_000, "evaluate_every": 100, "checkpoint_every": 2_000}
_COPYING = {"steps": 4_000, "evaluate_every": 50, "checkpoint_every": 1_000}

RECIPES: dict[str, dict[str, dict[str, Any]]] = {
    "adding/enrnn": {
        "task": {"name": "adding"},
        "model": {"network": "enrnn", "hidden_size": 160, "short_size": 64, "negative_ones": 29},
        "optimizer": {"name": "rmsprop_tf", "lr": 1e-4},
        "run": _ADDING,
    },
    "adding/scornn": {
        "task": {"name": "adding"},
        "model": {"network": "enrnn", "hidden_size": 170, "short_size": 0, "negative_ones": 119},
        "optimizer": {"name": "adam", "lr": 1e-3, "long_name": "rmsprop_tf", "long_lr": 1e-4},
        "run": _ADDING,
    },
    "adding/lstm": {
        "task": {"name": "adding"},
        "model": {"network": "lstm", "hidden_size": 60, "forget_bias": 0.0},
        "optimizer": {"name": "adam", "lr": 1e-2},
        "run": _ADDING,
    },
    "copying/enrnn": {
        "task": {"name": "copying"},
        "model": {"network": "enrnn", "hidden_size": 192, "short_size": 20, "negative_ones": 52, "head_bias": "glorot"},
        "optimizer": {"name": "rmsprop_tf", "lr": 1e-3, "long_lr": 1e-5},
        "run": _COPYING,
    },
    "copying/scornn": {
        "task": {"name": "copying"},
        "model": {"network": "enrnn", "hidden_size": 190, "short_size": 0, "negative_ones": 95, "head_bias": "glorot"},
        "optimizer": {"name": "rmsprop_tf", "lr": 1e-3, "long_lr": 1e-4},
        "run": _COPYING,
    },
    "copying/lstm": {
        "task": {"name": "copying"},
        "model": {"network": "lstm", "hidden_size": 68, "forget_bias": 1.0, "head_bias": "glorot"},
        "optimizer": {"name": "rmsprop_tf", "lr": 1e-3},
        "run": _COPYING,
    },
    "speech/enrnn": {
        "task": {"name": "speech"},
        "model": {"network": "enrnn", "hidden_size": 468, "short_size": 94, "negative_ones": 374, "coupling": False},
        "optimizer": {"name": "adam", "lr": 1e-4},
        "run": {"epochs": 300},
    },
    "speech/scornn": {
        "task": {"name": "speech"},
        "model": {"network": "enrnn", "hidden_size": 425, "short_size": 0, "negative_ones": 43},
        "optimizer": {"name": "adam", "lr": 1e-3, "long_name": "rmsprop_tf", "long_lr": 1e-4},
        "run": {"epochs": 300},
    },
    "speech/lstm": {
        "task": {"name": "speech"},
        "model": {"network": "lstm", "hidden_size": 158, "forget_bias": -4.0},
        "optimizer": {"name": "rmsprop_tf", "lr": 1e-3, "clip_value": 1.0},
        "run": {"epochs": 300},
    },
    "characters/enrnn": {
        "task": {"name": "characters"},
        "model": {
            **{"network": "enrnn", "hidden_size": 1030, "short_size": 720, "negative_ones": 186},
            **{"nonlinearity": "relu", "embedding": True, "coupling_init": "truncated_orthogonal"},
        },
        "optimizer": {"name": "adam", "lr": 1e-3, "long_lr": 1e-4},
        "run": {"epochs": 20},
    },
    "characters/lstm": {
        "task": {"name": "characters"},
        "model": {"network": "lstm", "hidden_size": 350, "embedding": True, "forget_bias": 0.0},
        "optimizer": {"name": "rmsprop_tf", "lr": 1e-3, "clip_value": 8.0},
        "run": {"epochs": 20},
    },
    "pixels/enrnn": {  # not in the paper: scoRNN's settings, with a short-term state
        "task": {"name": "pixels"},
        "model": {"network": "enrnn", "hidden_size": 170, "short_size": 68},
        "optimizer": {"name": "rmsprop_tf", "lr": 1e-3, "long_lr": 1e-4},
        "run": {"epochs": 70},
    },
    "pixels/scornn": {
        "task": {"name": "pixels"},
        "model": {"network": "enrnn", "hidden_size": 170, "short_size": 0, "negative_ones": 17},
        "optimizer": {"name": "rmsprop_tf", "lr": 1e-3, "long_lr": 1e-4},
        "run": {"epochs": 70},
    },
}


def recipe(name: str) -> "Config":
    """The configuration that a recipe stands for; `ValueError` with the nearest names if there is none."""
    from .training import Config
    from .training._settings import nearest

    if name not in RECIPES:
        raise ValueError(f"unknown recipe {name!r}; {nearest(name, RECIPES)}")
    return Config.from_dict(RECIPES[name])
