"""The second tier's records: complete, honest, and the only source of the numbers that are printed from them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tools import verify

CHECKS = pytest.mark.parametrize("name", [check.name for check in verify.CHECKS])


@pytest.fixture(scope="module")
def records() -> dict[str, verify.Record]:
    return verify.read_records()


@CHECKS
def test_every_check_has_a_record_that_passed_or_says_why_it_was_skipped(name: str, records: dict[str, Any]) -> None:
    assert name in records, f"no record of {name}: run `make verify`"
    record = records[name]
    assert record["name"] == name
    if record["outcome"] == "skipped":
        assert record["reason"]
    else:
        assert record["outcome"] == "passed", record.get("reason")
        assert record["counts"]["passed"] > 0
        assert record["counts"]["failed"] == 0


def test_every_record_belongs_to_a_check() -> None:
    recorded = {file.stem for file in verify.RECORDS.glob("*.json")}
    assert recorded <= {check.name for check in verify.CHECKS}


def test_no_record_names_a_place_on_the_machine_that_made_it() -> None:
    places = [str(verify.ROOT), str(Path.home())]
    for file in verify.RECORDS.glob("*.json"):
        text = file.read_text(encoding="utf-8")
        assert not [place for place in places if place != "/" and place in text], file.name


def test_the_page_is_what_the_records_give(records: dict[str, verify.Record]) -> None:
    assert verify.PAGE.exists(), "no page yet: run `make verify`"
    assert verify.PAGE.read_text(encoding="utf-8") == verify.page(records), "run `python tools/verify.py --pages`"


def test_numbers_in_the_readme_are_those_of_the_records(records: dict[str, verify.Record]) -> None:
    text = verify.README.read_text(encoding="utf-8")
    quotes = list(verify.QUOTE.finditer(text))
    assert len(quotes) == text.count("<!-- verification:"), "a quote in README.md is not closed"
    for quote in quotes:
        recorded = verify.number(verify.quoted_value(quote["path"], records))
        assert quote["value"] == recorded, f"README.md quotes {quote['path']}: run `python tools/verify.py --pages`"


REPORT = {"counts": {"passed": 2, "failed": 0, "skipped": {}}, "measurements": {}, "totals": {}}
ALL_SKIPPED = REPORT | {"counts": {"passed": 0, "failed": 0, "skipped": {"no CUDA device": 2}}}


@pytest.mark.parametrize(
    ("status", "report", "outcome"),
    [
        pytest.param(0, REPORT, "passed", id="tests-passed"),
        pytest.param(0, ALL_SKIPPED, "skipped", id="all-skipped"),
        pytest.param(1, REPORT, "failed", id="a-test-failed"),
        pytest.param(5, REPORT, "failed", id="no-test-found"),
        pytest.param(-11, None, "failed", id="interpreter-crashed"),
    ],
)
def test_nothing_passes_that_did_not_run(status: int, report: dict[str, Any] | None, outcome: str) -> None:
    judged = verify.judge(status, report)
    assert judged["outcome"] == outcome
    assert outcome == "passed" or judged["reason"]


def test_a_check_that_cannot_run_here_is_skipped_and_erases_no_earlier_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "RECORDS", tmp_path)
    check = verify.Check("gpu", "", ("tests",), verify.no_cuda)
    skipped = verify.run(check, {"gpu": None}, {"hash": None, "dirty": None})
    assert (skipped["outcome"], skipped["reason"]) == ("skipped", "no CUDA device")
    assert "counts" not in skipped

    assert verify.keep(skipped)
    assert verify.keep(skipped | {"outcome": "failed"})
    assert not verify.keep(skipped)
    assert json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))["outcome"] == "failed"


@pytest.mark.parametrize(
    ("value", "printed"),
    [
        (1234567, "1,234,567"),
        (1.2345e-9, "1.23e-9"),
        (4.0e12, "4e12"),
        (0.0, "0"),
        (12.34, "12.3"),
        (True, "yes"),
        ("float64", "float64"),
    ],
)
def test_numbers_are_printed_plainly(value: Any, printed: str) -> None:
    assert verify.number(value) == printed


def test_a_quote_follows_its_record_and_an_unknown_quote_is_an_error() -> None:
    measured = {"cases": 5000, "worst_error": 1e-9}
    records = {"laws": {"measurements": {"tests/test_a.py::test_law": measured}, "totals": {"cases": 7000}}}
    quote = "<!-- verification: laws/{} -->{}<!-- /verification -->".format
    for path, value in {
        "test_law/cases": "5,000",
        "tests/test_a.py::test_law/worst_error": "1e-9",
        "total/cases": "7,000",
    }.items():
        assert verify.with_current_quotes(quote(path, "?"), records) == quote(path, value)
    for path in ("laws/test_other/cases", "laws/test_law/speed", "nothing/test_law/cases"):
        with pytest.raises(LookupError, match=path):
            verify.quoted_value(path, records)


MEASURING = """
import pytest
from hypothesis import given, strategies

@given(strategies.integers(0, 9))
def test_many_cases(record, n):
    record(cases=1, worst_error=n / 10, least_margin=n)

def test_two_cases(record):
    record(cases=2, worst_error=3.5, precision="float64")
    with pytest.raises(ValueError, match="already recorded"):
        record(precision="float32")
    with pytest.raises(ValueError, match="must be finite"):
        record(worst_error=float("nan"))

def test_that_fails_in_its_own_way(record):
    record(cases=4)
    assert False

@pytest.mark.skip(reason="not today")
def test_that_does_not_run(record):
    record(cases=1000)
"""


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one-process", "two-workers"])
def test_what_tests_record_is_collected(workers: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "test_measuring.py").write_text(MEASURING, encoding="utf-8")
    (tmp_path / "pytest.ini").touch()  # keeps pytest from looking further up for its settings
    file = tmp_path / "report.json"
    plugin = ("-p", "tests._record", "--record-file", str(file))
    environment = os.environ | {"PYTHONPATH": str(verify.ROOT)}
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugin, *workers],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1, run.stdout + run.stderr
    assert "test_measuring.py::test_that_fails_in_its_own_way failed in its call:" in run.stdout
    report = json.loads(file.read_text(encoding="utf-8"))

    assert report["counts"] == {"passed": 2, "failed": 1, "skipped": {"not today": 1}}
    tests = {name.partition("::")[2]: measured for name, measured in report["measurements"].items()}
    assert tests["test_two_cases"] == {"cases": 2, "worst_error": 3.5, "precision": "float64"}
    assert tests["test_that_fails_in_its_own_way"] == {"cases": 4}
    # Ten integers: hypothesis finds all of them, and may try some twice.
    many = tests["test_many_cases"]
    assert many["cases"] >= 10
    assert (many["worst_error"], many["least_margin"]) == (0.9, 0)
    assert report["totals"] == {"cases": many["cases"] + 6, "least_margin": 0, "worst_error": 3.5}
