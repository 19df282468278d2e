"""The networks of a run: their sizes, their first values, and what they put out."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from enrnn.tasks import Adding, Copying, Data
from enrnn.training import ModelSettings, Network
from tests.training._runs import text_task


class Speech(Data):
    """As many features and outputs as the real one, and no data."""

    from enrnn.tasks import Features

    name, input, output_size, reads = "speech", Features(129), 129, "all"

    def __init__(self) -> None:
        super().__init__({"train": 1}, 1, 1, 0, torch.device("cpu"))

    batch = loss = tally = metrics = None  # type: ignore[assignment]


class Treebank(Data):
    """Fifty symbols."""

    from enrnn.tasks import Symbols

    name, input, output_size, reads = "characters", Symbols(50), 50, "all"

    def __init__(self) -> None:
        super().__init__({"train": 1}, 1, 1, 0, torch.device("cpu"))

    batch = loss = tally = metrics = None  # type: ignore[assignment]


ENRNN = {
    "adding": ModelSettings(hidden_size=160, short_size=64),
    "copying": ModelSettings(hidden_size=192, short_size=20),
    "speech": ModelSettings(hidden_size=468, short_size=94, coupling=False),
    "characters": ModelSettings(hidden_size=1030, short_size=720, embedding=True),
}
DATA = {"adding": Adding().load, "copying": Copying().load, "speech": Speech, "characters": Treebank}


@pytest.mark.parametrize(
    ("task", "count"), [("adding", 15_441), ("copying", 22_395), ("speech", 199_928), ("characters", 893_575)]
)
def test_enrnn_has_the_papers_number_of_parameters(task: str, count: int) -> None:
    assert Network(ENRNN[task], DATA[task]()).num_parameters() == count


@pytest.mark.parametrize(
    ("task", "size", "embedding", "count"),
    [
        ("adding", 60, False, 15_181),
        ("copying", 68, False, 22_109),
        ("speech", 158, False, 202_527),
        ("characters", 350, True, 1_016_450),
    ],
)
def test_an_lstm_has_the_papers_number_of_parameters(task: str, size: int, embedding: bool, count: int) -> None:
    settings = ModelSettings("lstm", hidden_size=size, embedding=embedding)
    assert Network(settings, DATA[task]()).num_parameters() == count


@pytest.mark.parametrize(("task", "size", "count"), [("adding", 170, 15_046), ("copying", 190, 21_764), ("speech", 425, 200_304)])
def test_scornn_has_the_papers_number_of_parameters(task: str, size: int, count: int) -> None:
    assert Network(ModelSettings(hidden_size=size, short_size=0), DATA[task]()).num_parameters() == count


def test_the_head_starts_as_the_authors_code_has_it() -> None:
    torch.manual_seed(0)
    model = Network(ModelSettings(hidden_size=400, head_bias="glorot"), Copying().load())
    assert 0.9 < model.head.weight.abs().max() / math.sqrt(6 / 409) <= 1
    assert 0 < model.head.bias.abs().max() <= math.sqrt(3 / 9)
    assert not Network(ModelSettings(hidden_size=8), Copying().load()).head.bias.any()


def test_an_lstm_starts_as_tensorflows() -> None:
    torch.manual_seed(0)
    layer = Network(ModelSettings("lstm", hidden_size=20, forget_bias=-4.0), Copying().load()).layer
    assert isinstance(layer, nn.LSTM)
    kernel = torch.cat([layer.weight_ih_l0, layer.weight_hh_l0], dim=1)
    assert 0.9 < kernel.abs().max() / math.sqrt(6 / (30 + 80)) <= 1
    assert layer.bias_ih_l0.tolist() == [0.0] * 20 + [-4.0] * 20 + [0.0] * 40
    assert not layer.bias_hh_l0.any()
    assert not layer.bias_hh_l0.requires_grad


@pytest.mark.parametrize("network", ["enrnn", "lstm", "gru", "rnn"])
@pytest.mark.parametrize("embedding", [False, True])
def test_a_carried_state_splits_a_sequence_without_a_trace(network: str, embedding: bool, tmp_path: object) -> None:
    torch.manual_seed(0)
    nonlinearity = "tanh" if network == "rnn" else "modrelu"
    data = text_task(tmp_path).load()  # type: ignore[arg-type]
    model = Network(ModelSettings(network, hidden_size=5, embedding=embedding, nonlinearity=nonlinearity), data)
    batch = data.batch("train", data.order("train")[0])
    whole, _ = model(batch.inputs, model.first_state(4))
    assert whole.shape == (5, 4, data.output_size)
    first, state = model(batch.inputs[:2])
    second, _ = model(batch.inputs[2:], state)
    torch.testing.assert_close(torch.cat([first, second]), whole)


def test_a_symbol_goes_in_as_one_hot() -> None:
    data = Copying(length=3, train_size=20).load()
    model = Network(ModelSettings("rnn", hidden_size=4, nonlinearity="tanh"), data)
    batch = data.batch("train", data.order("train")[0])
    expected, _ = model.layer(nn.functional.one_hot(batch.inputs, 10).float())
    torch.testing.assert_close(model(batch.inputs)[0], model.head(expected), rtol=0, atol=0)


def test_an_embedding_of_numbers_is_refused() -> None:
    with pytest.raises(ValueError, match=r"model\.embedding is for tasks whose input is symbols; that of adding is numbers"):
        Network(ModelSettings(embedding=True), Adding().load())
