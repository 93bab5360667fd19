"""Values of loop iterations that are used after the loop: joined, read by another loop, or picked by their number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from wayfare.core.op import REGISTRY
from wayfare.exporters.recover.constants import Differs
from wayfare.exporters.recover.loop_detection import BranchStep, LoopStep, PickStep
from wayfare.exporters.trace_steps import ReadStep, TraceStep
from wayfare.ir.graph import Block, Step, Value, leaf, unbound

if TYPE_CHECKING:
    from wayfare.exporters.recover.loops import Loop

# Where in an iteration a value is made: the number of the step, and the number of its output.
Made = tuple[int, int]


class Collected:
    """The outputs that a loop collects. `rests` are the steps after the loop in each run."""

    def __init__(self, loop: Loop, rests: Sequence[Block]) -> None:
        self.loop = loop
        self.rests = rests
        self._counts = [len(one.iterations) for one in loop.loops]
        # For each stack or cat of such values: by run, the values in order, and the value that stacks them.
        self._joins: list[dict[int, tuple[list[Value], Value]]] = []
        # Values that are stacked over all iterations: by run, the stacked value.
        self._kept: dict[Made, dict[int, Value]] = {}
        # Values of the last iteration that are used after the loop.
        self._lasts: list[Made] = []
        # By run: steps that select values of one iteration, to be put before the steps after the loop.
        self._front: list[list[TraceStep]] = [[] for _ in rests]
        # Steps to be added after the loop.
        self.after: list[Step] = []
        for steps in self._alike(_joins):
            self._join(steps)
        for loops in self._alike(lambda step: isinstance(step, LoopStep)):
            self._go_through_again(loops)

    def _alike(self, wanted: Callable[[Any], bool]) -> list[dict[int, Any]]:
        """Steps after the loop, grouped with those of other runs at the same position: by run."""
        found: dict[Any, dict[int, Any]] = {}
        for number, rest in enumerate(self.rests):
            step: Any
            for at, step in enumerate(rest.steps):
                if wanted(step):
                    found.setdefault((at, step.key), {})[number] = step
        return list(found.values())

    def _replace(self, number: int, step: Any, others: Sequence[Any]) -> None:
        steps = self.rests[number].steps
        at = steps.index(step)
        steps[at : at + 1] = others

    # -- stack and cat of values of all iterations

    def _join(self, steps: dict[int, TraceStep]) -> None:
        """Write a stack or cat of one value of every iteration, perhaps with others before and after, as steps on the
        stacked value."""
        found = self._window({n: list(step.inputs) for n, step in steps.items()})
        if found is None:
            return
        before, backwards = found
        join = {}
        for n, step in steps.items():
            parts, end = list(step.inputs), before + self._counts[n]
            mine = parts[before:end]
            whole = leaf("stacked", n, (len(mine), *parts[0].shape), parts[0].dtype)
            join[n] = (mine[::-1] if backwards else mine, whole)
            self._replace(n, step, _joined(step, whole, backwards, parts[:before], parts[end:]))
        self._joins.append(join)

    def _window(self, joined: dict[int, list[Value]]) -> tuple[int, bool] | None:
        """Where among the joined values those of the iterations begin, and whether they are in reverse order."""
        others = {len(parts) - self._counts[n] for n, parts in joined.items()}
        best, found = -1, None
        for before in range(min(others) + 1) if len(others) == 1 else ():
            for backwards in (False, True):
                born = [
                    self._born(n, parts[before : before + self._counts[n]], backwards) for n, parts in joined.items()
                ]
                if None in born or max((max(b, default=-1) for b in born if b), default=-1) < 0:
                    continue
                # A value given to an iteration counts too, but prefer the position with most values made in it.
                own = sum(b == i for one in born if one for i, b in enumerate(one))
                if own > best:
                    best, found = own, (before, backwards)
        return found

    def _born(self, number: int, parts: list[Value], backwards: bool) -> list[int] | None:
        """In which iteration each value is made (-1: before the loop); None if they cannot be one of each iteration."""
        made = self.loop.made[number]
        born = [made.get(id(v), -1) for v in (parts[::-1] if backwards else parts)]
        alike = len({v.shape for v in parts}) <= 1
        return born if alike and all(b <= i for i, b in enumerate(born)) else None

    # -- values of all iterations, read by a later loop

    def _go_through_again(self, loops: dict[int, LoopStep]) -> None:
        """A later loop whose iterations each use the value of one iteration of this loop: it selects them by number.

        If it begins or ends with other values (`outs = [h]` before the loop), those iterations are peeled off.
        """
        own = {n: {id(v) for v in loop.outputs} for n, loop in loops.items()}
        wanted: dict[Any, Made] = {}
        ends: set[tuple[int, int]] = set()
        for slot, rows in _rows_of(loops).items():
            if not any(id(v) in own[n] for n, row in rows.items() for v in row):
                found = self._listed(rows)
                if found is not None:
                    wanted[slot], end = found
                    ends.add(end)
        if len(ends) != 1:
            return
        ((lead, trail),) = ends
        if lead + trail and any(loop.entry is not None or isinstance(loop.iterations[-1][-1], ReadStep)
                                for loop in loops.values() if loop.iterations):  # fmt: skip
            return
        for n, loop in loops.items():
            last = len(loop.iterations) - trail
            iterations = []
            for steps in loop.iterations[lead:last]:
                values = {(j, name): v for j, step in enumerate(steps) for name, v in step.slots()}
                picks = {slot: self._picked(n, place, values[slot], steps[0]) for slot, place in wanted.items()}
                iterations.append([*picks.values(), *_with_inputs(steps, picks)])
            like = iterations[0][0] if iterations else loop
            middle = LoopStep(iterations, loop.width + len(wanted), loop.entry, like)
            first, others = (list(chain(*part)) for part in (loop.iterations[:lead], loop.iterations[last:]))
            self._replace(n, loop, [*first, middle, *others])

    def _listed(self, rows: dict[int, list[Value]]) -> tuple[Made, tuple[int, int]] | None:
        """If the iterations of this loop make these rows of values (by run): where in an iteration, and how many other
        values stand before and after them. Else None."""
        born = {n: [self.loop.made[n].get(id(v), -1) >= 0 for v in row] for n, row in rows.items()}
        shown = [n for n, mine in born.items() if any(mine)]
        ends = {(born[n].index(True), born[n][::-1].index(True)) for n in shown}
        if len(ends) != 1 or all(len({id(v) for v in rows[n]}) < 2 for n in shown):
            return None
        ((lead, trail),) = ends
        places = set()
        for n, row in rows.items():
            inner = slice(lead, len(row) - trail)
            if len(row) < lead + trail or not all(born[n][inner]):
                return None
            places |= {self._place(n, v) for v in row[inner]}
        place = places.pop()
        return None if place is None or places else (place, (lead, trail))

    def _picked(self, number: int, place: Made, value: Value, like: TraceStep) -> PickStep:
        """The step that selects one value from the stacked values of all iterations."""
        attrs = {"dim": 0, "index": self.loop.made[number][id(value)]}
        pick = PickStep(REGISTRY["select"], [self._whole(number, place, value)], attrs, like.place, like.path)
        pick.makes(unbound(value.shape, value.dtype))
        return pick

    def _whole(self, number: int, place: Made, like: Value) -> Value:
        wholes = self._kept.setdefault(place, {})
        if number not in wholes:
            wholes[number] = leaf("stacked", place, (self._counts[number], *like.shape), like.dtype)
        return wholes[number]

    def _place(self, number: int, value: Value) -> Made | None:
        """Where in its iteration a value is made; None if a branch or an inner loop makes it."""
        for j, step in enumerate(self.loop.steps_of((number, self.loop.made[number][id(value)]))):
            if step.kind == "op":
                for pos, made in enumerate(step.outputs):
                    if made is value:
                        return j, pos
        return None

    # -- the value of one iteration

    def picks(self, slot: Any, held: dict[tuple[int, int], Value]) -> bool:
        """If an input after the loop takes the value of one iteration whose number follows from sizes (`outs[0]`), make
        it a select. False if it does not, or if a branch in the loop may say which iteration it is."""
        loop = self.loop
        values = {n: v for (n, _), v in held.items()}
        if len(values) < len(self.rests) or not all(id(v) in loop.made[n] for n, v in values.items()):
            return False
        if any(isinstance(e, BranchStep) for turn in loop.turns for e in loop.steps_of(turn)):
            return False
        places = {self._place(n, v) for n, v in values.items()}
        place = places.pop()
        if place is None or places:
            return False
        born = {n: loop.made[n][id(v)] for n, v in values.items()}
        try:
            loop.m.attribute([loop.run_ids[n] for n in born], list(born.values()))
        except Differs:
            return False
        at, name = slot
        for n, value in values.items():
            rest = self.rests[n]
            pick = self._picked(n, place, value, loop.loops[n])
            self._front[n].append(pick)
            (new,) = pick.outputs
            if at == "result":
                rest.outputs = [new if k == name else v for k, v in enumerate(rest.outputs)]
            else:
                user: Any = rest.steps[at]
                rest.steps[at] = user.rewired(lambda k, v, new=new: new if k == name else v)
        return True

    def insert_picks(self) -> None:
        """Put the selects before the steps after the loop."""
        for rest, picks in zip(self.rests, self._front, strict=True):
            rest.steps[:0] = picks

    def _find_lasts(self) -> None:
        """Find values of the last iteration that are used after the loop and are not carried."""
        loop = self.loop
        for number, rest in enumerate(self.rests):
            uses = [v for step in rest.steps for v in step.inputs]
            for value in (*uses, *rest.outputs):
                i = loop.made[number].get(id(value))
                if i is None or id(value) in loop.m.known[loop.run_ids[number]]:
                    continue
                place = self._place(number, value)
                if i != self._counts[number] - 1 or place is None:
                    raise loop.refuse("has a value that is used outside it, and not that of the last iteration")
                if place not in self._lasts:
                    self._lasts.append(place)

    # -- outputs of the loop

    def variables(self) -> list[Value]:
        """The variables of the loop body that are collected."""
        m, loop = self.loop.m, self.loop
        found = []
        for join in self._joins:
            turns = [(n, i) for n, i in loop.turns if n in join]
            values = loop.resolved_all(turns, [join[n][0][i] for n, i in turns])
            found.append(m.seen_from([loop.run_of(t) for t in turns], values))
        self._find_lasts()
        for j, pos in (*self._kept, *self._lasts):
            values = [loop.steps_of(turn)[j].outputs[pos] for turn in loop.turns]
            found.append(m.var_of([loop.run_of(t) for t in loop.turns], values))
        return found

    def outputs(self) -> list[Value]:
        """The outputs of the loop for them."""
        m, loop = self.loop.m, self.loop
        found = []
        for join in self._joins:
            found.append(m.output([loop.run_ids[n] for n in join], [whole for _, whole in join.values()]))
        for wholes in self._kept.values():
            found.append(m.output([loop.run_ids[n] for n in wholes], list(wholes.values())))
        for j, pos in self._lasts:
            ran = [n for n, count in enumerate(self._counts) if count]
            counts = [self._counts[n] for n in ran]
            lasts = [loop.steps_of((n, count - 1))[j].outputs[pos] for n, count in zip(ran, counts, strict=True)]
            all_of_them = [leaf("stacked", j, (n, *v.shape), v.dtype) for n, v in zip(counts, lasts, strict=True)]
            runs = [loop.run_ids[n] for n in ran]
            whole: Value = m.output(runs, all_of_them)
            last = m.output(runs, lasts)
            attrs = {"dim": 0, "index": whole.shape[0] - 1}
            self.after.append(Step(REGISTRY["select"], (whole,), attrs, site=loop.site).makes(last))
            found.append(whole)
        return found


def _rows_of(loops: dict[int, LoopStep]) -> dict[Any, dict[int, list[Value]]]:
    """The values that the iterations of a loop use at each input, by run, for inputs that every iteration has."""
    found: dict[Any, dict[int, list[Value]]] = {}
    for n, loop in loops.items():
        for steps in loop.iterations:
            for j, step in enumerate(steps):
                for name, value in step.slots():
                    found.setdefault((j, name), {k: [] for k in loops})[n].append(value)
    return {slot: rows for slot, rows in found.items()
            if all(len(rows[n]) == len(loop.iterations) for n, loop in loops.items())}  # fmt: skip


def _with_inputs(steps: Sequence[Any], picks: dict[Any, PickStep]) -> list[Any]:
    """Steps of an iteration with the results of these selects as some of their inputs."""
    def change(slot: Any, value: Value) -> Value:
        return picks[slot].outputs[0] if slot in picks else value

    return [step.rewired(lambda name, v, j=j: change((j, name), v)) for j, step in enumerate(steps)]


def _joined(
    step: TraceStep, whole: Value, backwards: bool, before: list[Value], after: list[Value]
) -> list[TraceStep]:
    """The steps that make a stack or cat from the stacked value and the other values before and after it."""
    out = step.outputs[0]
    steps: list[TraceStep] = []

    def then(name: str, values: Sequence[Value], made: tuple[int, ...], **attrs: Any) -> Value:
        steps.append(TraceStep(REGISTRY[name], values, attrs, step.place, step.path))
        steps[-1].makes(unbound(made, whole.dtype))
        return steps[-1].outputs[0]

    stacks = step.name == "stack"
    value = then("flip", [whole], whole.shape, dims=(0,)) if backwards else whole
    dim = step.attrs["dim"] % (whole.ndim - (not stacks))
    dims = (*range(1, dim + 1), 0, *range(dim + 1, whole.ndim))
    value = then("permute", [value], tuple(whole.shape[d] for d in dims), dims=dims)
    if not stacks:
        size = out.shape[dim] - sum(v.shape[dim] for v in (*before, *after))
        shape = (*out.shape[:dim], size, *out.shape[dim + 1 :])
        value = then("reshape", [value], shape, shape=shape)
    if before or after:
        one = (*out.shape[:dim], 1, *out.shape[dim + 1 :])
        sides = [[then("reshape", [v], one, shape=one) if stacks else v for v in side] for side in (before, after)]
        then("cat", [*sides[0], value, *sides[1]], out.shape, dim=dim)
    # The last step makes the original output, so that its users need no change.
    steps[-1].outputs = step.outputs
    return steps


def _joins(step: Any) -> bool:
    """Does a step join several values?"""
    return step.op is not None and step.op.family == "joining"
