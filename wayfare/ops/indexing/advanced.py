"""Indexing by integer arrays: copies, and the records that put values and gradients back.

An advanced index is one integer array for each of the dimensions `dims`. With several of them the places follow
NumPy: the indexed part stands where the dimensions stood when they are neighbours, in front otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from wayfare.codegen.routines import indexed
from wayfare.codegen.routines.rows import Part, Rows, add_at
from wayfare.core import buffer_pool
from wayfare.core.autocast import WIDEST_ON_CUDA
from wayfare.core.errors import DTypeError, IndexRangeError, ShapeError
from wayfare.core.mode import STATE
from wayfare.core.numpy_math import Array
from wayfare.core.op import Sample, checks_values, joint
from wayfare.core.signature import DIM, DIMS, FLAG, INT_OR_NONE, MANY, SIZES, takes
from wayfare.core.spec import Shape, Spec, broadcast, int64
from wayfare.ops._define import by_loop, define, expand_unbatched
from wayfare.ops.indexing import onnx_rules as rules

_ALL = slice(None)


def check_bounds(
    op: str, index: Array, size: int, dim: int, *, wrap: bool = False, error: type[Exception] = IndexRangeError
) -> None:
    """Every entry must be from 0 (with `wrap`: from -size) to size - 1; the first that is not is named."""
    if index.dtype.kind not in "iu":
        raise index_dtype_error(op, index)
    if index.size == 0:
        return
    if not wrap:
        # Read as unsigned, a negative number is a very large one, so one pass checks both ends.
        if np.maximum.reduce(index.view(f"u{index.itemsize}"), axis=None) < size:
            return
    elif index.max() < size and index.min() >= -size:
        return
    bad = index[(index >= size) | (index < (-size if wrap else 0))].flat[0]
    raise error(f"{op}: index {bad} is out of range for dimension {dim} of size {size}",  # type: ignore[call-arg]
                fix=f"It can be from {-size if wrap else 0} to {size - 1}." if size else "")  # fmt: skip


def check_rows(op: str, index: Array, rows: int, error: type[Exception] = IndexRangeError) -> None:
    """`check_bounds` for the rows of a table."""
    try:
        check_bounds(op, index, rows, 0)
    except IndexRangeError:
        worst = f"the largest index is {index.max()}" if index.max() >= rows else f"the smallest index is {index.min()}"
        raise error(f"{op}: {worst}, but the table has {rows} rows",  # type: ignore[call-arg]
                    fix=f"An index can be from 0 to {rows - 1}." if rows else "") from None  # fmt: skip


def index_dtype_error(op: str, index: Any) -> DTypeError:
    """What to say of an index that does not consist of integers."""
    return DTypeError(f"{op}: an index must have an integer dtype, not {index.dtype}", fix="Convert it with .long().")


def full_index(indices: tuple[Array, ...], dims: tuple[int, ...]) -> tuple[Any, ...]:
    """NumPy's index with arrays at `dims` and everything elsewhere."""
    out: list[Any] = [_ALL] * (dims[-1] + 1)
    for dim, array in zip(dims, indices, strict=True):
        out[dim] = array
    return tuple(out)


def indexed_shape(name: str, x: Shape, indices: tuple[Any, ...], dims: tuple[int, ...]) -> Shape:
    """The shape of the indexed part."""
    try:
        shape = broadcast(name, *(i.shape for i in indices))
    except ShapeError:
        shown = " and ".join(str(list(i.shape)) for i in indices)
        raise IndexRangeError(f"{name}: index tensors of shapes {shown} do not broadcast together") from None
    kept = [size for dim, size in enumerate(x) if dim not in dims]
    at = rules.target_of(dims)
    return (*kept[:at], *shape, *kept[at:])


def picks_nothing(shape: Shape, indices: tuple[Any, ...], dims: tuple[int, ...]) -> bool:
    """Is the indexed part of such a shape empty? As in PyTorch no index is out of range then, but for those of a
    dimension of size 0."""
    if any(i.dtype.kind not in "iu" for i in indices):
        return False
    try:
        picked = np.broadcast_shapes(*(i.shape for i in indices))
    except ValueError:
        return False  # which is an error of its own
    sizes = [shape[dim] for dim in dims]
    others = [size for dim, size in enumerate(shape) if dim not in dims]
    return 0 in picked or (0 in others and 0 not in sizes)


@checks_values
def _index(x: Array, *indices: Array, dims: tuple[int, ...]) -> Array:
    try:
        if len(dims) == 1:
            return take(x, indices[0], dims[0])
        return x[full_index(indices, dims)]  # type: ignore[no-any-return]
    except (IndexError, TypeError):
        if picks_nothing(x.shape, indices, dims):
            return np.empty(indexed_shape("index", x.shape, indices, dims), x.dtype)
        for dim, index in zip(dims, indices, strict=True):
            check_bounds("index", index, x.shape[dim], dim, wrap=True)
        raise


def take(x: Array, index: Array, dim: int) -> Array:
    """x.take(index, axis=dim); many long rows go by native code."""
    if dim == 0 and index.size >= indexed.ROWS_FROM:
        out = indexed.gather_rows(x, index)
        if out is not None:
            return out
    return x.take(index, axis=dim)


def _index_vjp(
    m: Any, needs: Any, g: Any, _y: Any, x_spec: Spec, *indices: Any, dims: tuple[int, ...]
) -> tuple[Any, ...]:
    return (m.index_place(g, *indices, shape=x_spec.shape, dims=dims), *[None] * len(indices))


def _in_front(dims: tuple[int, ...], rank: int, ndim: int) -> tuple[int, ...]:
    """The permutation of a batch of results that moves the indexed part (`rank` dimensions) from behind the batch axis
    to its place."""
    at = rules.target_of(dims)
    rest = range(rank + 1, 1 + rank + ndim - len(dims))
    return (0, *rest[:at], *range(1, rank + 1), *rest[at:])


def _line_up(m: Any, size: int, indices: tuple[Any, ...], batched: tuple[bool, ...]) -> tuple[Any, ...]:
    """Indices of a batch: the number of the row, then each index with the batch axis in front."""
    rank = max(i.ndim - b for i, b in zip(indices, batched, strict=True))
    rows: list[Any] = [np.arange(size).reshape((size,) + (1,) * rank)]
    for index, is_batched in zip(indices, batched, strict=True):
        if is_batched:
            own = tuple(index.shape)[1:]
            index = m.reshape(index, shape=(size,) + (1,) * (rank - len(own)) + own)
        rows.append(index)
    return (*rows, rank)


def _index_batch(m: Any, size: int, inputs: tuple[Any, ...], batched: tuple[bool, ...], attrs: dict[str, Any]) -> Any:
    x, indices, dims = inputs[0], inputs[1:], attrs["dims"]
    moved = tuple(d + 1 for d in dims)
    if not any(batched[1:]) and rules.target_of(moved) > 0:
        return m.index(x, *indices, dims=moved)
    *rows, rank = _line_up(m, size, indices, batched[1:])
    if not batched[0]:
        # One table for all: only the indexed part has the batch axis, which moves to the front.
        out = m.index(x, *rows[1:], dims=dims)
        at = rules.target_of(dims)
        return out if at == 0 else m.permute(out, dims=(at, *range(at), *range(at + 1, out.ndim)))
    out = m.index(x, *rows, dims=(0, *moved))
    return m.permute(out, dims=_in_front(dims, rank, x.ndim - 1))


def _index_samples(rng: Any) -> Iterable[Sample]:
    x = rng.normal(size=(3, 4, 2))
    yield Sample((x, np.array([2, 0, 2])), {"dims": (0,)})
    yield Sample((x, np.array([[1, -1], [0, 3]])), {"dims": (1,)})
    yield Sample((x, np.array([0, 2, 2]), np.array([[1], [3]])), {"dims": (0, 1)})
    yield Sample((x, np.array([0, 2, 2]), np.array([0, 0, 1])), {"dims": (1, 2)})
    yield Sample((x.T, np.array([0, 1]), np.array([2, 2])), {"dims": (0, 2)})
    yield Sample((x, np.array(1), np.array([], np.int64)), {"dims": (0, 1)})
    yield Sample((rng.normal(size=(4,)), np.array(3)), {"dims": (0,)})


def _index_reference(x: Array, *indices: Array, dims: tuple[int, ...]) -> Array:
    """Element by element."""
    shape = np.broadcast_shapes(*(i.shape for i in indices))
    front = np.moveaxis(x, dims, range(len(dims)))
    spread = [np.broadcast_to(i, shape) for i in indices]
    out = np.empty(shape + front.shape[len(dims) :], x.dtype)
    for at in np.ndindex(*shape):
        out[at] = front[tuple(int(i[at]) for i in spread)]
    place = dims[0] if list(dims) == list(range(dims[0], dims[0] + len(dims))) else 0
    return np.moveaxis(out, range(len(shape)), range(place, place + len(shape)))


index = define(
    "index",
    signature=takes(2, MANY, dims=DIMS),
    onnx=rules.index,
    family="indexing",
    forward=_index,
    infer=lambda x, *indices, dims: Spec(indexed_shape("index", x.shape, indices, dims), x.dtype),
    vjp=joint(_index_vjp),
    listed=(0,),
    batch=_index_batch,
    reference=_index_reference,
    samples=_index_samples,
)


def _index_place(g: Array, *indices: Array, shape: Shape, dims: tuple[int, ...]) -> Array:
    out = np.zeros(shape, g.dtype)
    if g.size:
        add_at(out, full_index(indices, dims), g)
    return out


def _index_place_batch(
    m: Any, size: int, inputs: tuple[Any, ...], batched: tuple[bool, ...], attrs: dict[str, Any]
) -> Any:
    dims, shape = attrs["dims"], attrs["shape"]
    (g,) = expand_unbatched(m, size, inputs[:1], batched[:1])
    *rows, rank = _line_up(m, size, inputs[1:], batched[1:])
    order = np.argsort(_in_front(dims, rank, len(shape)))
    g = m.permute(g, dims=tuple(int(i) for i in order))
    return m.index_place(g, *rows, shape=(size, *shape), dims=(0, *(d + 1 for d in dims)))


def numbered(shape: Shape) -> Array:
    """A shape filled with 0, 1, 2, …"""
    return np.arange(int(np.prod(shape))).reshape(shape)


def _index_place_reference(g: Array, *indices: Array, shape: Shape, dims: tuple[int, ...]) -> Array:
    at = _index_reference(numbered(shape), *indices, dims=dims)
    return np.bincount(at.ravel(), g.ravel(), int(np.prod(shape))).reshape(shape)


# Zeros with values added at an advanced index (where it repeats, they add up): the adjoint of `index`.
index_place = define(
    "index_place",
    signature=takes(2, MANY, shape=SIZES, dims=DIMS),
    onnx=rules.index_place,
    family="indexing",
    forward=_index_place,
    infer=lambda g, *indices, shape, dims: Spec(shape, g.dtype),
    vjp=joint(
        lambda m, needs, g, _y, _g, *indices, shape, dims: (
            m.index(g, *indices, dims=dims),
            *[None] * len(indices),
        )
    ),
    batch=_index_place_batch,
    reference=_index_place_reference,
    samples=lambda rng: [
        Sample((rng.normal(size=(3, 2)), np.array([1, 1, 0])), {"shape": (2, 2), "dims": (0,)}),
        Sample((rng.normal(size=(2, 3)), np.array([-1, 1, 0])), {"shape": (2, 3), "dims": (1,)}),
        Sample(
            (rng.normal(size=(2, 3)), np.array([0, 1]), np.array([1, 1])),
            {"shape": (2, 3, 2), "dims": (0, 2)},
        ),
    ],
    sparse=lambda g, *indices, shape, dims: Rows(shape, g.dtype, [Part(full_index(indices, dims), g, False)]),
)


@checks_values
def _index_put(x: Array, value: Array, *indices: Array, dims: tuple[int, ...], accumulate: bool) -> Array:
    out = buffer_pool.empty(x.shape, x.dtype)
    np.copyto(out, x)
    where = full_index(indices, dims)
    try:
        if accumulate:
            add_at(out, where, value)
        else:
            out[where] = value
    except (IndexError, TypeError):
        if picks_nothing(x.shape, indices, dims):
            return out
        for dim, index in zip(dims, indices, strict=True):
            check_bounds("index_put", index, x.shape[dim], dim, wrap=True)
        raise
    return out


def _index_put_infer(x: Spec, value: Spec, *indices: Spec, dims: tuple[int, ...], accumulate: bool) -> Spec:
    shape = indexed_shape("index_put", x.shape, indices, dims)
    if shape != value.shape:
        raise ShapeError(f"index_put: a value of {value} does not fit the indexed part of shape {list(shape)}")
    return x


def _index_put_vjp(
    m: Any, needs: Any, g: Any, _y: Any, _x: Any, value_spec: Spec, *indices: Any, dims: Any, accumulate: bool
) -> tuple[Any, ...]:
    by_x = by_value = None
    if needs[0]:
        hole = np.zeros(value_spec.shape, value_spec.dtype.numpy)
        by_x = g if accumulate else m.index_put(g, hole, *indices, dims=dims, accumulate=False)
    if needs[1]:
        # As in PyTorch each value has the gradient of its place, even one that was overwritten.
        by_value = m.index(g, *indices, dims=dims)
        if STATE.exact and not accumulate:
            numbers = numbered(value_spec.shape)
            none = np.zeros(tuple(g.shape), np.int64)
            last = m.index_put(none, numbers, *indices, dims=dims, accumulate=False)
            by_value = m.gate(by_value, m.eq(m.index(last, *indices, dims=dims), numbers))
    return (by_x, by_value, *[None] * len(indices))


def _index_put_batch(
    m: Any, size: int, inputs: tuple[Any, ...], batched: tuple[bool, ...], attrs: dict[str, Any]
) -> Any:
    dims = attrs["dims"]
    x, value = expand_unbatched(m, size, inputs[:2], batched[:2])
    *rows, rank = _line_up(m, size, inputs[2:], batched[2:])
    order = np.argsort(_in_front(dims, rank, x.ndim - 1))
    value = m.permute(value, dims=tuple(int(i) for i in order))
    return m.index_put(x, value, *rows, dims=(0, *(d + 1 for d in dims)), accumulate=attrs["accumulate"])


def _index_put_reference(x: Array, value: Array, *indices: Array, dims: tuple[int, ...], accumulate: bool) -> Array:
    at = _index_reference(numbered(x.shape), *indices, dims=dims)
    out = x.ravel().copy()
    for place, number in zip(at.ravel(), value.ravel(), strict=True):
        out[place] = out[place] + number if accumulate else number
    return out.reshape(x.shape)


def _index_put_samples(rng: Any) -> Iterable[Sample]:
    x = rng.normal(size=(3, 2, 2))
    yield Sample((x, rng.normal(size=(2, 2, 2)), np.array([2, 0])), {"dims": (0,), "accumulate": False})
    yield Sample((x, rng.normal(size=(2, 2, 2)), np.array([2, 2])), {"dims": (0,), "accumulate": True})
    apart = (x, rng.normal(size=(2, 2)), np.array([0, 1]), np.array([1, -1]))
    yield Sample(apart, {"dims": (0, 2), "accumulate": False})
    yield Sample(apart, {"dims": (0, 2), "accumulate": True})
    beside = (x, rng.normal(size=(3, 0)), np.array([], np.int64), np.array([1]))
    yield Sample(beside, {"dims": (1, 2), "accumulate": False})


index_put = define(
    "index_put", autocast=WIDEST_ON_CUDA,
    signature=takes(3, MANY, accumulate=FLAG, dims=DIMS),
    onnx=rules.index_put,
    family="indexing",
    forward=_index_put,
    infer=_index_put_infer,
    vjp=joint(_index_put_vjp),
    listed=(0, 1),
    batch=_index_put_batch,
    reference=_index_put_reference,
    samples=_index_put_samples,
)


# -- one index for whole rows ---------------------------------------------------------------------------------


@checks_values
def _index_select(x: Array, index: Array, *, dim: int) -> Array:
    check_bounds("index_select", index, x.shape[dim], dim)
    return take(x, index, dim)


def _row_batch(m: Any, size: int, inputs: tuple[Any, ...], batched: tuple[bool, ...], attrs: dict[str, Any]) -> Any:
    """A batch of look-ups is one `index`; of tables, it is the same look-up one dimension further."""
    dim = attrs.get("dim", 0)
    if not batched[1]:
        return m.index_select(inputs[0], inputs[1], dim=dim + 1)
    return _index_batch(m, size, inputs, batched, {"dims": (dim,)})


index_select = define(
    "index_select",
    signature=takes(2, dim=DIM),
    onnx=lambda b, x, index, *, dim: b.node("Gather", x, b.cast(index, int64), axis=dim),
    family="indexing",
    forward=_index_select,
    infer=lambda x, index, *, dim: Spec(indexed_shape("index_select", x.shape, (index,), (dim,)), x.dtype),
    vjp=(
        lambda m, g, _y, x_spec, index, *, dim: m.index_place(g, index, shape=x_spec.shape, dims=(dim,)),
        None,
    ),
    batch=_row_batch,
    reference=lambda x, index, dim: _index_reference(x, index, dims=(dim,)),
    samples=lambda rng: [
        Sample((rng.normal(size=(3, 4)), np.array([2, 0, 2])), {"dim": 0}),
        Sample((rng.normal(size=(3, 4)).T, np.array([[1], [0]])), {"dim": 1}),
        Sample((rng.normal(size=(3,)), np.zeros(0, np.int64)), {"dim": 0}),
    ],
)


@checks_values
def _embedding(weight: Array, index: Array, *, padding_idx: int | None, by_frequency: bool) -> Array:
    check_rows("embedding", index, weight.shape[0])
    return take(weight, index, 0)


def _embedding_vjp(
    m: Any, g: Any, _y: Any, weight_spec: Spec, index: Any, *, padding_idx: int | None, by_frequency: bool
) -> Any:
    if padding_idx is not None and not STATE.exact:
        padded = m.reshape(index == padding_idx, shape=(*index.shape, 1))
        g = m.where(padded, m.zeros_like(g), g)
    if by_frequency and not STATE.exact:
        dtype = weight_spec.dtype.numpy
        none, ones = np.zeros(weight_spec.shape[:1], dtype), np.ones(tuple(index.shape), dtype)
        counts = m.index(m.index_put(none, ones, index, dims=(0,), accumulate=True), index, dims=(0,))
        g = g / m.reshape(counts, shape=(*index.shape, 1))
    return m.index_place(g, index, shape=weight_spec.shape, dims=(0,))


def _embedding_batch(
    m: Any, size: int, inputs: tuple[Any, ...], batched: tuple[bool, ...], attrs: dict[str, Any]
) -> Any:
    if attrs["by_frequency"] or (batched[0] and attrs["padding_idx"] is not None):
        # How often a row was looked up is counted in each example by itself.
        return by_loop("embedding")(m, size, inputs, batched, attrs)
    return _row_batch(m, size, inputs, batched, attrs) if batched[0] else m.embedding(*inputs, **attrs)


# Like index_select, but the row of `padding_idx` gets no gradient; `by_frequency` divides the gradient of a row by
# how often it was looked up.
embedding = define(
    "embedding",
    signature=takes(2, by_frequency=FLAG, padding_idx=INT_OR_NONE),
    onnx=rules.embedding,
    family="indexing",
    forward=_embedding,
    infer=lambda weight, index, *, padding_idx, by_frequency: Spec((*index.shape, *weight.shape[1:]), weight.dtype),
    vjp=(_embedding_vjp, None),
    batch=_embedding_batch,
    reference=lambda weight, index, padding_idx, by_frequency: _index_reference(weight, index, dims=(0,)),
    samples=lambda rng: [
        Sample(
            (rng.normal(size=(4, 2)), np.array([[3, 0], [3, 1]])),
            {"padding_idx": None, "by_frequency": False},
        ),
        # By design the gradient is not the derivative here, so it is not checked.
        Sample(
            (rng.normal(size=(4, 2)), np.array([3, 0])),
            {"padding_idx": 3, "by_frequency": True},
            smooth=False,
        ),
    ],
)
