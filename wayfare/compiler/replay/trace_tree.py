"""The tree of what was recorded: stretches of steps, and between them the decisions Python took on values.

A stretch is planned when it is met again. Its plan computes the value that decides, and what later stretches need of
it; nothing outside is written before the last stretch, so a decision never met before costs nothing but the way there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wayfare.compiler.record.graph import Graph, Source
from wayfare.compiler.record.recorder import Decision
from wayfare.compiler.record.recording import Recording
from wayfare.compiler.replay.inputs import Fetch
from wayfare.core.numpy_math import Array
from wayfare.ir.graph import Step, Value, in_order, leaf
from wayfare.ir.plan.plan import Plan

# Numbers that Python may see at one place before it is taken to see another one each time: the same fraction hardly
# ever comes twice, a whole number may well.
_FRACTIONS, _NUMBERS = 3, 16


class Stretch:
    """Steps between two decisions, or before the end."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.value: Value | None = None  # what Python looks at when the steps have run; None at the end of a path
        self.how = ""
        self.line = ""
        self.children: dict[Any, Stretch] = {}  # by outcome
        self.recording: Recording | None = None
        self.gradient: Any = None  # the path's `Gradient`, once somebody outside may ask for it
        # Python that runs again, by number; and all random keys and numbers taken up to here.
        self.calls: list[tuple[int, Any]] = []
        self.slots: list[Any] = []
        self.exports: dict[Value, None] = {}
        self.plan: Plan | None = None
        # Where the plan's inputs come from: Sources, and values of earlier stretches.
        self.inputs: list[Source | Value] = []
        self.written: list[Source] = []
        self.fetch: Fetch | None = None
        self.visits = 0
        # Of a last stretch: replays, and after how many of them the next is to be compared with Python.
        self.hits = 0
        self.next_check = 0

    @property
    def targets(self) -> list[Value]:
        """The values its plan hands out."""
        if self.value is not None:
            return [self.value, *self.exports]
        assert self.recording is not None
        return [*self.recording.made, *self.recording.saved, *self.recording.unused]

    def walk(self) -> list[Stretch]:
        """This stretch and all behind it."""
        found = [self]
        for child in self.children.values():
            found += child.walk()
        return found


class Unsteady(Exception):
    """After the same answers the function did something else."""


class Tree:
    """All paths of one function for one kind of arguments."""

    def __init__(self, graph: Graph, name: str) -> None:
        self.graph = graph
        self.name = name
        self.root: Stretch | None = None

    def add(self, recording: Recording) -> None:
        """Enter a path."""
        if self.root is None:
            self.root = Stretch(0)
        path = [self.root]
        self._fill(self.root, recording, 0)
        for depth, decision in enumerate(recording.decisions, 1):
            here = path[-1].children.get(decision.outcome)
            if here is None:
                here = path[-1].children[decision.outcome] = Stretch(depth)
            path.append(here)
            self._fill(here, recording, depth)
        self._export(path, recording)

    def restless(self, decisions: Sequence[Decision]) -> Decision | None:
        """The decision on this path whose outcome is a new number each time, if there is one."""
        here = self.root
        for decision in decisions:
            if here is None:
                return None
            child = here.children.get(decision.outcome)
            most = _FRACTIONS if decision.value.dtype.kind == "f" else _NUMBERS
            if child is None and decision.outcome.__class__ is not bool and len(here.children) >= most:
                return decision
            here = child
        return None

    def walk(self) -> list[Stretch]:
        """All stretches."""
        return [] if self.root is None else self.root.walk()

    def _fill(self, stretch: Stretch, recording: Recording, depth: int) -> None:
        new = stretch.value is None and stretch.recording is None
        if depth < len(recording.decisions):
            decision = recording.decisions[depth]
            if not new and (stretch.value is not decision.value or stretch.how != decision.how):
                raise Unsteady(f"after the same answers it looked at something else on line {decision.line}")
            stretch.value, stretch.how, stretch.line = decision.value, decision.how, decision.line
        else:
            if stretch.value is not None:
                raise Unsteady("after the same answers it ended earlier")
            stretch.recording = recording
            stretch.plan = stretch.gradient = None
        stretch.calls = [(number, call) for number, (call, at) in enumerate(recording.calls) if at == depth]
        stretch.slots = recording.slots[: recording.decisions[depth].slots if stretch.value is not None else None]

    def _export(self, path: list[Stretch], recording: Recording) -> None:
        """See that every stretch hands out what later ones need of it."""
        segment_of = recording.segment_of
        # From the end to the beginning: what a stretch hands out is then known when it is asked what it needs itself.
        for depth, stretch in reversed(list(enumerate(path))):
            wanted = stretch.targets[:1] if stretch.value is not None else [
                *stretch.targets, *[value for _, value in recording.writes]
            ]  # fmt: skip
            wanted += [v for v in stretch.exports if segment_of.get(id(v.step)) == depth]
            for value in self._needed_from_before(wanted, depth, segment_of):
                home = path[segment_of[id(value.step)]]
                if value not in home.exports and value is not home.value:
                    home.exports[value] = None
                    home.plan = None

    def _needed_from_before(self, wanted: Sequence[Value], depth: int, segment_of: dict[int, int]) -> list[Value]:
        """The values of earlier stretches that these are computed from."""
        found: dict[Value, None] = {}
        seen: set[int] = set()
        stack = list(wanted)
        while stack:
            value = stack.pop()
            step = value.step
            if step.op is None:
                continue
            if segment_of[id(step)] < depth:
                found[value] = None
            elif id(step) not in seen:
                seen.add(id(step))
                stack.extend(step.inputs)
        return list(found)

    def plan(self, stretch: Stretch, samples: dict[Any, Array]) -> Plan:
        """Make the plan of a stretch; `samples` has an array for each input (by Source or Value)."""
        recording = stretch.recording
        targets = stretch.targets
        writes = recording.writes if recording is not None else []
        cuts = [v for v in samples if isinstance(v, Value)]
        stretch.inputs, leaves, values = rebased([*targets, *[v for _, v in writes]], cuts, self.graph)
        stretch.written = [source for source, _ in writes]
        present = set(map(id, stretch.inputs))  # by identity: comparing values would make steps of it
        for source in stretch.written:
            if id(source) not in present:
                stretch.inputs.append(source)
                leaves.append(leaf("input", len(leaves), source.value.shape, source.value.dtype))
        numbers = {id(where): i for i, where in enumerate(stretch.inputs)}
        changes = [(numbers[id(source)], value)
                   for source, value in zip(stretch.written, values[len(targets) :], strict=True)]  # fmt: skip
        alike = [samples[where] for where in stretch.inputs]
        stretch.fetch = Fetch(stretch.inputs, stretch.written)
        stretch.plan = Plan(self.name, leaves, values[: len(targets)], changes, alike)
        return stretch.plan


def rebased(
    values: Sequence[Value], cuts: Sequence[Value], graph: Graph
) -> tuple[list[Any], list[Value], list[Value]]:
    """The same values on new inputs: in place of `cuts` (values that are there) and of the graph's own inputs.

    Gives what each input stands for (a Source or a Value), the inputs and the values.
    """
    known: dict[Value, Value] = {}
    places: list[Any] = []
    leaves: list[Value] = []

    def enter(value: Value, place: Any) -> None:
        known[value] = leaf("input", len(leaves), value.shape, value.dtype)
        places.append(place)
        leaves.append(known[value])

    cut = set(cuts)
    stop = {id(v.step) for v in cuts}
    by_value = {source.value: source for source in graph.sources}
    for step in in_order(values, stop):
        if id(step) in stop:
            for v in step.outputs:
                if v in cut:
                    enter(v, v)
        elif step.op is None:
            value = step.outputs[0]
            if value in by_value:
                enter(value, by_value[value])
            elif step.name == "seed":
                enter(value, value)
            else:
                known[value] = value
        else:
            copy = Step(step.op, tuple(known[v] for v in step.inputs), step.attrs)
            copy.outputs = tuple(Value(copy, v.position, v.shape, v.dtype) for v in step.outputs)
            known.update(zip(step.outputs, copy.outputs, strict=True))
    return places, leaves, [known[v] for v in values]
