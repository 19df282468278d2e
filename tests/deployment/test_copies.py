"""A copy, a saved state and a layer built without memory behave as the layer they came from, and share nothing with it."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from enrnn import ENRNN, ENRNNCell
from tests.conformance._errors import assert_unchanged, snapshot
from tests.conformance._layers import scatter_, short_matrices

Settings = dict[str, Any]

LAYERS = [
    pytest.param({}, id="plain"),
    pytest.param({"num_layers": 2, "bidirectional": True}, id="stacked both ways"),
    pytest.param({"short_size": 0}, id="long only"),
    pytest.param({"short_size": 6}, id="short only"),
    pytest.param({"bias": False, "coupling": False, "epsilon": 0.1}, id="bare"),
    pytest.param({"input_weight": "identity"}, id="identity input"),
    pytest.param({"dtype": torch.float64}, id="float64"),
    pytest.param({"dtype": torch.bfloat16}, id="bfloat16"),
]


def layer_with(settings: Settings, seed: int = 0) -> ENRNN:
    torch.manual_seed(seed)
    return ENRNN(6, 6, **settings)


def sequence(layer: nn.Module, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(5, 4, 6, generator=generator).to(next(layer.parameters()).dtype)


def train_(layer: ENRNN, steps: int = 3) -> None:
    """Some steps of SGD from a random start, the switch on from the first and λ defective in the second."""
    scatter_(layer)
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.01, momentum=0.9)
    for step in range(steps):
        if step == 1:
            with torch.no_grad():
                for T in short_matrices(layer):  # ρ(T) = 2 is a double eigenvalue with one eigenvector alone
                    T.copy_(torch.eye(T.shape[0]))
                    T[:2, :2] = torch.tensor([[2.0, 1.0], [0.0, 2.0]])
        optimiser.zero_grad()
        output, final = layer(sequence(layer, step))
        (output.float().square().mean() + final.float().square().mean()).backward()
        optimiser.step()
    if layer.short_size:
        assert layer.normalizing.all()
        assert layer.nearly_defective.all()


def assert_same_function(layer: ENRNN, other: ENRNN) -> None:
    """Bit for bit: the same outputs, gradients and buffers in training mode, and the same outputs afterwards."""
    x = sequence(layer)
    results = []
    for module in (layer, other):
        module.train()
        module.zero_grad()
        output, final = module(x)
        (output.square().sum() + final.sum()).backward()
        gradients = [parameter.grad for parameter in module.parameters()]
        results.append([output, final, *gradients, *module.buffers(), module.eval()(x)[0], module.train()(x)[0]])
    assert len(results[0]) == len(results[1])
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


@pytest.mark.parametrize("settings", LAYERS)
@pytest.mark.parametrize("trained", [False, True], ids=["new", "trained"])
def test_a_deep_copy_does_the_same_and_shares_nothing(settings: Settings, trained: bool) -> None:
    layer = layer_with(settings)
    if trained:
        train_(layer)
    twin = copy.deepcopy(layer)
    assert isinstance(twin, ENRNN)
    assert_same_function(copy.deepcopy(layer), copy.deepcopy(twin))

    layer.zero_grad()
    before = snapshot(layer)
    storages = {tensor.data_ptr() for tensor in [*layer.parameters(), *layer.buffers()]}
    assert storages.isdisjoint(tensor.data_ptr() for tensor in [*twin.parameters(), *twin.buffers()])
    with torch.no_grad():
        for tensor in [*twin.parameters(), *twin.buffers()]:
            tensor.add_(1) if tensor.dtype != torch.bool else tensor.logical_not_()
    assert_unchanged(layer, before)


def test_training_a_copy_leaves_the_original_and_its_switch_alone() -> None:
    layer = layer_with({})
    before = snapshot(layer)
    twin = copy.deepcopy(layer)
    train_(twin)
    assert_unchanged(layer, before)
    assert not layer.normalizing.any()


def test_a_cell_can_be_copied_too() -> None:
    cell = ENRNNCell(6, 6)
    twin = copy.deepcopy(cell)
    x = torch.randn(4, 6)
    assert torch.equal(cell(x), twin(x))
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(1)
    assert not torch.equal(cell(x), twin(x))


def through_memory(state: dict[str, Tensor]) -> dict[str, Tensor]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("settings", LAYERS)
@pytest.mark.parametrize("passed_on", [lambda state: state, through_memory], ids=["in memory", "through a file"])
def test_a_state_dict_restores_everything_bit_for_bit(
    settings: Settings, passed_on: Callable[[dict[str, Tensor]], dict[str, Tensor]]
) -> None:
    layer = layer_with(settings)
    train_(layer)
    other = layer_with(settings, seed=1)
    assert not torch.equal(layer(sequence(layer))[0], other(sequence(layer))[0])
    other = layer_with(settings, seed=1)
    missing, unexpected = other.load_state_dict(passed_on(layer.state_dict()), strict=True)
    assert not missing
    assert not unexpected
    if layer.short_size:
        assert other.normalizing.all()
        assert torch.equal(other.nearly_defective, layer.nearly_defective)
    assert other.state_dict().keys() == layer.state_dict().keys()
    assert_same_function(layer, other)


def test_the_switch_decides_what_a_loaded_layer_computes() -> None:
    """With ρ(T) < 1 the parameters alone do not say whether T is divided by it: without the switch the outputs differ."""
    layer = layer_with({})
    scatter_(layer)
    layer(sequence(layer))
    scatter_(layer, radius=0.5)
    state = layer.state_dict()
    without = {name: tensor & False if name.endswith("normalizing") else tensor for name, tensor in state.items()}
    outputs = []
    for loaded in (state, without):
        other = layer_with({}, seed=1).eval()
        other.load_state_dict(loaded)
        outputs.append(other(sequence(layer))[0])
    assert torch.equal(outputs[0], layer.eval()(sequence(layer))[0])
    assert not torch.equal(outputs[0], outputs[1])


def test_a_state_dict_of_another_shape_is_refused() -> None:
    state = layer_with({}).state_dict()
    with pytest.raises(RuntimeError, match="size mismatch"):
        layer_with({"short_size": 3}).load_state_dict(state)
    with pytest.raises(RuntimeError, match="Missing key"):
        layer_with({"num_layers": 2}).load_state_dict(state)


def poison_(module: nn.Module) -> None:
    """What uninitialised memory may hold at worst."""
    with torch.no_grad():
        for tensor in [*module.parameters(), *module.buffers()]:
            if tensor.dtype.is_floating_point:
                tensor.fill_(float("nan"))
            else:
                tensor.fill_(True if tensor.dtype == torch.bool else -(2**40))


@pytest.mark.parametrize("settings", LAYERS)
def test_a_layer_on_meta_takes_no_memory_and_runs_after_to_empty_and_reset(settings: Settings) -> None:
    layer = ENRNN(6, 6, device="meta", **settings)
    assert {tensor.device.type for tensor in [*layer.parameters(), *layer.buffers()]} == {"meta"}
    layer.to_empty(device="cpu")
    poison_(layer)
    torch.manual_seed(3)
    layer.reset_parameters()
    torch.manual_seed(3)
    expected = layer_with(settings)
    torch.manual_seed(3)
    expected.reset_parameters()
    layer.check()
    assert_same_function(layer, expected)


@pytest.mark.parametrize(
    "settings", [{}, {"num_layers": 2, "bidirectional": True, "batch_first": True}], ids=["plain", "stacked"]
)
def test_a_layer_on_meta_says_the_shapes_that_it_would_give_as_nn_rnn_does(settings: Settings) -> None:
    x = torch.empty(5, 4, 3, device="meta")
    expected = nn.RNN(3, 8, device="meta", **settings)(x)
    for given, wanted in zip(ENRNN(3, 8, device="meta", **settings)(x), expected, strict=True):
        assert given.device.type == "meta"
        assert given.shape == wanted.shape


@pytest.mark.parametrize("settings", LAYERS)
def test_skip_init_and_a_state_dict_make_a_whole_layer(settings: Settings) -> None:
    layer = layer_with(settings)
    train_(layer)
    other = nn.utils.skip_init(ENRNN, 6, 6, **settings)
    poison_(other)  # `skip_init` leaves memory as it finds it
    other.load_state_dict(layer.state_dict(), strict=True)
    other.check()
    assert_same_function(layer, other)


@pytest.mark.parametrize("settings", LAYERS)
def test_a_layer_on_meta_can_be_given_its_tensors(settings: Settings) -> None:
    layer = layer_with(settings)
    train_(layer)
    other = ENRNN(6, 6, device="meta", **settings)
    other.load_state_dict(copy.deepcopy(layer.state_dict()), strict=True, assign=True)
    assert {tensor.device.type for tensor in [*other.parameters(), *other.buffers()]} == {"cpu"}
    other.check()
    assert_same_function(layer, other)


def test_a_layer_moves_to_another_dtype_as_a_whole() -> None:
    layer = layer_with({"num_layers": 2, "bidirectional": True}).double()
    assert {parameter.dtype for parameter in layer.parameters()} == {torch.float64}
    output, final = layer(sequence(layer))
    assert output.dtype == final.dtype == torch.float64
    assert layer.normalizing.dtype == torch.bool
    assert layer.nearly_defective.dtype == torch.int64
    assert layer.constraint_error() <= 8 * 4 * torch.finfo(torch.float64).eps


def test_loading_restores_the_identity_input_and_leaves_a_users_buffers_alone() -> None:
    layer = layer_with({"input_weight": "identity"})
    layer.register_buffer("mean", torch.arange(6.0))
    state = layer.state_dict()
    layer.weight_ih_l0.fill_(7)
    layer.load_state_dict(state)
    assert torch.equal(layer.weight_ih_l0, torch.eye(6))
    assert torch.equal(layer.mean, torch.arange(6.0))
    layer.register_buffer("scale", torch.full((3,), 2.0), persistent=False)
    layer.load_state_dict(state)
    assert torch.equal(layer.scale, torch.full((3,), 2.0))


@pytest.mark.parametrize("short", ["normalized", "spectral_norm"])
def test_a_layer_loaded_in_inference_mode_is_trained_afterwards(short: str) -> None:
    layer = ENRNN(3, 6, short=short)
    with torch.inference_mode():
        layer.load_state_dict(layer.state_dict())
    layer(torch.randn(4, 2, 3))[0].sum().backward()
    assert not any(buffer.is_inference() for buffer in layer.buffers())


def test_an_identity_input_loaded_in_inference_mode_can_be_written_to_afterwards() -> None:
    layer = layer_with({"input_weight": "identity"})
    kept = layer.weight_ih_l0
    with torch.inference_mode():
        layer.load_state_dict(layer.state_dict())
    assert not layer.weight_ih_l0.is_inference()
    assert layer.weight_ih_l0 is kept
