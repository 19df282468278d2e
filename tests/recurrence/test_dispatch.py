"""Backends are chosen as asked, say what they are, and agree; a fallback is told once."""

from __future__ import annotations

import warnings
import weakref

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence

import enrnn
from enrnn.functional import long_short_recurrence, recurrence
from enrnn.layers import _base
from enrnn.nonlinearities import NONLINEARITIES, paired_modrelu
from enrnn.recurrence import _cpu, _engines, _gram
from tests._record import Recorder
from tests.recurrence._problems import problem

BACKENDS = ("reference", "torch", "cpu")


def leaves(nonlinearity: str, n: int = 10, **options: bool) -> tuple[list[Tensor | None], Tensor | None, Tensor]:
    given = problem(7, 4, n, nonlinearity, **options)
    tensors = [given.inputs, given.weight, given.bias, given.initial]
    return [None if each is None else each.clone().requires_grad_() for each in tensors], given.lengths, given.upstream


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("size", [1e-38, 1e-30, 1e-20, 1.0, 1e20, 1e30])
def test_paired_modrelu_of_numbers_of_any_size(size: float, backend: str) -> None:
    """Whose squares float32 cannot hold: `z/|z|` is 0.6 + 0.8i all the same. (So is the derivative by b; the hand-written one
    knows |z| from |h| − b alone.)"""
    z = size * torch.tensor([0.6, 0.8]).expand(2, 1, 2)
    bias = torch.tensor([0.25], requires_grad=True)
    states = recurrence(z, torch.zeros(2, 2), bias, torch.zeros(1, 2), "paired_modrelu", backend=backend)
    expected = (size + 0.25) * torch.tensor([0.6, 0.8])
    torch.testing.assert_close(states.detach(), expected.expand(2, 1, 2))
    if backend == "reference":
        (found,) = torch.autograd.grad(states[..., 1].sum(), bias)
        torch.testing.assert_close(found, torch.tensor([1.6]))


@pytest.mark.parametrize("lengths", [False, True], ids=["whole", "lengths"])
@pytest.mark.parametrize("nonlinearity", NONLINEARITIES)
def test_all_backends_agree(nonlinearity: str, lengths: bool, record: Recorder) -> None:
    answers = []
    for backend in BACKENDS:
        tensors, ends, upstream = leaves(nonlinearity, lengths=lengths)
        states = recurrence(*tensors, nonlinearity, lengths=ends, backend=backend)
        answers.append([states.detach(), *torch.autograd.grad(states, tensors, upstream)])
    worst = max(float((a - b).abs().max()) for other in answers[1:] for a, b in zip(other, answers[0], strict=True))
    record(cases=len(BACKENDS) - 1, worst_difference=worst)
    assert worst < 1e-12


def test_paired_modrelu_is_modrelu_of_complex_numbers() -> None:
    """Against complex128, with thresholds of both signs, zero among the arguments, and its gradient by autograd."""
    z = torch.randn(6, 8, dtype=torch.float64)
    z[2, [1, 5]] = 0
    bias = torch.randn(4, dtype=torch.float64)
    number = torch.complex(z[:, :4], z[:, 4:])
    expected = torch.where(number == 0, 0, number / number.abs() * torch.relu(number.abs() + bias))
    found = paired_modrelu(z, bias)
    torch.testing.assert_close(found, torch.cat([expected.real, expected.imag], dim=1))
    assert torch.autograd.gradcheck(paired_modrelu, (z[:2].clone().requires_grad_(), bias.clone().requires_grad_()))
    z.requires_grad_()
    (gradient,) = torch.autograd.grad(paired_modrelu(z, bias).sum(), z)
    assert torch.isfinite(gradient).all()
    assert not gradient[2, [1, 5]].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_leaky_relu_and_its_slope_by_the_output_are_torchs(dtype: torch.dtype) -> None:
    """To the bit, at zeros of both signs, where a tenth underflows, and where there is no number."""
    edges = [0.0, -0.0, torch.finfo(dtype).smallest_normal, 5e-324, 1e-45, 1e30, float("inf"), float("nan")]
    z = torch.cat([torch.tensor(edges, dtype=dtype), torch.randn(50, dtype=dtype)])
    z = torch.cat([z, -z]).requires_grad_()
    g = torch.randn_like(z)
    expected = torch.nn.functional.leaky_relu(z, 0.1)
    (gradient,) = torch.autograd.grad(expected, z, g)
    leaky = NONLINEARITIES["leaky_relu"]
    h = leaky.function(z.detach(), None)
    torch.testing.assert_close(h, expected.detach(), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(leaky.pull_back(h, None, g), gradient, rtol=0, atol=0)
    assert (h == 0).sum() > 4  # zeros, and what underflowed


@pytest.mark.parametrize("backend", ["torch", "cpu"])
@pytest.mark.parametrize("lengths", [False, True], ids=["whole", "lengths"])
def test_leaky_relu_as_an_operator(backend: str, lengths: bool) -> None:
    """Its gradient by differences, what torch asks of an operator, and the slope of autograd where all states are zero."""
    tensors, ends, upstream = leaves("leaky_relu", n=5, lengths=lengths)
    assert torch.autograd.gradcheck(lambda *each: recurrence(*each, "leaky_relu", lengths=ends, backend=backend), tensors)
    inputs, weight, bias, initial = tensors
    arguments = (inputs, weight, None, None, bias, initial, "leaky_relu", ends, backend)
    torch.library.opcheck(torch.ops.enrnn.recurrence.default, arguments)
    answers = []
    for each in (backend, "reference"):
        zeros = [torch.zeros_like(part) if part is not weight else weight for part in tensors]
        zeros = [part.detach().requires_grad_() for part in zeros]
        states = recurrence(*zeros, "leaky_relu", lengths=ends, backend=each)
        assert not states.any()
        answers.append(torch.autograd.grad(states, zeros, upstream))
    for found, exact in zip(*answers, strict=True):
        torch.testing.assert_close(found, exact)


def test_two_parts_with_a_leaky_relu() -> None:
    """In ENRNN, by its name and as a callable that torch differentiates."""
    torch.manual_seed(0)
    layer = enrnn.ENRNN(3, 9, nonlinearity="leaky_relu", dtype=torch.float64)
    slow = enrnn.ENRNN(3, 9, nonlinearity=lambda z: torch.nn.functional.leaky_relu(z, 0.1), dtype=torch.float64)
    slow.load_state_dict(layer.state_dict())
    assert (layer.backend_used, slow.backend_used) == ("cpu", "reference")
    x, answers = torch.randn(6, 4, 3, dtype=torch.float64), []
    for each in (layer, slow):
        output = each(x)[0]
        output.square().sum().backward()
        answers.append([output.detach(), *(parameter.grad for parameter in each.parameters())])
    for found, exact in zip(*answers, strict=True):
        torch.testing.assert_close(found, exact)
    with pytest.raises(ValueError, match="'leaky_relu'"):
        enrnn.ENRNN(3, 9, nonlinearity="leaky")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("steps", [1, 2, 200])
def test_the_final_state_alone(backend: str, steps: int) -> None:
    """With and without gradients, one matrix and two parts, and sequences that end early."""
    given = problem(steps, 5, 9, "modrelu", lengths=True)
    q = 6
    blocks = (given.weight[:q, :q], given.weight[:q, q:], given.weight[q:, q:])
    for parts in ((given.weight,), blocks):
        run = recurrence if len(parts) == 1 else long_short_recurrence
        arguments = (given.inputs, *parts, given.bias, given.initial, "modrelu")
        for lengths in (None, given.lengths):
            states = run(*arguments, lengths=lengths, backend=backend)
            final = run(*arguments, lengths=lengths, final_only=True, backend=backend)
            torch.testing.assert_close(final, states[-1], rtol=0, atol=1e-13)
    initial = given.initial.clone().requires_grad_()
    final = recurrence(given.inputs, given.weight, given.bias, initial, final_only=True, backend=backend)
    assert torch.autograd.grad(final.sum(), initial)[0].abs().sum() > 0


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("shape", [(600, 3, 4), (2, 4), (256, 4)])
def test_a_layers_final_state(shape: tuple[int, ...], batch_first: bool) -> None:
    layer = enrnn.ENRNN(4, 8, num_layers=2, batch_first=batch_first).double()
    x = torch.randn(shape, dtype=torch.float64)
    if batch_first and len(shape) == 3:
        x = x.transpose(0, 1)
    expected = layer(x)[1]
    final = layer.final_state(x)
    assert not final.requires_grad
    torch.testing.assert_close(final, expected.detach(), rtol=0, atol=1e-12)
    both = enrnn.ENRNN(4, 8, bidirectional=True).double()
    torch.testing.assert_close(both.final_state(x), both(x)[1].detach())


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("sorted_", [False, True])
def test_a_layers_final_state_of_packed_sequences(sorted_: bool, bidirectional: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stretches of 8 steps, in some of which nothing ends, and in some all but one."""
    monkeypatch.setattr(_base, "STRETCH", 8)
    lengths = [41, 25, 24, 16, 3, 1] if sorted_ else [3, 24, 1, 41, 16, 25]
    layer = enrnn.ENRNN(4, 9, num_layers=2, bidirectional=bidirectional).double()
    x = pack_padded_sequence(torch.randn(41, 6, 4, dtype=torch.float64), lengths, enforce_sorted=sorted_)
    for hx in (None, torch.randn(4 if bidirectional else 2, 6, 9, dtype=torch.float64)):
        given = None if hx is None else hx.clone()
        expected = layer(x, hx)[1].detach()
        torch.testing.assert_close(layer.final_state(x, hx), expected, rtol=0, atol=1e-12)
        assert hx is None or torch.equal(hx, given)
    with pytest.raises(RuntimeError, match="hidden size"):
        layer.final_state(x, torch.zeros(4, 5, 9, dtype=torch.float64))


@pytest.mark.parametrize("lengths", [False, True])
def test_a_final_state_by_a_callable_keeps_no_other(lengths: bool) -> None:
    given = problem(40, 3, 5, "relu", lengths=lengths)
    seen: list[weakref.ref[Tensor]] = []

    def watched(z: Tensor) -> Tensor:
        assert sum(state() is not None for state in seen) <= 2
        h = z.sin()
        seen.append(weakref.ref(h))
        return h

    call = given.inputs, given.weight, given.bias, given.initial
    with torch.no_grad():
        final = recurrence(*call, watched, lengths=given.lengths, final_only=True)
        assert len(seen) == 40
        assert torch.equal(final, recurrence(*call, torch.sin, lengths=given.lengths)[-1])


def test_a_backend_may_be_given_in_its_place() -> None:
    given = problem(4, 3, 6, "relu")
    parts = given.weight[:4, :4], given.weight[:4, 4:], given.weight[4:, 4:]
    with pytest.raises(ValueError, match="Unknown backend 'fast'"):
        recurrence(given.inputs, given.weight, given.bias, given.initial, "relu", "fast")
    by_place = long_short_recurrence(given.inputs, *parts, given.bias, given.initial, "relu", "torch")
    assert torch.equal(by_place, long_short_recurrence(given.inputs, *parts, given.bias, given.initial, "relu", backend="torch"))


def test_what_a_callable_and_an_input_must_not_be() -> None:
    weight, initial = torch.eye(3), torch.zeros(2, 3)
    for steps in (1, 2):
        with pytest.raises(TypeError, match=r"^nonlinearity must return a tensor of its argument's dtype, torch\.float32, got"):
            recurrence(torch.zeros(steps, 2, 3), weight, None, initial, lambda z: z.double())
    with pytest.raises(TypeError, match=r"^inputs must be a floating-point tensor of 16 bits or more, got dtype torch\.float8"):
        recurrence(torch.zeros(2, 2, 3).to(torch.float8_e4m3fn), weight, None, initial)
    nested = torch.nested.nested_tensor([torch.zeros(2, 3)], layout=torch.jagged)
    with pytest.raises(ValueError, match=r"^inputs must be dense, got a nested tensor$"):
        recurrence(nested, weight, None, initial)


def test_leaves_on_several_threads() -> None:
    """Parameters themselves are handed in, as a layer does, and there is enough work for three threads."""
    leaves = [torch.randn(20, 6, 200), torch.eye(200), -torch.rand(200), torch.zeros(6, 200)]
    leaves = [leaf.requires_grad_() for leaf in leaves]
    answers = []
    for threads in (1, 3):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            states = recurrence(*leaves, backend="cpu")
            answers.append([states.detach(), *torch.autograd.grad(states.square().sum(), leaves)])
        finally:
            torch.set_num_threads(before)
    for single, several in zip(*answers, strict=True):
        torch.testing.assert_close(several, single, rtol=1e-5, atol=1e-5)  # torch's own product may add up in another order


def test_a_gradient_that_is_one_number_everywhere() -> None:
    """`sum()` hands back a tensor with strides of zero."""
    for backend in BACKENDS[1:]:
        tensors, _, _ = leaves("tanh")
        exact, _, _ = leaves("tanh")
        found = torch.autograd.grad(recurrence(*tensors, "tanh", backend=backend).sum(), tensors)
        truth = torch.autograd.grad(recurrence(*exact, "tanh", backend="reference").sum(), exact)
        for a, b in zip(found, truth, strict=True):
            torch.testing.assert_close(a, b)


def test_a_layer_says_what_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert enrnn.ENRNN(2, 6).backend_used == "cpu"
    assert enrnn.ENRNN(2, 6).half().backend_used == "cpu"  # states are held in float32
    assert enrnn.ENRNN(2, 6, backend="torch").backend_used == "torch"
    assert enrnn.ENRNN(2, 6, backend="reference").backend_used == "reference"
    assert enrnn.ENRNN(2, 6, nonlinearity=torch.sin).backend_used == "reference"
    assert enrnn.ENRNNCell(2, 6).backend_used == "torch"  # a single step
    assert enrnn.ENRNNCell(2, 6, backend="cpu").backend_used == "cpu"
    monkeypatch.setattr(_engines, "OVERRIDE", "torch")
    assert enrnn.ENRNN(2, 6).backend_used == "torch"
    _engines.warn_once.cache_clear()
    with pytest.warns(UserWarning, match=r"^ENRNN_BACKEND='torch' runs the nonlinearities .*; a callable runs on 'reference'$"):
        assert enrnn.ENRNN(2, 6, nonlinearity=torch.sin).backend_used == "reference"
    monkeypatch.setattr(_engines, "OVERRIDE", "quick")
    for nonlinearity in ("modrelu", torch.sin):
        with pytest.raises(ValueError, match="ENRNN_BACKEND"):
            enrnn.ENRNN(2, 6, nonlinearity=nonlinearity)(torch.zeros(3, 1, 2))
    monkeypatch.setattr(_engines, "OVERRIDE", "cuda")
    with pytest.raises(ValueError, match="ENRNN_BACKEND='cuda' cannot run this: the cuda engine runs on cuda tensors"):
        enrnn.ENRNN(2, 6)(torch.zeros(3, 1, 2))


def test_a_fallback_warns_once_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_cpu, "unavailable", lambda: "numba is not installed (the extra enrnn[cpu] brings it)")
    _engines.warn_once.cache_clear()
    layer = enrnn.ENRNN(2, 6)
    with pytest.warns(UserWarning, match=r"loop of torch operations, because numba is not installed \(the extra"):
        layer(torch.zeros(3, 1, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer(torch.zeros(3, 1, 2))
    with pytest.raises(ValueError, match=r"backend='cpu' cannot run this: numba is not installed"):
        enrnn.ENRNN(2, 6, backend="cpu")(torch.zeros(3, 1, 2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"backend": "fast"}, "Unknown backend 'fast'"),
        ({"backend": "cuda"}, "backend='cuda' cannot run this: the cuda engine runs on cuda tensors, and these are on cpu"),
        ({"nonlinearity": torch.sin, "backend": "cpu"}, "a callable runs on 'reference'"),
        ({"nonlinearity": "paired_modrelu"}, "needs an even number of units"),
    ],
)
def test_what_cannot_run_is_named(change: dict[str, object], message: str) -> None:
    tensors, _, _ = leaves("tanh", n=5)
    arguments = {"nonlinearity": "tanh", "backend": "auto"} | change
    with pytest.raises(ValueError, match=message):
        recurrence(*tensors, **arguments)


def test_complex_units_have_one_threshold_each_and_one_matrix() -> None:
    x, W, h = torch.zeros(2, 1, 4), torch.eye(4), torch.zeros(1, 4)
    with pytest.raises(ValueError, match=r"bias must have shape \[2\], got \[4\]"):
        recurrence(x, W, torch.zeros(4), h, "paired_modrelu")
    with pytest.raises(ValueError, match="works on one recurrent matrix"):
        long_short_recurrence(x, torch.eye(2), None, torch.eye(2), torch.zeros(2), h, "paired_modrelu")
    with pytest.raises(ValueError, match="Unknown nonlinearity 'paired_modrelu'"):
        enrnn.ENRNN(2, 6, nonlinearity="paired_modrelu")


@pytest.mark.parametrize("batch", [_gram.FEWEST - 1, _gram.FEWEST])
def test_with_few_sequences_no_steps_share_an_exponent(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """`product.cu` would lose a gradient to which early and late steps contribute alike, by factors that grow and shrink."""
    asked = []
    monkeypatch.setattr(_gram._product, "pays", lambda *_: True)

    def product(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, before: tuple[torch.Tensor, torch.Tensor]) -> None:
        asked.append(a.shape[1])
        torch.addmm(a @ b, *before, out=out)

    monkeypatch.setattr(_gram._product, "product", product)
    grad_z, initial, states = torch.randn(4, batch, 7), torch.randn(batch, 5), torch.randn(4, batch, 5)
    found = torch.empty(7, 5)
    _gram.weight_gradient(grad_z, initial, states, found)
    torch.testing.assert_close(found, torch.einsum("tbm,tbn->mn", grad_z, torch.cat([initial[None], states[:-1]])))
    assert asked == ([3 * batch] if batch >= _gram.FEWEST else [])
