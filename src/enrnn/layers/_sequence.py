"""What layers with a state of several tensors share with `torch.nn.LSTM`: batches, packing, the order of dimensions."""

from collections.abc import Callable
from typing import ClassVar, TypeAlias, overload

from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from .._checks import InputError, InputTypeError, floating_tensor, tensor
from .._precision import autocasting

State: TypeAlias = Tensor | tuple["State", ...]
Run: TypeAlias = Callable[[Tensor, State | None, Tensor | None], tuple[Tensor, State]]


class SequenceLayer(nn.Module):
    """`output, state = layer(input, state)`. A subclass implements `_check_state`, `_like`, and `_forward` for time-major batches
    (or a `forward` that gives `_over` something else to run)."""

    input_size: int
    batch_first: bool
    batch_dim: ClassVar[int]
    """Where the tensors of the state have their batch."""

    @property
    def _like(self) -> Tensor:
        """A tensor of the parameters' dtype and where they are. A replica made by `torch.nn.DataParallel` has no parameters, but
        plain tensors in their places."""
        raise NotImplementedError

    @overload
    def forward(self, input: Tensor, hx: State | None = None) -> tuple[Tensor, State]: ...
    @overload
    def forward(self, input: PackedSequence, hx: State | None = None) -> tuple[PackedSequence, State]: ...
    def forward(self, input: Tensor | PackedSequence, hx: State | None = None) -> tuple[Tensor | PackedSequence, State]:
        """Run the layer over a sequence.

        Arguments:
            input: [T, B, input_size]; [B, T, input_size] with `batch_first`; [T, input_size] unbatched; or packed.
            hx: the state to start from, as it was returned for the steps before; None: zero.

        Returns:
            the outputs, shaped as the input with `hidden_size` features, and the final state.
        """
        return self._over(input, hx, self._forward)

    def _over(self, input: Tensor | PackedSequence, hx: State | None, run: Run) -> tuple[Tensor | PackedSequence, State]:
        """`forward`, with what runs over time-major batches."""
        if isinstance(input, PackedSequence):
            return self._over_packed(input, hx, run)
        tensor("input", input)
        if input.dim() == 2:
            batch = None if hx is None else map_state(lambda part: part.unsqueeze(self.batch_dim), hx)
            output, final = self._checked(input.unsqueeze(1), batch, None, run)
            return output.squeeze(1), map_state(lambda part: part.squeeze(self.batch_dim), final)
        if input.dim() != 3:
            raise InputError(f"{type(self).__name__}: Expected input to be 2D or 3D, got {input.dim()}D tensor instead")
        if self.batch_first:
            output, final = self._checked(input.transpose(0, 1), hx, None, run)
            return output.transpose(0, 1), final
        return self._checked(input, hx, None, run)

    def _forward(self, x: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State]:
        """The layer on [T, B, input_size]. With `lengths` [B], sequence `i` keeps its state from step `lengths[i]` on."""
        raise NotImplementedError

    def _check_state(self, state: State, batch: int) -> None:
        """Reject a state of the wrong structure or shape."""
        raise NotImplementedError

    def _over_packed(self, packed: PackedSequence, hx: State | None, run: Run) -> tuple[PackedSequence, State]:
        data, batch_sizes, order, original_order = packed
        if data.dim() != 2:
            raise InputError(f"input must have 2 dimensions, got {data.dim()}")
        inputs, lengths = pad_packed_sequence(PackedSequence(data, batch_sizes))
        if hx is not None:
            self._check_state(hx, lengths.numel())
            if order is not None:
                hx = map_state(lambda part: part.index_select(self.batch_dim, order), hx)
        output, final = self._checked(inputs, hx, lengths.to(data.device), run)
        if original_order is not None:
            final = map_state(lambda part: part.index_select(self.batch_dim, original_order), final)
        data = pack_padded_sequence(output, lengths).data
        return PackedSequence(data, batch_sizes, order, original_order), final

    def _checked(self, x: Tensor, hx: State | None, lengths: Tensor | None, run: Run) -> tuple[Tensor, State]:
        like = self._like
        floating_tensor("input", x)
        if x.dtype != like.dtype and not autocasting(x):
            raise InputTypeError(f"{type(self).__name__} input dtype ({x.dtype}) does not match weight dtype ({like.dtype})")
        if x.device != like.device:
            raise InputError(f"input must be on the device of the weights, {like.device}, got {x.device}")
        if x.size(-1) != self.input_size:
            raise InputError(f"input.size(-1) must be equal to input_size. Expected {self.input_size}, got {x.size(-1)}")
        if x.size(0) == 0:
            raise InputError("Expected sequence length to be larger than 0 in RNN, got an input of length 0")
        if hx is not None:
            self._check_state(hx, x.size(1))
        return run(x, hx, lengths)


def map_state(function: Callable[[Tensor], Tensor], state: State) -> State:
    """`function` of every tensor of a state."""
    if isinstance(state, Tensor):
        return function(state)
    if not isinstance(state, tuple | list):
        raise InputTypeError(f"hx must be a Tensor or a tuple of them, got: {type(state).__name__}")
    return tuple(map_state(function, part) for part in state)


def mix_states(function: Callable[[Tensor, Tensor], Tensor], new: State, old: State) -> State:
    """`function(new, old)` of every pair of tensors of two states of one structure."""
    if isinstance(new, Tensor):
        assert isinstance(old, Tensor)
        return function(new, old)
    return tuple(mix_states(function, *parts) for parts in zip(new, old, strict=True))
