"""Layers and cells with their matrices fixed, for deployment: no constraint, no eigenvalue, no gradient.

ReLU and tanh become torch's own `nn.RNN` and `nn.RNNCell`, which need this package no longer. Every other nonlinearity
becomes a `BakedRNN` or `BakedCell`. Under `torch.export`, and so in ONNX, a `BakedRNN` is a scan: it runs at any sequence
length and batch size, where an unrolled loop would fix the length silently.
"""

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..nonlinearities import NONLINEARITIES, pointwise
from ..recurrence import recurrence
from ._base import RecurrentLayer
from ._cell import RecurrentCell
from ._module import RecurrentModule


class FixedWeight(RecurrentModule):
    """`W` as one plain weight, `weight_hh`."""

    def _add_recurrence(self, suffix: str) -> None:
        size = self.hidden_size
        self.register_parameter(f"weight_hh{suffix}", nn.Parameter(self._empty.new_empty(size, size)))

    def _reset_recurrence(self, suffix: str) -> None:
        with torch.no_grad():
            self._weight(suffix).zero_()

    def _run(
        self, suffix: str, formed: Any, inputs: Tensor, bias: Tensor | None, initial: Tensor, lengths: Tensor | None
    ) -> Tensor:
        weight = self._weight(suffix).to(inputs.dtype)
        return recurrence(inputs, weight, bias, initial, self.nonlinearity, lengths=lengths, backend=self.backend)

    def _weight(self, suffix: str) -> Tensor:
        weight: Tensor = getattr(self, f"weight_hh{suffix}")
        return weight


class BakedRNN(FixedWeight, RecurrentLayer):
    """A recurrent layer with plain, fixed weights `weight_ih_l[k]`, `weight_hh_l[k]` and `bias_l[k]`.

    Made by `ENRNN.bake()`; the interface is that of the layer it was made from.
    """

    nonlinearities: ClassVar[list[str]] = list(NONLINEARITIES)

    def __init__(self, layer: RecurrentLayer) -> None:
        super().__init__(
            layer.input_size,
            layer.hidden_size,
            layer.num_layers,
            layer.nonlinearity,
            layer.bias,
            layer.batch_first,
            layer.dropout if layer.num_layers > 1 else 0.0,
            layer.bidirectional,
            layer.input_weight,
            layer.backend,
            *_place(layer),
        )
        self._build()
        for suffix, position in _positions(layer):
            _copy_weights(layer, self, suffix, layer.recurrent_weight(*position))
        self.requires_grad_(False).train(layer.training)

    def _run(
        self, suffix: str, formed: Any, inputs: Tensor, bias: Tensor | None, initial: Tensor, lengths: Tensor | None
    ) -> Tensor:
        if torch.compiler.is_exporting():
            return self._scan(inputs, self._weight(suffix).to(inputs.dtype), bias, initial)
        if torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
            raise RuntimeError(
                "tracing would fix the sequence length of a BakedRNN; use torch.export, or torch.onnx.export(dynamo=True)"
            )
        return super()._run(suffix, formed, inputs, bias, initial, lengths)

    def _scan(self, inputs: Tensor, weight: Tensor, bias: Tensor | None, initial: Tensor) -> Tensor:
        """The recurrence as torch's scan operator. It rejects operands that share memory, and outputs that are the state."""
        sigma = pointwise(self.nonlinearity)
        operands = (weight.mT.clone(),) if bias is None else (weight.mT.clone(), bias.clone())

        def plain(h: Tensor, x: Tensor, transposed: Tensor) -> tuple[Tensor, Tensor]:
            h = sigma(x + h @ transposed, None)
            return h, h.clone()

        def biased(h: Tensor, x: Tensor, transposed: Tensor, threshold: Tensor) -> tuple[Tensor, Tensor]:
            h = sigma(x + h @ transposed, threshold)
            return h, h.clone()

        step: Callable[..., tuple[Tensor, Tensor]] = plain if bias is None else biased  # scan counts a function's arguments

        if torch.compiler.is_dynamo_compiling():  # strict export knows the function, non-strict the operator
            from torch._higher_order_ops.scan import scan

            _, states = scan(lambda h, x: step(h, x, *operands), initial, inputs, dim=0)
        else:
            _, states = torch.ops.higher_order.scan(step, [initial], [inputs], operands)
        result: Tensor = states
        return result

    def recurrent_weight(self, layer: int = 0, direction: int = 0) -> Tensor:
        return self._weight(self._suffix(layer, direction))


class BakedCell(FixedWeight, RecurrentCell):
    """A recurrent cell with plain, fixed weights `weight_ih`, `weight_hh` and `bias_ih`. Made by `ENRNNCell.bake()`."""

    def __init__(self, cell: RecurrentCell) -> None:
        super().__init__(
            cell.input_size,
            cell.hidden_size,
            cell.nonlinearity,
            cell.bias,
            cell.input_weight,
            "reference",
            *_place(cell),
        )
        self._build()
        _copy_weights(cell, self, "", cell.recurrent_weight())
        self.requires_grad_(False).train(cell.training)

    def recurrent_weight(self) -> Tensor:
        return self._weight("")


def bake_layer(layer: RecurrentLayer) -> nn.Module:
    """`layer` with its matrices fixed as they are now, in the layer's mode (training or eval)."""
    if layer.nonlinearity not in ("relu", "tanh"):
        return BakedRNN(layer)
    device, dtype = _place(layer)
    plain = nn.RNN(
        layer.input_size,
        layer.hidden_size,
        layer.num_layers,
        str(layer.nonlinearity),
        layer.bias,
        layer.batch_first,
        layer.dropout if layer.num_layers > 1 else 0.0,
        layer.bidirectional,
        device=device,
        dtype=dtype,
    )
    for suffix, position in _positions(layer):
        _copy_weights(layer, plain, suffix, layer.recurrent_weight(*position))
    return plain.requires_grad_(False).train(layer.training)


def bake_cell(cell: RecurrentCell) -> nn.Module:
    """`cell` with its matrices fixed as they are now."""
    if cell.nonlinearity not in ("relu", "tanh"):
        return BakedCell(cell)
    device, dtype = _place(cell)
    nonlinearity = str(cell.nonlinearity)
    plain = nn.RNNCell(cell.input_size, cell.hidden_size, cell.bias, nonlinearity, device=device, dtype=dtype)
    _copy_weights(cell, plain, "", cell.recurrent_weight())
    return plain.requires_grad_(False).train(cell.training)


def _positions(layer: RecurrentLayer) -> Iterator[tuple[str, tuple[int, int]]]:
    """Every suffix with its (layer, direction)."""
    for index in range(layer.num_layers):
        for direction in range(layer.num_directions):
            yield layer._suffix(index, direction), (index, direction)


def _place(module: nn.Module) -> tuple[torch.device, torch.dtype]:
    parameter = next(module.parameters())
    return parameter.device, parameter.dtype


def _copy_weights(source: RecurrentModule, target: nn.Module, suffix: str, recurrent: Tensor) -> None:
    """Input weight, recurrent weight and bias, into torch's names (two biases, one of them zero) or ours (one)."""
    with torch.no_grad():
        getattr(target, f"weight_ih{suffix}").copy_(getattr(source, f"weight_ih{suffix}"))
        getattr(target, f"weight_hh{suffix}").copy_(recurrent)
        if source.bias:
            bias = getattr(source, source._bias_name(suffix))
            if isinstance(target, RecurrentModule):
                getattr(target, target._bias_name(suffix)).copy_(bias)
            else:
                getattr(target, f"bias_ih{suffix}").copy_(bias)
                getattr(target, f"bias_hh{suffix}").zero_()
