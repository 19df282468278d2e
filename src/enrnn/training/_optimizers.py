"""The optimisers of the paper, with a rate of its own for the orthogonal matrix (ENRNN: W_L).

All of them can be captured in a CUDA graph.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from . import _fused
from ._config import OptimizerSettings


class Elementwise(torch.optim.Optimizer):
    """An optimiser without a step count: one update rule, applied to each entry by itself.

    States are made at once, not at the first step, and a step looks at no value: so a CUDA graph can hold it, and whoever saves
    or restores a run finds all tensors in place. The rate of a group is a number, or a tensor on the parameters' device, which a
    captured step reads anew each time.
    """

    starts: dict[str, float]
    """The states of a parameter, and what they are filled with at the start."""

    def __init__(self, parameters: Any, defaults: dict[str, Any], starts: dict[str, float]) -> None:
        self.starts = starts
        super().__init__(parameters, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        for parameter in self.param_groups[-1]["params"]:
            for name, start in self.starts.items():
                self.state[parameter][name] = torch.full_like(parameter, start, memory_format=torch.preserve_format)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One update. (There is no closure to be called: the loop has computed the gradient.)"""
        if closure is not None:
            raise TypeError(f"{type(self).__name__}.step takes no closure")
        if self._by_kernel():
            return
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if parameters:
                states = {name: [self.state[parameter][name] for parameter in parameters] for name in self.starts}
                self._update(parameters, [parameter.grad for parameter in parameters], states, group)

    def _update(
        self, parameters: list[Tensor], gradients: list[Tensor], states: dict[str, list[Tensor]], group: dict[str, Any]
    ) -> None:
        raise NotImplementedError

    def _by_kernel(self) -> bool:
        """Do the step by a kernel of ours, if there is one for it; whether there was."""
        return False


class RMSPropTF(Elementwise):
    """RMSProp as TensorFlow 1 computes it, and so as the ENRNN and scoRNN papers used it:

        s ← decay·s + (1 − decay)·g²,   m ← momentum·m + lr·g/√(s + ε),   p ← p − m,   with s = 1 at the start.

    `torch.optim.RMSprop` starts from s = 0, has ε outside the root, and 0.99 for the decay. Starting from 1 makes early steps
    small: a built-in warm-up, without which the paper's learning rates are other rates.
    """

    def __init__(
        self, params: Any, lr: float | Tensor = 1e-3, decay: float = 0.9, momentum: float = 0.0, eps: float = 1e-10
    ) -> None:
        starts = {"square_avg": 1.0} | ({"momentum_buffer": 0.0} if momentum else {})
        super().__init__(params, {"lr": lr, "decay": decay, "momentum": momentum, "eps": eps}, starts)

    def _update(
        self, parameters: list[Tensor], gradients: list[Tensor], states: dict[str, list[Tensor]], group: dict[str, Any]
    ) -> None:
        squares = states["square_avg"]
        torch._foreach_mul_(squares, group["decay"])
        torch._foreach_addcmul_(squares, gradients, gradients, value=1 - group["decay"])
        roots = torch._foreach_add(squares, group["eps"])
        torch._foreach_sqrt_(roots)
        updates = list(torch._foreach_div(gradients, roots))
        torch._foreach_mul_(updates, group["lr"])
        if "momentum_buffer" in states:
            torch._foreach_mul_(states["momentum_buffer"], group["momentum"])
            torch._foreach_add_(states["momentum_buffer"], updates)
            updates = states["momentum_buffer"]
        torch._foreach_sub_(parameters, updates)

    def _by_kernel(self) -> bool:
        return _fused.rmsprop_tf(self._updates())

    def _updates(self) -> Iterator[tuple[_fused.Options, _fused.Updated]]:
        for group, parameter, gradient in _with_gradient(self):
            options = (group["decay"], 1 - group["decay"], group["momentum"], group["eps"])
            square, *momentum = (self.state[parameter][name] for name in self.starts)
            yield options, _fused.Updated(parameter, gradient, square, momentum[0] if momentum else None, None, group["lr"])


class Adagrad(Elementwise):
    """`s ← s + g²`, `p ← p − lr·g/(√s + ε)`: `torch.optim.Adagrad`, which keeps a step count that a CUDA graph cannot hold."""

    def __init__(self, params: Any, lr: float | Tensor = 1e-2, accumulator: float = 0.0, eps: float = 1e-10) -> None:
        super().__init__(params, {"lr": lr, "eps": eps}, {"sum": accumulator})

    def _update(
        self, parameters: list[Tensor], gradients: list[Tensor], states: dict[str, list[Tensor]], group: dict[str, Any]
    ) -> None:
        torch._foreach_addcmul_(states["sum"], gradients, gradients, value=1.0)
        updates = torch._foreach_sqrt(states["sum"])
        torch._foreach_add_(updates, group["eps"])
        updates = torch._foreach_div(gradients, updates)
        torch._foreach_mul_(updates, group["lr"])
        torch._foreach_sub_(parameters, updates)


class Adam(torch.optim.Adam):
    """torch's. Its fused step has some twenty thread blocks for a network of the paper's size: where the step is a plain one, in
    float32, a kernel of ours does it, by the same operations."""

    def step(self, closure: Any = None) -> Any:
        """One update: torch's, hooks and all."""
        with torch.no_grad():
            if closure is None and self._is_plain() and _fused.adam(self, self._updates()):
                return None
        return _without_hooks(torch.optim.Adam.step)(self, closure)

    def _is_plain(self) -> bool:
        extras = ("amsgrad", "weight_decay", "maximize", "differentiable")
        scaled = any(getattr(self, name, None) is not None for name in ("grad_scale", "found_inf"))
        return not scaled and all(group["fused"] and not any(group[name] for name in extras) for group in self.param_groups)

    def _updates(self) -> Iterator[tuple[_fused.Options, _fused.Updated]]:
        for group, parameter, gradient in _with_gradient(self):
            state = self.state.get(parameter, {})
            states = (state.get("exp_avg"), state.get("exp_avg_sq"), state.get("step"))
            yield (*group["betas"], group["eps"]), _fused.Updated(parameter, gradient, *states, group["lr"])


def _with_gradient(optimizer: torch.optim.Optimizer) -> Iterator[tuple[dict[str, Any], Tensor, Tensor]]:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                yield group, parameter, parameter.grad


def _without_hooks(step: Any) -> Any:
    """torch wraps the `step` of each class whose optimiser has been made, to call the hooks. A class's own step that calls the
    one of the class above it would have them called twice."""
    return step.__wrapped__ if getattr(step, "hooked", False) else step


def build_optimizers(model: nn.Module, settings: OptimizerSettings) -> list[torch.optim.Optimizer]:
    """The optimisers of a run, which share out all parameters of `model`, with all of their state in place: two if the
    orthogonal matrix has its own, otherwise one."""
    groups = parameter_groups(model, settings.lr, settings.lr if settings.long_lr is None else settings.long_lr)
    own = [f"optimizer.{name}" for name in ("long_lr", "long_name") if getattr(settings, name) is not None]
    if own and len(groups) == 1:
        raise ValueError(f"{own[0]} has no effect: no part of this network is trained at a rate of its own; leave it out")
    if settings.long_name in (None, settings.name):
        return [_optimizer(settings.name, groups, settings)]
    others, *long = groups
    return [_optimizer(settings.name, [others], settings)] + [_optimizer(str(settings.long_name), [g], settings) for g in long]


def _optimizer(name: str, groups: list[dict[str, Any]], settings: OptimizerSettings) -> torch.optim.Optimizer:
    device = groups[0]["params"][0].device
    on_gpu = device.type == "cuda"
    for group in groups:
        group["first_lr"] = group["lr"]
        if on_gpu:
            group["lr"] = torch.tensor(group["lr"], device=device)
    if name == "rmsprop_tf":
        return RMSPropTF(groups, decay=0.9 if settings.decay is None else settings.decay, momentum=settings.momentum)
    if name == "adagrad":
        return Adagrad(groups, accumulator=settings.accumulator)
    optimizer: torch.optim.Optimizer
    if name == "adam":
        optimizer = Adam(groups, capturable=on_gpu, fused=on_gpu or None)
    else:
        alpha = 0.99 if settings.decay is None else settings.decay
        optimizer = torch.optim.RMSprop(groups, alpha=alpha, momentum=settings.momentum, capturable=on_gpu)
    _make_states(optimizer)
    return optimizer


def parameter_groups(model: nn.Module, lr: float, long_lr: float) -> list[dict[str, Any]]:
    """`long_lr` for what the model's layers train at a rate of its own, their orthogonal or unitary matrix (`Matrix.slow`), `lr`
    for all other parameters that are trained."""
    groups: dict[str, dict[str, Any]] = {"others": {"params": [], "lr": lr, "name": "others"}}
    placed: set[nn.Parameter] = set()
    for layer in model.modules():
        own = getattr(layer, "parameter_groups", None)
        for group in own(lr, long_lr) if callable(own) else ():
            groups.setdefault(group["name"], {**group, "params": []})["params"] += group["params"]
            placed |= set(group["params"])
    groups["others"]["params"] += [p for p in model.parameters() if p.requires_grad and p not in placed]
    return list(groups.values())


def set_rates(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Every group's rate: its first one times `factor`. In place where it is a tensor, which a CUDA graph goes on reading."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(group["first_lr"] * factor)
        else:
            group["lr"] = group["first_lr"] * factor


def state_tensors(optimizer: torch.optim.Optimizer, names: dict[Tensor, str]) -> dict[str, Tensor]:
    """All of the optimiser's state by the names of the parameters."""
    return {
        f"{names[parameter]}/{key}": value
        for parameter, states in optimizer.state.items()
        for key, value in sorted(states.items())
        if isinstance(value, Tensor)
    }


@torch.no_grad()
def _make_states(optimizer: torch.optim.Optimizer) -> None:
    """torch's optimisers make their state at the first step. So take one with a zero gradient, and undo it: the states of Adam
    and RMSprop, their step counts included, start at zero."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    before = [parameter.clone() for parameter in parameters]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for parameter, value in zip(parameters, before, strict=True):
        parameter.copy_(value)
        parameter.grad = None
    _zero(value for states in optimizer.state.values() for value in states.values() if isinstance(value, Tensor))


def _zero(tensors: Iterable[Tensor]) -> None:
    for tensor in tensors:
        tensor.zero_()
