"""The trace tree of an entry as one command tree: blocks run natively one after the other, decisions are jumps.

Only blocks whose plans need no Python are in it, from the root down. At an outcome that leads elsewhere the run stops
with the code `UNSEEN`, and nothing outside has been written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from wayfare.codegen.runtime import kernel
from wayfare.codegen.runtime.command_tree import CommandTree, Jump, element_bits, stop, truth_mask
from wayfare.codegen.runtime.commands import BufferView, Commands
from wayfare.compiler.record.graph import Source
from wayfare.compiler.replay.entry import Entry
from wayfare.compiler.replay.trace_tree import Block
from wayfare.core.numpy_math import Array
from wayfare.core.spec import as_dtype
from wayfare.core.tensor import Tensor
from wayfare.ir.graph import Slot, Value

UNSEEN = 0
# The most blocks, and the most bytes that they keep for each other from call to call.
_MOST_BLOCKS, _MOST_BYTES = 512, 1 << 20
# An arena of at most this many bytes is kept from call to call.
_KEPT = 1 << 16
# Buffers from this number on are kept; those below are given at each call.
_OWN = 1 << 30

Lists = list[tuple[Commands, BufferView | None]]


class Leaf:
    """A last block in a command tree."""

    def __init__(self, block: Block, pauses: bool) -> None:
        self.block = block
        # The run stops before this block with `reached`, and goes on at `start`; else it only stops after it.
        self.pauses = pauses
        self.start = -1
        self.reached = self.done = UNSEEN
        self.made: list[int] = []  # the buffers of the plan's results
        # For each update: the slot that has its numbers, and the array they are read from.
        self.numbers: list[tuple[int, Array]] = []


class NativeTree:
    """A command tree, the sources of its inputs, and what each call must allocate."""

    def __init__(self, entry: Entry, arguments: Sequence[Tensor]) -> None:
        self.commands = CommandTree()
        self.inputs: list[Source] = []  # the first buffers
        self.leaves: list[Leaf] = []
        self.root = -1
        self._own: list[Array] = []
        self._lists: dict[int, Lists] = {}
        root = entry.tree.root
        assert root is not None
        blocks = self._blocks(root, arguments)
        if not blocks:
            return
        plans = [block.plan for block, _ in blocks if block.plan is not None]
        # One arena for all blocks: it holds nothing from one block to the next.
        self.arena_bytes = max([plan.arena_bytes for plan in plans])
        arena = self._keep(np.empty(self.arena_bytes, np.uint8)) if self.arena_bytes <= _KEPT else len(self.inputs)
        # What each call allocates: (allocator, shape, dtype). Leaves share the arrays of their results.
        self.allocations: list[Any] = []
        if arena < _OWN:
            largest = max(plans, key=lambda plan: plan.arena_bytes)
            self.allocations.append(largest.allocations[0])
        self._pieces: dict[int, int] = {}
        for block, there in reversed(blocks):
            self._add(block, there, arena)
        self.root = self._pieces[id(root)]

    @property
    def buffers(self) -> int:
        """How many buffers a call gives."""
        return len(self.inputs) + len(self.allocations)

    # -- which blocks

    def _blocks(self, root: Block, arguments: Sequence[Tensor]) -> list[tuple[Block, dict[Value, int]]]:
        """The blocks that run natively, parents first, each with the buffers of the values it gets from before."""
        found: list[tuple[Block, dict[Value, int]]] = []
        stack: list[tuple[Block, dict[Value, int]]] = [(root, {})]
        numbers: dict[int, int] = {}
        kept = 0
        while stack and len(found) < _MOST_BLOCKS:
            block, there = stack.pop()
            lists = self._native(block, there, arguments)
            if lists is None:
                continue
            sources = [where for where in block.inputs if isinstance(where, Source)]
            for source in sources:
                if id(source) not in numbers:
                    numbers[id(source)] = len(self.inputs)
                    self.inputs.append(source)
            if block.value is not None:
                assert block.plan is not None
                kept += sum(v.size * v.dtype.itemsize for v in block.targets)
                if kept > _MOST_BYTES:
                    continue
                there = dict(there)
                for value, (_, shape, dtype) in zip(block.targets, block.plan.allocations[1:], strict=True):
                    there[value] = self._keep(np.empty(shape, dtype))
                stack += [(child, there) for child in block.children.values()]
            self._lists[id(block)] = lists
            found.append((block, there))
        self._numbers = numbers
        return found

    def _native(self, block: Block, there: dict[Value, int], arguments: Sequence[Tensor]) -> Lists | None:
        plan = block.plan
        if plan is None or not plan.fresh_results or not kernel.available():
            return None
        if block.value is not None and (block.calls or block.slots or block.value.size != 1):
            return None
        if any(slot.__class__ is not tuple for slot in block.slots):
            return None  # random keys
        arrays: list[Any] = []
        for where in block.inputs:
            if isinstance(where, Source):
                t = where.tensor(arguments)
                if t is None or where.kind == "base":
                    return None
                arrays.append(t._array)
            elif where in there:
                arrays.append(self._own[there[where] - _OWN])
            else:
                return None
        if not plan.fits(arrays) or len(plan.allocations) != 1 + len(block.targets):
            return None
        return plan.native_lists()

    # -- pieces

    def _keep(self, array: Array) -> int:
        """The number of a buffer that is the same at each call."""
        self._own.append(array)
        self.commands.fix(_OWN + len(self._own) - 1, array)
        return _OWN + len(self._own) - 1

    def _add(self, block: Block, there: dict[Value, int], arena: int) -> None:
        """Add the pieces of a block, whose children are there already."""
        plan = block.plan
        assert plan is not None
        numbers = [self._numbers[id(w)] if isinstance(w, Source) else there[w] for w in block.inputs]
        numbers += [self._keep(constant) for constant in plan.constants]
        numbers.append(arena)
        first = len(numbers)
        leaf: Leaf | None = None
        if block.value is not None:
            numbers += [there[value] for value in block.targets]
            jump = self._decision(block, BufferView(first, 0, (), (), block.value.dtype))
        else:
            assert block.recording is not None
            leaf = Leaf(block, bool(block.depth) and bool(block.calls or block.recording.writes))
            leaf.done = 1 + 2 * len(self.leaves)
            leaf.reached = leaf.done + 1
            self.leaves.append(leaf)
            leaf.made = self._results(plan.allocations[1:])
            numbers += leaf.made
            for slot, count, dtype in plan.update_numbers:
                given = np.zeros(count, dtype)
                if slot.__class__ is Slot:
                    leaf.numbers.append((slot.number, given))
                else:
                    given[:] = slot
                numbers.append(self._keep(given))
            jump = Jump(otherwise=stop(leaf.done))
        pieces = [self.commands.add(commands, numbers) for commands, _ in self._lists[id(block)]]
        for commands, _ in self._lists[id(block)]:
            commands.release()  # it will hardly run alone again, and its scratch memory may be large
        for piece, after, (_, wrong) in zip(pieces, pieces[1:], self._lists[id(block)], strict=False):
            self.commands.jump(piece, Jump(wrong, table={0: after}, otherwise=stop(UNSEEN)))
        self.commands.jump(pieces[-1], jump)
        self._pieces[id(block)] = pieces[0]
        if leaf is not None:
            leaf.start = pieces[0]
            if leaf.pauses:
                self._pieces[id(block)] = stop(leaf.reached)

    def _results(self, wanted: Sequence[Any]) -> list[int]:
        """Buffers that each call allocates, of these shapes and dtypes; other leaves may use the same ones."""
        taken: list[int] = []
        for make, shape, dtype in wanted:
            alike = [i for i, (_, s, d) in enumerate(self.allocations) if (s, d) == (shape, dtype)]
            free = [i for i in alike if i not in taken and not self._is_arena(i)]
            if not free:
                free = [len(self.allocations)]
                self.allocations.append((make, shape, dtype))
            taken.append(free[0])
        return [len(self.inputs) + i for i in taken]

    def _is_arena(self, number: int) -> bool:
        return number == 0 and self.arena_bytes > _KEPT

    def _decision(self, block: Block, value: BufferView) -> Jump:
        """The jump to the children of a block."""
        target = {outcome: self._pieces.get(id(child), stop(UNSEEN)) for outcome, child in block.children.items()}
        if block.how == "bool()":
            unseen = stop(UNSEEN)
            mask = truth_mask(value.dtype)
            return Jump(value, mask, {0: target.get(False, unseen)}, target.get(True, unseen))
        table: dict[int, int] = {}
        for (name, text), child in target.items():
            dtype = as_dtype(name)
            number = text == "True" if dtype.rank == 0 else float(text) if dtype.rank == 2 else int(text)
            table[element_bits(np.array(number, dtype.numpy))] = child
        return Jump(value, table=table, otherwise=stop(UNSEEN))
