"""The trace tree of one signature, with each block as a function of a batch."""

from __future__ import annotations

from typing import Any

from wayfare.batch.paths.blocks import BlockInputs, memory_of_graph
from wayfare.batch.paths.budget import PathBudget
from wayfare.batch.paths.functions import BlockFunction
from wayfare.compiler.record.graph import Source
from wayfare.compiler.replay.entry import Entry
from wayfare.compiler.replay.trace_tree import Block
from wayfare.core.spec import FLOAT_KINDS
from wayfare.ir.graph import Value


class BatchedTree:
    """The blocks of one entry, made when they are first needed. Trees of one mapped function share the functions of
    equal blocks, so that examples with other signatures (other lengths, other numbers) can run with these."""

    def __init__(
        self, entry: Entry, rows_of: frozenset[int], functions: dict[Any, BlockFunction], budget: PathBudget
    ) -> None:
        self.entry = entry
        self._budget = budget
        self.memory = memory_of_graph(entry.graph)
        # The numbers of the arguments that differ between examples.
        self.rows_of = rows_of
        # The values of these arguments, with their numbers.
        self.row_sources: list[tuple[Value, int]] = []
        self._recordings = 0
        self._inputs: dict[int, BlockInputs] = {}
        self._sources: dict[tuple[int, int], list[Source]] = {}
        self._functions = functions

    @property
    def root(self) -> Block:
        """The first block, after new recordings were entered."""
        root = self.entry.tree.root
        assert root is not None
        if self._recordings != self.entry.recordings:
            self._recordings = self.entry.recordings
            self.row_sources = [(source.value, source.what) for source in self.entry.graph.sources
                                if source.kind == "argument" and source.what in self.rows_of]  # fmt: skip
            self._enter(root)
        return root

    def inputs_of(self, block: Block) -> BlockInputs:
        """What a block reads, and its function."""
        return self._inputs[id(block)]

    def sources_of(self, block: Block, number: int) -> list[Source]:
        """The inputs that have a gradient if result number `number` of a last block has one, as in the loop."""
        found = self._sources.get((id(block), number))
        if found is None:
            assert block.recording is not None
            leaves = _differentiable_inputs(block.recording.made[number], self.entry.graph.cuts)
            found = [source for source in self.entry.graph.sources if source.value in leaves]
            self._sources[id(block), number] = found
        return found

    def _enter(self, root: Block) -> None:
        blocks: list[Block] = []
        stack: list[tuple[Block, set[Value]]] = [(root, set())]
        while stack:
            block, before = stack.pop()
            blocks.append(block)
            found = self._inputs.get(id(block))
            if found is None or not found.is_of(block, before):
                found = self._inputs[id(block)] = BlockInputs(block, before, self.entry.graph, self.rows_of)
                function = self._functions.get(found.key)
                if function is None:
                    function = BlockFunction(self.entry.name, found, self.entry.graph, self._budget)
                    self._functions[found.key] = function
                found.function = function
            if block.children:
                after = before | set(block.targets)
                stack += [(child, after) for child in block.children.values()]
        for block in reversed(blocks):
            own = self._inputs[id(block)]
            live = {v: None for child in block.children.values() for v in self._inputs[id(child)].live}
            if block.children:
                for made in own.targets:
                    live.pop(made, None)
            own.live = list(live | dict.fromkeys(own.rows))


def _differentiable_inputs(value: Value, cuts: dict[Value, tuple[bool, ...]]) -> set[Value]:
    """The leaves that a gradient of this value reaches."""
    found: set[Value] = set()
    seen: set[Value] = set()
    stack = [value]
    while stack:
        v = stack.pop()
        if v in seen or v.dtype.kind not in FLOAT_KINDS:
            continue
        seen.add(v)
        op = v.step.op
        if op is None:
            found.add(v)
        elif op.vjp is not None and (op.differentiable_outputs is None or v.position in op.differentiable_outputs):
            stops = cuts.get(v.step.outputs[0], ())
            rules = op.vjp if isinstance(op.vjp, (tuple, list)) else ()
            for i, x in enumerate(v.step.inputs):
                if not (i < len(stops) and stops[i]) and not (i < len(rules) and rules[i] is None):
                    stack.append(x)
    return found
