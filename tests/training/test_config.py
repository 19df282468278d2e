"""A configuration says what a run is, is written down and read back unchanged, and names every mistake."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from enrnn.tasks import Adding, Copying
from enrnn.training import Config, ModelSettings, OptimizerSettings, RunSettings
from tests._record import Recorder
from tests.training._runs import tiny


def test_the_id_is_that_of_the_content_and_of_nothing_else() -> None:
    config = tiny()
    assert config.id == tiny().id == Config.from_dict(json.loads(json.dumps(config.as_dict()))).id
    assert len(config.id) == 64
    assert config.folder_name == f"adding-enrnn-{config.id[:12]}"
    assert config.override({"optimizer.lr": "0.02"}).id != config.id


def test_the_id_of_a_known_configuration_never_changes() -> None:
    config = Config(Adding(), ModelSettings(), OptimizerSettings(), RunSettings(steps=12_000, evaluate_every=100))
    assert config.id == "e9f4da0d39cd099dfdd73a64364d735eb88375bb5b92ba4f6fae466980d10b9b"


def test_one_and_one_point_zero_are_the_same_configuration() -> None:
    assert tiny().override({"optimizer.lr": 1}).id == tiny().override({"optimizer.lr": "1.0"}).id


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimizer.lrr": "1"}, r"unknown setting optimizer.lrr; did you mean optimizer.lr"),
        ({"optimiser.lr": "1"}, r"unknown setting optimiser.lr; did you mean optimizer.lr"),
        ({"lr": "1"}, r"unknown setting lr"),
        ({"optimizer.lr": "fast"}, r"optimizer.lr should be a number, got: 'fast'"),
        ({"optimizer.lr": "nan"}, r"optimizer.lr must be finite"),
        ({"model.epsilon": "-5e-324"}, r"model.epsilon must be zero, or at least 2.2\S*e-308 in size, got: -5e-324"),
        ({"optimizer.lr": "-1"}, r"optimizer: lr must be finite and not negative, got: -1.0"),
        ({"optimizer.name": "adm"}, r"optimizer: Unknown name 'adm'"),
        ({"optimizer.momentum": "0.9", "optimizer.name": "adam"}, r"momentum has no effect"),
        ({"model.hidden_size": "1.5"}, r"model.hidden_size should be an integer, got: '1.5'"),
        ({"model.hidden_size": True}, r"model.hidden_size should be an integer, got: True"),
        ({"model.network": "lstm"}, r"model: short_size has no effect on network='lstm'"),
        ({"model.short_size": "7"}, r"short_size must lie between 0 and hidden_size = 6, got: 7"),
        ({"model.negative_ones": "4"}, r"negative_ones must lie between 0 and the long state's 3, got: 4"),
        ({"model.forget_bias": "1"}, r"forget_bias has no effect on network='enrnn'"),
        ({"task.length": "2"}, r"task: length must be between 3"),
        ({"task.lenght": "20"}, r"unknown setting task.lenght; did you mean task.length"),
        ({"run.device": "gpu"}, r"device must be cpu, cuda or cuda:N, got: 'gpu'"),
        ({"run.steps": "none"}, r"one of steps and epochs must be given"),
        ({"run.steps": "0"}, r"steps must be greater than zero"),
        ({"model.network": "ornnn"}, r"model: unknown network 'ornnn'; did you mean ornn or"),
        ({"model.embedding": "1"}, r"embedding must be true, false or a size of 2 or more, got: 1"),
        ({"model.options.short_sise": "1"}, r"network 'enrnn' has no option 'short_sise'"),
        ({"model.options": "[1]"}, r"model.options should be an object in JSON, got: '\[1\]'"),
        ({"model.options": 3}, r"model.options should be an object in JSON, got: 3"),
        ({"run.graph": "maybe"}, r"run.graph should be true or false, got: 'maybe'"),
    ],
)
def test_a_mistake_is_one_error_that_names_it(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        tiny().override(changes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tasks": {}}, "unknown section 'tasks' of a configuration; did you mean task"),
        ({"task": {"name": "ading"}}, "unknown task 'ading'; did you mean adding"),
        ({"task": 3}, "task should be a section"),
        ({"format": 2}, "of format 2"),
        ({"run": {"steps": 3, "step": 4}}, "unknown setting run.step; did you mean run.steps"),
        ({}, "one of steps and epochs"),
    ],
)
def test_a_file_with_a_mistake_is_one_error_that_names_it(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Config.from_dict(values)


def test_steps_take_the_place_of_epochs() -> None:
    config = tiny().override({"run.epochs": "2"})
    assert (config.run.steps, config.run.epochs) == (None, 2)
    assert config.override({"run.steps": "3"}).run == dataclasses.replace(config.run, steps=3, epochs=None)


def test_a_text_is_read_as_the_setting_has_it() -> None:
    config = tiny().override({"model.short_size": "0.5", "model.negative_ones": "none", "model.coupling": "False"})
    assert (config.model.short_size, config.model.negative_ones, config.model.coupling) == (0.5, None, False)


def ornn(**options: Any) -> ModelSettings:
    return ModelSettings("ornn", hidden_size=6, options=options)


def test_an_option_is_read_as_the_networks_class_has_it() -> None:
    config = tiny(model=ornn()).override({"model.options.reflectors": "4", "model.options.learn_initial": "false"})
    assert config.model.options == {"learn_initial": False, "reflectors": 4}
    assert config == tiny(model=ornn()).override({"model.options": '{"reflectors": 4, "learn_initial": false}'})
    assert config == Config.from_dict(json.loads(json.dumps(config.as_dict())))
    assert config.override({"model.options.reflectors": "none"}).model.options == {"learn_initial": False, "reflectors": None}
    clockwork = tiny(model=ModelSettings("clockwork", hidden_size=6)).override({"model.options.periods": "[1, 3]"})
    assert clockwork.model.options == {"periods": [1, 3]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model.options.reflecters": "4"}, "model: network 'ornn' has no option 'reflecters'; did you mean reflectors?"),
        ({"model.options.reflectors": "many"}, "model.options.reflectors should be an integer or none, got: 'many'"),
        ({"model.options.reflectors": True}, "model: options.reflectors should be an integer or none, got: True"),
        ({"model.options.reflectors": "7"}, "model: reflectors must not exceed the size, 6, got: 7"),
        ({"model.options.nonlinearity": "tanh"}, "model: network 'ornn' has no option 'nonlinearity'"),
        ({"model.options.hidden_size": "7"}, "model: network 'ornn' has no option 'hidden_size'"),
        ({"model.options.dropout": "0.5"}, "model: options.dropout would draw random numbers"),
        ({"model.nonlinearity": "tan"}, "model: Unknown nonlinearity 'tan'"),
        ({"model.network": "scornn", "model.negative_ones": "3"}, "give model.options.negative_ones"),
        ({"model.network": "hmrnn", "model.nonlinearity": "tanh"}, "nonlinearity has no effect on network='hmrnn'; leave it out"),
        ({"model.network": "urnn", "model.hidden_size": "7"}, "model: hidden_size must be even"),
    ],
)
def test_a_wrong_option_is_one_error_that_names_it(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        tiny(model=ornn()).override(changes)
    assert str(caught.value).startswith(message) or message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_options_are_part_of_the_id_and_no_options_are_not() -> None:
    assert "options" not in tiny().as_dict()["model"]
    assert tiny(model=ornn(reflectors=3)).id != tiny(model=ornn(reflectors=4)).id != tiny(model=ornn()).id
    one, other = (ModelSettings("nnrnn", hidden_size=6, options={"gamma_penalty": penalty}) for penalty in (1, 1.0))
    assert tiny(model=one).id == tiny(model=other).id


def test_another_network_has_its_own_nonlinearity() -> None:
    plain = tiny(model=ModelSettings(hidden_size=6))
    assert plain.model.nonlinearity == "modrelu"
    assert plain.override({"model.network": "ornn"}).model.nonlinearity is None
    assert plain.override({"model.network": "rnn"}).model.nonlinearity == "tanh"
    assert plain.override({"model.network": "ornn", "model.nonlinearity": "modrelu"}).model.nonlinearity == "modrelu"


def test_a_configuration_draws_no_random_number() -> None:
    torch.manual_seed(3)
    state = torch.get_rng_state()
    tiny(model=ModelSettings("full_capacity_urnn", hidden_size=6, options={"polish_every": 11}))
    assert torch.equal(torch.get_rng_state(), state)


PATHS = sorted(
    f"{section}.{name}" for section, values in Config(Copying()).as_dict().items() if section != "format" for name in values
)
PATHS += ["model.options", "model.options.reflectors", "model.options.num_layers", "run.tensorboard"]
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 300),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["adam", "lstm", "ornn", "hmrnn", "1e-3", "cuda", '{"reflectors": 2}']),
    st.dictionaries(
        st.sampled_from(["reflectors", "num_layers", "output"]), st.integers(-1, 3) | st.text(max_size=3), max_size=2
    ),
)


@given(changes=st.dictionaries(st.sampled_from(PATHS) | st.text(max_size=12), VALUES, min_size=1, max_size=4))
def test_any_change_gives_a_sound_configuration_or_one_clear_error(record: Recorder, changes: dict[str, object]) -> None:
    record(cases=1)
    try:
        config = Config(Copying()).override(changes)
    except ValueError:
        return  # any other error fails the test
    assert Config.from_dict(json.loads(json.dumps(config.as_dict()))) == config


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.dictionaries(st.sampled_from([*PATHS, "name", "task", "model", "run", "lr", "steps"]), inner, max_size=3),
    max_leaves=6,
)


@given(values=st.dictionaries(st.sampled_from(["format", "task", "model", "optimizer", "run"]), JSON, max_size=5))
def test_any_file_gives_a_sound_configuration_or_one_clear_error(record: Recorder, values: dict[str, Any]) -> None:
    record(cases=1)
    try:
        config = Config.from_dict(values)
    except ValueError:
        return  # any other error fails the test
    assert Config.from_dict(config.as_dict()) == config
