"""What a user installs: the whole package, its version, and nothing behind its back."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import enrnn

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "enrnn"
PACKAGE = Path(enrnn.__file__ or "").resolve().parent

on_the_wheel = pytest.mark.skipif(
    not os.environ.get("ENRNN_EXPECT_WHEEL"), reason="says something of the wheel only: runs with `make test`"
)


def files_of(folder: Path) -> set[str]:
    files = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(folder).as_posix() for path in files}


@on_the_wheel
def test_the_tests_import_the_wheel_and_not_the_sources() -> None:
    assert PACKAGE == ROOT / "build" / "wheel" / "enrnn"


@on_the_wheel
def test_the_wheel_holds_every_file_of_the_package_and_no_other() -> None:
    assert files_of(PACKAGE) == files_of(SOURCE)


def test_type_checkers_see_that_the_package_is_typed() -> None:
    assert (PACKAGE / "py.typed").is_file()


def project_version() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["version"])


def test_the_installed_version_is_the_projects() -> None:
    assert importlib.metadata.version("enrnn") == project_version()


def test_the_newest_heading_of_the_changelog_names_the_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## (.+)$", changelog, re.MULTILINE)
    assert newest is not None
    assert re.findall(r"\d+\.\d+\.\d+", newest[1]) == [project_version()]


def test_the_citation_names_the_version() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.+)$", citation, re.MULTILINE) == [project_version()]


def test_torch_is_all_that_the_package_requires() -> None:
    required = importlib.metadata.requires("enrnn") or []
    assert [re.split(r"[^\w-]", line)[0] for line in required if "extra ==" not in line] == ["torch"]


IMPORTED_BESIDE_TORCH = """
import json, sys
import torch
before = set(sys.modules)
import enrnn
enrnn.ENRNN
names = {name.partition(".")[0] for name in set(sys.modules) - before}
print(json.dumps(sorted(names - sys.stdlib_module_names - {"enrnn"})))
"""


def test_importing_a_layer_imports_torch_and_the_standard_library_alone() -> None:
    run = subprocess.run([sys.executable, "-c", IMPORTED_BESIDE_TORCH], check=True, capture_output=True, text=True)
    beside = set(json.loads(run.stdout.splitlines()[-1]))
    # What no distribution owns is the interpreter's (_sysconfigdata_…), although its list of names leaves it out.
    third_party = beside & set(importlib.metadata.packages_distributions())
    # torch loads some of its own requirements only when a part of it is first used.
    assert third_party <= modules_of(requirements_of("torch"))


def requirements_of(distribution: str) -> set[str]:
    """The distribution and all that it requires, directly or not, so far as it is installed."""
    found: set[str] = set()
    to_visit = [distribution]
    while to_visit:
        name = normalized(to_visit.pop())
        try:
            required = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        if name not in found:
            found.add(name)
            to_visit += [re.split(r"[^\w.-]", line)[0] for line in required if "extra ==" not in line]
    return found


def modules_of(distributions: set[str]) -> set[str]:
    owners = importlib.metadata.packages_distributions()
    return {module for module, names in owners.items() if any(normalized(name) in distributions for name in names)}


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
