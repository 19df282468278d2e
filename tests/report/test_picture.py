"""Figures as SVG files: well-formed, to scale, and the same in every place where a script does not run."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest

from enrnn.report import figure_svg
from enrnn.report._chart import Chart, Scale
from tests.report._example import NASTY, adding, gradients, many, sizes

SVG = "{http://www.w3.org/2000/svg}"


def parsed(figure: dict[str, Any]) -> ElementTree.Element:
    return ElementTree.fromstring(figure_svg(figure))


def paths(root: ElementTree.Element, kind: str) -> list[str]:
    return [node.attrib["d"] for node in root.iter(f"{SVG}path") if kind in node.attrib["class"].split()]


@pytest.mark.parametrize(("figure", "curves", "bands"), [(adding(), 7, 3), (many(), 20, 0), (sizes(), 7, 0)])
def test_every_series_is_drawn_inside_the_picture(figure: dict[str, Any], curves: int, bands: int) -> None:
    root = parsed(figure)
    assert len(paths(root, "curve")) == curves
    assert len(paths(root, "band")) == bands
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for path in paths(root, "curve") + paths(root, "band"):
        numbers = [float(number) for number in re.findall(r"-?[\d.]+", path)]
        assert all(0 <= x <= width for x in numbers[::2])
        assert all(0 <= y <= height for y in numbers[1::2])


def test_labels_are_text() -> None:
    figure = adding() | {"title": NASTY}
    figure["series"][0]["label"] = NASTY
    root = parsed(figure)
    assert not list(root.iter(f"{SVG}script"))
    assert NASTY in [node.text for node in root.iter(f"{SVG}text")]


@pytest.mark.parametrize(("figure", "words"), [(gradients(), "kind 'curves'"), (adding() | {"series": []}, "no point")])
def test_what_cannot_be_drawn_is_refused_by_name(figure: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        figure_svg(figure)
    assert figure["name"] in str(caught.value)


@pytest.mark.parametrize("log", [False, True])
def test_a_scale_takes_its_ends_to_its_ends_and_the_middle_to_the_middle(log: bool) -> None:
    scale = Scale(1e-4, 1.0, 300.0, 20.0, log)
    middle = 1e-2 if log else 0.50005
    assert [scale(value) for value in (1e-4, middle, 1.0)] == pytest.approx([300, 160, 20])


@pytest.mark.parametrize(
    ("low", "high", "log"), [(0, 12_000, False), (1.42, 1.47, False), (3e-7, 0.2, True), (0.3, 0.9, True), (-1, 1, False)]
)
def test_ticks_are_round_inside_and_neither_too_few_nor_too_many(low: float, high: float, log: bool) -> None:
    ticks = Scale(low, high, 0, 1, log).ticks(6)
    assert 2 <= len(ticks) <= 8
    for value, label in ticks:
        assert low - 1e-9 <= value <= high * (1 + 1e-9)
        assert len(label) <= 6


def test_a_curve_breaks_where_there_is_no_number() -> None:
    chart = Chart((0, 10), (0.01, 1), y_log=True)
    chart.curve([(0, 0.1), (1, 0.2), (2, None), (3, 0.1), (4, 0.1), (5, 0.0), (6, math.nan), (7, 0.5)], "a")
    assert ["circle" in part for part in chart.parts] == [False, False, True]
