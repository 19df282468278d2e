"""Any configuration is either a right run or one clear error: never a traceback from deep inside."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from enrnn.training import NotFiniteError, train
from tests._record import Recorder
from tests.training._runs import ADDING, COPYING, differences, outcome, tiny

CHANGES: dict[str, st.SearchStrategy[Any]] = {
    "task.batch_size": st.integers(1, 9),
    "task.eval_batch_size": st.integers(1, 50),
    "task.train_size": st.integers(1, 12),
    "task.length": st.integers(1, 9),
    "model.network": st.sampled_from(["enrnn", "lstm", "gru", "rnn"]),
    "model.hidden_size": st.integers(1, 7),
    "model.short_size": st.none() | st.integers(0, 7) | st.floats(0, 1),
    "model.negative_ones": st.none() | st.integers(0, 7),
    "model.coupling": st.booleans(),
    "model.epsilon": st.floats(0, 1),
    "model.coupling_init": st.sampled_from(["glorot", "truncated_orthogonal"]),
    "model.nonlinearity": st.sampled_from(["modrelu", "relu", "tanh", "identity"]),
    "model.embedding": st.booleans(),
    "model.solver": st.sampled_from(["auto", "dense", "squaring"]),
    "optimizer.name": st.sampled_from(["adam", "adagrad", "rmsprop_tf", "rmsprop"]),
    "optimizer.long_name": st.none() | st.sampled_from(["adam", "adagrad", "rmsprop_tf", "rmsprop"]),
    "optimizer.lr": st.floats(0, 1e30),
    "optimizer.clip_norm": st.none() | st.floats(1e-3, 1e3),
    "optimizer.lr_decay": st.floats(1e-3, 2),
    "run.steps": st.integers(1, 4),
    "run.evaluate_every": st.none() | st.integers(1, 5),
    "run.checkpoint_every": st.none() | st.integers(1, 5),
    "run.seed": st.integers(0, 2**63 - 1),
}


@given(
    task=st.sampled_from([ADDING, COPYING]),
    changes=st.fixed_dictionaries({}, optional=CHANGES),
)
def test_any_configuration_is_a_right_run_or_one_clear_error(record: Recorder, task: Any, changes: dict[str, Any]) -> None:
    record(cases=1)
    base = tiny(task).override({"model.short_size": None, "run.steps": 2})
    with tempfile.TemporaryDirectory() as name:
        runs = Path(name)
        try:
            config = base.override(changes)
            result = train(config, runs / "one")
        except (ValueError, NotFiniteError) as error:
            assert str(error).count("\n") == 0  # noqa: PT017
            return
        assert math.isfinite(result["last"]["test"][result["metric"]])
        train(config, runs / "other")
        assert differences(outcome(runs / "one" / config.folder_name), outcome(runs / "other" / config.folder_name)) == []
