"""An LSTM cell with layer normalisation (Ba, Kiros & Hinton, 2016), as Fast-Slow networks use it."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .._checks import InputError, InputTypeError, boolean, floating_dtype, positive_int, tensor
from ._module import Device, orthogonal_


class LayerNormLSTMCell(nn.Module):
    """`h', c' = cell(x, (h, c))` with `torch.nn.LSTMCell`'s interface, and LN(v) = γ ⊙ (v − mean)/√(variance + eps) + β:

        i, f, g, o = LN(W x + U h + b), each gate by itself
        c' = sigmoid(f + forget_bias) ⊙ c + sigmoid(i) ⊙ tanh(g),    h' = sigmoid(o) ⊙ tanh(LN(c'))

    `W` and `U` start with orthonormal columns, biases at zero.

    Arguments:
        input_size: 0 makes a cell that hears nothing but its state. The others: as `torch.nn.LSTMCell`.
        forget_bias: a constant added to the forget gate.
        eps: see above; 1e-3 in the authors' code.

    Attributes:
        weight_ih, weight_hh, bias: `W`, `U` and `b`; the gates are in torch's order, i, f, g, o.
        gate_gain, gate_shift, cell_gain, cell_shift: γ and β.
    """

    bias: Tensor | None

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        *,
        forget_bias: float = 1.0,
        eps: float = 1e-3,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        floating_dtype("dtype", dtype)
        self.input_size = 0 if input_size == 0 else positive_int("input_size", input_size)
        self.hidden_size = n = positive_int("hidden_size", hidden_size)
        self.forget_bias = float(forget_bias)
        self.eps = float(eps)
        empty = torch.empty(0, device=device, dtype=dtype)
        self.weight_ih = nn.Parameter(empty.new_empty(4 * n, self.input_size))
        self.weight_hh = nn.Parameter(empty.new_empty(4 * n, n))
        self.register_parameter("bias", nn.Parameter(empty.new_empty(4 * n)) if boolean("bias", bias) else None)
        self.gate_gain = nn.Parameter(empty.new_empty(4 * n))
        self.gate_shift = nn.Parameter(empty.new_empty(4 * n))
        self.cell_gain = nn.Parameter(empty.new_empty(n))
        self.cell_shift = nn.Parameter(empty.new_empty(n))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters anew, as at construction."""
        for weight in (self.weight_ih, self.weight_hh):
            if weight.numel():
                orthogonal_(weight)
        for zero in (self.bias, self.gate_shift, self.cell_shift):
            if zero is not None:
                nn.init.zeros_(zero)
        for one in (self.gate_gain, self.cell_gain):
            nn.init.ones_(one)

    def forward(self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """The next (h, c), [B, n] each, for `input` [B, input_size]; without B if unbatched. None: from zero."""
        tensor("input", input)
        if input.dim() not in (1, 2):
            raise InputError(f"LayerNormLSTMCell: Expected input to be 1D or 2D, got {input.dim()}D instead")
        if input.size(-1) != self.input_size:
            raise InputError(f"input.size(-1) must be equal to input_size. Expected {self.input_size}, got {input.size(-1)}")
        shape = (*input.shape[:-1], self.hidden_size)
        if hx is None:
            zero = self.gate_gain.new_zeros(shape)
            hx = (zero, zero)
        if not isinstance(hx, tuple | list) or len(hx) != 2:
            raise InputTypeError(f"hx must be the pair (h, c), got: {type(hx).__name__}")
        h, c = hx
        for name, part in (("h", h), ("c", c)):
            tensor(name, part)
            if tuple(part.shape) != shape:
                raise InputError(f"Expected {name} of hx to have shape {list(shape)}, got {list(part.shape)}")
        total = F.linear(input, self.weight_ih, self.bias) + F.linear(h, self.weight_hh)
        i, f, g, o = normalize(total, 4, self.gate_gain, self.gate_shift, self.eps).chunk(4, dim=-1)
        c = torch.sigmoid(f + self.forget_bias) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(normalize(c, 1, self.cell_gain, self.cell_shift, self.eps))
        return h, c

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}, forget_bias={self.forget_bias}"


def normalize(v: Tensor, parts: int, gain: Tensor, shift: Tensor, eps: float) -> Tensor:
    """LN of each of `parts` equal parts of the last dimension."""
    split = v.view(*v.shape[:-1], parts, v.size(-1) // parts)  # no -1: there may be no numbers at all
    return F.layer_norm(split, split.shape[-1:], eps=eps).flatten(-2) * gain + shift
