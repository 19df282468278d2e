"""What `--grid` means, and the points that come of it."""

from __future__ import annotations

import math

import pytest

from enrnn.recipes import RECIPES, recipe
from enrnn.sweep._grid import Between, axis, configured, drawn, grid, paper_axes
from tests.sweep._small import BASE


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("optimizer.lr=1e-3,1e-4", ["1e-3", "1e-4"]),
        ("model.short_size=0.1:0.6:0.1", ["0.1", "0.2", "0.3", "0.4", "0.5", "0.6"]),
        ("task.length=100:1000:300", ["100", "400", "700", "1000"]),
        ("optimizer.lr=1e-5:1e-3:*10", ["1e-05", "0.0001", "0.001"]),
        ("model.forget_bias=-4:4:2", ["-4", "-2", "0", "2", "4"]),
        ("model.negative_ones=0%:100%:50%", ["0%", "50%", "100%"]),
        ("model.short_size=0,0.1:0.2:0.1,0.9", ["0", "0.1", "0.2", "0.9"]),
        ("optimizer.lr=1e-3,1e-3", ["1e-3"]),
        ("model.short_size=0:1:0.5", ["0.0", "0.5", "1.0"]),
        ("task.length=1e2:3e2:1e2", ["100", "200", "300"]),
    ],
)
def test_values(text: str, values: list[str]) -> None:
    assert axis(text) == (text.partition("=")[0], values)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("optimizer.lr", "--grid takes KEY=VALUE"),
        ("=1", "--grid takes KEY=VALUE"),
        ("optimizer.lr=", "--grid takes KEY=VALUE"),
        ("optimizer.lr=1,,2", "--grid takes KEY=VALUE"),
        ("optimizer.lr=a:b:c", "'a' is not a number"),
        ("optimizer.lr=1:nan:1", "'nan' is not finite"),
        ("optimizer.lr=1:0:0.1", "does not lead from its first value up to its last"),
        ("optimizer.lr=0:1:0", "does not lead"),
        ("optimizer.lr=0:1:*2", "does not lead"),
        ("optimizer.lr=1:2:*1", "does not lead"),
        ("optimizer.lr=0:1:log", "needs positive ends"),
        ("optimizer.lr=1,2:3", "a range among values is FIRST:LAST:STEP"),
    ],
)
def test_a_mistake_is_named(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=r"--grid") as caught:
        axis(text)
    assert message in str(caught.value)


def test_a_grid_is_every_combination_once() -> None:
    points = grid(dict([axis("optimizer.lr=1e-3,1e-4,1e-5"), axis("model.short_size=0.1:0.6:0.1")]))
    assert len(points) == len({tuple(point.items()) for point in points}) == 18
    assert points[0] == {"optimizer.lr": "1e-3", "model.short_size": "0.1"}


def test_a_grid_needs_values_and_an_end() -> None:
    with pytest.raises(ValueError, match="FIRST:LAST is for --random"):
        grid(dict([axis("optimizer.lr=1e-3:1e-1")]))
    with pytest.raises(ValueError, match="use --random N"):
        grid(dict([axis("optimizer.lr=0:1:0.001"), axis("model.short_size=0:1:0.001")]))


def test_random_points_stay_when_more_are_drawn_and_when_an_axis_is_added() -> None:
    axes = dict([axis("optimizer.lr=1e-5:1e-1:log"), axis("model.short_size=0.1,0.2,0.3"), axis("task.length=20:30")])
    few, many = drawn(axes, 5, seed=1), drawn(axes, 50, seed=1)
    assert many[:5] == few
    assert drawn(axes, 5, seed=2) != few
    wider = drawn(axes | dict([axis("optimizer.name=adam,adagrad")]), 5, seed=1)
    assert [{key: point[key] for key in axes} for point in wider] == few
    rates = [float(point["optimizer.lr"]) for point in many]
    assert all(1e-5 <= rate <= 1e-1 for rate in rates)
    assert 12 <= sum(rate < 1e-3 for rate in rates) <= 38  # the middle of a logarithmic range
    lengths = {int(point["task.length"]) for point in drawn(axes, 300, seed=0)}
    assert lengths == set(range(20, 31))


def test_no_more_random_points_than_there_are() -> None:
    assert len(drawn(dict([axis("model.short_size=0.1,0.2,0.3")]), 10, seed=0)) == 3


def test_uniform_and_logarithmic_draws_meet_their_ends() -> None:
    assert Between(1e-4, 1e-1, log=True, whole=False).draw(0.0) == "0.0001"
    assert math.isclose(float(Between(1e-4, 1e-2, log=True, whole=False).draw(0.5)), 1e-3)
    assert Between(3, 5, log=False, whole=True).draw(math.nextafter(1, 0)) == "5"


@pytest.mark.parametrize(
    ("name", "count", "best"),
    [
        ("adding/enrnn", 3 * 3 * 6 * 10, {"model.short_size": "0.4", "model.negative_ones": "30%"}),
        ("adding/scornn", 3 * 3 * 10, {"model.negative_ones": "70%"}),
        ("adding/lstm", 3 * 3 * 9 * 10, {"model.forget_bias": "0"}),
    ],
)
def test_the_papers_grid_holds_what_the_paper_came_to(name: str, count: int, best: dict[str, str]) -> None:
    base = recipe(name)
    points = grid(paper_axes(base))
    assert len(points) == count
    assert any(best.items() <= point.items() for point in points)
    found = configured(base, best, seed=0).model
    for key in ("long_size", "negative_ones", "forget_bias"):
        assert getattr(found, key) == getattr(base.model, key)


@pytest.mark.parametrize("name", RECIPES)
def test_the_papers_grid_is_sound_around_every_recipe(name: str) -> None:
    base = recipe(name)
    points = grid(paper_axes(base))
    points = points[:: max(1, len(points) // 9)]
    assert len({configured(base, point, seed=0).id for point in points}) == len(points)


@pytest.mark.parametrize(("name", "share"), [("copying/enrnn", 30), ("speech/enrnn", 100), ("characters/enrnn", 60)])
def test_the_papers_negative_ones_are_tenths_of_the_long_state(name: str, share: int) -> None:
    assert configured(recipe(name), {"model.negative_ones": f"{share}%"}, 0).model == recipe(name).model


def test_a_share_of_the_long_state_follows_the_points_own_sizes() -> None:
    point = {"model.negative_ones": "50%", "model.short_size": "0.25", "model.hidden_size": "40"}
    assert configured(BASE, point, 0).model.negative_ones == 15


def test_a_fraction_that_is_drawn_stays_a_fraction() -> None:
    """1 would be one unit, and 1.0 is all of them."""
    assert Between(0.9, 1.0, log=False, whole=False).draw(0.9999) == "1.0"
