"""The long and the short part at the same time: one sweep follows the other, a few steps behind, by `eights.cu`.

Forward the short part leads. What its thread blocks send one another, its letters, is kept; `coupling.cu` multiplies it with
`W_C`, state after state, and the long part, which follows, adds that to its inputs. Backward the long part leads.
"""

import functools
import itertools
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from .. import _launch, _nvrtc
from .._launch import Kernel
from .._precision import lower_precision
from . import _cuda
from ._beside import Joined
from ._cuda import Link, as_vector, in_rows
from ._eights import SEQUENCES, Coupling, Eights, Packed, coupling_for, eights_for
from ._pack import pack
from ._shapes import Limits, in_turn

COUPLING = _nvrtc.text(_cuda.HALVES_SOURCE, _cuda.LETTERS_SOURCE, Path(__file__).with_name("coupling.cu"))

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


class Linked(NamedTuple):
    """The layouts of three kernels that run at the same time."""

    leads: Eights
    couples: Coupling
    follows: Eights


def linked_for(like: Tensor, leads: int, follows: int, nonlinearity: str) -> Linked | None:
    """The layouts for two sweeps of so many units over states such as `like`, if one is to follow the other: where that is
    faster, on chips on which it was tested."""
    (steps, sequences, _), limits = like.shape, _cuda.limits_of(like.device)
    found = linked(leads, follows, sequences, nonlinearity, limits) if steps <= MOST_STEPS else None
    if found is None or not pays(found, leads, follows, sequences, limits) or lower_precision():
        return None
    tested = torch.cuda.get_device_capability(like.device) in _cuda.TESTED
    return found if tested and _launch.driver_version() >= LEAST_DRIVER else None


@functools.lru_cache(maxsize=1024)
def linked(leads: int, follows: int, sequences: int, nonlinearity: str, limits: Limits) -> Linked | None:
    """The layouts, if there is room for all of them at the same time."""
    first, second = (eights_for(n, sequences, nonlinearity, limits) for n in (leads, follows))
    if first is None or second is None:
        return None
    between = coupling_for(first, second, sequences, limits)
    needed = [(first.cluster, first.clusters(sequences)), (second.cluster, second.clusters(sequences)), (between.cluster, 1)]
    room = [limits.clusters[size - 1] for size, _ in needed]
    if not all(room) or sum(Fraction(many, most) for (_, many), most in zip(needed, room, strict=True)) > 1:
        return None
    return Linked(first, between, second._replace(follows=True)) if between.shared_bytes <= limits.shared else None


@functools.lru_cache(maxsize=1024)
def pays(layouts: Linked, leads: int, follows: int, sequences: int, limits: Limits) -> bool:
    """Whether they are reckoned to be that much faster than one after the other."""
    cost = max(layouts.leads.cycles, layouts.follows.cycles, layouts.couples.cycles(sequences))
    smaller, larger = sorted((leads, follows))  # which of them is the long part makes little difference
    return cost < PAYS * in_turn(smaller, larger, sequences, limits)


def forward(
    layouts: Linked,
    parts: tuple[Forward, Forward],
    coupling: Tensor,
    nonlinearity: str,
    lengths: Tensor | None,
) -> None:
    """Two forward sweeps, the second of which gains `coupling` times the first one's state before."""
    lengths, first, second = as_vector(lengths), _as_read(parts[0]), _as_read(parts[1])
    leads, couple, follows = _links(layouts, first.inputs, (first.weight, second.weight), coupling, nonlinearity, False)
    _sweep(first, nonlinearity, lengths, leads)
    couple()
    _sweep(second, nonlinearity, lengths, follows)


def _sweep(part: Forward, nonlinearity: str, lengths: Tensor | None, link: Link) -> None:
    inputs, weight, bias, initial, states, final = part
    _cuda.forward(inputs, weight, bias, initial, nonlinearity, lengths, states, final, link)


def _as_read(part: Forward) -> Forward:
    """As the sweep reads it: if it had to be copied only then, the copy would come between the two sweeps."""
    inputs, weight, bias, initial, states, final = part
    return Forward(in_rows(inputs), weight, as_vector(bias), in_rows(initial), states, final)


def backward(
    layouts: Linked,
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
    lengths, first, second = as_vector(lengths), _as_read_in_reverse(parts[0]), _as_read_in_reverse(parts[1])
    leads, couple, follows = _links(layouts, first.states, (first.weight, second.weight), coupling, nonlinearity, True)
    device, swept = coupling.device, []

    def follow() -> None:
        couple()
        _sweep_in_reverse(second, nonlinearity, lengths, follows)
        swept.append(torch.cuda.current_stream(device).record_event())
        after_second()

    with Joined(device):
        _sweep_in_reverse(first, nonlinearity, lengths, leads, follow)
        after_first()
        torch.cuda.current_stream(device).wait_event(swept[0])
        after_both()


def _sweep_in_reverse(
    part: Backward, nonlinearity: str, lengths: Tensor | None, link: Link, meanwhile: Callable[[], None] | None = None
) -> None:
    grad_states, states, weight, bias, grad_z, grad_initial = part
    _cuda.backward(grad_states, states, weight, bias, nonlinearity, lengths, grad_z, grad_initial, meanwhile, link)


def _as_read_in_reverse(part: Backward) -> Backward:
    grad_states, states, weight, bias, grad_z, grad_initial = part
    return Backward(in_rows(grad_states), in_rows(states), weight, as_vector(bias), grad_z, grad_initial)


class Room(NamedTuple):
    """What the three kernels need for themselves, in one piece of memory: bytes from its beginning, and its size."""

    layouts: list[Packed]
    """Of the matrices."""
    packed: list[int]
    letters: int
    others: int
    told: int
    gained: int
    gained_words: int
    """Of 16 bytes."""
    size: int


@functools.lru_cache(maxsize=1024)
def room_for(layouts: Linked, steps: int, sequences: int) -> Room:
    leads, couples, follows = layouts
    gained, matrices = 4 * couples.gained(sequences, steps + 1), [leads.packed, couples.packed, follows.packed]
    sizes = [4 * matrix.floats for matrix in matrices]
    sizes += leads.letters(sequences, steps + 1), follows.letters(sequences, 2), 4 * leads.teams_for(sequences), gained
    *packed, letters, others, told, at, end = itertools.accumulate((-(-size // 256) * 256 for size in sizes), initial=0)
    return Room(matrices, packed, letters, others, told, at, gained // 16, end)


def _links(
    layouts: Linked,
    like: Tensor,
    weights: tuple[Tensor, Tensor],
    coupling: Tensor,
    nonlinearity: str,
    backward: bool,
) -> tuple[Link, Callable[[], None], Link]:
    """Of the sweep that leads and the one that follows; between them, what is to be launched. The matrices are laid out.

    All memory is asked for first, and all kernels are loaded: torch may be told to fill memory, and nothing must come between two
    launches.
    """
    (steps, sequences, _), (leads, couples, follows) = like.shape, layouts
    room = room_for(layouts, steps, sequences)
    memory = torch.empty(room.size, dtype=torch.uint8, device=like.device)
    start = memory.data_ptr()
    packed, letters, told, gained = (
        [start + at for at in room.packed],
        start + room.letters,
        start + room.told,
        start + room.gained,
    )
    kernel = _coupling_kernel(couples, like.device)
    sweeps = [_cuda.kernels_for(layout, nonlinearity, backward, None, like.device) for layout in (leads, follows)]
    matrices = zip(room.layouts, (weights[0], coupling, weights[1]), packed, strict=True)
    pack(list(matrices), backward, gained, room.gained_words)

    def couple() -> None:
        kernel(
            *(couples.cluster, couples.threads),
            *(packed[1], letters, leads.letters(sequences, 1), told, gained),
            *((1, steps) if backward else (0, steps - 1)),
            *(-(-sequences // SEQUENCES), couples.each(sequences)),
            early=not backward,
        )

    return (
        Link(leads, packed[0], letters, tells=told, kernels=sweeps[0], memory=memory),
        couple,
        Link(follows, packed[2], start + room.others, gains=gained, kernels=sweeps[1], memory=memory),
    )


_loaded: dict[tuple[Coupling, torch.device], Kernel] = {}


def _coupling_kernel(layout: Coupling, device: torch.device) -> Kernel:
    if (layout, device) not in _loaded:
        _cuda.forbid_loading()
        (_loaded[layout, device],) = _nvrtc.load(COUPLING, {"couple": layout.shared_bytes}, device, **layout.defines)
    return _loaded[layout, device]
