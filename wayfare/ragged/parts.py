"""What a ragged tensor is made of: packed values and offsets, checked; and rows picked out of packed values.

`values` is [total, …], `offsets` int64 [rows + 1] from 0 to total, `lengths` int64 [rows].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import wayfare as wf
from wayfare.core.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError

Parts = tuple[wf.Tensor, wf.Tensor]


def whole_numbers(what: str, given: Any) -> wf.Tensor:
    """Offsets or lengths as an int64 tensor of one dimension."""
    made = given.detach() if isinstance(given, wf.Tensor) else wf.as_tensor(given, dtype=wf.int64)
    if made.ndim != 1:
        raise ShapeError(f"Ragged: {what} must have one dimension, these are {made.spec}")
    if made.dtype.is_floating_point or made.dtype is wf.bool:
        raise DTypeError(f"Ragged: {what} must be whole numbers, these are {made.dtype}",
                         fix="Convert them with .long().")  # fmt: skip
    return made.to(wf.int64)


def offsets_of(lengths: wf.Tensor) -> wf.Tensor:
    """Where each row begins, and where the last one ends: [rows] → [rows + 1]."""
    offsets = np.zeros(lengths.shape[0] + 1, np.int64)
    np.cumsum(lengths.numpy(), out=offsets[1:])
    return wf.from_numpy(offsets)


def from_offsets(values: Any, offsets: Any) -> Parts:
    """Values and offsets that fit together, or a sentence that says why they do not."""
    values = as_values(values)
    offsets = whole_numbers("offsets", offsets)
    places = offsets.numpy()
    if not places.size or places[0] != 0 or places[-1] != values.shape[0]:
        seen = f"these go from {places[0]} to {places[-1]}" if places.size else "there are none"
        raise ArgumentError(f"Ragged: offsets must go from 0 to {values.shape[0]}, the number of packed values; {seen}",
                            fix="For lengths use Ragged.from_lengths(values, lengths).")  # fmt: skip
    falling = np.flatnonzero(places[1:] < places[:-1])
    if falling.size:
        row = int(falling[0])
        raise ArgumentError(f"Ragged: offsets must not decrease, but row {row} would go from {places[row]} to "
                            f"{places[row + 1]}")  # fmt: skip
    return values, offsets


def from_lengths(values: Any, lengths: Any) -> Parts:
    """Values and offsets from the number of values of each row."""
    values = as_values(values)
    lengths = checked_lengths(lengths)
    total = int(lengths.sum())
    if total != values.shape[0]:
        raise ArgumentError(f"Ragged: the lengths add up to {total}, but there are {values.shape[0]} packed values")
    return values, offsets_of(lengths)


def checked_lengths(given: Any) -> wf.Tensor:
    """Lengths, none of them negative."""
    lengths = whole_numbers("lengths", given)
    negative = np.flatnonzero(lengths.numpy() < 0)
    if negative.size:
        row = int(negative[0])
        raise ArgumentError(f"Ragged: the length of row {row} is {int(lengths[row])}; it must be at least 0")
    return lengths


def as_values(values: Any) -> wf.Tensor:
    """Packed values: a tensor with a dimension to pack along."""
    made: wf.Tensor = wf.as_tensor(values)
    if made.ndim == 0:
        raise ShapeError("Ragged: the values must have at least one dimension, along which the rows are packed",
                         fix="Give a tensor of shape [total, …].")  # fmt: skip
    return made


def from_rows(rows: Any, dtype: wf.dtype | None) -> Parts:
    """Values and offsets from a list of rows; each may be a tensor, an array or a list of numbers."""
    if isinstance(rows, wf.Tensor):
        raise ArgumentTypeError("Ragged: expected a list of rows, not one tensor",
                                fix="Use Ragged.from_padded(x, lengths), or from_parts(values, offsets).")  # fmt: skip
    try:
        given = list(rows)
    except TypeError:
        raise ArgumentTypeError(f"Ragged: expected a list of rows, not {type(rows).__name__}") from None
    # A row written [] says nothing about dtype and features: it takes those of the others.
    blank = [isinstance(row, (list, tuple)) and not row for row in given]
    made = [None if empty else _row(k, row, dtype) for k, (row, empty) in enumerate(zip(given, blank, strict=True))]
    known = next(((k, row) for k, row in enumerate(made) if row is not None), None)
    if known is None:
        return wf.empty(0, dtype=dtype), wf.zeros(len(given) + 1, dtype=wf.int64)
    first, model = known
    nothing = model.new_empty((0, *model.shape[1:]))
    tensors = [nothing if row is None else row for row in made]
    for k, row in enumerate(tensors):
        if row.dtype is not model.dtype or row.shape[1:] != model.shape[1:]:
            raise _clash(k, row, first, model)
    lengths = np.fromiter((row.shape[0] for row in tensors), np.int64, len(tensors))
    return wf.cat(tensors), offsets_of(wf.from_numpy(lengths))


def _row(number: int, row: Any, dtype: wf.dtype | None) -> wf.Tensor:
    try:
        made = wf.as_tensor(row) if dtype is None else wf.as_tensor(row).to(dtype)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentTypeError(f"Ragged: row {number} cannot be made a tensor: {error}") from error
    if made.ndim == 0:
        raise ShapeError(f"Ragged: row {number} is a single number; a row is [length, …]",
                         fix="Make it a row of one with .reshape(1).")  # fmt: skip
    return made


def _clash(k: int, row: wf.Tensor, first: int, model: wf.Tensor) -> ShapeError | DTypeError:
    if row.dtype is not model.dtype:
        return DTypeError(f"Ragged: row {k} is {row.dtype} and row {first} is {model.dtype}; all rows must have one "
                          "dtype", fix="Say which with dtype=.")  # fmt: skip
    return ShapeError(f"Ragged: row {k} is {row.spec} and row {first} is {model.spec}; rows may differ only in their "
                      "first dimension")  # fmt: skip


# -- rows out of packed values -----------------------------------------------------------------------------------------


def places(starts: wf.Tensor, offsets: wf.Tensor) -> wf.Tensor:
    """The numbers start, start + 1, … of every row, packed: row r has the length the offsets say."""
    return wf.segment_repeat(starts - offsets[:-1], offsets) + wf.arange(int(offsets[-1]))


def pick(values: wf.Tensor, starts: wf.Tensor, lengths: wf.Tensor) -> Parts:
    """New rows, each a run of the packed values: from `starts`, of these `lengths`."""
    offsets = offsets_of(lengths)
    return values.index_select(0, places(starts, offsets)), offsets


def from_padded(x: wf.Tensor, lengths: Any) -> Parts:
    """Values and offsets from `x` [rows, longest, …] of which only the first `lengths` of each row count."""
    if x.ndim < 2:
        raise ShapeError(f"Ragged.from_padded: expected [rows, length, …], this is {x.spec}")
    lengths = checked_lengths(lengths)
    rows, longest = x.shape[:2]
    if lengths.shape[0] != rows:
        raise ShapeError(f"Ragged.from_padded: {rows} rows need as many lengths, these are {lengths.shape[0]}")
    if rows and int(lengths.max()) > longest:
        row = int(lengths.argmax())
        raise ArgumentError(f"Ragged.from_padded: row {row} is said to have the length {int(lengths[row])}, but x has "
                            f"only {longest} places")  # fmt: skip
    flat = x.reshape((rows * longest, *x.shape[2:]))
    return pick(flat, wf.arange(rows) * longest, lengths)


def to_padded(values: wf.Tensor, offsets: wf.Tensor, padding: float, length: int | None) -> wf.Tensor:
    """[rows, longest, …] with the padding behind the end of each row."""
    rows = offsets.shape[0] - 1
    lengths = offsets[1:] - offsets[:-1]
    longest = int(lengths.max()) if rows else 0
    if length is not None and length < longest:
        raise ArgumentError(f"Ragged.to_padded: length is {length}, but row {int(lengths.argmax())} has {longest}",
                            fix=f"Cut the rows first: r[:, :{length}].")  # fmt: skip
    wide = longest if length is None else length
    features = values.shape[1:]
    out = wf.full((rows * wide, *features), padding, dtype=values.dtype)
    out = out.index_copy(0, places(wf.arange(rows) * wide, offsets), values)
    return out.reshape((rows, wide, *features))


def joined_rows(parts: Sequence[Parts]) -> Parts:
    """All rows of the first, then all of the second, …"""
    lengths = wf.cat([offsets[1:] - offsets[:-1] for _, offsets in parts])
    return wf.cat([values for values, _ in parts]), offsets_of(lengths)


def joined_lengthwise(parts: Sequence[Parts]) -> Parts:
    """Row r of the first, then row r of the second, … in row r."""
    bases = np.cumsum([0, *(values.shape[0] for values, _ in parts)])
    starts = wf.stack([offsets[:-1] + int(base) for base, (_, offsets) in zip(bases, parts, strict=False)], dim=1)
    lengths = wf.stack([offsets[1:] - offsets[:-1] for _, offsets in parts], dim=1)
    values, _ = pick(wf.cat([values for values, _ in parts]), starts.reshape(-1), lengths.reshape(-1))
    return values, offsets_of(lengths.sum(1))
