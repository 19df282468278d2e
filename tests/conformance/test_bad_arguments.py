"""A layer, cell or function given a setting it cannot have says which, what it was and what it should be."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from enrnn import ENRNN, Cayley, EigenvalueNormalized, ENRNNCell, citation, eigenvalue_normalized, orthogonal
from enrnn.functional import long_short_recurrence, recurrence
from tests.conformance._errors import assert_explained, case, raised_by

NAN, INF = math.nan, math.inf


def bad(argument: str, value: Any, *parts: str) -> Any:
    """One bad setting. The message names the argument and shows the value besides `parts`, which say what was wanted."""
    shown = value if isinstance(value, str) else str(value)
    return case(f"{argument}={value!r}", {argument: value}, (argument, shown, *parts))


BOTH = [
    *(bad("input_size", value, "greater than zero") for value in (0, -2)),
    *(bad("input_size", value, "int") for value in (2.5, True, "a", None)),
    *(bad("hidden_size", value, "greater than zero") for value in (0, -1)),
    *(bad("hidden_size", value, "int") for value in (2.5, True, "a", None)),
    *(bad("bias", value, "bool") for value in (1, "a", None)),
    bad("nonlinearity", "softplus", "'tanh'", "'relu'", "'modrelu'"),
    *(bad("nonlinearity", value, "tanh", "relu", "modrelu") for value in (3, None)),
    *(bad("short_size", value, "between 0", "hidden_size", "8") for value in (-1, 9)),
    *(bad("short_size", value, "fraction", "hidden_size", "[0, 1]") for value in (1.5, -0.1, NAN, INF)),
    *(bad("short_size", value, "int", "float") for value in (True, "a", [3])),
    *(bad("negative_ones", value, "between 0", "5") for value in (-1, 6)),  # 5 of 8 units are long-term
    *(bad("negative_ones", value, "int") for value in (1.0, 0.5, True, "a", NAN)),
    *(bad("epsilon", value, "not negative", "finite") for value in (-0.1, NAN, INF)),
    *(bad("epsilon", value, "number") for value in ("a", True, None)),
    *(bad("coupling", value, "bool") for value in (1, "a", None)),
    bad("long", "expm", "'cayley'"),
    bad("short", "free", "'normalized'"),
    bad("coupling_init", "zeros", "'glorot'", "'truncated_orthogonal'"),
    bad("solver", "magic", "'auto'", "'dense'"),
    bad("backend", "fpga", "'auto'", "'reference'"),
    bad("input_weight", "random", "'full'", "'identity'"),
    *(bad(name, 3, "string") for name in ("long", "short", "coupling_init", "solver", "backend", "input_weight")),
    *(bad("dtype", value, "floating") for value in (torch.int64, torch.bool, torch.complex64)),
    bad("dtype", "float32", "torch.dtype"),
]
LAYER_ONLY = [
    *(bad("num_layers", value, "greater than zero") for value in (0, -1)),
    *(bad("num_layers", value, "int") for value in (1.5, True, "a")),
    *(bad("batch_first", value, "bool") for value in (1, "a", None)),
    *(bad("bidirectional", value, "bool") for value in (1, "a", None)),
    *(bad("dropout", value, "[0, 1]") for value in (1.5, -0.1, NAN, "a", True)),
]
TORCHS = {"input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout", "bidirectional", "dtype"}


@pytest.mark.parametrize(("settings", "parts"), [*BOTH, *LAYER_ONLY])
def test_a_layer_explains_a_bad_setting(settings: dict[str, Any], parts: tuple[str, ...]) -> None:
    settings = {"input_size": 3, "hidden_size": 8} | settings
    torchs = raised_by(lambda: nn.RNN(**settings)) if settings.keys() <= TORCHS else None
    assert_explained(raised_by(lambda: ENRNN(**settings)), parts, torchs)


@pytest.mark.parametrize(("settings", "parts"), BOTH)
def test_a_cell_explains_a_bad_setting(settings: dict[str, Any], parts: tuple[str, ...]) -> None:
    assert_explained(raised_by(lambda: ENRNNCell(**({"input_size": 3, "hidden_size": 8} | settings))), parts)


def test_an_identity_input_needs_as_many_inputs_as_units() -> None:
    parts = ("input_weight='identity'", "hidden_size = 8", "3")
    assert_explained(raised_by(lambda: ENRNN(3, 8, input_weight="identity")), parts)
    assert_explained(raised_by(lambda: ENRNNCell(3, 8, input_weight="identity")), parts)
    # Both directions together are 16 inputs of the second layer.
    parts = ("input_weight='identity'", "hidden_size = 8", "weight_ih_l1", "16")
    assert_explained(raised_by(lambda: ENRNN(8, 8, num_layers=2, bidirectional=True, input_weight="identity")), parts)


@pytest.mark.parametrize(
    ("layer", "direction", "parts"),
    [
        (2, 0, ("layer", "between 0 and 1", "2")),
        (-1, 0, ("layer", "between 0 and 1", "-1")),
        (0, 1, ("direction", "between 0 and 0", "1")),
        (0, -1, ("direction", "between 0 and 0", "-1")),
    ],
)
def test_a_matrix_that_is_not_there_cannot_be_asked_for(layer: int, direction: int, parts: tuple[str, ...]) -> None:
    model = ENRNN(3, 8, num_layers=2)
    assert_explained(raised_by(lambda: model.recurrent_weight(layer, direction)), parts)


@pytest.mark.parametrize("argument", ["lr", "long_lr"])
@pytest.mark.parametrize(("value", "wanted"), [(-0.1, "not negative"), (NAN, "finite"), (INF, "finite"), ("a", "number")])
def test_learning_rates_are_numbers(argument: str, value: Any, wanted: str) -> None:
    rates = {"lr": 1e-3, "long_lr": 1e-4} | {argument: value}
    assert_explained(raised_by(lambda: ENRNN(3, 8).parameter_groups(**rates)), (argument, str(value), wanted))


@pytest.mark.parametrize(
    ("call", "parts"),
    [
        case("Cayley, -1", lambda: Cayley(negative_ones=-1), ("negative_ones", "-1", "between 0")),
        case("Cayley, 1.5", lambda: Cayley(negative_ones=1.5), ("negative_ones", "1.5", "int")),
        case("Cayley, too many", lambda: Cayley(negative_ones=3)(torch.zeros(2, 2)), ("negative_ones", "3", "2")),
        case("Cayley, not square", lambda: Cayley()(torch.zeros(2, 3)), ("Cayley", "square", "[2, 3]")),
        case("Cayley, no matrix", lambda: Cayley()(torch.zeros(4)), ("Cayley", "square", "[4]")),
        case("Cayley, complex", lambda: Cayley()(torch.eye(2).cfloat()), ("Cayley", "floating", "complex64")),
        case("normalized, ε", lambda: EigenvalueNormalized(-1.0), ("epsilon", "-1.0", "not negative")),
        case("normalized, solver", lambda: EigenvalueNormalized(solver="magic"), ("solver", "magic", "'dense'")),
        case("normalized, not square", lambda: EigenvalueNormalized()(torch.zeros(2, 3)), ("square", "[2, 3]")),
        case("normalized, integer", lambda: EigenvalueNormalized()(torch.eye(2).long()), ("floating", "int64")),
        case("orthogonal, no such weight", lambda: orthogonal(nn.Linear(2, 2), "kernel"), ("Linear", "'kernel'")),
        case("orthogonal, not square", lambda: orthogonal(nn.Linear(2, 3)), ("square", "[3, 2]")),
        case("front, not square", lambda: eigenvalue_normalized(nn.Linear(2, 3)), ("square", "[3, 2]")),
        case("citation of a string", lambda: citation("ENRNN"), ("modules", "str", "'ENRNN'")),  # type: ignore[arg-type]
    ],
)
def test_matrices_and_fronts_explain_what_they_cannot_take(call: Callable[[], Any], parts: tuple[str, ...]) -> None:
    assert_explained(raised_by(call), parts)


def recurrence_arguments() -> dict[str, Any]:
    return {
        "inputs": torch.randn(5, 4, 8),
        "weight": torch.randn(8, 8),
        "bias": torch.randn(8),
        "initial": torch.randn(4, 8),
        "nonlinearity": "modrelu",
        "lengths": torch.tensor([5, 3, 2, 1]),
        "final_only": False,
        "backend": "auto",
    }


def long_short_arguments() -> dict[str, Any]:
    blocks = {"long": torch.randn(5, 5), "coupling": torch.randn(5, 3), "short": torch.randn(3, 3)}
    return {name: value for name, value in (recurrence_arguments() | blocks).items() if name != "weight"}


def wrong_tensor(argument: str, shape: tuple[int, ...], wanted: str) -> list[Any]:
    """A tensor argument with each mistake in turn: `shape`, another dtype, another device."""
    return [
        case(f"{argument} {list(shape)}", argument, lambda _: torch.randn(shape), (argument, wanted, str(list(shape)))),
        case(f"{argument} float64", argument, Tensor.double, (argument, "float64", "float32")),
        case(f"{argument} on meta", argument, lambda tensor: tensor.to("meta"), (argument, "meta", "cpu")),
    ]


def no_tensor(argument: str) -> list[Any]:
    """What is not a tensor, or not a dense one."""
    return [
        case(f"{argument} a list", argument, Tensor.tolist, (argument, "Tensor", "list")),
        case(f"{argument} of NumPy", argument, Tensor.numpy, (argument, "Tensor", "ndarray")),
        case(f"{argument} sparse", argument, Tensor.to_sparse, (argument, "dense", "sparse")),
    ]


EITHER = [
    *no_tensor("inputs"),
    *no_tensor("bias"),
    *no_tensor("initial"),
    case("no initial", "initial", lambda _: None, ("initial", "Tensor", "NoneType")),
    case("bias a number", "bias", lambda _: 0.1, ("bias", "Tensor", "float")),
    case("final_only a word", "final_only", lambda _: "no", ("final_only", "bool", "'no'")),
    case("inputs [5, 8]", "inputs", lambda _: torch.randn(5, 8), ("inputs", "[T, B, n]", "[5, 8]")),
    case("inputs of no steps", "inputs", lambda _: torch.randn(0, 4, 8), ("inputs", "T > 0", "[0, 4, 8]")),
    *wrong_tensor("bias", (7,), "[8]"),
    *wrong_tensor("initial", (3, 8), "[4, 8]"),
    case("initial [1, 4, 8]", "initial", lambda _: torch.randn(1, 4, 8), ("initial", "[4, 8]", "[1, 4, 8]")),
    case("lengths [3]", "lengths", lambda _: torch.tensor([5, 3, 2]), ("lengths", "4", "[3]")),
    case("lengths float", "lengths", Tensor.float, ("lengths", "integers", "float32")),
    case("lengths bool", "lengths", Tensor.bool, ("lengths", "integers", "bool")),
    case("lengths complex", "lengths", Tensor.cfloat, ("lengths", "integers", "complex64")),
    case("lengths on meta", "lengths", lambda tensor: tensor.to("meta"), ("lengths", "meta", "cpu")),
    case("nonlinearity unknown", "nonlinearity", lambda _: "softplus", ("nonlinearity", "'softplus'", "'tanh'")),
    case("nonlinearity a number", "nonlinearity", lambda _: 3, ("nonlinearity", "3")),
    case("backend unknown", "backend", lambda _: "fpga", ("backend", "'fpga'", "'reference'")),
    case("backend a number", "backend", lambda _: 3, ("backend", "3", "reference")),
]
WHOLE = [
    case("inputs of other units", "inputs", lambda _: torch.randn(5, 4, 7), ("weight", "[7, 7]", "[8, 8]")),
    *wrong_tensor("weight", (8, 7), "[8, 8]"),
    *no_tensor("weight"),
    case("no weight", "weight", lambda _: None, ("weight", "Tensor", "NoneType")),
]
BLOCKS = [
    case("inputs of other units", "inputs", lambda _: torch.randn(5, 4, 7), ("inputs.size(-1) = 7", "5 + 3")),
    case("no long part", "long", lambda _: None, ("long", "short", "inputs.size(-1) = 8", "0 + 3")),
    *(each for argument in ("long", "coupling", "short") for each in no_tensor(argument)),
    *wrong_tensor("long", (6, 5), "[5, 5]"),
    case("long a vector", "long", lambda _: torch.randn(5), ("long", "[5, 5]", "[5]")),
    case("long a number", "long", lambda _: torch.tensor(5.0), ("long", "[]")),
    *wrong_tensor("coupling", (3, 5), "[5, 3]"),
    *wrong_tensor("short", (4, 3), "[3, 3]"),
]


@pytest.mark.parametrize(("argument", "spoil", "parts"), [*EITHER, *WHOLE])
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_recurrence_explains_what_does_not_fit(
    backend: str, argument: str, spoil: Callable[[Any], Any], parts: tuple[str, ...]
) -> None:
    arguments = recurrence_arguments() | {"backend": backend}
    arguments[argument] = spoil(arguments[argument])
    assert_explained(raised_by(lambda: recurrence(**arguments)), parts)


@pytest.mark.parametrize(("argument", "spoil", "parts"), [*EITHER, *BLOCKS])
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_long_short_recurrence_explains_what_does_not_fit(
    backend: str, argument: str, spoil: Callable[[Any], Any], parts: tuple[str, ...]
) -> None:
    arguments = long_short_arguments() | {"backend": backend}
    arguments[argument] = spoil(arguments[argument])
    assert_explained(raised_by(lambda: long_short_recurrence(**arguments)), parts)


@pytest.mark.parametrize("found", [torch.zeros(4, 3), 1.0])
def test_a_nonlinearity_of_ones_own_keeps_the_shape(found: Any) -> None:
    arguments = recurrence_arguments() | {"nonlinearity": lambda z: found}
    assert_explained(raised_by(lambda: recurrence(**arguments)), ("nonlinearity", "[4, 8]"))


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_a_recurrence_of_neither_part_is_none(backend: str) -> None:
    nothing = dict.fromkeys(("long", "coupling", "short"))
    error = raised_by(lambda: long_short_recurrence(**(long_short_arguments() | nothing | {"backend": backend})))
    assert_explained(error, ("long", "short", "None"))


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64])
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_a_recurrence_is_over_real_floating_point_states(backend: str, dtype: torch.dtype) -> None:
    whole, blocks = recurrence_arguments(), long_short_arguments()
    for function, arguments in ((recurrence, whole), (long_short_recurrence, blocks)):
        converted = {
            name: value.to(dtype) if isinstance(value, Tensor) and name != "lengths" else value
            for name, value in (arguments | {"backend": backend}).items()
        }
        error = raised_by(lambda f=function, a=converted: f(**a))
        assert_explained(error, ("inputs", "floating", str(dtype)))


@pytest.mark.parametrize("arguments", [recurrence_arguments(), long_short_arguments()], ids=["whole", "blocks"])
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_the_arguments_that_these_tests_spoil_are_good(arguments: dict[str, Any], backend: str) -> None:
    run = recurrence if "weight" in arguments else long_short_recurrence
    assert run(**(arguments | {"backend": backend})).shape == (5, 4, 8)
