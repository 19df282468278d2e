"""The sweeps as one CUDA kernel each, compiled at run time: `recurrence.cu`, `wide.cu` for many sequences, or `eights.cu` for two
sweeps at once."""

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from .. import _launch, _nvrtc
from .._launch import Kernel, address, filled
from .._precision import exact_products, lower_precision
from .._replay import copied
from ..nonlinearities import NONLINEARITIES
from ._beside import beside
from ._eights import Eights
from ._shapes import Limits, Shape, layout_for, shape_for
from ._wide import Wide

NONLINEARITIES_SOURCE = Path(__file__).with_name("nonlinearities.cu")
BLOCKS_SOURCE = Path(__file__).with_name("blocks.cu")
SOURCE = Path(__file__).with_name("recurrence.cu")
WIDE_SOURCE = Path(__file__).with_name("wide.cu")
HALVES_SOURCE = Path(__file__).with_name("halves.cu")
LETTERS_SOURCE = Path(__file__).with_name("letters.cu")
EIGHTS_SOURCE = Path(__file__).with_name("eights.cu")
SIGMA = {"modrelu": 0, "relu": 1, "tanh": 2, "identity": 3, "paired_modrelu": 4, "leaky_relu": 5}
TESTED = {(9, 0)}
"""Compute capabilities of chips on which the test suite has passed; on any other the first use checks itself."""


def why_not(device: torch.device, dtype: torch.dtype, n: int, nonlinearity: str) -> str | None:
    """Why there is no kernel for this recurrence, or None if there is."""
    if dtype != torch.float32:
        return f"the CUDA kernel computes in float32, and these tensors are {str(dtype).removeprefix('torch.')}"
    reason = unavailable(device)
    if reason is None and shape_for(n, 1, NONLINEARITIES[nonlinearity].parts, limits_of(device)) is None:
        reason = f"a {n} x {n} matrix has no room in the registers and shared memory of this GPU"
        reason += "" if len(limits_of(device).clusters) > 1 else ", which has no thread block clusters"
    return reason


@functools.cache
def unavailable(device: torch.device) -> str | None:
    """Why no kernel runs on this device, or None."""
    reason = _nvrtc.unavailable()
    if reason is not None:
        return reason
    forbid_loading()
    capability = torch.cuda.get_device_capability(device)
    if capability < (8, 0):
        return f"the kernels need compute capability 8.0, and this GPU has {capability[0]}.{capability[1]}"
    if capability in TESTED:
        return None
    try:
        with exact_products():
            return _self_check(device)
    except RuntimeError as error:
        return f"the kernels do not run on this GPU: {error}"


@functools.cache
def limits_of(device: torch.device) -> Limits:
    """What the chip says of itself."""
    forbid_loading()
    clusters = _nvrtc.clusters_at_once(device) if torch.cuda.get_device_capability(device) >= (9, 0) else ()
    return Limits(*_nvrtc.room_of(device), (torch.cuda.get_device_properties(device).multi_processor_count, *clusters))


Blocks = tuple[Tensor, Tensor | None, Tensor]
"""`W_L`, `W_C` (or None) and `W_S` of the one matrix `[[W_L, W_C], [0, W_S]]`."""


Layout = Shape | Wide | Eights
"""How one of the kernels is laid out."""


class Link(NamedTuple):
    """What a sweep of `eights.cu` has of its own, and how it goes together with another."""

    layout: Eights
    packed: Tensor | int
    """The matrix, as `pack.cu` lays it out; or, as with all of these, where it is."""
    letters: Tensor | int
    tells: Tensor | int | None = None
    """Where it tells how many letters there are, if it is followed."""
    gains: Tensor | int | None = None
    """What it gains, if it follows."""
    units: tuple[int, int] | None = None
    """Which of the units of all tensors it is given are its own: the first, and how many. None: all."""
    kernels: "Kernels | None" = None
    memory: Tensor | None = None
    """That all this is in."""


def forward(
    inputs: Tensor,
    weight: Tensor | Blocks,
    bias: Tensor | None,
    initial: Tensor,
    nonlinearity: str,
    lengths: Tensor | None,
    states: Tensor | None,
    final: Tensor,
    link: Link | None = None,
) -> None:
    T, B, n = inputs.shape
    first, n = (link and link.units) or (0, n)
    layout = link.layout if link else _layout(n, B, nonlinearity, False, inputs.device, weight)
    kernels = (link and link.kernels) or kernels_for(layout, nonlinearity, False, lengths, inputs.device)
    inputs, initial, bias, lengths = in_rows(inputs), in_rows(initial), as_vector(bias), as_vector(lengths)
    kernels.sweep(
        *(layout.blocks(B), layout.block(False)),
        *(*(_linked_with(link, B) if link else (_packed(weight, n, kernels),)), *_from(bias, first), lengths),
        *(*_from(initial, first), *_from(final, first), *_from(inputs, first)),
        *(None, 0, 0),
        *((None, 0, 0) if states is None else _from(states, first)),
        *(T, B, n, _long_size(weight)),
        early=True,
    )


def backward(
    grad_states: Tensor,
    states: Tensor,
    weight: Tensor | Blocks,
    bias: Tensor | None,
    nonlinearity: str,
    lengths: Tensor | None,
    grad_z: Tensor,
    grad_initial: Tensor,
    meanwhile: Callable[[], None] | None = None,
    link: Link | None = None,
) -> None:
    """With a link that tells, `meanwhile` is the sweep that follows this one, and must not come first. Else it needs what was
    done before, and that this sweep has begun is no more than a good moment for it."""
    T, B, n = states.shape
    first, n = (link and link.units) or (0, n)
    led, tells = link is not None and link.tells is not None, meanwhile is not None and _launch.tells_when_begun()
    if meanwhile is not None and not tells and not led:
        meanwhile()
        meanwhile = None
    layout = link.layout if link else _layout(n, B, nonlinearity, True, states.device, weight)
    kernels = (link and link.kernels) or kernels_for(layout, nonlinearity, True, lengths, states.device)
    grad_states, states, bias, lengths = in_rows(grad_states), in_rows(states), as_vector(bias), as_vector(lengths)
    after = [_launch.mark(torch.cuda.current_stream(states.device))] if tells and not led else []
    begun = kernels.sweep(
        *(layout.blocks(B), layout.block(True)),
        *(*(_linked_with(link, B) if link else (_packed(weight, n, kernels),)), *_from(bias, first), lengths),
        *(None, 0, *_from(grad_initial, first)),
        *(*_from(grad_states, first), *_from(states, first), *_from(grad_z, first)),
        *(T, B, n, _long_size(weight)),
        early=True,
        begun=tells,
        lets=led,
    )
    if tells and meanwhile is not None:
        beside([*after, begun], meanwhile, states.device)
    elif meanwhile is not None:
        meanwhile()


def forbid_loading() -> None:
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError("a kernel cannot be compiled while a CUDA graph is captured: run the step once before capturing it")


def in_rows(tensor: Tensor) -> Tensor:
    """The kernel takes any strides but the last."""
    return tensor if tensor.stride(-1) == 1 else copied(tensor, tensor.dtype)


def _from(tensor: Tensor | None, unit: int) -> tuple[int, ...]:
    """As a kernel is told of a tensor of floats whose units are neighbours: where it begins, from that unit on, and its other
    strides."""
    return (0,) if tensor is None else (address(tensor) + 4 * unit, *tensor.stride()[:-1])


def as_vector(values: Tensor | None) -> Tensor | None:
    """A bias, or lengths as 64-bit integers, without gaps."""
    if values is None:
        return None
    dtype = values.dtype if values.is_floating_point() else torch.int64
    return values if values.dtype == dtype and values.is_contiguous() else copied(values, dtype)


class Block(ctypes.Structure):
    """A block of the matrix, with any strides, as in the source."""

    _fields_ = (("start", ctypes.c_void_p), ("down", ctypes.c_longlong), ("right", ctypes.c_longlong))


class Matrix(ctypes.Structure):
    """The argument of `pack`, as in the source."""

    _fields_ = (("blocks", Block * 3), ("n", ctypes.c_longlong), ("q", ctypes.c_longlong))


def _linked_with(link: Link, sequences: int) -> tuple[Tensor | int | None, ...]:
    """What a sweep of `eights.cu` is told of its matrix, its letters and the other sweep."""
    return link.packed, link.letters, link.layout.letters(sequences, 1), link.tells, link.gains


def _packed(weight: Tensor | Blocks, n: int, kernels: "Kernels") -> Tensor:
    """The matrix as the sweep's threads want it. A plain one is all long."""
    given = (weight, None, None) if isinstance(weight, Tensor) else weight
    fields: list[int] = []
    for block in given:
        fields += (0, 0, 0) if block is None else (address(block), *block.stride())
    assert kernels.pack is not None
    assert not isinstance(kernels.layout, Eights)
    grid, threads, numbers = kernels.layout.packing
    packed = given[0].new_empty(numbers)
    kernels.pack(grid, threads, filled(Matrix, *fields, n, given[0].shape[0]), packed)
    return packed


def _long_size(weight: Tensor | Blocks) -> int:
    return (weight if isinstance(weight, Tensor) else weight[0]).shape[0]


class Kernels(NamedTuple):
    """Those of `recurrence.cu`, `wide.cu` or `eights.cu` for one layout, nonlinearity and direction."""

    layout: Layout
    sweep: Kernel
    pack: Kernel | None = None
    """`eights.cu` has none of its own: `pack.cu` lays out several matrices at once."""


_loaded: dict[tuple[type, Layout, str, bool, bool, torch.device], Kernels] = {}


def _layout(
    n: int, sequences: int, nonlinearity: str, backward: bool, device: torch.device, weight: Tensor | Blocks
) -> Shape | Wide:
    parts, limits = NONLINEARITIES[nonlinearity].parts, limits_of(device)
    layout = layout_for(n, sequences, parts, limits, _long_size(weight), backward, lower_precision())
    assert layout is not None  # or `why_not` would have said so
    return layout


def kernels_for(layout: Layout, nonlinearity: str, backward: bool, lengths: Tensor | None, device: torch.device) -> Kernels:
    key = (type(layout), layout, nonlinearity, backward, isinstance(layout, Wide) and lengths is not None, device)
    if key not in _loaded:
        forbid_loading()
        given = defines(layout, nonlinearity, backward, lengths is not None, limits_of(device))
        names = {"sweep": given["SHARED_BYTES"]} | ({} if isinstance(layout, Eights) else {"pack": 0})
        _loaded[key] = Kernels(layout, *_nvrtc.load(source(layout), names, device, **given))
    return _loaded[key]


def source(layout: Layout) -> str:
    """The text of the kernels."""
    sources = {Shape: (SOURCE,), Wide: (WIDE_SOURCE,), Eights: (HALVES_SOURCE, LETTERS_SOURCE, EIGHTS_SOURCE)}
    return _nvrtc.text(NONLINEARITIES_SOURCE, BLOCKS_SOURCE, *sources[type(layout)])


def defines(layout: Layout, nonlinearity: str, backward: bool, lengths: bool, limits: Limits) -> dict[str, int]:
    """What the compiler has to be told."""
    given = layout.defines(NONLINEARITIES[nonlinearity].parts, backward, lengths, limits)
    return given | {"SIGMA": SIGMA[nonlinearity], "BACKWARD": int(backward)}


def _self_check(device: torch.device) -> str | None:
    """On a chip never tested: in a block, without zeros, in a cluster, and with many sequences, against the loop in float64."""
    from . import _torch
    from ._trust import Noise

    normal = Noise(device)
    for n, q, B in ((37, 37, 3), (150, 150, 3), (150, 90, 3), (300, 300, 3), (100, 100, 8192), (150, 90, 8192), (150, 60, 8192)):
        if shape_for(n, B, 1, limits_of(device)) is None:
            continue
        inputs, initial, upstream, bias = normal(5, B, n), normal(B, n), normal(5, B, n), -0.1 * normal(n).abs()
        weight = torch.linalg.qr(normal(n, n))[0]
        weight[q:, :q] = 0
        exact = [torch.empty_like(inputs), torch.empty_like(initial), torch.empty_like(inputs), torch.empty_like(initial)]
        found = [each.float() for each in exact]
        _torch.forward(inputs, weight, bias, initial, "modrelu", None, exact[0], exact[1])
        _torch.backward(upstream, exact[0], weight, bias, "modrelu", None, exact[2], exact[3])
        single, b = weight.float(), bias.float()
        W = single if q == n else (single[:q, :q], single[:q, q:], single[q:, q:])
        forward(inputs.float(), W, b, initial.float(), "modrelu", None, found[0], found[1])
        backward(upstream.float(), exact[0].float(), W, b, "modrelu", None, found[2], found[3])
        if not all(torch.allclose(a.double(), b, rtol=1e-4, atol=1e-4) for a, b in zip(found, exact, strict=True)):
            return "on this GPU, which it was never tested on, the kernel does not agree with the loop"
    return None
