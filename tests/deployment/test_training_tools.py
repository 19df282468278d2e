"""What a layer offers to those who train and report on it: parameter groups, counts, checks, citations."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import enrnn
from enrnn import ENRNN, Cayley, ENRNNCell, citation, orthogonal
from tests.conformance._layers import scatter_

MODULES = [
    pytest.param(ENRNN, {}, id="layer"),
    pytest.param(ENRNN, {"num_layers": 2, "bidirectional": True}, id="stacked both ways"),
    pytest.param(ENRNN, {"short_size": 0}, id="long only"),
    pytest.param(ENRNN, {"short_size": 8}, id="short only"),
    pytest.param(ENRNN, {"bias": False, "coupling": False, "input_weight": "identity"}, id="bare"),
    pytest.param(ENRNNCell, {}, id="cell"),
]
OPTIMISERS = [torch.optim.SGD, torch.optim.RMSprop, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad]

each_module = pytest.mark.parametrize(("kind", "settings"), MODULES)


@each_module
def test_groups_hold_every_parameter_exactly_once_with_the_rate_of_its_kind(
    kind: type[ENRNN | ENRNNCell], settings: dict[str, Any]
) -> None:
    module = kind(8, 8, **settings)
    rates: dict[int, float] = {}
    for group in module.parameter_groups(lr=1e-3, long_lr=1e-4):
        for parameter in group["params"]:
            assert id(parameter) not in rates
            rates[id(parameter)] = group["lr"]
    wanted = {id(p): 1e-4 if "weight_long" in name else 1e-3 for name, p in module.named_parameters()}
    assert rates == wanted


@each_module
def test_no_group_is_empty_and_each_is_named(kind: type[ENRNN | ENRNNCell], settings: dict[str, Any]) -> None:
    groups = kind(8, 8, **settings).parameter_groups(lr=1e-3, long_lr=1e-4)
    assert all(group["params"] for group in groups)
    names = [group["name"] for group in groups]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_an_optimiser_takes_the_groups_and_moves_everything(optimiser: type[torch.optim.Optimizer]) -> None:
    layer = ENRNN(3, 10)
    scatter_(layer)
    before = {name: parameter.detach().clone() for name, parameter in layer.named_parameters()}
    optimisation = optimiser(layer.parameter_groups(lr=1e-3, long_lr=1e-4))
    assert [(group["name"], group["lr"]) for group in optimisation.param_groups] == [("others", 1e-3), ("long", 1e-4)]
    layer(torch.randn(5, 4, 3))[0].square().sum().backward()
    optimisation.step()
    assert not [name for name, parameter in layer.named_parameters() if torch.equal(parameter, before[name])]
    assert layer.constraint_error() <= 10 * 10 * torch.finfo(torch.float32).eps


def test_a_rate_of_zero_holds_its_group_still() -> None:
    layer = ENRNN(3, 10)
    W_L, W_S = layer.weight_long_l0.detach().clone(), layer.weight_short_l0.detach().clone()
    optimisation = torch.optim.SGD(layer.parameter_groups(lr=0.1, long_lr=0.0))
    layer(torch.randn(5, 4, 3))[0].square().sum().backward()
    optimisation.step()
    assert torch.equal(layer.weight_long_l0, W_L)
    assert not torch.equal(layer.weight_short_l0, W_S)


def test_the_free_parameters_of_a_layer_are_those_that_count() -> None:
    """Of the paper's adding problem: n = 160, 40 % short-term, two inputs."""
    n, q, s, m = 160, 96, 64, 2
    one = n * m + n + q * (q - 1) // 2 + s * s + q * s
    assert ENRNN(m, n).num_free_parameters() == one
    assert ENRNNCell(m, n).num_free_parameters() == one
    assert ENRNN(m, n, coupling=False).num_free_parameters() == one - q * s
    assert ENRNN(m, n, bias=False).num_free_parameters() == one - n
    assert ENRNN(m, n, short_size=0).num_free_parameters() == n * m + n + n * (n - 1) // 2
    assert ENRNN(m, n, short_size=n).num_free_parameters() == n * m + n + n * n
    assert ENRNN(n, n, input_weight="identity").num_free_parameters() == one - n * m


def test_layers_and_directions_each_count() -> None:
    first = ENRNN(3, 8, bidirectional=True).num_free_parameters()
    assert first == 2 * ENRNN(3, 8).num_free_parameters()
    second = 2 * ENRNN(16, 8).num_free_parameters()
    assert ENRNN(3, 8, num_layers=2, bidirectional=True).num_free_parameters() == first + second


@each_module
def test_check_is_quiet_when_all_is_well(kind: type[ENRNN | ENRNNCell], settings: dict[str, Any]) -> None:
    module = kind(8, 8, **settings)
    assert module.check() is None
    module(torch.randn((4, 8) if kind is ENRNNCell else (5, 4, 8)))
    assert module.check() is None


@each_module
def test_the_constraint_holds_from_the_start(kind: type[ENRNN | ENRNNCell], settings: dict[str, Any]) -> None:
    module = kind(8, 8, **settings)
    assert 0 <= module.constraint_error() <= 8 * 8 * torch.finfo(torch.float32).eps
    assert module.matrices().keys() == parametrized_weights(module)


def parametrized_weights(module: nn.Module) -> set[str]:
    return {name.split(".")[1] for name, _ in module.named_parameters() if name.startswith("parametrizations.")}


def keys(bibtex: str) -> list[str]:
    """The keys of the entries; every entry is complete."""
    entries = re.findall(r"^@(\w+)\{([^,]+),\n(.*?)\n\}$", bibtex, re.MULTILINE | re.DOTALL)
    for kind, _, fields in entries:
        assert kind in ("inproceedings", "article")
        assert all(re.search(rf"^\s*{field}\s*= \{{.+\}}", fields, re.MULTILINE) for field in ("title", "author", "year"))
        assert fields.count("{") == fields.count("}")
    assert len(entries) == bibtex.count("@")
    return [key for _, key, _ in entries]


ENRNN_PAPER, SCORNN_PAPER, MODRELU_PAPER = "helfrich2020eigenvalue", "helfrich2018orthogonal", "arjovsky2016unitary"


@pytest.mark.parametrize(
    ("compose", "expected"),
    [
        pytest.param(lambda: [], {ENRNN_PAPER}, id="nothing"),
        pytest.param(lambda: [ENRNN(3, 8)], {ENRNN_PAPER, SCORNN_PAPER, MODRELU_PAPER}, id="layer"),
        pytest.param(lambda: [ENRNNCell(3, 8)], {ENRNN_PAPER, SCORNN_PAPER, MODRELU_PAPER}, id="cell"),
        pytest.param(lambda: [ENRNN(3, 8, nonlinearity="tanh")], {ENRNN_PAPER, SCORNN_PAPER}, id="tanh"),
        pytest.param(lambda: [ENRNN(3, 8, short_size=0)], {SCORNN_PAPER, MODRELU_PAPER}, id="long only"),
        pytest.param(lambda: [ENRNN(3, 8, short_size=8)], {ENRNN_PAPER, MODRELU_PAPER}, id="short only"),
        pytest.param(lambda: [Cayley()], {SCORNN_PAPER}, id="matrix"),
        pytest.param(lambda: [orthogonal(nn.Linear(4, 4), negative_ones=2)], {SCORNN_PAPER}, id="front"),
        pytest.param(lambda: [nn.Linear(4, 4)], set(), id="torch's own"),
        pytest.param(
            lambda: [nn.Sequential(nn.Linear(2, 3), ENRNN(3, 8, nonlinearity="relu", short_size=8)), Cayley()],
            {ENRNN_PAPER, SCORNN_PAPER},
            id="a model and more",
        ),
    ],
)
def test_the_citation_has_one_entry_for_each_thing_composed(compose: Callable[[], list[nn.Module]], expected: set[str]) -> None:
    found = keys(citation(*compose()))
    assert len(found) == len(set(found))
    assert set(found) == expected


def test_the_citation_is_public() -> None:
    assert enrnn.citation is citation


@pytest.mark.parametrize(("kind", "name"), [(ENRNN, "weight_ih_l0"), (ENRNNCell, "weight_ih"), (enrnn.SCORNN, "weight_ih_l0")])
def test_a_parametrization_of_torchs_own_is_counted_and_else_left_alone(kind: type[Any], name: str) -> None:
    module = kind(3, 8)
    matrices, free = module.matrices(), module.num_free_parameters()
    nn.utils.parametrizations.weight_norm(module, name)
    assert module.matrices() == matrices
    assert 0 <= module.constraint_error() <= 8 * 8 * torch.finfo(torch.float32).eps
    assert module.check() is None
    assert module.num_free_parameters() == free + 8  # the norms of the rows are stored beside them
    assert sum(len(group["params"]) for group in module.parameter_groups(1e-3, 1e-4)) == len(list(module.parameters()))
    assert matrices.keys() < set(module.parametrizations)
    start = [original.clone() for original in module._originals(next(iter(matrices)))]
    module.reset_parameters()
    assert not all(torch.equal(*pair) for pair in zip(start, module._originals(next(iter(matrices))), strict=True))


def test_a_matrix_that_is_parametrized_anew_is_no_constraint_of_ours() -> None:
    layer = enrnn.SCORNN(3, 8)
    nn.utils.parametrize.remove_parametrizations(layer, "weight_hh_l0")
    nn.utils.parametrizations.weight_norm(layer, "weight_hh_l0")
    assert layer.matrices() == {}
    assert layer.constraint_error() == 0
    assert layer.num_free_parameters() == 8 * 3 + 8 + 8 * 8 + 8
    layer(torch.randn(4, 2, 3))[0].sum().backward()
    layer.reset_parameters()
