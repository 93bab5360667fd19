"""Chains of one recurrent cell: all steps of all sequences run as one group, without Python between them.

The levels of a chain are groups of one signature where every call reads the state of one call of the level before. They
run as one recurrence over packed sequences: the product of the inputs is one gemm for all steps, and so is the gradient
of each weight. Rows are packed in order of time, the longest sequence first, so the rows of the first step come first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from wayfare.batch.record.call import Array, Call
from wayfare.batch.record.memory import memory_of
from wayfare.batch.record.signature import Signature
from wayfare.batch.run.call_loops import steps_of
from wayfare.batch.run.group import Group
from wayfare.batch.run.steps import Steps
from wayfare.core.dispatch import tensor_ops
from wayfare.core.tensor import Tensor, wrap


def merge_chains(groups: list[list[Call]]) -> list[list[Call]]:
    """The groups in order, with those that follow each other as the levels of a chain merged into one."""
    merged: list[list[Call]] = []
    begin = 0
    while begin < len(groups):
        signature = groups[begin][0].signature
        end = begin + 1
        if signature.over_steps is not None:
            while end < len(groups) and groups[end][0].signature is signature:
                end += 1
        chain = _chain(groups[begin:end], signature) if end > begin + 1 else None
        merged += groups[begin:end] if chain is None else [chain]
        begin = end
    return merged


def _chain(levels: list[list[Call]], signature: Signature) -> Steps | None:
    """These levels as one chain; None if a state is read twice, or read as an input, or is not the whole result, or is
    detached from it."""
    needs = 2 if signature.shared_need_grad else 1 if signature.differentiable else 0
    calls = steps_of(levels, signature, signature.outs, needs)
    if calls is None:
        return None
    steps = Steps(calls)
    steps.sizes = tuple([len(level) for level in levels])
    return steps


class Chain(Group):
    """The calls of a chain, which run as one. The inputs are those of all steps, and the states of the first step."""

    __slots__ = ("_mask", "sizes")

    def __init__(self, number: int, round_number: int, signature: Signature, calls: Steps) -> None:
        super().__init__(number, round_number, signature, calls)
        self.sizes = calls.sizes
        # Step by sequence: has the sequence this step? The packed rows are its true elements, in order.
        self._mask: Array = np.arange(self.sizes[0]) < np.array(self.sizes)[:, None]

    def columns(self, calls: list[Call]) -> Sequence[tuple[Any, ...]]:
        """The inputs of all steps, and the states of the first."""
        states = zip(*[call.inputs[1:] for call in calls[: self.sizes[0]]], strict=True)
        return [tuple([call.inputs[0] for call in calls]), *states]

    def of_input(self, number: int, flags: Array) -> Array:
        """A flag for each row of one of its inputs, from flags for the calls."""
        return flags[: self.sizes[0]] if number else flags

    def split_by_gradient(self, by_call: Array, reached: Array) -> list[Array]:
        """Leave calls without a gradient out. A call that has one for some of its states goes on with all of them."""
        return super().split_by_gradient(reached[:, None], reached)

    def compute(self, leaves: list[Tensor]) -> list[Tensor]:
        """The states after all steps."""
        return self._run_steps(leaves, self.sizes)

    def _run_steps(self, leaves: Sequence[Tensor], sizes: tuple[int, ...]) -> list[Tensor]:
        opaque: Any = self.signature.target
        counts = [sum(sizes), *[sizes[0]] * (len(leaves) - 1)]
        rows, *states = [leaf if several else tensor_ops.expand(leaf, shape=(count, *leaf.shape))
                         for leaf, several, count in zip(leaves, self.batched, counts, strict=True)]  # fmt: skip
        if opaque.holds():
            of_one = len(rows.shape) == 3  # the examples give the cell batches of one row, [1, size]
            if of_one:
                rows, *states = [tensor_ops.reshape(t, shape=(len(t), t.shape[-1])) for t in (rows, *states)]
            found = self.signature.over_steps(opaque.owner(), rows, states, sizes)  # type: ignore[misc]
            return [tensor_ops.reshape(t, shape=(len(t), 1, t.shape[-1])) if of_one else t for t in found]
        # The layer has changed since: step by step, what it was.
        made: list[Sequence[Tensor]] = []
        start = 0
        for size in sizes:
            given = [_rows(rows, start, size), *[_rows(state, 0, size) for state in states]]
            states = list(opaque.as_traced(given, (True,) * len(given), size))
            made.append(states)
            start += size
        return [tensor_ops.cat(*outputs, dim=0) for outputs in zip(*made, strict=True)]

    def recompute(self, chosen: Array) -> tuple[list[Tensor], list[Tensor]]:
        """Run some of its calls again, with all those before them; gives their inputs and outputs."""
        wanted = np.zeros(self.calls, np.bool_)
        wanted[chosen] = True
        table: Array = np.zeros(self._mask.shape, np.bool_)
        table[self._mask] = wanted
        lengths = table.sum(axis=0)
        order = np.argsort(-lengths, kind="stable")[: np.count_nonzero(lengths)]
        # Where each chosen row is, by step and sequence; then in packed order.
        places = np.cumsum(table).reshape(table.shape) - 1
        packed = table[:, order]
        rows = places[:, order][packed]
        sizes = tuple([n for n in packed.sum(axis=1).tolist() if n])
        leaves = []
        for number, (leaf, several) in enumerate(zip(self.leaves, self.batched, strict=True)):
            array = leaf._array
            part = wrap(memory_of(array).take(array, chosen[: len(order)] if number else chosen) if several else array)
            part._requires_grad = leaf._requires_grad
            leaves.append(part)
        with self.differentiating():
            given = [_picked(leaf, places[0][order] if number else rows) if self.batched[number] else leaf
                     for number, leaf in enumerate(leaves)]  # fmt: skip
            made = self._run_steps(given, sizes)
            return leaves, [_picked(out, np.argsort(rows)) for out in made]

    def mark_before(self, rows: Array) -> None:
        """Mark the rows of all calls that come before marked ones."""
        by_call = rows.reshape((self.calls, -1))
        table: Array = np.zeros(self._mask.shape, np.bool_)
        table[self._mask] = by_call.any(axis=1)
        after = np.zeros_like(table)
        after[:-1] = np.logical_or.accumulate(table[:0:-1])[::-1]
        by_call |= after[self._mask][:, None]

    def inputs_of(self, i: int, columns: Sequence[Any], made: Any) -> list[Tensor]:
        """The inputs of one call, where `made` has the results of the calls before it."""
        if i < self.sizes[0]:
            return [column(i) for column in columns]
        step, start = 0, 0
        while i >= start + self.sizes[step]:
            start += self.sizes[step]
            step += 1
        before = i - self.sizes[step - 1]
        return [columns[0](i), *[made[self.number, k, before] for k in range(len(columns) - 1)]]


def _rows(t: Tensor, start: int, size: int) -> Tensor:
    return tensor_ops.slice(t, dim=0, start=start, stop=start + size, step=1)  # type: ignore[no-any-return]


def _picked(t: Tensor, rows: Array) -> Tensor:
    index = memory_of(t._array).moved(rows.astype(np.int64))
    return tensor_ops.index(t, wrap(index), dims=(0,))  # type: ignore[no-any-return]
