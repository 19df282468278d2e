"""The long and the short part at the same time: one sweep follows the other, a few steps behind, by `eights.cu`.

Forward the short part leads. What its thread blocks send one another, its letters, is kept, and the long part, which follows,
multiplies it with `W_C` while it waits for letters of its own. Backward the long part leads.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .. import _nvrtc
from .._precision import lower_precision
from .._streams import BESIDE, another
from . import _cuda
from ._beside import joined
from ._cuda import Link, Other, as_vector, in_rows
from ._eights import Eights, eights_for
from ._shapes import Limits, in_turn

MOST_STEPS = 128
"""That may be linked: a sweep that is followed keeps all it sends, 24 KiB a step and eight sequences of 720 units. And tensor
cores, which cut off where they add, shorten a state by some 2^-26 of it a step."""

LEAST_DRIVER = 12090
"""The CUDA whose drivers tell when a kernel has begun, in a graph too: captured or not, a step has to take the same kernels."""

PAYS = 0.75
"""By how much the reckoned cost has to be lower: both are off by some 20 %."""


class Forward(NamedTuple):
    """What `_cuda.forward` is told of one part."""

    inputs: Tensor
    weight: Tensor
    bias: Tensor | None
    initial: Tensor
    states: Tensor
    final: Tensor


class Backward(NamedTuple):
    """What `_cuda.backward` is told of one part."""

    grad_states: Tensor
    states: Tensor
    weight: Tensor
    bias: Tensor | None
    grad_z: Tensor
    grad_initial: Tensor


def pair_for(like: Tensor, leads: int, follows: int, nonlinearity: str) -> tuple[Eights, Eights] | None:
    """The layouts of two sweeps of so many units over states such as `like`, if one is to follow the other: where that is
    faster, on chips on which it was tested."""
    steps, sequences, _ = like.shape
    if lower_precision() or steps > MOST_STEPS or torch.cuda.get_device_capability(like.device) not in _cuda.TESTED:
        return None
    if _nvrtc.driver_version() < LEAST_DRIVER or another(like.device, BESIDE) is None:
        return None
    return _pair(leads, follows, sequences, nonlinearity, _cuda.limits_of(like.device))


@functools.lru_cache(maxsize=1024)
def _pair(leads: int, follows: int, sequences: int, nonlinearity: str, limits: Limits) -> tuple[Eights, Eights] | None:
    first = eights_for(leads, sequences, nonlinearity, limits)
    second = eights_for(follows, sequences, nonlinearity, limits, first)
    if first is None or second is None:
        return None
    taken = sum(each.clusters(sequences) / limits.clusters[each.team * each.teams - 1] for each in (first, second))
    cost, sizes = max(first.cycles, second.cycles), sorted((leads, follows))  # whichever leads, the same answer
    return (first, second) if taken <= 1 and cost < PAYS * in_turn(sizes[0], sizes[1], sequences, limits) else None


def forward(
    layouts: tuple[Eights, Eights],
    parts: tuple[Forward, Forward],
    coupling: Tensor,
    nonlinearity: str,
    lengths: Tensor | None,
) -> None:
    """Two forward sweeps, the second of which gains `coupling` times the first one's state before."""
    lengths, first, second = as_vector(lengths), _as_read(parts[0]), _as_read(parts[1])
    links = _links(layouts, first.inputs, (first.weight, second.weight), coupling, nonlinearity, lengths, False)
    for (inputs, weight, bias, initial, states, final), link in zip((first, second), links, strict=True):
        _cuda.forward(inputs, weight, bias, initial, nonlinearity, lengths, states, final, link)


def _as_read(part: Forward) -> Forward:
    """As the sweep reads it: if it had to be copied only then, the copy would come between the two sweeps."""
    return part._replace(inputs=in_rows(part.inputs), initial=in_rows(part.initial), bias=as_vector(part.bias))


def backward(
    layouts: tuple[Eights, Eights],
    parts: tuple[Backward, Backward],
    coupling: Tensor,
    nonlinearity: str,
    lengths: Tensor | None,
    after_first: Callable[[], None] = lambda: None,
    after_second: Callable[[], None] = lambda: None,
    after_both: Callable[[], None] = lambda: None,
) -> None:
    """Two reverse sweeps, the second of which gains the transpose of `coupling` times what the first one has found for the step
    after, and for the initial state too. What needs the one sweep, the other, or both is done as soon as it can be."""
    lengths, parts = as_vector(lengths), (_as_read_in_reverse(parts[0]), _as_read_in_reverse(parts[1]))
    links = _links(layouts, parts[0].states, (parts[0].weight, parts[1].weight), coupling, nonlinearity, lengths, True)
    device, swept = coupling.device, []

    def sweep(i: int, beside: Callable[[], None] | None) -> None:
        grad_states, states, weight, bias, grad_z, grad_initial = parts[i]
        _cuda.backward(grad_states, states, weight, bias, nonlinearity, lengths, grad_z, grad_initial, beside, links[i])

    def follow() -> None:
        sweep(1, None)
        swept.append(torch.cuda.current_stream(device).record_event())
        after_second()

    with joined(device):
        sweep(0, follow)
        after_first()
        torch.cuda.current_stream(device).wait_event(swept[0])
        after_both()


def _as_read_in_reverse(part: Backward) -> Backward:
    return part._replace(grad_states=in_rows(part.grad_states), states=in_rows(part.states), bias=as_vector(part.bias))


def _links(
    layouts: tuple[Eights, Eights],
    like: Tensor,
    weights: tuple[Tensor, Tensor],
    coupling: Tensor,
    nonlinearity: str,
    lengths: Tensor | None,
    backward: bool,
) -> tuple[Link, Link]:
    """Of the sweep that leads and the one that follows; their matrices are laid out.

    All memory is asked for first: torch may be told to fill it, and that must not come between two launches.
    """
    steps, sequences, _ = like.shape
    rooms = [_cuda.room_for(layouts[0], sequences, steps + 1, like), _cuda.room_for(layouts[1], sequences, 2, like)]
    told = torch.empty(layouts[0].teams_for(sequences), dtype=torch.int32, device=like.device)
    followed = Other(rooms[0][1].data_ptr(), layouts[0].letters(sequences, 1), told.data_ptr())
    links = Link(layouts[0], *rooms[0], told), Link(layouts[1], *rooms[1], follows=followed)
    loaded = [_cuda.kernels_for(layout, nonlinearity, backward, lengths, like.device) for layout in layouts]
    _cuda.pack_eights(weights[1], coupling, loaded[1], backward, links[1])  # first: who waits for the other waits for both
    _cuda.pack_eights(weights[0], None, loaded[0], backward, links[0], early=True)
    return links
