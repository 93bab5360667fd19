"""Sequences for recurrent layers: rows packed in order of time, and back to the form of the input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from wayfare.api.functions.creation import from_numpy
from wayfare.api.functions.join import cat
from wayfare.core.errors import ArgumentError, ArgumentTypeError, OperationError, ShapeError
from wayfare.core.tensor import Tensor
from wayfare.nn.functional.ragged_attention import is_ragged
from wayfare.nn.utils.rnn import PackedSequence


class Packing:
    """`rows` [all steps, features] in order of time, `sizes` of the steps, and how many sequences there are."""

    def __init__(
        self, rows: Tensor, sizes: tuple[int, ...], count: int, as_given: Callable[[Tensor], Any],
        order: Tensor | None = None, back: Tensor | None = None, batched: bool = True,
    ) -> None:  # fmt: skip
        self.rows, self.sizes, self.count, self.batched = rows, sizes, count, batched
        # Rows [all steps, …] in this order, in the form of the input.
        self.as_given = as_given
        self._order, self._back = order, back

    def longest_first(self, states: Tensor, dim: int) -> Tensor:
        """States from the order of the input to that of the rows."""
        return states if self._order is None else states.index_select(dim, self._order)

    def in_given_order(self, states: Tensor, dim: int) -> Tensor:
        """States from the order of the rows to that of the input."""
        return states if self._back is None else states.index_select(dim, self._back)


def packing_of(name: str, given: Any, features: int, batch_first: bool) -> Packing:
    """Any form of sequences, packed; `name` is the layer, `features` the number of features that it takes."""
    if isinstance(given, PackedSequence):
        _check_features(name, given.data, features)
        sizes = tuple(given.batch_sizes.tolist())
        return Packing(
            given.data, sizes, sizes[0] if sizes else 0, lambda rows: given._replace(data=rows), given.sorted_indices,
            given.unsorted_indices,
        )  # fmt: skip
    if isinstance(given, Tensor):
        return _of_padded(name, given, features, batch_first)
    if isinstance(given, tuple) and all(isinstance(getattr(given, part, None), Tensor) for part in ("data", "lengths")):
        return _of_padded_with_lengths(name, given, features)
    if isinstance(given, (list, tuple)):
        return _of_list(name, given, features)
    if is_ragged(given):
        # A ragged tensor: rows one behind the other, and where each begins.
        _check_features(name, given.values, features)
        lengths = np.diff(given.offsets.numpy(force=True))
        return _of_parts(given.values, lengths, lambda rows: type(given).from_parts(rows, given.offsets))
    raise ArgumentTypeError(f"{name}: takes a Tensor, a PackedSequence, a Padded, a Ragged or a list of sequences, not "
                            f"{type(given).__name__}")  # fmt: skip


def _check_features(name: str, x: Tensor, features: int, what: str = "the packed rows") -> None:
    if x.ndim != 2 or x.shape[1] != features:
        raise ShapeError(f"{name}: {what} must be [steps, {features}], they are {x.spec}")


def _of_padded(name: str, x: Tensor, features: int, batch_first: bool) -> Packing:
    if x.ndim not in (2, 3):
        raise ArgumentError(f"{name}: expects an input of 3 dimensions, or of 2 for one sequence, not {x.spec}")
    if x.shape[-1] != features:
        layout = "steps" if x.ndim == 2 else "batch, steps" if batch_first else "steps, batch"
        raise ShapeError(f"{name}: expects an input of [{layout}, {features}], not {x.spec}")
    if x.ndim == 2:
        steps, count = x.shape[0], 1
    else:
        steps, count = (x.shape[1], x.shape[0]) if batch_first else (x.shape[0], x.shape[1])
    if steps == 0:
        raise OperationError(f"{name}: sequences without steps need a list of sequences, this is a tensor {x.spec}",
                             fix="Give a list of tensors [steps, features].")  # fmt: skip
    if x.ndim == 2:
        return Packing(x, (1,) * steps, 1, lambda rows: rows, batched=False)
    time_first = x.transpose(0, 1) if batch_first else x

    def as_given(rows: Tensor) -> Tensor:
        out = rows.reshape(steps, count, rows.shape[1])
        return out.transpose(0, 1) if batch_first else out

    sizes = (count,) * steps if count else ()
    return Packing(time_first.reshape(steps * count, features), sizes, count, as_given)


def _of_padded_with_lengths(name: str, given: Any, features: int) -> Packing:
    """A named tuple of `data` [batch, longest, features] and `lengths` [batch]: the padding is not run."""
    data, lengths = given.data, given.lengths.numpy(force=True)
    if data.ndim != 3 or data.shape[2] != features:
        fix = "Embed the numbers first: p._replace(data=embedding(p.data))." if data.ndim == 2 else ""
        raise ShapeError(f"{name}: the padded data must be [batch, steps, {features}], they are {data.spec}", fix=fix)
    count, steps = data.shape[0], data.shape[1]
    if lengths.shape != (count,) or lengths.dtype.kind not in "iu" or not ((lengths >= 0) & (lengths <= steps)).all():
        raise ArgumentError(f"{name}: the lengths of padded data {data.spec} must be {count} whole numbers from 0 to "
                            f"{steps}, they are {given.lengths.spec}")  # fmt: skip
    places = from_numpy(np.flatnonzero(np.arange(steps) < lengths[:, None])).to(data.device)

    def as_given(rows: Tensor) -> Any:
        padding = rows.new_zeros(count * steps, rows.shape[1])
        return given._replace(data=padding.index_copy(0, places, rows).reshape(count, steps, rows.shape[1]))

    return _of_parts(data.reshape(count * steps, features).index_select(0, places), lengths, as_given)


def _of_list(name: str, given: Sequence[Any], features: int) -> Packing:
    if not given:
        raise OperationError(f"{name}: the list of sequences is empty", fix="Give at least one, if of no steps.")
    for number, x in enumerate(given):
        if not isinstance(x, Tensor):
            raise ArgumentTypeError(f"{name}: sequence {number} of the list must be a Tensor, not {type(x).__name__}")
        _check_features(name, x, features, f"the steps of sequence {number}")
    lengths = [x.shape[0] for x in given]
    return _of_parts(cat(list(given)), np.array(lengths), lambda rows: list(rows.split(lengths)))


def _of_parts(values: Tensor, lengths: Any, as_given: Callable[[Tensor], Any]) -> Packing:
    """Sequences one behind the other, in any order of lengths."""
    order = np.argsort(-lengths, kind="stable")
    longest = int(lengths.max(initial=0))
    # How many sequences are longer than 0, 1, …: the rows of each step.
    sizes = lengths.size - np.cumsum(np.bincount(lengths, minlength=longest + 1))[:longest]
    steps = np.repeat(np.arange(longest), sizes)
    places = np.arange(steps.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    source = (np.cumsum(lengths) - lengths)[order][places] + steps
    back_rows, back = np.empty_like(source), np.empty_like(order)
    back_rows[source] = np.arange(source.size)
    back[order] = np.arange(order.size)
    there = [from_numpy(index).to(values.device) for index in (back_rows, source, order, back)]
    return Packing(
        values.index_select(0, there[1]), tuple(sizes.tolist()), lengths.size,
        lambda rows: as_given(rows.index_select(0, there[0])), there[2], there[3],
    )  # fmt: skip
