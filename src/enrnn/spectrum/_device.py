"""The fast solver for a GPU: squaring all the way, a fixed sequence of operations that looks at no value, for CUDA graphs too.

On a GPU products are cheap and every look at a value is dear, so that the block of vectors of `_squaring.py` does not pay: T is
squared 27 times. What is left of `T^K`, K = 2²⁷, is the spectral projector of the dominant eigenvalue (or of a complex pair),
from which λ, u and v are read. `squaring_all_the_way` says it in torch's operations, for every size and every device. Up to a
size of 96 one kernel does it all, and stops when it may; beyond, most of the squarings are of a small matrix (`_compressed.py`).
"""

import warnings
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from .. import _nvrtc
from .._launch import Kernel
from .._precision import capturing
from ._compressed import Kernels, compressed, kernels_for, parts, probes_for
from ._dense import Dominant, power_of_two_above
from ._powers import UNIT
from ._squaring import DOUBT

SQUARINGS = 27
"""Enough to tell moduli apart that differ by 1e-6: (1 − 1e-6)^(2^27) = 5e-59."""

MOST_SQUARINGS = 40
"""Where they are cheap, and end as soon as they can: enough for moduli that differ by 1e-10. (As LAST in the source.)"""

RESCALE = 3
"""Rescale after so many squarings; in between, a norm of 1 falls to no less than (ρ/‖T‖)^8."""

SOURCE = Path(__file__).with_name("spectral_radius.cu")

FUSED_UP_TO = 96
"""The largest size whose powers fit into the shared memory of one multiprocessor (a third of it for each of two powers)."""


class Found(NamedTuple):
    """The dominant pair, all zeros where it is not certified, and whether it is."""

    pair: Dominant
    certified: Tensor


def squaring_on_device(matrix: Tensor, accuracy: float = 1e-12, largest: Tensor | None = None) -> Found:
    """The dominant eigenvalue of one float64 matrix. Never NaN, also for a matrix that is not finite (never certified). With its
    `largest` entries, as `normalize.cu` finds them, the matrix is a float32 one.

    Certified means two things.
    * The pair is right: residual × condition is below `accuracy` × ρ, or below what rounding T itself may cause.
    * Nothing else is as large. Let ω = `‖(I − Q) T^K‖ / ‖T^K‖`, Q the orthogonal projector on the plane of u and its conjugate
      (on the line of u, if λ is real), and κ the condition. Of another eigenvalue μ, with eigenvector w of length 1, the power
      leaves `|μ|^K dist(w, plane)` outside. That distance is at least 1/(2κ + 1), because λ's left vector is orthogonal to w and
      to the conjugate of u; and `|λ|^K ≥ (1/(2κ) − ω) ‖T^K‖`, because λ's two projectors have norm κ and the rest of the power
      is at most 2κω of it. So `4κ(κ + 1) ω < 1` excludes |μ| ≥ |λ|; for a real λ, `κ(κ + 2) ω < 1`. A tenth of that is asked
      for, or `ω ≤ 1e-6` in the plane that was found, which also holds λ and nearly −λ, of which λ must then be the larger.

    Unlike `_certificate.py`, this takes the effect of rounding on the powers from its order of magnitude, not from a bound.
    """
    found = numbers_on_device(matrix, probes_on_device(matrix), accuracy, largest)
    return squaring_all_the_way(matrix.double(), accuracy) if found is None else unpacked(found)


def probes_on_device(matrix: Tensor) -> Tensor | None:
    """What the kernels need beside the matrix, if anything."""
    return probes_for(matrix) if matrix.is_cuda and matrix.shape[-1] > FUSED_UP_TO else None


def solved_by_kernels(matrix: Tensor) -> bool:
    """Whether there are kernels for it, now."""
    return (_kernel(matrix) if matrix.shape[-1] <= FUSED_UP_TO else _compression(matrix)) is not None


def numbers_on_device(
    matrix: Tensor, probes: Tensor | None, accuracy: float = 1e-12, largest: Tensor | None = None
) -> Tensor | None:
    """What the kernels write, for `unpacked`; None if there are no kernels for it now."""
    if matrix.shape[-1] > FUSED_UP_TO:
        kernels = _compression(matrix)
        if kernels is None or probes is None:
            return None
        return compressed(matrix, probes, kernels, MOST_SQUARINGS, accuracy, largest)
    kernel = _kernel(matrix)
    if kernel is None:
        return None
    exact = matrix if matrix.dtype == torch.float64 else torch.empty_like(matrix, dtype=torch.float64).copy_(matrix)
    return _fused(exact, kernel, accuracy)


def _kernel(matrix: Tensor) -> Kernel | None:
    """The kernel that does it all in one thread block, if the matrix is small and on a GPU that can run it."""
    size = matrix.shape[-1]
    if not matrix.is_cuda or size > FUSED_UP_TO:
        return None
    key = (-(-size // 32), matrix.device)
    if key not in _kernels:
        if capturing(matrix):
            return None  # loading a kernel is not allowed while a graph is captured
        _kernels[key] = _load(*key)
    return _kernels[key]


_kernels: dict[tuple[int, torch.device], Kernel | None] = {}


def _compression(matrix: Tensor) -> Kernels | None:
    """The kernels for a large matrix, if it is on a GPU that can run them."""
    if not matrix.is_cuda:
        return None
    shared = _shared(2, matrix.device)
    if shared is None:
        return None
    try:
        return kernels_for(matrix, _nvrtc.text(SOURCE), shared)
    except RuntimeError as error:
        _warn(error)
        return None


def _load(tiles: int, device: torch.device) -> Kernel | None:
    """The kernel for sizes up to 32·tiles, or None where it cannot be had; a failure to compile or load it warns."""
    shared = _shared(tiles, device)
    if shared is None:
        return None
    try:
        source, blocks = _nvrtc.text(SOURCE), _blocks(tiles, device)
        return _nvrtc.load(source, {"spectral_radius": shared}, device, TILES=tiles, BLOCKS=blocks)[0]
    except RuntimeError as error:
        _warn(error)
        return None


def _blocks(tiles: int, device: torch.device) -> int:
    """How many thread blocks share a matrix: a tile of 32 rows and half of the columns to each, where there are clusters."""
    return 2 * tiles if tiles > 1 and torch.cuda.get_device_capability(device)[0] >= 9 else 1


def _shared(tiles: int, device: torch.device) -> int | None:
    """The bytes of shared memory that the kernel needs, or None where it cannot run."""
    padded = 32 * tiles
    shared = 8 * (2 * padded * (padded + 4) + 32 * padded + 64 * _blocks(tiles, device) + 32 + 13 * padded)
    limits = torch.cuda.get_device_properties(device)
    fits = limits.major >= 8 and getattr(limits, "shared_memory_per_block_optin", 0) >= shared + 1024
    return shared if fits and _nvrtc.unavailable() is None else None


def _warn(error: RuntimeError) -> None:
    warnings.warn(f"the kernel for the spectral radius is replaced by torch operations: {error}", stacklevel=3)


def _fused(matrix: Tensor, kernel: Kernel, accuracy: float = 1e-12) -> Tensor:
    size = matrix.shape[-1]
    out = matrix.new_empty(how_many_numbers(matrix))
    kernel(_blocks(-(-size // 32), matrix.device), 512, matrix.contiguous(), size, out, parts(accuracy))
    return out


def how_many_numbers(matrix: Tensor) -> int:
    """That the kernels write, for `unpacked`."""
    return 6 + 4 * matrix.shape[-1]


def unpacked(out: Tensor) -> Found:
    """What the kernels write: ρ, condition, λ, certified (as an integer), squarings, u, v."""
    pairs = torch.view_as_complex(out.view(-1, 2))
    size = (len(pairs) - 3) // 2
    pair = Dominant(out[0], pairs[1], pairs[3 : 3 + size], pairs[3 + size :], out[1])
    return Found(pair, certified(out))


def certified(out: Tensor) -> Tensor:
    """Of what the kernels write, that alone."""
    return out.view(torch.bool)[4 * out.itemsize]  # the first byte of the integer


def squaring_all_the_way(matrix: Tensor, accuracy: float = 1e-12) -> Found:
    """The same as a chain of torch operations, for every size and every device."""
    size = matrix.shape[-1]
    finite = torch.isfinite(matrix).all()
    scale = power_of_two_above(torch.where(finite, matrix.abs().amax(), 1))
    scaled = torch.where(finite, matrix / scale, torch.zeros_like(matrix))
    norm = torch.linalg.matrix_norm(scaled)

    power = scaled / norm
    for step in range(1, SQUARINGS + 1):
        power = power @ power
        if step % RESCALE == 0:
            power = power / torch.linalg.matrix_norm(power)

    probes = scattered(2 * size, matrix.device).view(2, size).mT
    eigenvalue, other, right, plane = _in_plane(scaled, power @ probes)
    _, _, left, _ = _in_plane(scaled.mT, power.mT @ probes)  # leftᵀ is the left vector
    outside = torch.linalg.matrix_norm(power - plane @ (plane.mT @ power))  # of a power with norm 1
    right, left = _unit(right), _unit(left)
    radius = eigenvalue.abs()
    condition = 1 / (left * right).sum().abs()
    residual = torch.maximum(
        torch.linalg.vector_norm(_times(scaled, right) - eigenvalue * right),
        torch.linalg.vector_norm(_times(scaled.mT, left) - eigenvalue * left),
    )
    rounding = 50 * UNIT * condition * norm
    accurate = (residual * condition < torch.maximum(accuracy * radius, rounding)) & (rounding < DOUBT * radius)
    beside = torch.linalg.matrix_norm(power - torch.outer(right.real, right.real @ power))
    turning = eigenvalue.imag != 0
    alone = torch.where(turning, outside * 4 * condition * (condition + 1), beside * condition * (condition + 2)) < 0.1
    larger = other.abs() <= radius * (1 + accuracy)
    certified = finite & accurate & (alone | ((outside < 1e-6) & larger))

    nothing = torch.zeros_like(right)
    pair = Dominant(
        torch.where(certified, radius * scale, 0),
        torch.where(certified, eigenvalue * scale, nothing[0]),
        torch.where(certified, right, nothing),
        torch.where(certified, left.conj_physical(), nothing),
        torch.where(certified, condition, torch.inf),
    )
    return Found(pair, certified)


def _in_plane(matrix: Tensor, span: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """An eigenvalue on a plane, its imaginary part not negative; the other one if that is real; a vector; a basis of the plane.

    `span` [m, 2] is what the power has made of two vectors. Where it left a plane, as for a complex pair, the two span it. (So do
    x and Mx, but badly where the pair is nearly double.) Where it left a line, x and Mx are taken: they also serve two real
    eigenvalues, λ and nearly −λ, which M tells apart better than its power. (A trace of a second direction, down to 1e-10, is
    still better than an Mx that differs from x by rounding alone.) Where x is an eigenvector but for rounding, a second
    direction means nothing, and the eigenvalue is the one of x: the larger one, unless both are nearly the same, which is for
    the caller to look at. In a plane that the power has left it is always the larger one.
    """
    x = _unit(span[:, 0])
    image = matrix @ x
    a = x @ image
    second, rest = _outside(span[:, 1], x), image - a * x
    share = torch.linalg.vector_norm(second) / torch.linalg.vector_norm(span[:, 1])
    wide, plane = share > 1e-10, share > 1e-6
    single = ~wide & (torch.linalg.vector_norm(rest) < 4 * UNIT * a.abs())
    y = torch.where(single, torch.zeros_like(x), _outside(_unit(torch.where(wide, second, rest)), x))
    y = torch.where(single, torch.zeros_like(x), _unit(y))  # a rest at rounding level is not orthogonal to x the first time
    across = matrix @ y
    b, c, d = x @ across, y @ image, y @ across
    half = (a + d) / 2
    square = ((a - d) / 2) ** 2 + b * c
    root = square.abs().sqrt()
    negative = torch.where(~plane & (c.abs() < 1e-6 * a.abs()), a < d, half < 0)
    turning = square < 0
    real = torch.where(single, a, torch.where(turning, half, half + torch.where(negative, -root, root)))
    imaginary = torch.where(turning & ~single, root, 0)
    eigenvalue = torch.complex(real, imaginary)
    lower, upper = torch.stack([eigenvalue - d, c.to(eigenvalue.dtype)]), torch.stack([b.to(eigenvalue.dtype), eigenvalue - a])
    longer = turning | (torch.linalg.vector_norm(lower) >= torch.linalg.vector_norm(upper))  # the one without cancellation
    along, across = torch.where(longer, lower, upper)
    vector = torch.where(single, torch.complex(x, torch.zeros_like(x)), along * x + across * y)
    other = torch.where(single | turning, 0, a + d - real)
    return eigenvalue, other, vector, torch.stack([x, y], dim=1)


def _outside(vector: Tensor, x: Tensor) -> Tensor:
    return vector - (x @ vector) * x


def scattered(size: int, device: torch.device) -> Tensor:
    """Numbers without a pattern to speak of, made on the device without a generator, which a graph could not draw from."""
    index = torch.arange(1, size + 1, dtype=torch.float64, device=device)
    numbers: Tensor = torch.frac(torch.sin(index * 12.9898) * 43758.5453)
    return numbers


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    """A real matrix times a complex vector."""
    return torch.complex(matrix @ vector.real, matrix @ vector.imag)


def _unit(vector: Tensor) -> Tensor:
    unit: Tensor = vector / torch.linalg.vector_norm(vector)
    return unit
