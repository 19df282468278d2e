"""Colours as measurements: contrast as WCAG defines it, distance in OKLab, also as the three kinds of dichromats see it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from enrnn.report._colours import SERIES, THEME, colour_map, ordered
from enrnn.report._series import styles

# Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB.
EYES = {
    "all cones": np.eye(3),
    "no red": np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]),
    "no green": np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]),
    "no blue": np.array([[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]),
}
TO_CONES = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
TO_LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def linear(colour: str) -> np.ndarray:
    channels = np.array([int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def oklab(rgb: np.ndarray) -> np.ndarray:
    return TO_LAB @ np.cbrt(TO_CONES @ rgb)


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted(float(np.array([0.2126, 0.7152, 0.0722]) @ linear(colour)) for colour in (one, other))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("theme", [0, 1])
@pytest.mark.parametrize("name", ["ink", "soft", "accent", "good", "bad", "open"])
def test_text_can_be_read_on_every_surface(name: str, theme: int) -> None:
    assert all(contrast(THEME[name][theme], THEME[surface][theme]) >= 4.5 for surface in ("page", "card", "sunk"))


@pytest.mark.parametrize("theme", [0, 1])
def test_lines_stand_out_from_the_page(theme: int) -> None:
    colours = [pair[theme] for pair in (*SERIES, *ordered(9))]
    assert min(contrast(colour, THEME["card"][theme]) for colour in colours) >= 3


@pytest.mark.parametrize("theme", [0, 1])
@pytest.mark.parametrize("eyes", EYES)
def test_no_two_series_look_alike(eyes: str, theme: int) -> None:
    seen = [oklab(np.clip(EYES[eyes] @ linear(pair[theme]), 0, 1)) for pair in SERIES]
    apart = min(float(np.linalg.norm(one - other)) for one, other in itertools.combinations(seen, 2))
    assert apart >= 0.08


def test_the_colour_map_rises_evenly_in_lightness() -> None:
    lightness = np.array([oklab(linear(colour))[0] for colour in colour_map()])
    steps = np.diff(lightness)
    assert steps.min() > 0
    assert np.ptp(steps) < 0.5 * steps.mean()


def test_the_colour_map_has_no_kink() -> None:
    path = np.array([oklab(linear(colour)) for colour in colour_map()])
    steps = np.linalg.norm(np.diff(path, axis=0), axis=1)
    assert steps.max() < 2.2 * steps.min()


def series(*labels: str) -> dict[str, list[dict[str, str]]]:
    return {"series": [{"label": label} for label in labels]}


def test_a_network_keeps_its_colour_from_figure_to_figure() -> None:
    first, second = styles([series("ENRNN", "LSTM", "scoRNN"), series("scoRNN", "oRNN", "ENRNN")])
    assert second[2] == first[0]
    assert second[0] == first[2]


def test_twenty_series_have_twenty_styles() -> None:
    made = styles([series("a", "b"), series(*"tsrqponmlkjihgfedcba")])[1]
    assert len({tuple(style.values()) for style in made}) == 20


def test_numbered_series_are_coloured_in_their_order() -> None:
    made = styles([series(*(f"step {size:,}" for size in (0, 160, 1600, 12000)))])[0]
    for theme in ("light", "dark"):
        lightness = [oklab(linear(style[theme]))[0] for style in made]
        assert lightness == sorted(lightness)
    assert {style["dash"] for style in made} == {""}


def test_networks_with_their_size_are_not_an_order() -> None:
    made = styles([series("LSTM 68", "LSTM 192", "ENRNN 192")])[0]
    assert [style["light"] for style in made] == [pair[0] for pair in SERIES[:3]]
