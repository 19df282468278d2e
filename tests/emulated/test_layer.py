"""A whole layer step by step, as a user calls it outside of a graph: its matrices are formed by kernels, and looked at once."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

import enrnn
from enrnn import _replay
from enrnn.matrices import EigenvalueNormalized
from enrnn.matrices import _eigenvalue_normalized as normalized
from tests.emulator._chip import Emulated


def steps(layer: enrnn.ENRNN, x: Tensor, many: int) -> list[Tensor]:
    """Outputs and gradients of steps of gradient descent."""
    found = []
    for _ in range(many):
        output, _ = layer(x)
        layer.zero_grad()
        output.square().sum().backward()
        found += [output.detach().clone(), *(each.grad.clone() for each in layer.parameters() if each.grad is not None)]
        with torch.no_grad():
            for each in layer.parameters():
                each.sub_(each.grad, alpha=0.02)  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize(("q", "s"), [(9, 8), (5, 100)])
def test_a_layer_learns_as_in_float64(q: int, s: int, emulated: Emulated) -> None:
    torch.manual_seed(q)
    layer, x = enrnn.ENRNN(3, q + s, short_size=s, nonlinearity="tanh", backend="cuda"), torch.randn(4, 3, 3)
    with torch.no_grad():
        T = layer.parametrizations["weight_short_l0"].original
        T.mul_(2 / torch.linalg.eigvals(T).abs().max())
    exact = copy.deepcopy(layer).double()
    exact.backend, exact.solver = "reference", "dense"
    matrix, reference = (each.parametrizations["weight_short_l0"][0] for each in (layer, exact))
    reference.solver = "dense"
    found, right = steps(layer, x, 5), steps(exact, x.double(), 5)
    assert len(found) == len(right)
    for each, truth in zip(found, right, strict=True):
        torch.testing.assert_close(each.double(), truth, rtol=1e-4, atol=2e-5 * float(truth.abs().max()))
    assert layer.normalizing.all()
    assert exact.normalizing.all()
    assert torch.equal(matrix.nearly_defective, reference.nearly_defective)
    assert float(matrix.radius) == pytest.approx(float(reference.radius), rel=1e-5)
    (known,) = (known for function, known in _replay._known.items() if function.__name__ == "_unseen")
    assert [type(each) for each in known.values()] == [_replay.Program]


@pytest.mark.parametrize("size", [6, 100])
def test_what_is_not_finite_is_said_at_once(size: int, emulated: Emulated) -> None:
    matrix, T = EigenvalueNormalized(), torch.randn(size, size, generator=torch.Generator().manual_seed(0))
    for _ in range(4):
        matrix(T)
    for value in (torch.nan, torch.inf):
        T[1, 2] = value
        with pytest.raises(ValueError, match="not finite"):
            matrix(T)
    T[1, 2] = 0.5
    assert matrix(T).isfinite().all()
    assert not matrix.not_finite


@pytest.mark.parametrize("training", [True, False])
def test_what_is_not_certified_is_found_in_another_way(
    training: bool, emulated: Emulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chip whose fast solver is never sure: what is found otherwise is as right, and counted."""
    emulated.change("out[4] = __longlong_as_double(", "out[4] = __longlong_as_double(0 * (long long)")
    matrix, T = EigenvalueNormalized().train(training), torch.randn(6, 6, generator=torch.Generator().manual_seed(1))
    asked: list[str] = []
    plain = normalized._normalized
    monkeypatch.setattr(normalized, "_normalized", lambda *given: (asked.append(given[-1]), plain(*given))[1])
    W = matrix(T)
    assert asked == ["unseen", "auto"]
    radius = torch.linalg.eigvals(T.double()).abs().max()
    torch.testing.assert_close(W.double(), T.double() / radius, rtol=1e-5, atol=1e-6)
    assert (int(matrix.fallbacks), bool(matrix.normalizing)) == ((1, True) if training else (0, False))
