"""The loop language: the only input of the code generator.

A `Loop` describes the work on one row. Sizes and strides of the loop nest around it are given at run time, so a loop
has no shapes. For each row, the stages run one after the other. A stage visits every element of the row: it computes
expressions from the inputs, stores results, and reduces values to one number. Later stages may use the reductions of
earlier ones. Softmax:

    loop softmax(x0: f32) -> (y0: f32)
      for each element:
        r0 = max(x0)
      for each element:
        t0 = exp(x0 - r0)
        y0 = t0
        r1 = sum(t0)
      for each element:
        y0 = y0 / r1

An operand may have axes of its own, whose elements are reached by computed positions (`loop/window.py`); `StoreAt` is
the store that goes with it. What is stored at one position several times is combined in the order of the elements, so
results do not depend on vectors or threads. Rows of a table, and their gradient:

    loop gather(x0: f32[1], x1: i64 per row) -> (y0: f32)
      for each element:
        y0 = x0[x1]

    loop scatter_add(x0: f32, x1: i64 per row) -> (y0: f32[1])
      for each element:
        y0[x1] += x0

An elementwise op is a loop of one stage without reductions; there the limits of rows do not matter.
Nothing is computed in f16 and bf16: values are loaded, cast to f32, and cast back before they are stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from wayfare.codegen.loop.expr import DTYPES, FLOATS, NARROW, NUMPY, Expr, integer_range, walk, written
from wayfare.codegen.loop.instruction import INSTRUCTIONS
from wayfare.codegen.loop.window_rules import COMBINED, wrong_store, wrong_variables, wrong_window
from wayfare.core.errors import LoopError

# Expressions nested deeper than this are printed on several lines.
_DEEP = 20
REDUCTIONS = frozenset({"sum", "prod", "max", "min", "any", "all", "argmax", "argmin"})


@dataclass(frozen=True, slots=True)
class Operand:
    """An input or output. A `per_row` operand has one value for each row.

    An operand with `axes` of its own has an array in place of a value. They are the last axes of the array given.
    """

    dtype: str
    per_row: bool = False
    axes: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Reduction:
    """A reduction of the elements of a row to one number; `kind` is one of REDUCTIONS. Sums keep the value's dtype."""

    kind: str
    value: Expr

    @property
    def dtype(self) -> str:
        """The dtype of the result."""
        if self.kind in ("argmax", "argmin"):
            return "i64"
        return "bool" if self.kind in ("any", "all") else self.value.dtype


@dataclass(frozen=True, slots=True, eq=False)
class StoreAt:
    """A store at computed positions of an output with axes of its own; elements outside the mask store nothing.

    `how` is one of COMBINED: "set", or how the value is combined with the one that is there. Elements are stored one
    after the other, in the order of the nest.
    """

    output: int
    indices: tuple[Expr, ...]
    value: Expr
    how: str = "set"
    mask: Expr | None = None

    @property
    def values(self) -> tuple[Expr, ...]:
        """All its expressions: indices, value, mask."""
        return (*self.indices, self.value, *(() if self.mask is None else (self.mask,)))

    def rebuilt(self, values: Sequence[Expr]) -> StoreAt:
        """The same store with other expressions, in the order of `values`."""
        count = len(self.indices)
        mask = None if self.mask is None else values[-1]
        return StoreAt(self.output, tuple(values[:count]), values[count], self.how, mask)


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """One visit of every element of a row: stores as (output number, value), reductions, stores by index.

    `carries` are values that go from one element to the next, as (start, value): then elements are visited in order.
    """

    stores: tuple[tuple[int, Expr], ...] = ()
    reductions: tuple[Reduction, ...] = ()
    stores_at: tuple[StoreAt, ...] = ()
    carries: tuple[tuple[Expr, Expr], ...] = ()

    @property
    def values(self) -> list[Expr]:
        """All its expressions: stores, reductions, stores by index, carries."""
        found = [v for _, v in self.stores] + [f.value for f in self.reductions]
        return found + [v for s in self.stores_at for v in s.values] + [v for pair in self.carries for v in pair]


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """The work for each row; `results` are the values of the `per_row` outputs."""

    name: str
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    stages: tuple[Stage, ...]
    results: tuple[tuple[int, Expr], ...] = ()

    @property
    def reductions(self) -> list[Reduction]:
        """All reductions, in the order of their numbers."""
        return [f for stage in self.stages for f in stage.reductions]

    @property
    def elementwise(self) -> bool:
        """Are the elements independent of each other and of their position, so that rows may be split and joined?"""
        if len(self.stages) != 1 or self.reductions or self.results or self.indexed or self.carrying:
            return False
        if any(o.per_row for o in self.inputs):
            return False
        return not any(e.op == "index" for e in walk(*self.stages[0].values))

    @property
    def carrying(self) -> bool:
        """Do values go from one element to the next?"""
        return any(stage.carries for stage in self.stages)

    @property
    def indexed(self) -> bool:
        """Are there operands with axes of their own?"""
        return any(o.axes for o in (*self.inputs, *self.outputs))

    def __str__(self) -> str:
        return source(self)


def elementwise(name: str, inputs: Iterable[str], *values: Expr) -> Loop:
    """A loop that stores each value to an output of its own."""
    given = tuple(Operand(d) for d in inputs)
    made = tuple(Operand(v.dtype) for v in values)
    return Loop(name, given, made, (Stage(tuple(enumerate(values))),))


# -- reading -----------------------------------------------------------------------------------------------------


def expressions(loop: Loop) -> Iterator[Expr]:
    """Every expression of a loop."""
    for stage in loop.stages:
        yield from walk(*stage.values)
    yield from walk(*(v for _, v in loop.results))


def source(loop: Loop) -> str:
    """The loop as text: what `print(kernel.source)` shows."""
    given = ", ".join(_operand("x", i, o) for i, o in enumerate(loop.inputs))
    made = ", ".join(_operand("y", i, o) for i, o in enumerate(loop.outputs))
    lines = [f"loop {loop.name}({given}) -> ({made})"]
    number = 0
    for stage in loop.stages:
        starts = ", ".join(f"c{k} = {written(start)}" for k, (start, _) in enumerate(stage.carries))
        lines.append(f"  for each element in order, from {starts}:" if starts else "  for each element:")
        names: dict[int, str] = {}
        for named in _shared(stage.values):
            text = written(named, names)
            names[id(named)] = f"t{len(names)}"
            lines.append(f"    t{len(names) - 1} = {text}")
        lines += [f"    y{k} = {written(v, names)}" for k, v in stage.stores]
        for f in stage.reductions:
            lines.append(f"    r{number} = {f.kind}({written(f.value, names)})")
            number += 1
        lines += [f"    {_stored_at(s, names)}" for s in stage.stores_at]
        lines += [f"    c{k} = {written(v, names)}" for k, (_, v) in enumerate(stage.carries)]
    if loop.results:
        lines.append("  then:")
        lines += [f"    y{k} = {written(v)}" for k, v in loop.results]
    return "\n".join(lines)


def _stored_at(store: StoreAt, names: dict[int, str]) -> str:
    where = "" if store.mask is None else f" where {written(store.mask, names)}"
    at = ", ".join(written(i, names) for i in store.indices)
    return f"y{store.output}[{at}{where}] {COMBINED[store.how]} {written(store.value, names)}"


def exact(loop: Loop) -> str:
    """A complete text of the loop (every dtype, every bit of a constant): equal texts mean equal loops."""
    numbers: dict[int, int] = {}
    lines = [repr((loop.name, loop.inputs, loop.outputs))]

    def number_of(root: Expr) -> int:
        for e in walk(root):
            if id(e) not in numbers:
                numbers[id(e)] = len(numbers)
                value = e.value.hex() if isinstance(e.value, float) else repr(e.value)
                lines.append(f"{e.op} {e.dtype} {value} {[numbers[id(a)] for a in e.args]}")
        return numbers[id(root)]

    for stage in loop.stages:
        lines.append(f"stores {[(k, number_of(v)) for k, v in stage.stores]}")
        lines.append(f"reductions {[(f.kind, number_of(f.value)) for f in stage.reductions]}")
        lines += [f"at {s.output} {s.how} {s.mask is None} {[number_of(v) for v in s.values]}" for s in stage.stores_at]
        lines += [f"carry {number_of(a)} {number_of(b)}" for a, b in stage.carries]
    lines.append(f"results {[(k, number_of(v)) for k, v in loop.results]}")
    return "\n".join(lines)


def _operand(letter: str, number: int, operand: Operand) -> str:
    axes = f"[{operand.axes}]" if operand.axes else ""
    return f"{letter}{number}: {operand.dtype}{axes}{' per row' if operand.per_row else ''}"


def _shared(roots: list[Expr]) -> list[Expr]:
    """Expressions that are printed as named temporaries: those used more than once, and deeply nested ones."""
    uses: dict[int, int] = {}
    order = list(walk(*roots))
    for e in order:
        for a in e.args:
            uses[id(a)] = uses.get(id(a), 0) + 1
    for root in roots:
        uses[id(root)] = uses.get(id(root), 0) + 1
    named, depth = [], dict.fromkeys(map(id, order), 0)
    for e in order:
        depth[id(e)] = max((depth[id(a)] for a in e.args), default=-1) + 1
        if e.args and (uses[id(e)] > 1 or depth[id(e)] >= _DEEP):
            named.append(e)
            depth[id(e)] = 0
    return named


# -- checking ----------------------------------------------------------------------------------------------------


def validate(loop: Loop, known: frozenset[str]) -> None:
    """Raise LoopError for a loop that breaks a rule. `known` are the functions besides the primitives."""

    def fail(what: str) -> None:
        raise LoopError(f"loop {loop.name}: {what}")

    if not loop.inputs or not loop.outputs:
        fail("it must have an input, which says how long rows are, and an output")
    for operand in (*loop.inputs, *loop.outputs):
        if operand.dtype not in DTYPES:
            fail(f"{operand.dtype!r} is no dtype of the loop language")
    done: list[Reduction] = []
    stored: set[int] = set()
    for stage in loop.stages:
        for number, value in stage.stores:
            if not 0 <= number < len(loop.outputs) or loop.outputs[number].per_row or loop.outputs[number].axes:
                fail(f"there is no output y{number} with a value for each element")
            if value.dtype != loop.outputs[number].dtype:
                fail(f"y{number} is {loop.outputs[number].dtype}, the value stored is {value.dtype}")
        for f in stage.reductions:
            if f.kind not in REDUCTIONS:
                fail(f"there is no reduction {f.kind!r}")
            if (f.kind in ("any", "all")) != (f.value.dtype == "bool") or f.value.dtype in NARROW:
                fail(f"{f.kind} cannot reduce {f.value.dtype}")
        for store in stage.stores_at:
            wrong = wrong_store(loop, store, stored)
            if wrong:
                fail(wrong)
            stored.add(store.output)
        for e in walk(*stage.values):
            _check(loop, e, done, stored, known, fail)
        wrong = wrong_variables(loop, stage)
        if wrong:
            fail(wrong)
        stored |= {number for number, _ in stage.stores}
        done += stage.reductions
    for number, value in loop.results:
        if not 0 <= number < len(loop.outputs) or not loop.outputs[number].per_row or loop.outputs[number].axes:
            fail(f"there is no output y{number} with one value per row")
        if value.dtype != loop.outputs[number].dtype:
            fail(f"y{number} is {loop.outputs[number].dtype}, the result is {value.dtype}")
        for e in walk(value):
            _check(loop, e, done, stored, known, fail)
            alone = e.op in ("index", "reload", "load_at", "fold", "step", "carried", "carry")
            if alone or (e.op == "load" and not loop.inputs[e.value].per_row):
                fail(f"the result y{number} uses a value of single elements")
        stored.add(number)
    if stored != set(range(len(loop.outputs))):
        fail(f"outputs {sorted(set(range(len(loop.outputs))) - stored)} are never stored")


def _check(loop: Loop, e: Expr, done: list[Reduction], stored: set[int], known: frozenset[str], fail: Any) -> None:
    """Check one expression: its op, the dtypes of its arguments, and what it refers to."""
    if e.dtype not in DTYPES:
        fail(f"{e.dtype!r} is no dtype of the loop language")
    if e.op == "load":
        if not 0 <= e.value < len(loop.inputs) or loop.inputs[e.value] != _plain(loop.inputs[e.value], e.dtype):
            fail(f"there is no input x{e.value} of {e.dtype}")
    elif e.op in ("load_at", "size", "fold", "step", "carried", "carry"):
        wrong = wrong_window(loop, e)
        if wrong:
            fail(wrong)
    elif e.op == "reload":
        if e.value not in stored or loop.outputs[e.value] != _plain(loop.outputs[e.value], e.dtype):
            fail(f"y{e.value} is read before a stage has stored it")
    elif e.op == "reduction":
        if not 0 <= e.value < len(done) or done[e.value].dtype != e.dtype:
            fail(f"reduction r{e.value} is used before its stage is done")
    elif e.op == "const":
        if e.args or not _fits(e):
            fail(f"{e.value!r} is no constant of {e.dtype}")
    elif e.op == "index":
        if e.dtype != "i64":
            fail(f"the index is i64, not {e.dtype}")
    elif e.op not in INSTRUCTIONS and e.op not in known:
        fail(f"there is no function {e.op!r}")
    else:
        wrong = _misused(e)
        if wrong:
            fail(wrong)


def _plain(operand: Operand, dtype: str) -> Operand:
    """The operand as one of this dtype without axes of its own."""
    return Operand(dtype, operand.per_row)


def _fits(e: Expr) -> bool:
    if e.dtype == "bool":
        return isinstance(e.value, bool)
    if e.dtype in FLOATS:
        return isinstance(e.value, float)
    low, high = integer_range(e.dtype)
    return isinstance(e.value, int) and low <= e.value <= high


def _misused(e: Expr) -> str:
    """What is wrong with the arguments of an op; "" if they are right."""
    dtypes = [a.dtype for a in e.args]
    listed = ", ".join(dtypes)
    instruction = INSTRUCTIONS.get(e.op)
    count = 2 if instruction is None else instruction.inputs
    if e.op == "rescue":
        right = len(dtypes) > 2 and dtypes[:2] == ["bool", e.dtype] and set(dtypes[2:]) == {"f64"}
        right = right and e.dtype not in NARROW
        return "" if right else f"rescue by {e.value} is given {listed}"
    if not dtypes or (instruction is not None and e.op != "call" and len(dtypes) != count):
        return f"{e.op} takes {count} values, not {len(dtypes)}"
    first = dtypes[-1]
    if e.op == "call":
        return "" if {*dtypes, e.dtype} == {"f64"} else f"{e.value} is a function of f64, not of {listed}"
    if e.op == "bits":
        same = NUMPY[e.dtype].itemsize == NUMPY[first].itemsize
        return "" if same else f"bits of {first} cannot be read as {e.dtype}"
    if e.op == "cast":
        return ""
    if e.op == "where":
        return "" if dtypes == ["bool", e.dtype, e.dtype] else f"where chooses between {listed}"
    if any(d != first for d in dtypes):
        return f"{e.op} mixes {listed}"
    if e.dtype in NARROW or first in NARROW:
        return f"{e.op} computes in {first}"
    if instruction is not None and e.dtype != ("bool" if instruction.gives_mask else first):
        return f"{e.op} of {first} is not {e.dtype}"
    if instruction is not None and NUMPY[first].kind not in instruction.kinds:
        return f"there is no {e.op} of {first}"
    return ""
