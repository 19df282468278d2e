"""The recurrent layer that settings stand for: any name of `enrnn.networks()`, with the arguments of its class as options."""

import functools
import inspect
import typing
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .._nearest import nearest
from ..layers import build, networks
from ._settings import checked, members

if TYPE_CHECKING:
    from ._config import ModelSettings

ENRNN_FIELDS = ("short_size", "negative_ones", "coupling", "epsilon", "coupling_init", "solver")
"""The settings of a model that are ENRNN's alone."""

GIVEN = ("input_size", "hidden_size", "nonlinearity", "backend", "batch_first", "bidirectional", "device", "dtype")
"""Arguments that are a matter of other settings, or that a run has no use for."""

DRAWN = ("dropout", "zoneout", "cell_zoneout")
"""Arguments that would make steps draw random numbers. A run has no generator, so that it can be resumed to the bit."""

PLAIN = (bool, int, float, str, type(None), list)

Types = tuple[type[Any], ...]


@functools.cache
def arguments(network: str) -> dict[str, Types]:
    """The arguments of a network's class, and the types of JSON that each allows."""
    kind = networks()[network].kind
    if issubclass(kind, nn.RNNBase):  # whose constructors do not name theirs
        own: dict[str, Types] = {"num_layers": (int,), "bias": (bool,), "init": (str,), "dropout": (float,)}
        return own | ({"nonlinearity": (str,)} if kind is nn.RNN else {})
    hints = typing.get_type_hints(kind.__init__)
    rest = next((p.name for p in inspect.signature(kind).parameters.values() if p.kind is p.VAR_KEYWORD), None)
    if rest is not None:
        hints |= typing.get_type_hints(typing.get_args(hints.pop(rest))[0])
    return {name: _plain(hint) for name, hint in hints.items() if name != "return"}


def option_types(network: str) -> dict[str, Types]:
    """What `model.options` may have for a network."""
    taken = GIVEN + (ENRNN_FIELDS if network == "enrnn" else ())
    return {name: types for name, types in arguments(network).items() if name not in (*taken, *DRAWN)}


def checked_options(network: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options by name, each of a type that its argument allows; one `ValueError` for what is not right.

    A number without a fraction is an int, so that 1 and 1.0 are the same configuration: every argument that takes a float takes
    an int, and some that are called floats take ints and infinity alone.
    """
    known = option_types(network)
    for name in options:
        if name in DRAWN and name in arguments(network):
            raise ValueError(f"options.{name} would draw random numbers, and a run draws none in its steps; leave it out")
        if name not in known:
            raise ValueError(f"network {network!r} has no option {name!r}; {nearest(str(name), known)}")
    found = {name: checked(f"options.{name}", options[name], known[name]) for name in sorted(options)}
    return {name: int(value) if isinstance(value, float) and value.is_integer() else value for name, value in found.items()}


def layer_of(settings: "ModelSettings", inputs: int) -> nn.Module:
    """The layer, as its paper or its class starts it; torch's own as TensorFlow does (see `enrnn.build`).

    torch's gates have two biases where one is enough; the second one is fixed at zero, save in a GRU, where it is not the same as
    the first.
    """
    known = arguments(settings.network)
    options: dict[str, Any] = {}
    if "nonlinearity" in known and settings.nonlinearity is not None:
        options["nonlinearity"] = settings.nonlinearity
    if "backend" in known:
        options["backend"] = settings.backend
    if settings.network == "enrnn":
        options |= {name: getattr(settings, name) for name in ENRNN_FIELDS}
        options["input_weight"] = "identity" if settings.embedding_size == settings.hidden_size else "full"
    if settings.network == "lstm" and (settings.forget_bias or settings.options.get("bias", True)):
        options["forget_bias"] = settings.forget_bias
    if "init" in known and issubclass(networks()[settings.network].kind, nn.RNNBase):
        options["init"] = "tensorflow"
    layer = build(settings.network, inputs, settings.hidden_size, **(options | settings.options))
    if isinstance(layer, nn.LSTM | nn.RNN):
        for name, parameter in layer.named_parameters():
            if name.startswith("bias_hh"):
                nn.init.zeros_(parameter).requires_grad_(False)
    return layer


@functools.lru_cache(maxsize=64)
def check_layer(settings: "ModelSettings") -> None:
    """Raise what the network's class has to say against the settings, before there is a run. The generator is left alone."""
    identity = settings.options.get("input_weight") == "identity"
    inputs = settings.embedding_size or (settings.hidden_size if identity else 1)
    with torch.random.fork_rng(devices=[]):
        layer_of(settings, inputs)


def _plain(hint: Any) -> Types:
    """`Sequence[int]` is a list in JSON; a callable or a dtype is nothing that JSON has."""
    found = (list if kind is Sequence else kind for kind in members(hint))
    return tuple(kind for kind in found if kind in PLAIN)
