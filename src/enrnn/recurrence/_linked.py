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
    inputs: Tensor,
    blocks: tuple[Tensor, Tensor, Tensor],
    bias: Tensor | None,
    initial: Tensor,
    nonlinearity: str,
    lengths: Tensor | None,
    states: Tensor,
    final: Tensor,
) -> None:
    """Two forward sweeps, of which the short part's leads, with the matrices `W_L`, `W_C` and `W_S`. As `_cuda.forward`."""
    long, coupling, short = blocks
    inputs, initial, bias, lengths = in_rows(inputs), in_rows(initial), as_vector(bias), as_vector(lengths)
    leads, couple, follows = _links(layouts, inputs, (short, coupling, long), nonlinearity, False)
    given = bias, initial, nonlinearity, lengths, states, final
    _cuda.forward(inputs, short, *given, leads)
    couple()
    _cuda.forward(inputs, long, *given, follows)


def backward(
    layouts: Linked,
    grad_states: Tensor,
    states: Tensor,
    blocks: tuple[Tensor, Tensor, Tensor],
    bias: Tensor | None,
    nonlinearity: str,
    lengths: Tensor | None,
    grad_z: Tensor,
    grad_initial: Tensor,
    after_first: Callable[[], None] = lambda: None,
    after_second: Callable[[], None] = lambda: None,
    after_both: Callable[[], None] = lambda: None,
) -> None:
    """Two reverse sweeps, of which the long part's leads; the other gains the transpose of `W_C` times what the first one has
    found for the step after, and for the initial state too. As `_cuda.backward`; and what needs the one sweep, the other, or both
    is done as soon as it can be."""
    long, coupling, short = blocks
    grad_states, states, bias, lengths = in_rows(grad_states), in_rows(states), as_vector(bias), as_vector(lengths)
    leads, couple, follows = _links(layouts, states, (long, coupling, short), nonlinearity, True)
    device, swept, given = states.device, [], (bias, nonlinearity, lengths, grad_z, grad_initial)

    def follow() -> None:
        couple()
        _cuda.backward(grad_states, states, short, *given, None, follows)
        swept.append(_launch.mark(torch.cuda.current_stream(device)))
        after_second()

    with Joined(device):
        _cuda.backward(grad_states, states, long, *given, follow, leads)
        after_first()
        _launch.wait_for(swept[0], torch.cuda.current_stream(device))
        after_both()


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
    layouts: Linked, like: Tensor, matrices: tuple[Tensor, Tensor, Tensor], nonlinearity: str, backward: bool
) -> tuple[Link, Callable[[], None], Link]:
    """Of the sweep that leads and the one that follows; between them, what is to be launched. Their matrices, and in the middle
    the one between them, are laid out.

    What a sweep reads has been copied, if it must be, before this; all memory is asked for first, and all kernels are loaded:
    torch may be told to fill memory, and nothing must come between two launches.
    """
    (steps, sequences, n), (leads, couples, follows), device = like.shape, layouts, like.device
    room, led, following = room_for(layouts, steps, sequences), matrices[0].shape[0], matrices[2].shape[0]
    memory = torch.empty(room.size, dtype=torch.uint8, device=device)
    start = _launch.address(memory)
    packed, letters, told, gained = (
        [start + at for at in room.packed],
        start + room.letters,
        start + room.told,
        start + room.gained,
    )
    kernel = _coupling_kernel(couples, device)
    sweeps = [_cuda.kernels_for(layout, nonlinearity, backward, None, device) for layout in (leads, follows)]
    pack(list(zip(room.layouts, matrices, packed, strict=True)), backward, gained, room.gained_words)

    def couple() -> None:
        kernel(
            *(couples.cluster, couples.threads),
            *(packed[1], letters, leads.letters(sequences, 1), told, gained),
            *((1, steps) if backward else (0, steps - 1)),
            *(-(-sequences // SEQUENCES), couples.each(sequences)),
            early=not backward,
        )

    first, second = (0, led) if backward else (n - led, led), (n - following, following) if backward else (0, following)
    return (
        Link(leads, packed[0], letters, told, None, first, sweeps[0], memory),
        couple,
        Link(follows, packed[2], start + room.others, None, gained, second, sweeps[1], memory),
    )


_loaded: dict[tuple[Coupling, torch.device], Kernel] = {}


def _coupling_kernel(layout: Coupling, device: torch.device) -> Kernel:
    if (layout, device) not in _loaded:
        _cuda.forbid_loading()
        (_loaded[layout, device],) = _nvrtc.load(COUPLING, {"couple": layout.shared_bytes}, device, **layout.defines)
    return _loaded[layout, device]
