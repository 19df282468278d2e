"""What the tests of whole layers share: random parameters, torch.nn's twin of a layer, how far rounding may part them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from enrnn import ENRNN, ENRNNCell

EPS = torch.finfo(torch.float64).eps


def scatter_(module: ENRNN | ENRNNCell, seed: int = 0, radius: float = 1.5) -> None:
    """Random parameters of order one in place of the initial ones, so that nothing is zero, sparse or tiny.

    Every short-term matrix gets the spectral radius `radius`; its switch is left as it stands.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            scale = 0.5 if parameter.dim() == 1 else parameter.shape[-1] ** -0.5
            parameter.copy_(scale * torch.randn(parameter.shape, dtype=parameter.dtype, generator=generator))
        for T in short_matrices(module):
            T.mul_(radius / spectral_radius(T))


def short_matrices(module: ENRNN | ENRNNCell) -> list[Tensor]:
    """The free matrices `T`, one for each layer and direction."""
    return [T for name, T in module.named_parameters() if "weight_short" in name]


def spectral_radius(matrix: Tensor) -> float:
    return float(torch.linalg.eigvals(matrix.detach().double()).abs().max())


def directions(layer: ENRNN) -> Iterator[tuple[int, int, str]]:
    """Every (layer, direction) with the suffix that torch.nn.RNN gives its weights."""
    for k in range(layer.num_layers):
        for direction in range(2 if layer.bidirectional else 1):
            yield k, direction, f"_l{k}" + ("_reverse" if direction else "")


def twin(layer: ENRNN) -> nn.RNN:
    """The torch.nn.RNN with the same matrices: `weight_hh` is `recurrent_weight()`, `bias_ih` the bias, `bias_hh` zero."""
    assert layer.nonlinearity in ("relu", "tanh")
    parameter = next(layer.parameters())
    rnn = nn.RNN(
        layer.input_size,
        layer.hidden_size,
        layer.num_layers,
        layer.nonlinearity,
        layer.bias,
        layer.batch_first,
        layer.dropout,
        layer.bidirectional,
        dtype=parameter.dtype,
    )
    with torch.no_grad():
        for k, direction, suffix in directions(layer):
            getattr(rnn, f"weight_hh{suffix}").copy_(layer.recurrent_weight(k, direction))
            getattr(rnn, f"weight_ih{suffix}").copy_(getattr(layer, f"weight_ih{suffix}"))
            if layer.bias:
                getattr(rnn, f"bias_ih{suffix}").copy_(getattr(layer, f"bias{suffix}"))
                getattr(rnn, f"bias_hh{suffix}").zero_()
    return rnn


def relative_error(value: Tensor, expected: Tensor) -> float:
    """The largest difference, in units of the largest entry expected; zero where both are exactly zero."""
    assert value.shape == expected.shape
    assert value.dtype == expected.dtype
    difference, size = (value - expected).abs().max().item(), expected.abs().max().item()
    return difference / size if difference else 0.0


def rounding(products: int, width: int) -> float:
    """How far two ways to compute the same thing in float64 may part, relative to its largest entry: each inner product of
    `width` terms rounds `width` times, and each of `products` of them works on the result of the one before."""
    return products * width * EPS
