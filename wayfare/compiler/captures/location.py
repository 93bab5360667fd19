"""A location from which a function reads a captured value: what it held, and how that is compared."""

from __future__ import annotations

import datetime
import decimal
import enum
import fractions
import math
import pathlib
import re
import types
from abc import get_cache_token
from typing import Any

import numpy as np

from wayfare.core.device import Device
from wayfare.core.spec import DType, Size, Spec
from wayfare.core.tensor import Tensor

# How the value at a location is compared with the earlier one.
LEAF = "leaf"  # immutable: by type and equality
SAME = "same"  # by identity
CONTENTS = "contents"  # by type: what is inside has locations of its own
HINT = "hint"  # a difference only means that the slow check must run

_LEAVES = frozenset({
    int, float, complex, bool, str, bytes, type(None), type(...), type(NotImplemented), range, slice, DType, Device,
    Size, Spec, decimal.Decimal, fractions.Fraction, datetime.date, datetime.datetime, datetime.time,
    datetime.timedelta, datetime.timezone, re.Pattern, types.CodeType,
    pathlib.PurePath, pathlib.Path, pathlib.PurePosixPath, pathlib.PosixPath, pathlib.PureWindowsPath,
})  # fmt: skip


def is_leaf(value: Any) -> bool:
    """Is it an immutable value, which is compared by type and equality?"""
    kind = type(value)
    if kind in _LEAVES:
        return True
    if kind is tuple or kind is frozenset:
        return all(map(is_leaf, value))
    return isinstance(value, (enum.Enum, np.generic, np.dtype))


def same_leaf(old: Any, new: Any) -> bool:
    """Are two immutable values of one type and equal? Here NaN equals NaN, and 0.0 does not equal -0.0."""
    if old is new:
        return True
    kind = type(old)
    if kind is not type(new):
        return False
    if kind is float:
        if old != new:
            return math.isnan(old) and math.isnan(new)
        return math.copysign(1.0, old) == math.copysign(1.0, new)
    if kind is complex:
        return same_leaf(old.real, new.real) and same_leaf(old.imag, new.imag)
    if kind in (tuple, Size):
        return len(old) == len(new) and all(map(same_leaf, old, new))
    if kind is frozenset:
        return {(type(v), v) for v in old} == {(type(v), v) for v in new}
    if kind is slice:
        return all(same_leaf(getattr(old, part), getattr(new, part)) for part in ("start", "stop", "step"))
    if isinstance(old, np.generic):
        return bool(old.dtype == new.dtype) and old.tobytes() == new.tobytes()
    if isinstance(old, enum.Enum):
        return False  # each member exists once
    return bool(old == new)


class Path(str):
    """The expression that leads to a value: a global `cfg`, then `cfg.sizes[1]`."""

    __slots__ = ("root",)
    root: str

    def __new__(cls, text: str, root: str = "") -> Path:
        made = super().__new__(cls, text)
        made.root = root
        return made

    def attribute(self, name: str) -> Path:
        """The path of an attribute; the numbered entries of module containers are written as `[0]`."""
        return Path(f"{self}[{name}]" if name.isdecimal() else f"{self}.{name}")

    def entry(self, key: Any) -> Path:
        """The path of an element."""
        return Path(f"{self}[{_shown(key)}]")

    def called(self) -> str:
        """The path in a sentence: "global `scale`", "closure `h`", "`cfg.sizes`"."""
        return f"{self.root} `{self}`" if self.root else f"`{self}`"


class Location:
    """One location: `kind` says how it is read, `value` is what it held.

    A location that is not `live` cannot change by itself (an element of a tuple): it is compared only if its container
    was replaced.
    """

    __slots__ = ("how", "holder", "in_module", "key", "kind", "live", "path", "value")

    def __init__(
        self, kind: str, holder: Any, key: Any, value: Any, path: Path, live: bool = True, in_module: bool = False
    ) -> None:
        self.kind = kind  # item, attribute, weak (an attribute of what a weak reference holds), length, keys, …
        self.holder = holder
        self.key = key
        self.value = value
        self.path = path
        self.live = live
        self.in_module = in_module
        self.how = SAME

    def now(self) -> Any:
        """The current value; raises an exception if there is none."""
        match self.kind:
            case "item":
                return self.holder[self.key]
            case "attribute":
                return getattr(self.holder, self.key)
            case "weak":
                return getattr(self.holder(), self.key)
            case "length":
                return len(self.holder)
            case "keys" | "names" | "elements":
                return tuple(self.holder)
            case "absent" | "present":
                return self.key in self.holder
            case "unset":
                return hasattr(self.holder, self.key)
            case "abc":
                return get_cache_token()
        return array_content(self.holder)

    def same_now(self) -> bool | None:
        """Is the value unchanged? None if only a new walk can tell. An equal leaf replaces the old value."""
        try:
            found = self.now()
        except Exception:  # the value is gone
            return None if self.how is HINT or self.how is CONTENTS else False
        if found is self.value:
            return True
        if self.how is HINT:
            return True if same_leaf(self.value, found) else None
        if self.how is CONTENTS:
            return None if type(found) is type(self.value) else False
        if self.how is LEAF and self.matches(found):
            self.value = found
            return True
        return False

    def matches(self, found: Any) -> bool:
        """Is `found` equivalent to the old value? (Its contents have locations of their own.)"""
        if found is self.value:
            return True
        if self.how is CONTENTS:
            return type(found) is type(self.value)
        if self.how is not LEAF:
            return False
        if self.kind in ("keys", "names", "elements"):
            return len(found) == len(self.value) and all(
                a is b or (is_leaf(a) and same_leaf(a, b)) for a, b in zip(self.value, found, strict=True)
            )
        return same_leaf(self.value, found)

    def sentence(self, found: Any) -> str:
        """What changed, in words."""
        name = self.path.called()
        if self.kind in ("absent", "unset"):
            return f"{name} exists now"
        if self.kind == "array":
            return f"the array {name} has other values now"
        if self.kind in ("keys", "names", "elements", "length"):
            return _sequence_sentence(name, self.value, found)
        if self.key == "training" and isinstance(found, bool):
            owner = str(self.path).removesuffix(".training")
            return f"`{owner}` is in {'training' if found else 'evaluation'} mode now"
        if self.key == "__code__":
            return f"{name} has other code now"
        if self.how is LEAF or is_leaf(found) or is_leaf(self.value):
            return f"{name} was {_shown(self.value)} and is {_shown(found)}"
        return f"{name} is another {_kind(found)} now"


def array_content(array: Any) -> tuple[Any, ...]:
    """An array's shape, dtype and bytes."""
    return array.shape, array.dtype, array.tobytes()


def _sequence_sentence(name: str, old: Any, new: Any) -> str:
    if isinstance(old, int):
        return f"{name} went from {old} to {new} entries"
    if len(old) != len(new):
        return f"{name} went from {len(old)} to {len(new)} entries"
    for number, (a, b) in enumerate(zip(old, new, strict=True)):
        if not (a is b or (is_leaf(a) and same_leaf(a, b))):
            return f"entry {number} of {name} was {_shown(a)} and is {_shown(b)}"
    return f"{name} is in another order now"


def _shown(value: Any) -> str:
    if is_leaf(value):
        text = repr(value)
        return text if len(text) <= 60 else text[:57] + "…"
    return f"a {_kind(value)}"


def _kind(value: Any) -> str:
    return "tensor" if isinstance(value, Tensor) else type(value).__name__
