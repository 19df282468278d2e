"""The page as a file: it is one, nothing in it can break out of its place, and everything that was run or not run is in it."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from enrnn.report import write
from enrnn.report._embed import embedded
from enrnn.report._html import element
from tests.report._example import LONG, NASTY, example

VOID = {"meta", "br", "hr", "col"}


class Reader(HTMLParser):
    """Elements with their attributes, what they hold, and whether they are nested as they should be."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, str] = {}
        self.faults: list[str] = []
        self._open: list[tuple[str, str | None]] = []
        self.feed(text)
        self.close()
        self.faults += [f"{name} is not closed" for name, _ in self._open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append((tag, dict(attrs).get("id")))

    def handle_endtag(self, tag: str) -> None:
        name, _ = self._open.pop() if self._open else ("nothing", None)
        if name != tag:
            self.faults.append(f"</{tag}> closes {name}")

    def handle_data(self, data: str) -> None:
        for _, identity in self._open[-1:]:
            if identity:
                self.text[identity] = self.text.get(identity, "") + data

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(example(), tmp_path_factory.mktemp("report")).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def reader(page: str) -> Reader:
    return Reader(page)


def test_it_is_well_formed(reader: Reader) -> None:
    assert not reader.faults


def test_no_two_elements_share_an_id_and_every_link_leads_somewhere(reader: Reader) -> None:
    ids = [attributes["id"] for _, attributes in reader.elements if attributes.get("id")]
    assert len(ids) == len(set(ids))
    targets = {link["href"] for link in reader.named("a")}
    assert all(target and target.startswith("#") for target in targets)
    linked_runs = {target for target in targets if target and target.startswith("#run-")}
    assert {str(target)[1:] for target in targets - linked_runs} <= set(ids)


def test_it_loads_nothing(page: str, reader: Reader) -> None:
    loading = {"src", "srcset", "poster", "background", "data", "action", "formaction"}
    assert not [attributes for _, attributes in reader.elements if loading & set(attributes)]
    assert not reader.named("link")
    style = page[page.index("<style>") : page.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    addresses = set(re.findall(r"https?://[^\s\"'<)]+", page))
    assert addresses <= {"http://www.w3.org/2000/svg"}, "the name of SVG is no address that anything is loaded from"


def test_its_policy_lets_its_own_script_run_and_no_other(page: str, reader: Reader) -> None:
    policy = next(meta["content"] for meta in reader.named("meta") if meta.get("http-equiv") == "Content-Security-Policy")
    script = page[page.rindex("<script>") + len("<script>") : page.rindex("</script>")]
    assert policy is not None
    assert f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" in policy
    assert "default-src 'none'" in policy
    assert len(reader.named("script")) == 3


def test_text_from_a_run_stays_text(page: str, reader: Reader) -> None:
    assert not reader.named("img")
    assert not any("onerror" in attributes for _, attributes in reader.elements)
    assert "<script>window.pwned" not in page
    assert page.count("&lt;script&gt;window.pwned") >= 4


def test_the_results_come_back_from_the_page(reader: Reader) -> None:
    found = json.loads(reader.text["results"])
    given = example()
    assert found["claims"] == given["claims"]
    assert found["runs"] == given["runs"]
    assert found["tables"][4]["rows"][4]["cells"]["test"]["ours"]["mean"] is None
    for (x, y), (a, b) in zip(
        given["figures"][0]["series"][0]["points"], found["figures"][0]["series"][0]["points"], strict=True
    ):
        assert (x, y) == pytest.approx((a, b), rel=1e-6)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_json_cannot_say_is_null(value: float) -> None:
    assert json.loads(embedded({"value": [value, 1.5]})) == {"value": [None, 1.5]}


@pytest.mark.parametrize("text", ["</script>", "<!-- <script>", "]]>", "a\u2028b\u2029c", "&lt;", NASTY])
def test_no_string_ends_the_element_it_is_embedded_in(text: str) -> None:
    written = embedded({text: text})
    assert not set("<>&\u2028\u2029") & set(written)
    assert json.loads(written) == {text: text}


def test_an_element_escapes_text_and_attributes() -> None:
    made = element("p", "<b>", element("i", "&"), None, title='"><script>', hidden=True, lang=None)
    assert made == '<p title="&quot;&gt;&lt;script&gt;" hidden>&lt;b&gt;<i>&amp;</i></p>'


def test_failed_unfinished_and_missing_runs_are_in_sight(page: str) -> None:
    rows = re.findall(r"<tbody.*?</tbody>", page[page.index('id="item-table3"') : page.index('id="item-table0"')], re.DOTALL)
    rows = [text for text in rows if "open-row" in text]
    assert "1 failed" in rows[1]
    assert "1 unfinished" in rows[1]
    assert "not run" in rows[2]
    assert LONG in rows[4]
    listed = page[page.index('<section id="runs">') :]
    assert listed.index("✕ failed") < listed.index("… unfinished") < listed.index("<details>")
    assert listed.index("CUDA out of memory") < listed.index("<details>")


def test_groups_have_their_names_and_what_is_no_run_is_not_missing(page: str) -> None:
    groups = page[page.index('id="item-groups"') : page.index('id="item-cost"')]
    assert re.findall(r'class="group-name"><tr role="row"><th[^>]*>(\w+)', groups) == ["adding", "copying"]
    cost = page[page.index('id="item-cost"') : page.index('id="item-table2"')]
    assert "not run" not in cost
    assert "seed" not in cost
    assert "open-row" not in cost, "there is nothing behind it"
    assert "Parameters" not in cost


def test_where_each_setting_is_from_is_said(page: str) -> None:
    assert all(f'class="source from-{source}"' in page for source in ("paper", "sheet", "chosen"))


@pytest.mark.parametrize(("quick", "badge"), [(True, "Quick version"), (False, "Full version")])
def test_the_badge_says_which_version_it_is(tmp_path: Path, quick: bool, badge: str) -> None:
    text = write(example() | {"quick": quick}, tmp_path).read_text(encoding="utf-8")
    assert [name for name in ("Quick version", "Full version") if name in text] == [badge]


BARE: dict[str, Any] = {
    "title": "t",
    "made": "",
    "environment": {},
    "quick": False,
    "tables": [],
    "figures": [],
    "claims": [],
    "runs": [],
}


@pytest.mark.parametrize("results", [BARE, {"title": "t"}])
def test_nothing_run_yet_is_a_page_too(tmp_path: Path, results: dict[str, Any]) -> None:
    text = write(results, tmp_path / "new" / "folder").read_text(encoding="utf-8")
    assert not Reader(text).faults
    assert "Nothing has been run yet." in text


def test_writing_again_replaces_the_page_and_leaves_nothing_else(tmp_path: Path) -> None:
    write(BARE, tmp_path)
    file = write(BARE | {"title": "another"}, tmp_path)
    assert "another" in file.read_text(encoding="utf-8")
    assert [path.name for path in tmp_path.iterdir()] == ["index.html"]


def test_script_and_style_are_small(page: str) -> None:
    script = page[page.rindex("<script>") : page.rindex("</script>")]
    style = page[page.index("<style>") : page.index("</style>")]
    assert len(script.encode()) < 40_000
    assert len(style.encode()) < 20_000


def test_making_a_page_needs_no_torch() -> None:
    code = "import sys, enrnn.report; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
