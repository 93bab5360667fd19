"""The attribute names that occur in code, and helpers for attributes of objects and classes."""

from __future__ import annotations

import functools
import types
from typing import Any

from wayfare.compiler.captures.bytecode import Facts
from wayfare.compiler.captures.purity import is_user_class
from wayfare.nn.module import Module

BARE = frozenset({"builtins", "typing", "abc", "collections.abc", "enum"})


class Names:
    """The attribute names that occur anywhere in the visited code."""

    __slots__ = ("any", "asked", "counted", "formats", "past", "read", "stored")

    def __init__(self) -> None:
        self.read: set[str] = set()
        self.stored: set[str] = set()
        self.counted: set[str] = set()  # only read to be counted up
        self.asked: set[str] = set()  # named in a string: `hasattr(o, "k")`
        self.any = False  # attributes are read by computed names
        self.past = False  # even without `__getattribute__`
        self.formats = False  # values are converted to text

    def copy(self) -> Names:
        """A copy."""
        made = Names()
        made.read, made.stored, made.counted = set(self.read), set(self.stored), set(self.counted)
        made.asked, made.any, made.past, made.formats = set(self.asked), self.any, self.past, self.formats
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Names) and all(getattr(self, n) == getattr(other, n) for n in self.__slots__)

    __hash__ = None  # type: ignore[assignment]

    def add(self, found: Facts) -> None:
        """Add the names of one code object."""
        self.read |= found.attributes
        self.stored |= found.stores
        self.counted |= found.counters
        self.asked |= found.asked
        self.any |= found.any_attribute
        self.past |= found.past
        self.formats |= found.formats


def is_special(name: str) -> bool:
    """Is it a special name (`__add__`)?"""
    return name.startswith("__") and name.endswith("__")


def called_from_library(cls: type, name: str) -> bool:
    """Does it override a member of a library class, which may call it (`backward` of a Function)?"""
    return not name.startswith("__") and any(
        name in base.__dict__ for base in cls.__mro__
        if base is not Module and base.__module__ not in BARE and not is_user_class(base)
    )  # fmt: skip


def content_of(cell: types.CellType) -> Any:
    """The contents of a cell; None if it is empty."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


@functools.lru_cache(1024)
def slots_of(cls: Any) -> tuple[str, ...]:
    """The names of the slots of a class."""
    found = [
        name for base in cls.__mro__ if "__slots__" in base.__dict__  # made by a class statement
        for name, member in base.__dict__.items() if isinstance(member, types.MemberDescriptorType)
    ]  # fmt: skip
    return tuple(found)
