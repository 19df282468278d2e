"""HTML in which text is always escaped: only what `element` has made goes in as it is."""

import html
import re
from collections.abc import Iterable

VOID = {"br", "col", "hr", "meta"}


class Html(str):
    """Markup, not text."""

    __slots__ = ()


def element(name: str, /, *children: object, **attributes: object) -> Html:
    """`<name …>children</name>`. An attribute that is None or False is left out; `class_` is `class`, and `_` is `-`."""
    pairs = (
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{html.escape(str(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    opening = f"<{name}{''.join(pairs)}>"
    return Html(opening if name in VOID else f"{opening}{join(children)}</{name}>")


def join(children: Iterable[object]) -> Html:
    """One after the other; None is nothing."""
    return Html("".join(child if isinstance(child, Html) else html.escape(str(child)) for child in children if child is not None))


def anchor(kind: str, name: object) -> str:
    """An id for `name`, fit for a link: letters, figures and hyphens."""
    return f"{kind}-{re.sub(r'[^A-Za-z0-9]+', '-', str(name)).strip('-').lower()}"
