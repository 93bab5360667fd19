"""`stack` and `cat` of rows of one shape: nothing but a gather of all rows of all calls, which are then the result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from wayfare.batch.record.call import Array, Call
from wayfare.batch.record.ragged_signature import stacks_rows
from wayfare.batch.record.signature import Signature
from wayfare.batch.run.group import Group
from wayfare.batch.run.steps import StackCalls
from wayfare.core.dispatch import tensor_ops
from wayfare.core.tensor import Tensor


def find_stacks(groups: list[list[Call]]) -> list[list[Call]]:
    """The groups, with those that only stack rows as StackCalls."""
    return [StackCalls(group) if _only_stacks(group) else group for group in groups]


def _only_stacks(calls: Sequence[Call]) -> bool:
    """Whether such calls put rows of one shape one after another, as `stack` and `cat` do along the first dimension."""
    signature, rows = calls[0].signature, calls[0].inputs
    if signature.ragged is not None:
        return signature.ragged.program is None
    return len(rows) > 1 and stacks_rows(signature, [getattr(row, "row", None) for row in rows])


class Stacked(Group):
    """Calls that only stack rows. The rows of all their inputs are one input of the group."""

    __slots__ = ("count",)

    def __init__(self, number: int, round_number: int, signature: Signature, calls: StackCalls) -> None:
        super().__init__(number, round_number, signature, calls)
        self.count = len(calls[0].inputs)

    def columns(self, calls: list[Call]) -> Sequence[tuple[Any, ...]]:
        """One column: the rows of all inputs."""
        return [calls.rows()]  # type: ignore[attr-defined]

    def of_input(self, number: int, flags: Array) -> Array:
        """A flag for each row, from flags for the calls."""
        return np.repeat(flags, self.count)

    def compute(self, leaves: list[Tensor]) -> list[Tensor]:
        """The gathered rows in the shape of the results."""
        rows, shape = leaves[0], self.signature.outs[0].shape
        if self.batched[0]:
            return [tensor_ops.reshape(rows, shape=(self.calls, *shape))]
        # One row for all inputs of all calls.
        return [tensor_ops.reshape(tensor_ops.expand(rows, shape=(self.count, *rows.shape)), shape=shape)]

    def split_by_gradient(self, by_call: Array, reached: Array) -> list[Array]:
        """Never: rows are only moved, so a zero gradient stays one."""
        return []

    def inputs_of(self, i: int, columns: Sequence[Any], made: Any) -> list[Tensor]:
        """The inputs of one call."""
        return [columns[0](i * self.count + k) for k in range(self.count)]
