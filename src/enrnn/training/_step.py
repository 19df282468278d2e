"""A training step, and everything that it changes.

The step finds its own batch: the order of the epoch and the place in it are tensors on the device. So the same function runs
eagerly or inside a CUDA graph, and all that a step changes is a known set of tensors, `Step.tensors`: parameters, buffers,
optimiser state, the carried state, and a few counters. Saving a run, undoing a warm-up and undoing a step are copies of that set.
"""

import contextlib
from typing import Any

import torch
from torch import Tensor, nn

from .._precision import capturing
from .._streams import Fork, all_is_read, reading
from ..layers import ENRNN, HMRNN
from ..layers._base import RecurrentLayer
from ..matrices import EigenvalueNormalized, Matrix, SpectralNorm
from ..tasks import Data
from ._config import OptimizerSettings
from ._contract import attach, matrices_of
from ._distributed import Processes
from ._keep import Kept
from ._ledger import Ledger, all_finite
from ._model import Network
from ._optimizers import build_optimizers, set_rates, state_tensors


class NotFiniteError(RuntimeError):
    """A loss, a gradient or a matrix was not finite. The step that found it has changed no parameter."""


class Step:
    """What one step of a run does, and the tensors it does it to.

    `plain()` looks at the loss and the gradient before it updates anything. `guarded()` cannot look, because it is to be
    captured: it does the whole step, and then takes it all back if something was wrong, raises the flag `stopped`, and from then
    on changes nothing at all. `done` stays at the number of steps that count. Whoever looks next calls `clear()` and does that
    step over with `plain()`, which names what was wrong, or, if it was an eigenvalue or a norm that could not be certified
    inside the graph, solves densely and goes on: the digits are those of a run that had used `plain()` from the start.
    """

    def __init__(self, model: Network, data: Data, settings: OptimizerSettings, processes: Processes) -> None:
        self.model, self.data, self.settings = model, data, settings
        self._module = processes.wrapped(model)
        self._processes = processes
        self.optimizers = build_optimizers(model, settings)
        attach(model, *self.optimizers)
        self._trained = [p for optimizer in self.optimizers for group in optimizer.param_groups for p in group["params"]]
        self._matrices = [module for module in model.modules() if isinstance(module, Matrix)]
        self._short = [part for module in model.modules() if isinstance(module, ENRNN) for part in module._short_parts()]
        self.order = self._processes.share(data.order("train", 0)).clone()  # [steps of an epoch, B]
        self._ledger = Ledger(data.device, len(self._short))
        first = model.first_state(self.order.shape[1]) if data.carries_state else ()
        self._carried = tuple(state.detach().clone(memory_format=torch.contiguous_format) for state in first)
        self.tensors = self._all_tensors()
        self._kept = Kept(list(self.tensors.values()))

    def start_epoch(self, epoch: int, place: int) -> None:
        """Go to step `place` of `epoch`."""
        self.order.copy_(self._processes.share(self.data.order("train", epoch)))
        self._ledger.place.fill_(place)
        for optimizer in self.optimizers:
            set_rates(optimizer, self.settings.lr_decay**epoch)
        for layer in self.model.modules():
            if isinstance(layer, HMRNN):
                while int(layer.epochs) < epoch:
                    layer.after_epoch()

    def plain(self) -> None:
        """A step that stops, with `NotFiniteError`, before it updates what it should not."""
        number = self.done + 1
        try:
            loss = self._gradients()
        except ValueError as error:
            if all(bool(torch.isfinite(parameter).all()) for parameter in self._trained):
                raise
            raise NotFiniteError(f"step {number}: {error}") from None
        if not all_finite(self._values(loss)):
            raise NotFiniteError(f"step {number}: {self._what_is_not_finite(loss)}; no parameter was updated")
        self._update(loss)

    def guarded(self) -> None:
        """A step that a CUDA graph can hold: without a look at any value."""
        with reading(self.order):
            self._kept.keep()
        try:
            loss = self._gradients()
        finally:
            with contextlib.suppress(RuntimeError):  # where a network cannot be captured, which is the error to be told
                all_is_read()
        fine = self._ledger.judge(self._values(loss), self._doubts())
        self._update(loss)
        self._kept.restore_unless(fine)

    def forget_gradients(self) -> None:
        for parameter in self._trained:
            parameter.grad = None

    @property
    def stopped(self) -> Tensor:
        """The flag: whether a guarded step was taken back."""
        return self._ledger.stopped

    def clear(self) -> None:
        self.stopped.zero_()

    @property
    def done(self) -> int:
        """Steps that count. A look at the device."""
        return int(self._ledger.done)

    def mean_loss(self) -> float:
        """Of the steps since `forget_losses`. NaN if there was none."""
        total, count = self._ledger.losses.tolist()
        return total / count if count else float("nan")

    def forget_losses(self) -> None:
        self._ledger.losses.zero_()

    def spectrum(self) -> dict[str, Any]:
        """ρ(T) of the last step, the step that turned the normalisation on, and how often the solvers had to give way."""
        radii = [float(part.radius) for part in self._short]
        solved = [matrix for matrix in self._matrices if isinstance(matrix, EigenvalueNormalized | SpectralNorm)]
        fallbacks = sum(int(matrix.fallbacks) for matrix in solved)
        if not radii:
            return {"spectral_radius": None, "switched_at": None, "fallbacks": fallbacks, "nearly_defective": 0}
        switched = [step for step in self._ledger.switched_at.tolist() if step >= 0]
        return {
            "spectral_radius": max(radii),
            "switched_at": min(switched) if switched else None,
            "fallbacks": fallbacks,
            "nearly_defective": sum(int(part.nearly_defective) for part in self._short),
        }

    def _gradients(self) -> Tensor:
        self.forget_gradients()
        beside = Fork(self.order)
        with self._forming():
            with beside:
                indices = self.order.index_select(0, self._ledger.place)[0]
                batch = self.data.batch("train", indices)
                state = self._state()
            all_is_read()
            outputs, final = self._module(batch.inputs, state)
        loss = self._processes.weighted(self.data.loss(outputs, batch), self.data.counted(batch))
        sum(self._penalties(), loss).backward()  # type: ignore[no-untyped-call]
        for carried, last in zip(self._carried, final, strict=False):
            carried.copy_(last.detach())
        return self._processes.mean(loss.detach())

    def _forming(self) -> contextlib.AbstractContextManager[None]:
        """In a graph, the layer's matrices are formed first, and the batch is found beside that."""
        layer = self.model.layer
        return layer._forming() if isinstance(layer, RecurrentLayer) and capturing(self.order) else contextlib.nullcontext()

    def _state(self) -> tuple[Tensor, ...] | None:
        """What the batch before has left; at the beginning of an epoch, the network's first state."""
        if not self._carried:
            return None
        first = self.model.first_state(self.order.shape[1])
        return tuple(torch.where(self._ledger.place[0] == 0, *pair) for pair in zip(first, self._carried, strict=True))

    def _penalties(self) -> list[Tensor]:
        """What the matrices add to the loss, if anything. It is not part of the loss that is logged."""
        penalties = [matrix.penalty(*originals) for matrix, originals in matrices_of(self.model) if isinstance(matrix, Matrix)]
        return [penalty for penalty in penalties if penalty is not None]

    def _values(self, loss: Tensor) -> list[Tensor]:
        """What must be finite: the loss, all gradients and all spectral radii."""
        gradients = [p.grad for p in self._trained if p.grad is not None and p.numel()]
        return [loss, *gradients, *(part.radius for part in self._short)]

    def _doubts(self) -> list[Tensor]:
        """The flags that matrices raise."""
        flags = (getattr(matrix, name, None) for matrix in self._matrices for name in ("uncertified", "not_finite"))
        return [flag for flag in flags if flag is not None]

    def _update(self, loss: Tensor) -> None:
        if self.settings.clip_value is not None:
            nn.utils.clip_grad_value_(self._trained, self.settings.clip_value)
        if self.settings.clip_norm is not None:
            nn.utils.clip_grad_norm_(self._trained, self.settings.clip_norm)
        for optimizer in self.optimizers:
            optimizer.step()
        self._ledger.count(loss, [part.normalizing for part in self._short])

    def _what_is_not_finite(self, loss: Tensor) -> str:
        if not torch.isfinite(loss):
            return f"the loss is {float(loss)}"
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        wrong = [names[p] for p in self._trained if p.grad is not None and not torch.isfinite(p.grad).all()]
        return f"the gradient of {', '.join(wrong)} is not finite" if wrong else "ρ(T) is not finite"

    def _all_tensors(self) -> dict[str, Tensor]:
        """Everything that a step changes, by name. What does not change (an identity, a table) is in no state dict."""
        tensors = {f"model/{name}": tensor for name, tensor in self.model.state_dict().items()}
        for name, module in self.model.named_modules():
            if isinstance(module, Matrix):
                tensors |= {f"model/{name}.{key}": buffer for key, buffer in module.named_buffers(recurse=False)}
        names: dict[Tensor, str] = {parameter: name for name, parameter in self.model.named_parameters()}
        for optimizer in self.optimizers:
            tensors |= {f"optimizer/{name}": tensor for name, tensor in state_tensors(optimizer, names).items()}
        tensors |= {f"carried/{index}": tensor for index, tensor in enumerate(self._carried)}
        counters = ("place", "done", "losses", "switched_at")
        return tensors | {f"loop/{name}": getattr(self._ledger, name) for name in counters}
