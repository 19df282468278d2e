"""With ReLU or tanh and the same matrix, ENRNN and torch.nn.RNN are one function: outputs, final states, all gradients."""

from __future__ import annotations

import itertools
import random
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from enrnn import ENRNN
from tests._record import Recorder
from tests.conformance._layers import directions, relative_error, rounding, scatter_, twin

STEPS, BATCH, INPUTS, HIDDEN = 6, 4, 3, 5

LENGTHS = {
    "sorted": [6, 4, 4, 1],
    "unsorted": [4, 1, 6, 4],
    "equal": [6, 6, 6, 6],
}


class Settings(NamedTuple):
    batch_first: bool
    hx: bool
    bias: bool
    short_size: int
    nonlinearity: str


ALL_SETTINGS = [
    Settings(*values)
    for values in itertools.product([False, True], [False, True], [False, True], [0, 2, HIDDEN], ["relu", "tanh"])
]


class Outcome(NamedTuple):
    output: Tensor
    final: Tensor
    packing: list[Tensor | None]
    grad_input: Tensor
    grad_hx: Tensor | None


@pytest.mark.parametrize("form", ["batched", "unbatched", *LENGTHS])
@pytest.mark.parametrize("bidirectional", [False, True], ids=["one way", "both ways"])
@pytest.mark.parametrize("num_layers", [1, 2, 3])
def test_outputs_and_all_gradients_equal_those_of_nn_rnn(
    num_layers: int, bidirectional: bool, form: str, record: Recorder, full: bool
) -> None:
    few = random.Random(f"{num_layers} {bidirectional} {form}").sample(ALL_SETTINGS, 8)
    depth = 2 * num_layers * STEPS  # forwards and back again
    bound = rounding(depth, HIDDEN + max(INPUTS, 2 * HIDDEN))
    for settings in ALL_SETTINGS if full else few:
        layer = ENRNN(
            INPUTS,
            HIDDEN,
            num_layers,
            settings.nonlinearity,
            settings.bias,
            settings.batch_first,
            0.0,
            bidirectional,
            short_size=settings.short_size,
            dtype=torch.float64,
        )
        scatter_(layer, seed=ALL_SETTINGS.index(settings))
        rnn = twin(layer)

        expected = outcome(rnn, form, settings)
        as_built = outcome(layer, form, settings)
        make_blocks_plain(layer)
        with_plain_blocks = outcome(layer, form, settings)

        for ours in (as_built, with_plain_blocks):
            assert all(same_or_none(*pair) for pair in zip(ours.packing, expected.packing, strict=True))
            pairs = [(ours.output, expected.output), (ours.final, expected.final)]
            pairs.append((ours.grad_input, expected.grad_input))
            if settings.hx:
                assert ours.grad_hx is not None
                assert expected.grad_hx is not None
                pairs.append((ours.grad_hx, expected.grad_hx))
            if ours is with_plain_blocks:
                pairs += gradients_by_parameter(layer, rnn)
            error = max(relative_error(value, wanted) for value, wanted in pairs)
            record(cases=1, cases_tensors=len(pairs), worst_relative_error=error)
            assert error <= bound, settings


def outcome(module: ENRNN | nn.RNN, form: str, settings: Settings) -> Outcome:
    """Run `module` on this form of input and back; its parameters then hold the gradients."""
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=generator)

    batch = () if form == "unbatched" else (BATCH,)
    states = module.num_layers * (2 if module.bidirectional else 1)
    leading = (BATCH, STEPS) if settings.batch_first and batch else (STEPS, *batch)
    x = normal(*leading, INPUTS).requires_grad_()
    hx = normal(states, *batch, HIDDEN).requires_grad_() if settings.hx else None

    given: Tensor | PackedSequence = x
    if form in LENGTHS:
        given = pack_padded_sequence(x, torch.tensor(LENGTHS[form]), settings.batch_first, form != "unsorted")
    output, final = module(given, hx)
    packing: list[Tensor | None] = []
    if isinstance(output, PackedSequence):
        output, *packing = output
    module.zero_grad()
    loss = (output * normal(*output.shape)).sum() + (final * normal(*final.shape)).sum()
    loss.backward()
    assert x.grad is not None
    return Outcome(output.detach(), final.detach(), packing, x.grad, None if hx is None else hx.grad)


def make_blocks_plain(layer: ENRNN) -> None:
    """Leave `W_L` and `W_S` as they are, as ordinary parameters that have gradients of their own."""
    for name in list(layer.matrices()):
        parametrize.remove_parametrizations(layer, name, leave_parametrized=True)


def gradients_by_parameter(layer: ENRNN, rnn: nn.RNN) -> list[tuple[Tensor, Tensor]]:
    """Every gradient of `layer` beside nn.RNN's, the blocks of W cut out of `weight_hh`; none is left out."""
    expected: dict[str, Tensor] = {}
    q = layer.long_size
    for _, _, suffix in directions(layer):
        whole = getattr(rnn, f"weight_hh{suffix}").grad
        blocks = {"long": whole[:q, :q], "coupling": whole[:q, q:], "short": whole[q:, q:]}
        expected |= {f"weight_{name}{suffix}": block for name, block in blocks.items() if block.numel()}
        expected[f"weight_ih{suffix}"] = getattr(rnn, f"weight_ih{suffix}").grad
        if layer.bias:
            expected[f"bias{suffix}"] = getattr(rnn, f"bias_ih{suffix}").grad
    parameters = dict(layer.named_parameters())
    assert parameters.keys() == expected.keys()
    return [(parameters[name].grad, expected[name]) for name in parameters]


def same_or_none(value: Tensor | None, expected: Tensor | None) -> bool:
    if value is None or expected is None:
        return value is expected
    return torch.equal(value, expected)
