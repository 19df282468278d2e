"""On a CUDA device a layer computes what it computes on the CPU."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence

import enrnn
from tests._record import Recorder

pytestmark = pytest.mark.gpu


def scattered(**settings: object) -> enrnn.ENRNN:
    """A layer in float64 away from its start, the switch on."""
    torch.manual_seed(0)
    layer = enrnn.ENRNN(5, 40, short_size=24, dtype=torch.float64, **settings)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
            if "bias" in name:
                parameter.neg_().clamp_(max=0.0)
            if "weight_short" in name:
                parameter.mul_(3.0)
    return layer


@pytest.mark.parametrize("nonlinearity", ["modrelu", "relu", "leaky_relu", "tanh"])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_outputs_and_gradients_equal_the_cpu(nonlinearity: str, bidirectional: bool, packed: bool, record: Recorder) -> None:
    here = scattered(backend="torch", nonlinearity=nonlinearity, bidirectional=bidirectional, num_layers=2)
    there = copy.deepcopy(here).cuda()
    if packed:
        x = pack_sequence([torch.randn(length, 5, dtype=torch.float64) for length in (9, 4, 13)], enforce_sorted=False)
        on_cpu, on_gpu = here(x), there(x.to("cuda"))
        pairs = [(on_cpu[0].data, on_gpu[0].data), (on_cpu[1], on_gpu[1])]
    else:
        x = torch.randn(9, 4, 5, dtype=torch.float64)
        on_cpu, on_gpu = here(x), there(x.cuda())
        pairs = list(zip(on_cpu, on_gpu, strict=True))
    for ours, theirs in pairs:
        torch.testing.assert_close(theirs.cpu(), ours, rtol=1e-10, atol=1e-10)
        record(cases=1, worst_difference=(theirs.cpu() - ours).abs().max().item())
    pairs[0][0].square().sum().backward()
    pairs[0][1].square().sum().backward()
    for ours, theirs in zip(here.parameters(), there.parameters(), strict=True):
        torch.testing.assert_close(theirs.grad.cpu(), ours.grad, rtol=1e-8, atol=1e-8)
    assert here.normalizing.all()
    assert there.normalizing.all()
    assert there.normalizing.is_cuda


@pytest.mark.parametrize("method", ["dense", "squaring"])
@pytest.mark.parametrize("size", [1, 3, 33, 64, 200])
def test_spectral_radius_equals_the_cpu(method: str, size: int) -> None:
    matrix = torch.randn(size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(size))
    here, there = enrnn.spectral_radius(matrix, "dense"), enrnn.spectral_radius(matrix.cuda(), method)
    assert there.value.is_cuda
    assert there.certified
    torch.testing.assert_close(there.value.cpu(), here.value, rtol=1e-11, atol=0)
    torch.testing.assert_close(there.eigenvalue.cpu(), here.eigenvalue, rtol=1e-9, atol=1e-9)


def test_a_cell_and_a_baked_layer_run() -> None:
    layer = scattered().float().cuda()
    x = torch.randn(7, 3, 5, device="cuda")
    torch.testing.assert_close(layer.bake()(x)[0], layer(x)[0], rtol=1e-4, atol=1e-4)
    cell = enrnn.ENRNNCell(5, 40, device="cuda")
    assert cell(x[0]).shape == (3, 40)


def test_compiled_training_equals_eager() -> None:
    eager = nn.Sequential(scattered().float()).cuda()
    layer = eager[0]
    compiled_layer = copy.deepcopy(layer)
    compiled = torch.compile(compiled_layer, fullgraph=True)
    x = torch.randn(6, 3, 5, device="cuda")
    layer(x)[0].square().sum().backward()
    compiled(x)[0].square().sum().backward()
    for ours, theirs in zip(layer.parameters(), compiled_layer.parameters(), strict=True):
        torch.testing.assert_close(theirs.grad, ours.grad, rtol=1e-4, atol=1e-4)


def test_autocast_keeps_matrices_and_states_in_float32() -> None:
    layer = scattered().float().cuda()
    x = torch.randn(20, 3, 5, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        output, _ = layer(x)
    assert output.dtype == torch.float32
    assert layer.constraint_error() < 1e-6


def test_moving_a_layer_takes_its_switch_along() -> None:
    layer = scattered(backend="torch")
    layer(torch.randn(2, 1, 5, dtype=torch.float64))
    assert layer.normalizing.all()
    there = layer.to("cuda")
    assert there.normalizing.all()
    there.load_state_dict({name: value.cpu() for name, value in there.state_dict().items()})
    assert there.normalizing.is_cuda
    with pytest.raises(ValueError, match="device"):
        there(torch.randn(2, 1, 5, dtype=torch.float64))


class CapturedTraining:
    """Plain gradient steps of a layer on a fixed batch, captured in a CUDA graph."""

    RATE = 0.01

    def __init__(self, layer: enrnn.ENRNN, x: torch.Tensor) -> None:
        warm = copy.deepcopy(layer)  # libraries allocate on first use, which must not happen during capture
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.step(warm, x)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.step(layer, x)

    @classmethod
    def step(cls, layer: enrnn.ENRNN, x: torch.Tensor) -> None:
        parameters = list(layer.parameters())
        gradients = torch.autograd.grad(layer(x)[0].square().mean(), parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.sub_(cls.RATE * gradient)


@pytest.mark.parametrize("short_size", [24, 40])
def test_a_captured_training_step_equals_an_eager_one(short_size: int, record: Recorder) -> None:
    torch.manual_seed(1)
    eager = enrnn.ENRNN(5, 40, short_size=short_size, device="cuda", dtype=torch.float64, backend="torch")
    with torch.no_grad():
        eager.parametrizations["weight_short_l0"].original.mul_(1.5).add_(
            0.1 * torch.randn(short_size, short_size, device="cuda")
        )
    replayed = copy.deepcopy(eager)
    x = torch.randn(12, 3, 5, device="cuda", dtype=torch.float64)
    captured = CapturedTraining(replayed, x)
    assert not replayed.normalizing.any()
    for _ in range(5):
        captured.graph.replay()
        CapturedTraining.step(eager, x)
    replayed.check()
    assert replayed.normalizing.all()
    for ours, theirs in zip(eager.parameters(), replayed.parameters(), strict=True):
        torch.testing.assert_close(theirs, ours, rtol=1e-9, atol=1e-11)
        record(cases=1, worst_difference=(theirs - ours).abs().max().item())


def test_in_a_graph_what_is_not_finite_or_not_certified_is_flagged() -> None:
    torch.manual_seed(2)
    x = torch.randn(3, 2, 5, device="cuda", dtype=torch.float64)
    for bad, error in (("nan", ValueError), ("tie", RuntimeError)):
        layer = enrnn.ENRNN(5, 40, short_size=40, device="cuda", dtype=torch.float64, backend="torch")
        captured = CapturedTraining(layer, x)
        captured.graph.replay()
        layer.check()
        original = layer.parametrizations["weight_short_l0"].original
        with torch.no_grad():
            if bad == "nan":
                original[3, 4] = torch.nan
            else:  # all eigenvalues on one circle, beyond the unit circle
                original.copy_(1.5 * torch.linalg.qr(torch.randn(40, 40, dtype=torch.float64))[0])
        captured.graph.replay()
        with pytest.raises(error):
            layer.check()
        assert not layer.normalizing.any()
        assert bad == "nan" or torch.isfinite(original).all()


def test_the_dense_solver_refuses_to_be_captured() -> None:
    layer = enrnn.ENRNN(5, 20, device="cuda", solver="dense")
    layer(torch.randn(2, 1, 5, device="cuda"))
    torch.cuda.synchronize()
    with pytest.raises(RuntimeError, match="cannot be captured in a CUDA graph"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        layer._constrained("weight_short_l0")
    assert torch.isfinite(layer(torch.randn(2, 1, 5, device="cuda"))[0]).all()
