"""Attributes that code reads by a string: `getattr(o, "k")`, `"{0.k}".format(o)`.

A constant string counts like an attribute in the code. If the string is computed, or a function that takes one is
passed on (`functools.reduce(getattr, …)`), any attribute may be read.
"""

from __future__ import annotations

import dis
import string
from itertools import pairwise
from typing import Any

# Built-in functions that access an attribute by name.
BY_NAME = frozenset({"getattr", "hasattr", "setattr", "delattr"})
# Methods of strings that may read attributes of their arguments.
FORMATTING = frozenset({"format", "format_map"})
# Methods that access any attribute.
ALL = frozenset({"__setattr__", "__delattr__", "__dir__"})
# The same, without calling `__getattribute__`.
PAST = frozenset({"__dict__", "__getattribute__", "__getstate__", "__reduce__", "__reduce_ex__"})
# Functions and classes that read all attributes of their arguments, or take attribute names as strings.
_ALL_OF = {
    "builtins": BY_NAME | {"dir"}, "operator": {"attrgetter", "methodcaller"}, "string": {"Formatter"},
    "dataclasses": {"asdict", "astuple", "fields", "replace"}, "json": {"dumps"},
}  # fmt: skip
_PAST_OF = {
    "builtins": {"vars"}, "copy": {"copy", "deepcopy"}, "pickle": {"dumps"}, "_pickle": {"dumps"},
}  # fmt: skip


def ways_of(value: Any) -> tuple[bool, bool]:
    """May a library function read any attribute of its arguments? And may it do so without `__getattribute__`?"""
    name, module = getattr(value, "__name__", None), getattr(value, "__module__", None)
    past = name in PAST or name in _PAST_OF.get(str(module), ())
    return past or name in ALL or name in _ALL_OF.get(str(module), ()), past


def fields(text: str) -> set[str] | None:
    """The attributes named in a format string; None if it is not a valid one."""
    found: set[str] = set()
    try:
        for _, field, nested, _ in string.Formatter().parse(text):
            found.update((field or "").replace("[", ".").replace("]", "").split(".")[1:])
            found |= fields(nested) or set() if nested else set()
    except ValueError:
        return None
    return found


def arguments(steps: list[dis.Instruction], start: int) -> list[tuple[int, int]] | None:
    """The first and last positions of the arguments of the call whose function was loaded before `start`; None if it is
    not called directly, or if its arguments contain jumps."""
    position = start + (start < len(steps) and steps[start].opname == "PUSH_NULL")
    depth, ends = 0, {0: position}
    while position < len(steps):
        step = steps[position]
        if step.is_jump_target or "JUMP" in step.opname or step.opname.startswith(("FOR_", "SEND", "RETURN", "STORE")):
            return None
        if step.opname in ("PRECALL", "CALL") and step.arg == depth and steps[position - 1].opname != "PRECALL":
            cuts = [ends.get(number) for number in range(depth + 1)]
            return None if None in cuts else list(pairwise(cuts))  # type: ignore[arg-type]
        depth += dis.stack_effect(step.opcode, step.arg, jump=False)
        if depth < 0:
            return None
        ends = {d: end for d, end in ends.items() if d < depth}
        position += 1
        ends[depth] = position
    return None


def written_out(steps: list[dis.Instruction], where: tuple[int, int]) -> str | None:
    """The value of an argument that is a constant string, else None."""
    begin, end = where
    step = steps[begin] if end == begin + 1 else None
    return step.argval if step is not None and step.opname == "LOAD_CONST" and isinstance(step.argval, str) else None
