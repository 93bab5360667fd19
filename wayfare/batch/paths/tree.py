"""The trace tree of one signature, with each block as a function of a batch."""

from __future__ import annotations

from typing import Any

from wayfare.batch.paths.blocks import BlockInputs
from wayfare.batch.paths.functions import BlockFunction
from wayfare.compiler.replay.entry import Entry
from wayfare.compiler.replay.trace_tree import Block
from wayfare.ir.graph import Value


class BatchedTree:
    """The blocks of one entry, made when they are first needed. Trees of one mapped function share the functions of
    equal blocks, so that examples with other signatures (other lengths, other numbers) can run with these."""

    def __init__(self, entry: Entry, rows_of: frozenset[int], functions: dict[Any, BlockFunction]) -> None:
        self.entry = entry
        # The numbers of the arguments that differ between examples.
        self.rows_of = rows_of
        # The values of these arguments, with their numbers.
        self.row_sources: list[tuple[Value, int]] = []
        self._recordings = 0
        self._inputs: dict[int, BlockInputs] = {}
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
                    function = self._functions[found.key] = BlockFunction(self.entry.name, found, self.entry.graph)
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
