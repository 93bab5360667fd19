"""Gradients that touch few rows of a table, an embedding's, go to the other ranks as rows."""

from __future__ import annotations

from typing import Any

import numpy as np

import wayfare as wf
from wayfare.codegen.routines.rows import Part, Rows, add_at
from wayfare.core.write_clock import note_write
from wayfare.distributed.engine import Array, ReduceOp
from wayfare.distributed.process_group import ProcessGroup
from wayfare.distributed.work import Work

__all__ = ["RowExchange"]

# What a rank announces that has a whole gradient, or none, in the place of a number of rows.
_WHOLE, _NONE = -1, -2


class RowExchange:
    """The gradient of one table: every rank announces how many rows it has, then all send rows, or all the whole."""

    def __init__(self, table: wf.Tensor, group: ProcessGroup) -> None:
        self._table = table
        self._group = group
        self._counts = np.zeros((group.size(), 1), np.int64)
        self._found: tuple[Array, Array] | None = None
        self._work: Work | None = None

    def announce(self) -> None:
        """Tell the others how many rows there are."""
        rows = self._table.row_grad()
        self._found = None if rows is None else (rows[0].numpy(), rows[1].numpy())
        if self._found is not None:
            count = self._found[0].size
        else:
            count = _NONE if self._table.grad is None else _WHOLE
        request = self._group.engine.all_gather(np.array([count]), self._counts)
        self._work = self._group.work(request, "the announcement of rows", size=8, background=True)

    def exchange(self, divisor: int) -> None:
        """Send and receive, and leave the mean over all ranks as the gradient."""
        assert self._work is not None
        self._work.wait()
        counts = self._counts[:, 0]
        if (counts == _NONE).all():
            return
        longest = max(int(counts.max()), 0)
        width = self._table.numel() // max(self._table.shape[0], 1)
        sent = longest * self._group.size() * (width + 2)
        if (counts == _WHOLE).any() or sent > 2 * self._table.numel():
            self._whole(divisor)
        else:
            self._by_rows(counts, longest, divisor)

    def _whole(self, divisor: int) -> None:
        grad = self._table.grad
        dtype = np.dtype(self._table.dtype.name)
        mine = np.zeros(tuple(self._table.shape), dtype) if grad is None else np.array(grad.detach().numpy(), order="C")
        total = np.empty_like(mine)
        self._wait(self._group.engine.all_reduce(mine, total, ReduceOp.SUM), mine.nbytes)
        total /= divisor
        if grad is None:
            self._table.grad = wf.from_numpy(total)
        else:
            target = grad.detach().numpy()
            target[...] = total
            note_write(target)

    def _by_rows(self, counts: Array, longest: int, divisor: int) -> None:
        shape = tuple(self._table.shape)
        dtype = np.dtype(self._table.dtype.name)
        numbers = np.zeros(longest, np.int64)
        values = np.zeros((longest, *shape[1:]), dtype)
        if self._found is not None:
            numbers[: self._found[0].size], values[: self._found[0].size] = self._found
        every_number = np.empty((self._group.size(), *numbers.shape), numbers.dtype)
        every_value = np.empty((self._group.size(), *values.shape), values.dtype)
        first = self._group.engine.all_gather(numbers, every_number)
        second = self._group.engine.all_gather(values, every_value)
        self._wait(first, numbers.nbytes)
        self._wait(second, values.nbytes)
        there = [(every_number[r, :n], every_value[r, :n]) for r, n in enumerate(counts.tolist()) if n > 0]
        touched = np.unique(np.concatenate([rows for rows, _ in there] or [numbers[:0]]))
        total = np.zeros((touched.size, *shape[1:]), dtype)
        for rows, part in there:  # in the order of the ranks, so that every rank adds up alike
            add_at(total, (np.searchsorted(touched, rows),), part)
        total /= divisor
        self._table._grad = Rows(shape, dtype, [Part((touched,), total, basic=False)])

    def _wait(self, request: Any, size: int) -> None:
        self._group.work(request, "the exchange of rows", size=size).wait()
