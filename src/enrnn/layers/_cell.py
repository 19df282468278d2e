"""What every recurrent cell here shares with `torch.nn.RNNCell`: shapes and errors of a single step."""

from torch import Tensor

from .._checks import InputError, tensor
from .._precision import autocasting, held_in, state_dtype
from ._module import RecurrentModule, check_tensors


class RecurrentCell(RecurrentModule):
    """`h' = σ(U x + W h, b)` with `torch.nn.RNNCell`'s interface; a subclass says how `W` is written.

    It implements the same methods as a `RecurrentLayer` (here the suffix is empty) and ends its `__init__` with `_build()`.
    """

    steps_of_a_call = 1

    def _build(self) -> None:
        self._add_input("", self.input_size)
        self._add_recurrence("")
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters anew, as at construction."""
        self._reset_input("")
        self._reset_recurrence("")

    def recurrent_weight(self) -> Tensor:
        """The whole matrix `W`, [n, n], differentiable."""
        raise NotImplementedError

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        """The next state: [B, n] for `input` [B, input_size], [n] for [input_size]. `hx` is shaped alike; None: zero."""
        name = self._get_name()
        tensor("input", input)
        if hx is not None:
            tensor("hx", hx)
        if input.dim() not in (1, 2):
            raise InputError(f"{name}: Expected input to be 1D or 2D, got {input.dim()}D instead")
        if hx is not None and hx.dim() != input.dim():
            raise InputError(f"{name}: Expected hx to be {input.dim()}D like input, got {hx.dim()}D instead")
        if input.dim() == 1:
            return self.forward(input.unsqueeze(0), None if hx is None else hx.unsqueeze(0)).squeeze(0)
        autocast = autocasting(input)
        check_tensors(self, {"input": input, "hx": hx}, autocast)
        if input.size(-1) != self.input_size:
            raise InputError(f"input.size(-1) must be equal to input_size. Expected {self.input_size}, got {input.size(-1)}")
        shape = (input.size(0), self.hidden_size)
        if hx is not None and tuple(hx.shape) != shape:
            raise InputError(f"Expected hidden size {shape} of hx, got {list(hx.shape)}")
        stored = self._like.dtype
        held = state_dtype(stored)
        formed, inputs, bias = self._formed_and_projected("", self._given, input.unsqueeze(0), held)
        state = self._states("", formed, inputs, bias, None if hx is None else held_in(held, hx), None)[0]
        return state if autocast else state.to(stored)
