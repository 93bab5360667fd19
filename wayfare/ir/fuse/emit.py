"""A group of steps as one loop of the loop language."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from wayfare.codegen.loop import expr as ex
from wayfare.codegen.loop.expr import OF_NUMPY, Expr
from wayfare.codegen.loop.language import Loop, Operand, Reduction, Stage
from wayfare.core.symbolic_sizes import Dim, Number, formula_of
from wayfare.ir.fuse.partition import Group, Map, Partition
from wayfare.ir.fuse.write import computed_in, converted, written
from wayfare.ir.graph import Value
from wayfare.ir.lower import FOLDS

# A value that costs less than this is computed again in a later stage; a dearer one is stored and read back.
_RELOAD = 8


# Numbers that are written into code even where others might be sizes, so that one loop serves all of those.
_COMMON = frozenset({0, 1, -1, 2, -2, 0.5, -0.5, 3, 4, math.inf, -math.inf})


@dataclass(frozen=True, slots=True)
class Given:
    """An input of a loop: a value seen through a map, or a number (`value` is None) that is given at run time."""

    value: Value | None
    own: Map
    number: Any = None
    dtype: Any = None


@dataclass(frozen=True, slots=True)
class Emitted:
    """A loop and what its operands are."""

    loop: Loop
    inputs: list[Given]
    outputs: list[Value]


class _Writer:
    def __init__(self, partition: Partition, group: Group, stored: list[Value]) -> None:
        self.partition, self.group, self.stored = partition, group, stored
        self.inputs: list[Given] = []
        self._numbers: dict[Any, Expr] = {}
        self._loads: dict[Any, Expr] = {}
        self._levels: dict[Value, int] = {}
        self._prices: dict[Value, float] = {}
        self._known: dict[tuple[Value, int], Expr] = {}
        self.folds: dict[Value, int] = {}
        # Where a dear value is stored to be read back in later stages: output number and stage.
        self.saved: dict[Value, tuple[int, int]] = {}

    # -- operands

    def _operand(self, given: Given, dtype: str) -> Expr:
        self.inputs.append(given)
        return ex.load(len(self.inputs) - 1, dtype)

    def parameter(self, value: Any, dtype: str) -> Expr:
        """A number that is given when the loop runs."""
        key = (repr(formula_of(value)), dtype)
        if key not in self._numbers:
            self._numbers[key] = self._operand(Given(None, (), value, ex.NUMPY[dtype]), dtype)
        return self._numbers[key]

    def _load(self, v: Value, own: Map) -> Expr:
        key = (v, own)
        if key not in self._loads:
            self._loads[key] = self._operand(Given(v, own), OF_NUMPY[v.dtype])
        return converted(self._loads[key], computed_in(v.dtype))

    def is_row(self, own: Map) -> bool:
        """Has a value with this map one element for a whole row?"""
        return bool(self.group.folded) and not any(a in self.group.folded for a in own)

    # -- expressions

    def level(self, v: Value) -> int:
        """The stage in which a value of the group can first be had."""
        if not self._levels:
            for x in sorted(self.group.maps, key=lambda x: x.step.born):
                before = [self._levels[r] for r in self.partition.inside(self.group, x)]
                self._levels[x] = max(before, default=0) + (x.step.name in FOLDS)
        return self._levels[v]

    def value(self, v: Value, stage: int) -> Expr:
        """The expression of a value of the group, as a stage writes it."""
        if (v, stage) not in self._known:
            # What it is made of comes first: a long chain would be too deep for a recursion.
            for x in sorted(self._behind(v, stage), key=lambda x: x.step.born):
                self._known[x, stage] = self._value(x, stage)
        return self._known[v, stage]

    def _behind(self, v: Value, stage: int) -> set[Value]:
        """The values a stage must compute for one of them."""
        found: set[Value] = set()
        stack = [v]
        while stack:
            x = stack.pop()
            if x in found or (x, stage) in self._known:
                continue
            found.add(x)
            if x.step.name not in FOLDS and not self._reloaded(x, stage):
                stack.extend(self.partition.inside(self.group, x))
        return found

    def _reloaded(self, v: Value, stage: int) -> bool:
        return v in self.saved and stage > self.saved[v][1]

    def _value(self, v: Value, stage: int) -> Expr:
        if v.step.name in FOLDS:
            return self._folded(v)
        if self._reloaded(v, stage):
            return ex.reload(self.saved[v][0], OF_NUMPY[v.dtype])
        step = v.step
        assert step.op is not None
        return written(step.op, self.arguments(v, stage), step.attrs, v.dtype, self.parameter)

    def _folded(self, v: Value) -> Expr:
        made = ex.reduction(self.folds[v], _fold_dtype(v))
        return converted(made, computed_in(v.dtype))

    def arguments(self, v: Value, stage: int) -> list[Expr]:
        """The expressions of a step's inputs."""
        made = []
        for root, own in self.partition.operands_in(self.group, v):
            if root.step.name == "number":
                made.append(self._number(root.step.leaf[1], computed_in(root.dtype)))
            elif self.group.has(root, own):
                made.append(self.value(root, stage))
            else:
                made.append(self._load(root, own))
        return made

    def _number(self, value: Any, dtype: str) -> Expr:
        if isinstance(value, (Dim, Number)):
            return self.parameter(value, dtype)
        if self.partition.sizes_are_numbers and dtype in ex.FLOATS and value not in _COMMON and value == value:
            return self.parameter(value, dtype)
        return ex.const(value, dtype)

    # -- the loop

    def loop(self, name: str) -> Loop:
        group = self.group
        if not group.folded:
            all_stores = tuple((k, self._stored(v, 0)) for k, v in enumerate(self.stored))
            return Loop(name, self._inputs(), self._outputs(), (Stage(all_stores),))
        live = self.partition.live(group, set(self.stored))
        folds = sorted((v for v in live if v.step.name in FOLDS), key=lambda v: (self.level(v), v.step.born))
        self.folds = {v: k for k, v in enumerate(folds)}
        elements = [v for v in self.stored if not self.is_row(group.maps[v])]
        self._choose_saved(live, elements)
        count = max([self.level(v) for v in folds] + [self.level(v) + 1 for v in elements])
        stages = []
        for stage in range(count):
            stores = [(k, self._stored(v, stage)) for k, v in enumerate(self.stored)
                      if not self.is_row(group.maps[v]) and self.level(v) == stage]  # fmt: skip
            stores += [(k, self.value(v, stage)) for v, (k, at) in self.saved.items()
                       if at == stage and not any(v is s for s in self.stored)]  # fmt: skip
            here = [v for v in folds if self.level(v) == stage + 1]
            made = tuple(Reduction(FOLDS[v.step.name], self._fold_value(v, stage)) for v in here)
            stages.append(Stage(tuple(stores), made))
        results = tuple((k, self._stored(v, count)) for k, v in enumerate(self.stored) if self.is_row(group.maps[v]))
        return Loop(name, self._inputs(), self._outputs(), tuple(stages), results)

    def _stored(self, v: Value, stage: int) -> Expr:
        return converted(self.value(v, stage), OF_NUMPY[v.dtype])

    def _fold_value(self, v: Value, stage: int) -> Expr:
        x = self.arguments(v, stage)[0]
        kind = v.step.name
        if kind in ("any", "all"):
            return converted(x, "bool")
        if kind in ("sum", "prod"):
            return converted(x, computed_in(v.dtype))
        return converted(x, "u8") if x.dtype == "bool" else x

    def _inputs(self) -> tuple[Operand, ...]:
        return tuple(
            Operand(OF_NUMPY[g.dtype if g.value is None else g.value.dtype], self.is_row(g.own)) for g in self.inputs
        )

    def _outputs(self) -> tuple[Operand, ...]:
        return tuple(Operand(OF_NUMPY[v.dtype], self.is_row(self.group.maps[v])) for v in self.stored)

    def _stages(self, live: set[Value], elements: list[Value]) -> dict[Value, set[int]]:
        """In which stages the value of each element is wanted."""
        found: dict[Value, set[int]] = {}
        folds = [v for v in live if v.step.name in FOLDS]
        stack = [(r, self.level(v) - 1) for v in folds for r in self.partition.inside(self.group, v)]
        stack += [(v, self.level(v)) for v in elements]
        while stack:
            v, stage = stack.pop()
            if v.step.name in FOLDS or self.is_row(self.group.maps[v]) or stage in found.setdefault(v, set()):
                continue
            found[v].add(stage)
            if not self._reloaded(v, stage):
                stack.extend((r, stage) for r in self.partition.inside(self.group, v))
        return found

    def _choose_saved(self, live: set[Value], elements: list[Value]) -> None:
        """Dear values of several stages are stored once: in an output of their own, or one that is free till later."""
        taken: set[int] = set()
        tried: set[Value] = set()
        while True:
            stages = self._stages(live, elements)
            dear = [v for v in stages if v not in tried and len(stages[v]) > 1 and self._worth_saving(v)]
            if not dear:
                return
            v = max(dear, key=lambda v: v.step.born)
            tried.add(v)
            place = self._place_for(v, max(stages[v]), taken)
            if place is not None:
                taken.add(place)
                self.saved[v] = (place, min(stages[v]))

    def _worth_saving(self, v: Value) -> bool:
        whole = len([a for a in self.group.maps[v] if a >= 0]) == len(self.group.shape)
        return whole and OF_NUMPY[v.dtype] == computed_in(v.dtype) and self._price(v) >= _RELOAD

    def _place_for(self, v: Value, last: int, taken: set[int]) -> int | None:
        for k, s in enumerate(self.stored):
            if s is v and k not in taken:
                return k
        for k, s in enumerate(self.stored):
            free = k not in taken and s.dtype == v.dtype and not self.is_row(self.group.maps[s])
            if free and s not in self.saved and self.level(s) >= last:
                return k
        return None

    def _price(self, v: Value) -> float:
        """The cost of computing a value from what a stage is given: about, and not beyond what is asked."""
        if not self._prices:
            for x in sorted(self.group.maps, key=lambda x: x.step.born):
                own = 0.0 if x.step.name in FOLDS or self.is_row(self.group.maps[x]) else self.partition.cost[x]
                before = [self._prices[r] for r in self.partition.inside(self.group, x)] if own else []
                self._prices[x] = min(own + sum(before), _RELOAD)
        return self._prices[v]


def _fold_dtype(v: Value) -> str:
    kind = v.step.name
    if kind in ("argmax", "argmin"):
        return "i64"
    if kind in ("any", "all"):
        return "bool"
    if kind in ("sum", "prod"):
        return computed_in(v.dtype)
    x = computed_in(v.step.inputs[0].dtype)
    return "u8" if x == "bool" else x


def emit(partition: Partition, group: Group, stored: list[Value], name: str) -> Emitted:
    """The loop of a group that stores these of its values."""
    writer = _Writer(partition, group, stored)
    loop = writer.loop(name)
    if all(o.per_row for o in loop.inputs):
        # A loop takes its size from its inputs, and none of these has it.
        writer.inputs.append(Given(None, (), 0, np.dtype(np.float32)))
        loop = Loop(name, (*loop.inputs, Operand("f32")), loop.outputs, loop.stages, loop.results)
    return Emitted(loop, writer.inputs, stored)
