"""Signatures of ops: how many inputs, of which dtypes, and which attributes of which types.

Records trust their callers, which are our own functions. Code that calls ops by name with untrusted arguments (a
program read from a file) checks them with the signature of the record first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from wayfare.core.spec import DType, Spec, bool_

# A type of value, and at which depth of nested tuples it is.
Kind = tuple[str, int]

# Any number of inputs.
MANY = 1 << 20
_LARGEST = 2**62
_DEEPEST = 8

# Families whose inputs must have one dtype: all inputs, or those that are floats.
_ALL_ALIKE = frozenset({"elementwise", "joining"})
_FLOATS_ALIKE = frozenset({
    "contraction", "normalisation", "softmax", "loss", "recurrence", "attention", "indexing", "scan", "segments",
    "linear algebra",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Attribute:
    """The type of one attribute. `least` is the minimum of all numbers in it; with `dims` they are dimensions."""

    kinds: frozenset[Kind]
    least: float | None = None
    dims: bool = False
    optional: bool = False


def _attribute(*kinds: Kind, **more: Any) -> Attribute:
    return Attribute(frozenset(kinds), **more)


FLAG = _attribute(("bool", 0))
TEXT = _attribute(("text", 0))
DTYPE = _attribute(("dtype", 0))
INT = _attribute(("int", 0))
INTS = _attribute(("tuple", 0), ("int", 1))
NUMBER = _attribute(("int", 0), ("float", 0))
NUMBER_OR_NONE = _attribute(("int", 0), ("float", 0), ("none", 0))
INT_OR_NONE = _attribute(("int", 0), ("none", 0))
COUNT = _attribute(("int", 0), least=0)
STEP = _attribute(("int", 0), least=1)
DIM = _attribute(("int", 0), least=0, dims=True)
DIMS = _attribute(("tuple", 0), ("int", 1), least=0, dims=True)
SIZES = _attribute(("tuple", 0), ("int", 1), least=0)
STEPS = _attribute(("tuple", 0), ("int", 1), least=1)
# Padding: ((before, after), …) for each dimension; negative amounts cut off.
AMOUNTS = _attribute(("tuple", 0), ("tuple", 1), ("int", 2))
# Integers, slices as (start, stop, step), and None for a new axis.
INDEX = _attribute(("tuple", 0), ("tuple", 1), ("int", 1), ("int", 2), ("none", 1), ("none", 2))
# The key of a random draw; without one nothing is drawn.
KEY = _attribute(("tuple", 0), ("int", 1), ("none", 0), optional=True)
MAYBE_NUMBER = _attribute(("int", 0), ("float", 0), optional=True)
# A chain of view ops with their attributes: ((name, ((attribute, value), …)), …). Its user must check each op.
PATH = _attribute(("tuple", 0), ("tuple", 1))


@dataclass(frozen=True, slots=True)
class Signature:
    """The valid calls of an op."""

    inputs: int
    most: int
    attrs: dict[str, Attribute] = field(default_factory=dict)
    # May the inputs have different dtypes? If not, the family says which must be equal.
    mixed: bool = False
    # Inputs that must be bools and do not count for the dtype.
    masks: tuple[int, ...] = ()
    # The result has one dimension more than the input.
    grows: bool = False

    def problem(self, name: str, family: str, kinds: str, specs: Sequence[Spec], attrs: dict[str, Any]) -> str:
        """Why this call is not valid, as a sentence; empty if it is."""
        if not self.inputs <= len(specs) <= self.most:
            wanted = f"at least {self.inputs}" if self.most == MANY else str(self.inputs)
            return f"{name} takes {wanted} inputs, not {len(specs)}"
        missing = [key for key, known in self.attrs.items() if key not in attrs and not known.optional]
        if missing or attrs.keys() - self.attrs.keys():
            return (f"{name} has the attributes {', '.join(sorted(self.attrs)) or 'none'}, not "
                    f"{', '.join(sorted(attrs))[:80] or 'none'}")  # fmt: skip
        for key, value in attrs.items():
            found = _wrong(self.attrs[key], value)
            if found:
                return f"{name} has {_shown(value)} for {key}{found}"
        return self._dtypes(name, family, kinds, specs) or self._dims(name, specs, attrs)

    def in_its_kinds(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """The attributes converted to the types of the signature (True for a given 1, 0 for a given False)."""
        return {key: _as_kind(self.attrs[key], value) if key in self.attrs else value for key, value in attrs.items()}

    def _dtypes(self, name: str, family: str, kinds: str, specs: Sequence[Spec]) -> str:
        typed = [s for i, s in enumerate(specs) if i not in self.masks]
        if typed and typed[0].dtype.kind not in kinds:
            return f"{name} does not take {typed[0].dtype.name}"
        if any(specs[i].dtype is not bool_ for i in self.masks):
            return f"{name} is given a mask that is not of bools"
        if self.mixed:
            return ""
        if family in _ALL_ALIKE:
            alike = len({s.dtype for s in typed}) <= 1
        else:
            alike = family not in _FLOATS_ALIKE or len({s.dtype for s in typed if s.dtype.is_floating_point}) <= 1
        return "" if alike else f"{name} is given values of different dtypes"

    def _dims(self, name: str, specs: Sequence[Spec], attrs: dict[str, Any]) -> str:
        """Dimensions must exist and be named once. If there is an attribute `shape`, they are dimensions of that."""
        rank = specs[0].ndim if specs else 0
        there = len(attrs["shape"]) if "shape" in attrs else max(rank, 1) + self.grows
        named: list[Any] = []
        for key, known in self.attrs.items():
            if known.dims and key in attrs:
                numbers = _numbers_in(attrs[key])
                named += numbers
                if any(n >= there for n in numbers) or len(set(named)) != len(named):
                    return f"{name} has {_shown(attrs[key])} for {key}, and its input {rank} dimensions"
        return ""


def takes(
    inputs: int, most: int | None = None, /, *, mixed: bool = False, masks: tuple[int, ...] = (), grows: bool = False,
    **attrs: Attribute,
) -> Signature:  # fmt: skip
    """`takes(2, dim=DIM)`: two inputs and one attribute. `takes(1, MANY, dim=DIM)`: one input or more."""
    return Signature(inputs, inputs if most is None else most, attrs, mixed, masks, grows)


def _as_kind(known: Attribute, value: Any) -> Any:
    kind = _kind(value)
    if kind == "int" and known.kinds == FLAG.kinds:
        return bool(value)
    if kind == "bool" and (kind, 0) not in known.kinds:
        return int(value)
    return value


def _wrong(known: Attribute, value: Any) -> str | None:
    if known is PATH:
        return None if isinstance(value, tuple) else "."
    found: set[Kind] = set()
    _collect(value, found, 0)
    if not found <= known.kinds:
        return "."
    numbers = _numbers_in(value)
    if any(isinstance(n, int) and abs(n) > _LARGEST for n in numbers):
        return ", a number with too many digits"
    if known.least is not None and any(n < known.least for n in numbers):
        return f", and none of it can be less than {known.least}"
    return None


def _shown(value: Any) -> str:
    try:
        return repr(str(value)[:40])
    except ValueError:  # thousands of digits
        return "a number of thousands of digits"


def _collect(value: Any, kinds: set[Kind], depth: int) -> None:
    """Collect the types of all values in an attribute."""
    if isinstance(value, (tuple, list)):
        kinds.add(("tuple", depth))
        # Long tuples of ints (the lengths of a recurrence) are checked by their types alone, which is quicker.
        types = set(map(type, value))
        if types <= {int}:
            kinds.update([("int", depth + 1)] if types else [])
        elif depth < _DEEPEST:
            for part in value:
                _collect(part, kinds, depth + 1)
        else:
            kinds.add(("too deep", depth))
    else:
        kinds.add((_kind(value), depth))


def _kind(value: Any) -> str:
    if isinstance(value, (bool, np.bool_)):
        return "bool"
    if isinstance(value, (int, np.integer)):
        return "int"
    if isinstance(value, (float, np.floating)):
        return "float"
    if value is None:
        return "none"
    return "dtype" if isinstance(value, DType) else "text" if isinstance(value, str) else "something else"


def _numbers_in(value: Any) -> list[Any]:
    if isinstance(value, (tuple, list)):
        return [n for part in value for n in _numbers_in(part)]
    return [value] if isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool) else []
