"""Every network by name."""

from typing import Any, NamedTuple

from torch import nn

from .._nearest import nearest
from ._cgrnn import CGRNN
from ._clockwork import ClockworkRNN
from ._enrnn import ENRNN
from ._eurnn import EURNN
from ._exprnn import EXPRNN
from ._fsrnn import FSLSTM
from ._full_capacity_urnn import FullCapacityURNN
from ._goru import GORU
from ._hmrnn import HMRNN
from ._irnn import IRNN
from ._nnrnn import NNRNN
from ._ornn import ORNN
from ._orthogonal_rnn import OrthogonalRNN
from ._scornn import SCORNN
from ._scurnn import SCURNN
from ._spectral_rnn import SpectralRNN
from ._torch_start import set_start
from ._urnn import URNN
from ._vorontsov_rnn import VorontsovRNN


class Network(NamedTuple):
    """What `networks()` says of one."""

    kind: type[nn.Module]
    reference: str
    description: str


_NETWORKS = {
    "enrnn": Network(ENRNN, "Helfrich & Ye, AAAI 2020", "an orthogonal long-term part, a short-term part of spectral radius one"),
    "scornn": Network(SCORNN, "Helfrich, Willmott & Ye, ICML 2018", "orthogonal, by the scaled Cayley transform"),
    "exprnn": Network(
        EXPRNN, "Lezcano-Casado & Martínez-Rubio, ICML 2019", "orthogonal, by the exponential; dtriv with rebase_every"
    ),
    "ornn": Network(ORNN, "Mhammedi et al., ICML 2017", "orthogonal, a product of Householder reflections"),
    "spectral_rnn": Network(SpectralRNN, "Zhang, Lei & Dhillon, ICML 2018", "singular values near one, factors of reflections"),
    "vorontsov": Network(VorontsovRNN, "Vorontsov et al., ICML 2017", "singular values near one, factors on geodesics"),
    "nnrnn": Network(NNRNN, "Kerg et al., NeurIPS 2019", "a Schur form with moduli near one, not normal"),
    "scurnn": Network(SCURNN, "Maduranga, Helfrich & Ye, AAAI 2019", "unitary, by the complex scaled Cayley transform"),
    "urnn": Network(URNN, "Arjovsky, Shah & Bengio, ICML 2016", "unitary, of phases, reflections and Fourier transforms"),
    "full_capacity_urnn": Network(FullCapacityURNN, "Wisdom et al., NeurIPS 2016", "any unitary matrix, on geodesics"),
    "eurnn": Network(EURNN, "Jing et al., ICML 2017", "unitary, layers of rotations: tunable, or as in an FFT"),
    "goru": Network(GORU, "Jing et al., 2017", "gated; its own step, with an orthogonal matrix of rotations in it"),
    "cgrnn": Network(CGRNN, "Wolter & Yao, NeurIPS 2018", "complex and gated; its own step, with a unitary matrix in it"),
    "irnn": Network(IRNN, "Le, Jaitly & Hinton, 2015", "ReLU, a free matrix that starts as the identity"),
    "orthogonal": Network(OrthogonalRNN, "Henaff, Szlam & LeCun, ICML 2016", "a free matrix that starts orthogonal"),
    "clockwork": Network(ClockworkRNN, "Koutník et al., ICML 2014", "modules updated at periods of their own; a block triangle"),
    "hmrnn": Network(HMRNN, "Chung, Ahn & Bengio, ICLR 2017", "LSTMs that update, copy or flush where boundaries are found"),
    "fsrnn": Network(FSLSTM, "Mujika, Meier & Steger, NeurIPS 2017", "fast LSTM cells on one state and a slow one between them"),
    "rnn": Network(nn.RNN, "Elman, 1990", "torch's own"),
    "lstm": Network(nn.LSTM, "Hochreiter & Schmidhuber, 1997", "torch's own; forget_bias is where its forget gates start"),
    "gru": Network(nn.GRU, "Cho et al., EMNLP 2014", "torch's own"),
}


def networks() -> dict[str, Network]:
    """Every network that `build` knows: its class, where it comes from, and what it is in a line.

    >>> for name, network in enrnn.networks().items():
    ...     print(f"{name:14}{network.description} ({network.reference})")
    """
    return dict(_NETWORKS)


def build(name: str, input_size: int, hidden_size: int, **options: Any) -> nn.Module:
    """A network by its name in `networks()`; options are those of its class.

    For torch's own, "rnn", "lstm" and "gru", there is one more, `init`: "torch", "tensorflow" or "xavier_normal"; and for "lstm",
    `forget_bias`: what the forget gates' bias starts at.

        >>> layer = enrnn.build("exprnn", 2, 170, rebase_every=100)
    """
    if not isinstance(name, str):
        raise TypeError(f"name should be a string out of {sorted(_NETWORKS)}, got: {type(name).__name__} ({name!r})")
    if name not in _NETWORKS:
        raise ValueError(f"unknown network {name!r}; {nearest(name, _NETWORKS)}")
    own = issubclass(_NETWORKS[name].kind, nn.RNNBase)
    start = options.pop("init", "torch") if own else "torch"
    forget_bias = options.pop("forget_bias", None) if name == "lstm" else None
    network = _NETWORKS[name].kind(input_size, hidden_size, **options)
    if isinstance(network, nn.RNNBase):
        set_start(network, start, forget_bias)
    return network
