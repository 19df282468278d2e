"""What to say to a word that nobody knows. It imports no torch: the command line asks before there is need of any."""

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str], otherwise: str | None = None) -> str:
    """What to write instead: the nearest of the known words; if none is near, `otherwise`, or all of them."""
    known = list(known)
    close = difflib.get_close_matches(word.lower(), known, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(close)}?" if close else otherwise or f"there are: {', '.join(known)}"
