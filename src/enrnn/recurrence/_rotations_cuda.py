"""The recurrence under layers of rotations as one CUDA kernel for each sweep, `rotations.cu`, compiled at run time."""

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from .. import _nvrtc
from .._launch import Kernel
from . import _rotations_torch
from ._cuda import as_vector, forbid_loading, in_rows, limits_of
from ._trust import Noise, Trusted

SOURCE = Path(__file__).with_name("rotations.cu")
SIGMA = {"relu": 1, "tanh": 2, "identity": 3, "paired_modrelu": 4, "leaky_relu": 5}
THREADS = 1024
"""Of a thread block, at most; as in the source."""


class Plan(NamedTuple):
    """How a recurrence of so many units is put on a chip."""

    slots: int
    """Pairs in a layer."""
    threads: int
    blocks: int
    state_bytes: int
    """Of shared memory for the forward sweep."""
    sweep_bytes: int
    """Of shared memory for the reverse sweep."""
    sums_in_shared: bool

    @property
    def ahead(self) -> bool:
        """Whether no thread has more than one slot."""
        return self.slots <= self.threads


class Kernels(NamedTuple):
    prepare: Kernel
    forward: Kernel
    backward: Kernel
    collect: Kernel


_loaded: dict[tuple[str, bool, Plan, torch.device], Kernels] = {}


def plan_for(units: int, layers: int, sequences: int, shared: int, multiprocessors: int) -> Plan | None:
    """The plan for n complex units, or None where shared memory has no room for a state and its gradient.

    No more blocks than run at once: each has its own share of every sum, and takes one sequence after another.
    """
    slots = (units + 1) // 2
    threads = min(THREADS, -(-slots // 32) * 32)
    blocks = max(1, min(sequences, multiprocessors * (2 * THREADS // threads)))
    states, sums = 32 * slots, 4 * slots * (2 * layers + 4)
    if states > shared:
        return None
    fits = states + sums <= shared
    return Plan(slots, threads, blocks, 16 * slots, states + sums * fits, fits)


def has_room(units: int, layers: int, device: torch.device) -> bool:
    return _plan(units, layers, 1, device) is not None


def forward(
    inputs: Tensor,
    angles: Tensor,
    phases: Tensor,
    bias: Tensor | None,
    initial: Tensor,
    nonlinearity: str,
    lengths: Tensor | None,
    layers: int,
    butterfly: bool,
) -> Tensor:
    """All states, as `_rotations_torch.reference` has them."""
    T, B, size = inputs.shape
    plan, kernels = _ready(size // 2, layers, B, nonlinearity, butterfly, inputs.device)
    prepared = _prepared(plan, kernels, angles, phases, bias, layers)
    inputs, initial = in_rows(inputs), in_rows(initial)
    states = torch.empty_like(inputs, memory_format=torch.contiguous_format)
    kernels.forward(
        *(plan.blocks, plan.threads, *prepared, as_vector(lengths)),
        *(initial, initial.stride(0), inputs, inputs.stride(0), inputs.stride(1), states),
        *(T, B, size // 2, layers),
    )
    return states


def backward(
    grad_states: Tensor,
    states: Tensor,
    angles: Tensor,
    phases: Tensor,
    bias: Tensor | None,
    initial: Tensor,
    nonlinearity: str,
    lengths: Tensor | None,
    layers: int,
    butterfly: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """As `_rotations_torch.backward`."""
    T, B, size = states.shape
    n = size // 2
    plan, kernels = _ready(n, layers, B, nonlinearity, butterfly, states.device)
    prepared = _prepared(plan, kernels, angles, phases, bias, layers)
    grad_states, states, initial = in_rows(grad_states), states.contiguous(), in_rows(initial)
    grad_z = torch.empty_like(states)
    grad_initial = torch.empty_like(states[0])
    sums = plan.slots * (2 * layers + 4)
    shares = states.new_empty(plan.blocks, sums)
    kernels.backward(
        *(plan.blocks, plan.threads, *prepared, as_vector(lengths)),
        *(initial, initial.stride(0), grad_states, grad_states.stride(0), grad_states.stride(1)),
        *(states, grad_z, grad_initial, shares),
        *(T, B, n, layers),
    )
    grad_angles = torch.empty_like(angles, memory_format=torch.contiguous_format).zero_()
    grad_phases = torch.empty_like(phases, memory_format=torch.contiguous_format)
    grad_bias = states.new_empty(0 if bias is None else n)
    given = grad_angles, grad_phases, None if bias is None else grad_bias
    kernels.collect(-(-sums // 256), 256, shares, *given, plan.blocks, n, layers)
    return grad_z, grad_angles, grad_phases, grad_bias, grad_initial


def defines(nonlinearity: str, *, butterfly: bool, ahead: bool, sums_in_shared: bool) -> dict[str, int]:
    """What the compiler has to be told."""
    given = {"BUTTERFLY": butterfly, "AHEAD": ahead, "SUMS_IN_SHARED": sums_in_shared}
    return {"SIGMA": SIGMA[nonlinearity]} | {name: int(value) for name, value in given.items()}


def _plan(units: int, layers: int, sequences: int, device: torch.device) -> Plan | None:
    limits = limits_of(device)
    return plan_for(units, layers, sequences, limits.shared, limits.clusters[0])


def _ready(
    units: int, layers: int, sequences: int, nonlinearity: str, butterfly: bool, device: torch.device
) -> tuple[Plan, Kernels]:
    plan = _plan(units, layers, sequences, device)
    assert plan is not None  # or the dispatch would have taken another way
    key = nonlinearity, butterfly, plan._replace(blocks=0), device
    if key not in _loaded:
        forbid_loading()
        shared = {"prepare": 0, "forward": plan.state_bytes, "backward": plan.sweep_bytes, "collect": 0}
        given = defines(nonlinearity, butterfly=butterfly, ahead=plan.ahead, sums_in_shared=plan.sums_in_shared)
        _loaded[key] = Kernels(*_nvrtc.load(_nvrtc.text(SOURCE), shared, device, **given))
    return plan, _loaded[key]


def _prepared(
    plan: Plan, kernels: Kernels, angles: Tensor, phases: Tensor, bias: Tensor | None, layers: int
) -> tuple[Tensor, Tensor]:
    """What the sweeps want to know of all pairs, [L, slots, 4], and of all units, [2·slots, 4]."""
    turns, units = angles.new_empty(layers, plan.slots, 4), angles.new_empty(2 * plan.slots, 4)
    given = angles.contiguous(), phases.contiguous(), as_vector(bias)
    kernels.prepare(-(-(layers + 2) * plan.slots // 256), 256, *given, turns, units, len(phases), layers)
    return turns, units


def _tried(noise: Noise) -> list[tuple[Tensor, Tensor]]:
    """Both sweeps, neighbours in pairs and pairs ever further apart."""
    T, B, n = 5, 3, 16
    answers: list[tuple[Tensor, Tensor]] = []
    for layers, butterfly in ((3, False), (4, True)):
        angles, phases, bias, initial = noise(2 * n, (layers + 1) // 2), noise(n), -0.1 * noise(n).abs(), noise(B, 2 * n)
        inputs, upstream, how = noise(T, B, 2 * n), noise(T, B, 2 * n), ("paired_modrelu", None, layers, butterfly)
        states = _rotations_torch.reference(inputs, angles, phases, bias, initial, *how)
        exact = _rotations_torch.backward(upstream, states, angles, phases, bias, initial, *how)
        turned = angles.float(), phases.float(), bias.float(), initial.float()
        found = backward(upstream.float(), states.float(), *turned, *how)
        answers += [(states, forward(inputs.float(), *turned, *how)), *zip(exact, found, strict=True)]
    return answers


trusted = Trusted("rotations.cu", _tried)
