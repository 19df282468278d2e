"""The parameters of a recurrent module, layer or cell: the input's way in, and constrained recurrent matrices.

Every parameter's name ends in a suffix: `_l0`, `_l1_reverse`, … in a layer, nothing in a cell.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from .._checks import InputError, boolean, floating_dtype, floating_tensor, non_negative, one_of, positive_int
from .._precision import capturing, held_in, state_dtype
from .._streams import Meanwhile, with_its_gradient_aside
from ..matrices import Matrix
from ..nonlinearities import NONLINEARITIES
from ..recurrence import BACKENDS, backend_used
from ..recurrence._dispatch import fusable_name
from ..recurrence._projection import plainly_projected, projected
from ._one_call import Unformed
from ._remembered import Remembered
from ._watched import watched

Pointwise = str | Callable[[Tensor], Tensor]
Device = torch.device | str | int | None

INPUT_WEIGHTS = ("full", "identity")
THRESHOLDED = ("modrelu", "paired_modrelu")
"""The nonlinearities whose bias is a threshold; to the argument of every other one it is added."""


class RecurrentModule(nn.Module):
    """`h' = σ(U x + W h, b)` with `W` written through one or more constrained matrices."""

    nonlinearities: ClassVar[list[str]] = [name for name, sigma in NONLINEARITIES.items() if sigma.parts == 1]
    """Those it takes by name: of real numbers, unless a subclass has complex units."""

    first_suffix: ClassVar[str] = ""
    """The end of the names of the first weights."""

    steps_of_a_call: ClassVar[int | None] = None
    """How many steps a call has, where that is always the same."""

    _formed: Mapping[str, Any] = MappingProxyType({})
    """What `_form` has returned, by suffixes, for as long as it is used again."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        nonlinearity: Pointwise,
        bias: bool,
        input_weight: str,
        backend: str,
        device: Device,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        floating_dtype("dtype", dtype)
        self.input_size = positive_int("input_size", input_size)
        self.hidden_size = positive_int("hidden_size", hidden_size)
        self.nonlinearity: Pointwise
        if callable(nonlinearity):
            self.nonlinearity = nonlinearity
        else:
            self.nonlinearity = one_of("nonlinearity", nonlinearity, self.nonlinearities)
        self.bias = boolean("bias", bias)
        self.input_weight = one_of("input_weight", input_weight, INPUT_WEIGHTS)
        self.backend = one_of("backend", backend, BACKENDS)
        self._empty = torch.empty(0, device=device, dtype=dtype)  # where new parameters are made, and of which dtype

    def constraint_error(self) -> float:
        """How far the recurrent matrices are from their constraints, at worst: zero up to rounding, for entries as large as the
        family's own docstring names."""
        errors = [matrix.constraint_error(self._constrained(name)).item() for name, matrix in self._constrained_matrices()]
        return max(errors, default=0.0)

    def num_free_parameters(self) -> int:
        """The number of parameters that count: a skew-symmetric matrix of size q has q(q − 1)/2. Those of a parametrization that
        is not of this package (torch's `weight_norm`) count as they are stored."""
        constrained = {name: self._originals(name) for name, _ in self._constrained_matrices()}
        free = sum(matrix.free_parameters(constrained[name][0].shape[0]) for name, matrix in self._constrained_matrices())
        counted = {id(original) for originals in constrained.values() for original in originals}
        return free + sum(parameter.numel() for parameter in self.parameters() if id(parameter) not in counted)

    def matrices(self) -> dict[str, Matrix]:
        """The constraints by the name of the weight they hold on, those of this package."""
        return dict(self._constrained_matrices())

    def parameter_groups(self, lr: float, long_lr: float) -> list[dict[str, Any]]:
        """Groups for a torch optimiser with two learning rates: `long_lr` for what the network's paper trains more slowly, most
        often its orthogonal matrix, and `lr` for all others."""
        non_negative("lr", lr)
        non_negative("long_lr", long_lr)
        slow = {id(self._originals(name)[place]) for name, matrix in self._constrained_matrices() for place in matrix.slow}
        long = [parameter for parameter in self.parameters() if id(parameter) in slow]
        others = [parameter for parameter in self.parameters() if id(parameter) not in slow]
        groups = [{"params": others, "lr": lr, "name": "others"}, {"params": long, "lr": long_lr, "name": "long"}]
        return [group for group in groups if group["params"]]

    @property
    def backend_used(self) -> str:
        """Which backend runs the recurrence where the parameters now are: `reference`, `torch`, `cpu` or `cuda`. (A sequence of
        one step is `torch`'s where `backend="auto"` has found `cpu`.)"""
        return self._backend_now()

    def _backend_now(self) -> str:
        # As `_run` calls it: a bias that is no threshold has been added to the inputs by then.
        threshold = self.bias and self.nonlinearity in THRESHOLDED
        n = self._largest_matrix()
        return backend_used(self.backend, self._like, n, self.nonlinearity, bias=threshold, steps=self.steps_of_a_call)

    def check(self) -> None:
        """Raise what was flagged on the device during compiled, exported or captured runs; quiet when all is well."""
        for _, matrix in self._constrained_matrices():
            matrix.check()

    @property
    def _like(self) -> Tensor:
        """A tensor of the parameters' dtype and where they are. A replica made by `torch.nn.DataParallel` has no parameters, but
        it has the weights."""
        own = (each for each in self._parameters.values() if each is not None)
        parameter = next(own, None)
        parameter = next(self.parameters(), None) if parameter is None else parameter
        weight: Tensor = getattr(self, f"weight_ih{self.first_suffix}") if parameter is None else parameter
        return weight

    def _largest_matrix(self) -> int:
        """The size of the largest recurrent matrix that is swept over on its own."""
        return self.hidden_size

    def _add_recurrence(self, suffix: str) -> None:
        """Register the parameters of `W`, under names that end in `suffix`."""
        raise NotImplementedError

    def _reset_recurrence(self, suffix: str) -> None:
        raise NotImplementedError

    def _form(self, suffix: str) -> Any:
        """The matrices that `_run` wants to be given, where these are worth forming beside other things; else None."""
        return None

    def _given(self, suffix: str) -> Any:
        """What `_form` returns, or has returned."""
        return self._formed[suffix] if suffix in self._formed else self._form(suffix)

    def _unformed(self, suffix: str, x: Tensor) -> tuple[Unformed, Tensor] | None:
        """What `_run` can do with in place of what `_form` returns and what `_project` does, and without a first state that is
        zero. None if it cannot be had for this `x`."""
        return None

    def _states(
        self, suffix: str, formed: Any, inputs: Tensor, bias: Tensor | None, initial: Tensor | None, lengths: Tensor | None
    ) -> Tensor:
        """What `_run` gives; from zero, if there is no `initial` state."""
        if initial is None and not isinstance(formed, Unformed):
            initial = inputs.new_zeros(inputs.shape[1], self.hidden_size, dtype=state_dtype(self._like.dtype))
        return self._run(suffix, formed, inputs, bias, initial, lengths)  # type: ignore[arg-type]

    def _run(
        self, suffix: str, formed: Any, inputs: Tensor, bias: Tensor | None, initial: Tensor, lengths: Tensor | None
    ) -> Tensor:
        """All states [T, B, n] for projected `inputs` [T, B, n] and what `_form` has formed."""
        raise NotImplementedError

    def _add_input(self, suffix: str, inputs: int) -> None:
        hidden = self.hidden_size
        if self.input_weight == "full":
            self.register_parameter(f"weight_ih{suffix}", nn.Parameter(self._empty.new_empty(hidden, inputs)))
        elif inputs == hidden:
            identity = torch.eye(hidden, dtype=self._empty.dtype, device=self._empty.device)
            self.register_buffer(f"weight_ih{suffix}", identity, persistent=False)
            restore = partial(_restore_identity, f"weight_ih{suffix}")
            self.register_load_state_dict_post_hook(restore)  # type: ignore[no-untyped-call]
        else:
            raise ValueError(
                f"input_weight='identity' needs inputs of hidden_size = {hidden} features, but weight_ih{suffix} gets {inputs}"
            )
        # A complex unit, two real numbers, has one threshold.
        parts = NONLINEARITIES[self.nonlinearity].parts if isinstance(self.nonlinearity, str) else 1
        bias = nn.Parameter(self._empty.new_empty(hidden // parts)) if self.bias else None
        self.register_parameter(self._bias_name(suffix), bias)

    @staticmethod
    def _bias_name(suffix: str) -> str:
        """`bias_l0` and so on; in a cell, where `bias` says whether there is one, `bias_ih` as in `torch.nn.RNNCell`."""
        return f"bias{suffix or '_ih'}"

    def _reset_input(self, suffix: str) -> None:
        """`U` uniform in ±0.01, as the authors' code has it; the bias zero, so that modReLU starts as the identity."""
        weight: Tensor = getattr(self, f"weight_ih{suffix}")
        with torch.no_grad():
            if self.input_weight == "full":
                weight.uniform_(-0.01, 0.01)
            else:
                weight.zero_().fill_diagonal_(1.0)
            if self.bias:
                getattr(self, self._bias_name(suffix)).zero_()

    def _formed_and_projected(
        self, suffix: str, form: Callable[[str], Any], x: Tensor, held: torch.dtype
    ) -> tuple[Any, Tensor, Tensor | None]:
        """What `form` gives `_run`, and what `_project` does; or what is `_unformed`."""
        if capturing(x):
            with Meanwhile(x):
                formed = form(suffix)
                return formed, *self._project(suffix, x, held)
        if suffix not in self._formed and (found := self._unformed(suffix, x)) is not None:
            return *found, None
        projected = self._project(suffix, x, held)
        return form(suffix), *projected  # the other way round: of W_S one waits until it is there

    def _project(self, suffix: str, x: Tensor, held: torch.dtype) -> tuple[Tensor, Tensor | None]:
        """`U x` in the dtype states are `held` in, and the bias as the recurrence wants it: modReLU's is a threshold, every
        other σ adds it to its argument, so that it is added here, for all steps at once."""
        weight, added, threshold = self._way_in(suffix)
        if weight is not None or added is not None:
            x = self._projected(x, weight, added)
        return held_in(held, x), None if threshold is None else held_in(held, threshold)

    def _way_in(self, suffix: str) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """`U`, None for an identity; and the bias, as what is added to `U x` or as a threshold."""
        weight = getattr(self, f"weight_ih{suffix}") if self.input_weight == "full" else None
        bias: Tensor | None = getattr(self, self._bias_name(suffix))
        return (weight, None, bias) if self.nonlinearity in THRESHOLDED else (weight, bias, None)

    def _projected(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        name, backend = fusable_name(self.nonlinearity, self.bias, self.backend)
        plain = name is None or (backend == "torch" and x.device.type == "cpu")
        project = plainly_projected if plain else projected
        return with_its_gradient_aside(lambda: project(x, weight, bias), x, weight, bias)

    def _add_constrained(self, name: str, matrix: Matrix, size: int) -> None:
        """Register a square parameter under a constraint; `_reset_constrained` gives it its random start."""
        matrix = matrix.to(self._empty.device, state_dtype(self._empty.dtype))
        self.register_parameter(name, nn.Parameter(self._empty.new_empty(size, size)))
        originals = matrix.originals(size, self._empty)
        # torch asks for the free tensors by right_inverse. Here they are known before any matrix is.
        vars(matrix)["right_inverse"] = lambda _: originals if len(originals) > 1 else originals[0]
        parametrize.register_parametrization(self, name, matrix, unsafe=True)
        del vars(matrix)["right_inverse"]
        matrix.name = name

    def _reset_constrained(self, name: str) -> None:
        matrix = self.matrices().get(name)
        if matrix is not None:
            matrix.initialize_(*self._originals(name))

    def _constrained(self, name: str) -> Tensor:
        """The matrix as the recurrence uses it: formed in at least float32, whatever the parameters are stored in.

        Reading the attribute would round it to the parameter's dtype, so that below float32 the parametrization is applied
        to the widened parameter instead. Otherwise it is the plain attribute, which `parametrize.cached()` serves, unless what
        is cached there has lost its gradient, since it was first read within `torch.no_grad()`.
        """
        if not parametrize.is_parametrized(self, name):
            plain: Tensor = getattr(self, name)
            return plain.to(state_dtype(plain.dtype))
        originals = self._originals(name)
        held = state_dtype(originals[0].dtype)
        if originals[0].dtype != held:
            first, *others = self.parametrizations[name]  # type: ignore[index]
            matrix: Tensor = first(*(original.to(held) for original in originals))
            for step in others:
                matrix = step(matrix)
            return matrix
        if self._unwatched(name):
            (alone,) = self.parametrizations[name]  # type: ignore[index]
            return held_in(held, alone.forward(*originals))
        matrix = getattr(self, name)
        wanted = torch.is_grad_enabled() and any(original.requires_grad for original in originals)
        if wanted and not matrix.requires_grad:
            matrix = self.parametrizations[name]()  # type: ignore[index, operator]
        return held_in(held, matrix)

    def _unwatched(self, name: str) -> bool:
        """Whether a constrained weight is what its family makes of it and nothing else, and nobody is told when it is formed:
        then there is a shorter way to it than by the attribute, which takes Python 30 µs."""
        chain: Any = self.parametrizations[name]  # type: ignore[index]
        alone = len(chain) == 1 and isinstance(chain[0], Matrix)
        return alone and not parametrize._cache_enabled and not watched(chain, chain[0])

    def _in_use(self, name: str) -> Tensor:
        """`_constrained`, for the recurrence alone, which does not change it: where nobody learns it may be an earlier call's."""
        if torch.compiler.is_compiling() or not parametrize.is_parametrized(self, name) or parametrize._cache_enabled:
            return self._constrained(name)
        remembered: Remembered = vars(self).setdefault("_remembered", Remembered())
        chain = self.parametrizations[name]  # type: ignore[index]
        return remembered.matrix(name, chain, self._originals(name), lambda: self._constrained(name))

    def _constrained_matrices(self) -> Iterator[tuple[str, Matrix]]:
        """Every constrained weight by name (fewer after `parametrize.remove_parametrizations`). What others have parametrized is
        not ours to speak of."""
        for name, chain in getattr(self, "parametrizations", {}).items():
            if isinstance(chain[0], Matrix):
                yield name, chain[0]

    def _originals(self, name: str) -> tuple[Tensor, ...]:
        """The free tensors of a constrained weight, in the order that its family takes them."""
        held: Any = self.parametrizations[name]  # type: ignore[index]
        return (held.original,) if held.is_tensor else tuple(getattr(held, f"original{i}") for i in range(held.ntensors))

    def _get_name(self) -> str:
        """The class's own name: parametrizing an instance gives it a class called Parametrized…"""
        return type(self).__name__.removeprefix("Parametrized")


@torch.no_grad()
def _restore_identity(name: str, module: RecurrentModule, keys: object) -> None:
    """The fixed input weight is not saved. After loading, make it anew, for a module whose memory was never filled; in place,
    unless the parameters are now elsewhere."""
    weight, like = getattr(module, name), module._like
    if (weight.dtype, weight.device) != (like.dtype, like.device):
        setattr(module, name, torch.eye(module.hidden_size, dtype=like.dtype, device=like.device))
    else:
        weight.zero_().fill_diagonal_(1.0)


@torch.no_grad()
def orthogonal_(weight: Tensor) -> None:
    """`torch.nn.init.orthogonal_`, in at least float32: below that there is no QR decomposition."""
    weight.copy_(nn.init.orthogonal_(weight.to(state_dtype(weight.dtype), copy=True)))


def unusual(module: RecurrentModule, usual: dict[str, object]) -> list[str]:
    """`name=value` for every setting that differs from the usual one."""
    return [f"{name}={getattr(module, name)!r}" for name, value in usual.items() if getattr(module, name) != value]


def check_tensors(module: RecurrentModule, tensors: dict[str, Tensor | None], autocast: bool) -> None:
    """Dtype and device of what was passed to `module`, against its parameters."""
    parameter = module._like
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        floating_tensor(name, tensor)
        if tensor.dtype != parameter.dtype and not autocast:
            raise InputError(
                f"{module._get_name()} {name} dtype ({tensor.dtype}) does not match weight dtype ({parameter.dtype}). "
                f"Convert {name}: {name}.to({parameter.dtype}), or convert model: model.to({tensor.dtype})"
            )
        if tensor.device != parameter.device:
            raise InputError(f"{name} must be on the device of the weights, {parameter.device}, got {tensor.device}")
