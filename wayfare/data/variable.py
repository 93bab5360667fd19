"""Batches of samples of different lengths: padded with their lengths, or as lists without padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import wayfare as wf
from wayfare.core.errors import ArgumentError, ShapeError
from wayfare.data.collate import collate, collate_fields, is_dataclass, parts_of, stack_field

__all__ = ["Padded", "pad_collate", "list_collate"]


class Padded(NamedTuple):
    """Sequences in one tensor [batch, longest, …], and how long each is: int64 [batch]."""

    data: wf.Tensor
    lengths: wf.Tensor

    def mask(self) -> wf.Tensor:
        """bool [batch, longest]: True for what is data, False for padding."""
        return wf.arange(self.data.shape[1]) < self.lengths.unsqueeze(1)


def pad_collate(batch: Sequence[Any], padding_value: float = 0, fields: Sequence[Any] | None = None) -> Any:
    """Stack samples as `default_collate` does, but pad sequences to the longest: each becomes a `Padded`.

    A sequence is any tensor or array of at least one dimension, or a list of numbers, and dimension 0 is its length;
    the other sizes must agree. `fields` names the keys or positions of a sample that are sequences; the others are
    then stacked. Give options by `functools.partial(pad_collate, padding_value=-1)`.
    """

    def padded(tensors: list[wf.Tensor], where: str) -> Any:
        if all(tensor.ndim == 0 for tensor in tensors):
            return wf.stack(tensors)
        return _pad(tensors, padding_value, where)

    return _by_field(batch, padded, fields, "pad_collate")


def list_collate(batch: Sequence[Any], fields: Sequence[Any] | None = None) -> Any:
    """Stack numbers as `default_collate` does, but keep tensors, arrays and lists of numbers as lists of tensors.

    There is one tensor for each sample, and nothing is padded: recurrent networks and `wf.map` take such lists as
    they are. `fields` names the keys or positions of a sample that stay lists; the others are then stacked.
    """

    def listed(tensors: list[wf.Tensor], where: str) -> Any:
        return wf.stack(tensors) if all(tensor.ndim == 0 for tensor in tensors) else tensors

    return _by_field(batch, listed, fields, "list_collate")


def _by_field(batch: Sequence[Any], special: Any, fields: Sequence[Any] | None, name: str) -> Any:
    samples = list(batch)
    if fields is None or not samples:
        return collate(samples, special, name)
    first = samples[0]
    if not (is_dataclass(first) or isinstance(first, Mapping | tuple | list)):
        raise ArgumentError(f"{name}: fields= names parts of a sample, but a sample is a {type(first).__name__}",
                            fix="Leave fields out.")  # fmt: skip
    names, _ = parts_of(first)
    unknown = [field for field in fields if field not in names]
    if unknown:
        raise ArgumentError(f"{name}: a sample has no field {unknown[0]!r}, only {', '.join(map(repr, names))}")
    return collate_fields(samples, lambda key: special if key in fields else stack_field, name)


def _pad(tensors: list[wf.Tensor], value: float, where: str) -> Padded:
    rests = {tuple(tensor.shape[1:]) if tensor.ndim else None for tensor in tensors}
    if len(rests) > 1:
        shapes = sorted({str(list(tensor.shape)) for tensor in tensors})
        field = f"field {where}" if where else "a sample"
        raise ShapeError(f"pad_collate: {field} has different sizes past the first dimension: {', '.join(shapes[:4])}",
                         fix="Only dimension 0 is padded; use wf.data.list_collate for a list.")  # fmt: skip
    lengths = wf.tensor([len(tensor) for tensor in tensors], dtype=wf.int64)
    longest = int(lengths.max())
    out = wf.full((len(tensors), longest, *tensors[0].shape[1:]), value, dtype=tensors[0].dtype)
    for row, tensor in enumerate(tensors):
        out[row, : len(tensor)] = tensor
    return Padded(out, lengths)
