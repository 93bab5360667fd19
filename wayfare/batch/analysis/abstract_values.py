"""Abstract values: what an expression in analysed code may evaluate to.

Everything that only one example can see (objects it made, numbers, tensors) is *plain*: such things are not told apart.
What others can see too is represented by references to the objects themselves, so that their code can be analysed.
"""

from __future__ import annotations

import dataclasses
import types
from typing import Any

from wayfare.core.spec import DType
from wayfare.core.tensor import Tensor


class SideEffect(Exception):
    """Raised by the analysis: code may change Python objects that others see. The message says which."""


class ObjectRef:
    """A reference to an existing object that others may see."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class MethodRef:
    """A method bound to a referenced object, or (None) to a plain one."""

    __slots__ = ("function", "owner")

    def __init__(self, function: Any, owner: ObjectRef | None) -> None:
        self.function = function
        self.owner = owner


class NativeMethod:
    """A method of an object whose type is implemented in C."""

    __slots__ = ("name", "owner")

    def __init__(self, name: str, owner: ObjectRef) -> None:
        self.name = name
        self.owner = owner


class SuperRef:
    """What `super()` returns in a method of a class."""

    __slots__ = ("owner", "type")

    def __init__(self, type_: type, owner: ObjectRef | None) -> None:
        self.type = type_
        self.owner = owner


class LocalContainer:
    """A container made at one instruction of the code, and what it may hold."""

    __slots__ = ("items",)

    def __init__(self) -> None:
        self.items = NOTHING


class LocalMethod:
    """A method of a LocalContainer."""

    __slots__ = ("name", "owner")

    def __init__(self, name: str, owner: LocalContainer) -> None:
        self.name = name
        self.owner = owner


class LocalFunction:
    """A function that is defined inside the analysed code."""

    __slots__ = ("code", "defaults", "frame")

    def __init__(self, code: types.CodeType, frame: Any) -> None:
        self.code = code
        self.frame = frame
        # The values of all its defaults together.
        self.defaults = NOTHING


class AbstractValue:
    """What an expression may evaluate to: something plain, one of some references, or either."""

    __slots__ = ("constant", "names", "plain", "refs")

    def __init__(
        self, plain: bool, refs: frozenset[Any] = frozenset(), names: frozenset[str] = frozenset(), constant: Any = None
    ) -> None:
        self.plain = plain
        self.refs = refs
        # The possible names of an attribute, if it is an attribute of something plain.
        self.names = names
        # A constant of the code: a string, a tuple of strings, or a code object.
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
        """Whether this includes all that the other may be."""
        return other.refs <= self.refs and other.names <= self.names and other.plain <= self.plain


NOTHING = AbstractValue(False)
PLAIN = AbstractValue(True)
# Python's NULL on the stack: a call without a `self`.
NULL = AbstractValue(True)
# An object that others see, about which nothing else is known.
UNKNOWN = ObjectRef(None)

_NO_DEFAULT = type(dataclasses._HAS_DEFAULT_FACTORY)  # type: ignore[attr-defined]
_DATA = (
    int, float, complex, str, bytes, bool, type(None), range, slice, Tensor, DType, type(...),
    type(NotImplemented),
)  # fmt: skip


def is_data(value: Any) -> bool:
    """Whether it is immutable, or a tensor (writes to tensors are tracked elsewhere)."""
    if isinstance(value, (tuple, frozenset)):
        return type(value) in (tuple, frozenset) and all(map(is_data, value))
    if isinstance(value, _NO_DEFAULT):
        return True
    return isinstance(value, _DATA) and type(value).__module__ != "__main__" and not _adds_to(value)


def _adds_to(value: Any) -> bool:
    """Whether its type is a subclass with attributes of its own."""
    return hasattr(value, "__dict__") and not isinstance(value, Tensor)
