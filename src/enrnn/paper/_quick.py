"""The small version: other sizes, lengths and steps, for two cores of a CPU and some three minutes. It is another experiment than
the paper's, and is called so wherever it shows."""

from typing import Any

TITLE = "small version"

_ADDING = {
    **{"task.length": 100, "task.train_size": 10_000, "task.test_size": 1_000, "task.eval_batch_size": 500},
    **{"run.steps": 2_000, "run.evaluate_every": 50, "run.checkpoint_every": 1_000},
}
_COPYING = {
    **{"task.length": 100, "task.train_size": 10_000, "task.test_size": 200},
    **{"run.steps": 700, "run.evaluate_every": 50, "run.checkpoint_every": 350},
}
_CHARACTERS = {
    **{"run.steps": 600, "run.evaluate_every": 200, "run.checkpoint_every": 300, "task.eval_batch_size": 400},
}


def _enrnn(long: int, short: int, **others: Any) -> dict[str, Any]:
    """The paper's rate of 1e-4 is for 12,000 steps. Here there are a sixth as many, and it starts ten times as large and falls by
    a fifth after each epoch of 200."""
    sizes = {"model.hidden_size": long + short, "model.short_size": short, "model.negative_ones": round(0.3 * long)}
    return {**_ADDING, **sizes, "optimizer.lr": 1e-3, "optimizer.lr_decay": 0.8, **others}


QUICK: dict[str, dict[str, Any]] = {
    "adding/enrnn": _enrnn(48, 32),
    "adding/lstm": {**_ADDING, "model.hidden_size": 30},
    "adding/spectral_rnn": {**_ADDING, "model.hidden_size": 60},
    "adding/spectral_rnn_15k": {**_ADDING, "model.hidden_size": 112},
    "adding/scornn": {**_ADDING, "model.hidden_size": 86, "model.negative_ones": 60},
    "adding/ornn": {**_ADDING, "model.hidden_size": 64},
    "adding/full_capacity_urnn": {**_ADDING, "model.hidden_size": 120, "optimizer.lr": 1e-4},
    "adding/enrnn_96_0": _enrnn(48, 0),
    "adding/enrnn_96_16": _enrnn(48, 8),
    "adding/enrnn_96_32": _enrnn(48, 16),
    "adding/enrnn_96_96": _enrnn(48, 48),
    "adding/enrnn_160_0": _enrnn(80, 0),
    "adding/enrnn_64_96": _enrnn(32, 48),
    "adding/enrnn_0_160": _enrnn(0, 80),
    "adding/enrnn_sixth_epoch": {
        **{"task.train_size": 10_000, "task.test_size": 1_000, "run.evaluate_every": 200},
        **{"optimizer.lr": 1e-3, "run.steps": 1_000, "run.checkpoint_every": 500},
    },
    "copying/enrnn": {**_COPYING, "model.hidden_size": 96, "model.short_size": 10, "model.negative_ones": 26},
    "copying/lstm": {**_COPYING, "model.hidden_size": 34},
    "copying/lstm192": {**_COPYING, "model.hidden_size": 96},
    "copying/scornn": {**_COPYING, "model.hidden_size": 95, "model.negative_ones": 48},
    "copying/full_capacity_urnn": {**_COPYING, "model.hidden_size": 128},
    "characters/enrnn": {**_CHARACTERS, "model.hidden_size": 206, "model.short_size": 144, "model.negative_ones": 37},
    "characters/lstm": {**_CHARACTERS, "model.hidden_size": 70},
    "characters/lstm1030": {**_CHARACTERS, "model.hidden_size": 206},
    "characters/gru415": {**_CHARACTERS, "model.hidden_size": 83},
    "characters/eurnn": {**_CHARACTERS, "model.hidden_size": 512},
    "characters/goru": {**_CHARACTERS, "model.hidden_size": 128},
    "characters/ornn": {**_CHARACTERS, "model.hidden_size": 102, "model.options.reflectors": 102},
    "characters/nnrnn": {**_CHARACTERS, "model.hidden_size": 204, "task.length": 50, "task.batch_size": 32},
}
"""By run: sizes are about half of the paper's, a fifth for characters, so that rows keep their proportions."""
