"""What every recurrent layer here shares with `torch.nn.RNN`: shapes, stacking, directions, packing, dropout, errors."""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any, overload

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from .._checks import InputError, boolean, positive_int, probability, tensor
from .._precision import autocasting, held_in, state_dtype
from .._streams import Meanwhile
from ._module import Device, Pointwise, RecurrentModule, check_tensors, unusual
from ._once import formed_once

STRETCH = 256
"""Steps that `final_state` runs at once, at most."""

AT_ONCE = 2**22
"""Numbers that are held for them on a CPU. More memory than 32 MiB is asked of the system anew each time, page by page, and is in
no cache: 750 steps of 1,000 sequences with 160 units take 0.2 s by 26 steps and 0.6 by 256 (one thread of an AMD EPYC)."""


class RecurrentLayer(RecurrentModule):
    """`h_t = σ(U x_t + W h_{t−1}, b)` with `torch.nn.RNN`'s interface; a subclass says how `W` is written.

    It implements `_add_recurrence`, `_reset_recurrence`, `_run` and `recurrent_weight`, and `_form` for matrices that are formed
    beside other things; it ends `__init__` with `_build()`.
    """

    first_suffix = "_l0"

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int,
        nonlinearity: Pointwise,
        bias: bool,
        batch_first: bool,
        dropout: float,
        bidirectional: bool,
        input_weight: str,
        backend: str,
        device: Device,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__(input_size, hidden_size, nonlinearity, bias, input_weight, backend, device, dtype)
        self.num_layers = positive_int("num_layers", num_layers)
        self.batch_first = boolean("batch_first", batch_first)
        self.dropout = probability("dropout", dropout)
        if self.dropout > 0 and self.num_layers == 1:
            warnings.warn(
                "dropout option adds dropout after all but last recurrent layer, so non-zero dropout expects num_layers "
                f"greater than 1, but got dropout={dropout} and num_layers={num_layers}",
                stacklevel=3,
            )
        self.bidirectional = boolean("bidirectional", bidirectional)

    @property
    def num_directions(self) -> int:
        return 2 if self.bidirectional else 1

    def flatten_parameters(self) -> None:
        """Does nothing. It is there for code that calls it, as torch's recurrent layers want it for cuDNN."""

    def _build(self) -> None:
        """Register and initialise everything, once the subclass's own settings stand."""
        for suffix, inputs in self._suffixes():
            self._add_input(suffix, inputs)
            self._add_recurrence(suffix)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters anew, as at construction."""
        for suffix, _ in self._suffixes():
            self._reset_input(suffix)
            self._reset_recurrence(suffix)

    def recurrent_weight(self, layer: int = 0, direction: int = 0) -> Tensor:
        """The whole matrix `W` of `h = σ(U x + W h)`, [n, n], differentiable."""
        raise NotImplementedError

    def _suffixes(self) -> Iterator[tuple[str, int]]:
        """Every (layer, direction) in `torch.nn.RNN`'s order, with the size of its input."""
        for layer in range(self.num_layers):
            inputs = self.input_size if layer == 0 else self.hidden_size * self.num_directions
            for direction in range(self.num_directions):
                yield suffix_of(layer, direction), inputs

    def _suffix(self, layer: int, direction: int) -> str:
        if not 0 <= layer < self.num_layers:
            raise ValueError(f"layer must lie between 0 and {self.num_layers - 1}, got: {layer}")
        if not 0 <= direction < self.num_directions:
            raise ValueError(f"direction must lie between 0 and {self.num_directions - 1}, got: {direction}")
        return suffix_of(layer, direction)

    @overload
    def forward(self, input: Tensor, hx: Tensor | None = None) -> tuple[Tensor, Tensor]: ...
    @overload
    def forward(self, input: PackedSequence, hx: Tensor | None = None) -> tuple[PackedSequence, Tensor]: ...
    def forward(self, input: Tensor | PackedSequence, hx: Tensor | None = None) -> tuple[Tensor | PackedSequence, Tensor]:
        """Run the layer over a sequence.

        Arguments:
            input: [T, B, input_size]; [B, T, input_size] with `batch_first`; [T, input_size] unbatched; or packed.
            hx: the initial states, [num_layers · num_directions, B, n], or without B if unbatched; None: zero.

        Returns:
            the states of the last layer, shaped as the input with num_directions · n features, and the final states of
            all layers, shaped as `hx`.
        """
        return self._over(input, hx, self._given)

    def _over(
        self, input: Tensor | PackedSequence, hx: Tensor | None, form: Callable[[str], Any]
    ) -> tuple[Tensor | PackedSequence, Tensor]:
        """`forward`, with what gives `_run` its matrices."""
        if isinstance(input, PackedSequence):
            return self._forward_packed(input, hx, form)
        tensor("input", input)
        if hx is not None:
            tensor("hx", hx)
        if input.dim() not in (2, 3):
            raise InputError(f"{self._get_name()}: Expected input to be 2D or 3D, got {input.dim()}D tensor instead")
        if hx is not None and hx.dim() != input.dim():
            kind = "batched 3-D" if input.dim() == 3 else "unbatched 2-D"
            raise InputError(f"For {kind} input, hx should also be {input.dim()}-D but got {hx.dim()}-D tensor")
        if input.dim() == 2:
            output, final = self._forward(input.unsqueeze(1), None if hx is None else hx.unsqueeze(1), None, form)
            return output.squeeze(1), final.squeeze(1)
        if self.batch_first:
            output, final = self._forward(input.transpose(0, 1), hx, None, form)
            return output.transpose(0, 1), final
        return self._forward(input, hx, None, form)

    @torch.no_grad()
    def final_state(self, input: Tensor | PackedSequence, hx: Tensor | None = None) -> Tensor:
        """The final states of all layers, as `forward` gives them, for sequences whose states need not be kept.

        Memory is taken for a stretch of the sequence at a time, and nothing for gradients. A layer with two directions has to
        see the whole sequence at once.
        """
        if isinstance(input, PackedSequence):
            return self(input, hx)[1] if self.bidirectional else self._final_of_packed(input, hx)
        tensor("input", input)
        if self.bidirectional or input.dim() not in (2, 3):
            return self(input, hx)[1]  # type: ignore[no-any-return]
        once = formed_once(self)
        time = 1 if input.dim() == 3 and self.batch_first else 0
        sequences = input.shape[:-1].numel() // max(1, input.size(time))
        for stretch in torch.split(input, self._stretch(input, sequences), dim=time) if input.size(time) else [input]:
            _, hx = once(stretch, hx)
        assert hx is not None
        return hx

    def _final_of_packed(self, packed: PackedSequence, hx: Tensor | None) -> Tensor:
        """A stretch at a time, with those sequences, sorted by length, that have not ended before it."""
        data, batch_sizes, order, original_order = packed
        once = formed_once(self)
        final: Tensor | None = None
        begin = 0
        for sizes in torch.split(batch_sizes, self._stretch(data, int(batch_sizes[0]))):
            end = begin + int(sizes.sum())
            if final is None:  # in the order in which they were given, as `hx` is
                _, final = once(PackedSequence(data[begin:end], sizes, order, original_order), hx)
                final = final if order is None else final.index_select(1, order)
            else:
                running = int(sizes[0])
                _, final[:, :running] = once(PackedSequence(data[begin:end], sizes), final[:, :running])
            begin = end
        assert final is not None
        return final if original_order is None else final.index_select(1, original_order)

    def _stretch(self, like: Tensor, sequences: int) -> int:
        """Steps to run at once."""
        if like.device.type != "cpu":
            return STRETCH
        return max(4, min(STRETCH, AT_ONCE // max(1, sequences * self.hidden_size)))

    def _forward_packed(
        self, packed: PackedSequence, hx: Tensor | None, form: Callable[[str], Any]
    ) -> tuple[PackedSequence, Tensor]:
        data, batch_sizes, order, original_order = packed
        if data.dim() != 2:
            raise InputError(f"input must have 2 dimensions, got {data.dim()}")
        inputs, lengths = pad_packed_sequence(PackedSequence(data, batch_sizes))
        if hx is not None:
            tensor("hx", hx)
            if hx.dim() != 3:
                raise InputError(f"For batched 3-D input, hx should also be 3-D but got {hx.dim()}-D tensor")
            if order is not None and hx.size(1) == lengths.numel():
                hx = hx.index_select(1, order)
        output, final = self._forward(inputs, hx, lengths.to(data.device), form)
        output = pack_padded_sequence(output, lengths).data
        if original_order is not None:
            final = final.index_select(1, original_order)
        return PackedSequence(output, batch_sizes, order, original_order), final

    def _forward(self, x: Tensor, hx: Tensor | None, lengths: Tensor | None, form: Callable[[str], Any]) -> tuple[Tensor, Tensor]:
        """The layer on time-major input [T, B, input_size]; `lengths` [B] where sequences end early.

        States are held in at least float32. They are returned in the parameters' dtype, and under autocast as they are.
        """
        stored = self._like.dtype
        held = state_dtype(stored)
        autocast = autocasting(x)
        self._check_input(x, hx, autocast)
        initial = None if hx is None else held_in(held, hx)
        finals = []
        for layer in range(self.num_layers):
            outputs = []
            for direction in range(self.num_directions):
                suffix = suffix_of(layer, direction)
                formed, inputs, bias = self._formed_and_projected(suffix, form, x, held)
                if direction == 1:
                    inputs = reverse(inputs, lengths)
                start = None if initial is None else initial[layer * self.num_directions + direction]
                states = self._states(suffix, formed, inputs, bias, start, lengths)
                finals.append(states[-1])
                outputs.append(states if direction == 0 else reverse(states, lengths))
            x = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-1)
            x = x if autocast else held_in(stored, x)
            if self.dropout > 0 and layer < self.num_layers - 1:
                x = F.dropout(x, self.dropout, self.training)
        final = torch.stack(finals)
        return x, final if autocast else held_in(stored, final)

    @contextlib.contextmanager
    def _forming(self) -> Iterator[None]:
        """Form the matrices now, for all calls within it. While a CUDA graph is captured, what is launched before the first call,
        such as what finds its input, runs beside that; it must not look at the matrices."""
        with Meanwhile(self._like):
            outside, self._formed = self._formed, {suffix: self._form(suffix) for suffix, _ in self._suffixes()}
            try:
                yield
            finally:
                self._formed = outside

    def _state_shape(self, x: Tensor) -> tuple[int, int, int]:
        return self.num_layers * self.num_directions, x.size(1), self.hidden_size

    def _check_input(self, x: Tensor, hx: Tensor | None, autocast: bool) -> None:
        check_tensors(self, {"input": x, "hx": hx}, autocast)
        if x.size(-1) != self.input_size:
            raise InputError(f"input.size(-1) must be equal to input_size. Expected {self.input_size}, got {x.size(-1)}")
        if x.size(0) == 0:
            raise InputError("Expected sequence length to be larger than 0 in RNN, got an input of length 0")
        if hx is not None and tuple(hx.shape) != self._state_shape(x):
            raise InputError(f"Expected hidden size {self._state_shape(x)} of hx, got {list(hx.shape)}")

    def extra_repr(self) -> str:
        usual = {"num_layers": 1, "nonlinearity": "modrelu", "bias": True, "batch_first": False, "dropout": 0.0}
        usual |= {"bidirectional": False, "input_weight": "full", "backend": "auto"}
        return ", ".join([f"{self.input_size}, {self.hidden_size}", *unusual(self, usual)])


def suffix_of(layer: int, direction: int) -> str:
    return f"_l{layer}" + ("_reverse" if direction else "")


def reverse(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Each sequence of `x` [T, B, …] backwards; with `lengths`, only its first `lengths[i]` steps, the rest in place."""
    if lengths is None:
        return x.flip(0)
    steps = torch.arange(x.size(0), device=x.device).unsqueeze(1)
    index = torch.where(steps < lengths, lengths - 1 - steps, steps)
    return x.gather(0, index.unsqueeze(-1).expand_as(x))
