"""The page in a real browser: it draws, says nothing on the console, and its switches do what they say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from enrnn.report import write
from tests.report._browser import Browser, browser_path
from tests.report._example import example

pytestmark = pytest.mark.skipif(browser_path() is None, reason="needs Chromium or Chrome, and none is installed")

ADDING = "#item-figure-adding"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    path = browser_path()
    assert path is not None
    made = Browser(path, tmp_path_factory.mktemp("profile"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(example(), tmp_path_factory.mktemp("report"))


@pytest.fixture
def desk(browser: Browser, file: Path) -> Iterator[Browser]:
    browser.open(file)
    yield browser
    browser.js("localStorage.clear()")
    assert browser.problems == []


def pressed(browser: Browser, selector: str) -> bool:
    return bool(browser.js(f"document.querySelector({selector!r}).getAttribute('aria-pressed') === 'true'"))


def count(browser: Browser, selector: str) -> int:
    return int(browser.js(f"document.querySelectorAll({selector!r}).length"))


def shown(browser: Browser, selector: str) -> bool:
    return bool(browser.js(f"document.querySelector({selector!r}).checkVisibility()"))


def test_every_figure_is_drawn_and_nothing_else_is_loaded(desk: Browser, file: Path) -> None:
    assert count(desk, f"{ADDING} .curve") == 7, "six series, one of them in two pieces"
    assert count(desk, f"{ADDING} .band") == 3
    assert count(desk, f"{ADDING} .baseline") == count(desk, f"{ADDING} .legend .across") == 1
    assert count(desk, "#item-many .curve") == 20
    assert count(desk, "#item-figure-gradients image") == 2
    assert count(desk, "#item-spectrum .circle") == 3
    assert count(desk, "#item-spectrum .eigen") == 120
    assert count(desk, "#item-single .dot") == 1
    assert "has anything to show" in desk.js("document.querySelector('#item-nothing').textContent")
    assert "pie" in desk.js("document.querySelector('#item-odd .empty').textContent")
    assert {url for url in desk.requests if not url.startswith("data:")} == {file.as_uri()}
    assert desk.js("window.pwned") is None


def test_the_legend_switches_a_series_off_and_on(desk: Browser) -> None:
    button, line = f"{ADDING} .legend li:nth-child(2) button", f"{ADDING} [data-series='LSTM']"
    assert (pressed(desk, button), count(desk, line)) == (True, 1)
    desk.click(button)
    assert (pressed(desk, button), count(desk, line)) == (False, 0)
    desk.js(f"document.querySelector({button!r}).focus()")
    for kind in ("keyDown", "keyUp"):
        desk(
            "Input.dispatchKeyEvent",
            type=kind,
            key=" ",
            code="Space",
            windowsVirtualKeyCode=32,
            text=" " if kind == "keyDown" else "",
        )
    desk.settle()
    assert (pressed(desk, button), count(desk, line)) == (True, 1)


def ticks(browser: Browser) -> list[str]:
    return list(browser.js(f"[...document.querySelectorAll('{ADDING} svg text')].map((node) => node.textContent)"))


def test_the_logarithmic_scale_can_be_left(desk: Browser) -> None:
    assert "10⁻⁵" in ticks(desk)
    button = f"{ADDING} .tools button[aria-pressed]"
    desk.click(button)
    assert not pressed(desk, button)
    assert "10⁻⁵" not in ticks(desk)


def test_dragging_zooms_and_a_double_click_resets(desk: Browser) -> None:
    whole = ticks(desk)
    x, y = desk.middle(f"{ADDING} .area")
    desk.drag((x - 100, y), (x + 100, y + 3))
    assert ticks(desk) != whole
    assert shown(desk, f"{ADDING} .tools button")
    desk.click(f"{ADDING} .area", count=2)
    assert ticks(desk) == whole
    assert not shown(desk, f"{ADDING} .tools button")


def test_hovering_shows_the_values_at_the_crosshair(desk: Browser) -> None:
    x, y = desk.middle(f"{ADDING} .area")
    desk.mouse("mouseMoved", x, y)
    desk.settle()
    text = desk.js(f"document.querySelector('{ADDING} .tip').innerText")
    assert "iteration" in text
    assert "ENRNN" in text
    assert count(desk, f"{ADDING} .cross") == 2
    x, y = desk.middle("#item-figure-gradients .area")
    desk.mouse("mouseMoved", x - 60, y + 60)
    desk.settle()
    assert not shown(desk, f"{ADDING} .tip")
    expected = r"/^t \d+, τ \d+\s+[\d.]/.test(document.querySelector('#item-figure-gradients .tip').innerText)"
    assert desk.js(expected)


def test_arrow_keys_read_a_curve(desk: Browser) -> None:
    desk.js(f"document.querySelector('{ADDING} .plot > svg').focus()")
    seen = []
    for _ in range(3):
        desk("Input.dispatchKeyEvent", type="rawKeyDown", key="ArrowRight", code="ArrowRight", windowsVirtualKeyCode=39)
        seen.append(desk.js(f"document.querySelector('{ADDING} .tip div').textContent"))
    assert len(set(seen)) == 3


def test_dark_follows_the_system_until_the_reader_says_otherwise(desk: Browser, file: Path) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    line = f"getComputedStyle(document.querySelector('{ADDING} .curve')).stroke"
    light = desk.js(ground), desk.js(line)
    desk.click("#theme")
    dark = desk.js(ground), desk.js(line)
    assert pressed(desk, "#theme")
    assert dark[0] != light[0]
    assert dark[1] != light[1]
    desk.open(file)
    assert (desk.js(ground), desk.js(line)) == dark, "the choice is remembered"
    desk.js("localStorage.clear()")
    desk.open(file, dark=True)
    assert (desk.js(ground), desk.js(line)) == dark
    desk.click("#theme")
    assert (desk.js(ground), desk.js(line)) == light


def test_a_row_opens(desk: Browser) -> None:
    button, more = "#item-table3 .open-row", "#item-table3 .more"
    assert not shown(desk, more)
    desk.click(button)
    assert shown(desk, more)
    assert "optimizer.lr" in desk.js(f"document.querySelector({more!r}).innerText")


def test_claims_can_be_shown_by_verdict(desk: Browser) -> None:
    shown_ones = "[...document.querySelectorAll('.claims > li')].filter((node) => node.checkVisibility())"
    visible = f"{shown_ones}.map((node) => node.dataset.verdict)"
    desk.click(".tally:nth-child(2)")
    assert desk.js(visible) == ["not reproduced"]
    desk.click(".tally:nth-child(2)")
    assert len(desk.js(visible)) == 4


def test_a_link_to_a_folded_run_unfolds_it(desk: Browser) -> None:
    assert not shown(desk, "#run-aa07")
    desk.js("location.hash = '#run-aa07'")
    desk.settle()
    assert shown(desk, "#run-aa07")


@pytest.mark.parametrize("width", [390, 768, 1280])
def test_the_page_is_never_wider_than_the_screen(browser: Browser, file: Path, width: int) -> None:
    browser.open(file, width=width, height=844, touch=width < 1000)
    assert browser.js("document.documentElement.scrollWidth") <= width
    assert browser.problems == []


def test_a_finger_reads_values_and_zooms(browser: Browser, file: Path) -> None:
    browser.open(file, width=390, height=844, touch=True)
    x, y = browser.middle(f"{ADDING} .area")
    browser("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
    browser("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
    browser.settle()
    assert shown(browser, f"{ADDING} .tip")
    whole = ticks(browser)
    for shift in (0, 10, 30, 60, 80):
        browser(
            "Input.dispatchTouchEvent", type="touchMove" if shift else "touchStart", touchPoints=[{"x": x - 40 + shift, "y": y}]
        )
    browser("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
    browser.settle()
    assert ticks(browser) != whole
    assert browser.problems == []


def test_a_heat_map_with_places_of_its_own_is_read_in_them(desk: Browser) -> None:
    x, y = desk.middle("#item-plane .area")
    desk.mouse("mouseMoved", x, y)
    desk.settle()
    assert desk.js("document.querySelector('#item-plane .tip').innerText").split() == ["Re", "z", "0,", "Im", "z", "0", "0.5"]
