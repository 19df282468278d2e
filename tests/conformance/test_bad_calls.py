"""A call with the wrong tensors says which argument is wrong, what it was and what it should be, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from enrnn import ENRNN, EigenvalueNormalized, ENRNNCell
from tests.conformance._errors import assert_explained, assert_unchanged, case, raised_by, snapshot
from tests.conformance._layers import scatter_, short_matrices

Call = Callable[[Any], Any]

r = torch.randn
x, h = r(5, 4, 3), r(1, 4, 8)  # for a layer with 3 inputs and 8 units
packed = pack_sequence([r(4, 3), r(2, 3)])
unsorted = pack_sequence([r(2, 3), r(4, 3)], enforce_sorted=False)

RANKS = [
    case("input 0-D", lambda m: m(r(())), ("input", "2D or 3D", "0D")),
    case("input 1-D", lambda m: m(r(3)), ("input", "2D or 3D", "1D")),
    case("input 4-D", lambda m: m(r(1, 5, 4, 3)), ("input", "2D or 3D", "4D")),
    case("hx 2-D for a batch", lambda m: m(x, r(4, 8)), ("hx", "3-D", "2-D")),
    case("hx 4-D for a batch", lambda m: m(x, r(1, 1, 4, 8)), ("hx", "3-D", "4-D")),
    case("hx 3-D unbatched", lambda m: m(r(5, 3), r(1, 1, 8)), ("hx", "2-D", "3-D")),
    case("hx 1-D unbatched", lambda m: m(r(5, 3), r(8)), ("hx", "2-D", "1-D")),
    case("hx 2-D for packed", lambda m: m(packed, r(2, 8)), ("hx", "3-D", "2-D")),
    case("hx 1-D for unsorted", lambda m: m(unsorted, r(8)), ("hx", "3-D", "1-D")),
    case("packed 3-D", lambda m: m(PackedSequence(r(1, 6, 3), packed.batch_sizes)), ("input", "2 dim", "got 3")),
]
SIZES = [
    case("input features", lambda m: m(r(5, 4, 2)), ("input.size(-1)", "Expected 3", "got 2")),
    case("input features unbatched", lambda m: m(r(5, 2)), ("input.size(-1)", "Expected 3", "got 2")),
    case("input features packed", lambda m: m(pack_sequence([r(4, 2)])), ("input.size(-1)", "Expected 3", "got 2")),
    case("hx layers", lambda m: m(x, r(2, 4, 8)), ("hx", "(1, 4, 8)", "[2, 4, 8]")),
    case("hx batch", lambda m: m(x, r(1, 5, 8)), ("hx", "(1, 4, 8)", "[1, 5, 8]")),
    case("hx batch of one", lambda m: m(x, r(1, 1, 8)), ("hx", "(1, 4, 8)", "[1, 1, 8]")),
    case("hx units", lambda m: m(x, r(1, 4, 7)), ("hx", "(1, 4, 8)", "[1, 4, 7]")),
    case("hx layers unbatched", lambda m: m(r(5, 3), r(2, 8)), ("hx", "[2, ", "8")),
    case("hx units unbatched", lambda m: m(r(5, 3), r(1, 7)), ("hx", "8", "7]")),
    case("hx batch packed", lambda m: m(packed, r(1, 3, 8)), ("hx", "(1, 2, 8)", "[1, 3, 8]")),
    case("hx batch unsorted, too many", lambda m: m(unsorted, r(1, 3, 8)), ("hx", "(1, 2, 8)", "[1, 3, 8]")),
    case("hx batch unsorted, too few", lambda m: m(unsorted, r(1, 1, 8)), ("hx", "(1, 2, 8)", "[1, 1, 8]")),
    case("hx units unsorted", lambda m: m(unsorted, r(1, 2, 7)), ("hx", "(1, 2, 8)", "[1, 2, 7]")),
    case("no steps", lambda m: m(r(0, 4, 3)), ("input", "length", "0")),
]
DTYPES = [
    case("input float64", lambda m: m(x.double()), ("input", "float64", "float32")),
    case("input bfloat16", lambda m: m(x.bfloat16()), ("input", "bfloat16", "float32")),
    case("input integer", lambda m: m(x.long()), ("input", "int64", "float")),
    case("input bool", lambda m: m(x > 0), ("input", "bool", "float")),
    case("input complex", lambda m: m(x.cfloat()), ("input", "complex64", "float")),
    case("input packed float64", lambda m: m(packed.double()), ("input", "float64", "float32")),
    case("hx float64", lambda m: m(x, h.double()), ("hx", "float64", "float32")),
    case("hx integer", lambda m: m(x, h.long()), ("hx", "int64", "float")),
    case("hx complex", lambda m: m(x, h.cfloat()), ("hx", "complex64", "float")),
]
DEVICES = [
    case("input on meta", lambda m: m(x.to("meta")), ("input", "meta", "cpu")),
    case("hx on meta", lambda m: m(x, h.to("meta")), ("hx", "meta", "cpu")),
    case("both on meta", lambda m: m(x.to("meta"), h.to("meta")), ("input", "meta", "cpu")),
]
NO_TENSORS = [
    case("input None", lambda m: m(None), ("input", "NoneType")),
    case("input a list", lambda m: m([[1.0, 2.0, 3.0]]), ("input", "list")),
    case("input an array", lambda m: m(x.numpy()), ("input", "ndarray")),
    case("hx an LSTM's pair", lambda m: m(x, (h, h)), ("hx", "tuple")),
    case("hx a list", lambda m: m(packed, [0.0]), ("hx", "list")),
]


@pytest.mark.parametrize(("call", "parts"), [*RANKS, *SIZES, *DTYPES, *DEVICES, *NO_TENSORS])
def test_a_layer_explains_a_bad_call_and_stays_as_it_was(call: Call, parts: tuple[str, ...]) -> None:
    layer = ENRNN(3, 8)
    scatter_(layer)  # ρ(T) > 1 and the switch still off: a step too far would turn it on
    before = snapshot(layer)
    error = raised_by(lambda: call(layer))
    assert_explained(error, parts, raised_by(lambda: call(nn.RNN(3, 8))))
    assert_unchanged(layer, before)


def test_the_shape_wanted_of_hx_counts_layers_and_directions() -> None:
    layer = ENRNN(3, 8, num_layers=2, bidirectional=True, batch_first=True)
    before = snapshot(layer)
    error = raised_by(lambda: layer(x, r(2, 5, 8)))
    assert_explained(error, ("hx", "(4, 5, 8)", "[2, 5, 8]"), raised_by(lambda: nn.RNN(3, 8, 2)(x, r(2, 5, 8))))
    assert_unchanged(layer, before)


CELL_CALLS = [
    case("input 0-D", lambda m: m(r(())), ("input", "1D or 2D", "0D")),
    case("input 3-D", lambda m: m(x), ("input", "1D or 2D", "3D")),
    case("input features", lambda m: m(r(4, 2)), ("input", "3", "got 2")),
    case("input features 1-D", lambda m: m(r(2)), ("input", "3", "got 2")),
    case("input float64", lambda m: m(x[0].double()), ("input", "float64", "float32")),
    case("input integer", lambda m: m(x[0].long()), ("input", "int64", "float")),
    case("input complex", lambda m: m(x[0].cfloat()), ("input", "complex64", "float")),
    case("input on meta", lambda m: m(x[0].to("meta")), ("input", "meta", "cpu")),
    case("input None", lambda m: m(None), ("input", "NoneType")),
    case("hx 3-D", lambda m: m(x[0], h), ("hx", "2D", "3D")),
    case("hx 1-D for a batch", lambda m: m(x[0], r(8)), ("hx", "2D", "1D")),
    case("hx 2-D for one vector", lambda m: m(r(3), r(1, 8)), ("hx", "1D", "2D")),
    case("hx batch", lambda m: m(x[0], r(5, 8)), ("hx", "4, 8", "[5, 8]")),
    case("hx batch of one", lambda m: m(x[0], r(1, 8)), ("hx", "4, 8", "[1, 8]")),
    case("hx units", lambda m: m(x[0], r(4, 7)), ("hx", "4, 8", "[4, 7]")),
    case("hx units 1-D", lambda m: m(r(3), r(7)), ("hx", "8", "7")),
    case("hx float64", lambda m: m(x[0], h[0].double()), ("hx", "float64", "float32")),
    case("hx integer", lambda m: m(x[0], h[0].long()), ("hx", "int64", "float")),
    case("hx complex", lambda m: m(x[0], h[0].cfloat()), ("hx", "complex64", "float")),
    case("hx on meta", lambda m: m(x[0], h[0].to("meta")), ("hx", "meta", "cpu")),
    case("hx an LSTM's pair", lambda m: m(x[0], (h[0], h[0])), ("hx", "tuple")),
]


@pytest.mark.parametrize(("call", "parts"), CELL_CALLS)
def test_a_cell_explains_a_bad_call_and_stays_as_it_was(call: Call, parts: tuple[str, ...]) -> None:
    cell = ENRNNCell(3, 8)
    scatter_(cell)
    before = snapshot(cell)
    error = raised_by(lambda: call(cell))
    assert_explained(error, parts, raised_by(lambda: call(nn.RNNCell(3, 8))))
    assert_unchanged(cell, before)


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(
    ("settings", "call"),
    [
        case("layer", {}, lambda m: m(x)),
        case("layer, matrix alone", {}, lambda m: m.recurrent_weight()),
        case("layer, float64", {"dtype": torch.float64}, lambda m: m(x.double())),
        case("layer, bfloat16", {"dtype": torch.bfloat16}, lambda m: m(x.bfloat16())),
        case("short part only", {"short_size": 8}, lambda m: m(x)),
    ],
)
def test_a_matrix_that_is_not_finite_is_refused_and_the_switch_is_not_written(
    settings: dict[str, Any], call: Call, value: float, training: bool
) -> None:
    layer = ENRNN(3, 8, **settings).train(training)
    scatter_(layer)
    (T,) = short_matrices(layer)
    with torch.no_grad():
        T[1, 0] = value
    before = snapshot(layer)
    assert_explained(raised_by(lambda: call(layer)), ("T", "not finite"))
    assert_unchanged(layer, before)
    assert not layer.normalizing.any()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_cell_and_a_bare_parametrization_refuse_it_too(value: float) -> None:
    cell = ENRNNCell(3, 8)
    with torch.no_grad():
        short_matrices(cell)[0][0, 1] = value
    matrix = EigenvalueNormalized()
    calls: list[tuple[nn.Module, Callable[[], Any]]] = [
        (cell, lambda: cell(x[0])),
        (matrix, lambda: matrix(torch.tensor([[2.0, value], [0.0, 1.0]]))),
    ]
    for module, call in calls:
        before = snapshot(module)
        assert_explained(raised_by(call), ("T", "not finite"))
        assert_unchanged(module, before)


def test_the_layer_works_again_once_the_matrix_is_finite() -> None:
    layer = ENRNN(3, 8)
    (T,) = short_matrices(layer)
    good = T.detach().clone()
    with torch.no_grad():
        T[0, 0] = float("nan")
    assert_explained(raised_by(lambda: layer(x)), ("not finite",))
    with torch.no_grad():
        T.copy_(good)
    output, _ = layer(x)
    assert output.isfinite().all()
    layer.check()
