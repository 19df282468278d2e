"""ENRNN's recurrent matrix `[[W_L, W_C], [0, W_S]]` as parameters of a layer or a cell."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from .._checks import boolean, count_within, non_negative, one_of
from .._operators import somebody_listens
from .._precision import autocasting, capturing, state_dtype
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
from ..recurrence._dispatch import fusable_name
from ..recurrence._projection import meant_for
from ..recurrence.reference import block_matrix
from ..spectrum import SOLVERS
from ._module import RecurrentModule, orthogonal_
from ._one_call import Unformed, run
from ._watched import watched

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
        short, long = None, None
        captured = capturing(self._like)
        if self.long_size and not captured:  # first: of W_S one waits until it is there
            long = self._in_use(f"weight_long{suffix}")
        if self.short_size:
            short = self._form_short(f"weight_short{suffix}", captured)
        if self.long_size and captured:  # then, to be formed beside the other
            long = self._form_aside(f"weight_long{suffix}")
        coupling = getattr(self, f"weight_coupling{suffix}", None)
        if coupling is not None and short is not None:
            coupling = coupling.to(short.dtype)
        return long, coupling, short

    def _unformed(self, suffix: str, x: Tensor) -> tuple[Unformed, Tensor] | None:
        """What `_run` makes one call of, with a gradient and outside of a graph; None where something looks at the matrices, or
        at what happens, or where they are written in another way."""
        like = self._like
        if not like.is_cuda or like.dtype != torch.float32 or not torch.is_grad_enabled():
            return None
        if somebody_listens() or autocasting(like) or capturing(like) or self._backend_now() != "cuda":
            return None
        chains = self._alone(suffix)
        if chains is None:
            return None
        long, short = chains
        free_long, free_short = (None if each is None else each.original for each in chains)
        coupling = getattr(self, f"weight_coupling{suffix}", None)
        names = f"weight_ih{suffix}", self._bias_name(suffix)
        plain = self.input_weight == "full" and all(name in self._parameters for name in names)
        weight, added, threshold = self._way_in(suffix) if plain else (None, None, None)
        for each in (x, weight, added, threshold, free_long, free_short, coupling):
            if each is not None and not _alike(each, like):
                return None
        formed = None
        if free_short is not None:
            formed = short[0].by_kernels(free_short.detach())
            if formed is None:
                return None
        if not plain:  # what is parametrized is formed once
            x, threshold = self._project(suffix, x, x.dtype)
        elif not meant_for(x, weight, added):
            x, weight, added = self._projected(x, weight, added), None, None
        W_S, derivative, said, certified = formed or (None, None, None, None)
        nonlinearity = fusable_name(self.nonlinearity, self.bias, self.backend)[0]
        assert nonlinearity is not None
        negative_ones = 0 if free_long is None else long[0]._count(free_long)
        epsilon = 0.0 if free_short is None else short[0].epsilon
        tensors = weight, added, free_long, coupling, free_short, W_S, derivative, said, threshold
        return Unformed(*tensors, nonlinearity, negative_ones, epsilon, certified), x

    def _alone(self, suffix: str) -> tuple[Any, Any] | None:
        """The parametrizations of `W_L` and `W_S`, None where there is no such part; None if a part is not of the family that the
        paper has, and nothing else, or if somebody is told when it is formed."""
        parametrizations: Any = self._modules.get("parametrizations")
        if parametrizations is None or parametrize._cache_enabled:
            return None
        chains = [parametrizations._modules.get(f"weight_{part}{suffix}") for part in ("long", "short")]
        looked_at = []
        for chain, family, size in zip(chains, (Cayley, EigenvalueNormalized), (self.long_size, self.short_size), strict=True):
            if size:
                matrices = () if chain is None else tuple(chain._modules.values())
                if len(matrices) != 1 or type(matrices[0]) is not family:
                    return None
                looked_at += [chain, *matrices]
        return None if watched(*looked_at) else (chains[0], chains[1])

    def _form_short(self, name: str, captured: bool) -> Tensor:
        if captured and self._undisturbed(name):
            with leaving():
                return self._in_use(name)
        return self._in_use(name)

    def _form_aside(self, name: str) -> Tensor:
        like = self._like
        with aside(like):
            long = self._in_use(name)
        here = torch.cuda.current_stream(like.device)
        long.record_stream(here)  # gradients of other layers run aside, perhaps while it is read
        return long

    def _undisturbed(self, name: str) -> bool:
        """Whether nothing looks at the matrix, nor at what its operator keeps for the gradient, before the recurrence does."""
        if not parametrize.is_parametrized(self, name):
            return False
        chain: Any = self.parametrizations[name]  # type: ignore[index]
        original, matrix = self._originals(name)[0], chain[0]
        if len(chain) > 1 or watched(chain, matrix) or not isinstance(matrix, EigenvalueNormalized):
            return False
        if torch._C._autograd._top_saved_tensors_default_hooks(False) is not None:  # which are given what is saved for a gradient
            return False
        return matrix._by_kernels_alone(original.new_empty(1, dtype=state_dtype(original.dtype)))

    def _whole(self, suffix: str) -> Tensor:
        if not self.long_size or not self.short_size:
            return self._constrained(f"weight_{'long' if self.long_size else 'short'}{suffix}")
        return block_matrix(*self._form(suffix))

    def _run(
        self,
        suffix: str,
        formed: Any,
        inputs: Tensor,
        bias: Tensor | None,
        initial: Tensor | None,
        lengths: Tensor | None,
    ) -> Tensor:
        if isinstance(formed, Unformed):
            states = run(formed, inputs, initial, lengths)
            if states is not None:
                return states
            if formed.weight is not None:
                inputs = self._projected(inputs, formed.weight, formed.added)
            bias, initial = formed.bias, torch.zeros_like(inputs[0]) if initial is None else initial
            formed = self._form(suffix)
        assert initial is not None
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


def _alike(tensor: Tensor, like: Tensor) -> bool:
    """Whether both are plain tensors of one dtype and device: others may have operations of their own for whatever is done."""
    plain = type(tensor) in (Tensor, nn.Parameter)
    return plain and tensor.dtype == like.dtype and tensor.get_device() == like.get_device()
