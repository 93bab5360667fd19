"""Cutting a tensor into several: split, chunk, unbind and their relatives. All parts are views."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from wayfare.api.functions._new import flat_ints, read_int
from wayfare.api.functions._public import add_method, method
from wayfare.core.dispatch import apply
from wayfare.core.errors import ArgumentError, NoSuchDimensionError, OperationError, ShapeError
from wayfare.core.op import REGISTRY
from wayfare.core.spec import normal_dim
from wayfare.core.tensor import Tensor

__all__ = [
    "split", "split_with_sizes", "chunk", "tensor_split", "hsplit", "vsplit", "dsplit", "unbind",
    "unsafe_chunk", "unsafe_split", "unsafe_split_with_sizes",
]  # fmt: skip

_OPS = REGISTRY


def _axis(op: str, x: Tensor, dim: int) -> int:
    if x.ndim == 0:
        raise NoSuchDimensionError(f"{op}: a 0-dim tensor cannot be cut")
    return normal_dim(op, dim, x.ndim)


def _parts(x: Tensor, axis: int, edges: Sequence[int]) -> tuple[Tensor, ...]:
    """The parts between neighbouring edges."""
    cut = _OPS["slice"]
    return tuple(
        apply(cut, (x,), {"dim": axis, "start": start, "stop": max(start, stop), "step": 1})
        for start, stop in itertools.pairwise(edges)
    )


def split(tensor: Tensor, split_size_or_sections: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """Parts of one size (the last may be smaller), or of the sizes in a list."""
    if isinstance(split_size_or_sections, (tuple, list)):
        return split_with_sizes(tensor, split_size_or_sections, dim)
    axis = _axis("split", tensor, dim)
    size, length = read_int("split", "split_size", split_size_or_sections), tensor.shape[axis]
    if size < 0 or (size == 0 and length > 0):
        raise OperationError(f"split: parts of size {size} do not make up dimension {axis} of {tensor.spec}")
    count = max(1, -(-length // size)) if size else 1
    return _parts(tensor, axis, [*(i * size for i in range(count)), length])


def _split_method(self: Tensor, split_size: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """Parts of one size (the last may be smaller), or of the sizes in a list."""
    return split(self, split_size, dim)


add_method("split", _split_method)


@method
def split_with_sizes(input: Tensor, split_sizes: Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Parts of the given sizes, which must add up to the size of the dimension."""
    axis = _axis("split_with_sizes", input, dim)
    sizes = flat_ints("split_with_sizes", "a size", (split_sizes,))
    if sum(sizes) != input.shape[axis] or any(size < 0 for size in sizes):
        raise ShapeError(f"split_with_sizes: sizes {list(sizes)} do not add up to dimension {axis} of {input.spec}")
    edges = [0]
    for size in sizes:
        edges.append(edges[-1] + size)
    return _parts(input, axis, edges)


@method
def chunk(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """At most `chunks` parts of one size (the last may be smaller)."""
    axis = _axis("chunk", input, dim)
    count = read_int("chunk", "chunks", chunks)
    if count <= 0:
        raise OperationError(f"chunk: the number of chunks must be positive, but is {count}")
    length = input.shape[axis]
    if length == 0:
        return _parts(input, axis, [0] * (count + 1))
    return split(input, -(-length // count), axis)


@method
def tensor_split(input: Tensor, indices_or_sections: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """`n` parts of nearly equal size, or parts that begin at the given indices."""
    axis = _axis("tensor_split", input, dim)
    length, where = input.shape[axis], indices_or_sections
    if isinstance(where, Tensor):
        if where.ndim > 1 or where.dtype.rank != 1:
            raise ArgumentError(f"tensor_split: indices must be a list of ints or an int64 tensor, not {where.spec}")
        where = where.tolist()
    if isinstance(where, (tuple, list)):
        inner = [range(length)[: read_int("tensor_split", "an index", i)].stop for i in where]
        return _parts(input, axis, [0, *inner, length])
    count = read_int("tensor_split", "sections", where)
    if count <= 0:
        raise OperationError(f"tensor_split: the number of sections must be positive, but is {count}")
    size, longer = divmod(length, count)
    return _parts(input, axis, [i * size + min(i, longer) for i in range(count + 1)])


def _equal_split(op: str, input: Tensor, where: Any, axis: int, least: int) -> tuple[Tensor, ...]:
    if input.ndim < least:
        raise OperationError(f"{op}: needs at least {least} dimensions, not {input.spec}")
    if not isinstance(where, (tuple, list)):
        count = read_int(op, "sections", where)
        if count <= 0 or input.shape[axis] % count:
            raise OperationError(f"{op}: dimension {axis} of {input.spec} has no {count} equal parts",
                                 fix="Use wf.tensor_split for parts of unequal size.")  # fmt: skip
    return tensor_split(input, where, axis)


@method
def hsplit(input: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """Cut along the second dimension, a vector along its only one."""
    return _equal_split("hsplit", input, indices_or_sections, 0 if input.ndim == 1 else 1, 1)


@method
def vsplit(input: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """Cut along the first dimension."""
    return _equal_split("vsplit", input, indices_or_sections, 0, 2)


@method
def dsplit(input: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """Cut along the third dimension."""
    return _equal_split("dsplit", input, indices_or_sections, 2, 3)


@method
def unbind(input: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """Every slice along a dimension, without that dimension."""
    axis = _axis("unbind", input, dim)
    select = _OPS["select"]
    return tuple(apply(select, (input,), {"dim": axis, "index": i}) for i in range(input.shape[axis]))


# PyTorch's "unsafe" forms leave out the bookkeeping of views; here that costs nothing, so they are the same.


@method
def unsafe_chunk(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """Another name for `chunk`."""
    return chunk(input, chunks, dim)


def unsafe_split(tensor: Tensor, split_size_or_sections: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """Another name for `split`."""
    return split(tensor, split_size_or_sections, dim)


@method
def unsafe_split_with_sizes(input: Tensor, split_sizes: Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Another name for `split_with_sizes`."""
    return split_with_sizes(input, split_sizes, dim)


add_method("unsafe_split", _split_method)
