"""The `cpu` engine is the loop: in states and in gradients, to the bit from run to run, and beside other threads."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from enrnn.functional import recurrence
from enrnn.recurrence import _cpu, _cpu_products, _team
from tests._record import Recorder

pytest.importorskip("numba", reason="the cpu engine is compiled by numba")

NONLINEARITIES = ("modrelu", "relu", "leaky_relu", "tanh", "identity", "paired_modrelu")
SIZES, BATCHES, STEPS = (1, 2, 3, 7, 17, 33, 65, 96, 129, 172), (1, 2, 3, 5, 50), (1, 2, 9)
NAN = float("nan")


def sigma(z: Tensor, b: Tensor | None, nonlinearity: str) -> Tensor:
    if nonlinearity in ("modrelu", "paired_modrelu") and b is None:
        return z
    if nonlinearity == "modrelu":
        return torch.sign(z) * torch.relu(z.abs() + b)
    if nonlinearity == "paired_modrelu":
        modulus = torch.hypot(*z.chunk(2, dim=-1))
        scale = torch.where(modulus == 0, 0, torch.relu(modulus + b) / modulus)
        return z * torch.cat([scale, scale], dim=-1)
    z = z if b is None else z + b
    if nonlinearity == "leaky_relu":
        return torch.where(z > 0, z, 0.1 * z)
    return {"relu": torch.relu, "tanh": torch.tanh, "identity": torch.clone}[nonlinearity](z)


def pull_back(g: Tensor, h: Tensor, b: Tensor | None, nonlinearity: str) -> Tensor:
    """The gradient at the argument of σ, from that at its value h."""
    if nonlinearity in ("modrelu", "paired_modrelu") and b is None:
        return g
    if nonlinearity == "paired_modrelu":
        u = torch.complex(*h.chunk(2, dim=-1))
        modulus = u.abs()
        u, gradient = u / modulus, torch.complex(*g.chunk(2, dim=-1))
        scale = modulus / (modulus - b)
        pulled = torch.where(modulus == 0, 0, scale * gradient + (1 - scale) * u * (u.conj() * gradient).real)
        return torch.cat([pulled.real, pulled.imag], dim=-1)
    if nonlinearity == "leaky_relu":
        return torch.where(h > 0, g, 0.1 * g)
    slope = {"modrelu": h != 0, "relu": h > 0, "tanh": 1 - h * h, "identity": torch.ones_like(h)}[nonlinearity]
    return g * slope.to(g.dtype)


@dataclass(frozen=True)
class Problem:
    inputs: Tensor
    weight: Tensor
    bias: Tensor | None
    initial: Tensor
    nonlinearity: str
    lengths: Tensor | None
    upstream: Tensor

    def to(self, dtype: torch.dtype) -> Problem:
        tensors = {name: getattr(self, name) for name in ("inputs", "weight", "bias", "initial", "upstream")}
        return replace(self, **{name: None if part is None else part.to(dtype) for name, part in tensors.items()})

    def running(self, t: int) -> Tensor:
        return torch.ones(len(self.initial), 1, dtype=torch.bool) if self.lengths is None else (t < self.lengths).unsqueeze(-1)

    def loop(self) -> Tensor:
        h, states = self.initial, []
        for t, x in enumerate(self.inputs):
            h = torch.where(self.running(t), sigma(x + h @ self.weight.mT, self.bias, self.nonlinearity), h)
            states.append(h)
        return torch.stack(states)

    def reverse_loop(self, states: Tensor) -> tuple[Tensor, Tensor]:
        grad_z, carried = torch.empty_like(states), torch.zeros_like(states[0])
        for t in reversed(range(len(states))):
            total, running = self.upstream[t] + carried, self.running(t)
            grad_z[t] = torch.where(running, pull_back(total, states[t], self.bias, self.nonlinearity), 0)
            carried = torch.where(running, grad_z[t] @ self.weight, total)
        return grad_z, carried

    def engine(self, long_size: int = 0) -> tuple[Tensor, Tensor]:
        states, final = (torch.full(like.shape, NAN, dtype=like.dtype) for like in (self.inputs, self.initial))
        arguments = self.weight, self.bias, self.initial, self.nonlinearity, self.lengths
        _cpu.forward(self.inputs, *arguments, states, final, long_size)
        return states, final

    def reverse_engine(self, states: Tensor, long_size: int = 0) -> tuple[Tensor, Tensor]:
        grad_z, grad_initial = (torch.full(like.shape, NAN, dtype=like.dtype) for like in (self.inputs, self.initial))
        arguments = self.upstream, states, self.weight, self.bias, self.nonlinearity, self.lengths
        _cpu.backward(*arguments, grad_z, grad_initial, long_size)
        return grad_z, grad_initial


def problem(
    steps: int, batch: int, n: int, nonlinearity: str = "modrelu", *, bias: bool = True, lengths: bool = False, seed: int = 0
) -> Problem:
    """In float64, ‖W‖₂ = 1, and a bias below zero, so that σ is continuous and errors do not grow."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=generator)

    weight = normal(n, n)
    threshold = -normal(n // 2 if nonlinearity == "paired_modrelu" else n).abs() / 4
    ends = torch.randint(-1, steps + 2, (batch,), generator=generator, dtype=torch.int32 if seed % 2 else torch.int64)
    return Problem(
        normal(steps, batch, n),
        weight / torch.linalg.matrix_norm(weight, 2),
        threshold if bias else None,
        normal(batch, n),
        nonlinearity,
        ends if lengths else None,
        normal(steps, batch, n),
    )


def sizes_of(nonlinearity: str) -> tuple[int, ...]:
    return tuple(n for n in SIZES if nonlinearity != "paired_modrelu" or n % 2 == 0)


class Framed:
    """A tensor in the midst of a larger one, as a part of a layer's units is; all of it NaN until it is written."""

    def __init__(self, shape: torch.Size, dtype: torch.dtype) -> None:
        self.whole = torch.full((*shape[:-2], shape[-2] + 2, shape[-1] + 5), NAN, dtype=dtype)
        self.part = self.whole[..., 1:-1, 3:-2]

    def filled(self, values: Tensor) -> Tensor:
        self.part.copy_(values)
        return self.part

    def only_the_part_was_written(self) -> bool:
        return not self.part.isnan().any() and int((~self.whole.isnan()).sum()) == self.part.numel()


def no_worse(found: Tensor, exact: Tensor, loop: Tensor, summands: Tensor) -> float:
    """The error of `found` over what it may be: 1 at most. The loop may be exact by luck, and is so by definition in float64;
    a sum of n products then is off by n roundings of either sign."""
    error, own = (float((one.double() - exact).abs().max()) for one in (found, loop))
    rounding = torch.finfo(found.dtype).eps * float(summands.abs().max())
    return error / (4 * own + 4 * found.shape[-1] ** 0.5 * rounding)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("nonlinearity", NONLINEARITIES)
def test_states_and_reverse_sweep_are_those_of_the_loop(
    record: Recorder, full: bool, nonlinearity: str, dtype: torch.dtype
) -> None:
    cases = list(itertools.product(sizes_of(nonlinearity), BATCHES, STEPS, [False, True], [False, True]))
    for seed, (n, batch, steps, bias, lengths) in enumerate(cases):
        if not full and seed % 7:  # prime to all the counts, so that every value and every pair of them comes up
            continue
        mine = problem(steps, batch, n, nonlinearity, bias=bias, lengths=lengths, seed=seed).to(dtype)
        exact = mine.to(torch.float64)  # of numbers that both can hold
        inputs, initial, upstream = (
            Framed(part.shape, dtype).filled(part) for part in (mine.inputs, mine.initial, mine.upstream)
        )
        states, grad_z = Framed(inputs.shape, dtype), Framed(inputs.shape, dtype)
        final, grad_initial = Framed(initial.shape, dtype), Framed(initial.shape, dtype)

        _cpu.forward(inputs, mine.weight, mine.bias, initial, nonlinearity, mine.lengths, states.part, final.part)
        assert states.only_the_part_was_written()
        assert final.only_the_part_was_written()
        assert torch.equal(final.part, states.part[-1])
        ratio = no_worse(states.part, exact.loop(), mine.loop(), torch.cat([mine.inputs, mine.initial.unsqueeze(0)]))

        sources = upstream, states.part, mine.weight, mine.bias, nonlinearity, mine.lengths
        _cpu.backward(*sources, grad_z.part, grad_initial.part)
        assert grad_z.only_the_part_was_written()
        assert grad_initial.only_the_part_was_written()
        expected, loop = exact.reverse_loop(states.part.double()), mine.reverse_loop(states.part)
        backward = [
            no_worse(found, *both, mine.upstream)
            for found, *both in zip((grad_z.part, grad_initial.part), expected, loop, strict=True)
        ]
        record(cases=1, worst_ratio=max(ratio, *backward))
        assert max(ratio, *backward) <= 1, (n, batch, steps, bias, lengths)


@pytest.mark.parametrize("nonlinearity", NONLINEARITIES)
@pytest.mark.parametrize("lengths", [False, True])
def test_the_reverse_sweep_is_the_derivative_of_the_forward_one(record: Recorder, nonlinearity: str, lengths: bool) -> None:
    """Against autograd; so the loop above has no error in common with the engine."""
    given = problem(9, 5, 34, nonlinearity, lengths=lengths)
    parts = [given.inputs.requires_grad_(), given.initial.requires_grad_()]
    expected = torch.autograd.grad(given.loop(), parts, given.upstream)
    given.inputs.requires_grad_(False)
    given.initial.requires_grad_(False)
    states, _ = given.engine()
    for found, truth in zip(given.reverse_engine(states), expected, strict=True):
        error = float((found - truth).abs().max() / truth.abs().max())
        record(cases=1, worst_error=error)
        assert error <= 9 * 34 * torch.finfo(torch.float64).eps


@pytest.mark.parametrize("nonlinearity", ["modrelu", "paired_modrelu"])
def test_one_step_with_a_bias_of_either_sign(nonlinearity: str) -> None:
    """Where σ jumps, at z = 0, rounding decides; everywhere else the loop is right."""
    given = problem(1, 50, 96, nonlinearity)
    assert given.bias is not None
    given = replace(given, bias=torch.where(torch.rand(given.bias.shape) < 0.5, given.bias, -given.bias))
    z = given.inputs + given.initial @ given.weight.mT
    far = z.abs() > 1e-3
    exact, single = given.loop(), given.to(torch.float32)
    found, _ = single.engine()
    assert (exact.sign() != z.sign()).any()  # a bias above and one below zero were both at work
    assert float((found - exact)[far].abs().max()) <= 100 * torch.finfo(torch.float32).eps * float(z.abs().max())


@pytest.mark.parametrize("backend", ["cpu", "torch"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_derivative_where_a_positive_threshold_swamps_z(backend: str, dtype: torch.dtype) -> None:
    """Across z it is (|z| + b)/|z|, of which |z| is known to the rounding of |z| + b; from there on it is bounded."""
    rounding, b = torch.finfo(dtype).eps, 0.5
    for part in (1e9, 1e6, 1e3, 1e-2):
        z = torch.tensor([[[part * rounding, 0.0]]], dtype=dtype, requires_grad=True)
        zeros = torch.zeros(2, 2, dtype=dtype), torch.tensor([b], dtype=dtype), torch.zeros(1, 2, dtype=dtype)
        states = recurrence(z, *zeros, "paired_modrelu", backend=backend)
        found = float(torch.autograd.grad(states[0, 0, 1], z)[0][0, 0, 1])
        exact = (part * rounding + b) / (part * rounding)
        if part > 1:
            assert abs(found - exact) <= exact * 4 * (b / part + rounding)
        else:
            assert found == pytest.approx(1 / rounding, rel=0.01)


@pytest.mark.parametrize("nonlinearity", NONLINEARITIES)
def test_tanh_and_its_kin_at_the_ends_of_the_range(nonlinearity: str) -> None:
    """Each of σ at arguments from 1e-30 to 1e30, by one step from nothing."""
    z = torch.logspace(-30, 30, 400, dtype=torch.float64)
    z = torch.cat([z, -z, torch.zeros(2)]).view(1, 1, -1)
    n = z.shape[-1]
    bias = torch.zeros(n // 2 if nonlinearity == "paired_modrelu" else n, dtype=torch.float64)
    for dtype in (torch.float32, torch.float64):
        given = Problem(z, torch.zeros(n, n), bias, torch.zeros(1, n), nonlinearity, None, z).to(dtype)
        found, _ = given.engine()
        exact = sigma(given.inputs.double(), bias, nonlinearity)
        assert float(((found - exact).abs() / exact.abs().clamp(min=1e-300)).max()) <= 8 * torch.finfo(dtype).eps


@pytest.mark.parametrize(("batch", "long", "short"), [(1, 1, 1), (3, 7, 20), (50, 33, 64), (5, 96, 17)])
@pytest.mark.parametrize("nonlinearity", ["modrelu", "tanh"])
def test_the_zero_block_is_left_out(nonlinearity: str, batch: int, long: int, short: int) -> None:
    """`W = [[W_L, W_C], [0, W_S]]`: the same bits as with the zeros, and what stands in their place is not read."""
    given = problem(5, batch, long + short, nonlinearity, lengths=True).to(torch.float32)
    given.weight[long:, :long] = 0
    states, final = given.engine()
    gradients = given.reverse_engine(states)
    given.weight[long:, :long] = NAN
    expected = (states, final, *gradients)
    for found, truth in zip((*given.engine(long), *given.reverse_engine(states, long)), expected, strict=True):
        assert torch.equal(found, truth)


@pytest.fixture
def many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads are woken for the smallest sequence."""
    monkeypatch.setattr(_cpu, "WORK_OF_A_THREAD", 1)
    monkeypatch.setattr(_cpu, "MUCH_TO_PACK", 1)
    monkeypatch.setattr(_cpu_products, "LEAST_WORK", 1)
    monkeypatch.setattr(_cpu_products, "LEAST_TALL", 1)
    monkeypatch.setattr(_cpu_products, "library_is_slow", lambda: True)


@pytest.mark.parametrize("lengths", [False, True])
@pytest.mark.usefixtures("many_threads")
def test_every_bit_is_the_same_in_every_run_with_any_threads_and_in_any_batch(lengths: bool) -> None:
    given = problem(9, 13, 65, lengths=lengths).to(torch.float32)
    before = torch.get_num_threads()
    outcomes = []
    try:
        for threads in (1, 1, 2, 3, 16):
            torch.set_num_threads(threads)
            states, _ = given.engine()
            matrix = torch.empty(65, 65)
            _cpu_products.weight_gradient(given.upstream, given.initial, states, matrix)
            outcomes.append(
                (states, *given.reverse_engine(states), matrix, _cpu.bias_gradient(states, given.upstream, "modrelu"))
            )
    finally:
        torch.set_num_threads(before)
    for outcome in outcomes[1:]:
        assert all(torch.equal(one, other) for one, other in zip(outcome, outcomes[0], strict=True))
    few = replace(
        given,
        inputs=given.inputs[:, 4:6],
        initial=given.initial[4:6],
        upstream=given.upstream[:, 4:6],
        lengths=None if given.lengths is None else given.lengths[4:6],
    )
    assert torch.equal(few.engine()[0], outcomes[0][0][:, 4:6])
    assert torch.equal(few.reverse_engine(outcomes[0][0][:, 4:6])[0], outcomes[0][1][:, 4:6])


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.usefixtures("many_threads")
def test_tiny_numbers_are_zero_on_all_threads_or_on_none(flushed: bool) -> None:
    """As they are on the thread that calls, whatever the others had learnt before."""
    given = problem(9, 13, 65).to(torch.float32)
    given = replace(given, inputs=given.inputs * 1e-39, initial=given.initial * 1e-39, bias=None, upstream=given.upstream * 1e-39)
    before, outcomes = torch.get_num_threads(), []
    if not torch.set_flush_denormal(not flushed):
        pytest.skip("this processor takes tiny numbers as they are")
    try:
        for threads in (4, 1, 2, 4):  # those that are made now have the other mode
            torch.set_num_threads(threads)
            torch.rand(100_000).exp_()
            torch.set_flush_denormal(flushed)
            matrix = torch.empty(65, 65)
            states, final = given.engine()
            _cpu_products.weight_gradient(given.upstream * 1e38, given.initial, given.inputs, matrix)
            outcomes.append((states, final, *given.reverse_engine(states), matrix))
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(before)
    assert all(bool(each.any()) != flushed for outcome in outcomes for each in outcome)
    for outcome in outcomes[1:]:
        assert all(torch.equal(*pair) for pair in zip(outcome, outcomes[0], strict=True))


@pytest.mark.parametrize("lengths", [False, True])
def test_the_final_state_alone_is_that_of_all_states(lengths: bool) -> None:
    for steps in (1, 2, 9):
        given = problem(steps, 5, 33, lengths=lengths).to(torch.float32)
        final = torch.full_like(given.initial, NAN)
        _cpu.forward(given.inputs, given.weight, given.bias, given.initial, "modrelu", given.lengths, None, final)
        assert torch.equal(final, given.engine()[1])


@pytest.mark.parametrize("nonlinearity", NONLINEARITIES)
@pytest.mark.parametrize("where", ["inputs", "weight", "bias", "initial"])
def test_what_is_not_a_number_comes_out_where_it_does_in_the_loop(nonlinearity: str, where: str) -> None:
    given = problem(4, 5, 34, nonlinearity).to(torch.float32)
    part = getattr(given, where)
    part[(2, 1, 3)[-part.dim() :]] = NAN
    found, expected = given.engine()[0], given.loop()
    assert torch.equal(found.isnan(), expected.isnan())
    assert found.isnan().any()
    assert not found.isnan().all()


@pytest.mark.parametrize("nonlinearity", NONLINEARITIES)
def test_a_gradient_that_is_not_a_number_reaches_the_initial_state(nonlinearity: str) -> None:
    given = problem(4, 5, 34, nonlinearity).to(torch.float32)
    states, _ = given.engine()
    active = int((states[2, 1] != 0).nonzero()[0])
    given.upstream[2, 1, active] = NAN
    for found, expected in zip(given.reverse_engine(states), given.reverse_loop(states), strict=True):
        assert torch.equal(found.isnan(), expected.isnan())
        assert found.isnan().any()


@pytest.mark.parametrize("nonlinearity", NONLINEARITIES)
def test_a_state_that_is_not_a_number_has_the_slope_of_the_loop(nonlinearity: str) -> None:
    given = problem(4, 5, 34, nonlinearity).to(torch.float32)
    states, _ = given.engine()
    states[2, 1, 3] = NAN
    for found, expected in zip(given.reverse_engine(states), given.reverse_loop(states), strict=True):
        assert torch.allclose(found, expected, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_a_state_that_is_exactly_zero_has_the_slope_of_the_loop() -> None:
    for nonlinearity, bias in itertools.product(NONLINEARITIES, [False, True]):
        given = problem(3, 2, 4, nonlinearity, bias=bias)
        given = replace(given, inputs=torch.zeros_like(given.inputs), initial=torch.zeros_like(given.initial))
        given = given if given.bias is None else replace(given, bias=torch.zeros_like(given.bias))
        states, _ = given.engine()
        assert not states.any()
        for found, expected in zip(given.reverse_engine(states), given.reverse_loop(states), strict=True):
            assert torch.allclose(found, expected, rtol=1e-14, atol=1e-14)


def test_strides_of_all_kinds_are_read() -> None:
    given = problem(6, 4, 20).to(torch.float32)
    states, _ = given.engine()
    expected = given.reverse_engine(states)
    scattered = replace(
        given,
        inputs=given.inputs.permute(2, 1, 0).contiguous().permute(2, 1, 0),
        initial=given.initial.mT.contiguous().mT,
        weight=given.weight.mT.contiguous().mT,
        bias=torch.stack([given.bias, given.bias], dim=-1)[:, 0],
    )
    assert torch.equal(scattered.engine()[0], states)
    assert torch.equal(scattered.reverse_engine(states.transpose(0, 1).contiguous().transpose(0, 1))[0], expected[0])
    ones = replace(given, upstream=torch.ones(()).expand_as(given.upstream))
    full = replace(given, upstream=torch.ones_like(given.upstream))
    assert torch.equal(ones.reverse_engine(states)[0], full.reverse_engine(states)[0])


def test_no_sequences_are_no_work() -> None:
    given = problem(3, 0, 5)
    assert given.engine()[0].shape == (3, 0, 5)
    assert given.reverse_engine(given.inputs)[1].shape == (0, 5)


@pytest.mark.usefixtures("many_threads")
def test_several_python_threads_may_call_at_once() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        given = [problem(20, 7, n, seed=n).to(torch.float32) for n in (17, 33, 65, 96)]
        expected = [one.engine()[0] for one in given]
        with ThreadPoolExecutor(8) as callers:
            answers = list(callers.map(lambda i: given[i % 4].engine()[0], range(200)))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(answer, expected[i % 4]) for i, answer in enumerate(answers))


def in_a_new_interpreter(code: str, **environment: str) -> str:
    command, env = [sys.executable, "-c", code], {**os.environ, **environment}
    run = subprocess.run(command, env=env, check=True, capture_output=True, text=True, timeout=120)
    return run.stdout.strip()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.usefixtures("many_threads")
def test_the_gradient_of_a_matrix_is_the_product_of_all_rows(record: Recorder, dtype: torch.dtype) -> None:
    """Of matrices that are parts of others, the rest being NaN; the first rows of one stand elsewhere."""
    sizes = [(1, 1, 1, 1), (2, 1, 3, 50), (3, 70, 17, 1), (9, 5, 33, 65), (40, 13, 8, 16), (301, 3, 47, 130), (2, 400, 129, 20)]
    for seed, (steps, batch, q, n) in enumerate(sizes):
        generator = torch.Generator().manual_seed(seed)
        z, h, first = (
            torch.randn(size, dtype=dtype, generator=generator) for size in ((steps, batch, q), (steps, batch, n), (batch, n))
        )
        out = Framed(torch.Size((q, n)), dtype)
        given = [Framed(each.shape, dtype).filled(each) for each in (z, first, h)]
        _cpu_products.weight_gradient(*given, out.part)
        assert out.only_the_part_was_written()
        left, right = z.flatten(0, 1), torch.cat([first.unsqueeze(0), h[:-1]]).flatten(0, 1)
        found, exact = out.part.double(), left.double().mT @ right.double()
        rounding = torch.finfo(dtype).eps * float((left.double().mT.abs() @ right.double().abs()).max())
        error = float((found - exact).abs().max())
        record(cases=1, worst_ratio=error / (4 * rounding))
        assert error <= 4 * rounding, (steps, batch, q, n)
        before = torch.get_num_threads()
        try:
            for threads in (1, 2, 16):
                torch.set_num_threads(threads)
                whole = torch.empty(q, n, dtype=dtype)
                _cpu_products.weight_gradient(z, first, h, whole)
                assert torch.equal(whole, out.part)
        finally:
            torch.set_num_threads(before)


@pytest.mark.parametrize("function", ["forward", "backward", "bias_gradient", "weight_gradient"])
@pytest.mark.parametrize("lengths", [False, True])
@pytest.mark.usefixtures("many_threads")
def test_threads_of_its_own_where_torch_has_none_to_lend(monkeypatch: pytest.MonkeyPatch, function: str, lengths: bool) -> None:
    given = problem(9, 13, 65, lengths=lengths).to(torch.float32)
    states, _ = given.engine()
    matrix = torch.empty(65, 65)

    def weigh() -> tuple[Tensor]:
        _cpu_products.weight_gradient(given.upstream, given.initial, states, matrix)
        return (matrix.clone(),)

    calls = {
        "forward": given.engine,
        "backward": lambda: given.reverse_engine(states),
        "bias_gradient": lambda: (_cpu.bias_gradient(states, given.upstream, "modrelu"),),
        "weight_gradient": weigh,
    }
    expected, before = calls[function](), torch.get_num_threads()
    torch.set_num_threads(3)
    asked = []

    class Pool(ThreadPoolExecutor):
        def submit(self, *arguments: Any, **others: Any) -> Any:
            asked.append(arguments)
            return super().submit(*arguments, **others)

    try:
        with Pool(2) as pool, monkeypatch.context() as patched:
            patched.setattr(_team, "_parallel_section", lambda: None)
            patched.setattr(_team, "_pool", lambda: pool)
            found = calls[function]()
    finally:
        torch.set_num_threads(before)
    assert len(asked) in (2, 4)  # two for each function: the sweeps have their matrix laid out first
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it counts threads as Linux tells them")
def test_the_threads_are_those_that_torch_has() -> None:
    answer = in_a_new_interpreter(
        "import os, torch\n"
        "from enrnn.recurrence import _cpu\n"
        "_cpu.WORK_OF_A_THREAD = 1\n"
        "torch.set_num_threads(3)\n"
        "inputs, states = torch.randn(5, 9, 8), torch.empty(5, 9, 8)\n"
        "def sweep():\n"
        "    _cpu.forward(inputs, torch.eye(8) / 2, None, inputs[0], 'relu', None, states, torch.empty(9, 8))\n"
        "def threads():\n"
        "    return len(os.listdir('/proc/self/task'))\n"
        "torch.set_num_threads(1)\n"
        "sweep()\n"  # what is compiled and loaded on the way may have threads of its own
        "torch.set_num_threads(3)\n"
        "before = threads()\n"
        "torch.rand(1_000_000).exp_()\n"
        "torchs = threads()\n"
        "sweep()\n"
        "print(torchs - before, threads() - torchs)"
    )
    assert answer == "2 0"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_child_that_is_forked_while_another_thread_compiles(tmp_path: Path) -> None:
    """The lock under which it does would be held for ever in the child: the alarm ends such a child."""
    answer = in_a_new_interpreter(
        "import os, signal, threading, time, warnings, torch\n"
        "from enrnn.recurrence import _cpu_kernels\n"
        "warnings.simplefilter('ignore')\n"
        "code = lambda: _cpu_kernels.machine_code(_cpu_kernels.signed_sum, torch.float32)\n"
        "thread = threading.Thread(target=code)\n"
        "thread.start()\n"
        "while thread.is_alive() and _cpu_kernels._compiling.acquire(False):\n"
        "    _cpu_kernels._compiling.release()\n"
        "print(thread.is_alive())\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    signal.alarm(60)\n"
        "    code()\n"
        "    os._exit(0)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))",
        NUMBA_CACHE_DIR=str(tmp_path),
    )
    assert answer.split() == ["True", "0"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_child_that_was_forked_after_use_has_threads_of_its_own() -> None:
    """A pool whose threads stayed with the parent would never answer: the alarm ends such a child."""
    answer = in_a_new_interpreter(
        "import os, signal, warnings, torch\n"
        "from enrnn.recurrence import _cpu\n"
        "warnings.simplefilter('ignore')\n"  # newer Pythons warn of any fork beside threads
        "_cpu.WORK_OF_A_THREAD = 1\n"
        "torch.set_num_threads(2)\n"
        "inputs, weight, states = torch.randn(5, 4, 8), torch.eye(8) / 2, torch.empty(5, 4, 8)\n"
        "def run():\n"
        "    _cpu.forward(inputs, weight, None, inputs[0], 'relu', None, states, torch.empty(4, 8))\n"
        "    return states.clone()\n"
        "expected = run()\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    signal.alarm(30)\n"
        "    os._exit(0 if torch.equal(run(), expected) else 1)\n"
        "print(os.waitpid(child, 0)[1], torch.equal(run(), expected))"
    )
    assert answer == "0 True"


def test_numba_is_not_imported_before_the_engine_is_asked_for() -> None:
    answer = in_a_new_interpreter(
        "import sys, enrnn, enrnn.functional\n"
        "from enrnn.recurrence import _cpu\n"
        "before = 'numba' in sys.modules\n"
        "print(before, _cpu.unavailable(), 'numba' in sys.modules)"
    )
    assert answer == "False None True"


def test_without_numba_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    _cpu.unavailable.cache_clear()
    assert _cpu.unavailable() == "numba is not installed (the extra enrnn[cpu] brings it)"
    monkeypatch.undo()
    _cpu.unavailable.cache_clear()
    assert _cpu.unavailable() is None


@pytest.mark.parametrize("raised", [SystemError("no _internal"), OSError("no libllvmlite.so"), RuntimeError("so it is")])
def test_a_numba_that_is_broken_in_any_way_is_none(raised: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        @staticmethod
        def find_spec(name: str, *_: object) -> None:
            if name == "numba":
                raise raised

    monkeypatch.delitem(sys.modules, "numba")
    monkeypatch.setattr(sys, "meta_path", [Broken, *sys.meta_path])
    _cpu.unavailable.cache_clear()
    assert _cpu.unavailable() == f"numba cannot be imported ({type(raised).__name__}: {raised})"
    monkeypatch.undo()
    _cpu.unavailable.cache_clear()
    assert _cpu.unavailable() is None


@pytest.mark.parametrize(("steps", "batch"), [(1, 40_000), (8, 20_000), (2000, 20)])
def test_the_bias_gradient_of_many_rows_is_as_exact(steps: int, batch: int) -> None:
    """All alike and of one sign, so that rounding adds up: one after the other in float32, 40,000 are off by some 1e-4."""
    h, dz = torch.ones(steps, batch, 3), torch.full((steps, batch, 3), 0.1)
    exact = dz.double().sum((0, 1))
    assert float((_cpu.bias_gradient(h, dz, "modrelu") / exact - 1).abs().max()) < 2e-6


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 3, 5), (9, 5, 33), (100, 7, 20), (301, 4, 64)])
def test_the_bias_gradient_is_one_pass_and_as_good(shape: tuple[int, int, int]) -> None:
    """Against float64, on views with gaps, and the same for every number of threads."""
    wide = torch.randn(2, *shape[:2], shape[2] + 3)
    h, dz = wide[0, ..., 1:-2], wide[1, ..., 1:-2]
    h.relu_().sub_(0.3)[h == 0] = 0
    dz[h == 0] = 0
    exact = (h.double().sign() * dz.double()).sum((0, 1))
    answers = []
    for threads in (1, 2, 3):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            answers.append(_cpu.bias_gradient(h, dz, "modrelu"))
        finally:
            torch.set_num_threads(before)
    rounding = 4 * torch.finfo(torch.float32).eps * float(dz.abs().sum((0, 1)).max())
    assert float((answers[0].double() - exact).abs().max()) <= rounding
    assert all(torch.equal(answers[0], other) for other in answers)
    found64 = _cpu.bias_gradient(h.double(), dz.double(), "modrelu")
    torch.testing.assert_close(found64, exact, rtol=1e-12, atol=1e-12)
