"""Every network as a layer: torch.nn.RNN's interface, its start, its copies, and how it is found by name."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.rnn import pack_padded_sequence

import enrnn
from enrnn import (
    ENRNN,
    EXPRNN,
    IRNN,
    NNRNN,
    ORNN,
    SCORNN,
    SCURNN,
    URNN,
    BakedRNN,
    FullCapacityURNN,
    OrthogonalRNN,
    VorontsovRNN,
)
from enrnn.layers._one_matrix import OneMatrixRNN
from tests.zoo._zoo import NETWORKS, network, orthogonality, train


@pytest.mark.parametrize("name", NETWORKS)
def test_it_computes_what_torchs_rnn_does_with_the_same_weights(name: str) -> None:
    layer = network(name, nonlinearity="tanh", num_layers=2, bidirectional=True, dtype=torch.float64)
    twin = nn.RNN(3, 10, 2, bidirectional=True, dtype=torch.float64)
    with torch.no_grad():
        for k in range(2):
            for direction, end in enumerate(("", "_reverse")):
                getattr(twin, f"weight_hh_l{k}{end}").copy_(layer.recurrent_weight(k, direction))
                getattr(twin, f"weight_ih_l{k}{end}").copy_(getattr(layer, f"weight_ih_l{k}{end}"))
                getattr(twin, f"bias_ih_l{k}{end}").copy_(getattr(layer, f"bias_l{k}{end}"))
                getattr(twin, f"bias_hh_l{k}{end}").zero_()
    x, hx = torch.randn(7, 4, 3, dtype=torch.float64), torch.randn(4, 4, 10, dtype=torch.float64)
    packed = pack_padded_sequence(x, torch.tensor([7, 5, 5, 1]))
    for ours, torchs in zip((*layer(x, hx), layer(packed, hx)[0].data), (*twin(x, hx), twin(packed, hx)[0].data), strict=True):
        assert (ours - torchs).abs().max() <= 1e-12


@pytest.mark.parametrize("name", NETWORKS)
def test_a_state_dict_and_a_copy_are_the_same_network(name: str) -> None:
    layer = network(name)
    train(layer, 8)
    x = torch.randn(6, 2, 3)
    other = network(name, seed=1)
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(x)[0], layer(x)[0])
    twin = copy.deepcopy(layer)
    assert torch.equal(twin(x)[0], layer(x)[0])
    train(twin, 2)
    assert torch.equal(other(x)[0], layer(x)[0])


@pytest.mark.parametrize("name", NETWORKS)
def test_the_matrix_is_as_exact_in_a_module_of_half_precision(name: str) -> None:
    layer = network(name)
    reference = layer.constraint_error()
    y = layer.to(torch.bfloat16)(torch.randn(4, 2, 3, dtype=torch.bfloat16))[0]
    assert y.dtype == torch.bfloat16
    if name in ("VorontsovRNN", "FullCapacityURNN"):  # whose factors themselves are stored
        assert layer.constraint_error() <= 0.05
    else:
        assert layer.constraint_error() <= max(reference, 80 * torch.finfo(torch.float32).eps)


@pytest.mark.parametrize("name", ["EXPRNN", "dtriv", "ORNN", "SpectralRNN", "NNRNN"])
def test_it_can_be_moved_to_another_dtype_and_back(name: str) -> None:
    layer = network(name)
    W = layer.recurrent_weight()
    assert (layer.double().recurrent_weight() - W).abs().max() <= 1e-6
    assert torch.equal(layer.float().recurrent_weight(), W)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_meta_device_and_loading_afterwards(name: str) -> None:
    layer = network(name, device="meta")
    assert all(parameter.is_meta for parameter in layer.parameters())
    real = network(name)
    layer = layer.to_empty(device="cpu")
    layer.load_state_dict(real.state_dict())
    x = torch.randn(4, 2, 3)
    assert torch.equal(layer(x)[0], real(x)[0])


OURS = [name for name in enrnn.networks() if name not in ("rnn", "lstm", "gru")]


@pytest.mark.parametrize("name", OURS)
def test_skip_init_and_loading_afterwards(name: str) -> None:
    kind = enrnn.networks()[name].kind
    layer = nn.utils.skip_init(kind, 3, 6, dtype=torch.float64)
    real = kind(3, 6, dtype=torch.float64)
    layer.load_state_dict(real.state_dict())
    x = torch.randn(4, 2, 3, dtype=torch.float64)
    assert torch.equal(layer(x)[0], real(x)[0])
    assert next(nn.utils.skip_init(kind, 3, 6, device="meta").parameters()).is_meta


def replica_of(module: nn.Module) -> nn.Module:
    """As `torch.nn.parallel.replicate`, which needs GPUs, makes the replicas of `DataParallel`."""
    replica = module._replicate_for_data_parallel()
    for name, parameter in module._parameters.items():
        if parameter is None:
            replica._parameters[name] = None
        else:
            setattr(replica, name, parameter.clone())
    for name, buffer in module._buffers.items():
        setattr(replica, name, None if buffer is None else buffer.clone())
    for name, child in module._modules.items():
        replica._modules[name] = None if child is None else replica_of(child)
    return replica


@pytest.mark.parametrize("name", OURS)
def test_a_replica_of_data_parallel_is_the_same_network(name: str) -> None:
    layer = enrnn.build(name, 3, 6)
    x = torch.randn(4, 2, 3)
    wanted = layer(x)[0]
    replica = replica_of(layer)
    output = replica(x)[0]
    assert not list(replica.parameters())
    assert torch.equal(output, wanted)
    output.sum().backward()
    wanted_gradients = torch.autograd.grad(wanted.sum(), list(layer.parameters()), allow_unused=True)
    for parameter, gradient in zip(layer.parameters(), wanted_gradients, strict=True):
        assert (parameter.grad is None) == (gradient is None)
        assert gradient is None or torch.allclose(parameter.grad, gradient, atol=1e-6)
    with pytest.raises(ValueError, match="dtype"):
        replica(x.double())


def test_replicas_of_a_cell_and_of_a_layer_without_an_input_weight() -> None:
    cell, layer = enrnn.ENRNNCell(3, 6), ENRNN(6, 6, input_weight="identity", bias=False)
    assert torch.equal(replica_of(cell)(torch.ones(2, 3)), cell(torch.ones(2, 3)))
    assert torch.equal(replica_of(layer)(torch.ones(4, 2, 6))[0], layer(torch.ones(4, 2, 6))[0])
    assert replica_of(layer).backend_used == layer.backend_used


@pytest.mark.parametrize("name", ["dtriv", "SpectralRNN"])
def test_it_compiles(name: str) -> None:
    layer = network(name, dtype=torch.float64)
    compiled = torch.compile(layer, fullgraph=True)
    x = torch.randn(4, 2, 3, dtype=torch.float64)
    assert (compiled(x)[0] - layer(x)[0]).abs().max() <= 1e-12
    gradients = []
    for run in (compiled, layer):
        layer.zero_grad()
        run(x)[0].sum().backward()
        gradients.append([parameter.grad.clone() for parameter in layer.parameters()])
    for ours, theirs in zip(*gradients, strict=True):
        assert (ours - theirs).abs().max() <= 1e-10


def test_baked_it_is_torchs_rnn_or_a_plain_layer() -> None:
    x = torch.randn(6, 2, 3)
    for name in NETWORKS:
        layer = network(name)
        if layer.initial_state is not None:
            with pytest.raises(ValueError, match="learn_initial"):
                layer.bake()
            layer = network(name, learn_initial=False)
        baked = layer.bake()
        assert isinstance(baked, nn.RNN if layer.nonlinearity in ("relu", "tanh") else BakedRNN)
        assert (baked(x)[0] - layer(x)[0]).abs().max() <= 1e-6


@pytest.mark.parametrize("backend", ["auto", "torch", "reference"])
def test_ornns_leaky_relu_is_torchs_of_slope_a_tenth(backend: str) -> None:
    """Outputs and gradients of the network by the operator it runs on and by a callable, from the same state dict."""
    layer = network("ORNN", num_layers=2, dtype=torch.float64, backend=backend)
    plain = network("ORNN", num_layers=2, dtype=torch.float64, nonlinearity=lambda z: nn.functional.leaky_relu(z, 0.1), seed=1)
    plain.load_state_dict(layer.state_dict())
    assert layer.backend_used == network("SCORNN", backend=backend).backend_used
    assert "nonlinearity='leaky_relu'" in repr(layer)
    x, answers = torch.randn(7, 4, 3, dtype=torch.float64), []
    for each in (layer, plain):
        output = each(x)[0]
        output.square().sum().backward()
        answers.append([output.detach(), *(parameter.grad for parameter in each.parameters())])
    assert (answers[0][0] < 0).any()
    for found, exact in zip(*answers, strict=True):
        torch.testing.assert_close(found, exact)


@pytest.mark.parametrize("kind", [ORNN, VorontsovRNN, SCURNN, URNN, FullCapacityURNN])
def test_the_state_to_start_from_is_learned(kind: type[OneMatrixRNN]) -> None:
    torch.manual_seed(0)
    layer = kind(3, 10, 2, bidirectional=True)
    with torch.no_grad():
        layer.initial_state.normal_()
    x = torch.randn(5, 4, 3)
    given = layer.initial_state.unsqueeze(1).expand(-1, 4, -1)
    assert torch.equal(layer(x)[0], layer(x, given)[0])
    assert not torch.equal(layer(x)[0], layer(x, torch.zeros(4, 4, 10))[0])
    layer(x)[0].sum().backward()
    assert layer.initial_state.grad.abs().min() > 0
    assert kind(3, 10, learn_initial=False).initial_state is None


def test_where_they_start() -> None:
    torch.manual_seed(0)
    n = 400
    scornn = SCORNN(2, n)
    assert scornn.weight_ih_l0.abs().max() <= 0.01
    assert not scornn.bias_l0.any()
    assert torch.linalg.slogdet(scornn.recurrent_weight()).sign == (-1) ** (n // 2)
    assert scornn.negative_ones == 200
    for layer in (EXPRNN(50, n), NNRNN(50, n)):
        assert layer.weight_ih_l0.std().item() == pytest.approx(math.sqrt(2 / 50), rel=0.05)
        assert 0.005 < layer.bias_l0.abs().max() <= 0.01
    angles = torch.linalg.eigvals(EXPRNN(2, n).recurrent_weight().detach().double()).angle()
    assert (angles.abs().quantile(torch.tensor([0.25, 0.5, 0.75], dtype=angles.dtype)) / math.pi).tolist() == pytest.approx(
        [0.25, 0.5, 0.75], abs=0.1
    )
    dtriv = EXPRNN(2, n, rebase_every=10)
    assert not dtriv._originals("weight_hh_l0")[0].any()
    assert orthogonality(dtriv.recurrent_weight()) <= 1e-5
    ornn = ORNN(2, n)
    assert 0.9 * math.sqrt(3 / (2 * n)) < ornn.initial_state.abs().max() <= math.sqrt(3 / (2 * n))
    for kind in (ORNN, VorontsovRNN, OrthogonalRNN, enrnn.SpectralRNN):
        bound = math.sqrt(6 / (2 + n))
        assert 0.9 * bound < kind(2, n).weight_ih_l0.abs().max() <= bound
    for singular in (enrnn.SpectralRNN(2, 40), VorontsovRNN(2, 40), NNRNN(2, 40)):
        assert orthogonality(singular.recurrent_weight()) <= 1e-5  # σ = 1 and γ = 1
    irnn = IRNN(2, n)
    assert torch.equal(irnn.weight_hh_l0, torch.eye(n))
    assert irnn.weight_ih_l0.std().item() == pytest.approx(0.001, rel=0.1)
    henaff = OrthogonalRNN(2, n)
    assert isinstance(henaff.weight_hh_l0, nn.Parameter)
    assert orthogonality(henaff.weight_hh_l0) <= 1e-5


@pytest.mark.parametrize("name", ["SCORNN", "SpectralRNN", "NNRNN"])
def test_the_constraint_can_be_taken_off(name: str) -> None:
    layer = network(name)
    W, free = layer.recurrent_weight().detach().clone(), layer.num_free_parameters()
    parametrize.remove_parametrizations(layer, "weight_hh_l0")
    assert torch.equal(layer.recurrent_weight(), W)
    assert isinstance(layer.weight_hh_l0, nn.Parameter)
    assert layer.num_free_parameters() >= free
    assert layer.matrices() == {}
    assert layer.penalty() == 0


def test_resetting_draws_anew_and_forgets_the_state() -> None:
    layer = network("dtriv")
    train(layer, 10)
    (matrix,) = layer.matrices().values()
    W = layer.recurrent_weight().detach().clone()
    layer.reset_parameters()
    assert int(matrix.steps) == 0
    assert (layer.recurrent_weight() - W).abs().max() > 0.1


def test_the_rates_of_two_groups() -> None:
    for name, slow in {"SCORNN": 1, "NNRNN": 1, "VorontsovRNN": 2, "SpectralRNN": 0, "IRNN": 0}.items():
        layer = network(name)
        groups = layer.parameter_groups(1e-3, 1e-4)
        assert sum(len(group["params"]) for group in groups) == len(list(layer.parameters()))
        assert sum(len(group["params"]) for group in groups if group["lr"] == 1e-4) == slow


def test_networks_are_found_by_name() -> None:
    found = enrnn.networks()
    assert {"enrnn", "scornn", "exprnn", "ornn", "spectral_rnn", "vorontsov", "nnrnn", "irnn", "orthogonal"} <= found.keys()
    assert {"scurnn", "urnn", "full_capacity_urnn", "cgrnn"} <= found.keys()
    assert {"lstm", "gru", "rnn"} <= found.keys()
    for name, entry in found.items():
        layer = enrnn.build(name, 3, 6, batch_first=True)
        assert type(layer).__name__.removeprefix("Parametrized") == entry.kind.__name__
        assert layer(torch.randn(2, 5, 3))[0].shape == (2, 5, 6)
        assert entry.description
        assert any(character.isdigit() for character in entry.reference)
        assert enrnn.citation(name).startswith("@")
    found.clear()
    assert enrnn.networks()


def test_options_go_to_the_network() -> None:
    layer = enrnn.build("exprnn", 3, 6, rebase_every=5, num_layers=2)
    assert layer.num_layers == 2
    assert layer.matrices()["weight_hh_l1"].rebase_every == 5
    lstm = enrnn.build("lstm", 3, 6, num_layers=2, forget_bias=-2.0)
    for k in range(2):
        total = getattr(lstm, f"bias_ih_l{k}") + getattr(lstm, f"bias_hh_l{k}")
        assert total[6:12].tolist() == [-2.0] * 6
        assert total[:6].abs().max() > 0
    with pytest.raises(ValueError, match="forget_bias"):
        enrnn.build("lstm", 3, 6, bias=False, forget_bias=1.0)


def test_a_wrong_name_is_answered_with_the_right_one() -> None:
    with pytest.raises(ValueError, match="unknown network 'exprn'; did you mean exprnn"):
        enrnn.build("exprn", 3, 6)
    with pytest.raises(ValueError, match="did you mean scornn"):
        enrnn.build("scoRNN", 3, 6)
    with pytest.raises(ValueError, match="there are: enrnn, scornn"):
        enrnn.build("transformer", 3, 6)
    with pytest.raises(TypeError, match="name should be a string"):
        enrnn.build(3, 3, 6)
    with pytest.raises(TypeError, match=r"scornn.*'scoRNN'"):
        enrnn.citation("scoRNN")


def test_a_composition_is_cited_whole() -> None:
    def keys(*objects: nn.Module | str) -> set[str]:
        return {line.split("{")[1].rstrip(",") for line in enrnn.citation(*objects).splitlines() if line.startswith("@")}

    modrelu = "arjovsky2016unitary"
    assert keys("exprnn") == {"lezcano2019cheap", "lezcano2019trivializations"}
    assert keys(EXPRNN(2, 4)) == {"lezcano2019cheap", modrelu}
    assert keys(EXPRNN(2, 4, rebase_every=2)) == {"lezcano2019cheap", "lezcano2019trivializations", modrelu}
    assert keys(ORNN(2, 4)) == {"mhammedi2017efficient"}
    assert keys(ENRNN(2, 4, long="householder", short="spectral_norm", nonlinearity="relu")) == {
        "mhammedi2017efficient",
        "miyato2018spectral",
    }
    assert keys(nn.Sequential(NNRNN(2, 4)), "irnn") == {"kerg2019nonnormal", modrelu, "le2015simple"}
    assert keys(OrthogonalRNN(2, 4)) == {"henaff2016recurrent"}
    assert keys(nn.LSTM(2, 4)) == set()
