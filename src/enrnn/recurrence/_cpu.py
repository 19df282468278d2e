"""The `cpu` engine: the whole sequence in one compiled call for each slice of the batch. Needs Numba, the extra `enrnn[cpu]`.

Sequences do not see each other, so a thread takes a slice of the batch through all steps, and threads never wait for each
other on the way. A matrix library is asked for `B × n` by `n × n` at every step anew, packs `W` and wakes its threads each time;
here `W` is packed once. The threads are torch's (`_team.py`); Numba's own would be a second OpenMP beside them, or not safe to
call from several Python threads.
"""

import functools
import itertools

import torch
from torch import Tensor

from . import _team, _torch

WORK_OF_A_THREAD = 1_000_000  # multiply-adds, some 15 µs: for less it is not worth waking one
MUCH_TO_PACK = 65_536  # entries of a matrix: for fewer it is not worth waking a thread
PIECES = 8  # of a sum over all steps, whatever the number of threads, so that it does not change a digit


@functools.cache
def unavailable() -> str | None:
    """Why the engine cannot run here, or None."""
    try:
        import numba
    except ModuleNotFoundError:
        return "numba is not installed (the extra enrnn[cpu] brings it)"
    except Exception as error:  # a NumPy that it does not know, a library of LLVM's that is not there: whatever it raises then
        return f"numba cannot be imported ({type(error).__name__}: {error})"
    return "numba is told not to compile (NUMBA_DISABLE_JIT is set)" if numba.config.DISABLE_JIT else None


def forward(
    inputs: Tensor,  # [T, B, n]
    weight: Tensor,  # [n, n]
    bias: Tensor | None,  # [n], [n/2] for paired_modrelu
    initial: Tensor,  # [B, n]
    nonlinearity: str,
    lengths: Tensor | None,  # [B]
    states: Tensor | None,  # [T, B, n], written
    final: Tensor,  # [B, n], written
    long_size: int = 0,
) -> None:
    """`h_t = σ(x̂_t + W h_{t−1}, b)`; a sequence past its length keeps its last state.

    `final` is the state after the last step; `states` is None where it is all that is wanted. With `long_size = q` the weight
    is `[[W_L, W_C], [0, W_S]]`, `W_L` being q×q, and its zero block is neither read nor multiplied by.
    """
    from ._cpu_kernels import FORWARD, forward_sweep, machine_code

    steps, batch, n = inputs.shape
    kind, rest = FORWARD[_effective(nonlinearity, bias)]
    written = inputs.new_empty(2, batch, n) if states is None else states
    assert written.stride(-1) == 1 or n == 1
    x, h, b = readable(inputs), readable(initial), _vector(bias, inputs)
    groups = [[0, long_size, 0, n], [long_size, n - long_size, long_size, n - long_size]] if long_size else [[0, n, 0, n]]
    shape = torch.tensor(groups)
    packed = pack(weight.mT, shape)
    matrix = packed.data_ptr(), shape.data_ptr(), len(groups), n, steps, b.data_ptr(), len(b), kind, rest
    told = *matrix, *_steps(x), *rows_of(h), *_steps(written), len(written)
    _in_slices(machine_code(forward_sweep, x.dtype), told, steps, batch, steps * batch * n * n, lengths)
    final.copy_(written[(steps - 1) % len(written)])


def backward(
    grad_states: Tensor,  # [T, B, n]
    states: Tensor,  # [T, B, n]
    weight: Tensor,  # [n, n]
    bias: Tensor | None,  # [n], [n/2] for paired_modrelu
    nonlinearity: str,
    lengths: Tensor | None,  # [B]
    grad_z: Tensor,  # [T, B, n], written
    grad_initial: Tensor,  # [B, n], written
    long_size: int = 0,
) -> None:
    """The reverse sweep: `dz_t`, the gradient at the argument of σ, and the gradient of the initial state."""
    from ._cpu_kernels import BACKWARD, backward_sweep, machine_code

    steps, batch, n = states.shape
    kind, rest = BACKWARD[_effective(nonlinearity, bias)]
    zeros = states.new_zeros(n)
    assert n == 1 or grad_z.stride(-1) == grad_initial.stride(-1) == 1
    g, h, b = readable(grad_states), readable(states), _vector(bias, states)
    groups = [[0, long_size, 0, long_size], [long_size, n - long_size, 0, n]] if long_size else [[0, n, 0, n]]
    shape = torch.tensor(groups)
    packed = pack(weight, shape)
    grad_initial.zero_()
    matrix = packed.data_ptr(), shape.data_ptr(), len(groups), n, steps, b.data_ptr(), len(b), kind, rest
    told = *matrix, *_steps(g), *_steps(h), zeros.data_ptr(), *_steps(grad_z), *rows_of(grad_initial)
    _in_slices(machine_code(backward_sweep, h.dtype), told, steps, batch, steps * batch * n * n, lengths)


def bias_gradient(states: Tensor, grad_z: Tensor, nonlinearity: str, out: Tensor | None = None) -> Tensor:
    """The gradient of the bias from what the sweeps left, in one pass over it where torch would take five."""
    if nonlinearity != "modrelu":
        return _torch.bias_gradient(states, grad_z, nonlinearity, out)
    from ._cpu_kernels import machine_code, signed_sum

    steps, batch, n = states.shape
    h, dz, pieces = readable(states), readable(grad_z), min(PIECES, steps)
    parts, totals = h.new_zeros(pieces, n), torch.zeros(pieces, n, dtype=torch.float64)
    told = pieces, n, steps, batch, *_steps(h), *_steps(dz), parts.data_ptr(), totals.data_ptr()
    threads = 1 if steps * batch * n < WORK_OF_A_THREAD else torch.get_num_threads()
    _team.run(machine_code(signed_sum, h.dtype), told, threads)
    total = totals.sum(0).to(states.dtype)
    return total if out is None else out.copy_(total)


def one_step(left: Tensor, right: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """`left @ right + bias`, to `out`: a sweep over rows that do not know of each other, of a single step."""
    from ._cpu_kernels import NOTHING, STORE, forward_sweep, machine_code

    (rows, k), n = left.shape, right.shape[1]
    given, added, shape = readable(left), _vector(bias, out), torch.tensor([[0, n, 0, k]])
    packed = pack(right, shape)
    matrix = packed.data_ptr(), shape.data_ptr(), 1, n, 1, added.data_ptr(), n, STORE, NOTHING
    told = *matrix, added.data_ptr(), 0, 0, *rows_of(given), *_steps(out.unsqueeze(0)), 1
    _in_slices(machine_code(forward_sweep, left.dtype), told, 1, rows, rows * k * n, None)


def pack(right: Tensor, groups: Tensor) -> Tensor:
    """The matrix as tiles read it: panels of a few vectors of columns, each with its rows one after the other.

    A group is `[first column, columns, first row, rows]`, a block of the matrix that is not zero; its last vector is filled
    up with zeros.
    """
    from ._cpu_kernels import VECTOR_BYTES, lay_out, machine_code

    size = right.element_size()
    lanes = VECTOR_BYTES // size
    packed = right.new_empty(sum(-(-columns // lanes) * lanes * rows for _, columns, _, rows in groups.tolist()))
    k_step, column_step = (stride * size for stride in right.stride())
    told = groups.data_ptr(), len(groups), right.data_ptr(), k_step, column_step, packed.data_ptr()
    _team.run(machine_code(lay_out, right.dtype), told, 1 if len(packed) < MUCH_TO_PACK else torch.get_num_threads())
    return packed


def _effective(nonlinearity: str, bias: Tensor | None) -> str:
    return "identity" if bias is None and nonlinearity in ("modrelu", "paired_modrelu") else nonlinearity


def readable(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _vector(bias: Tensor | None, like: Tensor) -> Tensor:
    # Detached, because other threads read it, and in those autograd is on.
    return like.new_zeros(like.shape[-1]) if bias is None else bias.detach().contiguous()


def _steps(tensor: Tensor) -> tuple[int, int, int]:
    """Where a [T, B, n] tensor is: its address, and from step to step and from row to row, in bytes."""
    return tensor.data_ptr(), tensor.stride(0) * tensor.element_size(), tensor.stride(1) * tensor.element_size()


def rows_of(tensor: Tensor) -> tuple[int, int]:
    """Where a [B, n] tensor is."""
    return tensor.data_ptr(), tensor.stride(0) * tensor.element_size()


def _in_slices(sweep: _team.Function, told: tuple[int, ...], steps: int, batch: int, work: int, lengths: Tensor | None) -> None:
    """Let threads sweep over slices `order[begin:end]` of the batch, one each.

    Within a slice long sequences come first, so that those still running at a step are neighbours in `order`.
    """
    threads = torch.get_num_threads()
    count = max(1, min(threads, batch, work // WORK_OF_A_THREAD))
    if lengths is None:
        order, ends = torch.arange(batch), torch.full((batch,), steps)
        bounds = [i * batch // count for i in range(count + 1)]
    else:
        ends, order = lengths.long().clamp(0, steps).sort(descending=True, stable=True)
        dealt = [torch.arange(i, batch, count) for i in range(count)]  # to every slice its share of the long ones
        order, ends = order[torch.cat(dealt)], ends[torch.cat(dealt)]
        bounds = list(itertools.accumulate(map(len, dealt), initial=0))
    begins = torch.tensor(bounds)
    slices = count, begins.data_ptr(), order.data_ptr(), ends.data_ptr(), batch
    _team.run(sweep, (*slices, *told), 1 if count == 1 else threads)
