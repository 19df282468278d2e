"""The recipes as text. Without torch, so that they are there at once."""

import textwrap

from ..recipes import RECIPES, Recipe, known, sources

WIDTH = 100


def table() -> str:
    """Every recipe in a line: its name, its network, its free parameters, those that the paper states, and what it is."""
    blocks: dict[str, list[str]] = {}
    for name, recipe in RECIPES.items():
        blocks.setdefault(name.partition("/")[0], []).append(_line(name, recipe))
    head = f"{'recipe':<28}{'network':<20}{'parameters':>10}{'paper':>9}   what it is"
    tables = "\n\n".join("\n".join(lines) for lines in blocks.values())
    return f"{head}\n\n{tables}\n\nenrnn recipes NAME says what is in one, and where each value comes from."


def description(name: str) -> str:
    """One recipe: every setting that it names, and its source."""
    recipe, of = known(name), sources(name)
    values = recipe.values
    count = f"{recipe.parameters:,} parameters" + (f" (the paper: {recipe.published})" if recipe.published else "")
    lines = [f"{name}: {recipe.title}", f"{recipe.where}; {count}", ""]
    lines += [f"  {path:<{max(map(len, values))}}  {_shown(values[path]):<20}  {of[path]}" for path in sorted(values)]
    if recipe.note:
        lines += ["", textwrap.fill(recipe.note, WIDTH)]
    return "\n".join([*lines, "", "paper: the ENRNN paper. sheet: published code, or the network's own paper. chosen: ours."])


def _line(name: str, recipe: Recipe) -> str:
    what = f"{recipe.title}: {recipe.where}"
    return f"{name:<28}{recipe.network:<20}{recipe.parameters:>10,}{recipe.published:>9}   {what}"


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
