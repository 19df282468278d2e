"""The fused recurrence is the reference: in outputs, and in the gradient of everything."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import assume, given
from hypothesis.strategies import DrawFn, booleans, composite, integers, sampled_from
from torch import Tensor

from enrnn.functional import long_short_recurrence, recurrence
from enrnn.recurrence.reference import block_matrix
from tests._record import Recorder

NAMES = ("inputs", "long", "coupling", "short", "bias", "initial")


@dataclass(frozen=True)
class Problem:
    """What a recurrence is run on, in float64: parts by name (None where missing), and the gradient of the states."""

    parts: dict[str, Tensor | None]
    nonlinearity: str
    lengths: Tensor | None
    upstream: Tensor

    def run(self, backend: str, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
        """The states, and the gradient of each part."""
        parts = {name: None if part is None else part.to(dtype).clone().requires_grad_() for name, part in self.parts.items()}
        states = long_short_recurrence(*(parts[name] for name in NAMES), self.nonlinearity, lengths=self.lengths, backend=backend)
        given = {name: part for name, part in parts.items() if part is not None}
        gradients = torch.autograd.grad(states, list(given.values()), self.upstream.to(dtype))
        return {"states": states.detach(), **dict(zip(given, gradients, strict=True))}

    def margin(self, states: Tensor) -> float:
        """How far the arguments of σ stay from its kinks."""
        parts = self.parts
        W = block_matrix(parts["long"], parts["coupling"], parts["short"])
        initial, inputs, bias = parts["initial"], parts["inputs"], parts["bias"]
        assert initial is not None
        assert inputs is not None
        previous = torch.cat([initial.unsqueeze(0), states[:-1]])
        z = inputs + previous @ W.mT
        if self.nonlinearity == "relu":
            to_kink = z if bias is None else z + bias
        elif self.nonlinearity == "modrelu" and bias is not None:
            to_kink = torch.stack([z.abs() + bias, z])
        else:
            return float("inf")
        # What is exactly zero is so in every precision.
        nonzero = to_kink[to_kink != 0].abs()
        return float(nonzero.min()) if nonzero.numel() else float("inf")


@composite
def problems(draw: DrawFn) -> Problem:
    """Sizes from 1, sequences from one step and one sequence, ends of the sequence included; ‖W_L‖, ‖W_S‖, ‖W_C‖ ≤ 1."""
    steps, batch = draw(integers(1, 9)), draw(integers(1, 4))
    long, short = draw(integers(0, 9)), draw(integers(0, 9))
    long = long or int(short == 0)
    generator = torch.Generator().manual_seed(draw(integers(0, 2**32 - 1)))

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=generator)

    def contraction(rows: int, columns: int) -> Tensor | None:
        if not rows or not columns:
            return None
        matrix = normal(rows, columns)
        return matrix / torch.linalg.matrix_norm(matrix, 2)

    size = long + short
    parts = {
        "inputs": normal(steps, batch, size),
        "long": contraction(long, long),
        "coupling": contraction(long, short) if draw(booleans()) else None,
        "short": contraction(short, short),
        "bias": normal(size) / 4 if draw(booleans()) else None,
        "initial": normal(batch, size) if draw(booleans()) else torch.zeros(batch, size, dtype=torch.float64),
    }
    if draw(booleans()):
        # Steps at which nothing comes in: states that are exactly zero.
        parts["inputs"][: draw(integers(0, steps))] = 0.0
    ends = [draw(integers(0, steps)) for _ in range(batch)]
    lengths = torch.tensor(ends) if draw(booleans()) else None
    nonlinearity = draw(sampled_from(["modrelu", "relu", "tanh", "identity"]))
    return Problem(parts, nonlinearity, lengths, normal(steps, batch, size))


def scale(problem: Problem, found: dict[str, Tensor]) -> dict[str, float]:
    """The size of what is added up in each result. The recurrence is a contraction apart from W_C, by way of which h_S
    enters h_L once; so states, and gradients with respect to them, are bounded by sums over the steps."""
    inputs, initial = problem.parts["inputs"], problem.parts["initial"]
    assert inputs is not None
    assert initial is not None
    bias = problem.parts["bias"]
    steps, batch, _ = inputs.shape
    per_step = torch.linalg.vector_norm(inputs, dim=-1).max() + (0 if bias is None else torch.linalg.norm(bias))
    state = (1 + steps) * (torch.linalg.vector_norm(initial, dim=-1).max() + steps * per_step)
    gradient = (1 + steps) * steps * torch.linalg.vector_norm(problem.upstream, dim=-1).max()
    # tanh's slope 1 − h² passes the error of a state on to the gradient.
    gradient = gradient * (1 + state)
    weight = steps * batch * gradient * state
    sizes = dict.fromkeys(("long", "coupling", "short"), weight)
    sizes |= {"states": state, "inputs": gradient, "initial": gradient, "bias": steps * batch * gradient}
    return {name: float(sizes[name]) for name in found}


@given(problem=problems())
def test_the_fused_operator_equals_the_reference(record: Recorder, problem: Problem) -> None:
    fused, expected = problem.run("auto"), problem.run("reference")
    assert fused.keys() == expected.keys()
    sizes = scale(problem, expected)
    size = problem.upstream.shape[-1]
    for name, found in fused.items():
        error = float((found - expected[name]).abs().max())
        # Sums of `size` products in another order, at every step.
        bound = 4 * (size + 2) * torch.finfo(torch.float64).eps * sizes[name]
        record(cases=1, worst_error_over_scale=error / sizes[name] if error else 0.0)
        assert error <= bound, name


def summands(problem: Problem, exact: dict[str, Tensor]) -> dict[str, float]:
    """The largest sum of moduli behind an entry of each result: what it may lose digits of by cancellation."""
    inputs, initial, bias = (problem.parts[name] for name in ("inputs", "initial", "bias"))
    assert inputs is not None
    assert initial is not None
    dz = exact["inputs"].abs()
    previous = torch.cat([initial.unsqueeze(0), exact["states"]])[:-1].abs()
    weight = dz.flatten(0, 1).mT @ previous.flatten(0, 1)
    gradient = problem.upstream.abs().max() + dz.max()
    state = inputs.abs().max() + previous.max() + (0 if bias is None else bias.abs().max())
    sizes = dict.fromkeys(("long", "coupling", "short"), weight.max())
    sizes |= {"states": state, "inputs": gradient, "initial": gradient, "bias": dz.sum((0, 1)).max()}
    return {name: float(sizes[name]) for name in exact}


@given(problem=problems())
def test_in_float32_it_is_as_accurate_as_the_reference(record: Recorder, problem: Problem) -> None:
    exact = problem.run("reference")
    # A state on the other side of a kink is another derivative, not a rounding error.
    assume(problem.margin(exact["states"]) > 1e-4)
    sizes = summands(problem, exact)
    steps, _, size = problem.upstream.shape
    fused, reference = problem.run("auto", torch.float32), problem.run("reference", torch.float32)
    for name, truth in exact.items():
        error, own = (float((found[name] - truth).abs().max()) for found in (fused, reference))
        # The reference may be exact by luck; the other then is off by the rounding of what is added up.
        floor = (size + steps) * torch.finfo(torch.float32).eps * sizes[name]
        record(cases=1, worst_ratio=error / (own + floor) if error else 0.0)
        assert error <= 4 * own + floor, name


@pytest.mark.parametrize("nonlinearity", ["modrelu", "relu", "tanh", "identity"])
@pytest.mark.parametrize("bias", [False, True])
def test_a_state_that_is_exactly_zero_has_the_derivative_of_the_reference(nonlinearity: str, bias: bool) -> None:
    """Nothing has come in yet: the state is zero, and how σ is differentiated there decides whether anything is learned."""
    gradients = {}
    for backend in ("auto", "reference"):
        inputs = torch.zeros(3, 2, 4, dtype=torch.float64, requires_grad=True)
        weight = torch.eye(4, dtype=torch.float64)
        threshold = torch.zeros(4, dtype=torch.float64, requires_grad=True) if bias else None
        initial = torch.zeros(2, 4, dtype=torch.float64)
        states = recurrence(inputs, weight, threshold, initial, nonlinearity, backend=backend)
        gradients[backend] = torch.autograd.grad(states.sum(), inputs)[0]
    assert torch.equal(gradients["auto"], gradients["reference"])


def test_the_long_state_is_driven_by_the_short_state_one_step_before() -> None:
    """Coupling has teeth: a fused run without it, or with the state of the same step, would be seen above."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=generator)

    inputs, initial = normal(5, 1, 4), normal(1, 4)
    long, coupling, short = normal(2, 2) / 3, normal(2, 2), normal(2, 2) / 3
    states = long_short_recurrence(inputs, long, coupling, short, None, initial, "identity")
    h = initial
    for t in range(5):
        expected_long = inputs[t, :, :2] + h[:, :2] @ long.mT + h[:, 2:] @ coupling.mT
        h = torch.cat([expected_long, inputs[t, :, 2:] + h[:, 2:] @ short.mT], dim=1)
        assert torch.allclose(states[t], h, rtol=1e-12, atol=1e-12)
    without = long_short_recurrence(inputs, long, None, short, None, initial, "identity")
    assert (states - without).abs().max() > 0.1
