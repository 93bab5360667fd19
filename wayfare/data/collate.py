"""Samples into a batch: nested samples of tensors, arrays and numbers become the same nesting of stacked tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import wayfare as wf
from wayfare.core.errors import ArgumentError, ArgumentTypeError, OperationError, ShapeError
from wayfare.data.dataset import Stacked

__all__ = ["default_collate", "default_convert"]

# Makes one field of a batch of the tensors of its samples; the text is the field's place in a sample.
Leaf = Callable[[list[wf.Tensor], str], Any]

_LENGTHS = ("Give collate_fn=wf.data.pad_collate for one padded tensor and the lengths, or "
            "collate_fn=wf.data.list_collate for a list of tensors.")  # fmt: skip
_PLAIN = "give collate_fn=list: a batch is then the plain list of examples."


def default_collate(batch: Sequence[Any]) -> Any:
    """Stack the samples of a batch: a tensor [batch, …] for each tensor, array or number in a sample.

    Floats become float64 and ints int64; strings and bytes stay side by side. Dicts, lists, named tuples and
    dataclasses keep their class; a plain tuple becomes a list, as in PyTorch.
    """
    if isinstance(batch, Stacked):
        return list(batch.fields)
    return collate(batch, stack_field, "default_collate")


def default_convert(data: Any) -> Any:
    """A sample with its arrays as tensors and everything else as it is; no batch is made."""
    if isinstance(data, np.ndarray | np.generic):
        return data if not _is_number(data.dtype) else wf.as_tensor(np.asarray(data))
    if isinstance(data, wf.Tensor | str | bytes):
        return data
    if is_dataclass(data) or isinstance(data, Mapping | Sequence):
        names, values = parts_of(data)
        return rebuild(data, names, [default_convert(value) for value in values])
    return data


def _is_number(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "biuf" or dtype == wf.bfloat16.numpy


def pinned(batch: Any) -> Any:
    """A batch with its tensors in memory that a GPU reads directly, where one is in use."""
    if isinstance(batch, wf.Tensor):
        return batch.pin_memory()
    if isinstance(batch, str | bytes):
        return batch
    if is_dataclass(batch) or isinstance(batch, Mapping | Sequence):
        names, values = parts_of(batch)
        return rebuild(batch, names, [pinned(value) for value in values])
    return batch


def collate(batch: Sequence[Any], leaf: Leaf, name: str, where: str = "") -> Any:
    """Make a batch of samples, with `leaf` for the tensors of a field. `where` is the field's place in a sample."""
    if len(batch) == 0:
        raise ArgumentError(f"{name}: there are no samples to make a batch of",
                            fix="Drop empty batches in the sampler.")  # fmt: skip
    first = batch[0]
    # Tensors of other libraries, as datasets made for them give, come without a copy through DLPack.
    if isinstance(first, wf.Tensor | np.ndarray) or hasattr(first, "__dlpack__"):
        kind = wf.Tensor
        tensors = [sample if sample.__class__ is kind else _as_tensor(sample, name, where) for sample in batch]
        return leaf(tensors, where)
    if isinstance(first, np.generic) and _is_number(first.dtype):
        return _as_tensor(np.array(batch), name, where)
    if isinstance(first, int | float) and not isinstance(first, np.generic):
        return _numbers(batch, name, where)
    if isinstance(first, str | bytes):
        return batch
    if leaf is not stack_field and _are_lists_of_numbers(batch):
        # Not `wf.tensor` of each list: one with whole numbers only would get another dtype than its neighbours.
        dtype = wf.tensor([number for sample in batch for number in sample]).dtype
        return leaf([wf.tensor(sample, dtype=dtype) for sample in batch], where)
    if is_dataclass(first) or isinstance(first, Mapping | Sequence):
        return collate_fields(batch, lambda _key: leaf, name, where)
    shown = f"{type(first).__module__}.{type(first).__qualname__}".removeprefix("builtins.")
    raise ArgumentTypeError(f"{name}: {_field(where)} is a {shown}, which cannot be stacked",
                            fix="Return tensors, arrays, numbers, strings, or dicts and lists of them from the "
                            "dataset, or give a collate_fn.")  # fmt: skip


def collate_fields(batch: Sequence[Any], leaf_of: Callable[[Any], Leaf], name: str, where: str = "") -> Any:
    """Make a batch of samples that are containers, with `leaf_of(key)` for the tensors of their parts."""
    names, columns = _columns(batch, name, where)
    place = "{}.{}" if is_dataclass(batch[0]) else "{}[{!r}]"
    named = zip(names, columns, strict=True)
    fields = [collate(column, leaf_of(key), name, place.format(where, key)) for key, column in named]
    return rebuild(batch[0], names, fields)


def is_dataclass(value: Any) -> bool:
    """Is it an instance of a dataclass?"""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def parts_of(sample: Any) -> tuple[list[Any], list[Any]]:
    """The names (or numbers) and the values of what a container holds."""
    if is_dataclass(sample):
        names = [field.name for field in dataclasses.fields(sample)]
        return names, [getattr(sample, name) for name in names]
    if isinstance(sample, Mapping):
        return list(sample), list(sample.values())
    return list(range(len(sample))), list(sample)


def rebuild(like: Any, names: list[Any], values: list[Any]) -> Any:
    """A container of the class of `like` with other values; a plain tuple becomes a list."""
    kind = type(like)
    if is_dataclass(like):
        return dataclasses.replace(like, **dict(zip(names, values, strict=True)))
    if isinstance(like, Mapping):
        mapping = dict(zip(names, values, strict=True))
        if kind is dict:
            return mapping
        try:
            return kind(mapping)
        except TypeError:
            return mapping
    if isinstance(like, tuple):
        return kind(*values) if hasattr(kind, "_fields") else values
    if kind is list:
        return values
    try:
        return kind(values)
    except TypeError:
        return values


def _columns(batch: Sequence[Any], name: str, where: str) -> tuple[list[Any], list[Any]]:
    """The samples' parts by name: the i-th column holds part i of every sample."""
    first = batch[0]
    if isinstance(first, Mapping):
        try:
            return list(first), [[sample[key] for sample in batch] for key in first]
        except KeyError as missing:
            raise MissingKey(f"{name}: a sample has no key {missing}, the first one has it{_at(where)}",
                             fix="Give every sample the same keys.") from None  # fmt: skip
        except (TypeError, IndexError):
            raise _kinds_differ(batch, name, where) from None
    if is_dataclass(first):
        names = [field.name for field in dataclasses.fields(first)]
        try:
            return names, [[getattr(sample, key) for sample in batch] for key in names]
        except AttributeError:
            raise _kinds_differ(batch, name, where) from None
    try:
        return list(range(len(first))), list(zip(*batch, strict=True))
    except TypeError:
        raise _kinds_differ(batch, name, where) from None
    except ValueError:
        sizes = sorted({len(sample) for sample in batch})
        fix = (_LENGTHS if _are_lists_of_numbers(batch) else
               f"For sequences return tensors or lists of numbers and use wf.data.pad_collate or "
               f"wf.data.list_collate; for trees {_PLAIN}")  # fmt: skip
        raise OperationError(f"{name}: the samples hold {' or '.join(map(str, sizes))} values{_at(where)}, so they do "
                             "not stack", fix=fix) from None  # fmt: skip


def _are_lists_of_numbers(batch: Sequence[Any]) -> bool:
    """Is each a list, as Python programs write a sequence? A tuple is taken for the parts of a sample."""
    return all(type(sample) is list for sample in batch) and all(
        isinstance(number, int | float) or (isinstance(number, np.generic) and _is_number(number.dtype))
        for sample in batch for number in sample
    )  # fmt: skip


def _kinds_differ(batch: Sequence[Any], name: str, where: str) -> ArgumentTypeError:
    kinds = sorted({type(sample).__name__ for sample in batch})
    return ArgumentTypeError(f"{name}: {_field(where)} is of different kinds in different samples: {', '.join(kinds)}",
                             fix=f"Return the same kind from every example; for trees {_PLAIN}")  # fmt: skip


class MissingKey(OperationError, KeyError):
    """A sample without a key that another one has; PyTorch raises a KeyError."""

    __str__ = Exception.__str__


def stack_field(tensors: list[wf.Tensor], where: str) -> wf.Tensor:
    """The tensors of a field in one, or a sentence on why they do not stack."""
    try:
        return wf.stack(tensors)
    except ShapeError:
        shapes = sorted({tuple(tensor.shape) for tensor in tensors}, key=lambda shape: (len(shape), shape))
        shown = ", ".join(str(list(shape)) for shape in shapes[:4]) + (", …" if len(shapes) > 4 else "")
        raise ShapeError(f"default_collate: {_field(where)} has different shapes in the samples: {shown}",
                         fix=_LENGTHS) from None  # fmt: skip


def _as_tensor(value: Any, name: str, where: str) -> wf.Tensor:
    if isinstance(value, wf.Tensor):
        return value
    if isinstance(value, np.ndarray | np.generic) and _is_number(value.dtype):
        return wf.as_tensor(value)
    if hasattr(value, "__dlpack__") and not isinstance(value, np.ndarray):
        return wf.from_dlpack(value)
    shown = f"array of {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
    raise ArgumentTypeError(f"{name}: {_field(where)} is an {shown} in a sample, which does not go into a tensor",
                            fix="Convert it to numbers in the dataset.")  # fmt: skip


def _numbers(batch: Sequence[Any], name: str, where: str) -> wf.Tensor:
    if not all(issubclass(kind, int | float | np.generic) for kind in set(map(type, batch))):
        raise _kinds_differ(batch, name, where)
    return wf.tensor(batch, dtype=wf.float64 if isinstance(batch[0], float) else None)


def _field(where: str) -> str:
    return f"field {where}" if where else "a sample"


def _at(where: str) -> str:
    return f" in field {where}" if where else ""
