"""From names and values, as JSON or a command line has them, to frozen dataclasses; and every mistake on the way by its name.

A setting's type is what its annotation says: `bool`, `int`, `float`, `str`, a list or a dict of these as JSON has them, or a
union of these and None. An int passes for a float and becomes one, so that 1 and 1.0 are the same configuration. Ranges and
choices are each dataclass's own matter.
"""

import dataclasses
import json
import math
import sys
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from .._nearest import nearest

Settings = TypeVar("Settings")

WORDS: dict[str, bool | None] = {"none": None, "null": None, "true": True, "false": False}


def settings_from(kind: type[Settings], values: Mapping[str, object], where: str) -> Settings:
    """The dataclass `kind` with these values; what is not named keeps its default. Any mistake is one `ValueError`."""
    fields = field_types(kind)
    for name in values:
        if name not in fields:
            raise ValueError(f"unknown setting {where}.{name}; {_nearest_path(name, where, fields)}")
    converted = {name: checked(f"{where}.{name}", value, fields[name]) for name, value in values.items()}
    try:
        return kind(**converted)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{where}: {error}") from None


def field_types(kind: type[object]) -> dict[str, tuple[type[Any], ...]]:
    """The types that each field of a dataclass allows."""
    hints = typing.get_type_hints(kind)
    return {field.name: members(hints[field.name]) for field in dataclasses.fields(kind)}  # type: ignore[arg-type]


def checked(path: str, value: object, allowed: tuple[type[Any], ...]) -> object:
    """`value`, if it is of a type that is allowed."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{path} must be finite, got: {value}")
    if isinstance(value, float) and 0 < abs(value) < sys.float_info.min:  # training takes it for zero
        raise ValueError(f"{path} must be zero, or at least {sys.float_info.min} in size, got: {value}")
    if type(value) in allowed:
        return value
    if type(value) is int and float in allowed:
        return float(value)
    raise ValueError(f"{path} should be {_described(allowed)}, got: {value!r}")


def parsed(path: str, text: str, allowed: tuple[type[Any], ...]) -> object:
    """The value that `text` stands for, as a command line has it."""
    word = text.strip().lower()
    if word in WORDS and type(WORDS[word]) in allowed:
        return WORDS[word]
    for kind in (int, float):
        if kind in allowed:
            try:
                return kind(text.replace("_", "") if kind is int else text)
            except ValueError:
                continue
    if str in allowed:
        return text
    if list in allowed or dict in allowed:
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        if type(value) in allowed:
            return value
    raise ValueError(f"{path} should be {_described(allowed)}, got: {text!r}")


def members(annotation: Any) -> tuple[type[Any], ...]:
    """The types that an annotation allows; of `list[int]`, `list`."""
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        return tuple(kind for member in typing.get_args(annotation) for kind in members(member))
    return (typing.get_origin(annotation) or annotation,)


def _described(allowed: tuple[type[Any], ...]) -> str:
    names = {bool: "true or false", int: "an integer", float: "a number", str: "a text", type(None): "none"}
    names |= {list: "a list in JSON", dict: "an object in JSON"}
    return " or ".join(names[kind] for kind in allowed)


def _nearest_path(name: str, where: str, fields: Iterable[str]) -> str:
    return nearest(f"{where}.{name}", [f"{where}.{field}" for field in fields])
