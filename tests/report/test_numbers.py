"""How numbers are written, in the page's cells and in Markdown."""

from __future__ import annotations

import itertools
import math

import pytest

from enrnn.report import results_markdown
from enrnn.report._cells import columns
from enrnn.report._numbers import duration, moment, plain
from tests.report._example import LONG, cell, cost_table, example, grouped_table


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (math.nan, "–"),
        ("≈15k", "≈15k"),
        (893575, "893\u202f575"),
        (-3, "−3"),
        (0.1, "0.1"),
        (1e-5, "1.00 × 10⁻⁵"),
        (True, "yes"),
    ],
)
def test_plain(value: object, text: str) -> None:
    assert plain(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "–"), (4.21, "4.2 s"), (59, "59 s"), (59.9, "1 min"), (3599, "1 h 00 min"), (7400, "2 h 03 min")]
)
def test_duration(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("given", "text"), [("2025-11-05T18:30:00+02:00", "5 November 2025, 16:30 UTC"), ("not long ago", "not long ago")]
)
def test_moment(given: str, text: str) -> None:
    assert moment(given) == text


def one(*cells: object) -> list[object]:
    table = {"columns": [{"key": "m", "label": "MSE", "kind": "number"}], "rows": [{"cells": {"m": value}} for value in cells]}
    return list(columns(table)[0].cells)


def test_a_mean_has_the_digits_its_spread_allows_and_those_that_were_published() -> None:
    wide, narrow, tiny = one(cell(1.5, [1.4, 1.9]), cell(1.25, [1.2512, 1.2511]), cell(None, [2e-6, 4e-6]))
    assert (wide.ours, wide.spread, wide.difference) == ("1.65", "0.35", "+0.15")
    assert (narrow.ours, narrow.spread, narrow.difference) == ("1.25115", "0.00007", "+0.00115")
    assert (tiny.ours, tiny.spread) == ("3.00 × 10⁻⁶", "1.41 × 10⁻⁶")


def test_one_seed_has_no_spread() -> None:
    (alone,) = one(cell(1.5, [1.4]))
    assert (alone.ours, alone.spread, alone.count) == ("1.400", "", 1)


@pytest.mark.parametrize(
    ("better", "senses", "best"), [("low", ["better", "worse"], [True, False]), ("high", ["worse", "better"], [False, True])]
)
def test_better_and_best(better: str, senses: list[str], best: list[bool]) -> None:
    made = one(cell(1.0, [0.5], better), cell(1.0, [2.0], better), cell("1.2*", [1.5], better))
    assert [value.sense for value in made] == [*senses, ""]
    assert [value.best_ours for value in made] == [*best, False]


def test_no_number_is_never_the_best() -> None:
    made = one(cell(1.0, [math.nan]), cell(1.0, [2.0]), cell(1.0, [3.0]), cell(1.0, None))
    assert [value.best_ours for value in made] == [False, True, False, False]
    assert [value.ours for value in made] == ["–", "2.000", "3.000", "–"]


def test_markdown_has_every_table_and_verdict() -> None:
    text = results_markdown(example())
    assert text.count("(made-up example)\n") == 7
    row = next(line for line in text.splitlines() if line.startswith("| ENRNN | 310/720 |"))
    measured = ["1.475", "**1.478** ± 0.004 (3)", "+0.003", "1.429", "**1.433** ± 0.004 (3)", "+0.004"]
    assert row.strip("| ").split(" | ") == ["ENRNN", "310/720", *measured, "893\u202f575", "≈1016k", "6 min"]
    assert "- ✕ **not reproduced**: LSTM 192 never falls below the baseline" in text
    assert "No rows yet." in text
    assert LONG in text


def test_every_row_of_a_markdown_table_has_as_many_cells_as_its_head() -> None:
    lines = results_markdown(example()).splitlines()
    for line, following in itertools.pairwise(lines):
        if line.startswith("|") and following.startswith("|"):
            assert line.replace("\\|", "").count("|") == following.replace("\\|", "").count("|")


def test_markdown_holds_no_markup_of_a_runs_own() -> None:
    text = results_markdown(example() | {"title": "a|b <i> *c*"})
    assert text.startswith("# a\\|b &lt;i&gt; \\*c\\*\n")
    assert "<" not in text


def test_the_best_is_the_best_of_its_group() -> None:
    (column,) = columns(grouped_table())
    assert [value.best_ours for value in column.cells] == [True, False, False, True]
    assert not column.compared


def test_a_column_with_nothing_published_and_a_table_without_costs_waste_no_columns() -> None:
    lines = results_markdown({"title": "t", "tables": [cost_table()]}).splitlines()
    assert "| model | n − q | Schur form (ms) |" in lines
    assert "| T = 750 | 64 | 3.210 |" in lines
