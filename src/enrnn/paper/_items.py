"""What can be asked for: the tables and figures of the paper, some beyond it, and the runs that each is made from."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .._nearest import nearest
from ._published import LONG_96, TABLE2, TABLE3, TOTAL_160
from ._runs import BEYOND, RATES, at_rate, known

RULES = ("normalized", "plainly_normalized", "renormalized", "spectral_norm")
"""Ways to write and train W_S: Proposition 3.2's gradient; one that does not know of the division; descend and divide again;
divide by the largest singular value."""

SPEECH = tuple(row.recipe for row in TABLE2)
COPIES = tuple(f"{name}_copy" for name in SPEECH)


class Item(NamedTuple):
    title: str
    where: str
    runs: tuple[str, ...]
    measures: tuple[str, ...] = ()
    """Of the machine, beside the runs."""


def sized(long: int, short: int) -> str:
    """The run of an ENRNN of these sizes on the adding problem."""
    return "adding/enrnn" if (long, short) == (96, 64) else f"adding/enrnn_{long}_{short}"


def ruled(task: str, rule: str) -> str:
    return f"{task}/enrnn" if rule == "normalized" else f"{task}/enrnn_{rule}"


_ADDING = tuple(
    f"adding/{row}" for row in ("enrnn", "lstm", "spectral_rnn", "spectral_rnn_15k", "scornn", "ornn", "full_capacity_urnn")
)
_COPYING = tuple(f"copying/{row}" for row in ("enrnn", "lstm", "lstm192", "scornn", "full_capacity_urnn"))
_LONG = tuple(sized(96, short) for short in LONG_96)
_TOTAL = tuple(sized(160 - short, short) for short in TOTAL_160)
_RULES = tuple(ruled(task, rule) for task in ("adding", "characters") for rule in RULES)

ITEMS: dict[str, Item] = {
    "table1": Item("Settings, parameters, and the adding and copying problems", "Table 1", (*_ADDING, *_COPYING)),
    "table2": Item("Speech", "Table 2", (*SPEECH, *COPIES)),
    "table3": Item("Character prediction on the Penn Treebank", "Table 3", tuple(row.recipe for row in TABLE3)),
    "figure-adding": Item("The adding problem", "Figure 1", _ADDING),
    "figure-copying": Item("The copying problem", "Figure 2", _COPYING),
    "figure-timit": Item("Speech: validation error", "Figure 3", (*SPEECH, *COPIES)),
    "figure-gradients": Item("How long an input is remembered", "Figures 4 and 5", ("adding/enrnn_sixth_epoch",)),
    "figure-sizes": Item("Sizes of the two states", "Figures 6 and 7", tuple(dict.fromkeys((*_LONG, *_TOTAL)))),
    "figure-coupling": Item("With and without W_C", "§3, no figure in the paper", ("adding/enrnn", "adding/enrnn_uncoupled")),
    "figure-spectrum": Item("Eigenvalues of W_S through training", "not in the paper", ("adding/enrnn", "characters/enrnn")),
    "figure-transient": Item(
        "Transient growth and pseudospectrum of W_S", "§2, no figure in the paper", ("adding/enrnn", "characters/enrnn")
    ),
    "figure-gradient-rule": Item("Proposition 3.2 and its rivals", "§3.1, no figure in the paper", _RULES),
    "table-rates": Item(
        "Where ours differs: other learning rates",
        "not in the paper",
        tuple(run for name, rates in RATES.items() for run in (name, *(at_rate(name, rate) for rate in rates))),
    ),
    "table-beyond": Item("What else ENRNN can do on the Penn Treebank", "not in the paper", ("characters/enrnn", *BEYOND)),
    "table-cost": Item("What the Schur form costs beside the rest of a step", "§3.2, no table in the paper", (), ("cost",)),
}

SMALL_ONLY_ADDING = ("figure-gradient-rule", "figure-spectrum", "figure-transient", "table-beyond")
"""In the small version these have no run on characters."""


def chosen(what: Sequence[str]) -> list[str]:
    """The items asked for, all if none is; `ValueError` with the nearest names for what there is not."""
    for name in what:
        if name not in ITEMS:
            raise ValueError(f"unknown item {name!r}; {nearest(name, ITEMS)}")
    return list(dict.fromkeys(what)) or list(ITEMS)


def runs_of(items: Iterable[str], quick: bool) -> list[str]:
    """The runs that the items are made from, each once."""
    there = set(known(quick))
    found: dict[str, None] = {}
    for item in items:
        for name in ITEMS[item].runs:
            small_enough = not (quick and item in SMALL_ONLY_ADDING and name.startswith("characters/"))
            if name in there and small_enough:
                found[name] = None
    return list(found)
