"""Recipes: complete configurations by name, for `enrnn train NAME` and `enrnn.recipes.recipe(NAME)`.

There is one for each row of the paper's tables and each curve of its figures, called task/row, and a few beyond. Where a value
comes from is part of the recipe, and `sources(NAME)` tells it:

| source   | the value is                                                                                                   |
|----------|----------------------------------------------------------------------------------------------------------------|
| "paper"  | in the ENRNN paper: Table 1, §5 or the text of the figure                                                      |
| "sheet"  | in the authors' published code, or in the paper or code of the network that is compared (see docs/zoo.md)       |
| "chosen" | ours, where neither says; what speaks for it is in the recipe's note                                           |

What a recipe does not name keeps its default, which is the network's own or, for the task, the authors'. `parameters` counts what
is free, on the task's own data (characters: the 50 symbols of the PTB); `published` is the paper's figure for it.

This file imports no torch, so that recipes can be listed at once.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from ._nearest import nearest

if TYPE_CHECKING:
    from .training import Config

Values = Mapping[str, Any]
"""Settings by their paths, such as "optimizer.lr"."""

NONE: Values = MappingProxyType({})
SOURCES = ("paper", "sheet", "chosen")


class Recipe(NamedTuple):
    """What a run is made of, by where it comes from."""

    title: str
    where: str
    """In the paper."""
    parameters: int
    paper: Values
    sheet: Values = NONE
    chosen: Values = NONE
    published: str = ""
    note: str = ""

    @property
    def values(self) -> dict[str, Any]:
        return {path: value for source in SOURCES for path, value in getattr(self, source).items()}

    @property
    def network(self) -> str:
        return str(self.values["model.network"])


class _Task(NamedTuple):
    """What the recipes of a task share."""

    paper: Values
    sheet: Values = NONE
    chosen: Values = NONE

    def recipe(self, title: str, where: str, parameters: int, paper: Values, **others: Any) -> Recipe:
        sheet, chosen = {**self.sheet, **others.pop("sheet", {})}, {**self.chosen, **others.pop("chosen", {})}
        taken = {**self.paper, **paper}
        shared = {path: value for path, value in taken.items() if path in paper or path not in {**sheet, **chosen}}
        return Recipe(title, where, parameters, shared, sheet, chosen, **others)


_ADDING = _Task(
    {"task.name": "adding", "task.length": 750, "task.train_size": 100_000, "task.test_size": 10_000, "run.steps": 12_000},
    {"task.batch_size": 50, "run.evaluate_every": 100},
    {"run.checkpoint_every": 2_000},
)
_COPYING = _Task(
    {
        **{"task.name": "copying", "task.length": 2000, "task.train_size": 20_000, "task.test_size": 1_000},
        **{"task.batch_size": 20, "run.steps": 4_000},
    },
    {"task.layout": "code", "run.evaluate_every": 50},
    {"run.checkpoint_every": 1_000},
)
_SPEECH = _Task(
    {"task.name": "speech", "task.variant": "predict", "task.batch_size": 28, "run.epochs": 300},
    {"task.normalization": "padded"},
)
_CHARACTERS = _Task({"task.name": "characters", "task.length": 50, "task.batch_size": 32, "run.epochs": 20})
_PIXELS = _Task({"task.name": "pixels"}, {"task.batch_size": 50, "run.epochs": 70})


def _enrnn(long: int, short: int, negative_ones: int | None = None) -> dict[str, Any]:
    sizes = {"model.network": "enrnn", "model.hidden_size": long + short, "model.short_size": short}
    return sizes if negative_ones is None else {**sizes, "model.negative_ones": negative_ones}


def _lstm(size: int, forget_bias: float) -> dict[str, Any]:
    return {"model.network": "lstm", "model.hidden_size": size, "model.forget_bias": forget_bias}


def _optimizer(name: str, lr: float, **others: Any) -> dict[str, Any]:
    """RMSProp is TensorFlow 1's: the authors used it."""
    return {"optimizer.name": name, "optimizer.lr": lr, **{f"optimizer.{key}": value for key, value in others.items()}}


_SCORNN_RATES = _optimizer("adam", 1e-3, long_name="rmsprop_tf", long_lr=1e-4)
_GLOROT = {"model.head_bias": "glorot"}

_CLIPPING = "Whether gradients were clipped by entries or by their norm is not said; here, by entries."
_HEAD = "The head starts as in the authors' code for ENRNN and scoRNN."

RECIPES: dict[str, Recipe] = {
    "adding/enrnn": _ADDING.recipe(
        *("ENRNN 96/64", "Table 1, Figures 1, 6 and 7", 15_441, {**_enrnn(96, 64, 29), **_optimizer("rmsprop_tf", 1e-4)}),
        published="≈15k",
    ),
    "adding/lstm": _ADDING.recipe(
        *("LSTM 60", "Table 1, Figure 1", 15_181, {**_lstm(60, 0.0), **_optimizer("adam", 1e-2)}),
        published="≈15k",
    ),
    "adding/spectral_rnn": _ADDING.recipe(
        *("Spectral RNN 60, r = 16", "Table 1, Figure 1", 1_981),
        {
            **{"model.network": "spectral_rnn", "model.hidden_size": 60},
            **{"model.options.reflectors": 16, "model.options.margin": 0.01},
            **_optimizer("adam", 1e-2, lr_decay=0.99),
        },
        published="≈15k",
        note="n = 60 with r = 16 has some 2,000 parameters, and with r = 60, the most there can be, 4,000: the paper's 15,000 "
        "belong to another size. spectral_rnn_15k has as many.",
    ),
    "adding/spectral_rnn_15k": _ADDING.recipe(
        *("Spectral RNN 412, r = 16", "Table 1, Figure 1, at the size it states", 15_005),
        {
            **{"model.network": "spectral_rnn", "model.options.reflectors": 16, "model.options.margin": 0.01},
            **_optimizer("adam", 1e-2, lr_decay=0.99),
        },
        chosen={"model.hidden_size": 412},
        published="≈15k",
        note="As adding/spectral_rnn, with as many units as 15,000 parameters allow.",
    ),
    "adding/scornn": _ADDING.recipe(
        *("scoRNN 170", "Table 1, Figure 1", 15_046, {**_enrnn(170, 0, 119), **_SCORNN_RATES}),
        published="≈15k",
    ),
    "adding/ornn": _ADDING.recipe(
        *("oRNN 128, 16 reflections", "Table 1, Figure 1", 2_569),
        {
            **{"model.network": "ornn", "model.hidden_size": 128, "model.options.reflectors": 16},
            **_optimizer("adam", 1e-2),
        },
        published="≈2.6k",
    ),
    "adding/full_capacity_urnn": _ADDING.recipe(
        *("full-capacity uRNN 120", "Table 1, Figure 1", 15_481),
        {"model.network": "full_capacity_urnn", "model.hidden_size": 240, **_optimizer("rmsprop_tf", 1e-5)},
        published="≈15k",
        note="120 complex units are a hidden_size of 240. Its matrix moves by the plain gradient times the rate, not by RMSProp.",
    ),
    "copying/enrnn": _COPYING.recipe(
        *("ENRNN 172/20", "Table 1, Figure 2", 22_395),
        {**_enrnn(172, 20, 52), **_optimizer("rmsprop_tf", 1e-3, long_lr=1e-5)},
        sheet=_GLOROT,
        published="≈22k",
    ),
    "copying/lstm": _COPYING.recipe(
        *("LSTM 68", "Table 1, Figure 2", 22_109, {**_lstm(68, 1.0), **_optimizer("rmsprop_tf", 1e-3)}),
        chosen=_GLOROT,
        published="≈22k",
        note=_HEAD,
    ),
    "copying/lstm192": _COPYING.recipe(
        *("LSTM 192", "Table 1, Figure 2", 157_641, {**_lstm(192, -2.0), **_optimizer("rmsprop_tf", 1e-3)}),
        chosen=_GLOROT,
        published="≈158k",
        note=_HEAD,
    ),
    "copying/scornn": _COPYING.recipe(
        *("scoRNN 190", "Table 1, Figure 2", 21_764),
        {**_enrnn(190, 0, 95), **_optimizer("rmsprop_tf", 1e-3, long_lr=1e-4)},
        sheet=_GLOROT,
        published="≈22k",
    ),
    "copying/full_capacity_urnn": _COPYING.recipe(
        *("full-capacity uRNN 128", "Table 1, Figure 2", 21_641),
        {"model.network": "full_capacity_urnn", "model.hidden_size": 256, **_optimizer("rmsprop_tf", 1e-3)},
        published="≈22k",
        note="128 complex units are a hidden_size of 256. Its matrix moves by the plain gradient times the rate, not by RMSProp.",
    ),
    "speech/enrnn": _SPEECH.recipe(
        *("ENRNN 374/94", "Tables 1 and 2, Figure 3", 199_928),
        {**_enrnn(374, 94, 374), "model.coupling": False, **_optimizer("adam", 1e-4)},
        published="≈200k",
    ),
    "speech/scornn": _SPEECH.recipe(
        *("scoRNN 425", "Tables 1 and 2, Figure 3", 200_304, {**_enrnn(425, 0, 43), **_SCORNN_RATES}),
        published="≈200k",
    ),
    "speech/lstm": _SPEECH.recipe(
        *("LSTM 158", "Tables 1 and 2, Figure 3", 202_527, {**_lstm(158, -4.0), **_optimizer("rmsprop_tf", 1e-3)}),
        chosen={"optimizer.clip_value": 1.0},
        published="≈200k",
        note=f"The paper clips at 1. {_CLIPPING}",
    ),
    "speech/lstm468": _SPEECH.recipe(
        *("LSTM 468", "Tables 1 and 2", 1_179_957, {**_lstm(468, -4.0), **_optimizer("rmsprop_tf", 1e-4)}),
        chosen={"optimizer.clip_value": 1.0},
        published="≈1200k",
        note=f"The paper clips at 1. {_CLIPPING}",
    ),
    "characters/enrnn": _CHARACTERS.recipe(
        *("ENRNN 310/720", "Tables 1 and 3", 893_575),
        {
            **_enrnn(310, 720, 186),
            **{"model.nonlinearity": "relu", "model.embedding": True, "model.coupling_init": "truncated_orthogonal"},
            **_optimizer("adam", 1e-3, long_lr=1e-4),
        },
        published="≈1016k",
        note="The stated sizes come to 893,575 with everything counted; 1,016,450 is the LSTM's number.",
    ),
    "characters/lstm": _CHARACTERS.recipe(
        *("LSTM 350", "Tables 1 and 3", 1_016_450),
        {**_lstm(350, 0.0), "model.embedding": True, **_optimizer("rmsprop_tf", 1e-3)},
        chosen={"optimizer.clip_value": 8.0},
        published="≈1016k",
        note=f"The paper clips at 8. {_CLIPPING}",
    ),
    "characters/lstm1030": _CHARACTERS.recipe(
        *("LSTM 1030", "Tables 1 and 3", 8_594_370),
        {**_lstm(1030, 0.0), "model.embedding": True, **_optimizer("rmsprop_tf", 1e-3)},
        chosen={"optimizer.clip_value": 8.0},
        published="≈8600k",
        note=f"The paper clips at 8. {_CLIPPING}",
    ),
    "characters/gru415": _CHARACTERS.recipe(
        *("GRU 415", "Table 3, quoted from Jing et al. 2017", 602_215),
        {"model.network": "gru", "model.hidden_size": 415},
        chosen={"model.embedding": False, **_optimizer("rmsprop_tf", 1e-3)},
        note="Neither paper states its settings. With one-hot symbols GRU 415 and GORU 512 have about as many parameters, as "
        "they should; so no embedding. Optimiser and rate are those of GORU's code.",
    ),
    "characters/eurnn": _CHARACTERS.recipe(
        *("EURNN 2048", "Table 3, quoted from Jing et al. 2017", 417_840),
        {"model.network": "eurnn", "model.hidden_size": 4096},
        sheet={"model.options.capacity": 2, **_optimizer("rmsprop_tf", 1e-3)},
        chosen={"model.embedding": False},
        note="2048 complex units are a hidden_size of 4096. Settings of the PTB run were not published: these are the code's, "
        "for copying. The head reads [Re h; Im h]; in the authors' code Re h alone.",
    ),
    "characters/goru": _CHARACTERS.recipe(
        *("GORU 512", "Table 3, quoted from Jing et al. 2017", 630_578),
        {"model.network": "goru", "model.hidden_size": 512},
        sheet={"model.options.style": "fft", **_optimizer("rmsprop_tf", 1e-3)},
        chosen={"model.embedding": False},
        note="Settings of the PTB run were not published: these are the code's, for copying.",
    ),
    "characters/ornn": _CHARACTERS.recipe(
        *("oRNN 512", "Table 3, quoted from Mhammedi et al. 2017", 183_602),
        {"model.network": "ornn", "model.hidden_size": 512},
        sheet={"model.embedding": False, "model.options.reflectors": 512, **_optimizer("adam", 1e-3)},
        published="≈183k",
        note="Mhammedi et al. read one sentence at a time, without its newline (49 symbols), from a learned start; here the "
        "state is carried through the text, as in all other rows.",
    ),
    "characters/nnrnn": _CHARACTERS.recipe(
        *("nnRNN 1024", "Table 3, quoted from Kerg et al. 2019", 1_315_138),
        {"model.network": "nnrnn", "model.hidden_size": 1024},
        sheet={
            **{"task.length": 150, "task.batch_size": 128, "run.epochs": 100},
            **{"model.embedding": 200, "model.options.gamma_penalty": 1.0},
            **_optimizer("rmsprop", 8e-4, long_lr=8e-5, decay=0.9, clip_norm=5.0),
        },
        chosen={"optimizer.lr_decay": 0.95},
        published="≈1320k",
        note="Kerg et al. halve the rates where validation does not improve, and decay T by 1e-4; here the rates fall by a "
        "twentieth after each epoch. Clipping is from their later runs. With constant rates ours ended in the 29th epoch with "
        "a gradient that was not finite, and with clipping in the 32nd with such a loss. Their text is split into symbols in "
        "another way.",
    ),
    "pixels/enrnn": _PIXELS.recipe(
        *("ENRNN 102/68", "not in the paper", 18_761, {}),
        chosen={**_enrnn(102, 68), **_optimizer("rmsprop_tf", 1e-3, long_lr=1e-4)},
        note="scoRNN's settings, with a short-term state.",
    ),
    "pixels/scornn": _PIXELS.recipe(
        *("scoRNN 170", "not in the paper", 16_415, {}),
        sheet={**_enrnn(170, 0, 17), **_optimizer("rmsprop_tf", 1e-3, long_lr=1e-4)},
    ),
    "adding/enrnn_t50": _ADDING.recipe(
        *("ENRNN 24/16, T = 50", "Figures 4 and 5", 1_077, {**_enrnn(24, 16), "task.length": 50}),
        chosen=_optimizer("rmsprop_tf", 1e-4),
        note="The gradients are those of the first batch of the sixth epoch. Optimiser and rate as adding/enrnn.",
    ),
}


def _speech_copies() -> dict[str, Recipe]:
    """The speech rows once more, as the task that the published figures point to."""
    found = {}
    for name, recipe in RECIPES.items():
        if recipe.values["task.name"] == "speech":
            paper = {path: value for path, value in recipe.paper.items() if path != "task.variant"}
            note = f"{recipe.note} Input frame t + 1, target frame t: see enrnn.tasks.Speech.".strip()
            chosen = {**recipe.chosen, "task.variant": "copy"}
            found[f"{name}_copy"] = recipe._replace(title=f"{recipe.title}, copy", paper=paper, chosen=chosen, note=note)
    return found


def _size_studies() -> dict[str, Recipe]:
    """Figures 6 (long-term state of 96) and 7 (160 units in all), but for 96/64, which is adding/enrnn."""
    sixth = {(96, short): "Figure 6" for short in (0, 16, 32, 48, 80, 96)}
    seventh = {(160 - short, short): "Figure 7" for short in (0, 32, 48, 80, 96, 128, 160)}
    found = {}
    for (long, short), where in (sixth | seventh).items():
        n = long + short
        count = long * (long - 1) // 2 + short * short + long * short + 2 * n + n + n + 1
        found[f"adding/enrnn_{long}_{short}"] = _ADDING.recipe(
            *(f"ENRNN {long}/{short}", where, count, {**_enrnn(long, short), **_optimizer("rmsprop_tf", 1e-4)})
        )
    return found


RECIPES |= _speech_copies() | _size_studies()


def recipe(name: str) -> "Config":
    """The configuration that a recipe stands for; `ValueError` with the nearest names if there is none."""
    from .training import Config

    return Config.from_dict(_sections(known(name).values))


def sources(name: str) -> dict[str, str]:
    """Where each of a recipe's values comes from: "paper", "sheet" or "chosen" by the setting's path."""
    found = known(name)
    return {path: source for source in SOURCES for path in getattr(found, source)}


def known(name: str) -> Recipe:
    """The recipe of this name; `ValueError` with the nearest names if there is none."""
    if name not in RECIPES:
        raise ValueError(f"unknown recipe {name!r}; {nearest(name, RECIPES, 'enrnn recipes lists all')}")
    return RECIPES[name]


def _sections(values: Values) -> dict[str, Any]:
    """From {"model.options.margin": 1} to {"model": {"options": {"margin": 1}}}."""
    nested: dict[str, Any] = {}
    for path, value in values.items():
        *folders, last = path.split(".")
        inner = nested
        for folder in folders:
            inner = inner.setdefault(folder, {})
        inner[last] = value
    return nested
