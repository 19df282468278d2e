"""What to say to arguments that a command does not take."""

import difflib
from collections.abc import Sequence

SETTING = "--set"


def told(unknown: Sequence[str], options: Sequence[str]) -> str:
    """Them, and what may have been meant by the first: one of the command's options, or a setting where it takes these."""
    name, equals, value = unknown[0].partition("=")
    text = f"unrecognized arguments: {' '.join(unknown)}"
    if not name.startswith("--"):
        return text
    if not equals and len(unknown) > 1 and not unknown[1].startswith("--"):
        value = unknown[1]
    found = _settings(name.removeprefix("--").replace("-", "_"), value) if SETTING in options else []
    # Without the dashes, which all have in common.
    bare = {option.removeprefix("--"): option for option in options if option.startswith("--")}
    cutoff = 0.85 if found else 0.6
    found = [bare[near] for near in difflib.get_close_matches(name.removeprefix("--"), bare, n=2, cutoff=cutoff)] + found
    return f"{text}; did you mean {' or '.join(found)}?" if found else text


def _settings(name: str, value: str) -> list[str]:
    """Settings of this name or path, as they are given."""
    from ..training import Config

    sections = Config().as_dict()
    paths = {f"{section}.{key}" for section in ("task", "model", "optimizer", "run") for key in sections[section]}
    paths = (paths | {"run.tensorboard"}) - {"task.name"}
    same = sorted(path for path in paths if name in (path, path.partition(".")[2]))
    return [f"{SETTING} {path}={value or ('true' if path == 'run.tensorboard' else 'VALUE')}" for path in same]
