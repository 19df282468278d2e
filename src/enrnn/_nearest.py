"""What to say to a word that nobody knows. It imports no torch: the command line asks before there is need of any."""

import difflib
from collections.abc import Iterable

MOST = 5
"""Names in a line."""


def nearest(word: str, known: Iterable[str], otherwise: str | None = None) -> str:
    """What to write instead: the nearest of the known words; if none is near, `otherwise`, or all of them."""
    known = list(known)
    close = difflib.get_close_matches(word.lower(), known, n=3, cutoff=0.5)
    return _meant(close) if close else otherwise or f"there are: {', '.join(known)}"


def nearest_setting(path: str, known: Iterable[str]) -> str:
    """The same for a setting: those of its section that are called like it; without a section that is known, those of any."""
    known = list(known)
    section, _, name = path.rpartition(".")
    own = [other for other in known if other.startswith(f"{section}.")]
    for names in ([name], _alike(name, own or known)):
        if found := [other for other in own or known if _name(other) in names]:
            return _meant(found[:3])
    sections = dict.fromkeys(f"{other.partition('.')[0]}.…" for other in known)
    return f"there are: {', '.join(own)}" if own else f"settings are called {', '.join(sections)}"


def shortly(names: Iterable[str]) -> str:
    """The first few, and how many more there are."""
    names = list(names)
    rest = len(names) - MOST
    return ", ".join(names[:MOST]) + (f" and {rest} more" if rest > 0 else "")


def _alike(name: str, paths: Iterable[str]) -> list[str]:
    return difflib.get_close_matches(name.lower(), {_name(path) for path in paths}, n=3, cutoff=0.6)


def _name(path: str) -> str:
    return path.rpartition(".")[2]


def _meant(names: Iterable[str]) -> str:
    return f"did you mean {' or '.join(names)}?"
