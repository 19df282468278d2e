"""Derivatives through the whole layer, of every output with respect to every parameter, the input and the initial state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from enrnn import ENRNN, ENRNNCell
from enrnn.nonlinearities import NONLINEARITIES
from tests._record import Recorder

STEP = 1e-6
"""gradcheck's step."""


@contextmanager
def watched(nonlinearity: str) -> Iterator[list[float]]:
    """Collects how near the arguments of σ come to its kinks, in runs of the reference."""
    distances: list[float] = []
    usual = NONLINEARITIES[nonlinearity]

    def watching(z: Tensor, bias: Tensor | None) -> Tensor:
        argument = z.detach()
        if nonlinearity == "relu":
            distances.append(float((argument if bias is None else argument + bias).abs().min()))
        elif nonlinearity == "modrelu":
            thresholds = torch.zeros(1) if bias is None else -bias.detach()
            # At b = 0 modReLU is the identity in z and smooth in b; for b < 0 it has kinks at |z| = −b.
            distances.append(float((argument.abs() - thresholds).abs().min()))
        return usual.function(z, bias)

    NONLINEARITIES[nonlinearity] = usual._replace(function=watching)
    try:
        yield distances
    finally:
        NONLINEARITIES[nonlinearity] = usual


def randomized(layer: ENRNN | ENRNNCell, seed: int, *, radius: float) -> None:
    """Parameters away from their gentle start: every T with the given spectral radius, modReLU's thresholds not positive."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            parameter.copy_(torch.randn(parameter.shape, dtype=torch.float64, generator=generator) / 2)
            if "weight_short" in name:
                parameter.mul_(radius / torch.linalg.eigvals(parameter).abs().max())
            elif name.startswith("bias") and layer.nonlinearity == "modrelu":
                parameter.copy_(-parameter.abs() / 4)


Function = Callable[..., tuple[Tensor, Tensor]]


def problem(
    seed: int, backend: str, *, radius: float = 1.3, lengths: list[int] | None = None, hx: bool = True, **settings: Any
) -> tuple[Function, tuple[Tensor, ...], ENRNN]:
    """A function of (sequences, initial state, all parameters), and where to differentiate it: away from every kink."""
    for attempt in range(100):
        torch.manual_seed(seed)
        layer = ENRNN(3, 5, backend="reference", dtype=torch.float64, **settings)
        randomized(layer, seed + 1000 * attempt, radius=radius)
        generator = torch.Generator().manual_seed(seed + 1000 * attempt + 1)
        steps, batch = (3, 2) if lengths is None else (max(lengths), len(lengths))
        x = torch.randn(steps, batch, 3, dtype=torch.float64, generator=generator, requires_grad=True)
        states = (layer.num_layers * layer.num_directions, batch, 5)
        initial = torch.randn(states, dtype=torch.float64, generator=generator, requires_grad=True)
        names = [name for name, _ in layer.named_parameters()]
        arguments = (x, initial, *(p.detach().clone().requires_grad_() for p in layer.parameters()))

        def function(
            x: Tensor, initial: Tensor, *parameters: Tensor, layer: ENRNN = layer, names: list[str] = names
        ) -> tuple[Tensor, Tensor]:
            given = x if lengths is None else pack_sequence([x[:n, i] for i, n in enumerate(lengths)], False)
            values = dict(zip(names, parameters, strict=True))
            output, final = functional_call(layer, values, (given, initial if hx else None))
            return output.data if isinstance(output, PackedSequence) else output, final

        with watched(str(layer.nonlinearity)) as distances:
            function(*arguments)
        if min(distances, default=1.0) > 1000 * STEP:
            layer.backend = backend
            return function, arguments, layer
    raise AssertionError("no draw stays away from the kinks")


SETTINGS: dict[str, dict[str, Any]] = {
    "modrelu": {},
    "modrelu, ε > 0": {"epsilon": 0.3},
    "tanh": {"nonlinearity": "tanh"},
    "relu": {"nonlinearity": "relu", "epsilon": 0.3},
    "identity": {"nonlinearity": "identity"},
    "no coupling": {"nonlinearity": "tanh", "coupling": False},
    "no short state": {"short_size": 0},
    "no long state": {"short_size": 5, "epsilon": 0.3},
    "one short unit": {"short_size": 1, "nonlinearity": "tanh"},
    "one long unit": {"short_size": 4, "negative_ones": 1, "nonlinearity": "tanh"},
    "no bias": {"bias": False, "nonlinearity": "relu"},
    "not yet normalising": {"radius": 0.8},
    "zero initial state": {"hx": False, "nonlinearity": "tanh"},
    "lengths": {"lengths": [1, 4, 2]},
    "lengths, relu, no coupling": {"lengths": [3, 1], "nonlinearity": "relu", "coupling": False},
    "two layers, both directions": {"num_layers": 2, "bidirectional": True, "nonlinearity": "tanh"},
    "two layers, both directions, lengths": {"num_layers": 2, "bidirectional": True, "lengths": [2, 1, 3]},
}


# The state has at most 5 units and 4 steps, all derivatives are of the order of 1 to 10, and T's spectrum allows steps of
# about 0.01 (see test_proposition): truncation (1e-6/0.01)²/0.01 = 1e-6 at worst, rounding eps/1e-6 = 1e-10 times condition.
TOLERANCE = {"eps": STEP, "atol": 1e-5, "rtol": 1e-5}


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("name", SETTINGS)
def test_gradcheck_of_the_whole_layer(record: Recorder, full: bool, name: str, backend: str) -> None:
    cases = (2 if "num_layers" in SETTINGS[name] else 6) if full else 1
    for seed in range(cases):
        function, arguments, layer = problem(seed, backend, **SETTINGS[name])
        assert gradcheck(function, arguments, fast_mode=not full, **TOLERANCE)
        assert layer.normalizing.all() == (name != "not yet normalising")
    record(cases=cases)


@pytest.mark.parametrize(
    "name", ["modrelu, ε > 0", "tanh", "relu", "no long state", "no short state", "not yet normalising", "lengths"]
)
def test_gradgradcheck_of_the_reference(record: Recorder, full: bool, name: str) -> None:
    cases = 3 if full else 1
    for seed in range(cases):
        function, arguments, _ = problem(seed, "reference", **SETTINGS[name])
        # One derivative more costs another 1/0.01 in the truncation where ρ is differentiated twice.
        assert gradgradcheck(function, arguments, fast_mode=True, eps=STEP, atol=1e-4, rtol=1e-4)
    record(cases=cases)


def test_gradcheck_sees_a_gradient_that_is_off_by_a_thousandth() -> None:
    function, arguments, _ = problem(0, "auto")

    class Off(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return 1.001 * gradient

    def wrong(x: Tensor, initial: Tensor, *parameters: Tensor) -> tuple[Tensor, Tensor]:
        return function(x, initial, *(Off.apply(p) for p in parameters))

    for fast in (False, True):
        assert not gradcheck(wrong, arguments, fast_mode=fast, raise_exception=False, **TOLERANCE)


@pytest.mark.parametrize("settings", [{}, {"nonlinearity": "tanh"}, {"short_size": 0}, {"lengths": [2, 1]}])
def test_second_derivatives_by_the_fused_operator(settings: dict[str, Any]) -> None:
    """Of the norm of the gradient, as a penalty on it has them, by everything there is; the normalisation's own included."""
    answers = []
    for backend in ("auto", "reference"):
        function, arguments, layer = problem(0, backend, **settings)
        assert (layer.backend_used == "reference") == (backend == "reference")
        output, _ = function(*arguments)
        gradients = torch.autograd.grad(output.sin().sum(), arguments, create_graph=True)
        penalty = sum((g.square().sum() for g in gradients), torch.zeros(()))
        answers.append(torch.autograd.grad(penalty, arguments, allow_unused=True, materialize_grads=True))
    torch.testing.assert_close(*answers, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("nonlinearity", ["modrelu", "tanh"])
def test_gradcheck_of_the_cell(nonlinearity: str) -> None:
    torch.manual_seed(0)
    cell = ENRNNCell(3, 5, nonlinearity=nonlinearity, epsilon=0.1, dtype=torch.float64)
    randomized(cell, 1, radius=1.3)
    names = [name for name, _ in cell.named_parameters()]
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(2, 3, dtype=torch.float64, generator=generator, requires_grad=True)
    h = torch.randn(2, 5, dtype=torch.float64, generator=generator, requires_grad=True)

    def function(x: Tensor, h: Tensor, *parameters: Tensor) -> Tensor:
        state = functional_call(cell, dict(zip(names, parameters, strict=True)), (x, h))
        return functional_call(cell, dict(zip(names, parameters, strict=True)), (x, state))

    arguments = (x, h, *(p.detach().clone().requires_grad_() for p in cell.parameters()))
    assert gradcheck(function, arguments, **TOLERANCE)


def test_both_backends_give_the_layer_the_same_gradients(record: Recorder, full: bool) -> None:
    """Parametrizations, projection, packing, directions and stacking included."""
    for name, settings in SETTINGS.items():
        for seed in range(10 if full else 1):
            results = []
            for backend in ("auto", "reference"):
                function, arguments, _ = problem(seed, backend, **settings)
                output, final = function(*arguments)
                loss = output.sin().sum() + final.cos().sum()
                gradients = torch.autograd.grad(loss, arguments, allow_unused=True, materialize_grads=True)
                results.append([output.detach(), final.detach(), *gradients])
            for found, expected in zip(*results, strict=True):
                error = (found - expected).abs().max()
                scale = 1 + expected.abs().max()
                record(cases=1, worst_relative_error=error / scale)
                # At most 4 layers and directions, 5 units, 4 steps, each a sum of 5 products in another order, passed on
                # with a growth of at most ‖W‖ < 4 a step.
                assert error <= 4 * 5 * 4 * 4**4 * torch.finfo(torch.float64).eps * scale, name
