"""`r[...]`: rows by number, slice, list, mask or index; places within rows; features."""

from __future__ import annotations

from typing import Any

import numpy as np

import wayfare as wf
from wayfare.core.errors import ArgumentTypeError, IndexRangeError, ShapeError
from wayfare.ragged.parts import Parts, pick

ALL = slice(None)


def split_index(index: Any, ndim: int) -> tuple[Any, Any, tuple[Any, ...]]:
    """What is asked of the rows, of the places within rows, and of the features; `...` filled in."""
    asked = index if isinstance(index, tuple) else (index,)
    if any(part is None for part in asked):
        raise ArgumentTypeError("Ragged: None in an index is not supported",
                                fix="Use r.map_values(lambda v: v.unsqueeze(-1)).")  # fmt: skip
    dots = [k for k, part in enumerate(asked) if part is Ellipsis]
    if len(dots) > 1 or len(asked) - len(dots) > ndim:
        raise IndexRangeError(f"Ragged: {len(asked)} indices for a ragged tensor of {ndim} dimensions")
    if dots:
        missing = ndim - len(asked) + 1
        asked = (*asked[: dots[0]], *(ALL,) * missing, *asked[dots[0] + 1 :])
    rows, places = (*asked, ALL, ALL)[:2]
    return rows, places, tuple(asked[2:])


def row_number(index: int, rows: int) -> int:
    """A row number from 0 on; negative ones count from the end."""
    if not -rows <= index < rows:
        raise IndexRangeError(f"Ragged: row {index} is out of range, there are {rows} rows")
    return index % rows


def is_number(index: Any) -> bool:
    """Is it one number (and not a list or a mask)?"""
    if isinstance(index, wf.Tensor):
        return index.ndim == 0 and not index.dtype.is_floating_point and index.dtype is not wf.bool
    return isinstance(index, (int, np.integer)) and not isinstance(index, (bool, np.bool_))


def choose_rows(values: wf.Tensor, offsets: wf.Tensor, index: Any) -> Parts:
    """The rows a slice, list, mask or index tensor asks for, in its order."""
    rows = offsets.shape[0] - 1
    if isinstance(index, slice):
        begin, end, step = index.indices(rows)
        if step == 1:
            end = max(begin, end)
            low, high = int(offsets[begin]), int(offsets[end])
            return values[low:high], offsets[begin : end + 1] - low
        chosen = wf.arange(rows)[np.arange(begin, end, step)]
    else:
        chosen = _chosen(index, rows)
    starts = offsets[:-1][chosen]
    return pick(values, starts, offsets[1:][chosen] - starts)


def _chosen(index: Any, rows: int) -> wf.Tensor:
    if isinstance(index, (list, tuple, range)) and not len(index):
        return wf.empty(0, dtype=wf.int64)
    try:
        made: wf.Tensor = wf.as_tensor(list(index) if isinstance(index, range) else index)
    except (TypeError, ValueError, RuntimeError):
        raise ArgumentTypeError(f"Ragged: cannot choose rows by {type(index).__name__}",
                                fix="Use a number, slice, list, mask or index tensor.") from None  # fmt: skip
    if made.ndim != 1:
        raise ShapeError(f"Ragged: rows are chosen by one dimension of numbers or bools, this is {made.spec}")
    if made.dtype is wf.bool:
        if made.shape[0] != rows:
            raise ShapeError(f"Ragged: a mask of rows needs {rows} entries, this has {made.shape[0]}")
        true: wf.Tensor = made.nonzero()
        return true.reshape(-1)
    if made.dtype.is_floating_point:
        raise ArgumentTypeError(f"Ragged: rows are chosen by whole numbers, these are {made.dtype}")
    numbers = made.to(wf.int64)
    outside = (numbers < -rows) | (numbers >= rows)
    if bool(outside.any()):
        raise IndexRangeError(f"Ragged: row {int(numbers[outside][0])} is out of range, there are {rows} rows")
    from_front: wf.Tensor = wf.where(numbers < 0, numbers + rows, numbers)
    return from_front


def cut_rows(values: wf.Tensor, offsets: wf.Tensor, asked: slice) -> Parts:
    """`row[a:b]` for every row."""
    if asked.step not in (None, 1):
        raise ArgumentTypeError(f"Ragged: a slice within rows must have the step 1, not {asked.step}",
                                fix="r.flip(1) turns rows around.")  # fmt: skip
    lengths = (offsets[1:] - offsets[:-1]).numpy()
    begin = _clipped(asked.start, lengths, 0)
    end = np.maximum(_clipped(asked.stop, lengths, None), begin)
    return pick(values, offsets[:-1] + wf.from_numpy(begin), wf.from_numpy(end - begin))


def _clipped(bound: int | None, lengths: Any, default: int | None) -> Any:
    """Where a bound of a slice lies in each row, by Python's rule."""
    if bound is None:
        return lengths.copy() if default is None else np.zeros_like(lengths)
    return np.minimum(bound, lengths) if bound >= 0 else np.maximum(lengths + bound, 0)


def one_of_each(values: wf.Tensor, offsets: wf.Tensor, place: int) -> wf.Tensor:
    """`row[place]` for every row: [rows, …]."""
    lengths = offsets[1:] - offsets[:-1]
    short = lengths <= place if place >= 0 else lengths < -place
    if bool(short.any()):
        row = int(short.to(wf.int64).argmax())
        raise IndexRangeError(f"Ragged: row {row} has {int(lengths[row])} values, so there is no [{place}] in it")
    return values.index_select(0, (offsets[:-1] if place >= 0 else offsets[1:]) + place)
