"""Indexed loads, and inner loops (`fold`) with carried values: what windows, segments and gathers are written with.

    load_at(0, "f32", row, column)          x0[row, column], at positions that the loop computes
    inside(0, row, column)                  a mask: are these positions inside the array?
    fold(count, (start,), body)             value = start; `count` times: value = body(step, value)
    total(count, lambda k: load_at(...))    a sum over a window, and `largest` the maximum

The array of an operand with axes of its own (`Operand.axes`) has the axes of the nest first, then its own. The caller
answers for positions: those that are not masked must be inside the array.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wayfare.codegen.loop.expr import Expr, apply, cast, const, expr, neutral, rewritten, walk
from wayfare.core.errors import LoopError

# Additions of float32 numbers in a long sum before their sum is added to one in float64.
_BLOCK = 64


def load_at(number: int, dtype: str, *indices: Expr, mask: Expr | None = None) -> Expr:
    """The element of an input at these positions along its own axes; 0 where the mask is False: nothing is read."""
    return expr("load_at", (*indices, *(() if mask is None else (mask,))), dtype, (number, len(indices)))


def size(number: int, axis: int) -> Expr:
    """The size of an input along one of its own axes."""
    return expr("size", (), "i64", (number, axis))


def within(position: Expr, length: Expr) -> Expr:
    """A mask: is the position one of 0 … length - 1?"""
    return apply("logical_and", apply("ge", position, 0), apply("lt", position, length))


def inside(number: int, *indices: Expr) -> Expr:
    """A mask: are these positions inside the input?"""
    found: Expr | None = None
    for axis, index in enumerate(indices):
        here = within(index, size(number, axis))
        found = here if found is None else apply("logical_and", found, here)
    if found is None:
        raise LoopError("an input without axes of its own has no positions")
    return found


def fold(count: Expr | int, starts: Sequence[Expr], body: Callable[..., Sequence[Expr]]) -> tuple[Expr, ...]:
    """An inner loop: `values = starts`, then `count` times `values = body(step, *values)`, with step = 0, 1, 2, …

    Returns the values at the end. The count must be the same for all elements of a row. A body may hold other folds.
    """
    # New variables, so that those of a fold around this one are not confused with them.
    token = object()
    step = expr("step", (), "i64", token)
    carried = [expr("carried", (), start.dtype, (token, k)) for k, start in enumerate(starts)]
    made = tuple(body(step, *carried))
    if [e.dtype for e in made] != [e.dtype for e in starts]:
        raise LoopError(f"a fold starts with {[e.dtype for e in starts]} and goes on with {[e.dtype for e in made]}")
    # The level tells the variables of nested folds apart: a fold is above all folds in its body.
    level = 1 + max((e.value[0] for e in walk(*made) if e.op == "fold"), default=-1)

    def leaf(e: Expr) -> Expr | None:
        if e is step:
            return expr("step", (), "i64", level)
        mine = e.op == "carried" and e.value[0] is token
        return expr("carried", (), e.dtype, (level, e.value[1])) if mine else None

    bodies = tuple(rewritten(e, leaf) for e in made)
    length = const(count, "i64") if isinstance(count, int) else count
    args = (length, *starts, *bodies)
    return tuple(expr("fold", args, start.dtype, (level, k)) for k, start in enumerate(starts))


def total(count: Expr | int, value: Callable[[Expr], Expr], start: Expr | None = None) -> Expr:
    """The sum of `value(0)`, `value(1)`, …, in order and in the dtype of the value; `start` comes first."""
    first = start if start is not None else const(0, value(const(0, "i64")).dtype)
    return fold(count, (first,), lambda k, so_far: (so_far + value(k),))[0]


def largest(count: Expr | int, value: Callable[[Expr], Expr], how: str = "maximum") -> Expr:
    """The maximum (or "minimum") of `value(0)`, `value(1)`, …; of nothing, the lowest (or highest) number."""
    dtype = value(const(0, "i64")).dtype
    return fold(count, (const(neutral("max" if how == "maximum" else "min", dtype), dtype),),
                lambda k, so_far: (apply(how, so_far, value(k)),))[0]  # fmt: skip


def long_total(count: Expr, value: Callable[[Expr], Expr]) -> Expr:
    """A sum of any length whose error does not grow with it: float32 blocks are added up in float64."""
    dtype = value(const(0, "i64")).dtype
    if dtype != "f32":
        return total(count, value)

    def block(number: Expr) -> Expr:
        first = number * _BLOCK
        length = apply("minimum", count - first, const(_BLOCK, "i64"))
        return cast(total(length, lambda k: value(first + k)), "f64")

    blocks = apply("quotient", count + (_BLOCK - 1), const(_BLOCK, "i64"))
    return cast(total(blocks, block), dtype)


def bound_levels(*roots: Expr) -> dict[int, frozenset[int]]:
    """By id of an expression: the levels of the folds in whose body it must stand, because it uses their variables."""
    found: dict[int, frozenset[int]] = {}
    for e in walk(*roots):
        levels = frozenset().union(*(found[id(a)] for a in e.args))
        if e.op == "fold":
            levels -= {e.value[0]}
        elif e.op in ("step", "carried"):
            levels = frozenset({e.value if e.op == "step" else e.value[0]})
        found[id(e)] = levels
    return found


def carried_by(e: Expr) -> tuple[Expr, tuple[Expr, ...], tuple[Expr, ...]]:
    """(the count, the starts, the bodies) of a fold."""
    number = (len(e.args) - 1) // 2
    return e.args[0], e.args[1 : 1 + number], e.args[1 + number :]
