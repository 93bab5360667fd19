"""Running examples along a trace tree: all examples at one block run as one group, and split where decisions differ.

An outcome that was never recorded ends the run for the examples that have it: they go back to Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from wayfare.batch.paths.blocks import BatchedBlock, BlockInputs
from wayfare.batch.paths.stats import Visit
from wayfare.batch.record.call import row_of_array
from wayfare.batch.run.group import stack_rows
from wayfare.compiler.record.graph import Source
from wayfare.compiler.record.recorder import outcome_of
from wayfare.compiler.replay.entry import Entry
from wayfare.compiler.replay.trace_tree import Block
from wayfare.core.dispatch import tensor_ops
from wayfare.core.mode import changed_mode
from wayfare.core.numpy_math import Array
from wayfare.core.tensor import Tensor, wrap
from wayfare.ir.graph import Value

# Values of a group: a tensor with a row for each example, and which of its rows these are (None: all, in order).
Env = dict[Value, tuple[Tensor, Array | None]]


class BatchedTree:
    """The blocks of one entry as functions of a batch, made when they are first needed."""

    def __init__(self, entry: Entry, rows_of: frozenset[int]) -> None:
        self.entry = entry
        # The numbers of the arguments that differ between examples.
        self.rows_of = rows_of
        self._recordings = 0
        self._inputs: dict[int, BlockInputs] = {}
        self._before: dict[int, set[Value]] = {}
        self._functions: dict[Any, BatchedBlock] = {}

    def inputs_of(self, block: Block) -> BlockInputs:
        """What a block reads."""
        if self._recordings != self.entry.recordings:
            # A new path may read more of the values of earlier blocks.
            self._recordings = self.entry.recordings
            self._inputs.clear()
            self._before.clear()
            root = self.entry.tree.root
            assert root is not None
            self._note_before(root)
        found = self._inputs.get(id(block))
        if found is None:
            found = BlockInputs(block, self._before[id(block)], self.entry.graph, self.rows_of)
            self._inputs[id(block)] = found
        return found

    def _note_before(self, root: Block) -> None:
        """For each block: the values that earlier blocks have computed."""
        stack: list[tuple[Block, set[Value]]] = [(root, set())]
        while stack:
            block, before = stack.pop()
            self._before[id(block)] = before
            if block.children:
                after = before | set(block.targets)
                stack += [(child, after) for child in block.children.values()]

    def function_of(self, inputs: BlockInputs) -> BatchedBlock:
        """The function of a block."""
        found = self._functions.get(inputs.key)
        if found is None:
            found = self._functions[inputs.key] = BatchedBlock(
                self.entry.name, inputs.rows, inputs.shared, inputs.targets, self.entry.graph
            )
        return found


class Group:
    """Examples that have reached the same block of the tree."""

    __slots__ = ("block", "env", "examples")

    def __init__(self, block: Block, examples: Array, env: Env) -> None:
        self.block = block
        self.examples = examples  # their numbers
        self.env = env

    def rows(self, value: Value) -> Tensor:
        """A value of these examples, one row for each."""
        tensor, chosen = self.env[value]
        if chosen is None:
            return tensor
        first, count = int(chosen[0]), len(chosen)
        if int(chosen[-1]) - first == count - 1 and (count < 3 or bool((np.diff(chosen) == 1).all())):
            made = tensor_ops.slice(tensor, dim=0, start=first, stop=first + count, step=1)
        else:
            made = tensor_ops.index_select(tensor, wrap(chosen), dim=0)
        self.env[value] = (made, None)
        return made  # type: ignore[no-any-return]

    def child(self, block: Block, chosen: Array, made: dict[Value, Tensor], start: int) -> Group:
        """Those of its examples that go on to `block`. `made` has the results of this group from row `start` on."""
        everything = len(chosen) == len(self.examples)
        env: Env = {}
        for value, (tensor, rows) in self.env.items():
            env[value] = (tensor, rows if everything else chosen if rows is None else rows[chosen])
        for value, tensor in made.items():
            whole = everything and start == 0 and len(tensor._array) == len(chosen)
            env[value] = (tensor, None if whole else chosen + start)
        return Group(block, self.examples[chosen], env)


class Finished:
    """A last block that ran: its results, with a row for each of these examples."""

    __slots__ = ("block", "examples", "results", "start")

    def __init__(self, block: Block, examples: Array, results: Sequence[Tensor], start: int) -> None:
        self.block, self.examples, self.results, self.start = block, examples, results, start


class PathRun:
    """One run of some examples along a tree."""

    def __init__(self, tree: BatchedTree, arguments: Sequence[Sequence[Tensor]], grad: bool) -> None:
        self.tree = tree
        self.arguments = arguments
        # The tensors that the run starts from, without their history: for each source, all examples in one tensor, or
        # the tensor that they share.
        self.stacked: dict[int, Tensor] = {}
        self.shared: dict[int, Tensor] = {}
        self.outer: dict[int, Tensor] = {}  # the shared tensors themselves
        self.finished: list[Finished] = []
        self.unseen: list[tuple[Block, Any, Array]] = []
        self.groups = 0
        self.visits: list[Visit] = []
        self._grad = grad
        self._run()

    def of(self, examples: Sequence[int]) -> PathRun:
        """The same run for some of the examples."""
        return PathRun(self.tree, [self.arguments[i] for i in examples], self._grad)

    def _run(self) -> None:
        root = self.tree.entry.tree.root
        assert root is not None
        env: Env = {}
        for source in self.tree.entry.graph.sources:
            if source.kind == "argument" and source.what in self.tree.rows_of:
                env[source.value] = (self._stack(source.what), None)
        waiting: dict[Any, list[Group]] = {}
        self._wait(waiting, Group(root, np.arange(len(self.arguments)), env))
        with changed_mode(executor=None):
            while waiting:
                key = min(waiting, key=lambda k: _priority(waiting[k]))
                self._through(waiting, waiting.pop(key))

    def _wait(self, waiting: dict[Any, list[Group]], group: Group) -> None:
        waiting.setdefault(self.tree.inputs_of(group.block).key, []).append(group)

    def _stack(self, number: int) -> Tensor:
        first = self.arguments[0][number]
        arrays = [args[number]._array for args in self.arguments]
        made = wrap(stack_rows(arrays, row_of_array(first._array)))
        made._requires_grad = self._grad and first._requires_grad
        self.stacked[number] = made
        return made

    def _tensor_of(self, source: Source) -> Tensor:
        """A shared tensor, without its history."""
        found = self.shared.get(id(source))
        if found is None:
            t = source.tensor(self.arguments[0])
            assert t is not None
            self.outer[id(source)] = t
            found = self.shared[id(source)] = wrap(t._array)
            found._requires_grad = self._grad and t._requires_grad
        return found

    def _through(self, waiting: dict[Any, list[Group]], groups: list[Group]) -> None:
        """Run the block of some groups, which do the same."""
        inputs = [self.tree.inputs_of(group.block) for group in groups]
        function = self.tree.function_of(inputs[0])
        rows = []
        for number in range(len(inputs[0].rows)):
            parts = [group.rows(own.rows[number]) for group, own in zip(groups, inputs, strict=True)]
            rows.append(parts[0] if len(parts) == 1 else tensor_ops.cat(*parts, dim=0))
        size = sum(len(group.examples) for group in groups)
        made = function.run(rows, [self._tensor_of(source) for source in inputs[0].shared], size)
        self.groups += 1
        start = 0
        for group, own in zip(groups, inputs, strict=True):
            if group.block.recording is not None:
                self.finished.append(Finished(group.block, group.examples, made, start))
                self.visits.append(Visit("", group.block.depth, len(group.examples), []))
            else:
                self._split(waiting, group, dict(zip(own.targets, made, strict=True)), made[0]._array, start)
            start += len(group.examples)

    def _split(
        self, waiting: dict[Any, list[Group]], group: Group, made: dict[Value, Tensor], decided: Array, start: int
    ) -> None:
        """Send each example to the block that follows the outcome of its decision."""
        block = group.block
        visit = Visit(block.line, block.depth, len(group.examples), [])
        self.visits.append(visit)
        for outcome, chosen in _outcomes(decided[start : start + len(group.examples)], block.how):
            child = block.children.get(outcome)
            visit.outcomes.append((outcome, len(chosen), child is not None))
            if child is None:
                self.unseen.append((block, outcome, group.examples[chosen]))
            else:
                self._wait(waiting, group.child(child, chosen, made, start))


def _priority(groups: list[Group]) -> tuple[bool, int]:
    """Last blocks wait for all others, so that as many examples as possible run them together; then the examples that
    have come the least far run first."""
    return groups[0].block.recording is not None, min([group.block.depth for group in groups])


def _outcomes(rows: Array, how: str) -> list[tuple[Any, Array]]:
    """The outcomes of a decision, and which examples have them."""
    count = len(rows)
    if how == "bool()" and rows.size == count:
        flags = rows.reshape(count).astype(np.bool_)
        found = [(True, np.flatnonzero(flags)), (False, np.flatnonzero(~flags))]
        return [(outcome, chosen) for outcome, chosen in found if len(chosen)]
    by_outcome: dict[Any, list[int]] = {}
    for i in range(count):
        by_outcome.setdefault(outcome_of(rows[i, ...], how), []).append(i)
    return [(outcome, np.asarray(chosen)) for outcome, chosen in by_outcome.items()]
