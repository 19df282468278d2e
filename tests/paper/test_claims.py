"""Every claim can come out either way, and without runs it is not judged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from enrnn.paper import CLAIMS, ITEMS, TABLE3, Found, Run, _cost, read
from enrnn.paper._claims import judged
from enrnn.paper._data import TIMIT_NAME
from enrnn.paper._items import sized
from enrnn.paper._published import LONG_96, TOTAL_160
from enrnn.paper._tables import _adding_cells, tables
from tests.paper._made_up import found, look, made_up

HEAT = [[1.0, 0.0], [0.9, 1.0]]


def verdict(text: str, runs: Found, quick: bool = False) -> tuple[str, str]:
    (claim,) = [claim for claim in judged(runs, quick) if text in claim["text"]]
    return claim["verdict"], claim["why"]


def all_of(item: str, value: float) -> list[Run]:
    return [made_up(name, 0.17, value) for name in ITEMS[item].runs]


def replaced(runs: list[Run], *others: Run) -> Found:
    names = {run.name for run in others}
    return found(*[run for run in runs if run.name not in names], *others)


def heat(short: float, long: float) -> dict[str, Any]:
    return {"epoch": 6, "place": 1, "short": HEAT, "long": HEAT, "lifetimes": {"short": short, "long": long}}


def cost(ratio: float, method: str = "complex Schur form") -> dict[str, Any]:
    shape = {"q": 1, "s": 2, "BL": 3, "schur": ratio, "rest": 1.0, "ratio": ratio}
    return {"device": "cpu", "method": method, "shapes": {"adding": shape}}


def sizes(shorts: tuple[int, ...], of: Any, value: Any) -> list[Run]:
    return [made_up(sized(of(short), short), 0.17, value(short)) for short in shorts]


ADDING, COPYING = all_of("figure-adding", 0.1), all_of("figure-copying", 0.01)
PTB_ROWS = [made_up(row.recipe, 1.6) for row in TABLE3]
LONG = sizes(LONG_96, lambda s: 96, lambda s: 0.001 if s > 38 else 0.1)
TOTAL = sizes(TOTAL_160, lambda s: 160 - s, lambda s: abs(s - 64) / 1000)

BOTH_WAYS: dict[str, tuple[Found, Found]] = {
    "before all other models": (
        replaced(ADDING, made_up("adding/enrnn", 0.001)),
        replaced(ADDING, made_up("adding/lstm", 0.001)),
    ),
    "slightly lower error": (
        replaced(ADDING, made_up("adding/spectral_rnn", 1e-4)),
        replaced(ADDING, made_up("adding/enrnn", 1e-4)),
    ),
    "Without a short-term state": (
        found(made_up(sized(96, 0), *[0.17] * 5, 0.1), made_up(sized(160, 0), *[0.17] * 6)),
        found(made_up(sized(96, 0), 0.17, 0.1), made_up(sized(160, 0), *[0.17] * 6)),
    ),
    "Without a long-term state": (found(made_up(sized(0, 160), 0.1, 0.05)), found(made_up(sized(0, 160), 0.1, 0.001, 0.1))),
    "above 38 is near-optimal": (found(*LONG), replaced(LONG, made_up(sized(96, 80), 0.1))),
    "96/64 or 64/96 is best": (found(*TOTAL), replaced(TOTAL, made_up(sized(160, 0), -1.0))),
    "on the copying problem": (
        replaced(COPYING, made_up("copying/enrnn", 0.001)),
        replaced(COPYING, made_up("copying/scornn", 0.001)),
    ),
    "below the baseline of the copying": (
        found(made_up("copying/lstm192", 0.0103)),
        found(made_up("copying/lstm192", 0.009, 0.02)),
    ),
    "coupling matrix helps": (
        found(made_up("adding/enrnn", 0.001), made_up("adding/enrnn_uncoupled", 0.1)),
        found(made_up("adding/enrnn", 0.1), made_up("adding/enrnn_uncoupled", 0.001)),
    ),
    "reaches 1.429": (
        found(*[made_up("characters/enrnn", 1.43, seed=seed) for seed in range(3)]),
        found(*[made_up("characters/enrnn", 1.45, seed=seed) for seed in range(3)]),
    ),
    "equal parameters on the Penn": (
        found(made_up("characters/enrnn", 1.43), made_up("characters/lstm", 1.46)),
        found(made_up("characters/enrnn", 1.47), made_up("characters/lstm", 1.46)),
    ),
    "all other models of its size": (
        replaced(PTB_ROWS, made_up("characters/enrnn", 1.5)),
        replaced(PTB_ROWS, made_up("characters/nnrnn", 1.5)),
    ),
    "of equal hidden size": (
        found(made_up("characters/enrnn", 1.43), made_up("characters/lstm1030", 1.41)),
        found(made_up("characters/enrnn", 1.43), made_up("characters/lstm1030", 1.44)),
    ),
    "equal parameters on speech": (
        found(made_up("speech/enrnn", 5.0, data="TIMIT"), made_up("speech/lstm", 8.0, data="TIMIT")),
        found(made_up("speech/enrnn", 9.0, data="TIMIT"), made_up("speech/lstm", 8.0, data="TIMIT")),
    ),
    "an error of 0.13": (found(made_up("speech/enrnn", 0.14, data="TIMIT")), found(made_up("speech/enrnn", 9.0, data="TIMIT"))),
    "short-term state fade": (
        found(made_up("adding/enrnn_sixth_epoch", 0.1, gradients=heat(0.5, 1.5))),
        found(made_up("adding/enrnn_sixth_epoch", 0.1, gradients=heat(1.4, 1.5))),
    ),
    "then renormalise": (
        found(made_up("adding/enrnn", 0.001), made_up("adding/enrnn_renormalized", 0.002)),
        found(made_up("adding/enrnn", 0.002), made_up("adding/enrnn_renormalized", 0.001)),
    ),
    "spectral norm makes": (
        found(made_up("adding/enrnn_spectral_norm", 0.1, short={"0": look(0.99, 1.0), "2000": look(0.6, 1.0)})),
        found(made_up("adding/enrnn_spectral_norm", 0.1, short={"0": look(0.6, 1.0), "2000": look(0.99, 1.0)})),
    ),
    "shows transient growth": (
        found(made_up("adding/enrnn", 0.1, short={"2000": look(1.0, 1.0, 2.0, 0.5)})),
        found(made_up("adding/enrnn", 0.1, short={"2000": look(1.0, 1.0, 1.0, 0.5)})),
    ),
    "spectral radius of less than one": (
        found(made_up("adding/enrnn", 0.1, short={"2000": look(0.9, 1.0)})),
        found(made_up("adding/enrnn", 0.1, short={"2000": look(1.0, 1.0)})),
    ),
    "cost of a Schur form": (found(cost=cost(0.5)), found(cost=cost(3.0))),
}
NEEDS_NO_RUN = "Sizes are chosen"


def test_every_claim_is_tried() -> None:
    assert len(CLAIMS) == len(BOTH_WAYS) + 1


@pytest.mark.parametrize("text", BOTH_WAYS)
def test_a_claim_can_come_out_either_way(text: str) -> None:
    for runs, expected in zip(BOTH_WAYS[text], ("reproduced", "not reproduced"), strict=True):
        got, why = verdict(text, runs)
        assert got == expected, why
    got, why = verdict(text, found())
    assert got == "cannot be judged"
    assert why.endswith(".")


def test_the_small_version_judges_only_what_it_can() -> None:
    for claim in CLAIMS:
        text = next((text for text in BOTH_WAYS if text in claim.text), None)
        if text is not None:
            got, why = verdict(text, BOTH_WAYS[text][0], quick=True)
            assert got == ("reproduced" if claim.small else "cannot be judged")
            assert claim.small or why.startswith("A small version cannot say")


@pytest.mark.parametrize("quick", [False, True])
def test_times_of_something_else_say_nothing_about_the_schur_form(quick: bool) -> None:
    runs = found(cost=cost(3.0, "eigenvalues and eigenvectors (torch; no scipy here)"))
    got, why = verdict("cost of a Schur form", runs, quick)
    assert got == "cannot be judged"
    assert why.endswith("eigenvalues and eigenvectors were timed in its place. Install scipy and run this again.")
    (table,) = tables(runs, ["table-cost"], quick)
    assert table["columns"][2]["label"] == "eigenvalues and eigenvectors (ms)"
    assert table["title"] == "What eigenvalues and eigenvectors cost, in place of the Schur form"
    assert " Eigenvalues and eigenvectors (torch; no scipy here) of a random matrix" in table["caption"]
    (table,) = tables(found(cost=cost(3.0)), ["table-cost"], quick)
    assert (table["columns"][2]["label"], table["title"]) == ("Schur form (ms)", "What the Schur form costs")
    assert " Complex Schur form of a random matrix" in table["caption"]


def test_with_scipy_what_was_timed_without_is_timed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_cost, "SHAPES", {"adding": (3, 2, 2, 4)})
    monkeypatch.setattr(_cost, "_scipy", lambda: None)
    _cost.measure_cost(tmp_path, "cpu")
    assert _cost.timed(read(tmp_path, quick=True).cost or {}) == "eigenvalues and eigenvectors"
    monkeypatch.setattr(_cost, "_scipy", lambda: lambda matrix, output: None)
    assert not _cost.cost_file(tmp_path, "cpu").exists()
    _cost.measure_cost(tmp_path, "cpu")
    assert _cost.timed(read(tmp_path, quick=True).cost or {}) == "Schur form"


def test_with_one_seed_what_wavers_decides_nothing() -> None:
    """Towards the end of their runs; and a task that cannot tell leaves the verdict to one that can."""
    ours = made_up("adding/enrnn", *[0.01] * 18, 0.003, 0.002)
    worse, far = (made_up("adding/enrnn_renormalized", *[0.01] * 18, *ends) for ends in ((0.002, 0.0025), (0.004, 0.005)))
    got, why = verdict("then renormalise", found(ours, worse))
    assert got == "cannot be judged"
    assert "from 0.002 to 0.003 and 0.002 to 0.0025" in why
    assert verdict("then renormalise", found(ours, far))[0] == "reproduced"
    characters = made_up("characters/enrnn", 1.4), made_up("characters/enrnn_renormalized", 1.5)
    assert verdict("then renormalise", found(ours, worse, *characters))[0] == "reproduced"
    others = made_up("characters/enrnn", 1.5), made_up("characters/enrnn_renormalized", 1.4)
    assert verdict("then renormalise", found(ours, far, *others))[0] == "not reproduced"


def test_parameter_counts_disagree_where_they_do() -> None:
    got, why = verdict(NEEDS_NO_RUN, found())
    assert got == "not reproduced"
    assert "16 of 18" in why
    assert "ENRNN 1030 (characters) has 893,575, published ≈1016k" in why
    assert "Spectral RNN 60 (adding) has 1,981, published ≈15k" in why


def test_a_difference_within_the_spread_decides_nothing() -> None:
    wide = [made_up("characters/enrnn", value, seed=seed) for seed, value in enumerate((1.40, 1.50))]
    got, why = verdict(
        "equal parameters on the Penn", found(*wide, *(made_up("characters/lstm", 1.46, seed=seed) for seed in (0, 1)))
    )
    assert got == "cannot be judged"
    assert "two standard errors" in why


def test_a_rate_that_is_not_the_papers_is_told_but_does_not_decide() -> None:
    runs = [each for each in ADDING if each.name != "adding/enrnn"] + [made_up("adding/enrnn", 0.005)]
    for value, told in ((0.002, "below ENRNN, so that the claim holds but not at the stated rate."), (0.1, "ends at 0.1.")):
        got, why = verdict("slightly lower error", found(*runs, made_up("adding/spectral_rnn_rate_1e-3", value)))
        assert got == "not reproduced"
        assert "At a rate of 1e-3" in why
        assert why.endswith(told)
    assert "At a rate" not in verdict("slightly lower error", found(*runs))[1]


def test_two_seeds_are_too_few_for_the_number() -> None:
    got, why = verdict("reaches 1.429", found(*[made_up("characters/enrnn", 1.43, seed=seed) for seed in range(2)]))
    assert (got, why.endswith("3 seeds are wanted, 2 finished.")) == ("cannot be judged", True)


def test_another_text_is_not_the_penn_treebank() -> None:
    runs = found(made_up("characters/enrnn", 1.3, data="other"), made_up("characters/lstm", 1.4, data="other"))
    got, why = verdict("equal parameters on the Penn", runs)
    assert got == "cannot be judged"
    assert "not on Penn Treebank" in why


def test_a_stand_in_for_speech_is_reported_as_what_it_is() -> None:
    runs = found(made_up("speech/enrnn", 5.0, data="a stand-in"), made_up("speech/lstm", 8.0, data="a stand-in"))
    got, why = verdict("equal parameters on speech", runs)
    assert got == "cannot be judged"
    assert "a stand-in" in why
    assert "5" in why


def test_a_score_that_leaves_utterances_out_says_so() -> None:
    scores = {"means": {"segsnr": 4.8}, "reasons": {}, "scored": {"segsnr": 190, "stoi": 192}}
    failed = {"segsnr": ["test/a.wav: silence", "test/b.wav: silence"], "stoi": []}
    run = made_up("speech/enrnn", 5.0, data=TIMIT_NAME, scores={**scores, "failed": failed})
    table = tables(found(run, made_up("speech/lstm", 8.0, data=TIMIT_NAME, scores=scores)), ["table2"], quick=False)[0]
    notes = [row["note"] for row in table["rows"] if "could not be taken" in row["note"]]
    assert len(notes) == 1
    assert notes[0].endswith("SegSNR could not be taken of 2 in 192 utterances.")


def test_a_failed_run_is_named() -> None:
    lost = made_up("adding/enrnn_uncoupled", 0.1)._replace(state="failed", result=None, error="NotFiniteError: the loss is nan")
    got, why = verdict("coupling matrix helps", found(made_up("adding/enrnn", 0.1), lost))
    assert got == "cannot be judged"
    assert "the loss is nan" in why


def test_the_best_of_several_is_best_by_more_than_its_spread() -> None:
    text = "ENRNN outperforms the other methods on the copying problem."
    others = [made_up(name, 0.1, seed=seed) for name in ITEMS["figure-copying"].runs[1:] for seed in (0, 1)]
    rival = [made_up("copying/scornn", value, seed=seed) for seed, value in enumerate((0.011, 0.013))]
    rest = [run for run in others if run.name != "copying/scornn"]
    for values, expected in (
        ((0.001, 0.001), "reproduced"),
        ((0.002, 0.020), "cannot be judged"),
        ((0.02, 0.02), "not reproduced"),
    ):
        ours = [made_up("copying/enrnn", value, seed=seed) for seed, value in enumerate(values)]
        assert verdict(text, found(*ours, *rival, *rest))[0] == expected


def test_one_task_that_cannot_be_judged_does_not_decide_about_the_other() -> None:
    text = "ENRNN outperforms an LSTM of equal parameters on speech."
    clear = [made_up(name, value, seed=seed, data=TIMIT_NAME) for name, value in SPOKEN.items() for seed in (0, 1)]
    near = {"speech/enrnn_copy": (1.0, 3.0), "speech/lstm_copy": (1.5, 2.6)}
    close = [made_up(name, each, seed=seed, data=TIMIT_NAME) for name, pair in near.items() for seed, each in enumerate(pair)]
    told = verdict(text, found(*clear, *close))
    assert told[0] == "reproduced"
    assert "Judged by prediction alone." in told[1]


SPOKEN = {"speech/enrnn": 1.0, "speech/lstm": 2.0}


def test_a_step_is_given_only_where_all_seeds_came_there() -> None:
    reached, never = made_up("adding/enrnn", 0.001, seed=0), made_up("adding/enrnn", 0.2, seed=1)
    assert _adding_cells(found(reached, never), "adding/enrnn")["tenth"]["ours"] is None
    assert _adding_cells(found(reached), "adding/enrnn")["tenth"]["ours"]["mean"] == 2000
