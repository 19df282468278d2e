"""Products and sums over all steps, `product.cu`, `gram.cu` and `bias_gradient.cu`: what they compute."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from enrnn.recurrence import _bias, _gram, _product, _torch
from tests.emulator._chip import Emulated

pytestmark = pytest.mark.usefixtures("in_any_order_too")


def noise(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def near(found: Tensor, exact: Tensor) -> None:
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-5 * float(exact.abs().max()))


@pytest.mark.parametrize(("m", "n", "k"), [(70, 91, 500), (200, 33, 65)])
@pytest.mark.parametrize("flipped", [False, True])
def test_products(m: int, n: int, k: int, flipped: bool, emulated: Emulated) -> None:
    a, b, added = noise(m, k), noise(k, n, seed=1), noise(m, n, seed=2)
    x, y = (each.float().mT.contiguous().mT if flipped else each.float() for each in (a, b))
    near(_product.product(x[9:], y, added.float(), first=x[:9]), added + a @ b)
    near(_product.product(x[:, 9:], y[9:], before=(x[:, :9], y[:9])), a @ b)
    assert emulated.launched.count("product") == 2


def test_pieces_and_sums_of_a_product_wait_for_one_another(emulated: Emulated) -> None:
    """The three kernels overlap."""
    a, b = noise(40, 1500), noise(1500, 50, seed=1)
    with emulated.at_once():
        found = _product.product(a.float(), b.float())
    near(found, a @ b)
    assert emulated.launched == ["split", "product", "collect"]


def test_gram(emulated: Emulated) -> None:
    for K, m, n in [(150, 33, 20), (70, 150, 192)]:
        z, h = noise(K, m), noise(K, n, seed=1)
        near(_gram.gram(z.float(), h.float()), z.mT @ h)
    assert emulated.launched == ["gram", "collect"] * 2


@pytest.mark.parametrize(("K", "early"), [(150, 7), (150, 64), (150, 70), (150, 150), (3, 2)])
def test_gram_of_rows_that_begin_elsewhere(K: int, early: int, emulated: Emulated) -> None:
    """As h_{t−1} does, with the initial state; to where it is wanted."""
    z, h, out = noise(K, 33), noise(K, 20, seed=1), torch.full((33, 20), float("nan"))
    first, later = (torch.full((rows, 23), float("nan")) for rows in (early, K - early))
    first[:, :20], later[:, :20] = h[:early], h[early:]
    found = _gram.gram(z.float(), later[:, :20], first[:, :20], out=out)
    assert found is out
    near(found, z.mT @ h)
    spread = torch.full((33, 21), float("nan"))
    _gram.gram(z.float(), later[:, :20], first[:, :20], out=spread[:, :20])
    assert torch.equal(spread[:, :20], found)
    assert spread[:, 20].isnan().all()


@pytest.mark.parametrize("name", ["modrelu", "paired_modrelu", "tanh"])
def test_gradients_of_biases(name: str, emulated: Emulated) -> None:
    states, grad_z = noise(30, 7, 70), noise(30, 7, 70, seed=1)
    near(_bias.bias_gradient(states.float(), grad_z.float(), name), _torch.bias_gradient(states, grad_z, name))
    assert emulated.launched == ["bias_gradient"] * 2


@pytest.mark.parametrize("rows", [511, 512, 513, 400_000])
def test_the_gradient_of_a_bias_over_many_rows_is_as_exact(rows: int, emulated: Emulated) -> None:
    """All alike and of one sign, so that rounding adds up; none or more of the 32 terms that a thread adds up at a time."""
    states, grad_z = torch.ones(1, rows, 2), torch.full((1, rows, 2), 0.1)
    exact = grad_z.double().sum((0, 1))
    assert float((_bias.bias_gradient(states, grad_z, "modrelu") / exact - 1).abs().max()) < 1e-6
    assert emulated.launched == ["bias_gradient"] * 2
