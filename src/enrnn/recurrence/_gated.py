"""The recurrence of a gated unit with one orthogonal matrix, GORU's, as one operator with a hand-written reverse sweep:

    r = sigmoid(x_r + W_r h),   z = sigmoid(x_z + W_z h),   c = σ(x_c + r ⊙ (Q h), b),   h' = z ⊙ h + (1 − z) ⊙ c.

A step is one product with `[Q; W_r; W_z]` and what is done to each unit on its own: on a GPU in float32 one kernel (`gated.cu`),
elsewhere a few torch operations (`_gated_torch`). So is a step back, after which the gradient of the weights is one product.

Shapes: T steps, B sequences, n units. `kept` [T, B, 4n] holds `[Q h | r | z | c]` of every step, the first three parts of which
are written by the product; `swept` [T, B, 4n] the gradients at `[Q h | x_r | x_z | x_c]`. So the product back takes the first
three parts of `swept`, and the last three are the gradient of the inputs.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import _nvrtc
from .._launch import Kernel
from .._operators import Operator, differentiated
from .._precision import full_precision
from ..nonlinearities import NONLINEARITIES
from . import _gated_torch
from ._cuda import as_vector, in_rows
from ._dispatch import fusable_name
from ._gram import weight_gradient
from ._once import no_second_derivative
from ._trust import Noise, Trusted

NAME = "gated"
"""What `backend_used` calls it."""

SOURCE = Path(__file__).with_name("gated.cu")
SIGMA = {"modrelu": 0, "relu": 1, "tanh": 2, "identity": 3, "leaky_relu": 5}
THREADS = 128
"""Of a thread block, at most; as in the source."""

ROWS = 65535
"""Thread blocks that a grid has room for in its second direction; each takes one sequence after another."""


@Operator
def gated(
    inputs: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial: Tensor,
    nonlinearity: str,
    lengths: Tensor | None,
    keep: bool,
) -> tuple[Tensor, Tensor]:
    """All states [T, B, n], and `kept` if a gradient will be wanted, else nothing, [0, B, 4n].

    `inputs` [T, B, 3n] are x_r, x_z and x_c, `weight` [3n, n] is `[Q; W_r; W_z]`, `bias` [n] is modReLU's threshold; with any
    other σ it is None. The rest: as for `recurrence`.
    """
    if (bias is None) == (nonlinearity == "modrelu"):
        raise ValueError("modReLU needs a threshold, and no other nonlinearity has one")
    T, B, _ = inputs.shape
    n = initial.shape[1]
    states = inputs.new_empty(T, B, n)
    kept = inputs.new_empty(T if keep else 1, B, 4 * n)
    if inputs.numel():
        with full_precision(inputs):
            _sweep(inputs, weight, bias, initial, nonlinearity, lengths, kept, states)
    return states, kept if keep else inputs.new_empty(0, B, 4 * n)


@gated.register_fake
def _(
    inputs: Tensor, weight: Tensor, bias: Tensor | None, initial: Tensor, nonlinearity: str, lengths: Tensor | None, keep: bool
) -> tuple[Tensor, Tensor]:
    T, B, _ = inputs.shape
    n = initial.shape[1]
    return inputs.new_empty(T, B, n), inputs.new_empty(T if keep else 0, B, 4 * n)


@Operator
def gated_backward(
    grad_states: Tensor,
    states: Tensor,
    kept: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial: Tensor,
    nonlinearity: str,
    lengths: Tensor | None,
    weigh: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The reverse sweep: `swept`, and the gradients of the bias, of the initial state and, if wanted, of the weights."""
    n = initial.shape[1]
    states, kept = states.contiguous(), kept.contiguous()
    swept, grad_initial = torch.empty_like(kept), states.new_zeros(states.shape[1:])
    grad_bias, grad_weight = states.new_zeros(0 if bias is None else n), states.new_zeros(weight.shape if weigh else 0)
    if states.numel():
        with full_precision(states):
            _sweep_back(grad_states, states, kept, weight, bias, initial, nonlinearity, lengths, swept, grad_initial)
            if bias is not None:
                c, by_candidate = (each[..., 3 * n :] for each in (kept, swept))
                grad_bias = NONLINEARITIES[nonlinearity].bias_gradient(c, by_candidate).sum((0, 1))
            if weigh:
                weight_gradient(swept[..., : 3 * n], initial, states, grad_weight)
    return swept, grad_bias, grad_initial, grad_weight


@gated_backward.register_fake
def _(
    grad_states: Tensor, states: Tensor, kept: Tensor, weight: Tensor, bias: Tensor | None, *others: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    by_bias, by_weight = states.new_empty(0 if bias is None else len(bias)), states.new_empty(weight.shape if others[-1] else 0)
    return kept.new_empty(kept.shape), by_bias, states.new_empty(states.shape[1:]), by_weight


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    _, weight, bias, initial, ctx.nonlinearity, lengths, ctx.keep = inputs
    states, kept = output
    ctx.mark_non_differentiable(kept)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(states, kept, weight, bias, initial, lengths)


def _backward(ctx: Any, grad_states: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    states, kept, weight, bias, initial, lengths = ctx.saved_tensors
    assert ctx.keep  # or there is no gradient to be had
    if grad_states is None:
        return (None,) * 7
    n = initial.shape[1]
    weigh = ctx.needs_input_grad[1]
    swept, grad_bias, grad_initial, grad_weight = gated_backward(
        grad_states, states, kept, weight, bias, initial, ctx.nonlinearity, lengths, weigh
    )
    by_weight, by_bias = grad_weight if weigh else None, None if bias is None else grad_bias
    return swept[..., n:], by_weight, by_bias, grad_initial, None, None, None


gated.register_autograd(_backward, setup_context=_setup_context)
gated_backward.register_autograd(no_second_derivative)


def gated_recurrence(
    inputs: Tensor,
    gates: Tensor,
    matrix: Tensor,
    bias: Tensor | None,
    initial: Tensor,
    nonlinearity: str,
    lengths: Tensor | None,
) -> Tensor:
    """The operator, for a layer that has asked `fused`: its `gates` are `[W_r; W_z]`, its `matrix` is `Q`."""
    weight = torch.cat([matrix, gates])
    keep = differentiated(inputs, weight, bias, initial)
    states: Tensor = gated(inputs, weight, bias, initial, nonlinearity, lengths, keep)[0]
    return states


def fused(backend: str, device: torch.device, nonlinearity: str | Callable[[Tensor], Tensor], bias: bool) -> str | None:
    """The name of σ for the operator, or None where the reference has to run: a callable, or another backend was asked for."""
    name, backend = fusable_name(nonlinearity, bias, backend)
    return name if name in SIGMA and backend in ("auto", device.type) else None


def _sweep(
    inputs: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial: Tensor,
    nonlinearity: str,
    lengths: Tensor | None,
    kept: Tensor,  # written; with room for all steps or for one
    states: Tensor,  # written
) -> None:
    T, _, n = states.shape
    kernels = _kernels_for(inputs, nonlinearity)
    if kernels is None:
        step = _gated_torch.forward(inputs, bias, initial, nonlinearity, lengths, kept, states)
    else:
        step = _forward_launch(kernels[0], inputs, bias, initial, lengths, kept, states)
    transposed = weight.mT if T == 1 else weight.mT.contiguous()  # 7.5 µs instead of 9.5 for a product of 512 units
    products = kept[..., : 3 * n].unbind() * (T // len(kept))
    previous = initial, *states.unbind()
    for t in range(T):
        torch.mm(previous[t], transposed, out=products[t])
        step(t)


def _sweep_back(
    grad_states: Tensor,
    states: Tensor,
    kept: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial: Tensor,
    nonlinearity: str,
    lengths: Tensor | None,
    swept: Tensor,  # written
    carried: Tensor,  # [B, n]: zero; made the gradient of the initial state
) -> None:
    T, _, n = states.shape
    kernels = _kernels_for(states, nonlinearity)
    if kernels is None:
        step = _gated_torch.backward(grad_states, states, kept, bias, initial, nonlinearity, lengths, carried, swept)
    else:
        step = _backward_launch(kernels[1], grad_states, states, kept, initial, lengths, carried, swept)
    by_products = swept[..., : 3 * n].unbind()
    for t in range(T - 1, -1, -1):
        step(t)
        carried.addmm_(by_products[t], weight)


def _forward_launch(
    kernel: Kernel, inputs: Tensor, bias: Tensor | None, initial: Tensor, lengths: Tensor | None, kept: Tensor, states: Tensor
) -> Callable[[int], None]:
    """As `_gated_torch.forward`."""
    T, B, n = states.shape
    inputs, initial = in_rows(inputs), in_rows(initial)
    given = inputs, inputs.stride(0), inputs.stride(1), initial, initial.stride(0), as_vector(bias), as_vector(lengths)
    kept_step = kept.stride(0) if len(kept) == T else 0
    return lambda t: kernel(*_grid(B, n), *given, kept, kept_step, states, t, B, n)


def _backward_launch(
    kernel: Kernel,
    grad_states: Tensor,
    states: Tensor,
    kept: Tensor,
    initial: Tensor,
    lengths: Tensor | None,
    carried: Tensor,
    swept: Tensor,
) -> Callable[[int], None]:
    """As `_gated_torch.backward`."""
    _, B, n = states.shape
    upstream, initial = in_rows(grad_states), in_rows(initial)
    given = upstream, upstream.stride(0), upstream.stride(1), states, initial, initial.stride(0), as_vector(lengths), kept
    return lambda t: kernel(*_grid(B, n), *given, carried, swept, t, B, n)


_loaded: dict[tuple[str, torch.device], list[Kernel]] = {}


def _kernels_for(like: Tensor, nonlinearity: str) -> list[Kernel] | None:
    """`forward` and `backward` for tensors such as `like`; None where there are none, or none yet and a graph is captured."""
    if not like.is_cuda or like.dtype != torch.float32:
        return None
    key = nonlinearity, like.device
    if not _trusted(like.device):
        return None
    if key not in _loaded:
        if torch.cuda.is_current_stream_capturing():
            return None
        _loaded[key] = _nvrtc.load(_nvrtc.text(SOURCE), {"forward": 0, "backward": 0}, like.device, SIGMA=SIGMA[nonlinearity])
    return _loaded[key]


def _tried(noise: Noise) -> list[tuple[Tensor, Tensor]]:
    """Both sweeps, by torch in float64 and by the kernels."""
    T, B, n = 5, 3, 40
    weight, bias, initial = noise(3 * n, n) / n**0.5, -0.1 * noise(n).abs(), noise(B, n)
    given, upstream = (noise(T, B, 3 * n), weight, bias, initial), noise(T, B, n)
    states, kept = gated(*given, "modrelu", None, True)
    exact = gated_backward(upstream, states, kept, *given[1:], "modrelu", None, True)
    single = [each.float() for each in given]
    found = gated_backward(upstream.float(), states.float(), kept.float(), *single[1:], "modrelu", None, True)
    return [*zip((states, kept, *exact), (*gated(*single, "modrelu", None, True), *found), strict=True)]


_trusted = Trusted("gated.cu", _tried)


def _grid(sequences: int, units: int) -> tuple[tuple[int, int], int]:
    threads = min(THREADS, -(-units // 32) * 32)
    return (-(-units // threads), min(sequences, ROWS)), threads
