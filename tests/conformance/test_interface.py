"""The interface is torch.nn.RNN's: arguments, repr, dropout between layers, empty batches."""

from __future__ import annotations

import inspect
import re
import typing
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence

import enrnn
from enrnn import ENRNN, ENRNNCell
from enrnn.layers._base import RecurrentLayer
from tests._record import Recorder
from tests.conformance._layers import relative_error, rounding, scatter_, twin

POSITIONAL = inspect.Parameter.POSITIONAL_OR_KEYWORD


def normal(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def signature_of_nn_rnn() -> inspect.Signature:
    """The documented one: the function itself takes `*args, **kwargs`."""
    documented, _ = typing.get_overloads(nn.RNN.__init__)
    return inspect.signature(documented)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (inspect.signature(ENRNN.__init__), signature_of_nn_rnn()),
        (inspect.signature(ENRNNCell.__init__), inspect.signature(nn.RNNCell.__init__)),
    ],
    ids=["ENRNN", "ENRNNCell"],
)
def test_arguments_have_torchs_names_order_and_defaults(ours: inspect.Signature, theirs: inspect.Signature) -> None:
    factory = ("device", "dtype")
    expected = {name: argument for name, argument in theirs.parameters.items() if name not in factory}
    positional = {name: argument for name, argument in ours.parameters.items() if argument.kind is POSITIONAL}
    assert list(positional) == list(expected)
    defaults = {name: argument.default for name, argument in positional.items()}
    assert defaults == {name: argument.default for name, argument in expected.items()} | {"nonlinearity": "modrelu"}
    assert all(ours.parameters[name].default is theirs.parameters[name].default for name in factory)


@pytest.mark.parametrize(("ours", "theirs"), [(ENRNN, nn.RNN), (ENRNNCell, nn.RNNCell)], ids=["ENRNN", "ENRNNCell"])
def test_forward_takes_torchs_arguments(ours: type[nn.Module], theirs: type[nn.Module]) -> None:
    wanted = {name: argument.default for name, argument in inspect.signature(theirs.forward).parameters.items()}
    assert {name: argument.default for name, argument in inspect.signature(ours.forward).parameters.items()} == wanted


def test_code_that_flattens_parameters_for_cudnn_may_go_on_doing_so() -> None:
    for name in enrnn.networks():
        layer = enrnn.build(name, 3, 8)
        if isinstance(layer, RecurrentLayer):
            before = {key: value.clone() for key, value in layer.state_dict().items()}
            layer.flatten_parameters()
            assert all(torch.equal(value, before[key]) for key, value in layer.state_dict().items())


SETTINGS = [
    {},
    {"num_layers": 2},
    {"bias": False},
    {"batch_first": True},
    {"num_layers": 3, "dropout": 0.25},
    {"bidirectional": True},
    {"num_layers": 2, "bias": False, "batch_first": True, "dropout": 0.5, "bidirectional": True},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: " ".join(settings) or "defaults")
def test_the_repr_shows_all_that_nn_rnns_shows(settings: dict[str, typing.Any]) -> None:
    shown = ENRNN(3, 8, **settings).extra_repr().split(", ")
    assert set(nn.RNN(3, 8, **settings).extra_repr().split(", ")) <= set(shown)
    # What stands at its default is left out, as there.
    assert {name for name in SETTINGS[-1] if any(part.startswith(f"{name}=") for part in shown)} == settings.keys()


@pytest.mark.parametrize("settings", [{}, {"bias": False}], ids=["defaults", "no bias"])
def test_the_cells_repr_shows_all_that_nn_rnn_cells_shows(settings: dict[str, typing.Any]) -> None:
    shown = ENRNNCell(3, 8, **settings).extra_repr().split(", ")
    assert set(nn.RNNCell(3, 8, **settings).extra_repr().split(", ")) <= set(shown)


@pytest.mark.parametrize("nonlinearity", ["relu", "tanh"])
def test_the_repr_shows_the_nonlinearity_that_is_not_the_default(nonlinearity: str) -> None:
    for module in (ENRNN(3, 8, nonlinearity=nonlinearity), ENRNNCell(3, 8, nonlinearity=nonlinearity)):
        assert f"nonlinearity='{nonlinearity}'" in module.extra_repr()


def test_the_repr_names_the_class_and_how_the_state_is_split() -> None:
    for module in (ENRNN(3, 10), ENRNNCell(3, 10)):
        assert repr(module).startswith(f"{'ENRNN' if isinstance(module, ENRNN) else 'ENRNNCell'}(\n")
        assert "3, 10, short_size=4, negative_ones=2" in repr(module)


@pytest.mark.parametrize("bidirectional", [False, True], ids=["one way", "both ways"])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("dropout", [0.3, 1.0])
def test_dropout_falls_where_nn_rnns_falls(dropout: float, batch_first: bool, bidirectional: bool, record: Recorder) -> None:
    """From the same state of the random generator, so the same units are dropped, between the same layers."""
    layer = ENRNN(3, 5, 3, "tanh", True, batch_first, dropout, bidirectional, dtype=torch.float64)
    scatter_(layer)
    rnn = twin(layer)
    x = normal(6, 4, 3)
    for training in (True, False):
        torch.manual_seed(7)
        output, final = layer.train(training)(x)
        torch.manual_seed(7)
        expected, expected_final = rnn.train(training)(x)
        error = max(relative_error(output, expected), relative_error(final, expected_final))
        record(cases=1, worst_relative_error=error)
        assert error <= rounding(3 * 6, 15)


def deep_layer(dropout: float, num_layers: int) -> ENRNN:
    layer = ENRNN(3, 5, num_layers, dropout=dropout, dtype=torch.float64)
    scatter_(layer)
    return layer


def test_dropout_acts_in_training_only() -> None:
    layer, without = deep_layer(0.5, 2), deep_layer(0.0, 2)
    x = normal(6, 4, 3)
    assert not torch.equal(layer(x)[0], without(x)[0])
    assert torch.equal(layer.eval()(x)[0], without.eval()(x)[0])


def test_dropout_of_everything_leaves_the_next_layer_a_zero_input() -> None:
    layer = deep_layer(1.0, 2)
    x = normal(6, 4, 3)
    output, final = layer(x)
    first = deep_layer(0.0, 2)(x)[1][0]
    assert torch.equal(final[0], first)  # dropout is after the first layer, whose own states are whole
    again, _ = layer(normal(6, 4, 3, seed=2))
    assert torch.equal(output, again)  # the second layer hears nothing of the input


def test_the_last_layers_output_is_never_dropped() -> None:
    layer = ENRNN(3, 5, 3, "tanh", dropout=0.5, dtype=torch.float64)
    scatter_(layer)
    output, final = layer(normal(6, 4, 3))
    assert output.all()
    assert torch.equal(output[-1], final[-1])


def test_dropout_with_a_single_layer_warns_as_nn_rnn_does() -> None:
    with pytest.warns(UserWarning, match="dropout") as theirs:
        nn.RNN(3, 5, dropout=0.5)
    with pytest.warns(UserWarning, match="dropout") as ours:
        layer = ENRNN(3, 5, dropout=0.5)
    assert [str(warning.message) for warning in ours] == [str(warning.message) for warning in theirs]
    assert ours[0].filename == __file__  # it points at the user's line
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ENRNN(3, 5, 2, dropout=0.5)
    x = torch.randn(4, 2, 3)
    assert torch.equal(layer(x)[0], layer(x)[0])


@pytest.mark.parametrize("form", ["plain", "batch first", "stacked both ways"])
@pytest.mark.parametrize("given_hx", [False, True], ids=["no hx", "hx"])
def test_an_empty_batch_gives_the_empty_states_of_nn_rnn(form: str, given_hx: bool) -> None:
    stacked = form == "stacked both ways"
    settings = {"batch_first": form == "batch first", "num_layers": 2 if stacked else 1, "bidirectional": stacked}
    layer = ENRNN(3, 5, nonlinearity="tanh", **settings)
    x = torch.randn((0, 6, 3) if form == "batch first" else (6, 0, 3), requires_grad=True)
    hx = torch.randn(4 if stacked else 1, 0, 5) if given_hx else None
    expected, expected_final = twin(layer)(x, hx)
    output, final = layer(x, hx)
    assert output.shape == expected.shape
    assert final.shape == expected_final.shape
    (output.sum() + final.sum()).backward()
    assert all(parameter.grad is not None and not parameter.grad.any() for parameter in layer.parameters())


@pytest.mark.parametrize("shape", [(0, 4, 3), (0, 3)], ids=["batched", "unbatched"])
def test_a_sequence_of_no_steps_is_refused_as_nn_rnn_refuses_it(shape: tuple[int, ...]) -> None:
    with pytest.raises(RuntimeError, match="sequence length to be larger than 0"):
        nn.RNN(3, 5)(torch.randn(shape))
    with pytest.raises(ValueError, match="sequence length to be larger than 0") as ours:
        ENRNN(3, 5)(torch.randn(shape))
    assert isinstance(ours.value, RuntimeError)


def test_a_packed_batch_is_answered_by_a_packed_batch_in_the_users_order() -> None:
    layer = ENRNN(3, 5, dtype=torch.float64)
    scatter_(layer)
    sequences = [normal(steps, 3, seed=steps) for steps in (2, 5, 1, 4)]
    output, final = layer(pack_sequence(sequences, enforce_sorted=False))
    for i, (sequence, states) in enumerate(zip(sequences, nn.utils.rnn.unpack_sequence(output), strict=True)):
        alone, alone_final = layer(sequence)
        assert relative_error(states, alone) <= rounding(5, 8)
        assert relative_error(final[:, i], alone_final) <= rounding(5, 8)


def test_weights_carry_the_suffixes_of_nn_rnns_weights() -> None:
    def suffixes(module: nn.Module) -> set[str]:
        return {match[0] for name, _ in module.named_parameters() if (match := re.search(r"_l\d+(_reverse)?", name))}

    assert suffixes(ENRNN(3, 5, 2, bidirectional=True)) == suffixes(nn.RNN(3, 5, 2, bidirectional=True))
