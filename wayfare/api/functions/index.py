"""Picking and placing by position: index_*, masked_*, take, put, and where the non-zero elements are."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

import numpy as np

from wayfare.api.functions._guard import tensor_advice
from wayfare.api.functions._new import fitting
from wayfare.api.functions._public import as_dtype_of, method, operand
from wayfare.api.functions.getitem import fitted, take_apart
from wayfare.core.constant import constant
from wayfare.core.dispatch import apply
from wayfare.core.errors import ArgumentTypeError, DTypeError, IndexRangeError, OperationError, ShapeError
from wayfare.core.mode import executor
from wayfare.core.op import REGISTRY
from wayfare.core.spec import Shape, bool_, broadcast, int64, normal_dim
from wayfare.core.tensor import Tensor, on_device_of, to_tensor
from wayfare.ops.indexing.advanced import check_bounds, index_dtype_error

__all__ = [
    "argwhere", "index_add", "index_copy", "index_fill", "index_put", "index_select", "masked_fill",
    "masked_scatter", "masked_select", "nonzero", "nonzero_static", "put", "take", "take_along_dim",
    "unravel_index",
]  # fmt: skip

_OPS = REGISTRY


# -- arguments -----------------------------------------------------------------------------------------------


def as_index(op: str, index: Any) -> Tensor:
    """An index argument as a tensor of integers."""
    if not isinstance(index, Tensor):
        if not isinstance(index, np.ndarray):
            raise ArgumentTypeError(f"{op}: the index must be a tensor, not {type(index).__name__}",
                                    fix=tensor_advice(index, "Make one with wf.tensor(...)."))  # fmt: skip
        index = to_tensor(index, op=op)
    if index.dtype.rank != 1:
        raise index_dtype_error(op, index)
    return index  # type: ignore[no-any-return]


def _as_mask(op: str, mask: Tensor) -> Tensor:
    if not isinstance(mask, Tensor):
        raise ArgumentTypeError(f"{op}: the mask must be a tensor, not {type(mask).__name__}")
    if mask.dtype is not bool_:
        raise DTypeError(f"{op}: the mask must be of bool, not {mask.dtype}", fix="Convert it with .bool().")
    return mask


def same_dtype(op: str, input: Tensor, source: Tensor) -> None:
    """Source and destination must have one dtype."""
    if source.dtype is not input.dtype:
        raise DTypeError(f"{op}: the source has {source.dtype} and the tensor {input.dtype}",
                         fix=f"Convert the source with .to(wf.{input.dtype.name}).")  # fmt: skip


def reshaped(x: Tensor, shape: Sequence[int]) -> Tensor:
    """`x` under another shape, of which all sizes are known; itself if it has that already."""
    shape = tuple(shape)
    return x if tuple(x.shape) == shape else apply(_OPS["reshape"], (x,), {"shape": shape})


def flattened(x: Tensor) -> Tensor:
    """All elements in one row."""
    return reshaped(x, (x.shape.numel(),))


def _expanded(op: str, x: Tensor, shape: Shape) -> Tensor:
    broadcast(op, tuple(x.shape), shape)
    return x if tuple(x.shape) == shape else apply(_OPS["expand"], (x,), {"shape": shape})


def _as_row(index: Tensor, op: str) -> Tensor:
    """A 0-dim index counts as one of length 1."""
    if index.ndim > 1:
        raise IndexRangeError(f"{op}: the index must have one dimension, this is {index.spec}")
    return reshaped(index, (1,)) if index.ndim == 0 else index


# -- index_* -------------------------------------------------------------------------------------------------


@method
def index_select(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """The parts of `input` at the places `index` of dimension `dim`, as a copy."""
    dim = normal_dim("index_select", dim, input.ndim)
    index = as_index("index_select", index)
    if input.ndim == 0:
        picked = index_select(reshaped(input, (1,)), 0, _as_row(index, "index_select"))
        if picked.shape.numel() != 1:
            raise IndexRangeError("index_select: a 0-dim tensor can be selected from once only")
        return reshaped(picked, ())
    return apply(_OPS["index_select"], (input, _as_row(index, "index_select")), {"dim": dim})  # type: ignore[no-any-return]


def put_at(
    input: Tensor, indices: tuple[Tensor, ...], dims: tuple[int, ...], value: Tensor, accumulate: bool = False
) -> Tensor:
    """`input` with a value of the right shape written (or added) at index tensors of the dimensions `dims`."""
    attrs = {"dims": dims, "accumulate": accumulate}
    return apply(_OPS["index_put"], (input, value, *indices), attrs)  # type: ignore[no-any-return]


def _at_rows(
    op: str, input: Tensor, dim: int, index: Tensor, source: Tensor, accumulate: bool, fits: bool = True
) -> Tensor:
    """`input` with the rows `index` of `dim` replaced or added to."""
    dim = normal_dim(op, dim, input.ndim)
    index = _as_row(as_index(op, index), op)
    same_dtype(op, input, source)
    if input.ndim == 0:
        row = _at_rows(op, reshaped(input, (1,)), 0, index, flattened(source), accumulate)
        return reshaped(row, ())
    size = input.shape[dim]
    if executor().may_read(index):
        check_bounds(op, index._read(f"the index of {op}"), size, dim)
    else:  # unknown now: the op refuses what is too large, and would count negative numbers from the end
        index = apply(_OPS["where"], (index < 0, constant(size, index.dtype.numpy), index))
    wanted = (*input.shape[:dim], index.shape[0], *input.shape[dim + 1 :])
    if source.ndim == 0 and input.ndim == 1:
        source = reshaped(source, (1,))
    if tuple(source.shape) != wanted:
        raise ShapeError(f"{op}: a source of {source.spec} does not fit {index.shape[0]} places of dimension {dim} of "
                         f"{input.spec}", fix=f"Its shape must be {list(wanted)}.")  # fmt: skip
    return put_at(input, (index,), (dim,), source, accumulate)


@method(inplace=True)
def index_add(input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    """`input` with `alpha * source` added at the places `index` of dimension `dim`; repeated places add up."""
    if alpha != 1:
        same_dtype("index_add", input, source)
        source = apply(_OPS["mul"], (source, constant(alpha, source.dtype.numpy)))
    return _at_rows("index_add", input, dim, index, source, True)


@method(inplace=True)
def index_copy(input: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """`input` with the places `index` of dimension `dim` replaced by `source`."""
    return _at_rows("index_copy", input, dim, index, source, False)


@method(inplace=True)
def index_fill(input: Tensor, dim: int, index: Tensor, value: float | Tensor) -> Tensor:
    """`input` with the places `index` of dimension `dim` set to one number; negative places count from the end."""
    dim = normal_dim("index_fill", dim, input.ndim)
    index = _as_row(as_index("index_fill", index), "index_fill")
    value = operand(value, "index_fill")
    if isinstance(value, Tensor) and value.ndim:
        raise OperationError(f"index_fill: the value must be a number or a 0-dim tensor, this is {value.spec}")
    value = as_dtype_of(fitting("index_fill", value, input.dtype), input.dtype)
    if input.ndim == 0:
        return reshaped(index_fill(reshaped(input, (1,)), 0, index, value), ())
    # By a mask, because a place that is named twice is filled once: the value's gradient must count it once.
    nothing = on_device_of(input, np.full(input.shape[dim], False))
    everything = on_device_of(input, np.full(index.shape[0], True))
    rows = put_at(nothing, (index,), (0,), everything)
    mask = reshaped(rows, (input.shape[dim],) + (1,) * (input.ndim - dim - 1))
    return apply(_OPS["where"], (mask, value, input))  # type: ignore[no-any-return]


@method(inplace=True)
def index_put(input: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Tensor:
    """`input` with `values` written (or added) at `input[indices]`; None in `indices` takes a dimension whole."""
    same_dtype("index_put", input, values)
    entries = tuple(slice(None) if i is None else _as_one_place(i) for i in indices)
    basic, picked = take_apart(input, entries)
    if not picked or len(basic) != len([e for e in basic if e is not None]):
        raise ArgumentTypeError("index_put: the indices must be tensors of integers or bools, or None")
    dims = tuple(dim for dim, _ in picked)
    tensors = tuple(i for _, i in picked)
    shape = _OPS["index"].infer(input.spec, *[i.spec for i in tensors], dims=dims).shape
    return put_at(input, tensors, dims, fitted(values, shape), accumulate)


# -- masks ---------------------------------------------------------------------------------------------------


def _as_one_place(index: Any) -> Any:
    """A 0-dim index of integers as one of length 1: what is written there is the same."""
    single = isinstance(index, Tensor) and index.ndim == 0 and index.dtype.rank == 1
    return reshaped(index, (1,)) if single else index


@method(inplace=True)
def masked_fill(input: Tensor, mask: Tensor, value: float | Tensor) -> Tensor:
    """`input` with `value` where `mask` is true."""
    value = operand(value, "masked_fill")
    if isinstance(value, Tensor) and value.ndim:
        raise OperationError(f"masked_fill: the value must be a number or a 0-dim tensor, this is {value.spec}")
    if isinstance(value, Tensor) and value.dtype.rank > input.dtype.rank:
        raise OperationError(f"masked_fill: a value of {value.dtype} does not fit a tensor of {input.dtype}")
    number = fitting("masked_fill", value, input.dtype)
    if isinstance(value, float) and not input.dtype.is_floating_point and value != number:
        raise OperationError(f"masked_fill: the value {value} does not fit a tensor of {input.dtype}")
    inputs = (_as_mask("masked_fill", mask), as_dtype_of(value, input.dtype), input)
    return apply(_OPS["where"], inputs)  # type: ignore[no-any-return]


@method
def masked_select(input: Tensor, mask: Tensor) -> Tensor:
    """The elements of `input` where `mask` is true, in one row; the two are broadcast together."""
    shape = broadcast("masked_select", tuple(input.shape), tuple(_as_mask("masked_select", mask).shape))
    places = np.broadcast_to(mask._read("masked_select()"), shape).reshape(-1).nonzero()[0]
    flat = flattened(_expanded("masked_select", input, shape))
    return apply(_OPS["index"], (flat, on_device_of(flat, places)), {"dims": (0,)})  # type: ignore[no-any-return]


@method(inplace=True)
def masked_scatter(input: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """`input` with the elements of `source`, one after the other, where `mask` is true."""
    same_dtype("masked_scatter", input, source)
    shape = broadcast("masked_scatter", tuple(input.shape), tuple(_as_mask("masked_scatter", mask).shape))
    places = np.broadcast_to(mask._read("masked_scatter()"), shape).reshape(-1).nonzero()[0]
    if places.size > source.shape.numel():
        raise OperationError(f"masked_scatter: the mask is true {places.size} times, the source has only "
                             f"{source.shape.numel()} elements")  # fmt: skip
    attrs = {"dim": 0, "start": 0, "stop": int(places.size), "step": 1}
    values = apply(_OPS["slice"], (flattened(source),), attrs)
    flat = flattened(_expanded("masked_scatter", input, shape))
    return reshaped(put_at(flat, (on_device_of(flat, places),), (0,), values), shape)


# -- flat ----------------------------------------------------------------------------------------------------


@method
def take(input: Tensor, index: Tensor) -> Tensor:
    """The elements of `input`, seen as one row, at the places `index`."""
    index = as_index("take", index)
    if input.shape.numel() == 0 and index.shape.numel():
        raise IndexRangeError(f"take: nothing can be taken from an empty tensor, this is {input.spec}")
    return apply(_OPS["index"], (flattened(input), index), {"dims": (0,)})  # type: ignore[no-any-return]


@method(inplace=True)
def put(input: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """`input` with `source` written (or added) at the places `index` of it seen as one row."""
    index = as_index("put", index)
    same_dtype("put", input, source)
    if index.shape.numel() != source.shape.numel():
        raise ShapeError(f"put: an index of {index.spec} and a source of {source.spec} differ in number")
    rows = (flattened(index),)
    out = put_at(flattened(input), rows, (0,), flattened(source), accumulate)
    return reshaped(out, input.shape)


@method
def take_along_dim(input: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """The elements that `indices` (from argmax, argsort, …) point to along `dim`; without one, of the flat tensor."""
    indices = as_index("take_along_dim", indices)
    if dim is None:
        return take(input, flattened(indices))
    if input.ndim != indices.ndim:
        raise ShapeError(f"take_along_dim: the index {indices.spec} and {input.spec} differ in rank")
    dim = normal_dim("take_along_dim", dim, input.ndim)
    shared = list(broadcast("take_along_dim", *(_without(t.shape, dim) for t in (input, indices))))
    own, theirs = ((*shared[:dim], t.shape[dim], *shared[dim:]) for t in (input, indices))
    indices = _from_the_start(_expanded("take_along_dim", indices, theirs), input.shape[dim])
    inputs = _expanded("take_along_dim", input, own), indices
    return apply(_OPS["gather"], inputs, {"dim": dim})  # type: ignore[no-any-return]


def _from_the_start(index: Tensor, size: int) -> Tensor:
    """Negative places, which count from the end, as places from the start."""
    zero, length = constant(0, index.dtype.numpy), constant(size, index.dtype.numpy)
    wrapped = apply(_OPS["add"], (index, length))
    return apply(_OPS["where"], (apply(_OPS["lt"], (index, zero)), wrapped, index))  # type: ignore[no-any-return]


def _without(shape: Shape, dim: int) -> Shape:
    return (*shape[:dim], *shape[dim + 1 :])


# -- where things are ----------------------------------------------------------------------------------------


@method
def nonzero(input: Tensor, *, as_tuple: bool = False) -> Any:
    """The places of the elements that are not zero: one row each, or with `as_tuple` one tensor per dimension."""
    array = input._read("nonzero()")
    if as_tuple:
        return tuple(on_device_of(input, np.ascontiguousarray(places)) for places in np.atleast_1d(array).nonzero())
    return on_device_of(input, np.ascontiguousarray(np.argwhere(array)))


@method
def argwhere(input: Tensor) -> Tensor:
    """The places of the elements that are not zero, one row each."""
    return nonzero(input)  # type: ignore[no-any-return]


@method
def nonzero_static(input: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
    """Like `nonzero`, cut or filled up to `size` rows."""
    if size < 0:
        raise OperationError(f"nonzero_static: size must not be negative, it is {size}")
    found = np.argwhere(input._read("nonzero_static()"))[:size]
    out = np.full((size, input.ndim), fill_value, np.int64)
    out[: len(found)] = found
    return on_device_of(input, out)


def unravel_index(indices: Tensor, shape: int | Sequence[int]) -> tuple[Tensor, ...]:
    """The coordinates, in a tensor of the given shape, of places numbered as if it were one row."""
    indices = as_index("unravel_index", indices)
    sizes = (int(shape),) if isinstance(shape, (int, np.integer, Tensor)) else tuple(int(n) for n in shape)
    if any(n < 0 for n in sizes):
        raise ArgumentTypeError(f"unravel_index: sizes must not be negative, they are {list(sizes)}")
    if sizes:
        places = as_dtype_of(indices, int64)
    coordinates = []
    step = 1
    for size in reversed(sizes):
        quotient = apply(_OPS["floor_divide"], (places, constant(step, int64.numpy)))
        coordinates.append(apply(_OPS["remainder"], (quotient, constant(size, int64.numpy))))
        step *= builtins.max(size, 1)
    return tuple(reversed(coordinates))
