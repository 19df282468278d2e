"""ENRNN's recurrent matrix `[[W_L, W_C], [0, W_S]]` as parameters of a layer or a cell."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.nn.utils import parametrize

from .._checks import boolean, count_within, non_negative, one_of
from .._precision import capturing, state_dtype
from .._streams import aside, leaving
from ..matrices import (
    Cayley,
    EigenvalueNormalized,
    Exponential,
    Givens,
    Householder,
    Matrix,
    PlainlyNormalized,
    Renormalized,
    SpectralNorm,
)
from ..recurrence import long_short_recurrence
from ..recurrence.reference import block_matrix
from ..spectrum import SOLVERS
from ._module import RecurrentModule, orthogonal_

LONG: dict[str, type[Matrix]] = {"cayley": Cayley, "exponential": Exponential, "givens": Givens, "householder": Householder}
SHORT: dict[str, type[Matrix]] = {
    "normalized": EigenvalueNormalized,
    "plainly_normalized": PlainlyNormalized,
    "renormalized": Renormalized,
    "spectral_norm": SpectralNorm,
}
COUPLING_INITS = ("glorot", "truncated_orthogonal")


class LongShort(RecurrentModule):
    """The two parts of the state, their matrices, and what can be asked of them."""

    def _set_parts(
        self,
        short_size: int | float | None,
        coupling: bool,
        negative_ones: int | None,
        epsilon: float,
        long: str,
        short: str,
        coupling_init: str,
        solver: str,
    ) -> None:
        self.short_size = count_within("short_size", short_size, 0.4, self.hidden_size, "hidden_size", fraction=True)
        self.long_size = self.hidden_size - self.short_size
        self.long = one_of("long", long, LONG)
        self.short = one_of("short", short, SHORT)
        if self.long != "cayley" and negative_ones is not None:
            raise ValueError(f"negative_ones has no effect on long={long!r}; leave it out, got: {negative_ones}")
        share = 0.3 if self.long == "cayley" else 0.0
        self.negative_ones = count_within(
            "negative_ones", negative_ones, share, self.long_size, "the long state's size", fraction=False
        )
        self.coupling = boolean("coupling", coupling)
        self.epsilon = non_negative("epsilon", epsilon)
        self.coupling_init = one_of("coupling_init", coupling_init, COUPLING_INITS)
        self.solver = one_of("solver", solver, SOLVERS)
        self._check_effects()

    def _check_effects(self) -> None:
        """Reject what would have no effect: options of a part that is not there, or that is written in another way.
        (`coupling_init` may stand beside `coupling=False`: so are the recipes with and without a coupling alike in all else.)"""
        usual: dict[str, object] = {"long": "cayley", "short": "normalized", "epsilon": 0.0, "solver": "auto"}
        idle = {
            "without a long-term state": () if self.long_size else ("long",),
            "without a short-term state": () if self.short_size else ("short", "epsilon", "solver"),
            "on short='spectral_norm'": ("epsilon", "solver") if self.short == "spectral_norm" else (),
        }
        for where, names in idle.items():
            for name in names:
                value = getattr(self, name)
                if value != usual[name]:
                    raise ValueError(f"{name} has no effect {where}; leave it out, got: {value!r}")

    def _largest_matrix(self) -> int:
        return max(self.long_size, self.short_size)

    def _add_recurrence(self, suffix: str) -> None:
        q, s = self.long_size, self.short_size
        if q:
            self._add_constrained(f"weight_long{suffix}", self._new_long(), q)
        if s:
            self._add_constrained(f"weight_short{suffix}", self._new_short(), s)
        if q and s and self.coupling:
            self.register_parameter(f"weight_coupling{suffix}", nn.Parameter(self._empty.new_empty(q, s)))

    def _new_long(self) -> Matrix:
        if self.long == "cayley":
            return Cayley(negative_ones=self.negative_ones)
        return LONG[self.long]()

    def _new_short(self) -> Matrix:
        if self.short == "spectral_norm":
            return SpectralNorm()
        family = SHORT[self.short]
        assert issubclass(family, EigenvalueNormalized)
        return family(self.epsilon, solver=self.solver)

    def _reset_recurrence(self, suffix: str) -> None:
        self._reset_constrained(f"weight_long{suffix}")
        self._reset_constrained(f"weight_short{suffix}")
        coupling = getattr(self, f"weight_coupling{suffix}", None)
        if coupling is not None:
            # Truncated orthogonal: the leading rows (or columns) of a random orthogonal matrix of the larger size.
            draw = nn.init.xavier_uniform_ if self.coupling_init == "glorot" else orthogonal_
            draw(coupling)

    def _form(self, suffix: str) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """`W_L`, `W_C` and `W_S`, each None where it has no rows or no columns."""
        short = self._form_short(f"weight_short{suffix}") if self.short_size else None  # first, to be formed beside the others
        long = self._form_long(f"weight_long{suffix}") if self.long_size else None
        coupling = getattr(self, f"weight_coupling{suffix}", None)
        if coupling is not None and short is not None:
            coupling = coupling.to(short.dtype)
        return long, coupling, short

    def _form_long(self, name: str) -> Tensor:
        like = self._like
        if not capturing(like):
            return self._in_use(name)
        with aside(like):
            long = self._in_use(name)
        long.record_stream(
            torch.cuda.current_stream(like.device)
        )  # gradients of other layers run aside, perhaps while it is read
        return long

    def _form_short(self, name: str) -> Tensor:
        if capturing(self._like) and self._undisturbed(name):
            with leaving():
                return self._in_use(name)
        return self._in_use(name)

    def _undisturbed(self, name: str) -> bool:
        """Whether nothing looks at the matrix, nor at what its operator keeps for the gradient, before the recurrence does."""
        if not parametrize.is_parametrized(self, name):
            return False
        chain: Any = self.parametrizations[name]  # type: ignore[index]
        original, matrix = self._originals(name)[0], chain[0]
        watched = any(module._forward_hooks or module._compiled_call_impl for module in (chain, matrix))
        if len(chain) > 1 or watched or _watched() or not isinstance(matrix, EigenvalueNormalized):
            return False
        return matrix._by_kernels_alone(original.new_empty(1, dtype=state_dtype(original.dtype)))

    def _whole(self, suffix: str) -> Tensor:
        if not self.long_size or not self.short_size:
            return self._constrained(f"weight_{'long' if self.long_size else 'short'}{suffix}")
        return block_matrix(*self._form(suffix))

    def _run(
        self, suffix: str, formed: Any, inputs: Tensor, bias: Tensor | None, initial: Tensor, lengths: Tensor | None
    ) -> Tensor:
        long, coupling, short = formed
        return long_short_recurrence(
            inputs, long, coupling, short, bias, initial, self.nonlinearity, lengths=lengths, backend=self.backend
        )

    def _short_parts(self) -> list[EigenvalueNormalized]:
        return [matrix for _, matrix in self._constrained_matrices() if isinstance(matrix, EigenvalueNormalized)]

    @property
    def normalizing(self) -> Tensor:
        """Whether `W_S` is normalised by now: one entry for each layer and direction, empty if there is no short state."""
        return self._gather("normalizing", torch.bool)

    @property
    def nearly_defective(self) -> Tensor:
        """In how many training steps λ was too nearly defective for Prop. 3.2: one entry for each layer and direction."""
        return self._gather("nearly_defective", torch.int64)

    @property
    def fallbacks(self) -> Tensor:
        """In how many training steps the fast solver gave way to a slower one: one entry for each layer and direction."""
        return self._gather("fallbacks", torch.int64)

    @property
    def spectral_radius(self) -> Tensor:
        """ρ(T) when `W_S` was last formed in training mode: one entry for each layer and direction."""
        return self._gather("radius", self._empty.dtype)

    def _gather(self, buffer: str, dtype: torch.dtype) -> Tensor:
        values = [getattr(part, buffer).reshape(()) for part in self._short_parts()]
        return torch.stack(values) if values else torch.empty(0, dtype=dtype)

    def parameter_groups(self, lr: float, long_lr: float) -> list[dict[str, Any]]:
        """Groups for a torch optimiser with the paper's two learning rates: `long_lr` for `W_L`, `lr` for all others."""
        non_negative("lr", lr)
        non_negative("long_lr", long_lr)
        long: list[nn.Parameter] = []
        others: list[nn.Parameter] = []
        for name, parameter in self.named_parameters():
            (long if "weight_long" in name else others).append(parameter)
        groups = [{"params": others, "lr": lr, "name": "others"}, {"params": long, "lr": long_lr, "name": "long"}]
        return [group for group in groups if group["params"]]


def _watched() -> bool:
    """Whether somebody is given what is saved for a gradient, or what any module returns."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False) is not None or bool(torch_module._global_forward_hooks)
