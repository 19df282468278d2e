"""A matrix divided by its own spectral radius (ENRNN's short-term matrix), with the gradient of Proposition 3.2."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import spectrum
from .._checks import non_negative, one_of, square_matrix
from .._later import Later
from .._operators import Operator, differentiated_again, seen, transforms_are_active
from .._precision import capturing, recording
from .._replay import replayed
from .._streams import before_writing, elsewhere
from . import _normalization
from ._contract import Matrix, cleared, rotation_angles

DEFECTIVE = 1e-6
"""λ counts as (nearly) defective when |v*u| falls below this fraction of ‖u‖‖v‖."""


class Solved(Matrix):
    """A family that needs a solver which may be unsure of its result, with flags for the runs in which nobody can look."""

    sought = "ρ(T)"
    """What the solver finds, in the words of errors."""

    not_finite: Tensor
    uncertified: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("not_finite", torch.tensor(False), persistent=False)
        self.register_buffer("uncertified", torch.tensor(False), persistent=False)

    def check(self) -> None:
        if self.not_finite:
            raise ValueError(self._not_finite())
        if self.uncertified:
            raise RuntimeError(
                f"{self.name}: {self.sought} could not be certified inside a CUDA graph; redo those steps outside of it"
            )

    def _flag(self, original: Tensor, finite: Tensor, certified: Tensor) -> None:
        """Note what is wrong for `check`; where one can look, raise at once what nothing can be done about."""
        if recording(original) or capturing(original):
            if not recording(original):
                before_writing()
            self.not_finite.logical_or_(~finite)
            self.uncertified.logical_or_(~certified & finite)
        elif not seen(finite).all():
            raise ValueError(self._not_finite())

    def _not_finite(self) -> str:
        return f"{self.name}: the free matrix T has entries that are not finite (NaN or Inf), so {self.sought} is undefined"


class EigenvalueNormalized(Solved):
    """`W = T/(ρ(T) + ε)` from the first moment ρ(T) exceeds 1, and `W = T` until then (§3.1, §4).

    The gradient is Proposition 3.2's, with one correction: with `G = ∂L/∂W`, `C = Re(λ̄ v̄uᵀ/(v*u))`,

        ∂L/∂T = (G − ⟨G, W⟩ C/ρ) / (ρ + ε).

    The paper has `ρ + ε` in place of the inner `ρ`, which is right for ε = 0 only: `∂ρ/∂T = C/ρ` is the derivative of the
    spectral radius itself, and ε does not enter it (derivation: docs/gradient.md).

    Three cases without that gradient, none of which gives NaN:
    * λ (nearly) defective, |v*u| < 1e-6 ‖u‖‖v‖: the paper's remedy, `∂L/∂T = G/(ρ + ε)`. Counted in `nearly_defective`.
    * ρ(T) = 0 and ε = 0, or so small that T/ρ would overflow, or itself beyond the largest number: `W = T`.
    * `T` not finite: `ValueError`; in a compiled, exported or captured run a flag on the device, which `check()` raises.

    Inside a captured CUDA graph the fast solver runs alone. If it cannot certify a result there, `W = T` for that step, the
    switch is left as it is, and another flag on the device is raised for `check()`: redo such a step outside the graph.

    Arguments:
        epsilon: ε ≥ 0.
        normalizing: whether to normalise from the very start, instead of from the first ρ(T) > 1.
        solver: how the dominant eigenvalue is found: "dense", "squaring", or "auto" for the faster one at this size. All give
            the same result: what squaring cannot certify is solved more slowly, if need be densely, and counted in `fallbacks`.

    Buffers:
        normalizing: the switch. Tested whenever `W` is formed; written in training mode only; never turned off.
        nearly_defective: in how many training steps the remedy above was taken.
        fallbacks: in how many training steps the fast solver had to be replaced by a slower one.
        radius: ρ(T) as last formed in training mode (not saved).
    """

    normalizing: Tensor
    nearly_defective: Tensor
    fallbacks: Tensor
    radius: Tensor

    def __init__(self, epsilon: float = 0.0, *, normalizing: bool = False, solver: str = "auto") -> None:
        super().__init__()
        self.epsilon = non_negative("epsilon", epsilon)
        self.solver = one_of("solver", solver, spectrum.SOLVERS)
        self.register_buffer("normalizing", torch.tensor(bool(normalizing)))
        self.register_buffer("nearly_defective", torch.tensor(0))
        self.register_buffer("fallbacks", torch.tensor(0))
        # One entry, not none: what compiled code writes into a float64 tensor without dimensions is lost (torch 2.13).
        self.register_buffer("radius", torch.zeros(1, dtype=torch.float32), persistent=False)
        self.register_load_state_dict_post_hook(_forget_what_is_not_saved)  # type: ignore[no-untyped-call]

    def forward(self, original: Tensor) -> Tensor:
        square_matrix("the free matrix of EigenvalueNormalized", original)
        notes, captured = self._notes(), capturing(original)
        kernels = self._noting(original, notes)
        if kernels is not None and not captured and self._has_kernels(original):
            probes = spectrum.probes_on_device(original)
            found: tuple[Tensor, ...] = normalize_on_device(original, self.normalizing, self.epsilon, probes)
            matrix, radius, _, switched, applied, simple, finite, numbers = found
            certified = spectrum.certified(numbers)
            if certified:  # this is the only look at a value that it takes, if all is well
                if self.training:
                    seen: tuple[Tensor | None, ...] = (finite, certified, switched, applied, simple, None, radius.detach())
                    kernels.note(1, 1, *seen, *notes, 1, early=True)
                return matrix
        outcome: tuple[Tensor, ...] = normalize_spectrum(original, self.normalizing, self.epsilon, self.solver)
        matrix, radius, _, switched, applied, simple, fell_back, certified, finite = outcome
        if kernels is None or not captured:
            self._flag(original, finite, certified)
        if kernels is not None and (self.training or captured):
            seen = (finite, certified, switched, applied, simple, fell_back, radius.detach())
            with elsewhere(original):
                kernels.note(1, 1, *seen, *notes, int(self.training), early=not before_writing())
        elif kernels is None and self.training:
            self.normalizing.copy_(switched)
            self.nearly_defective.add_(applied & ~simple)
            self.fallbacks.add_(fell_back)
            self.radius.copy_(radius.detach())
        return matrix

    def by_kernels(self, original: Tensor) -> tuple[Tensor, Tensor, Tensor, Later] | None:
        """`W`, `∂ρ/∂T`, and what else is `Said` in one piece, without a gradient; and whether all that is certified, and so has
        been noted. None if it cannot be had here, outside of a graph."""
        notes = self._notes()
        if self._noting(original, notes) is None or not self._has_kernels(original):
            return None
        probes = spectrum.probes_on_device(original)
        W, derivative, said, numbers = _noted_on_device(original, self.epsilon, probes, self.training, *notes)
        return W, derivative, said, Later(spectrum.certified(numbers))

    def _has_kernels(self, original: Tensor) -> bool:
        """Whether the solver has."""
        return self.solver != "dense" and spectrum.solved_by_kernels(original)

    def _notes(self) -> tuple[Tensor, ...]:
        """Where the kernel writes what it has to note."""
        return self.not_finite, self.uncertified, self.normalizing, self.nearly_defective, self.fallbacks, self.radius

    def _noting(self, original: Tensor, notes: tuple[Tensor, ...]) -> _normalization.Kernels | None:
        """A kernel that notes what was found, if there is one."""
        alike = notes[-1].dtype == original.dtype and all(each.device == original.device for each in notes)
        plain = not recording(original) and not transforms_are_active()
        return _normalization.kernels_for(original) if alike and plain else None

    def _by_kernels_alone(self, original: Tensor) -> bool:
        """Whether `W` is formed, in a graph, by the operator and a kernel that notes what it found, and by nothing else."""
        return type(self) is EigenvalueNormalized and capturing(original) and self._noting(original, self._notes()) is not None

    def right_inverse(self, matrix: Tensor) -> Tensor:
        """`T = W`, which `forward` takes back to `W` while not normalising, and to `W/ρ(W)` afterwards.

        With ε > 0, every `W` with ρ(W) < 1 can still be written while normalising: `T = W·ε/(1 − ρ(W))`.
        """
        square_matrix("the matrix assigned to an EigenvalueNormalized parametrization", matrix)
        if matrix.is_meta or self.epsilon == 0 or not self.normalizing:
            return matrix
        radius = normalize_spectrum(matrix.detach(), self.normalizing, self.epsilon, self.solver)[1]
        return matrix * (self.epsilon / (1 - radius)) if radius < 1 else matrix

    def initialize_(self, *originals: Tensor) -> None:
        """2×2 blocks `γ_j R(t_j)` with γ_j ∼ U[−1, 1), t_j ∼ U[0, π/2), and a 1×1 block γ at the end of an odd size (§4)."""
        (original,) = originals
        size = original.shape[0]
        angles = rotation_angles(size, original)
        moduli = torch.empty((size + 1) // 2, dtype=original.dtype, device=original.device).uniform_(-1.0, 1.0)
        paired = moduli[: size // 2]
        with torch.no_grad():
            original.zero_()
            original.diagonal().copy_(moduli.repeat_interleave(2)[:size])
            original.diagonal()[: 2 * (size // 2)].mul_(torch.cos(angles).repeat_interleave(2))
            original.diagonal(1)[::2][: size // 2] = -paired * torch.sin(angles)
            original.diagonal(-1)[::2][: size // 2] = paired * torch.sin(angles)
            self.normalizing.fill_(False)
            self.nearly_defective.zero_()
            self.fallbacks.zero_()
            self.radius.zero_()
            self.not_finite.fill_(False)
            self.uncertified.fill_(False)

    def constraint_error(self, matrix: Tensor) -> Tensor:
        """By how much ρ(W) exceeds 1."""
        return (spectrum.dominant(spectrum.working_matrix(matrix)).radius - 1).clamp_min(0)

    def free_parameters(self, size: int) -> int:
        return size * size

    def extra_repr(self) -> str:
        return f"epsilon={self.epsilon}, solver={self.solver!r}"


def _forget_what_is_not_saved(matrix: EigenvalueNormalized, keys: object) -> None:
    """After loading a state dict, also into a module whose memory was never filled (`skip_init`, `to_empty`, meta)."""
    for name in ("radius", "not_finite", "uncertified"):
        setattr(matrix, name, cleared(getattr(matrix, name), matrix.normalizing.device))


@Operator
def normalize_spectrum(
    T: Tensor, normalizing: Tensor, epsilon: float, solver: str
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The normalisation with everything its gradient and its caller need.

    Returns `W` and ρ(T), which are differentiable, `∂ρ/∂T = C/ρ`, and six flags: the switch as it stands after this look, whether
    T was divided, whether λ is simple enough for a derivative, whether the solver fell back, whether its result is certified,
    whether T is finite.
    """
    with elsewhere(T):
        return _normalized(T, normalizing, epsilon, solver)


def _normalized(
    T: Tensor, normalizing: Tensor, epsilon: float, solver: str
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    kernels = _normalization.kernels_for(T) if normalizing.device == T.device else None
    largest = torch.linalg.vector_norm(T, float("inf")) if kernels is None else _normalization.largest(kernels, T)
    if not capturing(T) and not torch.isfinite(largest).all():
        nothing = torch.zeros_like(T)
        no = torch.zeros_like(normalizing)
        none = (no, no.clone(), no.clone(), no.clone(), no.clone())
        return T.clone(), nothing[0, 0].clone(), nothing, normalizing.clone(), *none
    accuracy = spectrum.accuracy_for(T.dtype)
    if kernels is not None and T.dtype == torch.float32:
        pair, fell_back, certified = spectrum.solve(T.detach(), solver, accuracy, largest)
    else:
        exact = spectrum.working_matrix(T)
        pair, fell_back, certified = spectrum.solve(exact, solver, accuracy)
    if kernels is not None:
        done = _normalization.normalized(kernels, T, largest, pair, certified, normalizing, epsilon)
        W, radius, derivative, switched, applied, simple, finite = done
        return W, radius, derivative, switched, applied, simple, fell_back, certified, finite
    radius = pair.radius
    switched = normalizing | (radius > 1).to(T.device)  # an uncertified radius is zero
    divisor = radius + epsilon
    most = divisor * torch.finfo(T.dtype).max
    overflows = (largest.to(exact) >= most) | (most <= 1) | torch.isinf(divisor)
    applied = switched & (certified & ~overflows).to(T.device)
    simple = (pair.condition < 1 / DEFECTIVE) & (radius > 0)
    W = torch.where(applied.to(exact.device), exact / divisor, exact)
    return (
        W.to(T.device, T.dtype),
        radius.to(T.device, T.dtype),
        torch.where(simple, pair.derivative(), 0).to(T.device, T.dtype),
        switched,
        applied,
        simple.to(T.device),
        fell_back.to(T.device),
        certified.to(T.device),
        torch.isfinite(largest),
    )


@Operator
@replayed
def normalize_on_device(
    T: Tensor, normalizing: Tensor, epsilon: float, probes: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """`normalize_spectrum` by kernels alone, where there are some, with the fast solver, at whose result nobody looks.

    Returns `W`, ρ(T) and `∂ρ/∂T`; the switch, whether T was divided, whether λ is simple, whether T is finite; and the numbers of
    the solver, which say whether its result is certified.
    """
    found = _on_device(T, normalizing, epsilon, probes)
    return *found.normalized, found.numbers


@replayed
def _noted_on_device(
    T: Tensor,
    epsilon: float,
    probes: Tensor | None,
    training: bool,
    not_finite: Tensor,
    uncertified: Tensor,
    normalizing: Tensor,
    nearly_defective: Tensor,
    fallbacks: Tensor,
    kept: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`normalize_on_device`, without a gradient, and with notes taken of it, in training and if it is certified."""
    said = T.new_empty(_normalization.SAID, dtype=torch.uint8)
    one_by_one = _normalization.Said.of(said, T.dtype)
    found = _on_device(T, normalizing, epsilon, probes, one_by_one)
    if training:
        radius, switched, applied, simple, finite = one_by_one
        seen = (finite, spectrum.certified(found.numbers), switched, applied, simple, None, radius)
        notes = (not_finite, uncertified, normalizing, nearly_defective, fallbacks, kept)
        found.kernels.note(1, 1, *seen, *notes, 1, early=True)
    return found.normalized[0], found.normalized[2], said, found.numbers


class _Found(NamedTuple):
    kernels: _normalization.Kernels
    normalized: _normalization.Normalized
    numbers: Tensor
    """The solver's."""


def _on_device(
    T: Tensor, normalizing: Tensor, epsilon: float, probes: Tensor | None, said: _normalization.Said | None = None
) -> _Found:
    kernels = _normalization.kernels_for(T)
    assert kernels is not None
    largest = _normalization.largest(kernels, T)
    single = largest if T.dtype == torch.float32 else None
    numbers = spectrum.numbers_on_device(T, probes, spectrum.accuracy_for(T.dtype), single)
    assert numbers is not None
    pair, certified = spectrum.unpacked(numbers)
    return _Found(kernels, _normalization.normalized(kernels, T, largest, pair, certified, normalizing, epsilon, said), numbers)


@normalize_on_device.register_fake
def _(
    T: Tensor, normalizing: Tensor, epsilon: float, probes: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    switched, applied, simple, finite = (T.new_empty((), dtype=torch.bool) for _ in range(4))
    numbers = T.new_empty(spectrum.how_many_numbers(T), dtype=torch.float64)
    return T.new_empty(T.shape), T.new_empty(()), T.new_empty(T.shape), switched, applied, simple, finite, numbers


@normalize_spectrum.register_fake
def _(
    T: Tensor, normalizing: Tensor, epsilon: float, solver: str
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    switched, applied, simple, fell_back, certified, finite = (T.new_empty((), dtype=torch.bool) for _ in range(6))
    return T.new_empty(T.shape), T.new_empty(()), T.new_empty(T.shape), switched, applied, simple, fell_back, certified, finite


@Operator
@replayed
def normalize_spectrum_backward(
    gradient: Tensor, W: Tensor, derivative: Tensor, radius: Tensor, applied: Tensor, epsilon: float
) -> Tensor:
    """Proposition 3.2, where its gradient is not to be differentiated again."""
    kernels = _normalization.kernels_for(W)
    if kernels is not None:
        return _normalization.pulled_back(kernels, gradient, W, derivative, radius, applied, epsilon)
    return _pulled_back(gradient, W, derivative, radius, applied, epsilon)


@normalize_spectrum_backward.register_fake
def _(gradient: Tensor, W: Tensor, derivative: Tensor, radius: Tensor, applied: Tensor, epsilon: float) -> Tensor:
    return W.new_empty(W.shape)


def _pulled_back(gradient: Tensor, W: Tensor, derivative: Tensor, radius: Tensor, applied: Tensor, epsilon: float) -> Tensor:
    pull = torch.where(applied, (gradient * W).sum(), 0)
    return (gradient - pull * derivative) / torch.where(applied, radius + epsilon, 1)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    T, _, ctx.epsilon, _ = inputs
    W, radius, derivative, _, applied, simple, *_ = output
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*output[2:])
    ctx.save_for_backward(T, W, radius, derivative, applied, simple)


def _backward(ctx: Any, grad_W: Tensor | None, grad_radius: Tensor | None, *_: None) -> tuple[Tensor | None, None, None, None]:
    T, W, radius, derivative, applied, simple = ctx.saved_tensors  # derivative = C/ρ, zero where λ is not simple
    gradient = None
    if grad_W is not None and grad_radius is None and not differentiated_again():
        return normalize_spectrum_backward(grad_W, W, derivative, radius, applied, ctx.epsilon), None, None, None
    if differentiated_again():
        derivative = _differentiable(T, derivative, simple)
    if grad_W is not None:  # Proposition 3.2
        gradient = _pulled_back(grad_W, W, derivative, radius, applied, ctx.epsilon)
    if grad_radius is not None:
        through_radius = grad_radius * derivative
        gradient = through_radius if gradient is None else gradient + through_radius
    return gradient, None, None, None


def differentiable_gradient(gradient: Tensor, T: Tensor, found: tuple[Tensor, ...], epsilon: float) -> Tensor:
    """`normalize_spectrum_backward` in operations that can be differentiated again, from what the operators have found of T."""
    W, radius, derivative, _, applied, simple, *_ = found
    return _pulled_back(gradient, W, _differentiable(T, derivative, simple), radius, applied, epsilon)


def _differentiable(T: Tensor, derivative: Tensor, simple: Tensor) -> Tensor:
    """`∂ρ/∂T` as a function of T. Where the remedy is taken it is zero, and so are its derivatives: those at T = 0."""
    gradient: Tensor = spectrum.radius_gradient(torch.where(simple, T, 0), derivative)
    return gradient


def _tangent(arguments: tuple[Any, ...], found: tuple[Tensor, ...], tangents: tuple[Any, ...]) -> tuple[Tensor | None, ...]:
    """`Ẇ = (Ṫ − ρ̇ W)/(ρ + ε)` with `ρ̇ = ⟨C/ρ, Ṫ⟩`: Proposition 3.2, transposed."""
    (T, _, epsilon, _), (W, radius, derivative, _, applied, simple, *flags) = arguments, found
    moved = (_differentiable(T, derivative, simple) * tangents[0]).sum()
    moved_W = (tangents[0] - torch.where(applied, moved, 0) * W) / torch.where(applied, radius + epsilon, 1)
    return moved_W, moved, None, None, None, None, *[None] * len(flags)


for operator in (normalize_spectrum, normalize_on_device):
    operator.register_autograd(_backward, setup_context=_setup_context)
    operator.register_tangent(_tangent)
