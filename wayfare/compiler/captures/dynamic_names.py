"""Attributes that code reaches by text: the name in `getattr(o, "k")`, the fields in `"{0.k}".format(o)`.

Where the text is written out in the code, it is as good as an attribute that is spelt out. Where it is computed, or a
function that takes such text is handed on (`functools.reduce(getattr, …)`), any attribute may be meant.
"""

from __future__ import annotations

import dis
import string
from itertools import pairwise
from typing import Any

# Built-in functions that reach attributes by a name that is only known when they run.
BY_NAME = frozenset({"getattr", "hasattr", "setattr", "delattr"})
# Methods of text that may reach attributes of what they are given.
FORMATTING = frozenset({"format", "format_map"})
# Attributes by which code gets at all the others, or writes past the usual way.
ALL = frozenset({"__setattr__", "__delattr__", "__dir__"})
# The same, past what objects do when they are asked for one.
PAST = frozenset({"__dict__", "__getattribute__", "__getstate__", "__reduce__", "__reduce_ex__"})
# Functions and classes that go over all attributes of what they are given, or take their names as text.
_ALL_OF = {
    "builtins": BY_NAME | {"dir"}, "operator": {"attrgetter", "methodcaller"}, "string": {"Formatter"},
    "dataclasses": {"asdict", "astuple", "fields", "replace"}, "json": {"dumps"},
}  # fmt: skip
_PAST_OF = {
    "builtins": {"vars"}, "copy": {"copy", "deepcopy"}, "pickle": {"dumps"}, "_pickle": {"dumps"},
}  # fmt: skip


def ways_of(value: Any) -> tuple[bool, bool]:
    """May something of a library reach any attribute of what it is given? And past what is noticed?"""
    name, module = getattr(value, "__name__", None), getattr(value, "__module__", None)
    past = name in PAST or name in _PAST_OF.get(str(module), ())
    return past or name in ALL or name in _ALL_OF.get(str(module), ()), past


def fields(text: str) -> set[str] | None:
    """The attributes that the fields of a text to be formatted name; None if it is no such text."""
    found: set[str] = set()
    try:
        for _, field, nested, _ in string.Formatter().parse(text):
            found.update((field or "").replace("[", ".").replace("]", "").split(".")[1:])
            found |= fields(nested) or set() if nested else set()
    except ValueError:
        return None
    return found


def arguments(steps: list[dis.Instruction], start: int) -> list[tuple[int, int]] | None:
    """Where the arguments of a call begin and end whose function was loaded before `start`; None where it is not called
    at once, or its arguments branch."""
    place = start + (start < len(steps) and steps[start].opname == "PUSH_NULL")
    depth, ends = 0, {0: place}
    while place < len(steps):
        step = steps[place]
        if step.is_jump_target or "JUMP" in step.opname or step.opname.startswith(("FOR_", "SEND", "RETURN", "STORE")):
            return None
        if step.opname in ("PRECALL", "CALL") and step.arg == depth and steps[place - 1].opname != "PRECALL":
            cuts = [ends.get(number) for number in range(depth + 1)]
            return None if None in cuts else list(pairwise(cuts))  # type: ignore[arg-type]
        depth += dis.stack_effect(step.opcode, step.arg, jump=False)
        if depth < 0:
            return None
        ends = {d: end for d, end in ends.items() if d < depth}
        place += 1
        ends[depth] = place
    return None


def written_out(steps: list[dis.Instruction], where: tuple[int, int]) -> str | None:
    """The text that an argument is, if it is a constant."""
    begin, end = where
    step = steps[begin] if end == begin + 1 else None
    return step.argval if step is not None and step.opname == "LOAD_CONST" and isinstance(step.argval, str) else None
