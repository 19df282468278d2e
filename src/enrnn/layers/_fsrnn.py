"""Fast-Slow RNN: fast cells that share one state, and a slow one between the first two (Mujika, Meier & Steger, NeurIPS 2017)."""

from collections.abc import Iterable
from itertools import chain, repeat

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .._checks import InputError, InputTypeError, boolean, positive_int, probability
from ._cell import RecurrentCell
from ._layer_norm_lstm import LayerNormLSTMCell
from ._module import Device
from ._once import formed_once
from ._sequence import SequenceLayer, State, map_state, mix_states

PAIRS = (nn.LSTMCell, LayerNormLSTMCell)
SINGLES = (nn.RNNCell, nn.GRUCell, RecurrentCell)
"""Cells whose state is known to be a pair, and a tensor. Any other may have either."""


class FSRNN(SequenceLayer):
    """At every step the state of the fast cells `F_1 … F_k` goes through all of them, that of the slow cell `S` through one:

        h^F ← F_1(x_t, h^F);   h^S ← S(h^F, h^S);   h^F ← F_2(h^S, h^F);   h^F ← F_i(0, h^F), i = 3 … k

    and h^F is the output. (With LSTM cells `h` is passed on between cells, and `(h, c)` is the state.)

    Cells are modules such as `torch.nn.RNNCell`, `GRUCell`, `LSTMCell`, `enrnn.ENRNNCell` or `enrnn.LayerNormLSTMCell`, with
    `input_size`, `hidden_size` and `cell(input, state)`, which returns the new state: a tensor, or a tuple with `h` first.

    Arguments:
        fast: the cells `F_1 … F_k`, k ≥ 2, all of one hidden size. `F_2` hears the slow cell, later ones zeros.
        slow: the cell `S`, whose input is as large as the fast state.
        dropout: the probability of an element of the input, of what goes from `F_1` to `S` and from `S` to `F_2`, and of the
            output to be zeroed in training. The state is not touched.
        zoneout, cell_zoneout: the probability of a unit of `h`, and of `c`, to keep its value through a cell in training
            (Krueger et al., 2017); afterwards the expectation is taken.
        batch_first: as `torch.nn.LSTM`.

    Attributes:
        input_size, hidden_size: those of the whole: `F_1`'s input, and the fast state.

    The state that `forward` takes and returns is the pair of the fast and the slow cells' states, with tensors [B, n].

    Example:
        >>> cells = [torch.nn.LSTMCell(8, 64), torch.nn.LSTMCell(32, 64)]
        >>> layer = enrnn.FSRNN(cells, enrnn.ENRNNCell(64, 32))
        >>> output, (fast, slow) = layer(torch.randn(100, 16, 8))
    """

    batch_dim = 0

    def __init__(
        self,
        fast: Iterable[nn.Module],
        slow: nn.Module,
        *,
        dropout: float = 0.0,
        zoneout: float = 0.0,
        cell_zoneout: float = 0.0,
        batch_first: bool = False,
    ) -> None:
        super().__init__()
        cells = list(fast)
        if len(cells) < 2:
            raise ValueError(f"fast must have two cells or more, one before and one after the slow cell, got: {len(cells)}")
        named = {f"fast[{index}]": cell for index, cell in enumerate(cells)} | {"slow": slow}
        sizes = {name: _sizes(name, cell) for name, cell in named.items()}
        self.input_size, self.hidden_size = sizes["fast[0]"]
        self.slow_size = sizes["slow"][1]
        for name, (inputs, units) in sizes.items():
            if name != "slow" and units != self.hidden_size:
                raise ValueError(f"fast cells share one state of {self.hidden_size} units, but {name}.hidden_size is {units}")
            wanted = {"slow": ("the fast state", self.hidden_size), "fast[1]": ("the slow state", self.slow_size)}.get(name)
            if wanted is not None and inputs != wanted[1]:
                raise ValueError(f"{name} hears {wanted[0]} of {wanted[1]} units, but its input_size is {inputs}")
        self.fast = nn.ModuleList(cells)
        self.slow = slow
        self.dropout = probability("dropout", dropout)
        self.zoneout = probability("zoneout", zoneout)
        self.cell_zoneout = probability("cell_zoneout", cell_zoneout)
        self.batch_first = boolean("batch_first", batch_first)

    def reset_parameters(self) -> None:
        """Draw the parameters of all cells anew."""
        for cell in (*self.fast, self.slow):
            cell.reset_parameters()

    def _forward(self, x: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State]:
        fast, slow = (None, None) if state is None else state
        once = {cell: formed_once(cell) for cell in (*self.fast, self.slow)}
        cells, between = [once[cell] for cell in self.fast], once[self.slow]
        outputs = []
        for t, now in enumerate(self._drop(x)):
            runs = None if lengths is None or t == 0 else (t < lengths).unsqueeze(-1)
            fast, slow = self._step(cells, between, now, fast, slow, runs)
            outputs.append(_parts(fast)[0])
        assert fast is not None
        assert slow is not None
        return self._drop(torch.stack(outputs)), (fast, slow)

    def _step(
        self,
        cells: list[nn.Module],
        between: nn.Module,
        x: Tensor,
        fast: State | None,
        slow: State | None,
        runs: Tensor | None,
    ) -> tuple[State, State]:
        """The next states by the fast cells and the slow one; `runs` [B, 1]: sequences that have not ended. (All have a first
        step.)"""
        first, second, *others = cells
        new_fast = self._through(first, x, fast)
        new_slow = self._through(between, self._drop(_parts(new_fast)[0]), slow)
        new_fast = self._through(second, self._drop(_parts(new_slow)[0]), new_fast)
        for cell in others:
            new_fast = self._through(cell, x.new_zeros([x.size(0), cell.input_size]), new_fast)  # type: ignore[list-item]
        if runs is None or fast is None or slow is None:
            return new_fast, new_slow

        def held(new: Tensor, old: Tensor) -> Tensor:
            return torch.where(runs, new, old)

        return mix_states(held, new_fast, fast), mix_states(held, new_slow, slow)

    def _through(self, cell: nn.Module, x: Tensor, state: State | None) -> State:
        """The cell's new state, after zoneout."""
        new: State = cell(x, state)
        if not self.zoneout and not self.cell_zoneout:
            return new
        old = map_state(torch.zeros_like, new) if state is None else state
        rates = chain([self.zoneout], repeat(self.cell_zoneout))
        zoned = tuple(self._zone(*parts) for parts in zip(_parts(new), _parts(old), rates, strict=False))
        return zoned[0] if isinstance(new, Tensor) else zoned

    def _zone(self, new: Tensor, old: Tensor, rate: float) -> Tensor:
        if self.training:
            return torch.where(torch.rand_like(new) < rate, old, new)
        return (1 - rate) * new + rate * old

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training) if self.dropout else x

    @property
    def _like(self) -> Tensor:
        plain = (value for part in self.modules() for value in vars(part).values() if isinstance(value, Tensor) and value.numel())
        return next(chain(self.parameters(), plain))

    def _check_state(self, state: State, batch: int) -> None:
        if not isinstance(state, tuple | list) or len(state) != 2:
            raise InputTypeError("hx must be the pair of the fast and the slow cells' states, as forward returns it")
        for name, part, cell, units in (
            ("fast", state[0], self.fast[0], self.hidden_size),
            ("slow", state[1], self.slow, self.slow_size),
        ):
            _check_kind(name, part, cell)
            for tensor in _parts(part):
                if tuple(tensor.shape) != (batch, units):
                    raise InputError(f"Expected the {name} state of hx to have shape {[batch, units]}, got {list(tensor.shape)}")

    def extra_repr(self) -> str:
        usual = {"dropout": 0.0, "zoneout": 0.0, "cell_zoneout": 0.0, "batch_first": False}
        return ", ".join(f"{name}={getattr(self, name)}" for name, value in usual.items() if getattr(self, name) != value)


class FSLSTM(FSRNN):
    """FS-LSTM-k: an `FSRNN` of k + 1 LSTM cells with layer normalisation (`LayerNormLSTMCell`).

    The paper's for characters of the Penn Treebank: `FSLSTM(128, 700, fast=2, slow_size=400, dropout=0.35, zoneout=0.1,
    cell_zoneout=0.5)`. In the authors' code the third and further cells have a weight for an input that is always zero; here
    they have none.

    Arguments:
        input_size, hidden_size: of the input and of the fast state.
        fast: k, the number of fast cells.
        slow_size: units of the slow cell; None: `hidden_size`.
        bias, forget_bias, device, dtype: as `LayerNormLSTMCell`.
        The others: as `FSRNN`.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        fast: int = 2,
        slow_size: int | None = None,
        *,
        bias: bool = True,
        forget_bias: float = 1.0,
        dropout: float = 0.0,
        zoneout: float = 0.0,
        cell_zoneout: float = 0.0,
        batch_first: bool = False,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        positive_int("input_size", input_size)
        positive_int("hidden_size", hidden_size)
        slow_size = hidden_size if slow_size is None else positive_int("slow_size", slow_size)
        if positive_int("fast", fast) < 2:
            raise ValueError(f"fast must be 2 or more, one cell before and one after the slow one, got: {fast}")

        def cell(inputs: int, units: int) -> LayerNormLSTMCell:
            return LayerNormLSTMCell(inputs, units, bias, forget_bias=forget_bias, device=device, dtype=dtype)

        cells = [cell(inputs, hidden_size) for inputs in (input_size, slow_size, *[0] * (fast - 2))]
        slow = cell(hidden_size, slow_size)
        super().__init__(cells, slow, dropout=dropout, zoneout=zoneout, cell_zoneout=cell_zoneout, batch_first=batch_first)


def _parts(state: State) -> tuple[Tensor, ...]:
    """`h`, or `h` and `c`. The first is what a cell passes on."""
    return (state,) if isinstance(state, Tensor) else state  # type: ignore[return-value]


def _check_kind(name: str, state: object, cell: nn.Module) -> None:
    """What a cell's state is made of, as far as the cell is known: one tensor, or `(h, c)`."""
    parts = (state,) if isinstance(state, Tensor) else state
    if not isinstance(parts, tuple | list) or not parts or not all(isinstance(part, Tensor) for part in parts):
        raise InputTypeError(f"the {name} state of hx must be a Tensor or a tuple of them, got: {_described(state)}")
    if isinstance(cell, PAIRS) and (isinstance(state, Tensor) or len(parts) != 2):
        raise InputTypeError(f"the {name} state of hx must be the pair (h, c) of an LSTM cell, got: {_described(state)}")
    if isinstance(cell, SINGLES) and not isinstance(state, Tensor):
        raise InputTypeError(f"the {name} state of hx must be a Tensor, got: {_described(state)}")


def _described(state: object) -> str:
    if isinstance(state, tuple | list):
        return f"a {type(state).__name__} of {', '.join(type(part).__name__ for part in state) or 'nothing'}"
    return type(state).__name__


def _sizes(name: str, cell: object) -> tuple[int, int]:
    if not isinstance(cell, nn.Module) or not all(
        isinstance(getattr(cell, size, None), int) for size in ("input_size", "hidden_size")
    ):
        raise TypeError(f"{name} should be a cell with input_size and hidden_size, such as torch.nn.LSTMCell, got: {cell!r}")
    return cell.input_size, cell.hidden_size  # type: ignore[return-value]
