"""Attention within rows of different lengths: rows of one length are done together, and none is padded.

A ragged value is known by what it has: `values` [total, *features] with all rows one behind the other, `offsets`
[rows + 1] of their beginnings and the end, and `map_values(function)`, which gives the same rows with other values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from wayfare.api.functions._guard import is_ragged as is_ragged
from wayfare.api.functions.join import cat
from wayfare.core.errors import ArgumentError, ArgumentTypeError, ShapeError
from wayfare.core.numpy_math import Array
from wayfare.core.tensor import Tensor, on_device_of


def check_ragged(op: str, query: Any, key: Any, value: Any, **masks: Any) -> None:
    """All three ragged with as many rows, keys and values of the same lengths, and no mask."""
    for name, x in (("query", query), ("key", key), ("value", value)):
        if not is_ragged(x):
            raise ArgumentTypeError(f"{op}: {name} must be ragged as the others are, not {type(x).__name__}")
    for name, mask in masks.items():
        if mask is not None:
            raise ArgumentError(f"{op}: rows of different lengths take no {name}",
                                fix="They have no padding; is_causal=True is understood.")  # fmt: skip
    if query.offsets.shape != key.offsets.shape:
        raise ShapeError(f"{op}: the query has {query.offsets.shape[0] - 1} rows and the key "
                         f"{key.offsets.shape[0] - 1}")  # fmt: skip
    if key.offsets is not value.offsets and key.offsets.tolist() != value.offsets.tolist():
        raise ShapeError(f"{op}: key and value must have rows of the same lengths")


class _Order:
    """Rows sorted so that those of equal lengths lie together."""

    def __init__(self, bounds: Array, rows: Array) -> None:
        self.lengths = np.diff(bounds)[rows]
        ends = np.cumsum(self.lengths)
        # Where each value of the sorted rows comes from.
        self.places = np.repeat(bounds[:-1][rows] - (ends - self.lengths), self.lengths) + np.arange(bounds[-1])
        self.edges = np.concatenate([[0], ends])
        self.as_is = bool((rows[1:] > rows[:-1]).all())

    def sorted(self, values: Tensor) -> Tensor:
        """The values in the order of the sorted rows."""
        return values if self.as_is else values.index_select(0, on_device_of(values, self.places))

    def back(self, values: Tensor) -> Tensor:
        """The values of sorted rows where they came from."""
        if self.as_is:
            return values
        home = np.empty_like(self.places)
        home[self.places] = np.arange(home.size)
        return values.index_select(0, on_device_of(values, home))


def by_length(function: Callable[..., Tensor], *parts: tuple[Tensor, Tensor]) -> Tensor:
    """`function` of (values, offsets) for each row, for all rows of equal lengths at once.

    It is given each part as [rows, length, *features] and gives [rows, length of the first part, *features]; what comes
    back is packed like the first part.
    """
    bounds = {id(offsets): np.array(offsets.tolist()) for _, offsets in parts}
    own = [bounds[id(offsets)] for _, offsets in parts]
    lengths = np.stack([np.diff(b) for b in own], 1)
    _, group = np.unique(lengths, axis=0, return_inverse=True)
    rows = np.argsort(group.reshape(-1), kind="stable")
    orders = {key: _Order(b, rows) for key, b in bounds.items()}
    along = [orders[id(offsets)] for _, offsets in parts]
    sorted_values = [order.sorted(values) for order, (values, _) in zip(along, parts, strict=True)]
    cuts = np.flatnonzero(np.diff(group.reshape(-1)[rows], prepend=-1)).tolist()
    made: list[Tensor] = []
    for first, last in zip(cuts, [*cuts[1:], rows.size], strict=True):
        if along[0].lengths[first] or (last == rows.size and not made):
            made.append(function(*(_block(v, order, first, last) for v, order in
                                   zip(sorted_values, along, strict=True))).flatten(0, 1))  # fmt: skip
    if not made:  # There are no rows at all.
        made.append(function(*(v.unsqueeze(0) for v in sorted_values)).flatten(0, 1))
    return along[0].back(made[0] if len(made) == 1 else cat(made, 0))


def _block(values: Tensor, order: _Order, first: int, last: int) -> Tensor:
    """Sorted rows of one length as [rows, length, *features]."""
    begin, end = int(order.edges[first]), int(order.edges[last])
    whole = values if end - begin == values.shape[0] else values[begin:end]
    return whole.reshape(last - first, int(order.lengths[first]), *values.shape[1:])
