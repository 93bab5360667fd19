"""Sequences of different lengths in one tensor: padded to the longest, or packed time step by time step.

Every function works out, from the lengths alone, which row goes where, and moves all rows in one gather or scatter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from wayfare.api.functions.creation import from_numpy, full
from wayfare.api.functions.join import cat
from wayfare.api.functions.split import split
from wayfare.core.errors import ArgumentError, ArgumentTypeError, OperationError, ShapeError
from wayfare.core.spec import bfloat16, float16, float32, float64, int16, int32, int64
from wayfare.core.tensor import Tensor

__all__ = [
    "PackedSequence", "invert_permutation", "pack_padded_sequence", "pad_packed_sequence", "pad_sequence",
    "unpad_sequence", "pack_sequence", "unpack_sequence",
]  # fmt: skip

Whole: TypeAlias = NDArray[np.int64]


# -- the packed form -----------------------------------------------------------------------------------------


class _PackedFields(NamedTuple):
    data: Tensor
    batch_sizes: Tensor
    sorted_indices: Tensor | None
    unsorted_indices: Tensor | None


class PackedSequence(_PackedFields):
    """Sequences without padding: the first step of all of them, then the second step of all that have one, and so on.

    `data` [all steps, …], `batch_sizes` int64 [longest]: how many sequences have each step. Within a step the longest
    sequence comes first; `sorted_indices` is that order and `unsorted_indices` leads back, both None if the
    sequences were given in it. Made by `pack_sequence` and `pack_padded_sequence`.
    """

    __slots__ = ()

    def __new__(
        cls, data: Any, batch_sizes: Tensor | None = None, sorted_indices: Tensor | None = None,
        unsorted_indices: Tensor | None = None,
    ) -> PackedSequence:  # fmt: skip
        if batch_sizes is None:
            if not isinstance(data, (list, tuple)) or len(data) != 2:
                raise ArgumentTypeError("PackedSequence: needs data and batch_sizes",
                                        fix="Make one with pack_sequence or pack_padded_sequence.")  # fmt: skip
            data, batch_sizes = data
        if unsorted_indices is None:
            unsorted_indices = invert_permutation(sorted_indices)
        return super().__new__(cls, data, batch_sizes, sorted_indices, unsorted_indices)

    def to(self, *args: Any, **kwargs: Any) -> PackedSequence:
        """With the data converted as by `Tensor.to`; itself if there is nothing to convert."""
        data = self.data.to(*args, **kwargs)
        return self if data is self.data else self._replace(data=data)

    def cpu(self) -> PackedSequence:
        """On the CPU."""
        return self.to("cpu")

    def half(self) -> PackedSequence:
        """With float16 data."""
        return self.to(float16)

    def bfloat16(self) -> PackedSequence:
        """With bfloat16 data."""
        return self.to(bfloat16)

    def float(self) -> PackedSequence:
        """With float32 data."""
        return self.to(float32)

    def double(self) -> PackedSequence:
        """With float64 data."""
        return self.to(float64)

    def short(self) -> PackedSequence:
        """With int16 data."""
        return self.to(int16)

    def int(self) -> PackedSequence:
        """With int32 data."""
        return self.to(int32)

    def long(self) -> PackedSequence:
        """With int64 data."""
        return self.to(int64)


def invert_permutation(permutation: Tensor | None) -> Tensor | None:
    """The permutation that undoes a permutation; None for None."""
    if permutation is None:
        return None
    order = permutation.numpy(force=True)
    inverse = np.empty_like(order)
    inverse[order] = np.arange(order.size)
    return from_numpy(inverse).to(permutation.device)


# -- which row goes where ------------------------------------------------------------------------------------


def _read_lengths(name: str, lengths: Any) -> Whole:
    """Lengths as an array [batch]."""
    given = lengths.numpy(force=True) if isinstance(lengths, Tensor) else np.asarray(lengths)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        shown = f"of {lengths.spec}" if isinstance(lengths, Tensor) else f"{lengths!r}"
        raise ArgumentTypeError(f"{name}: lengths must be a list or a tensor of one dimension of whole numbers, "
                                f"not {shown}")  # fmt: skip
    return given.astype(np.int64)


def _counts_above(values: Whole, size: int) -> Whole:
    """How many of the values are above 0, 1, … `size` - 1: turns lengths into batch sizes, and those into lengths."""
    return values.size - np.cumsum(np.bincount(values, minlength=size + 1))[:size]


def _ranges(counts: Whole) -> Whole:
    """0 … counts[0]-1, 0 … counts[1]-1, and so on, in one array."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


class _Places(NamedTuple):
    """For each packed row: its time step, and its sequence in the sorted order."""

    step: Whole
    rank: Whole
    batch_sizes: Whole


def _packed_places(batch_sizes: Whole) -> _Places:
    return _Places(np.repeat(np.arange(batch_sizes.size), batch_sizes), _ranges(batch_sizes), batch_sizes)


def _order(name: str, lengths: Whole, enforce_sorted: bool) -> Whole | None:
    """The order from the longest to the shortest; None if they must stand in it already."""
    if lengths.size == 0:
        raise OperationError(f"{name}: there are no sequences", fix="Give at least one.")
    if lengths.min() <= 0:
        first = int(np.argmax(lengths <= 0))
        raise OperationError(f"{name}: sequence {first} has length {lengths[first]}, but a packed sequence has at "
                             "least one step", fix="Leave empty sequences out.")  # fmt: skip
    if not enforce_sorted:
        return np.argsort(-lengths, kind="stable")
    if (np.diff(lengths) > 0).any():
        raise OperationError(f"{name}: the sequences must go from the longest to the shortest",
                             fix="Give enforce_sorted=False to have them sorted.")  # fmt: skip
    return None


def _pack(rows: Tensor, lengths: Whole, order: Whole | None, start: Whole, stride: int) -> PackedSequence:
    """Gather the packed form from rows, where step t of sequence b is the row `start[b] + stride * t`."""
    longest_first = lengths if order is None else lengths[order]
    places = _packed_places(_counts_above(lengths, int(longest_first[0])))
    first = start if order is None else start[order]
    data = rows.index_select(0, from_numpy(first[places.rank] + stride * places.step).to(rows.device))
    indices = None if order is None else from_numpy(order).to(rows.device)
    return PackedSequence(data, from_numpy(places.batch_sizes), indices)


def _spread(rows: Tensor, index: Whole, shape: Sequence[int], padding_value: Any) -> Tensor:
    """A tensor [*shape, …] full of padding, with the rows written at their places (numbers in the first two dims)."""
    rest = tuple(rows.shape[1:])
    base = full((shape[0] * shape[1], *rest), padding_value, dtype=rows.dtype, device=rows.device)
    return base.index_copy(0, from_numpy(index).to(rows.device), rows).reshape((*shape, *rest))


# -- packed and padded ---------------------------------------------------------------------------------------


def pack_padded_sequence(
    input: Tensor, lengths: Tensor | list[int], batch_first: bool = False, enforce_sorted: bool = True
) -> PackedSequence:
    """Pack padded sequences [longest, batch, …] ([batch, longest, …] with `batch_first`) of the given lengths."""
    name = "pack_padded_sequence"
    if not isinstance(input, Tensor):
        raise ArgumentTypeError(f"{name}: takes a padded Tensor, not {type(input).__name__}")
    sizes = _read_lengths(name, lengths)
    if input.ndim < 2 or input.numel() == 0:
        raise OperationError(f"{name}: needs a tensor of at least two dimensions with something in it, this is "
                             f"{input.spec}")  # fmt: skip
    batch, steps = tuple(input.shape[:2]) if batch_first else (input.shape[1], input.shape[0])
    if sizes.size != batch:
        raise OperationError(f"{name}: {sizes.size} lengths for a batch of {batch} sequences in {input.spec}",
                             fix="Check batch_first.")  # fmt: skip
    order = _order(name, sizes, enforce_sorted)
    if sizes.max() > steps:
        raise OperationError(f"{name}: a length of {int(sizes.max())} is more than the {steps} steps of {input.spec}",
                             fix="Check batch_first.")  # fmt: skip
    rows = input.reshape((batch * steps, *input.shape[2:]))
    if batch_first:
        return _pack(rows, sizes, order, np.arange(batch) * steps, 1)
    return _pack(rows, sizes, order, np.arange(batch), batch)


def _read_packed(name: str, sequence: Any) -> tuple[_Places, Whole]:
    """The places of the rows of a packed sequence, and the length of each sequence in sorted order."""
    if not isinstance(sequence, PackedSequence):
        raise ArgumentTypeError(f"{name}: takes a PackedSequence, not {type(sequence).__name__}")
    batch_sizes = sequence.batch_sizes.cpu().numpy()
    if batch_sizes.size == 0:
        raise OperationError(f"{name}: the packed sequence is empty")
    return _packed_places(batch_sizes), _counts_above(batch_sizes, int(batch_sizes[0]))


def pad_packed_sequence(
    sequence: PackedSequence, batch_first: bool = False, padding_value: float = 0.0, total_length: int | None = None
) -> tuple[Tensor, Tensor]:
    """The padded sequences [longest, batch, …] (or [batch, longest, …]) and their lengths, in the order before packing.

    With `total_length` they are padded to that instead of to the longest.
    """
    places, lengths = _read_packed("pad_packed_sequence", sequence)
    batch, steps = lengths.size, places.batch_sizes.size
    if total_length is not None:
        if total_length < steps:
            raise ArgumentError(f"pad_packed_sequence: total_length {total_length} is less than the longest sequence, "
                                f"which has {steps} steps")  # fmt: skip
        steps = total_length
    column = places.rank
    if sequence.sorted_indices is not None:
        column = sequence.sorted_indices.numpy(force=True)[places.rank]
    if sequence.unsorted_indices is not None:
        lengths = lengths[sequence.unsorted_indices.numpy(force=True)]
    if batch_first:
        index, shape = column * steps + places.step, (batch, steps)
    else:
        index, shape = places.step * batch + column, (steps, batch)
    return _spread(sequence.data, index, shape, padding_value), from_numpy(lengths)


# -- lists of sequences --------------------------------------------------------------------------------------


def _read_sequences(name: str, sequences: Any) -> tuple[Tensor, Whole]:
    """All rows of all sequences, one after the other, and the length of each."""
    if not isinstance(sequences, Iterable):
        raise OperationError(f"{name}: takes a list of tensors, not {type(sequences).__name__}")
    listed = list(sequences)
    if not listed:
        raise OperationError(f"{name}: there are no sequences", fix="Give at least one tensor.")
    for position, item in enumerate(listed):
        if not isinstance(item, Tensor):
            raise ArgumentTypeError(f"{name}: sequence {position} is a {type(item).__name__}, not a Tensor")
        if item.ndim == 0:
            raise ShapeError(f"{name}: sequence {position} is 0-dim; its first dimension should be the steps")
        if item.shape[1:] != listed[0].shape[1:]:
            raise ShapeError(f"{name}: the sequences must agree in all dimensions but the first, sequence 0 is "
                             f"{listed[0].spec} and sequence {position} is {item.spec}")  # fmt: skip
    return cat(listed), np.array([item.shape[0] for item in listed], np.int64)


def pad_sequence(
    sequences: Iterable[Tensor], batch_first: bool = False, padding_value: float = 0.0, padding_side: str = "right"
) -> Tensor:
    """Sequences [length, …] side by side as [longest, batch, …], or [batch, longest, …], filled up at one side."""
    if padding_side not in ("left", "right"):
        raise OperationError(f"pad_sequence: padding_side must be 'left' or 'right', it is {padding_side!r}")
    rows, lengths = _read_sequences("pad_sequence", sequences)
    batch, steps = lengths.size, int(lengths.max())
    step, column = _ranges(lengths), np.repeat(np.arange(batch), lengths)
    if padding_side == "left":
        step += np.repeat(steps - lengths, lengths)
    if batch_first:
        return _spread(rows, column * steps + step, (batch, steps), padding_value)
    return _spread(rows, step * batch + column, (steps, batch), padding_value)


def unpad_sequence(padded_sequences: Tensor, lengths: Tensor | list[int], batch_first: bool = False) -> list[Tensor]:
    """The sequences [length, …] in a padded tensor [longest, batch, …], or [batch, longest, …]; lengths may be 0."""
    name = "unpad_sequence"
    if not isinstance(padded_sequences, Tensor) or padded_sequences.ndim < 2:
        shown = padded_sequences.spec if isinstance(padded_sequences, Tensor) else type(padded_sequences).__name__
        raise ShapeError(f"{name}: takes a padded tensor of at least two dimensions, not {shown}")
    sizes = _read_lengths(name, lengths)
    spec, shape = padded_sequences.spec, tuple(padded_sequences.shape)
    batch, steps = shape[:2] if batch_first else (shape[1], shape[0])
    if sizes.size != batch:
        raise ArgumentError(f"{name}: {sizes.size} lengths for a batch of {batch} sequences in {spec}",
                            fix="Check batch_first.")  # fmt: skip
    if sizes.size and not 0 <= sizes.min() <= sizes.max() <= steps:
        raise ArgumentError(f"{name}: lengths must lie between 0 and the {steps} steps of {spec}, they go from "
                            f"{sizes.min()} to {sizes.max()}", fix="Check batch_first.")  # fmt: skip
    step, column = _ranges(sizes), np.repeat(np.arange(batch), sizes)
    index = column * steps + step if batch_first else step * batch + column
    return _cut(padded_sequences.reshape((batch * steps, *shape[2:])), index, sizes)


def _cut(rows: Tensor, index: Whole, lengths: Whole) -> list[Tensor]:
    """Gather rows that lie sequence by sequence, and cut between the sequences."""
    return list(split(rows.index_select(0, from_numpy(index).to(rows.device)), lengths.tolist()))


def pack_sequence(sequences: Iterable[Tensor], enforce_sorted: bool = True) -> PackedSequence:
    """Pack sequences [length, …]; without `enforce_sorted` in any order."""
    rows, lengths = _read_sequences("pack_sequence", sequences)
    order = _order("pack_sequence", lengths, enforce_sorted)
    return _pack(rows, lengths, order, np.cumsum(lengths) - lengths, 1)


def unpack_sequence(packed_sequences: PackedSequence) -> list[Tensor]:
    """The sequences [length, …] of a packed sequence, in the order they were packed."""
    places, lengths = _read_packed("unpack_sequence", packed_sequences)
    rank = np.arange(lengths.size)
    if packed_sequences.unsorted_indices is not None:
        rank = packed_sequences.unsorted_indices.numpy(force=True)
        lengths = lengths[rank]
    first = np.cumsum(places.batch_sizes) - places.batch_sizes
    return _cut(packed_sequences.data, first[_ranges(lengths)] + np.repeat(rank, lengths), lengths)
