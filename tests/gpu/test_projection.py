"""The way in and the way out by kernels, against torch's operations in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import enrnn
from enrnn.recurrence import _bias
from enrnn.recurrence._projection import plainly_projected, projected
from enrnn.training._embedding import Embedding
from tests._record import Recorder

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.usefixtures("kernels", "exact_library"),
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS:UserWarning"),  # the first on a thread of autograd's
]

# Steps, sequences, and what goes in and comes out: the adding problem, copying, speech, its head, the head of the PTB, odd ones.
SIZES = [(750, 50, 2, 160), (2020, 20, 10, 192), (490, 28, 129, 468), (490, 28, 468, 129), (50, 32, 1030, 50), (611, 17, 3, 131)]


def differentiated(
    function: object, x: Tensor, weight: Tensor | None, bias: Tensor | None, upstream: Tensor
) -> dict[str, Tensor]:
    given = {"x": x, "weight": weight, "bias": bias}
    leaves = {name: each.detach().clone().requires_grad_() for name, each in given.items() if each is not None}
    out = function(leaves["x"], leaves.get("weight"), leaves.get("bias"))  # type: ignore[operator]
    out.backward(upstream)
    return {"out": out.detach(), **{name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("with_bias", [False, True])
def test_values_and_gradients(size: tuple[int, int, int, int], with_bias: bool, record: Recorder) -> None:
    T, B, k, n = size
    generator = torch.Generator("cuda").manual_seed(n)
    shapes = {"x": (T, B, k), "weight": (n, k), "bias": (n,), "upstream": (T, B, n)}
    drawn = {name: torch.randn(*shape, device="cuda", generator=generator) for name, shape in shapes.items()}
    arguments = [drawn["x"], drawn["weight"], drawn["bias"] if with_bias else None, drawn["upstream"]]
    exact = differentiated(plainly_projected, *(None if each is None else each.double() for each in arguments))  # type: ignore[arg-type]
    plain, found = differentiated(plainly_projected, *arguments), differentiated(projected, *arguments)  # type: ignore[arg-type]
    for name, right in exact.items():
        own = torch.linalg.vector_norm(plain[name] - right) / torch.linalg.vector_norm(right)
        error = torch.linalg.vector_norm(found[name] - right) / torch.linalg.vector_norm(right)
        record(cases=1, **{f"worst_{name}": error.item()})
        assert error <= max(2 * own.item(), 3e-7), name


def test_a_bias_alone_and_gradients_that_lie_in_any_way() -> None:
    x, bias = torch.randn(40, 33, 71, device="cuda"), torch.randn(71, device="cuda", requires_grad=True)
    projected(x, None, bias).sum().backward()  # a gradient whose strides are zero
    assert bias.grad is not None
    torch.testing.assert_close(bias.grad, torch.full_like(bias, 40 * 33))
    bias.grad = None
    upstream = torch.randn(71, 33, 40, device="cuda").permute(2, 1, 0)
    out = projected(x, None, bias)
    assert torch.equal(out, x + bias)
    out.backward(upstream)
    torch.testing.assert_close(bias.grad, upstream.sum((0, 1)), rtol=1e-4, atol=1e-4)


def test_it_can_be_differentiated_again() -> None:
    x = torch.randn(9000, 3, 2, device="cuda", requires_grad=True)
    weight, bias = torch.randn(5, 2, device="cuda", requires_grad=True), torch.randn(5, device="cuda", requires_grad=True)
    second = []
    for function in (projected, plainly_projected):
        (first,) = torch.autograd.grad(function(x, weight, bias).square().sum(), x, create_graph=True)
        second.append(torch.autograd.grad(first.square().sum(), weight)[0])
    torch.testing.assert_close(*second)


def test_a_graph_that_was_not_warmed_up_at_its_size_is_captured_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_bias, "_kernels", {})
    x, bias = torch.randn(40, 33, 71, device="cuda"), torch.randn(71, device="cuda", requires_grad=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        projected(x, None, bias).sum().backward()
    graph.replay()
    assert bias.grad is not None
    torch.testing.assert_close(bias.grad, torch.full_like(bias, 40 * 33))


def test_a_layer_on_the_reference_is_projected_by_torch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr("enrnn.layers._module.projected", lambda *given: calls.append(given) or plainly_projected(*given))
    for backend in ("auto", "reference"):
        enrnn.ENRNN(2, 20, backend=backend, device="cuda")(torch.randn(5, 3, 2, device="cuda"))
    assert len(calls) == 1


@pytest.mark.parametrize("width", [1, 31, 128, 1030])
@pytest.mark.parametrize("shape", [(1,), (50, 32), (7, 3), (2049,)])
def test_the_gradient_of_an_embedding(shape: tuple[int, ...], width: int) -> None:
    """Symbols that are rare, that are not there, and one that is most of them."""
    generator = torch.Generator("cuda").manual_seed(width)
    symbols = torch.randint(0, 49, shape, device="cuda", generator=generator)
    symbols = torch.where(torch.rand(shape, device="cuda", generator=generator) < 0.5, 3, symbols)
    embedding = Embedding(50, width, device="cuda")
    upstream = torch.randn(*shape, width, device="cuda", generator=generator)
    rows = embedding(symbols)
    assert torch.equal(rows, F.embedding(symbols, embedding.weight))
    found = [torch.autograd.grad(rows, embedding.weight, upstream, retain_graph=True)[0] for _ in range(2)]
    assert torch.equal(*found)
    exact = torch.zeros(50, width, dtype=torch.float64, device="cuda")
    exact.index_add_(0, symbols.flatten(), upstream.flatten(0, -2).double())
    torch.testing.assert_close(found[0].double(), exact, rtol=1e-5, atol=1e-4)
    strided = torch.autograd.grad(rows, embedding.weight, upstream.mT.contiguous().mT)[0]
    assert torch.equal(strided, found[0])
    gaps = torch.stack([symbols, torch.full_like(symbols, 49)], dim=-1)[..., 0]
    assert torch.equal(torch.autograd.grad(embedding(gaps), embedding.weight, upstream)[0], found[0])


def test_a_large_vocabulary_and_second_derivatives_of_an_embedding() -> None:
    embedding, symbols = Embedding(70_000, 5, device="cuda"), torch.tensor([3, 69_999, 3], device="cuda")
    (first,) = torch.autograd.grad(embedding(symbols).square().sum(), embedding.weight)
    assert torch.equal(first.nonzero()[:, 0].unique(), torch.tensor([3, 69_999], device="cuda"))
    (again,) = torch.autograd.grad(embedding(symbols).square().sum(), embedding.weight, create_graph=True)
    torch.testing.assert_close(again, first)
    (second,) = torch.autograd.grad(again.sum(), embedding.weight)
    assert second[3].tolist() == [4.0] * 5
