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
        self._announced: Work | None = None
        # The transfers that were started, with the arrays they fill.
        self._under_way: list[tuple[Work, Array]] = []
        self._by_rows = False

    def announce(self) -> None:
        """Tell the others how many rows there are."""
        rows = self._table.row_grad()
        self._found = None if rows is None else (rows[0].numpy(), rows[1].numpy())
        if self._found is not None:
            count = self._found[0].size
        else:
            count = _NONE if self._table.grad is None else _WHOLE
        request = self._group.engine.all_gather(np.array([count]), self._counts)
        self._announced = self._group.work(request, "the announcement of rows", size=8, background=True)

    def send(self) -> None:
        """When all have announced, start the transfer: of rows, or of the whole where that is less."""
        assert self._announced is not None
        self._announced.wait()
        counts = self._counts[:, 0]
        self._under_way = []
        if (counts == _NONE).all():
            return
        longest = max(int(counts.max()), 0)
        width = self._table.numel() // max(self._table.shape[0], 1)
        sent = longest * self._group.size() * (width + 2)
        self._by_rows = not (counts == _WHOLE).any() and sent <= 2 * self._table.numel()
        shape, dtype = tuple(self._table.shape), np.dtype(self._table.dtype.name)
        engine = self._group.engine
        if not self._by_rows:
            grad = self._table.grad
            mine = np.zeros(shape, dtype) if grad is None else np.array(grad.detach().numpy(), order="C")
            total = np.empty_like(mine)
            self._start(engine.all_reduce(mine, total, ReduceOp.SUM), mine.nbytes, total)
            return
        numbers = np.zeros(longest, np.int64)
        values = np.zeros((longest, *shape[1:]), dtype)
        if self._found is not None:
            numbers[: self._found[0].size], values[: self._found[0].size] = self._found
        for part in (numbers, values):
            every = np.empty((self._group.size(), *part.shape), part.dtype)
            self._start(engine.all_gather(part, every), part.nbytes, every)

    def _start(self, request: Any, size: int, result: Array) -> None:
        work = self._group.work(request, "the exchange of rows", size=size, background=True)
        self._under_way.append((work, result))

    def receive(self, divisor: int) -> None:
        """Wait, and leave the mean over all ranks as the gradient."""
        for work, _ in self._under_way:
            work.wait()
        results = [result for _, result in self._under_way]
        self._under_way = []
        if not results:
            return
        if self._by_rows:
            self._put_rows(results[0], results[1], divisor)
            return
        total = results[0]
        total /= divisor
        grad = self._table.grad
        if grad is None:
            self._table.grad = wf.from_numpy(total)
        else:
            target = grad.detach().numpy()
            target[...] = total
            note_write(target)

    def _put_rows(self, every_number: Array, every_value: Array, divisor: int) -> None:
        counts = self._counts[:, 0].tolist()
        there = [(every_number[r, :n], every_value[r, :n]) for r, n in enumerate(counts) if n > 0]
        touched = np.unique(np.concatenate([rows for rows, _ in there] or [every_number[0, :0]]))
        total = np.zeros((touched.size, *every_value.shape[2:]), every_value.dtype)
        for rows, part in there:  # in the order of the ranks, so that every rank adds up alike
            add_at(total, (np.searchsorted(touched, rows),), part)
        total /= divisor
        shape = tuple(self._table.shape)
        self._table._grad = Rows(shape, total.dtype, [Part((touched,), total, basic=False)])
