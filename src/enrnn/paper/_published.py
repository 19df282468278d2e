"""What the paper states: Tables 1 to 3, row by row and number by number, and the settings of its experiments.

Each row names the recipe that stands for it. Without torch, so that it can be looked at at once.
"""

from types import MappingProxyType
from typing import NamedTuple


class Hyperparameters(NamedTuple):
    """A row of Table 1. `n` counts units as the paper does: complex ones once."""

    task: str
    model: str
    recipe: str
    n: int
    parameters: str
    optimizer: str
    """R is RMSProp, A is Adam; two rates are those of the orthogonal matrix and of all other weights."""


class Speech(NamedTuple):
    """A row of Table 2, upper and lower half."""

    model: str
    recipe: str
    n: str
    parameters: str
    valid_mse: float
    test_mse: float
    segsnr: float
    stoi: float
    pesq: float


class Characters(NamedTuple):
    """A row of Table 3. `quoted` names the paper that a number was taken from."""

    model: str
    recipe: str
    n: str
    parameters: str
    valid_bpc: float | None
    test_bpc: float
    quoted: str = ""


TABLE1 = (
    Hyperparameters("adding", "ENRNN", "adding/enrnn", 160, "≈15k", "R 1e-4"),
    Hyperparameters("adding", "LSTM", "adding/lstm", 60, "≈15k", "A 1e-2"),
    Hyperparameters("adding", "Spectral RNN", "adding/spectral_rnn", 60, "≈15k", "A 1e-2"),
    Hyperparameters("adding", "scoRNN", "adding/scornn", 170, "≈15k", "R/A 1e-4/1e-3"),
    Hyperparameters("adding", "oRNN", "adding/ornn", 128, "≈2.6k", "A 1e-2"),
    Hyperparameters("adding", "Full. uRNN", "adding/full_capacity_urnn", 120, "≈15k", "R 1e-5"),
    Hyperparameters("copying", "ENRNN", "copying/enrnn", 192, "≈22k", "R 1e-5/1e-3"),
    Hyperparameters("copying", "LSTM", "copying/lstm", 68, "≈22k", "R 1e-3"),
    Hyperparameters("copying", "LSTM", "copying/lstm192", 192, "≈158k", "R 1e-3"),
    Hyperparameters("copying", "scoRNN", "copying/scornn", 190, "≈22k", "R 1e-4/1e-3"),
    Hyperparameters("copying", "Full. uRNN", "copying/full_capacity_urnn", 128, "≈22k", "R 1e-3"),
    Hyperparameters("speech", "ENRNN", "speech/enrnn", 468, "≈200k", "A 1e-4"),
    Hyperparameters("speech", "LSTM", "speech/lstm", 158, "≈200k", "R 1e-3"),
    Hyperparameters("speech", "LSTM", "speech/lstm468", 468, "≈1200k", "R 1e-4"),
    Hyperparameters("speech", "scoRNN", "speech/scornn", 425, "≈200k", "R/A 1e-4/1e-3"),
    Hyperparameters("characters", "ENRNN", "characters/enrnn", 1030, "≈1016k", "A 1e-4/1e-3"),
    Hyperparameters("characters", "LSTM", "characters/lstm", 350, "≈1016k", "R 1e-3"),
    Hyperparameters("characters", "LSTM", "characters/lstm1030", 1030, "≈8600k", "R 1e-3"),
)

TABLE2 = (
    Speech("ENRNN", "speech/enrnn", "374/94", "≈200k", 0.13, 0.13, 4.84, 0.83, 2.75),
    Speech("scoRNN", "speech/scornn", "425", "≈200k", 1.56, 1.52, 4.55, 0.82, 2.72),
    Speech("LSTM", "speech/lstm", "158", "≈200k", 8.53, 8.27, 4.00, 0.79, 2.51),
    Speech("LSTM", "speech/lstm468", "468", "≈1200k", 5.60, 5.42, 4.82, 0.81, 2.75),
)

TABLE3 = (
    Characters("ENRNN", "characters/enrnn", "310/720", "≈1016k", 1.475, 1.429),
    Characters("LSTM", "characters/lstm", "350", "≈1016k", 1.506, 1.461),
    Characters("GRU", "characters/gru415", "415", "", None, 1.601, "Jing et al. 2017"),
    Characters("EURNN", "characters/eurnn", "2048", "", None, 1.715, "Jing et al. 2017"),
    Characters("GORU", "characters/goru", "512", "", None, 1.623, "Jing et al. 2017"),
    Characters("oRNN", "characters/ornn", "512", "≈183k", 1.73, 1.68, "Mhammedi et al. 2017"),
    Characters("nnRNN", "characters/nnrnn", "1024", "≈1320k", None, 1.47, "Kerg et al. 2019"),
    Characters("LSTM", "characters/lstm1030", "1030", "≈8600k", 1.447, 1.408),
)

BASELINE = MappingProxyType({"adding": 0.167, "copying": 0.0102940})
"""Adding: always answer 1, exactly 1/6. Copying, T = 2000: 10 log(8)/(T + 20)."""

EPOCH = 2000
"""Steps of the adding problem: 100,000 sequences in batches of 50."""

EXPERIMENTS = MappingProxyType(
    {
        "adding": "T = 750, 100,000 training and 10,000 test sequences, 6 epochs (§5.1)",
        "copying": "T = 2000, 20,000 training and 1,000 test sequences, 4,000 iterations of batch 20 (§5.2)",
        "speech": "TIMIT, 3,696 / 400 / 192 utterances at 8 kHz, batch 28, 300 epochs, best validation epoch (§5.3)",
        "characters": "PTB, 5102k / 400k / 450k characters, 50 symbols, batch 32, 50 steps, 20 epochs (§5.4)",
        "gradients": "adding with T = 50, ENRNN 24/16, first batch of the sixth epoch (§6.1)",
        "sizes": "adding with T = 750: h^(L) of 96 and h^(S) from 0 to 96; and 160 units in all (§6.2)",
    }
)

LONG_96 = (0, 16, 32, 48, 64, 80, 96)
"""Short-term sizes of Figure 6, where the long-term state has 96 units. (The paper gives the range; the steps are ours.)"""
TOTAL_160 = (0, 32, 48, 64, 80, 96, 128, 160)
"""Short-term sizes of Figure 7, where both states have 160 units."""

NEAR_OPTIMAL = 38
"""§6.2: "for the large range h^(S) > 38, near optimal performance is achieved"."""
