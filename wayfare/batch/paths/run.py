"""Running examples along trace trees: all examples at equal blocks run as one group, and split where decisions differ.

An outcome that was never recorded ends the run for the examples that have it: they go back to Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from wayfare.autograd.engine import add_up
from wayfare.batch.paths.blocks import BlockInputs
from wayfare.batch.paths.stats import Visit
from wayfare.batch.paths.tree import BatchedTree
from wayfare.batch.record.call import row_of, row_of_array
from wayfare.batch.record.memory import Memory, memory_of
from wayfare.codegen.routines.rows import Rows
from wayfare.compiler.record.recorder import outcome_of
from wayfare.compiler.replay.trace_tree import Block
from wayfare.core.device import BACKENDS, address
from wayfare.core.mode import changed_mode
from wayfare.core.numpy_math import Array
from wayfare.core.tensor import Tensor
from wayfare.core.write_clock import tick
from wayfare.ir.graph import Value


class Stored:
    """An array with a row for each example of a group (and perhaps more rows, which nobody reads)."""

    __slots__ = ("array", "needs")

    def __init__(self, array: Array, needs: bool) -> None:
        self.array = array
        self.needs = needs  # a gradient


# Bytes of the gradients of one tensor that wait to be added up.
_MOST_WAITING = 1 << 26
# Where the rows of some examples are: an array, which of its rows (None: the first ones, in order), and how many.
Part = tuple[Stored, Array | None, int]


class Family:
    """Examples with one signature, which follow one tree; `start` is the number of the first of them in the run."""

    __slots__ = ("arguments", "stacked", "start", "tree")

    def __init__(self, tree: BatchedTree, arguments: Sequence[Sequence[Tensor]]) -> None:
        self.tree = tree
        self.arguments = arguments
        self.start = 0
        self.stacked: dict[int, Stored] = {}  # by number of the argument: those of all examples


class Group:
    """Examples of one family that have reached the same block of the tree."""

    __slots__ = ("block", "env", "examples", "family", "inputs")

    def __init__(
        self, family: Family, block: Block, inputs: BlockInputs, examples: Array, env: dict[Value, Part]
    ) -> None:
        self.family = family
        self.block = block
        self.inputs = inputs
        self.examples = examples  # their numbers
        self.env = env  # where their rows of the live values are

    def child(self, block: Block, chosen: Array, made: dict[Value, Stored], start: int) -> Group:
        """Those of its examples that go on to `block`. `made` has the results of this group from row `start` on."""
        count = len(chosen)
        everything = count == len(self.examples)
        in_front = everything and start == 0
        positions = chosen + start if start else chosen
        inputs = self.family.tree.inputs_of(block)
        env: dict[Value, Part] = {}
        for value in inputs.live:
            stored = made.get(value)
            if stored is not None:
                env[value] = (stored, None if in_front else positions, count)
            elif everything:
                env[value] = self.env[value]
            else:
                stored, rows, _ = self.env[value]
                env[value] = (stored, chosen if rows is None else rows[chosen], count)
        return Group(self.family, block, inputs, self.examples if everything else self.examples[chosen], env)


class Finished:
    """A last block that ran: its results, with a row for each of these examples from row `start` on."""

    __slots__ = ("block", "examples", "family", "results", "start")

    def __init__(self, group: Group, results: Sequence[Stored], start: int) -> None:
        self.block, self.examples, self.family = group.block, group.examples, group.family
        self.results, self.start = results, start


class Ran:
    """A function that ran: for each of its inputs with rows, where these were; its shared tensors; its outputs."""

    __slots__ = ("call", "outputs", "rows", "shared")

    def __init__(self, call: Any, rows: list[list[Part]], shared: list[Tensor], outputs: list[Stored]) -> None:
        self.call, self.rows, self.shared, self.outputs = call, rows, shared, outputs


class PathRun:
    """One run of some examples along the trees of their families."""

    def __init__(self, families: Sequence[Family], grad: bool) -> None:
        self.families = families
        self.shared: dict[int, Tensor] = {}  # the tensors that examples share, and that need a gradient
        self.finished: list[Finished] = []
        self.unseen: list[tuple[Block, Any, Array]] = []
        self.groups = 0
        self.visits: list[Visit] = []
        self.time = tick()
        self._grad = grad
        self._ran: list[Ran] = []
        self._run()

    def _run(self) -> None:
        waiting: dict[Any, list[Group]] = {}
        start = 0
        for family in self.families:
            family.start = start
            start += len(family.arguments)
            root = family.tree.root
            env: dict[Value, Part] = {}
            for value, number in family.tree.row_sources:
                env[value] = (self._stack(family, number), None, len(family.arguments))
            numbers = np.arange(family.start, start)
            self._wait(waiting, Group(family, root, family.tree.inputs_of(root), numbers, env))
        with changed_mode(executor=None):
            while waiting:
                key = min(waiting, key=lambda k: _priority(waiting[k])) if len(waiting) > 1 else next(iter(waiting))
                groups = waiting.pop(key)
                with groups[0].family.tree.memory.active():
                    self._through(waiting, groups)
        if not self._grad:
            self._ran.clear()

    def _wait(self, waiting: dict[Any, list[Group]], group: Group) -> None:
        inputs = group.inputs
        key: Any = inputs.function
        if inputs.takes_arguments:
            # Other families may share another tensor.
            given = group.family.arguments[0]
            key = (key, *[id(source.tensor(given)) for source in inputs.shared])
        waiting.setdefault(key, []).append(group)

    def _stack(self, family: Family, number: int) -> Stored:
        found = family.stacked.get(number)
        if found is None:
            first = family.arguments[0][number]
            arrays = [args[number]._array for args in family.arguments]
            row = row_of_array(first._array)
            made = row.memory.stack(arrays, row)
            found = family.stacked[number] = Stored(made, self._grad and first._requires_grad)
        return found

    def _through(self, waiting: dict[Any, list[Group]], groups: list[Group]) -> None:
        """Run the block of some groups, which do the same."""
        inputs = groups[0].inputs
        function = inputs.function
        if len(groups) == 1:
            env, size = groups[0].env, len(groups[0].examples)
            rows = [[env[value]] for value in inputs.rows]
        else:
            size = sum([len(group.examples) for group in groups])
            rows = [[group.env[group.inputs.rows[i]] for group in groups] for i in range(len(inputs.rows))]
        given = groups[0].family.arguments[0]
        shared: list[Any] = [source.tensor(given) for source in inputs.shared]
        grad = self._grad
        needs = (*[any([part[0].needs for part in parts]) for parts in rows],
                 *[grad and t._requires_grad for t in shared])  # fmt: skip
        wanted = function.size_for(size, needs)
        memory = groups[0].family.tree.memory
        gathered = _gathered if memory.is_host else partial(_gathered_there, memory)
        arrays = [gathered(parts, size, wanted) for parts in rows]
        arrays += [t._array for t in shared]
        call = function(arrays, wanted, size, needs)
        outputs = call.outputs if memory.is_host else [memory.contiguous(array) for array in call.outputs]
        made = [Stored(array, carries) for array, carries in zip(outputs, call.carries, strict=True)]
        self.groups += 1
        if grad and True in call.carries:
            self._ran.append(Ran(call, rows, shared, made))
            for t in shared:
                if t._requires_grad:
                    self.shared[id(t)] = t
        start = 0
        if groups[0].block.recording is None:
            decided = memory.on_host(made[0].array)  # of all groups at once
        for group in groups:
            if group.block.recording is not None:
                self.finished.append(Finished(group, made, start))
                self.visits.append(Visit("", group.block.depth, len(group.examples), []))
            else:
                self._split(waiting, group, dict(zip(group.inputs.targets, made, strict=True)), decided, start)
            start += len(group.examples)

    def _split(
        self, waiting: dict[Any, list[Group]], group: Group, made: dict[Value, Stored], decided: Array, start: int
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

    # -- gradients

    def backward(self, seeds: Sequence[tuple[Stored, Array]]) -> tuple[dict[int, Array], dict[int, Any]]:
        """From the gradients of results: those of stacked arguments (by id of their `Stored`), and of shared tensors
        (by id)."""
        grads: dict[int, Array] = {id(stored): g for stored, g in seeds}
        totals: dict[int, Any] = {}
        for ran in reversed(self._ran):
            arrived = [grads.get(id(stored)) for stored in ran.outputs]
            if all([g is None for g in arrived]):
                continue
            memory = memory_of(ran.outputs[0].array)
            with memory.active():
                found = ran.call.backward(arrived, self.time)
            for parts, g in zip(ran.rows, found, strict=False):
                if g is None:
                    continue
                g = g.dense() if g.__class__ is Rows else g
                if not memory.is_host:
                    _add_rows_there(memory, grads, parts, g)
                    continue
                at = 0
                for stored, chosen, count in parts:
                    if stored.needs:
                        _add_rows(grads, stored, chosen, g[at : at + count])
                    at += count
            for t, g in zip(ran.shared, found[len(ran.rows) :], strict=True):
                if g is not None:
                    _add_total(memory, totals, id(t), g)
            for stored in ran.outputs:
                grads.pop(id(stored), None)
        return grads, {key: _total(parts) if parts.__class__ is list else parts for key, parts in totals.items()}


def _add_total(memory: Memory, totals: dict[int, Any], key: int, g: Any) -> None:
    """Add to the gradient of a shared tensor. On a GPU parts are added up later, in one launch."""
    old = totals.get(key)
    if memory.is_host or g.__class__ is Rows or (old is not None and old.__class__ is not list):
        with memory.active():
            old = _total(old) if old.__class__ is list else old
            totals[key] = g if old is None else add_up(old, g, True, False)
        return
    parts = totals.setdefault(key, [])
    parts.append(g)
    if len(parts) * g.nbytes > _MOST_WAITING:
        parts[:] = [_total(parts)]


def _total(parts: list[Any]) -> Any:
    """The sum of arrays of another device than the CPU."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    row = row_of(first.shape, first.dtype, None, memory_of(first))
    with row.memory.active():
        return BACKENDS[first.__class__].ops.sum(row.memory.stack(parts, row), dim=(0,), keepdim=False)


def _gathered(parts: list[Part], count: int, size: int) -> Array:
    """The rows of some examples side by side; `size` rows, of which the first `count` are theirs."""
    if len(parts) == 1:
        stored, chosen, _ = parts[0]
        array = stored.array
        if chosen is None:
            if len(array) == size and array.flags.c_contiguous:
                return array
        elif size == count:
            first = int(chosen[0])
            if int(chosen[-1]) - first == count - 1 and array.flags.c_contiguous:
                return array[first : first + count]
    first_array = parts[0][0].array
    made = np.empty((size, *first_array.shape[1:]), first_array.dtype)
    at = 0
    for stored, chosen, own in parts:
        if chosen is None:
            made[at : at + own] = stored.array[:own]
        else:
            stored.array.take(chosen, 0, made[at : at + own], "clip")
        at += own
    if count < size:
        made[count:] = made[:1]  # rows that nobody reads: those of an example cannot fail where others do not
    return made


def _places(part: Part) -> Array:
    """The addresses of rows."""
    stored, chosen, count = part
    array = stored.array
    found: Array = address(array) + (np.arange(count) if chosen is None else chosen) * (array.nbytes // len(array))
    return found


def _gathered_there(memory: Memory, parts: list[Part], count: int, size: int) -> Any:
    """The same on another device: one launch, or none for rows that lie side by side."""
    stored, chosen, _ = parts[0]
    array = stored.array
    if len(parts) == 1:
        if chosen is None and len(array) == size:
            return array
        if chosen is not None and size == count and int(chosen[-1]) - int(chosen[0]) == count - 1:
            return array[int(chosen[0]) : int(chosen[0]) + count]
    places = np.concatenate([_places(part) for part in parts])
    if count < size:
        places = np.concatenate([places, np.full(size - count, places[0])])
    return memory.gather(places, row_of(array.shape[1:], array.dtype, None, memory))


def _add_rows_there(memory: Memory, grads: dict[int, Any], parts: list[Part], g: Any) -> None:
    """Add to the gradients of some rows on another device: one launch for all parts."""
    stored, chosen, _ = parts[0]
    if len(parts) == 1 and chosen is None and len(g) == len(stored.array) and id(stored) not in grads:
        grads[id(stored)] = g
        return
    at = 0
    places: list[Array] = []
    rows: list[Array] = []
    for stored, chosen, count in parts:
        if stored.needs:
            old = grads.get(id(stored))
            if old is None:
                old = grads[id(stored)] = memory.zeros(stored.array.shape, stored.array.dtype)
            places.append(_places((Stored(old, True), chosen, count)))
            rows.append(np.arange(at, at + count))
        at += count
    found = np.concatenate(rows)
    memory.add(np.concatenate(places), g[:at] if len(found) == at else memory.take(g, found))


def _add_rows(grads: dict[int, Array], stored: Stored, chosen: Array | None, g: Array) -> None:
    """Add to the gradients of some rows."""
    old = grads.get(id(stored))
    if old is None:
        if chosen is None and len(g) == len(stored.array):
            grads[id(stored)] = g
            return
        old = grads[id(stored)] = np.zeros(stored.array.shape, stored.array.dtype)
        if chosen is None:
            old[: len(g)] = g
        else:
            old[chosen] = g
    elif chosen is None:
        old[: len(g)] += g
    else:
        old[chosen] += g


def _priority(groups: list[Group]) -> tuple[bool, int]:
    """Last blocks wait for all others, so that as many examples as possible run them together; then the examples that
    have come the least far run first."""
    return groups[0].block.recording is not None, min([group.block.depth for group in groups])


def _outcomes(rows: Array, how: str) -> list[tuple[Any, Array]]:
    """The outcomes of a decision, and which examples have them (in order)."""
    count = len(rows)
    if how == "bool()" and rows.size == count:
        flags = rows.reshape(count).astype(np.bool_)
        found = [(True, np.flatnonzero(flags)), (False, np.flatnonzero(~flags))]
        return [(outcome, chosen) for outcome, chosen in found if len(chosen)]
    by_outcome: dict[Any, list[int]] = {}
    for i in range(count):
        by_outcome.setdefault(outcome_of(rows[i, ...], how), []).append(i)
    return [(outcome, np.asarray(chosen)) for outcome, chosen in by_outcome.items()]
