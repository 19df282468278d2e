"""An exported layer is the layer: at every sequence length and batch size, in training and in evaluation."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from enrnn import ENRNN, ENRNNCell
from tests._record import Recorder
from tests.conformance._errors import assert_unchanged, snapshot
from tests.conformance._layers import relative_error, rounding, scatter_, short_matrices

INPUTS, HIDDEN = 3, 8
SHAPES = [(6, 4), (11, 7), (1, 1), (2, 1), (1, 3), (2, 5), (3, 1), (40, 2)]


def normal(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def layer_of(radius: float = 1.5, **settings: Any) -> ENRNN:
    layer = ENRNN(INPUTS, HIDDEN, dtype=torch.float64, **settings)
    scatter_(layer, radius=radius)
    return layer


def exported(layer: nn.Module, strict: bool = False, given_hx: bool = False) -> ExportedProgram:
    """`layer` for any number of steps and sequences; it is exported at 6 steps of 4 sequences."""
    steps, batch = Dim("steps", min=1, max=1000), Dim("batch", min=1, max=1000)
    x = normal(6, 4, INPUTS)
    if not given_hx:
        return torch.export.export(layer, (x,), dynamic_shapes=({0: steps, 1: batch},), strict=strict)
    shapes = ({0: steps, 1: batch}, {1: batch})
    return torch.export.export(layer, (x, normal(states_of(layer), 4, HIDDEN)), dynamic_shapes=shapes, strict=strict)


def states_of(layer: ENRNN) -> int:
    return layer.num_layers * (2 if layer.bidirectional else 1)


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("strict", [False, True], ids=["non-strict", "strict"])
def test_an_exported_layer_gives_the_layers_results_at_every_length_and_batch_size(
    strict: bool, training: bool, record: Recorder
) -> None:
    layer = layer_of().train(training)
    plain = copy.deepcopy(layer)
    program = exported(layer, strict, given_hx=True).module()
    for steps, batch in SHAPES:
        x, hx = normal(steps, batch, INPUTS), normal(1, batch, HIDDEN, seed=2)
        for ours, expected in zip(program(x, hx), plain(x, hx), strict=True):
            error = relative_error(ours, expected)
            record(cases=1, worst_relative_error=error)
            assert error <= rounding(steps, INPUTS + HIDDEN)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"num_layers": 2, "bidirectional": True}, id="stacked both ways"),
        pytest.param({"short_size": 0, "nonlinearity": "relu"}, id="long only, relu"),
        pytest.param({"short_size": HIDDEN, "nonlinearity": "tanh"}, id="short only, tanh"),
        pytest.param({"coupling": False, "bias": False, "epsilon": 0.1}, id="bare"),
    ],
)
def test_every_kind_of_layer_is_exported(settings: dict[str, Any], record: Recorder) -> None:
    layer = layer_of(**settings).eval()
    program = exported(layer).module()
    for steps, batch in SHAPES:
        x = normal(steps, batch, INPUTS)
        for ours, expected in zip(program(x), layer(x), strict=True):
            error = relative_error(ours, expected)
            record(cases=1, worst_relative_error=error)
            assert error <= rounding(layer.num_layers * steps, INPUTS + 2 * HIDDEN)


def test_exporting_changes_nothing_in_the_layer() -> None:
    layer = layer_of()
    before = snapshot(layer)
    exported(layer)
    assert_unchanged(layer, before)


@pytest.mark.parametrize("strict", [False, True], ids=["non-strict", "strict"])
def test_an_exported_training_program_writes_the_switch(strict: bool) -> None:
    """The program owns its buffers like its parameters: `named_buffers()` of the module shows them."""
    layer = layer_of(radius=0.8)
    program = exported(layer, strict).module()
    plain = copy.deepcopy(layer)
    for radius, on in ((0.8, False), (1.6, True), (0.8, True)):
        for module in (program, plain):
            with torch.no_grad():
                for name, T in module.named_parameters():
                    if "weight_short" in name:
                        T.copy_(normal(*T.shape, seed=3))
                        T.mul_(radius / torch.linalg.eigvals(T).abs().max())
        output, _ = program(normal(5, 4, INPUTS))
        expected, _ = plain(normal(5, 4, INPUTS))
        assert relative_error(output, expected) <= rounding(5, INPUTS + HIDDEN)
        assert buffers_of(program)["normalizing"].item() is on
        assert plain.normalizing.item() is on
        assert torch.equal(buffers_of(program)["radius"], plain.spectral_radius)


def test_an_exported_evaluation_program_writes_no_switch() -> None:
    layer = layer_of(radius=1.5).eval()
    program = exported(layer).module()
    program(normal(5, 4, INPUTS))
    assert not buffers_of(program)["normalizing"]


def buffers_of(program: nn.Module) -> dict[str, Tensor]:
    """By their last name, for a program with one short-term matrix."""
    return {name.rpartition(".")[2]: buffer for name, buffer in program.named_buffers()}


def test_an_exported_training_program_counts_defective_steps() -> None:
    layer = layer_of(short_size=2)
    with torch.no_grad():
        short_matrices(layer)[0].copy_(torch.tensor([[2.0, 1.0], [0.0, 2.0]]))
    program = exported(layer).module()
    for steps in (1, 2):
        program(normal(5, 4, INPUTS))
        assert buffers_of(program)["nearly_defective"].item() == steps


def test_an_exported_training_program_has_the_layers_gradients(record: Recorder) -> None:
    layer = layer_of()
    plain = copy.deepcopy(layer)
    program = exported(layer).module()
    x = normal(9, 5, INPUTS)
    for module in (program, plain):
        module.zero_grad()
        output, final = module(x)
        (output.square().sum() + final.sum()).backward()
    ours = dict(program.named_parameters())
    assert ours.keys() == dict(plain.named_parameters()).keys()
    for name, parameter in plain.named_parameters():
        error = relative_error(ours[name].grad, parameter.grad)
        record(cases=1, worst_relative_error=error)
        assert error <= rounding(2 * 9, INPUTS + 2 * HIDDEN)


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("strict", [False, True], ids=["non-strict", "strict"])
def test_a_matrix_that_is_not_finite_is_flagged_in_the_program(strict: bool, training: bool) -> None:
    """The flag is the program's buffer `not_finite`; the layer that was exported shares it, so that `check()` raises too."""
    layer = layer_of().train(training)
    program = exported(layer, strict).module()
    program(normal(5, 4, INPUTS))
    assert not buffers_of(program)["not_finite"]
    layer.check()
    with torch.no_grad():
        for name, T in program.named_parameters():
            if "weight_short" in name:
                T[0, 1] = float("nan")
    program(normal(5, 4, INPUTS))
    assert buffers_of(program)["not_finite"]
    with pytest.raises(ValueError, match="T has entries that are not finite"):
        layer.check()


def test_a_program_survives_being_saved_and_loaded() -> None:
    layer = layer_of()
    layer(normal(5, 4, INPUTS))
    assert layer.normalizing.all()
    file = io.BytesIO()
    torch.export.save(exported(layer), file)
    file.seek(0)
    program = torch.export.load(file).module()
    for steps, batch in SHAPES:
        x = normal(steps, batch, INPUTS)
        for ours, expected in zip(program(x), layer(x), strict=True):
            assert relative_error(ours, expected) <= rounding(steps, INPUTS + HIDDEN)
    assert buffers_of(program)["normalizing"]


def test_a_cell_is_exported_for_every_batch_size() -> None:
    cell = ENRNNCell(INPUTS, HIDDEN, dtype=torch.float64).eval()
    scatter_(cell)
    batch = Dim("batch", min=1, max=1000)
    given = (normal(4, INPUTS), normal(4, HIDDEN))
    program = torch.export.export(cell, given, dynamic_shapes=({0: batch}, {0: batch})).module()
    for size in (1, 2, 4, 9):
        x, h = normal(size, INPUTS, seed=size), normal(size, HIDDEN, seed=size + 1)
        assert relative_error(program(x, h), cell(x, h)) <= rounding(1, INPUTS + HIDDEN)
