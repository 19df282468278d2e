"""The operator behind a layer's way in and a network's way out. (Its kernels: tests/gpu/test_projection.py.)"""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from enrnn.recurrence import _cpu_products, _projection
from enrnn.recurrence._projection import plainly_projected, projected, projection
from enrnn.training import ModelSettings, Network
from enrnn.training._embedding import Embedding
from enrnn.training._model import Head
from tests.training._runs import ADDING

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def given(device: str, weighted: bool, biased: bool) -> list[Tensor | None]:
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(*shape, generator=generator).to(device) for shape in ((7, 5, 3), (4, 3)))
    bias = torch.randn(4 if weighted else 3, generator=generator).to(device)
    return [x, weight if weighted else None, bias if biased else None]


@pytest.fixture(params=["torch", "tiles"])
def products(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the smallest matrices, on a CPU: torch's or ours."""
    monkeypatch.setattr(_cpu_products, "library_is_slow", lambda: request.param == "tiles")
    monkeypatch.setattr(_cpu_products, "LEAST_WORK", 1)
    monkeypatch.setattr(_cpu_products, "LEAST_TALL", 1)
    monkeypatch.setattr(_projection, "MUCH_WORK", 1)
    if request.param == "tiles":
        pytest.importorskip("numba", reason="tiles are compiled by numba")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("weighted", "biased"), [(True, True), (True, False), (False, True)])
@pytest.mark.usefixtures("products")
def test_values_and_all_gradients_that_are_wanted(device: str, weighted: bool, biased: bool) -> None:
    for wanted in itertools.product([False, True], repeat=3):
        results = []
        for function in (projection, plainly_projected):
            tensors = given(device, weighted, biased)
            for each, is_wanted in zip(tensors, wanted, strict=True):
                if each is not None:
                    each.requires_grad_(is_wanted)
            out = function(*tensors)  # type: ignore[operator]
            if out.requires_grad:
                (out * torch.arange(out.numel(), device=device).view_as(out)).sum().backward()
            results.append([out.detach(), *(None if each is None else each.grad for each in tensors)])
        for found, exact in zip(*results, strict=True):
            assert (found is None) == (exact is None)
            if found is not None:
                torch.testing.assert_close(found, exact)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.usefixtures("products")
def test_torch_accepts_the_operator(device: str) -> None:
    x, weight, bias = given(device, True, True)
    assert x is not None
    for each in (x, x.transpose(0, 1), x.clone().requires_grad_()):
        for others in [(weight, bias), (weight, None), (None, torch.ones(3, device=device))]:
            for other in others:
                if other is not None:
                    other.requires_grad_()
            torch.library.opcheck(torch.ops.enrnn.projection.default, (each, *others))


@pytest.mark.parametrize("device", DEVICES)
def test_what_no_gradient_needs_may_change_before_it_and_what_one_needs_may_not(device: str) -> None:
    x, weight, bias = given(device, True, True)
    assert x is not None
    assert weight is not None
    assert bias is not None
    alone = torch.ones(3, device=device, requires_grad=True)
    out = projection(x, None, alone).sum()
    x.add_(1)
    out.backward()
    assert alone.grad is not None
    assert alone.grad.tolist() == [35.0] * 3

    leaf = torch.zeros_like(x).requires_grad_()
    given_x = leaf * 1
    out = projection(given_x, weight, bias.requires_grad_()).sum()
    with torch.no_grad():
        given_x.add_(1)
    out.backward()
    assert leaf.grad is not None
    torch.testing.assert_close(leaf.grad, weight.sum(0).expand_as(leaf))

    out = projection(x, weight.requires_grad_(), None).sum()
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("k", "n"), [(1, 40), (3, 40), (40, 3), (33, 47)])
@pytest.mark.usefixtures("products")
def test_on_a_cpu_a_layers_way_in_is_that_product_in_values_and_gradients(dtype: torch.dtype, k: int, n: int) -> None:
    """Of sequences that come batch first and others, of many rows and few, with a weight that lies by columns."""
    generator = torch.Generator().manual_seed(k)
    for rows in ((300, 5), (5, 300), (2, 1)):
        x, weight, bias = (torch.randn(*shape, dtype=dtype, generator=generator) for shape in ((*rows, k), (n, k), (n,)))
        for given in ((x, weight, bias), (x.transpose(0, 1), weight, None), (x, weight.mT.contiguous().mT, bias)):
            exact = [None if each is None else each.double().requires_grad_() for each in given]
            mine = [None if each is None else each.detach().requires_grad_() for each in given]
            upstream = torch.randn(*given[0].shape[:-1], n, dtype=dtype, generator=generator)
            results = []
            for tensors, function in ((mine, projected), (exact, plainly_projected)):
                out = function(*tensors)  # type: ignore[arg-type]
                wanted = [each for each in tensors if each is not None]
                results.append([out.detach(), *torch.autograd.grad(out, wanted, upstream.to(out.dtype))])
            for found, truth in zip(*results, strict=True):
                rounding = torch.finfo(dtype).eps * 1500**0.5 * float(truth.abs().max())
                assert found.shape == truth.shape
                assert float((found - truth).abs().max()) <= 4 * rounding


@pytest.mark.usefixtures("products")
def test_on_a_cpu_second_derivatives_and_transforms_are_torchs_own() -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(*shape, dtype=torch.float64, generator=generator) for shape in ((7, 5, 3), (4, 3), (4,)))
    leaves = [each.requires_grad_() for each in (x, weight, bias)]
    assert torch.autograd.gradcheck(projected, leaves)
    assert torch.autograd.gradgradcheck(projected, leaves)
    many = torch.func.vmap(lambda each: projected(each, weight, bias))(x)
    torch.testing.assert_close(many, plainly_projected(x, weight, bias))


def test_a_network_on_the_reference_has_torchs_own_ends() -> None:
    data = ADDING.load()
    for backend, head in [("auto", Head), ("reference", torch.nn.Linear)]:
        network = Network(ModelSettings(hidden_size=6, short_size=3, backend=backend), data)
        assert type(network.head) is head
        seen: list[Tensor] = []
        network.head.register_forward_hook(lambda module, given, out: seen.append(out))  # noqa: B023
        outputs, _ = network(torch.randn(12, 4, 2))
        assert seen[0] is outputs


def test_an_embedding_on_a_cpu_is_torchs() -> None:
    embedding, symbols = Embedding(7, 3), torch.tensor([[1, 2], [2, 6]])
    plain = torch.nn.Embedding.from_pretrained(embedding.weight.detach().clone(), freeze=False)
    for each in (embedding, plain):
        each(symbols).square().sum().backward()
    assert embedding.weight.grad is not None
    assert plain.weight.grad is not None
    assert torch.equal(embedding.weight.grad, plain.weight.grad)
