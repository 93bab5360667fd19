"""Emits a group of steps as one loop of the loop language."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from wayfare.codegen.loop import expr as ex
from wayfare.codegen.loop.expr import OF_NUMPY, Expr
from wayfare.codegen.loop.language import Loop, Operand, Reduction, Stage
from wayfare.core.symbolic_sizes import Dim, Number, formula_of
from wayfare.ir.fuse.expressions import computed_in, converted, written
from wayfare.ir.fuse.partition import Group, Map, Partition
from wayfare.ir.graph import Value
from wayfare.ir.lower import is_reduction

# A value that costs less than this is recomputed in a later stage; others are stored and read back.
_RELOAD = 8


# Numbers that stay constants in the code. Other numbers may be sizes; they are inputs, so that one loop serves all.
_COMMON = frozenset({0, 1, -1, 2, -2, 0.5, -0.5, 3, 4, math.inf, -math.inf})


@dataclass(frozen=True, slots=True)
class Given:
    """An input of a loop: a value with its map, or a number (`value` is None) that is given at run time."""

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
        self.reductions: dict[Value, int] = {}
        # Expensive values that later stages read back: (number of the output that stores it, stage).
        self.saved: dict[Value, tuple[int, int]] = {}

    # -- operands

    def _operand(self, given: Given, dtype: str) -> Expr:
        self.inputs.append(given)
        return ex.load(len(self.inputs) - 1, dtype)

    def parameter(self, value: Any, dtype: str) -> Expr:
        """A number that is given at run time."""
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
        """Does a value with this map have one element for each row?"""
        return bool(self.group.reduced) and not any(a in self.group.reduced for a in own)

    # -- expressions

    def level(self, v: Value) -> int:
        """The first stage in which a value of the group is available."""
        if not self._levels:
            for x in sorted(self.group.maps, key=lambda x: x.step.born):
                before = [self._levels[r] for r in self.partition.inside(self.group, x)]
                self._levels[x] = max(before, default=0) + (is_reduction(x.step))
        return self._levels[v]

    def value(self, v: Value, stage: int) -> Expr:
        """The expression of a value of the group in a stage."""
        if (v, stage) not in self._known:
            # Its inputs first: recursion over a long chain would be too deep.
            for x in sorted(self._behind(v, stage), key=lambda x: x.step.born):
                self._known[x, stage] = self._value(x, stage)
        return self._known[v, stage]

    def _behind(self, v: Value, stage: int) -> set[Value]:
        """The values that a stage must compute for this one."""
        found: set[Value] = set()
        stack = [v]
        while stack:
            x = stack.pop()
            if x in found or (x, stage) in self._known:
                continue
            found.add(x)
            if not is_reduction(x.step) and not self._reloaded(x, stage):
                stack.extend(self.partition.inside(self.group, x))
        return found

    def _reloaded(self, v: Value, stage: int) -> bool:
        return v in self.saved and stage > self.saved[v][1]

    def _value(self, v: Value, stage: int) -> Expr:
        if is_reduction(v.step):
            return self._reduced(v)
        if self._reloaded(v, stage):
            return ex.reload(self.saved[v][0], OF_NUMPY[v.dtype])
        step = v.step
        assert step.op is not None
        return written(step.op, self.arguments(v, stage), step.attrs, v.dtype, self.parameter)

    def _reduced(self, v: Value) -> Expr:
        made = ex.reduction(self.reductions[v], _reduction_dtype(v))
        return converted(made, computed_in(v.dtype))

    def arguments(self, v: Value, stage: int) -> list[Expr]:
        """The expressions of a step's inputs."""
        made = []
        for root, own in self.partition.operands_in(self.group, v):
            if root.step.name == "number":
                made.append(self._number(root.step.data, computed_in(root.dtype)))
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
        if not group.reduced:
            all_stores = tuple((k, self._stored(v, 0)) for k, v in enumerate(self.stored))
            return Loop(name, self._inputs(), self._outputs(), (Stage(all_stores),))
        live = self.partition.live(group, set(self.stored))
        reductions = sorted((v for v in live if is_reduction(v.step)), key=lambda v: (self.level(v), v.step.born))
        self.reductions = {v: k for k, v in enumerate(reductions)}
        elements = [v for v in self.stored if not self.is_row(group.maps[v])]
        self._choose_saved(live, elements)
        count = max([self.level(v) for v in reductions] + [self.level(v) + 1 for v in elements])
        stages = []
        for stage in range(count):
            stores = [(k, self._stored(v, stage)) for k, v in enumerate(self.stored)
                      if not self.is_row(group.maps[v]) and self.level(v) == stage]  # fmt: skip
            stores += [(k, self.value(v, stage)) for v, (k, at) in self.saved.items()
                       if at == stage and not any(v is s for s in self.stored)]  # fmt: skip
            here = [v for v in reductions if self.level(v) == stage + 1]
            made = tuple(
                Reduction(v.step.op.loop_reduction, self._reduction_value(v, stage)) for v in here if v.step.op
            )
            stages.append(Stage(tuple(stores), made))
        results = tuple((k, self._stored(v, count)) for k, v in enumerate(self.stored) if self.is_row(group.maps[v]))
        return Loop(name, self._inputs(), self._outputs(), tuple(stages), results)

    def _stored(self, v: Value, stage: int) -> Expr:
        return converted(self.value(v, stage), OF_NUMPY[v.dtype])

    def _reduction_value(self, v: Value, stage: int) -> Expr:
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
        """The stages in which each value is needed."""
        found: dict[Value, set[int]] = {}
        reductions = [v for v in live if is_reduction(v.step)]
        stack = [(r, self.level(v) - 1) for v in reductions for r in self.partition.inside(self.group, v)]
        stack += [(v, self.level(v)) for v in elements]
        while stack:
            v, stage = stack.pop()
            if is_reduction(v.step) or self.is_row(self.group.maps[v]) or stage in found.setdefault(v, set()):
                continue
            found[v].add(stage)
            if not self._reloaded(v, stage):
                stack.extend((r, stage) for r in self.partition.inside(self.group, v))
        return found

    def _choose_saved(self, live: set[Value], elements: list[Value]) -> None:
        """Store expensive values that several stages need once: in their own output, or in one that is written
        later."""
        taken: set[int] = set()
        tried: set[Value] = set()
        while True:
            stages = self._stages(live, elements)
            expensive = [v for v in stages if v not in tried and len(stages[v]) > 1 and self._worth_saving(v)]
            if not expensive:
                return
            v = max(expensive, key=lambda v: v.step.born)
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
        """A rough cost of computing a value in a stage, at most `_RELOAD`."""
        if not self._prices:
            for x in sorted(self.group.maps, key=lambda x: x.step.born):
                own = 0.0 if is_reduction(x.step) or self.is_row(self.group.maps[x]) else self.partition.cost[x]
                before = [self._prices[r] for r in self.partition.inside(self.group, x)] if own else []
                self._prices[x] = min(own + sum(before), _RELOAD)
        return self._prices[v]


def _reduction_dtype(v: Value) -> str:
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
    """The loop of a group that stores the values `stored`."""
    writer = _Writer(partition, group, stored)
    loop = writer.loop(name)
    if all(o.per_row for o in loop.inputs):
        # A loop takes its size from its inputs, and none of them has it: add one that has.
        writer.inputs.append(Given(None, (), 0, np.dtype(np.float32)))
        loop = Loop(name, (*loop.inputs, Operand("f32")), loop.outputs, loop.stages, loop.results)
    return Emitted(loop, writer.inputs, stored)
