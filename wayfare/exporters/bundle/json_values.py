"""Sizes, attributes and structures as JSON, and back: files are not trusted, so all is checked when it is read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from wayfare.compiler.structure import ITEM, TENSOR, VALUE
from wayfare.core.errors import ExportError, FileFormatError
from wayfare.core.spec import DTYPES, DType
from wayfare.core.symbolic_sizes import Dim, Number, Repeated, value_of

DTYPE_NAMES = {dtype.name: dtype for dtype in DTYPES}
# Operators of formulas, with the number of their operands.
_OPERANDS = {"+": 2, "-": 2, "*": 2, "/": 2, "//": 2, "%": 2, "**": 2, "neg": 1, "abs": 1, "floor": 1, "ceil": 1,
             "trunc": 1}  # fmt: skip
LARGEST = 2**62
_DEEPEST = 24
# The maximal number of steps of a recurrence.
MOST_STEPS = 1 << 24


class Bad(Exception):
    """Something in the file that is not as it should be, as a sentence."""


def refused(where: str, why: Any) -> FileFormatError:
    """The error for a file that is damaged or malicious."""
    return FileFormatError(f"load_program: {where} is damaged or was not made by wf.export: {why}")


# -- to JSON ----------------------------------------------------------------------------------------------------------


def encoded(value: Any) -> Any:
    """A number, an attribute or nested tuples of them, as JSON."""
    if isinstance(value, Dim):
        return {"size": _plain_formula(value.formula)}
    if isinstance(value, Number):
        return {"number": _plain_formula(value.formula)}
    if isinstance(value, Repeated):
        return {"repeated": [encoded(value.value), encoded(value.times)]}
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, DType):
        return {"dtype": value.name}
    if isinstance(value, (tuple, list)):
        return [encoded(part) for part in value]
    raise ExportError(f"export: an op has the attribute {value!r}, which a file cannot hold")


def _plain_formula(formula: Any) -> Any:
    return [_plain_formula(part) for part in formula] if isinstance(formula, tuple) else formula


def encoded_structure(shape: Any) -> Any:
    """The structure of the results as JSON: "tensor", "item", plain values, lists, tuples and dictionaries."""
    if shape is TENSOR:
        return "tensor"
    if shape is ITEM:
        return "item"
    if len(shape) >= 3 and shape[1] is VALUE:
        if shape[0] not in (int, float, bool, str, type(None)):
            raise ExportError(f"export: the function returns a {shape[0].__name__} beside tensors, which a file cannot "
                              "hold")  # fmt: skip
        return {"value": encoded(shape[2])}
    if shape[0] is dict:
        if not all(kind is str for kind, _, _ in shape[1:]):
            raise ExportError("export: the function returns a dictionary whose keys are not strings",
                              fix="Return a dictionary with strings as keys.")  # fmt: skip
        return {"dict": [[key, encoded_structure(part)] for _, key, part in shape[1:]]}
    kind = "list" if shape[0] is list else "tuple"
    return {kind: [encoded_structure(part) for part in shape[1:]]}


# -- from JSON --------------------------------------------------------------------------------------------------------


class Numbers:
    """Reads attributes and sizes, which may be formulas; `sizes` are the values of the symbols in the example."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = list(sizes)

    def value(self, given: Any, depth: int = 0) -> Any:
        """An attribute."""
        if depth > _DEEPEST:
            raise Bad("an attribute is nested too deeply")
        if given is None or isinstance(given, (bool, str)):
            return given
        if isinstance(given, int):
            return self._bounded(given)
        if isinstance(given, float):
            return given
        if isinstance(given, list):
            return tuple(self.value(part, depth + 1) for part in given)
        if isinstance(given, dict) and len(given) == 1:
            ((kind, inner),) = given.items()
            if kind == "size":
                return self.size(inner)
            if kind == "number":
                return self._number(inner)
            if kind == "float" and isinstance(inner, str) and inner in ("inf", "-inf", "nan"):
                return float(inner)
            if kind == "dtype" and isinstance(inner, str) and inner in DTYPE_NAMES:
                return DTYPE_NAMES[inner]
            if kind == "repeated" and isinstance(inner, list) and len(inner) == 2:
                value, times = (self.value(part, depth + 1) for part in inner)
                if isinstance(value, int) and isinstance(times, int) and 0 <= int.__int__(times) <= MOST_STEPS:
                    return Repeated(value, times)
        raise Bad(f"an attribute is {str(given)[:60]}")

    def size(self, given: Any) -> int:
        """An integer, or a formula of one."""
        if type(given) is int:
            return int(self._bounded(given))
        formula, value = self._formula(given)
        if type(value) is not int:
            raise Bad(f"the size {str(given)[:60]} is not an integer")
        return Dim(self._bounded(value), formula)

    def shape(self, given: Any) -> tuple[int, ...]:
        """A shape; no size may be negative."""
        if not isinstance(given, list) or len(given) > 64:
            raise Bad(f"a shape is {str(given)[:60]}")
        found = tuple(self.size(n["size"] if isinstance(n, dict) and n.keys() == {"size"} else n) for n in given)
        if any(n < 0 for n in found):
            raise Bad(f"a shape is {str(given)[:60]}")
        return found

    def _number(self, given: Any) -> Number:
        formula, value = self._formula(given)
        return Number(float(value), formula)

    def _formula(self, given: Any) -> tuple[Any, Any]:
        formula = self._checked(given, 0)
        try:
            value = value_of(formula, self.sizes)
        except (ArithmeticError, ValueError, TypeError):
            value = None
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise Bad(f"the formula {str(given)[:60]} gives no number")
        return formula, value

    def _checked(self, given: Any, depth: int) -> Any:
        if type(given) in (int, float):
            return self._bounded(given)
        if depth > _DEEPEST or not isinstance(given, list) or not given:
            raise Bad(f"a formula is {str(given)[:60]}")
        name, *parts = given
        if name == "symbol":
            if len(parts) != 1 or type(parts[0]) is not int or not 0 <= parts[0] < len(self.sizes):
                raise Bad(f"a formula names the size {str(parts)[:40]}, and there are {len(self.sizes)}")
            return ("symbol", parts[0])
        if not isinstance(name, str) or _OPERANDS.get(name) != len(parts):
            raise Bad(f"a formula has the operator {str(name)[:40]} with {len(parts)} operands")
        if name == "**" and (type(parts[1]) not in (int, float) or abs(parts[1]) > 4 or "**" in str(parts[0])):
            raise Bad("a formula has a power that is too large")
        return (name, *[self._checked(part, depth + 1) for part in parts])

    def _bounded(self, n: Any) -> Any:
        if isinstance(n, int) and abs(n) > LARGEST:
            raise Bad(f"a number has {len(str(abs(n))) if abs(n) < 10**100 else 'too many'} digits")
        return n


def read_structure(given: Any, depth: int = 0) -> tuple[Any, int]:
    """The structure of the results as `put_together` takes it, and the number of tensors in it."""
    if depth > _DEEPEST:
        raise Bad("the results are nested too deeply")
    if given in ("tensor", "item"):
        return (TENSOR if given == "tensor" else ITEM), 1
    if isinstance(given, dict) and len(given) == 1:
        ((kind, inner),) = given.items()
        if kind == "value":
            value = Numbers([]).value(inner)
            if isinstance(value, (tuple, DType)):
                raise Bad("a plain value among the results is malformed")
            return (type(value), VALUE, value), 0
        if kind in ("list", "tuple") and isinstance(inner, list):
            parts = [read_structure(part, depth + 1) for part in inner]
            return (list if kind == "list" else tuple, *[p for p, _ in parts]), sum(n for _, n in parts)
        if kind == "dict" and isinstance(inner, list):
            if not all(isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str) for pair in inner):
                raise Bad("a dictionary among the results is malformed")
            made = [(key, read_structure(part, depth + 1)) for key, part in inner]
            return (dict, *[(str, key, part) for key, (part, _) in made]), sum(n for _, (_, n) in made)
    raise Bad(f"the results have the form {str(given)[:60]}")
