"""Expressions of the loop language: one value for each element, built with operators and the functions of NumpyMath.

Expressions are hash-consed: equal expressions are one object. A formula such as `lambda m, x: 1 / (1 + m.exp(-x))` runs
on NumPy arrays. Called with `loop_math` for `m` and an `Expr` for `x`, it builds an expression for the code generator.
"""

from __future__ import annotations

import math
import struct
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np

from wayfare.codegen.loop.instruction import INSTRUCTIONS
from wayfare.core.errors import LoopError
from wayfare.core.operators import Operators
from wayfare.core.spec import BFLOAT16

# The floats that are stored only: values are loaded, cast to f32, and cast back before they are stored.
NARROW = ("f16", "bf16")
FLOATS = (*NARROW, "f32", "f64")
INTEGERS = ("u8", "i8", "i16", "i32", "i64")
DTYPES = ("bool", *INTEGERS, *FLOATS)
NUMPY = {
    "bool": np.dtype("bool"), "u8": np.dtype("uint8"), "i8": np.dtype("int8"), "i16": np.dtype("int16"),
    "i32": np.dtype("int32"), "i64": np.dtype("int64"), "f16": np.dtype("float16"), "bf16": BFLOAT16,
    "f32": np.dtype("float32"), "f64": np.dtype("float64"),
}  # fmt: skip
OF_NUMPY = {dtype: name for name, dtype in NUMPY.items()}

# The ops that the code generator and the interpreter implement. `codegen.math` expands all other functions into these.
PRIMITIVES: frozenset[str] = frozenset(INSTRUCTIONS)


# All live expressions, by (op, arguments, dtype, value). The weak reference's callback is the dict's own `pop`:
# a WeakValueDictionary would run Python code there, and an exception in it (Ctrl-C) would be lost.
_TABLE: dict[tuple[Any, ...], weakref.ref[Expr]] = {}


class Expr(Operators):
    """One value for each element: an op applied to other expressions, with a dtype. Made by `expr`, never directly."""

    __slots__ = ("__weakref__", "args", "dtype", "op", "value")

    op: str
    args: tuple[Expr, ...]
    dtype: str
    # A constant's value; the number of an input, output or reduction; the name of a library function; what
    # `loop/window.py` says of its own.
    value: Any

    def __bool__(self) -> bool:
        raise LoopError("a formula asked for the truth of a value that is only known when the loop runs",
                        fix="Choose with m.where(condition, a, b).")  # fmt: skip

    def __repr__(self) -> str:
        return written(self)

    def __invert__(self) -> Expr:
        return apply("bitwise_not", self)

    def __lshift__(self, other: Any) -> Expr:
        return apply("shift_left", self, other)

    def __rshift__(self, other: Any) -> Expr:
        return apply("shift_right", self, other)


def expr(op: str, args: tuple[Expr, ...], dtype: str, value: Any = None) -> Expr:
    """The expression with this op and these arguments; equal calls return the same object."""
    key = (op, tuple(map(id, args)), dtype, _exact(value))
    known = _TABLE.get(key)
    found = None if known is None else known()
    if found is None:
        found = Expr()
        found.op, found.args, found.dtype, found.value = op, args, dtype, value
        _TABLE[key] = weakref.ref(found, partial(_TABLE.pop, key))
    return found


def _exact(value: Any) -> Any:
    # 0.0 == -0.0 and NaN != NaN, but they are different constants.
    return struct.pack("<d", value) if isinstance(value, float) else value


# -- making expressions -----------------------------------------------------------------------------------------------


def load(number: int, dtype: str) -> Expr:
    """The element of an input."""
    return expr("load", (), dtype, number)


def reload(number: int, dtype: str) -> Expr:
    """The element of an output as an earlier stage stored it."""
    return expr("reload", (), dtype, number)


def reduction(number: int, dtype: str) -> Expr:
    """The result of a reduction of an earlier stage. Reductions are numbered across all stages."""
    return expr("reduction", (), dtype, number)


def carry(number: int, dtype: str) -> Expr:
    """What the previous element of the row computed for this carry of the stage; its start, for the first element."""
    return expr("carry", (), dtype, number)


def index() -> Expr:
    """The position of the element in its row."""
    return expr("index", (), "i64")


def const(value: float, dtype: str) -> Expr:
    """A constant."""
    if dtype == "bool":
        return expr("const", (), dtype, bool(value))
    if dtype in FLOATS:
        return expr("const", (), dtype, float(value))
    if isinstance(value, float) and not value.is_integer():
        raise LoopError(f"the number {value} cannot be written as {dtype}", fix="Cast the value to a float first.")
    low, high = integer_range(dtype)
    if not low <= value <= high:
        raise LoopError(f"the number {value} does not fit into {dtype}", fix="Cast the value to a wider dtype first.")
    return expr("const", (), dtype, int(value))


def integer_range(dtype: str) -> tuple[int, int]:
    """The smallest and the largest value of an integer dtype."""
    width = 8 * NUMPY[dtype].itemsize
    return (0, 2**width - 1) if dtype == "u8" else (-(2 ** (width - 1)), 2 ** (width - 1) - 1)


def neutral(kind: str, dtype: str) -> float | bool | int:
    """The neutral element of a reduction."""
    if kind in ("sum", "prod"):
        return 0 if kind == "sum" else 1
    if kind in ("any", "all"):
        return kind == "all"
    low = kind in ("max", "argmax")
    if dtype in FLOATS:
        return -math.inf if low else math.inf
    return not low if dtype == "bool" else integer_range(dtype)[0 if low else 1]


def cast(x: Expr, dtype: str) -> Expr:
    """The value in another dtype, as NumPy's astype gives it."""
    return x if x.dtype == dtype else const_of(x, dtype) or expr("cast", (x,), dtype)


def const_of(x: Expr, dtype: str) -> Expr | None:
    """A constant cast to another dtype, or None if the cast must happen at run time."""
    if x.op == "const" and dtype in FLOATS and dtype not in NARROW and x.dtype in (*INTEGERS, "bool"):
        return const(float(x.value), dtype)
    return None


def bits(x: Expr, dtype: str) -> Expr:
    """The same bits reinterpreted as another dtype of the same width."""
    if NUMPY[x.dtype].itemsize != NUMPY[dtype].itemsize:
        raise LoopError(f"the bits of {x.dtype} cannot be read as {dtype}: the widths differ")
    return expr("bits", (x,), dtype)


def call(symbol: str, *args: Expr) -> Expr:
    """Call a C function (double → double) once for each element."""
    return expr("call", tuple(cast(a, "f64") for a in args), "f64", symbol)


def rescue(condition: Expr, value: Expr, symbol: str, *args: Expr) -> Expr:
    """`value`, replaced by a library function's result where `condition` holds. Meant for rare cases."""
    return expr("rescue", (condition, value, *(cast(a, "f64") for a in args)), value.dtype, symbol)


def promote(dtypes: Iterable[str]) -> str:
    """The dtype to which NumPy promotes these dtypes."""
    found = OF_NUMPY.get(np.result_type(*(NUMPY[d] for d in dtypes)))
    if found is None:
        raise LoopError("a formula mixes dtypes that have no common one here")
    return found


def together(*values: Any) -> tuple[Expr, ...]:
    """Cast operands to a common dtype; Python numbers take the dtype of the expressions."""
    given = [v.dtype for v in values if isinstance(v, Expr)]
    if not given:
        raise LoopError("a formula computes with numbers only")
    dtype = promote(given)
    if dtype not in FLOATS and any(isinstance(v, float) and not float(v).is_integer() for v in values):
        raise LoopError(f"a formula mixes {dtype} with a fraction")
    if dtype == "bool" and any(not isinstance(v, (Expr, bool)) for v in values):
        raise LoopError("a formula computes with a mask and a number")
    return tuple(cast(v, dtype) if isinstance(v, Expr) else const(v, dtype) for v in values)


def apply(op: str, *values: Any) -> Expr:
    """An op by its name in `NumpyMath`, with NumPy's result dtype."""
    if op == "where":
        condition, a, b = values
        a, b = together(a, b)
        return expr("where", (truth(condition), a, b), a.dtype)
    args = together(*values)
    if op == "div" and args[0].dtype not in FLOATS:
        raise LoopError(f"a formula divides {args[0].dtype}", fix="Cast the values to a float first.")
    instruction = INSTRUCTIONS.get(op)
    if instruction is None:
        return expr(op, args, args[0].dtype)
    if instruction.kinds == "b":
        args = tuple(truth(a) for a in args)
    return expr(op, args, "bool" if instruction.gives_mask else args[0].dtype)


Expr._apply = staticmethod(apply)


def truth(x: Expr) -> Expr:
    """A mask from a mask or a number."""
    return x if x.dtype == "bool" else expr("ne", (x, const(0, x.dtype)), "bool")


class LoopMath:
    """The `m` of a formula that builds a loop: the functions of NumpyMath, on expressions."""

    differentiable = False

    def __init__(self, known: frozenset[str]) -> None:
        self._known = known

    def __getattr__(self, name: str) -> Any:
        if name not in self._known:
            raise AttributeError(f"the loop language has no function {name!r}")

        def function(*values: Any) -> Expr:
            return apply(name, *values)

        function.__name__ = name
        return function


# -- reading ----------------------------------------------------------------------------------------------------------


def walk(*roots: Expr, bodies: bool = True) -> Iterator[Expr]:
    """Every expression below the roots, once, arguments first; `bodies=False` leaves out the bodies of folds."""
    seen: set[int] = set()
    stack: list[tuple[Expr, bool]] = [(root, False) for root in reversed(roots)]
    while stack:
        node, expanded = stack.pop()
        if id(node) in seen:
            continue
        if expanded or not node.args:
            seen.add(id(node))
            yield node
        else:
            stack.append((node, True))
            args = node.args if bodies or node.op != "fold" else node.args[: (len(node.args) + 1) // 2]
            stack.extend((a, False) for a in reversed(args))


def rewritten(root: Expr, leaf: Callable[[Expr], Expr | None]) -> Expr:
    """The expression with other leaves: `leaf` gives a new one, or None where the old one stays."""
    done: dict[int, Expr] = {}
    for e in walk(root):
        if e.args:
            done[id(e)] = expr(e.op, tuple(done[id(a)] for a in e.args), e.dtype, e.value)
        else:
            other = leaf(e)
            done[id(e)] = e if other is None else other
    return done[id(root)]


# Deeper subexpressions are printed as `…`.
_DEEPEST = 50
_LEAF = {"load": "x", "reload": "y", "reduction": "r", "carry": "c"}


def written(e: Expr, names: dict[int, str] | None = None, strength: int = -1, depth: int = 0) -> str:
    """An expression as text, with infix operators."""
    if names and id(e) in names:
        return names[id(e)]
    if e.op in _LEAF:
        return f"{_LEAF[e.op]}{e.value}"
    if depth > _DEEPEST:
        return "…"
    if e.op == "const":
        if e.dtype not in FLOATS or math.isnan(e.value) or math.isinf(e.value):
            return str(e.value)
        return f"{e.value:.9g}" if e.dtype == "f32" else repr(e.value)
    if e.op == "index":
        return "index"
    if e.op in ("step", "carried", "size", "load_at", "fold"):
        return _written_window(e, names, depth)
    instruction = INSTRUCTIONS.get(e.op)
    if instruction is not None and instruction.sign is not None:
        sign, own = instruction.sign
        text = f"{written(e.args[0], names, own - 1, depth + 1)} {sign} {written(e.args[1], names, own, depth + 1)}"
        return f"({text})" if own <= strength else text
    if e.op == "neg":
        return f"-{written(e.args[0], names, 6, depth + 1)}"
    inside = ", ".join(written(a, names, depth=depth + 1) for a in e.args)
    if e.op == "rescue":
        inside = f"{written(e.args[0], names)}, {written(e.args[1], names)}, {e.value}"
    name = {"cast": e.dtype, "bits": f"{e.dtype}_bits", "call": str(e.value)}.get(e.op, e.op)
    return f"{name}({inside})"


def _written_window(e: Expr, names: dict[int, str] | None, depth: int) -> str:
    """The text of what `loop/window.py` makes."""
    if e.op == "step":
        return f"i{e.value}"
    if e.op == "carried":
        return f"c{e.value[0]}_{e.value[1]}"
    if e.op == "size":
        return f"size(x{e.value[0]}, {e.value[1]})"
    texts = [written(a, names, depth=depth + 1) for a in e.args]
    if e.op == "load_at":
        number, count = e.value
        where = f" where {texts[-1]}" if len(texts) > count else ""
        return f"x{number}[{', '.join(texts[:count])}{where}]"
    level, chosen = e.value
    number = (len(texts) - 1) // 2
    starts = "; ".join(f"c{level}_{k} = {text}" for k, text in enumerate(texts[1 : 1 + number]))
    steps = "; ".join(f"c{level}_{k} = {text}" for k, text in enumerate(texts[1 + number :]))
    text = f"fold({starts}; for i{level} < {texts[0]}: {steps})"
    return text if number == 1 else f"{text}.{chosen}"
