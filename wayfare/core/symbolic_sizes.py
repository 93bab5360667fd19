"""Symbolic numbers: sizes of arrays and float arguments that carry their formula.

A program made from one call should work for the next one with other sizes. So while a function is traced its sizes are
`Dim`s: ints with a formula that can be evaluated for other sizes. When the function reads such a number (`n > 100`,
`int(n)`), the answer is recorded as a guard: the trace is valid for all sizes with the same answers. Uses that cannot
be recorded (`range(n)`) are found by tracing a second time with other sizes.
"""

from __future__ import annotations

import math
import operator
import threading
from collections.abc import Callable, Sequence
from typing import Any

# A number, or ("symbol", index), or (operator, formulas…).
Formula = Any
Guards = dict[tuple[str, Formula, Formula], bool]

_OPERATORS: dict[str, Callable[..., Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "//": operator.floordiv,
    "%": operator.mod, "**": operator.pow, "neg": operator.neg, "abs": abs, "floor": math.floor, "ceil": math.ceil,
    "trunc": math.trunc, "==": operator.eq, "!=": operator.ne,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


class _Noting(threading.local):
    guards: Guards | None = None


_NOTING = _Noting()


class noted:
    """`with noted() as guards:` — records the comparisons of sizes inside the block, with their answers."""

    __slots__ = ("_outer", "guards")

    def __init__(self) -> None:
        self.guards: Guards = {}

    def __enter__(self) -> Guards:
        self._outer = _NOTING.guards
        _NOTING.guards = self.guards
        return self.guards

    def __exit__(self, *error: object) -> None:
        _NOTING.guards = self._outer


def formula_of(number: Any) -> Formula:
    """The formula of a number; a plain number is its own formula."""
    return number.formula if isinstance(number, (Dim, Number)) else number


def value_of(formula: Formula, symbols: Sequence[Any]) -> Any:
    """The value of a formula for these values of the symbols."""
    if formula.__class__ is not tuple:
        return formula
    if formula[0] == "symbol":
        return symbols[formula[1]]
    return _OPERATORS[formula[0]](*(value_of(part, symbols) for part in formula[1:]))


def evaluated(structure: Any, symbols: Sequence[Any]) -> Any:
    """A structure with every symbolic number replaced by its value for these values of the symbols."""
    if isinstance(structure, (Dim, Number)):
        return value_of(structure.formula, symbols)
    if isinstance(structure, (tuple, list)) and structure:
        made = [evaluated(part, symbols) for part in structure]
        return tuple(made) if isinstance(structure, tuple) else made
    if isinstance(structure, dict):
        return {name: evaluated(part, symbols) for name, part in structure.items()}
    return structure


def shown(structure: Any) -> Any:
    """A structure with formulas in place of symbolic numbers, for comparing two traces."""
    if isinstance(structure, (Dim, Number)):
        return structure.formula
    if isinstance(structure, (tuple, list)):
        return tuple(shown(part) for part in structure)
    if isinstance(structure, dict):
        return tuple((name, shown(part)) for name, part in structure.items())
    if isinstance(structure, slice):
        return ("slice", shown(structure.start), shown(structure.stop), shown(structure.step))
    if isinstance(structure, Repeated):
        return ("repeated", shown(structure.value), shown(structure.times))
    return structure


def symbols_in(structure: Any) -> set[int]:
    """The numbers of all symbols in the symbolic numbers of a structure."""
    if isinstance(structure, (Dim, Number)):
        return symbols_of(structure.formula)
    if isinstance(structure, dict):
        structure = list(structure.values())
    elif isinstance(structure, slice):
        structure = (structure.start, structure.stop, structure.step)
    elif isinstance(structure, Repeated):
        structure = (structure.value, structure.times)
    return set().union(*map(symbols_in, structure)) if isinstance(structure, (tuple, list)) else set()


def symbols_of(formula: Formula) -> set[int]:
    """The numbers of the symbols in a formula."""
    if formula.__class__ is not tuple:
        return set()
    return {formula[1]} if formula[0] == "symbol" else set().union(*map(symbols_of, formula[1:]))


def renumbered(structure: Any, numbers: dict[int, int]) -> Any:
    """A structure with other numbers of the symbols in its symbolic numbers."""
    if isinstance(structure, Dim):
        return Dim(plain(structure), _renumbered(structure.formula, numbers))
    if isinstance(structure, Number):
        return Number(plain(structure), _renumbered(structure.formula, numbers))
    if isinstance(structure, dict):
        return {name: renumbered(part, numbers) for name, part in structure.items()}
    if isinstance(structure, (tuple, list)):
        return type(structure)(renumbered(part, numbers) for part in structure)
    if isinstance(structure, slice):
        return slice(*[renumbered(end, numbers) for end in (structure.start, structure.stop, structure.step)])
    if isinstance(structure, Repeated):
        return Repeated(renumbered(structure.value, numbers), renumbered(structure.times, numbers))
    return structure


def _renumbered(formula: Formula, numbers: dict[int, int]) -> Formula:
    if formula.__class__ is not tuple:
        return formula
    if formula[0] == "symbol":
        return ("symbol", numbers[formula[1]])
    return (formula[0], *[_renumbered(part, numbers) for part in formula[1:]])


def holds(guards: Guards, symbols: Sequence[Any]) -> bool:
    """Do all guards hold for these values of the symbols?"""
    return all(
        _OPERATORS[asked](value_of(a, symbols), value_of(b, symbols)) == answer
        for (asked, a, b), answer in guards.items()
    )


def _made(name: str, *parts: Any) -> Any:
    value = _OPERATORS[name](*map(plain, parts))
    formulas = [formula_of(p) for p in parts]
    simple = _simplified(name, formulas)
    if simple is not None and simple.__class__ is not tuple:
        return value
    formula = (name, *formulas) if simple is None else simple
    return Dim(value, formula) if isinstance(value, int) else Number(value, formula)


def _simplified(name: str, formulas: list[Formula]) -> Formula:
    """Simplify x * 1, x + 0 and the like to x, because shapes are compared by their formulas; else None."""
    if len(formulas) == 2:
        a, b = formulas
        if name == "*" and b.__class__ is int and b == 1:
            return a
        if name == "*" and a.__class__ is int and a == 1:
            return b
        if name in ("+", "-") and b.__class__ is int and b == 0:
            return a
        if name == "+" and a.__class__ is int and a == 0:
            return b
        if name == "//" and b.__class__ is int and b == 1:
            return a
    return None


def plain(number: Any) -> Any:
    """The plain number, without its formula."""
    if isinstance(number, Dim):
        return int.__int__(number)
    return float.__float__(number) if isinstance(number, Number) else number


def _asked(name: str, a: Any, b: Any) -> bool:
    """Compare two numbers, and record the comparison if guards are being recorded."""
    answer = bool(_OPERATORS[name](plain(a), plain(b)))
    guards = _NOTING.guards
    if guards is not None:
        left, right = formula_of(a), formula_of(b)
        if left != right:
            guards[name, left, right] = answer
    return answer


def _arithmetic(name: str, reverse: bool = False) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        if other.__class__ is bool or not isinstance(other, (int, float)):
            return NotImplemented
        return _made(name, other, self) if reverse else _made(name, self, other)

    return method


def _comparison(name: str) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        return _asked(name, self, other) if isinstance(other, (int, float)) else NotImplemented

    return method


class _Remembering:
    """What `Dim` and `Number` share."""

    formula: Formula

    __add__, __radd__ = _arithmetic("+"), _arithmetic("+", True)
    __sub__, __rsub__ = _arithmetic("-"), _arithmetic("-", True)
    __mul__, __rmul__ = _arithmetic("*"), _arithmetic("*", True)
    __truediv__, __rtruediv__ = _arithmetic("/"), _arithmetic("/", True)
    __floordiv__, __rfloordiv__ = _arithmetic("//"), _arithmetic("//", True)
    __mod__, __rmod__ = _arithmetic("%"), _arithmetic("%", True)
    __pow__, __rpow__ = _arithmetic("**"), _arithmetic("**", True)
    __eq__, __ne__ = _comparison("=="), _comparison("!=")
    __lt__, __le__ = _comparison("<"), _comparison("<=")
    __gt__, __ge__ = _comparison(">"), _comparison(">=")

    def __neg__(self) -> Any:
        return _made("neg", self)

    def __abs__(self) -> Any:
        return _made("abs", self)

    def __floor__(self) -> Any:
        return _made("floor", self)

    def __ceil__(self) -> Any:
        return _made("ceil", self)

    def __trunc__(self) -> Any:
        return _made("trunc", self)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __bool__(self) -> bool:
        return _asked("!=", self, 0)

    def __float__(self) -> float:
        # The caller may do anything with the plain number, so the trace is valid for this value only.
        _asked("==", self, plain(self))
        return float(plain(self))

    def __int__(self) -> int:
        _asked("==", self, plain(self))
        return int(plain(self))


class Dim(_Remembering, int):  # type: ignore[misc]
    """A size, or a whole number computed from sizes."""

    def __new__(cls, value: int, formula: Formula) -> Dim:
        """`value` now; `formula` for any sizes."""
        self = int.__new__(cls, value)
        self.formula = formula
        return self

    __hash__ = int.__hash__

    def __index__(self) -> Dim:
        return self

    def __repr__(self) -> str:
        return int.__repr__(self)


class Number(_Remembering, float):  # type: ignore[misc]
    """A float argument, or a float computed from one or from sizes."""

    def __new__(cls, value: float, formula: Formula) -> Number:
        """`value` now; `formula` for any sizes and arguments."""
        self = float.__new__(cls, value)
        self.formula = formula
        return self

    __hash__ = float.__hash__

    def __repr__(self) -> str:
        return float.__repr__(self)


class Repeated:
    """A tuple of `times` equal numbers, where `times` may be a `Dim`: the rows of each step of a recurrence."""

    __slots__ = ("times", "value")

    def __init__(self, value: int, times: int) -> None:
        self.value = value
        self.times = times

    def __repr__(self) -> str:
        return f"({self.value},)*{self.times}"


def symbol(index: int, value: Any) -> Any:
    """A symbolic number: symbol `index`, with its current value."""
    return Dim(value, ("symbol", index)) if isinstance(value, int) else Number(value, ("symbol", index))


def size_classes(shapes: Sequence[Sequence[int]]) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """Classes of equal sizes in some shapes: each size as the number of its class (0 and 1 are -2 and -1), and the size
    of each class."""
    classes: dict[int, int] = {}
    structure = tuple([
        tuple([n - 2 if n < 2 else classes.setdefault(n, len(classes)) for n in shape]) for shape in shapes
    ])  # fmt: skip
    return structure, tuple(classes)


def symbolic_shape(structure: tuple[int, ...], sizes: Sequence[int]) -> tuple[Any, ...]:
    """A shape with the sizes of each class as symbols."""
    return tuple(c + 2 if c < 0 else symbol(c, sizes[c]) for c in structure)
