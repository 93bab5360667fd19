"""What a name in code may stand for, as far as that can be told without running it.

Things that only one example has (what it has made, numbers, tensors) need not be told apart: they are *plain*. What
others may see too is kept as references to the objects themselves, so that their code can be read as well.
"""

from __future__ import annotations

import dataclasses
import types
from typing import Any

from wayfare.core.spec import DType
from wayfare.core.tensor import Tensor


class SideEffect(Exception):
    """Code may change Python objects that others see; the argument says where."""


class ObjectRef:
    """An object that is there already, and that others may see."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class MethodRef:
    """A function with the object that is its first argument: one that is known, or (None) a plain one."""

    __slots__ = ("function", "owner")

    def __init__(self, function: Any, owner: ObjectRef | None) -> None:
        self.function = function
        self.owner = owner


class NativeMethod:
    """A method of an object whose type is not written in Python."""

    __slots__ = ("name", "owner")

    def __init__(self, name: str, owner: ObjectRef) -> None:
        self.name = name
        self.owner = owner


class SuperRef:
    """What `super()` gives in a method of a class."""

    __slots__ = ("owner", "type")

    def __init__(self, type_: type, owner: ObjectRef | None) -> None:
        self.type = type_
        self.owner = owner


class LocalContainer:
    """A container that is made at one place of the code, and what it may hold."""

    __slots__ = ("items",)

    def __init__(self) -> None:
        self.items = NOTHING


class LocalMethod:
    """A method of such a container."""

    __slots__ = ("name", "owner")

    def __init__(self, name: str, owner: LocalContainer) -> None:
        self.name = name
        self.owner = owner


class LocalFunction:
    """A function that the code itself has made."""

    __slots__ = ("code", "defaults", "frame")

    def __init__(self, code: types.CodeType, frame: Any) -> None:
        self.code = code
        self.frame = frame
        # The values of its defaults; names are not told apart.
        self.defaults = NOTHING


class AbstractValue:
    """What an expression may stand for: something plain, any of some references, or either."""

    __slots__ = ("constant", "names", "plain", "refs")

    def __init__(
        self, plain: bool, refs: frozenset[Any] = frozenset(), names: frozenset[str] = frozenset(), constant: Any = None
    ) -> None:
        self.plain = plain
        self.refs = refs
        # If it is an attribute of something plain: what that is called.
        self.names = names
        # A name, or names, that the code itself spells out.
        self.constant = constant

    def __or__(self, other: AbstractValue) -> AbstractValue:
        if other is self or other is NOTHING:
            return self
        if self is NOTHING:
            return other
        if other.refs <= self.refs and other.names <= self.names and other.plain <= self.plain:
            if self.constant is None or self.constant == other.constant:
                return self
        constant = self.constant if self.constant == other.constant else None
        return AbstractValue(self.plain or other.plain, self.refs | other.refs, self.names | other.names, constant)

    def covers(self, other: AbstractValue) -> bool:
        """Is all that the other may be among what this may be?"""
        return other.refs <= self.refs and other.names <= self.names and other.plain <= self.plain


NOTHING = AbstractValue(False)
PLAIN = AbstractValue(True)
# In the place where a call expects an object to which a method belongs, if there is none.
NULL = AbstractValue(True)
# Something that others see, of which nothing else is known.
UNKNOWN = ObjectRef(None)

_NO_DEFAULT = type(dataclasses._HAS_DEFAULT_FACTORY)  # type: ignore[attr-defined]
_DATA = (
    int, float, complex, str, bytes, bool, type(None), range, slice, Tensor, DType, type(...),
    type(NotImplemented),
)  # fmt: skip


def is_data(value: Any) -> bool:
    """Is it something that never changes, or that looks after itself as tensors do?"""
    if isinstance(value, (tuple, frozenset)):
        return type(value) in (tuple, frozenset) and all(map(is_data, value))
    if isinstance(value, _NO_DEFAULT):
        return True
    return isinstance(value, _DATA) and type(value).__module__ != "__main__" and not _adds_to(value)


def _adds_to(value: Any) -> bool:
    """Is its type derived from a plain one, with code or attributes of its own?"""
    return hasattr(value, "__dict__") and not isinstance(value, Tensor)
