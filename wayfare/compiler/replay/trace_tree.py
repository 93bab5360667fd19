"""The trace tree: blocks of steps, each ending with a decision that Python took on a value, or with the result.

A block is planned when it is first replayed. Its plan computes the value of the decision and the values that later
blocks read. Nothing outside is written before the last block, so an outcome that was not recorded costs only time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wayfare.compiler.record.graph import Graph, Source
from wayfare.compiler.record.recorder import Decision
from wayfare.compiler.record.recording import Recording
from wayfare.compiler.replay.inputs import Fetch
from wayfare.core.numpy_math import Array
from wayfare.core.spec import FLOAT_KINDS
from wayfare.ir.graph import Step, Value, in_order, leaf
from wayfare.ir.plan.plan import Plan

# How many different numbers (floats, integers) one decision may have before it is expected to have a new one each time.
_FRACTIONS, _NUMBERS = 3, 16


class Block:
    """The steps between two decisions, or up to the end of the call."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.value: Value | None = None  # the value that Python reads at the end; None in a last block
        self.how = ""
        self.line = ""
        self.children: dict[Any, Block] = {}  # by outcome
        self.recording: Recording | None = None
        self.gradient: Any = None  # of a last block: the `Gradient` of the path, once it is needed
        # Call-outs, which run Python at every replay; and all random keys and numbers given up to here.
        self.calls: list[tuple[int, Any]] = []
        self.slots: list[Any] = []
        self.exports: dict[Value, None] = {}
        self.plan: Plan | None = None
        # Where the plan's inputs come from: Sources, and values of earlier blocks.
        self.inputs: list[Source | Value] = []
        self.written: list[Source] = []
        self.fetch: Fetch | None = None
        self.followed = 0  # visits, but for those of fast paths
        # Of a last block: how often it was replayed (by fast paths), and at which count the next self-check is due.
        self.hits = 0
        self.fast_hits = 0
        self.next_check = 0

    @property
    def targets(self) -> list[Value]:
        """The values that its plan computes."""
        if self.value is not None:
            return [self.value, *self.exports]
        assert self.recording is not None
        return [*self.recording.made, *self.recording.saved, *self.recording.unused]

    @property
    def visits(self) -> int:
        """How often a replay came by."""
        return self.followed + sum(block.fast_hits for block in self.walk())

    def walk(self) -> list[Block]:
        """This block and all that follow it."""
        found = [self]
        for child in self.children.values():
            found += child.walk()
        return found


class Inconsistent(Exception):
    """After the same outcomes the function did something else."""


class Tree:
    """All recorded paths of one function for one signature."""

    def __init__(self, graph: Graph, name: str) -> None:
        self.graph = graph
        self.name = name
        self.root: Block | None = None

    def add(self, recording: Recording) -> None:
        """Add a path."""
        if self.root is None:
            self.root = Block(0)
        path = [self.root]
        self._fill(self.root, recording, 0)
        for depth, decision in enumerate(recording.decisions, 1):
            here = path[-1].children.get(decision.outcome)
            if here is None:
                here = path[-1].children[decision.outcome] = Block(depth)
            path.append(here)
            self._fill(here, recording, depth)
        self._export(path, recording)

    def unstable(self, decisions: Sequence[Decision]) -> Decision | None:
        """The decision on this path that has a new number as outcome each time, if there is one."""
        here = self.root
        for decision in decisions:
            if here is None:
                return None
            child = here.children.get(decision.outcome)
            most = _FRACTIONS if decision.value.dtype.kind in FLOAT_KINDS else _NUMBERS
            if child is None and decision.outcome.__class__ is not bool and len(here.children) >= most:
                return decision
            here = child
        return None

    def walk(self) -> list[Block]:
        """All blocks."""
        return [] if self.root is None else self.root.walk()

    def _fill(self, block: Block, recording: Recording, depth: int) -> None:
        new = block.value is None and block.recording is None
        if depth < len(recording.decisions):
            decision = recording.decisions[depth]
            if not new and (block.value is not decision.value or block.how != decision.how):
                raise Inconsistent(f"after the same decisions it read another value on line {decision.line}")
            block.value, block.how, block.line = decision.value, decision.how, decision.line
        else:
            if block.value is not None:
                raise Inconsistent("after the same decisions it ended earlier")
            block.recording = recording
            block.plan = block.gradient = None
        block.calls = [(number, call) for number, (call, at) in enumerate(recording.calls) if at == depth]
        block.slots = recording.slots[: recording.decisions[depth].slots if block.value is not None else None]

    def _export(self, path: list[Block], recording: Recording) -> None:
        """Make every block export the values that later blocks read."""
        segment_of = recording.segment_of
        # Last block first: the exports of a block are then known when its own inputs are determined.
        for depth, block in reversed(list(enumerate(path))):
            wanted = block.targets[:1] if block.value is not None else [
                *block.targets, *[value for _, value in recording.writes]
            ]  # fmt: skip
            wanted += [v for v in block.exports if segment_of.get(id(v.step)) == depth]
            for value in self._needed_from_before(wanted, depth, segment_of):
                home = path[segment_of[id(value.step)]]
                if value not in home.exports and value is not home.value:
                    home.exports[value] = None
                    home.plan = None

    def _needed_from_before(self, wanted: Sequence[Value], depth: int, segment_of: dict[int, int]) -> list[Value]:
        """The values of earlier blocks from which these are computed."""
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

    def plan(self, block: Block, samples: dict[Any, Array]) -> Plan:
        """Make the plan of a block; `samples` has an array for each input (by Source or Value)."""
        recording = block.recording
        targets = block.targets
        writes = recording.writes if recording is not None else []
        cuts = [v for v in samples if isinstance(v, Value)]
        block.inputs, leaves, values = rebased([*targets, *[v for _, v in writes]], cuts, self.graph)
        block.written = [source for source, _ in writes]
        present = set(map(id, block.inputs))  # by id: `==` on values would record a step
        for source in block.written:
            if id(source) not in present:
                block.inputs.append(source)
                leaves.append(leaf("input", len(leaves), source.value.shape, source.value.dtype))
        numbers = {id(where): i for i, where in enumerate(block.inputs)}
        changes = [(numbers[id(source)], value)
                   for source, value in zip(block.written, values[len(targets) :], strict=True)]  # fmt: skip
        alike = [samples[where] for where in block.inputs]
        block.fetch = Fetch(block.inputs, block.written)
        block.plan = Plan(self.name, leaves, values[: len(targets)], changes, alike)
        return block.plan


def rebased(
    values: Sequence[Value], cuts: Sequence[Value], graph: Graph
) -> tuple[list[Any], list[Value], list[Value]]:
    """Copies of values that start from new inputs, in place of `cuts` (values that exist) and of the graph's inputs.

    Returns what each input stands for (a Source or a Value), the inputs, and the values.
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
