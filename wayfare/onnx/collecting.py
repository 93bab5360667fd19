"""What a loop leaves behind beside what it carries: values of all its iterations, joined, and of the last one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from wayfare.fusion.trace import Step, Value, leaf
from wayfare.onnx.program import Node, Var
from wayfare.onnx.rolling import inputs_of, outputs_of
from wayfare.onnx.trace import Event, Trace
from wayfare.op import REGISTRY

if TYPE_CHECKING:
    from wayfare.onnx.loops import Loop


class Collected:
    """What is used after a loop. `rests` is what happens after it in each run."""

    def __init__(self, loop: Loop, rests: Sequence[Trace]) -> None:
        self.loop = loop
        self.rests = rests
        # For each join: by run, the values of its iterations in order, and the value that has them all.
        self._joins: list[dict[int, tuple[list[Value], Value]]] = []
        self._lasts: list[tuple[int, int]] = []  # (number of the event, of its output)
        # Steps to be taken when the loop is over.
        self.after: list[Node] = []
        for number, rest in enumerate(rests):
            count = 0
            for event in list(rest.events):
                steps = self._joined(number, event, count)
                if steps is not None:
                    count += 1
                    at = rest.events.index(event)
                    rest.events[at : at + 1] = steps

    def _joined(self, number: int, event: Any, join: int) -> list[Event] | None:
        """stack or cat of a value of every iteration, as steps on the value that has them all."""
        if not isinstance(event, Event) or event.step.name not in ("stack", "cat"):
            return None
        parts = list(event.step.inputs)
        made = self.loop.made[number]
        count = len(self.loop.loops[number].iterations)
        born = [made.get(id(v), -1) for v in parts]
        if len(parts) != count or max(born, default=-1) < 0 or len({v.shape for v in parts}) > 1:
            return None
        turned = born[0] > born[-1]
        ordered = parts[::-1] if turned else parts
        if any(made.get(id(v), -1) > i for i, v in enumerate(ordered)):
            return None
        whole = leaf("stacked", join, (count, *parts[0].shape), parts[0].dtype)
        while len(self._joins) <= join:
            self._joins.append({})
        self._joins[join][number] = (ordered, whole)
        return _steps(event, whole, turned)

    def variables(self) -> list[Var]:
        """The variables of an iteration that are collected."""
        m, loop = self.loop.m, self.loop
        found = []
        for join in self._joins:
            turns = [(n, i) for n, i in loop.turns if n in join]
            values = loop.resolved_all(turns, [join[n][0][i] for n, i in turns])
            found.append(m.seen_from([loop.run_of(t) for t in turns], values))
        self._find_lasts()
        for j, pos in self._lasts:
            values = [outputs_of(loop.events(turn)[j])[pos] for turn in loop.turns]
            found.append(m.var_of([loop.run_of(t) for t in loop.turns], values))
        return found

    def _find_lasts(self) -> None:
        """Values of the last iteration that are used after the loop, and not carried."""
        loop = self.loop
        for number, rest in enumerate(self.rests):
            uses = [v for event in rest.events for v in inputs_of(event)]
            for value in (*uses, *rest.results):
                i = loop.made[number].get(id(value))
                if i is None or id(value) in loop.m.known[loop.who[number]]:
                    continue
                place = self._place((number, i), value)
                if i != len(loop.loops[number].iterations) - 1 or place is None:
                    raise loop.refuse("has a value that is used outside it, and not that of the last iteration")
                if place not in self._lasts:
                    self._lasts.append(place)

    def _place(self, turn: tuple[int, int], value: Value) -> tuple[int, int] | None:
        for j, event in enumerate(self.loop.events(turn)):
            if isinstance(event, Event):
                for pos, made in enumerate(event.step.outputs):
                    if made is value:
                        return j, pos
        return None

    def outputs(self) -> list[Var]:
        """What the loop gives for them."""
        m, loop = self.loop.m, self.loop
        found = []
        for join in self._joins:
            found.append(m.output([loop.who[n] for n in join], [whole for _, whole in join.values()]))
        for j, pos in self._lasts:
            ran = [n for n in range(len(loop.who)) if loop.loops[n].iterations]
            counts = [len(loop.loops[n].iterations) for n in ran]
            lasts = [outputs_of(loop.events((n, count - 1))[j])[pos] for n, count in zip(ran, counts, strict=True)]
            wholes = [leaf("stacked", j, (count, *v.shape), v.dtype) for count, v in zip(counts, lasts, strict=True)]
            runs = [loop.who[n] for n in ran]
            whole: Var = m.output(runs, wholes)
            last = m.output(runs, lasts)
            attrs = {"dim": 0, "index": whole.shape[0] - 1}
            self.after.append(Node("op", [whole], [last], attrs, REGISTRY["select"], site=loop.site))
            found.append(whole)
        return found


def _steps(event: Event, whole: Value, turned: bool) -> list[Event]:
    """The value of all iterations, brought into the form of a join."""
    out = event.step.outputs[0]
    events: list[Event] = []

    def then(name: str, value: Value, made: tuple[int, ...], **attrs: Any) -> Value:
        step = Step(REGISTRY[name], (value,), attrs)
        step.outputs = (Value(step, 0, made, value.dtype),)
        events.append(Event(step, event.place, event.path))
        return step.outputs[0]

    value = then("flip", whole, whole.shape, dims=(0,)) if turned else whole
    rank = whole.ndim - (event.step.name == "cat")
    dim = event.step.attrs["dim"] % rank
    dims = (*range(1, dim + 1), 0, *range(dim + 1, whole.ndim))
    value = then("permute", value, tuple(whole.shape[d] for d in dims), dims=dims)
    if event.step.name == "cat":
        then("reshape", value, out.shape, shape=out.shape)
    # Who uses the joined value finds it where it was.
    events[-1].step.outputs = event.step.outputs
    return events
