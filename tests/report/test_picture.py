"""Figures as SVG files: well-formed, to scale, and the same in every place where a script does not run."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest

from enrnn.report import figure_svg
from enrnn.report._chart import Chart, Scale
from tests.report._example import NASTY, adding, eigenvalues, gradients, many, pseudospectrum, sizes

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


def places(path: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"M(-?[\d.]+),(-?[\d.]+)h0", path)]


def test_eigenvalues_stand_beside_the_unit_circle_on_its_scale() -> None:
    figure = eigenvalues()
    root = parsed(figure)
    drawn, circles = paths(root, "eigen"), list(root.iter(f"{SVG}circle"))
    full = [panel for panel in figure["panels"] if panel["points"]]
    assert len(drawn) == len(circles) == len(full) < len(figure["panels"])
    for panel, path, circle in zip(full, drawn, circles, strict=True):
        x0, y0, radius = (float(circle.attrib[name]) for name in ("cx", "cy", "r"))
        found = [((x - x0) / radius, (y0 - y) / radius) for x, y in places(path)]
        # All three are rounded to a tenth of a pixel.
        assert found == [pytest.approx(point, abs=0.3 / radius) for point in panel["points"]]


@pytest.mark.parametrize(("figure", "cells"), [(gradients(), [2500, 1275]), (pseudospectrum(), [961])])
def test_a_heat_map_has_every_number_once_and_nothing_where_there_is_none(figure: dict[str, Any], cells: list[int]) -> None:
    groups = [node for node in parsed(figure).iter(f"{SVG}g") if "shape-rendering" in node.attrib]
    assert len(groups) == len(cells)
    for group, wanted in zip(groups, cells, strict=True):
        covered: list[tuple[int, int]] = []
        for node in group:
            for x, y, count in re.findall(r"M(\d+),(\d+)h(\d+)v1", node.attrib["d"]):
                covered += [(int(y), int(x) + step) for step in range(int(count))]
        assert len(covered) == len(set(covered)) == wanted


def test_larger_is_lighter_in_a_heat_map() -> None:
    panel = {"title": "", "values": [[1e-3, 1e-2], [1e-1, 1.0]], "x": "", "y": "", "log": True}
    (group,) = [
        node
        for node in parsed({"name": "a", "kind": "heatmaps", "panels": [panel]}).iter(f"{SVG}g")
        if "shape-rendering" in node.attrib
    ]
    lightness = {node.attrib["d"][:4]: sum(bytes.fromhex(node.attrib["fill"][1:])) for node in group}
    values = [lightness[place] for place in ("M0,0", "M1,0", "M0,1", "M1,1")]
    assert values == sorted(values)
    assert len(set(values)) == 4


@pytest.mark.parametrize(
    ("figure", "words"),
    [
        (adding() | {"kind": "pie"}, "kind 'pie'"),
        (adding() | {"series": []}, "no point"),
        (eigenvalues() | {"panels": []}, "no point"),
        (gradients() | {"panels": [{"values": []}]}, "no point"),
    ],
)
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
    ("low", "high", "log"),
    [(0, 12_000, False), (1.42, 1.47, False), (3e-7, 0.2, True), (0.3, 0.9, True), (0.3, 9, True), (-1, 1, False)],
)
def test_ticks_are_round_inside_and_neither_too_few_nor_too_many(low: float, high: float, log: bool) -> None:
    ticks = Scale(low, high, 0, 1, log).ticks(6)
    assert 2 <= len(ticks) <= 8
    for value, label in ticks:
        assert low - 1e-9 <= value <= high * (1 + 1e-9)
        assert len(label) <= 6


def test_a_logarithmic_scale_of_hardly_a_decade_has_ticks_all_along() -> None:
    assert [label for _, label in Scale(0.3, 9, 0, 1, log=True).ticks(4)] == ["0.5", "1", "2", "5"]


def lines(path: str) -> list[list[tuple[float, float]]]:
    return [[(float(x), float(y)) for x, y in re.findall(r"(-?[\d.]+),(-?[\d.]+)", piece)] for piece in path.split("M")[1:]]


def test_what_is_out_of_the_frame_is_not_drawn_at_its_edge() -> None:
    """A curve leaves and comes back where it crosses the edge, and there is nothing between."""
    chart = Chart((0.0, 6.0), (0.0, 1.0))
    chart.curve([(0, 0.5), (1, 2.5), (2, 3.0), (3, 0.5), (4, -1.5), (5, -2.0), (6, 0.0)], "a")
    (part,) = chart.parts
    first, second, *rest = lines(str(re.findall(r' d="([^"]+)"', part)[0]))
    right = [(chart.across(x), chart.up(y)) for x, y in ((0, 0.5), (0.25, 1.0))]
    assert first == [pytest.approx(place, abs=0.051) for place in right]
    assert second[0] == pytest.approx((chart.across(2.8), chart.up(1.0)), abs=0.051)
    assert second[-1] == pytest.approx((chart.across(3.25), chart.up(0.0)), abs=0.051)
    assert rest == [], "it comes back at its last point, and one point is no line"


def test_a_point_and_a_band_out_of_the_frame_are_not_drawn() -> None:
    chart = Chart((0.0, 2.0), (0.0, 1.0))
    chart.curve([(1, 1.2)], "a")
    chart.band([(0, 1.5, 2.0), (1, 2.0, 3.0), (2, 1.5, 2.0)], "a")
    assert chart.parts == []
    chart.band([(0, 0.5, 1.5), (2, 0.5, 0.5)], "a")
    ((outline,),) = [lines(str(re.findall(r' d="([^"]+)"', part)[0])) for part in chart.parts]
    assert min(y for _, y in outline) == chart.up(1.0)
    assert (chart.across(1.0), chart.up(1.0)) in outline, "where the upper edge comes into the frame"


def test_the_name_of_a_line_across_stands_where_no_curve_runs() -> None:
    figure = adding()
    root = parsed(figure)
    bottom = max(float(node.attrib["y2"]) for node in root.iter(f"{SVG}line") if node.attrib["class"] == "grid")
    labels = {str(line["label"]) for line in figure["lines"]}
    named = [node for node in root.iter(f"{SVG}text") if node.text in labels]
    assert len(named) == len(labels) > 0
    assert all(float(node.attrib["y"]) > bottom for node in named)


def test_a_curve_breaks_where_there_is_no_number() -> None:
    chart = Chart((0, 10), (0.01, 1), y_log=True)
    chart.curve([(0, 0.1), (1, 0.2), (2, None), (3, 0.1), (4, 0.1), (5, 0.0), (6, math.nan), (7, 0.5)], "a")
    assert ["circle" in part for part in chart.parts] == [False, False, True]
