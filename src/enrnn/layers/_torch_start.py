"""Where torch's own networks start in the papers that compare with them."""

import math

import torch
from torch import nn

from .._checks import one_of

STARTS = ("torch", "tensorflow", "xavier_normal")


def set_start(network: nn.RNNBase, start: str, forget_bias: float | None = None) -> None:
    """Give a network of torch's a start other than its own.

    Arguments:
        start: "torch": uniform in ±1/√n, all of it; "tensorflow", as BasicLSTMCell (scoRNN, and ENRNN's comparisons): Glorot's
            uniform numbers for the matrix `[m + n, gates·n]` of all weights of a layer, biases zero; "xavier_normal" (nnRNN):
            Glorot's normal numbers for either matrix, biases as torch's.
        forget_bias: what an LSTM's forget gates start at; None: as `start` has it.
    """
    one_of("init", start, STARTS)
    if forget_bias is not None and not network.bias:
        raise ValueError(f"forget_bias={forget_bias} has no effect on an LSTM with bias=False; leave it out")
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            kind, _, suffix = name.partition("_l")
            if kind.startswith("bias"):
                if start == "tensorflow":
                    parameter.zero_()
                if forget_bias is not None:  # the gates are i, f, g, o, and have two biases each, which are added up
                    gate = slice(network.hidden_size, 2 * network.hidden_size)
                    parameter[gate] = forget_bias if kind == "bias_ih" else 0.0
            elif start == "tensorflow" and kind != "weight_hr":
                inputs, units = (getattr(network, f"{part}_l{suffix}").shape[1] for part in ("weight_ih", "weight_hh"))
                bound = math.sqrt(6 / (inputs + units + parameter.shape[0]))
                parameter.uniform_(-bound, bound)
            elif start == "xavier_normal":
                nn.init.xavier_normal_(parameter)
