"""`import enrnn` is instant: torch and everything else comes when a name is first used."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import enrnn


def in_a_new_interpreter(code: str) -> dict[str, object]:
    """What `code` leaves in its variable `seen`."""
    script = f"import json, sys\n{code}\nprint(json.dumps(seen))"
    run = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    seen: dict[str, object] = json.loads(run.stdout.splitlines()[-1])
    return seen


def test_importing_the_package_imports_neither_torch_nor_any_module_of_its_own() -> None:
    seen = in_a_new_interpreter(
        "before = set(sys.modules)\n"
        "import enrnn\n"
        "enrnn.__version__, dir(enrnn), enrnn.__all__\n"
        "new = set(sys.modules) - before\n"
        "third_party = {name.partition('.')[0] for name in new} - sys.stdlib_module_names\n"
        "seen = {'third party': sorted(third_party), 'own': [name for name in new if name.startswith('enrnn')]}"
    )
    assert seen == {"third party": ["enrnn"], "own": ["enrnn"]}


def test_a_name_brings_torch_when_it_is_used_and_is_then_an_ordinary_attribute() -> None:
    seen = in_a_new_interpreter(
        "import enrnn\n"
        "before = 'torch' in sys.modules, 'ENRNN' in vars(enrnn)\n"
        "enrnn.ENRNN\n"
        "seen = {'before': before, 'after': ('torch' in sys.modules, 'ENRNN' in vars(enrnn))}"
    )
    assert seen == {"before": [False, False], "after": [True, True]}


def test_every_public_name_is_there_and_listed() -> None:
    assert set(enrnn.__all__) <= set(dir(enrnn))
    for name in enrnn.__all__:
        assert getattr(enrnn, name) is not None


def test_every_public_name_can_be_imported_from_the_package() -> None:
    seen = in_a_new_interpreter("before = set(globals())\nfrom enrnn import *\nseen = sorted(set(globals()) - before)")
    assert set(enrnn.__all__) - {"__version__"} <= set(seen)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'enrnn' has no attribute 'LSTM'"):
        _ = enrnn.LSTM
    with pytest.raises(ImportError, match="LSTM"):
        from enrnn import LSTM  # noqa: F401
