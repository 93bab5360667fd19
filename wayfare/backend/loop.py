"""The loop language: all that a code generator ever sees.

A `Loop` is work on rows. The nest around it (which rows there are, where they lie in memory) is given at run time as
sizes and strides, so a loop knows no shapes. For each row it runs its stages one after the other; a stage visits every
element of the row, computes expressions of what it loads, stores elements, and folds others into one number. A later
stage may use the folds of an earlier one. Softmax, whole:

    loop softmax(x0: f32) -> (y0: f32)
      for each element:
        fold0 = max(x0)
      for each element:
        t0 = exp(x0 - fold0)
        y0 = t0
        fold1 = sum(t0)
      for each element:
        y0 = y0 / fold1

An elementwise op is a loop of one stage without folds, and then it does not matter where a row begins and ends.
Nothing is computed in f16: it is loaded, cast to f32, and cast back to be stored.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from wayfare.backend.expr import DTYPES, LEAVES, PRIMITIVES, Expr, LoopError, walk, written

FOLDS = frozenset({"sum", "prod", "max", "min", "any", "all", "argmax", "argmin"})


@dataclass(frozen=True, slots=True)
class Operand:
    """An input or output. One that is `per_row` has one value for a whole row."""

    dtype: str
    per_row: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Fold:
    """Many elements to one number: kind is one of FOLDS. Sums and products have the value's dtype."""

    kind: str
    value: Expr

    @property
    def dtype(self) -> str:
        """The dtype of the result."""
        if self.kind in ("argmax", "argmin"):
            return "i64"
        return "bool" if self.kind in ("any", "all") else self.value.dtype


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """One visit of every element of a row: elements stored to outputs (output number, value), and folds."""

    stores: tuple[tuple[int, Expr], ...] = ()
    folds: tuple[Fold, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """What to do for each row; `results` are the values of the outputs that have one value per row."""

    name: str
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    stages: tuple[Stage, ...]
    results: tuple[tuple[int, Expr], ...] = ()

    @property
    def folds(self) -> list[Fold]:
        """All folds, in the order of their numbers."""
        return [f for stage in self.stages for f in stage.folds]

    @property
    def elementwise(self) -> bool:
        """Does each element stand for itself, so that rows may be cut and joined at will?"""
        if len(self.stages) != 1 or self.folds or self.results or any(o.per_row for o in self.inputs):
            return False
        return not any(e.op == "index" for _, value in self.stages[0].stores for e in walk(value))

    def __str__(self) -> str:
        return source(self)


def elementwise(name: str, inputs: Iterable[str], *values: Expr) -> Loop:
    """A loop that stores each of the values to an output of its own."""
    given = tuple(Operand(d) for d in inputs)
    made = tuple(Operand(v.dtype) for v in values)
    return Loop(name, given, made, (Stage(tuple(enumerate(values))),))


# -- reading -----------------------------------------------------------------------------------------------------


def source(loop: Loop) -> str:
    """The loop as text: what `print(kernel.source)` shows and what the cache on disk goes by."""
    given = ", ".join(_operand("x", i, o) for i, o in enumerate(loop.inputs))
    made = ", ".join(_operand("y", i, o) for i, o in enumerate(loop.outputs))
    lines = [f"loop {loop.name}({given}) -> ({made})"]
    number = 0
    for stage in loop.stages:
        lines.append("  for each element:")
        roots = [v for _, v in stage.stores] + [f.value for f in stage.folds]
        names: dict[int, str] = {}
        for shared in _shared(roots):
            text = written(shared, names)
            names[id(shared)] = f"t{len(names)}"
            lines.append(f"    t{len(names) - 1} = {text}")
        lines += [f"    y{k} = {written(v, names)}" for k, v in stage.stores]
        for f in stage.folds:
            lines.append(f"    fold{number} = {f.kind}({written(f.value, names)})")
            number += 1
    if loop.results:
        lines.append("  then:")
        lines += [f"    y{k} = {written(v)}" for k, v in loop.results]
    return "\n".join(lines)


def _operand(letter: str, number: int, operand: Operand) -> str:
    return f"{letter}{number}: {operand.dtype}{' per row' if operand.per_row else ''}"


def _shared(roots: list[Expr]) -> list[Expr]:
    """Expressions used more than once: they get a name of their own."""
    uses: dict[int, int] = {}
    order = list(walk(*roots))
    for e in order:
        for a in e.args:
            uses[id(a)] = uses.get(id(a), 0) + 1
    for root in roots:
        uses[id(root)] = uses.get(id(root), 0) + 1
    return [e for e in order if e.args and uses.get(id(e), 0) > 1]


# -- checking ----------------------------------------------------------------------------------------------------


def validate(loop: Loop, known: frozenset[str]) -> None:
    """Refuse a loop that breaks a rule, saying which; `known` are the functions beside the primitives."""

    def fail(what: str) -> None:
        raise LoopError(f"loop {loop.name}: {what}")

    for operand in (*loop.inputs, *loop.outputs):
        if operand.dtype not in DTYPES:
            fail(f"{operand.dtype!r} is no dtype of the loop language")
    done: list[Fold] = []
    stored: set[int] = set()
    for stage in loop.stages:
        for number, value in stage.stores:
            if not 0 <= number < len(loop.outputs) or loop.outputs[number].per_row:
                fail(f"there is no output y{number} with a value for each element")
            if value.dtype != loop.outputs[number].dtype:
                fail(f"y{number} is {loop.outputs[number].dtype}, the value stored is {value.dtype}")
        for f in stage.folds:
            if f.kind not in FOLDS:
                fail(f"there is no fold {f.kind!r}")
            if (f.kind in ("any", "all")) != (f.value.dtype == "bool"):
                fail(f"{f.kind} cannot fold {f.value.dtype}")
        for e in walk(*(v for _, v in stage.stores), *(f.value for f in stage.folds)):
            _check(loop, e, done, stored, known, fail)
        stored |= {number for number, _ in stage.stores}
        done += stage.folds
    for number, value in loop.results:
        if not 0 <= number < len(loop.outputs) or not loop.outputs[number].per_row:
            fail(f"there is no output y{number} with one value per row")
        if value.dtype != loop.outputs[number].dtype:
            fail(f"y{number} is {loop.outputs[number].dtype}, the result is {value.dtype}")
        for e in walk(value):
            _check(loop, e, done, stored, known, fail)
            if e.op in ("index", "reload") or (e.op == "load" and not loop.inputs[e.value].per_row):
                fail(f"the result y{number} uses a value of single elements")
        stored.add(number)
    if stored != set(range(len(loop.outputs))):
        fail(f"outputs {sorted(set(range(len(loop.outputs))) - stored)} are never stored")


def _check(loop: Loop, e: Expr, done: list[Fold], stored: set[int], known: frozenset[str], fail: Any) -> None:
    """One expression by itself: its op, its arguments' dtypes, what it refers to."""
    if e.dtype not in DTYPES:
        fail(f"{e.dtype!r} is no dtype of the loop language")
    if e.op == "load":
        if not 0 <= e.value < len(loop.inputs) or loop.inputs[e.value].dtype != e.dtype:
            fail(f"there is no input x{e.value} of {e.dtype}")
    elif e.op == "reload":
        if e.value not in stored or loop.outputs[e.value].dtype != e.dtype:
            fail(f"y{e.value} is read before a stage has stored it")
    elif e.op == "fold":
        if not 0 <= e.value < len(done) or done[e.value].dtype != e.dtype:
            fail(f"fold{e.value} is used before its stage is done")
    elif e.op not in PRIMITIVES and e.op not in LEAVES and e.op not in known:
        fail(f"there is no function {e.op!r}")
    elif e.op not in ("where", "cast", "bits", "call", "const", "index"):
        if any(a.dtype != e.args[0].dtype for a in e.args):
            fail(f"{e.op} mixes {', '.join(a.dtype for a in e.args)}")
        if e.dtype == "f16" or e.args[0].dtype == "f16":
            fail(f"{e.op} computes in f16")
