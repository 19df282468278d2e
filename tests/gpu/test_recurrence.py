"""The CUDA kernel is the recurrence: in outputs and gradients, at every size, on any strides, in a graph, and always the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import enrnn
from enrnn.functional import long_short_recurrence, recurrence
from enrnn.nonlinearities import NONLINEARITIES
from enrnn.recurrence import _beside, _bias, _cuda, _gated, _gram, _linked, _op, _product, _rotations_cuda, _torch
from enrnn.recurrence._shapes import Shape, _clusters, one_block, shape_for, split_block
from enrnn.recurrence._wide import Wide, wide_for
from tests._record import Recorder
from tests.gpu._kernels import Forced, captured, replayed
from tests.gpu._matrices import in_poison, normal
from tests.recurrence._problems import excess, problem

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("kernels")]

SIZES = [1, 2, 3, 7, 20, 31, 32, 33, 64, 65, 94, 96, 127, 128, 129, 160, 172, 192, 193, 224, 225, 256, 257, 310, 374, 468]
SIZES += [512, 631, 720, 900, 1030, 1100]
NAMES = list(NONLINEARITIES)


@pytest.mark.parametrize("n", SIZES)
def test_every_size(n: int, full: bool, record: Recorder) -> None:
    """A rotation of nonlinearities, biases, lengths, steps and batches over the sizes; all of them with --full."""
    index = SIZES.index(n)
    names = [name for name in NAMES if n % NONLINEARITIES[name].parts == 0]
    place = index + index // len(NAMES)  # a place further each time round, or a name would always meet the same lengths
    cases = []
    for k, name in enumerate(names if full else [names[place % len(names)]]):
        for steps, batch in [(1, 1), (9, 5), (6, 33), (2, 3)][: 4 if full else 2]:
            cases.append(problem(steps, batch, n, name, bias=(index + k) % 4 != 3, lengths=(index + k) % 3 == 1))
    worst = max(excess(_cuda, case, "cuda") for case in cases)
    record(cases=len(cases), worst_error_over_the_float32_loops=worst)
    assert worst < 4


@pytest.mark.parametrize("n", [2, 20, 33, 64, 96, 128, 160, 192, 300, 448, 561, 720, 900])
def test_several_sequences_to_a_block_or_cluster(n: int, full: bool, record: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every number of sequences, in one group and in two that take turns, with tails, whichever shape would be chosen."""
    limits, worst, cases = _cuda.limits_of(torch.device("cuda", 0)), 0.0, 0
    names = [name for name in NAMES if n % NONLINEARITIES[name].parts == 0]
    for place, name in enumerate(names if full else names[n % len(names) :][:2]):
        parts = NONLINEARITIES[name].parts
        found: dict[tuple[int, int], Shape] = {}
        for shape in [one_block(n, parts, limits, batch) for batch in (2, 4, 8)] if n <= 192 else _clusters(n, parts, limits):
            if shape is not None and shape.batch > 1:
                found.setdefault((shape.batch, shape.groups), shape)
        kinds = sorted(found, key=lambda kind: (-kind[1], kind[0]))
        for kind in kinds if full else kinds[(place + n // 10) % 2 :: 3]:
            monkeypatch.setattr(_cuda, "layout_for", lambda *_, shape=found[kind]: shape)
            for steps, batch in [(1, 1), (7, 2 * kind[0] + 1), (4, kind[0] - 1)]:
                cases += 1
                worst = max(worst, excess(_cuda, problem(steps, batch, n, name, lengths=place % 2 == 0), "cuda"))
    record(cases=cases, worst_error_over_the_float32_loops=worst)
    assert worst < 4


@pytest.mark.parametrize(("q", "s"), [(96, 64), (64, 96), (91, 49), (128, 32), (127, 95), (64, 16), (96, 16), (24, 16)])
def test_a_block_that_leaves_the_zeros_out(q: int, s: int, full: bool, record: Recorder) -> None:
    """Every nonlinearity of real units, with lengths, batches beyond what runs at once, and with no coupling."""
    limits, worst, cases = _cuda.limits_of(torch.device("cuda", 0)), 0.0, 0
    shape = split_block(q, s, limits)
    assert shape is not None
    names = [name for name in NAMES if NONLINEARITIES[name].parts == 1]
    for place, name in enumerate(names if full else names[(q + s) // 8 % len(names) :][:2]):
        for steps, batch in [(1, 1), (9, 5), (6, 700)]:
            given = problem(steps, batch, q + s, name, lengths=place % 2 == 0)
            given.weight[q:, :q] = 0
            if place % 3 == 2:
                given.weight[:q, q:] = 0
            assert shape_for(q + s, 50, 1, limits, q) == shape
            cases += 1
            worst = max(worst, excess(Forced(lambda *_: shape, q, place % 3 != 2), given, "cuda"))
    record(cases=cases, worst_error_over_the_float32_loops=worst)
    assert worst < 4


@pytest.mark.parametrize(
    ("n", "q"),
    [
        (49, None),
        (64, None),
        (97, None),
        (110, None),
        (128, None),
        (160, 96),
        (140, 91),
        (150, 60),
        (144, 80),
        (140, 75),
        (56, 30),
        (53, 3),
    ],
)
def test_many_sequences(n: int, q: int | None, full: bool, record: Recorder) -> None:
    """By the tensor cores, however few there are: spans that are full, or are not, and lengths; as exact as the others."""
    worst, used = 0.0, set()
    names = [name for name in NAMES if n % NONLINEARITIES[name].parts == 0 and (q is None or NONLINEARITIES[name].parts == 1)]
    for place, name in enumerate(names if full else names[n % len(names) :][:2]):
        for steps, batch, spans in [(1, 1, 1), (7, 21, 1), (300, 9, 3), (4, 50, 3)]:

            def layout(*sizes: Any, spans: int = spans) -> Shape | Wide | None:
                found = wide_for(*sizes)
                used.add(found)
                return found._replace(spans=spans) if found else shape_for(*sizes[:5])  # in one direction it has room

            given = problem(steps, batch, n, name, lengths=place % 2 == 0)
            if q is not None:
                given.weight[q:, :q] = 0
            worst = max(worst, excess(Forced(layout, q), given, "cuda"))
            record(cases=1)
    record(worst_error_over_the_float32_loops=worst)
    assert used != {None}
    assert worst < 4


@pytest.mark.parametrize(("n", "q"), [(128, None), (160, 96)])
def test_a_lower_precision_has_to_be_asked_for(n: int, q: int | None) -> None:
    """By torch's own switch, and for many sequences: 16 bits instead of 24, and afterwards the same bits as before."""
    given = problem(20, 21, n, "modrelu")
    if q is not None:
        given.weight[q:, :q] = 0
    states, last = torch.empty_like(given.inputs), torch.empty_like(given.initial)
    _torch.forward(given.inputs, given.weight, given.bias, given.initial, "modrelu", None, states, last)
    engine = Forced(lambda *sizes: wide_for(*sizes) or shape_for(*sizes[:5]), q)

    def run() -> Tensor:
        numbers = (each.float().cuda() for each in (given.inputs, given.weight, given.bias, given.initial) if each is not None)
        found, end = torch.empty_like(states, dtype=torch.float32, device="cuda"), last.float().cuda()
        engine.forward(*numbers, "modrelu", None, found, end)
        return found

    full = run()
    torch.set_float32_matmul_precision("high")
    try:
        lower = run()
    finally:
        torch.set_float32_matmul_precision("highest")
    errors = [float((found.double().cpu() - states).norm() / states.norm()) for found in (full, lower)]
    assert errors[0] < 1e-6
    assert 2 * errors[0] < errors[1] < 2**-13
    assert torch.equal(run(), full)


def test_a_chip_that_was_never_tested_would_pass_its_own_check() -> None:
    device = torch.device("cuda", 0)
    assert _cuda._self_check(device) is None
    for each in (_product._trusted, _gram._trusted, _bias._trusted, _gated._trusted, _rotations_cuda.trusted):
        assert each.agrees(device), each._name


def test_long_sequences(record: Recorder) -> None:
    """Thousands of steps under an orthogonal matrix, where a step lost or taken twice shows."""
    worst = 0.0
    for steps, batch, n in [(2020, 3, 192), (750, 2, 160), (490, 3, 374), (300, 4, 720)]:
        worst = max(worst, excess(_cuda, problem(steps, batch, n, "modrelu"), "cuda"))
    record(cases=4, worst_error_over_the_float32_loops=worst)
    assert worst < 4


@pytest.mark.parametrize(("q", "s"), [(96, 64), (60, 90), (172, 20), (374, 94), (310, 720), (5, 2), (1, 300), (300, 1)])
@pytest.mark.parametrize("coupled", [True, False], ids=["coupled", "apart"])
def test_the_two_parts(q: int, s: int, coupled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """ENRNN's form against the float64 reference, with all gradients; where there is enough to multiply, by `product.cu`."""
    steps, batch = (11, 33) if q * s > 2**16 else (7, 5)
    generator = torch.Generator().manual_seed(q)

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float64)

    parts = {
        "inputs": normal(steps, batch, q + s),
        "long": torch.linalg.qr(normal(q, q))[0],
        "coupling": normal(q, s) / (q + s) ** 0.5 if coupled else None,
        "short": normal(s, s) / (2 * s**0.5),
        "bias": -normal(q + s).abs() / 8,
        "initial": normal(batch, q + s),
    }
    upstream = normal(steps, batch, q + s)

    def run(backend: str, dtype: torch.dtype, device: str) -> dict[str, Tensor]:
        given = {k: None if v is None else v.to(device, dtype).detach().requires_grad_() for k, v in parts.items()}
        states = long_short_recurrence(*given.values(), "modrelu", backend=backend)
        leaves = {k: v for k, v in given.items() if v is not None}
        gradients = torch.autograd.grad(states, list(leaves.values()), upstream.to(device, dtype))
        return {"states": states.detach(), **dict(zip(leaves, gradients, strict=True))}

    exact = run("reference", torch.float64, "cpu")
    monkeypatch.setattr(_product, "_loaded", {})
    found = run("cuda", torch.float32, "cuda")
    assert bool(_product._loaded) == (q * s > 2**16)
    for name, value in exact.items():
        torch.testing.assert_close(found[name].double().cpu(), value, rtol=1e-4, atol=2e-5 * float(value.abs().max()), msg=name)


@pytest.mark.usefixtures("nothing_is_replayed")
@pytest.mark.parametrize("linked", [False, True], ids=["in turn", "linked"])
@pytest.mark.parametrize("in_a_graph", [False, True], ids=["eager", "graph"])
def test_what_is_done_beside_a_sweep_is_done_in_time(in_a_graph: bool, linked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bits as one after the other, again and again, whatever happens to the memory in between."""
    q, s, steps, batch = 310, 720, 12, 32
    generator = torch.Generator("cuda").manual_seed(0)
    sizes = [(steps, batch, q + s), (q, q), (q, s), (s, s), (q + s,), (batch, q + s)]
    given = [(torch.randn(size, device="cuda", generator=generator) / 30).requires_grad_() for size in sizes]
    upstream = torch.randn(steps, batch, q + s, device="cuda", generator=generator)

    def gradients() -> list[Tensor]:
        return [*torch.autograd.grad(long_short_recurrence(*given, "modrelu"), given, upstream)]

    def one_after_the_other(events: list[object], work: Callable[[], None], device: torch.device) -> None:
        work()

    if not linked:
        monkeypatch.setattr(_linked, "linked_for", lambda *_: None)
    with monkeypatch.context() as alone:
        alone.setattr(_cuda, "beside", one_after_the_other)
        alone.setattr(_op, "at_once", lambda first, second, device: (first(), second()))
        expected = gradients()
    asked = []

    def late(work: Callable[[], None]) -> Callable[[], None]:
        return lambda: (torch.cuda._sleep(10**7), work())  # much longer than everything else takes

    def beside(events: list[object], work: Callable[[], None], device: torch.device) -> None:
        asked.append("beside")
        _beside.beside(events, late(work), device)

    def at_once(first: Callable[[], None], second: Callable[[], None], device: torch.device) -> None:
        asked.append("at once")
        _beside.at_once(first, late(second), device)

    monkeypatch.setattr(_cuda, "beside", beside)
    monkeypatch.setattr(_op, "at_once", at_once)
    gradients()
    assert asked == (["beside"] if linked else ["beside", "at once"])
    graph, found = captured(gradients) if in_a_graph else (None, [])
    for _ in range(20):
        if graph is None:
            found = gradients()
        else:
            for each in found:
                each.fill_(float("nan"))
            graph.replay()
        copies = [each.clone() for each in found]
        if graph is None:
            found = []
            [torch.full_like(upstream, float("nan")) for _ in range(8)]  # where gradients were, if anything is still at work
        for copy, one in zip(copies, expected, strict=True):
            assert torch.equal(copy, one)


@pytest.mark.parametrize("n", [31, 160, 310, 720])
def test_only_the_outputs_are_written_and_always_the_same(n: int) -> None:
    """Outputs as views into memory full of NaN, inputs as views too; thrice the same bits."""
    given = problem(9, 5, n, "modrelu", lengths=True)
    assert given.bias is not None
    assert given.lengths is not None
    wide = torch.full((4, 11, 7, n + 6), float("nan"), device="cuda")
    wide[0, 1:10, 1:6, 3 : n + 3] = given.inputs.float().cuda()
    wide[1, 1:10, 1:6, 3 : n + 3] = given.upstream.float().cuda()
    ends = torch.full((2, 7, n + 6), float("nan"), device="cuda")
    weight, bias, initial = given.weight.float().cuda(), given.bias.float().cuda(), given.initial.float().cuda()
    lengths = given.lengths.cuda()
    results = []
    for _ in range(3):
        wide[2:] = float("nan")
        ends[:] = float("nan")
        inputs, upstream, states, grad_z = (each[1:10, 1:6, 3 : n + 3] for each in wide)
        final, grad_initial = (each[1:6, 3 : n + 3] for each in ends)
        _cuda.forward(inputs, weight, bias, initial, "modrelu", lengths, states, final)
        _cuda.backward(upstream, states, weight, bias, "modrelu", lengths, grad_z, grad_initial)
        for buffer, view in [(wide[2], states), (wide[3], grad_z), (ends[0], final), (ends[1], grad_initial)]:
            assert torch.isfinite(view).all()
            assert int(torch.isfinite(buffer).sum()) == view.numel()
        assert torch.equal(final, states[-1])
        results.append([states.clone(), grad_z.clone(), grad_initial.clone()])
    for again in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], again, strict=True))


@pytest.mark.parametrize(("q", "s", "batch"), [(40, 0, 3), (96, 64, 3), (60, 40, 9000), (310, 720, 104)])
@pytest.mark.parametrize("down", [False, True])
def test_matrices_of_any_strides_are_read_where_they_are(q: int, s: int, batch: int, down: bool) -> None:
    """Between NaN, by rows and by columns: in one block, without its zeros, by the tensor cores, and in two parts, with sequences
    enough for `product.cu`, which knows no strides where it adds."""
    inputs, initial, upstream = (normal(3, batch, q + s, seed=k) for k in range(3))
    blocks = (
        [normal(rows, columns, seed=3) / (q + s) ** 0.5 for rows, columns in ((q, q), (q, s), (s, s))]
        if s
        else [normal(q, q) / q**0.5]
    )
    answers = []
    for matrices in (blocks, [in_poison(block, 3, 5, down) for block in blocks]):
        leaves = [each.detach().requires_grad_() for each in (inputs, *matrices)]
        run = long_short_recurrence if s else recurrence
        states = run(leaves[0], *leaves[1:], -0.1 * upstream[0, 0].abs(), initial[0], backend="cuda")
        answers.append([states, *torch.autograd.grad(states, leaves, upstream)])
    for plain, found in zip(*answers, strict=True):
        assert torch.isfinite(found).all()
        assert torch.equal(found, plain)


def test_vectors_with_gaps_and_lengths_of_either_kind() -> None:
    given = problem(9, 5, 40, "modrelu", lengths=True)
    assert given.bias is not None
    assert given.lengths is not None
    tensors = [each.float().cuda() for each in (given.inputs, given.weight, given.bias, given.initial)]
    expected = recurrence(*tensors, lengths=given.lengths.cuda(), backend="torch")
    tensors[2] = torch.stack([tensors[2], torch.full_like(tensors[2], float("nan"))], dim=1)[:, 0]
    tensors[1] = tensors[1].mT.contiguous().mT
    for lengths in (given.lengths.int(), torch.stack([given.lengths, 0 * given.lengths], dim=1)[:, 0]):
        found = recurrence(*tensors, lengths=lengths.cuda(), backend="cuda")
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_positive_threshold() -> None:
    """modReLU with any b, step by step from the loop's own state, leaving out what is within rounding of its jump at zero."""
    given = problem(12, 9, 96, "modrelu")
    bias = torch.randn(96, dtype=torch.float64) / 2
    previous, left_out = given.initial, 0
    for x in given.inputs:
        z = x + previous @ given.weight.mT
        exact = torch.sign(z) * torch.relu(z.abs() + bias)
        single = [each.float().cuda() for each in (x.unsqueeze(0), given.weight, bias, previous)]
        found = recurrence(*single, "modrelu", backend="cuda")[0].double().cpu()
        near = (z.abs() < 1e-5) | ((z.abs() + bias).abs() < 1e-5)
        left_out += int(near.sum())
        torch.testing.assert_close(found[~near], exact[~near], rtol=1e-5, atol=1e-5)
        previous = exact
    assert left_out < 10


@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_finite_stays_visible(name: str) -> None:
    given = problem(4, 3, 64, name)
    for poison in (float("nan"), float("inf")):
        inputs = given.inputs.float().cuda()
        inputs[1, 1, 5] = poison
        arguments = (inputs, given.weight.float().cuda(), given.bias.float().cuda(), given.initial.float().cuda(), name)
        found, loop = (recurrence(*arguments, backend=backend) for backend in ("cuda", "torch"))
        assert torch.equal(torch.isfinite(found).all(-1), torch.isfinite(loop).all(-1))
        assert not torch.isfinite(found[1:, 1]).all() or name in ("tanh",) or poison == float("inf")


@pytest.mark.parametrize("n", [128, 512])
def test_leaky_relu_where_all_states_are_zero(n: int) -> None:
    """The slope of autograd there, in one block and in a cluster: the lower one, of zeros of either sign."""
    given = problem(4, 3, n, "leaky_relu")
    gradients = []
    for backend, dtype, device in (("reference", torch.float64, "cpu"), ("cuda", torch.float32, "cuda")):
        inputs = torch.zeros_like(given.inputs, dtype=dtype, device=device)
        inputs[:, 1] = -0.0
        leaves = [inputs.requires_grad_(), torch.zeros_like(inputs[0]).requires_grad_()]
        states = recurrence(leaves[0], given.weight.to(device, dtype), None, leaves[1], "leaky_relu", backend=backend)
        assert not states.any()
        gradients.append(torch.autograd.grad(states, leaves, given.upstream.to(device, dtype)))
    for exact, found in zip(*gradients, strict=True):
        torch.testing.assert_close(found.double().cpu(), exact, rtol=1e-4, atol=2e-5 * float(exact.abs().max()))


@pytest.mark.parametrize(("n", "reflectors"), [(128, 16), (512, None)])
def test_ornn_runs_on_the_kernel(n: int, reflectors: int | None) -> None:
    """At the sizes of the paper's rows: states and all gradients, against the float64 reference."""
    torch.manual_seed(0)
    exact = enrnn.ORNN(2, n, reflectors=reflectors, backend="reference", dtype=torch.float64)
    layer = enrnn.ORNN(2, n, reflectors=reflectors, device="cuda")
    layer.load_state_dict(exact.state_dict())
    exact.load_state_dict(layer.state_dict())  # as float32 has it
    assert layer.backend_used == "cuda"
    x = torch.randn(9, 5, 2)
    answers = []
    for each, given in ((exact, x.double()), (layer, x.cuda())):
        output = each(given)[0]
        output.square().mean().backward()
        gradients = {name: parameter.grad for name, parameter in each.named_parameters()}
        answers.append({"output": output.detach(), **gradients})
    for name, value in answers[0].items():
        found = answers[1][name].double().cpu()
        torch.testing.assert_close(found, value, rtol=1e-4, atol=2e-5 * float(value.abs().max()), msg=name)


def test_many_sequences_and_the_final_state_alone() -> None:
    """10,000 sequences; the final state takes no memory for the others."""
    for n in (20, 64, 96, 160, 192, 374):
        inputs = torch.randn(20, 10_000, n, device="cuda")
        weight = torch.linalg.qr(torch.randn(n, n, device="cuda"))[0]
        initial, bias = torch.randn(10_000, n, device="cuda"), -torch.rand(n, device="cuda") / 10
        states = recurrence(inputs, weight, bias, initial, backend="cuda")
        torch.testing.assert_close(states, recurrence(inputs, weight, bias, initial, backend="torch"), rtol=1e-3, atol=1e-4)
        expected = states[-1].clone()
        del states
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        final = recurrence(inputs, weight, bias, initial, final_only=True, backend="cuda")
        assert torch.cuda.max_memory_allocated() - before < inputs.numel() * 4 / 8
        assert torch.equal(final, expected)


def test_more_than_two_to_the_31_elements() -> None:
    T, B, n = 40_000, 2_000, 32
    inputs = torch.zeros(T, B, n, device="cuda")
    inputs[0] = torch.randn(B, n, device="cuda")
    inputs[-1] = torch.randn(B, n, device="cuda")
    weight, initial = torch.eye(n, device="cuda").roll(1, 0), torch.zeros(B, n, device="cuda")
    states = recurrence(inputs, weight, None, initial, "identity", backend="cuda")
    assert torch.equal(states[-1], inputs[0].roll((T - 1) % n, 1) + inputs[-1])
    assert torch.equal(states[T // 2], inputs[0].roll(T // 2 % n, 1))


@pytest.mark.parametrize("n", [160, 374])
def test_in_a_graph(n: int) -> None:
    """Both sweeps captured and replayed on new data: the same bits as outside."""
    given = problem(9, 5, n, "relu")
    leaves = [each.float().cuda().requires_grad_() for each in (given.inputs, given.weight, given.bias, given.initial)]
    upstream = given.upstream.float().cuda()

    def step() -> tuple[Tensor, ...]:
        states = recurrence(*leaves, "relu", backend="cuda")
        return (states.detach(), *torch.autograd.grad(states, leaves, upstream))

    for inside, again, outside in zip(*replayed(step, leaves), step(), strict=True):
        assert torch.equal(inside, outside)
        assert torch.equal(again, outside)


def test_a_layer_says_what_runs_it() -> None:
    layer = enrnn.ENRNN(3, 40, device="cuda")
    assert layer.backend_used == "cuda"
    layer(torch.randn(5, 2, 3, device="cuda"))[0].sum().backward()
    with pytest.warns(UserWarning, match="loop of torch operations, because the CUDA kernel computes in float32"):
        assert layer.double().backend_used == "torch"
    with pytest.warns(UserWarning, match="no room in the registers"):
        assert enrnn.ENRNN(3, 5000, short_size=10, device="cuda").backend_used == "torch"
    with pytest.raises(ValueError, match="cannot run this: the CUDA kernel computes in float32"):
        recurrence(
            *[torch.zeros(s, device="cuda", dtype=torch.float64) for s in ((2, 2, 2), (2, 2), (2,), (2, 2))], backend="cuda"
        )


def test_a_kernel_is_not_compiled_inside_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_cuda, "_loaded", {})  # another test may have loaded one of the same shape
    inputs = torch.randn(3, 2, 59, device="cuda")
    weight, initial = torch.eye(59, device="cuda"), torch.zeros(2, 59, device="cuda")

    def capture() -> None:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            inputs.add_(1)  # torch warns of an empty graph
            recurrence(inputs, weight, None, initial, "tanh", backend="cuda")

    with pytest.raises(RuntimeError, match="run the step once before capturing"):
        capture()


def test_shapes_hold_every_size_up_to_1100(record: Recorder) -> None:
    """And the chip's own limits were asked for, not assumed."""
    limits = _cuda.limits_of(torch.device("cuda", 0))
    record(cases=1100)
    for n in range(1, 1101):
        assert shape_for(n, 32, 1, limits) is not None, n


@pytest.mark.parametrize("nonlinearity", ["modrelu", "relu", "leaky_relu", "paired_modrelu"])
@pytest.mark.parametrize("shape", [(1, 1, 2), (3, 5, 34), (50, 7, 160), (9, 32, 1030)])
def test_the_bias_gradient_in_one_pass(nonlinearity: str, shape: tuple[int, int, int]) -> None:
    h, dz = (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
    h[h.abs() < 0.2] = 0.0
    exact = _torch.bias_gradient(h.double(), dz.double(), nonlinearity)
    found = _bias.bias_gradient(h.cuda(), dz.cuda(), nonlinearity).cpu()
    again = _bias.bias_gradient(h.cuda(), dz.cuda(), nonlinearity).cpu()
    assert torch.equal(found, again)
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-4)


def test_the_bias_gradient_of_many_rows_is_as_exact() -> None:
    """All alike and of one sign, so that rounding adds up: half a million rows."""
    h, dz = torch.ones(50, 10_000, 40, device="cuda"), torch.full((50, 10_000, 40), 0.1, device="cuda")
    exact = dz.double().sum((0, 1))
    assert float((_bias.bias_gradient(h, dz, "modrelu") / exact - 1).abs().max()) < 2e-6
