"""`bake()`: a plain module with the matrices fixed, which exports to ONNX as a scan and runs at any length."""

import itertools
from pathlib import Path

import pytest
import torch
from torch import nn

import enrnn
from tests._record import Recorder


def trained(nonlinearity: str, **settings: object) -> enrnn.ENRNN:
    """A layer away from its start: biases not zero, the switch on."""
    torch.manual_seed(3)
    layer = enrnn.ENRNN(4, 6, nonlinearity=nonlinearity, short_size=3, negative_ones=1, **settings)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
            if "bias" in name:
                parameter.neg_().clamp_(max=0.0)
    layer(torch.randn(2, 1, 4).transpose(0, 1) if layer.batch_first else torch.randn(2, 1, 4))
    return layer.eval()


SHAPES = list(itertools.product((1, 2), (False, True), (False, True)))


@pytest.mark.parametrize("nonlinearity", ["modrelu", "relu", "tanh", "identity"])
@pytest.mark.parametrize(("num_layers", "bidirectional", "batch_first"), SHAPES)
def test_baked_layer_computes_the_same(nonlinearity: str, num_layers: int, bidirectional: bool, batch_first: bool) -> None:
    layer = trained(nonlinearity, num_layers=num_layers, bidirectional=bidirectional, batch_first=batch_first).double()
    baked = layer.bake()
    assert type(baked) is (nn.RNN if nonlinearity in ("relu", "tanh") else enrnn.BakedRNN)
    assert not any(parameter.requires_grad for parameter in baked.parameters())
    x = torch.randn(3, 5, 4).double()
    hx = torch.randn(num_layers * (1 + bidirectional), 3 if batch_first else 5, 6).double()
    for state in (None, hx):
        for ours, plain in zip(layer(x, state), baked(x, state), strict=True):
            torch.testing.assert_close(plain, ours, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("nonlinearity", ["modrelu", "relu", torch.sin])
def test_baked_layer_stays_as_it_was_baked(nonlinearity: str) -> None:
    layer = trained(nonlinearity)
    x = torch.randn(3, 5, 4)
    before = layer(x)[0]
    baked = layer.bake()
    layer.reset_parameters()
    torch.testing.assert_close(baked(x)[0], before, rtol=1e-5, atol=1e-6)


def test_baked_layer_runs_packed_sequences_and_identity_input() -> None:
    torch.manual_seed(0)
    layer = enrnn.ENRNN(6, 6, input_weight="identity", bidirectional=True).eval()
    packed = nn.utils.rnn.pack_sequence([torch.randn(k, 6) for k in (2, 5, 3)], enforce_sorted=False)
    ours, plain = layer(packed), layer.bake()(packed)
    torch.testing.assert_close(plain[0].data, ours[0].data, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(plain[1], ours[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("nonlinearity", ["modrelu", "relu", "tanh", "identity"])
@pytest.mark.parametrize("bias", [True, False])
def test_baked_cell_computes_the_same(nonlinearity: str, bias: bool) -> None:
    torch.manual_seed(1)
    cell = enrnn.ENRNNCell(4, 6, bias, nonlinearity)
    baked = cell.bake()
    assert type(baked) is (nn.RNNCell if nonlinearity in ("relu", "tanh") else enrnn.BakedCell)
    x, h = torch.randn(5, 4), torch.randn(5, 6)
    torch.testing.assert_close(baked(x, h), cell(x, h), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(baked(x[0]), cell(x[0]), rtol=1e-5, atol=1e-6)


def run_onnx(file: Path, *tensors: torch.Tensor) -> list[torch.Tensor]:
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    names = [argument.name for argument in session.get_inputs()]
    feeds = dict(zip(names, [tensor.numpy() for tensor in tensors], strict=True))
    return [torch.from_numpy(array) for array in session.run(None, feeds)]


def other_sizes(layer: enrnn.ENRNN) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Inputs with other lengths and batch sizes than any export below used, and initial states to go with them."""
    states = layer.num_layers * layer.num_directions
    pairs = []
    for length, batch in ((1, 1), (1, 4), (2, 3), (17, 2), (40, 1)):
        x = torch.randn(length, batch, 4)
        pairs.append((x.transpose(0, 1) if layer.batch_first else x, torch.randn(states, batch, 6)))
    return pairs


def assert_right_at_other_sizes(layer: enrnn.ENRNN, file: Path, record: Recorder) -> None:
    for x, hx in other_sizes(layer):
        for ours, theirs in zip(layer(x, hx), run_onnx(file, x, hx), strict=True):
            # Float32 through up to 40 steps and two layers: rounding is relative to the largest states.
            scale = ours.abs().max().item()
            torch.testing.assert_close(theirs, ours, rtol=0, atol=1e-5 * scale)
            record(cases=1, worst_difference=(theirs - ours).abs().max().item() / scale)


@pytest.mark.parametrize(
    ("num_layers", "bidirectional", "batch_first"),
    [(1, False, False), (1, True, True), pytest.param(2, True, False, marks=pytest.mark.slow)],
)
def test_baked_modrelu_in_onnx_runs_at_other_lengths_and_batch_sizes(
    num_layers: int, bidirectional: bool, batch_first: bool, tmp_path: Path, record: Recorder
) -> None:
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    layer = trained("modrelu", num_layers=num_layers, bidirectional=bidirectional, batch_first=batch_first)
    file = tmp_path / "layer.onnx"
    x, hx = torch.randn(5, 3, 4), torch.randn(num_layers * (1 + bidirectional), 5 if batch_first else 3, 6)
    dim = torch.export.Dim.DYNAMIC
    shapes = ({0: dim, 1: dim}, {1: dim})
    torch.onnx.export(layer.bake(), (x, hx), file, dynamo=True, dynamic_shapes=shapes, verbose=False)
    assert "Scan" in {node.op_type for node in onnx.load(str(file)).graph.node}
    assert_right_at_other_sizes(layer, file, record)


# torch's: the exporter is on its way out and says so in several ways, but it is the one that writes torch.nn.RNN as ONNX's
# own RNN operator.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.filterwarnings("ignore:Exporting a model to ONNX with a batch_size other than 1:UserWarning")
@pytest.mark.parametrize("nonlinearity", ["relu", "tanh"])
def test_baked_relu_and_tanh_in_onnx_are_the_rnn_operator(nonlinearity: str, tmp_path: Path, record: Recorder) -> None:
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    layer = trained(nonlinearity, num_layers=2, bidirectional=True)
    file = tmp_path / "layer.onnx"
    torch.onnx.export(
        layer.bake(),
        (torch.randn(5, 3, 4), torch.randn(4, 3, 6)),
        file,
        dynamo=False,
        input_names=["x", "hx"],
        output_names=["output", "h_n"],
        dynamic_axes={"x": {0: "T", 1: "B"}, "hx": {1: "B"}, "output": {0: "T", 1: "B"}, "h_n": {1: "B"}},
    )
    assert "RNN" in {node.op_type for node in onnx.load(str(file)).graph.node}
    assert_right_at_other_sizes(layer, file, record)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("nonlinearity", ["modrelu", "leaky_relu", "identity", torch.sin])
def test_a_baked_layer_exports_as_a_scan_without_any_operator_of_ours(nonlinearity: str, strict: bool) -> None:
    layer = trained(nonlinearity, bidirectional=True)
    dim = torch.export.Dim.DYNAMIC
    program = torch.export.export(layer.bake(), (torch.randn(5, 3, 4),), dynamic_shapes=({0: dim, 1: dim},), strict=strict)
    targets = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert any("scan" in target for target in targets)
    assert not any("enrnn" in target for target in targets)
    x = torch.randn(9, 2, 4)
    for ours, theirs in zip(layer(x), program.module()(x), strict=True):
        torch.testing.assert_close(theirs, ours, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's: tracing is deprecated
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_tracing_a_baked_layer_is_refused_because_it_would_fix_the_length() -> None:
    with pytest.raises(RuntimeError, match=r"would fix the sequence length.*dynamo=True"):
        torch.jit.trace(trained("modrelu").bake(), torch.randn(5, 3, 4))
