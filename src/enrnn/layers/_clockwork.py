"""Clockwork RNN: modules that run at clock rates of their own (Koutník, Greff, Gomez & Schmidhuber, ICML 2014)."""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, Unpack, overload

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from .._checks import positive_int
from .._precision import full_precision
from ..matrices import BlockTriangular
from ..nonlinearities import pointwise
from ._module import Device, Pointwise
from ._one_matrix import LayerOptions, OneMatrixRNN

MODULES = 7
"""As many as the paper has for spoken words: periods 1, 2, …, 64."""


class ClockworkRNN(OneMatrixRNN):
    """The units fall into g modules, and module i is updated at the steps t that its period `T_i` divides:

        h_t^i = σ(Σ_{j≥i} W_ij h_{t−1}^j + U_i x_t + b_i)   if t mod T_i = 0,   else   h_t^i = h_{t−1}^i

    Periods rise from module to module, so that fast modules hear slow ones and not the other way round: `W` is block upper
    triangular (`BlockTriangular`), with n²(g + 1)/(2g) numbers. All weights start normal with deviation 0.1.

    **The clock.** The first step of a sequence is t = 0, at which every module is updated. A sequence that is handed over in
    pieces needs its clock carried on as well as its state: `forward(piece, hx, start)`, where `start` counts the steps before
    the piece. Without it the clock begins at zero again, which is the same where all periods divide `start`. Of a bidirectional
    layer, both directions count from the end they begin at.

    A step multiplies by the rows of the modules that are due, not by the others; it has no fused backend.

    Arguments:
        modules: g, for periods 1, 2, 4, …, 2^(g−1). None: 7, or `hidden_size` if that is less.
        periods: the periods themselves, rising; in place of `modules`. They need not divide each other.
        The others: as `ENRNN`; `backend` is "auto" or "reference".

    Attributes:
        periods: the periods, fastest first.
        sizes: the units of each module. Where g does not divide n, the first modules have one more.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: Pointwise = "tanh",
        *,
        modules: int | None = None,
        periods: Sequence[int] | None = None,
        learn_initial: bool = False,
        device: Device = None,
        dtype: torch.dtype | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        periods = _periods(modules, periods, positive_int("hidden_size", hidden_size))
        if options.get("backend", "auto") not in ("auto", "reference"):
            raise ValueError(f"a step of ClockworkRNN's own runs on 'reference', got: backend={options['backend']!r}")
        matrix = partial(BlockTriangular, len(periods))
        super().__init__(
            input_size, hidden_size, num_layers, nonlinearity, matrix, learn_initial, device=device, dtype=dtype, **options
        )
        self.periods = periods
        self.sizes = matrix().sizes(hidden_size)

    @overload
    def forward(self, input: Tensor, hx: Tensor | None = None, start: int = 0) -> tuple[Tensor, Tensor]: ...
    @overload
    def forward(self, input: PackedSequence, hx: Tensor | None = None, start: int = 0) -> tuple[PackedSequence, Tensor]: ...
    def forward(
        self, input: Tensor | PackedSequence, hx: Tensor | None = None, start: int = 0
    ) -> tuple[Tensor | PackedSequence, Tensor]:
        """As `torch.nn.RNN`; `start` is what the clock shows at the first step."""
        if isinstance(start, bool) or not isinstance(start, int) or start < 0:
            raise ValueError(f"start must be the number of steps before this one, an int ≥ 0, got: {start!r}")
        return self._over(input, hx, lambda suffix: (self._given(suffix), start))

    @torch.no_grad()
    def final_state(self, input: Tensor | PackedSequence, hx: Tensor | None = None, start: int = 0) -> Tensor:
        """The final states of all layers, as `forward` gives them, with nothing kept for gradients."""
        final: Tensor = self(input, hx, start)[1]
        return final

    def bake(self) -> nn.Module:
        raise ValueError("a ClockworkRNN cannot be baked: no plain layer has its clock")

    def num_free_parameters(self) -> int:
        """All that are stored are free."""
        return sum(parameter.numel() for parameter in self.parameters())

    @property
    def backend_used(self) -> str:
        return "reference"

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, periods={self.periods}"

    @torch.no_grad()
    def _reset_input(self, suffix: str) -> None:
        super()._reset_input(suffix)
        if self.input_weight == "full":
            nn.init.normal_(getattr(self, f"weight_ih{suffix}"), 0.0, 0.1)

    def _run(
        self, suffix: str, formed: Any, inputs: Tensor, bias: Tensor | None, initial: Tensor, lengths: Tensor | None
    ) -> Tensor:
        matrix, start = formed
        weight, sigma = matrix.to(inputs.dtype), pointwise(self.nonlinearity)
        rows: dict[tuple[bool, ...], _Rows] = {}  # sliced once, so that their gradients are added up before they are put in place
        h, states = initial, []
        with full_precision(inputs):
            for t, x in enumerate(inputs):
                due = tuple((start + t) % period == 0 for period in self.periods)
                if due not in rows:
                    rows[due] = self._rows(due, weight, bias)
                units, transposed, threshold, kept = rows[due]
                step = sigma(torch.addmm(x[:, :units], h, transposed), threshold)
                if kept is not None:
                    step = torch.where(kept, h[:, :units], step)
                step = torch.cat([step, h[:, units:]], dim=1)
                h = step if lengths is None else torch.where((t < lengths).unsqueeze(-1), step, h)
                states.append(h)
        return torch.stack(states)

    def _rows(self, due: tuple[bool, ...], weight: Tensor, bias: Tensor | None) -> "_Rows":
        """The rows of `W` up to the last module that is due."""
        last = max([0] + [index + 1 for index, now in enumerate(due) if now])
        units = sum(self.sizes[:last])
        kept = None
        if not all(due[:last]):
            waits = [not now for now, size in zip(due[:last], self.sizes, strict=False) for _ in range(size)]
            kept = torch.tensor(waits, device=weight.device)
        return _Rows(units, weight[:units].mT, None if bias is None else bias[:units], kept)


class _Rows(NamedTuple):
    """What a step needs for the first `units` units."""

    units: int
    transposed: Tensor
    threshold: Tensor | None
    kept: Tensor | None
    """[units]: units among them that are not due. None: all are."""


def _periods(modules: int | None, periods: Sequence[int] | None, hidden_size: int) -> tuple[int, ...]:
    if periods is None:
        count = min(MODULES, hidden_size) if modules is None else positive_int("modules", modules)
        found = tuple(2**index for index in range(count))
    else:
        if modules is not None:
            raise ValueError(f"give modules or periods, not both: modules={modules}, periods={periods!r}")
        if not isinstance(periods, list | tuple) or not periods:
            raise TypeError(f"periods should be a list or tuple of ints, one for each module, got: {periods!r}")
        found = tuple(positive_int(f"periods[{index}]", period) for index, period in enumerate(periods))
        if any(later <= earlier for earlier, later in pairwise(found)):
            raise ValueError(f"periods must rise from module to module, got: {periods!r}")
    if len(found) > hidden_size:
        raise ValueError(f"{len(found)} modules need as many units, got: hidden_size={hidden_size}")
    return found
