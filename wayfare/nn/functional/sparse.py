"""Look-ups of rows: embedding, embedding_bag, one_hot. The gradient of a table is `Rows`: the rows that were used."""

from __future__ import annotations

import math

import numpy as np

from wayfare.api.functions._public import as_dtype_of
from wayfare.api.functions.elementwise import where
from wayfare.api.functions.index import as_index
from wayfare.api.functions.scatter import scatter_reduce
from wayfare.autograd.modes import no_grad
from wayfare.core.dispatch import apply
from wayfare.core.errors import (
    ArgumentError,
    ArgumentTypeError,
    DTypeError,
    IndexRangeError,
    OperationError,
    ShapeError,
)
from wayfare.core.mode import executor
from wayfare.core.op import REGISTRY
from wayfare.core.spec import int64
from wayfare.core.tensor import Tensor, on_device_of, wrap
from wayfare.core.write_clock import check_memory, note_write
from wayfare.ops.indexing.advanced import check_rows

__all__ = ["embedding", "embedding_bag", "one_hot"]

_OPS = REGISTRY


def embedding(
    input: Tensor, weight: Tensor, padding_idx: int | None = None, max_norm: float | None = None,
    norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False,
) -> Tensor:  # fmt: skip
    """The rows of `weight` at the numbers in `input`.

    The row `padding_idx` gets no gradient. With `max_norm` the rows that are looked up are first scaled, in place, to
    that norm at most. The gradient is always kept as rows until `.grad` is read; `sparse` changes nothing.
    """
    index = as_index("embedding", input)
    if weight.ndim != 2:
        raise ShapeError(f"embedding: the weight must have two dimensions, this is {weight.spec}")
    if max_norm is not None:
        _shrink_rows("embedding", weight, index, max_norm, norm_type)
    attrs = {
        "padding_idx": _padding("embedding", padding_idx, weight),
        "by_frequency": bool(scale_grad_by_freq),
    }
    return apply(_OPS["embedding"], (weight, index), attrs)  # type: ignore[no-any-return]


def _padding(op: str, padding_idx: int | None, weight: Tensor) -> int | None:
    if padding_idx is None:
        return None
    size = weight.shape[0]
    if not -size <= padding_idx < size:
        raise ArgumentError(f"{op}: padding_idx {padding_idx} is out of range for a table of {size} rows")
    return padding_idx + size if padding_idx < 0 else padding_idx


def _shrink_rows(op: str, weight: Tensor, index: Tensor, max_norm: float, norm_type: float) -> None:
    """Scale the rows that are looked up to at most `max_norm`: a change of the table itself, never recorded."""
    reason = f"{op}: max_norm writes to the table; scale the whole table once and leave max_norm out"
    executor().not_replayable(reason)
    executor().changes(weight, f"{op} with max_norm writes to the table that all examples see")
    table = weight._read("max_norm")
    check_memory(table, f"{op} with max_norm", f"the table {weight.spec}")
    places = np.unique(index._read("max_norm"))
    check_rows(op, places, table.shape[0], OperationError if op == "embedding_bag" else IndexRangeError)
    norms = np.linalg.norm(table[places], norm_type, axis=1)
    long = norms > max_norm
    if long.any():
        scale = (max_norm / (norms[long] + 1e-7)).astype(table.dtype)
        if not weight.is_cpu:  # `table` is a copy
            with no_grad():
                rows = on_device_of(weight, places[long])
                weight[rows] = weight[rows] * on_device_of(weight, scale[:, None])
            return
        table[places[long]] *= scale[:, None]
        note_write(table)


def embedding_bag(
    input: Tensor, weight: Tensor, offsets: Tensor | None = None, max_norm: float | None = None, norm_type: float = 2.0,
    scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False,
    per_sample_weights: Tensor | None = None, include_last_offset: bool = False, padding_idx: int | None = None,
) -> Tensor:  # fmt: skip
    """The sum, mean or max of rows of `weight` over bags of numbers: the rows of `input` if it has two dimensions, or
    the pieces that begin at `offsets` if it has one. An empty bag gives zeros; `padding_idx` counts for nothing. With
    `scale_grad_by_freq` the gradient of a row is divided by how often its number occurs."""
    if isinstance(weight, Tensor) and weight.dtype.rank == 1 and isinstance(input, Tensor) and input.dtype.rank == 2:
        input, weight = weight, input  # PyTorch still takes the two in the order of its first versions.
    index = as_index("embedding_bag", input)
    if mode not in ("sum", "mean", "max"):
        raise ArgumentError(f"embedding_bag: mode must be 'sum', 'mean' or 'max', not {mode!r}")
    if mode == "max" and scale_grad_by_freq:
        raise ArgumentError("embedding_bag: scale_grad_by_freq does not go with mode='max'",
                            fix="Use mode='sum' or 'mean', or leave it out.")  # fmt: skip
    if per_sample_weights is not None:
        _check_weights(index, weight, per_sample_weights, mode)
    bounds = None if index.ndim == 2 and offsets is None else _bounds(index, offsets, include_last_offset)
    if executor().may_read(index):
        # In a recording and under vmap the ops check it themselves.
        check_rows("embedding_bag", index._read("embedding_bag"), weight.shape[0], OperationError)
    if max_norm is not None:
        _shrink_rows("embedding_bag", weight, index, max_norm, norm_type)
    padding, counted = _padding("embedding_bag", padding_idx, weight), None
    if padding is not None:
        if executor().works_on_arrays and index.is_cpu:
            index, bounds, per_sample_weights = _without(padding, index, bounds, per_sample_weights)
            padding = None
        else:
            counted = index != padding
    attrs = {"padding_idx": padding, "by_frequency": bool(scale_grad_by_freq)}
    rows = apply(_OPS["embedding"], (weight, index), attrs)
    if mode == "max":
        return _largest(rows, bounds, counted)
    if counted is not None:
        rows = where(counted.unsqueeze(-1), rows, 0.0)
    if per_sample_weights is not None:
        if counted is not None:  # Both factors are 0 for the padding: a NaN in one would be the gradient of the other.
            per_sample_weights = where(counted, per_sample_weights, 0.0)
        rows = rows * per_sample_weights.unsqueeze(-1)
    total = _sums(rows, bounds)
    return total / _sizes(rows, bounds, counted).clamp(min=1) if mode == "mean" else total


def _without(
    padding: int, index: Tensor, bounds: Tensor | None, weights: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Numbers, bounds and weights when the padding is left out."""
    flat = index._array.reshape(-1)
    keep = np.flatnonzero(flat != padding)
    if keep.size == flat.size:
        return index, bounds, weights
    old = np.arange(index.shape[0] + 1) * index.shape[1] if bounds is None else bounds._array
    if weights is not None:
        weights = weights.reshape(-1).index_select(0, wrap(keep))
    return wrap(flat[keep]), wrap(np.searchsorted(keep, old)), weights


def _sums(rows: Tensor, bounds: Tensor | None) -> Tensor:
    """The sum of each bag."""
    return rows.sum(1) if bounds is None else apply(_OPS["segment_sum"], (rows, bounds))


def _sizes(rows: Tensor, bounds: Tensor | None, counted: Tensor | None) -> Tensor:
    """How many rows of each bag count, as a column of numbers of their dtype."""
    if counted is not None:
        return _sums(as_dtype_of(counted, rows.dtype), bounds).unsqueeze(-1)
    if bounds is None:
        return on_device_of(rows, np.full((rows.shape[0], 1), rows.shape[1], rows.dtype.numpy))
    if executor().works_on_arrays and bounds.is_cpu:
        return wrap(np.diff(bounds._array).astype(rows.dtype.numpy)[:, None])
    return as_dtype_of(bounds[1:] - bounds[:-1], rows.dtype).unsqueeze(-1)


def _largest(rows: Tensor, bounds: Tensor | None, counted: Tensor | None) -> Tensor:
    """The maximum of each bag; 0 for an empty one."""
    if bounds is None and rows.shape[1] == 0:
        return rows.sum(1)
    if bounds is not None and executor().works_on_arrays and bounds.is_cpu:
        return _largest_here(rows, bounds)
    if counted is not None:
        rows = where(counted.unsqueeze(-1), rows, -math.inf)
    if bounds is None:
        found = rows.amax(1)
    else:
        count = bounds.shape[0] - 1
        bag = apply(_OPS["segment_repeat"], (on_device_of(rows, np.arange(count)), bounds), {"size": rows.shape[0]})
        none = on_device_of(rows, np.full((count, rows.shape[1]), -math.inf, rows.dtype.numpy))
        found = scatter_reduce(none, 0, bag.unsqueeze(-1).expand(rows.shape), rows, "amax")
    return found if bounds is None and counted is None else where(_sizes(rows, bounds, counted) > 0, found, 0.0)


def _largest_here(rows: Tensor, bounds: Tensor) -> Tensor:
    """The same where the bounds can be read: only bags that are not empty have a maximum."""
    given = bounds._array
    filled = np.flatnonzero(given[1:] > given[:-1])
    count = given.size - 1
    if filled.size < count:
        bounds = wrap(np.append(given[filled], given[-1]))
    found: Tensor = apply(_OPS["segment_max"], (rows, bounds))
    if filled.size < count:
        found = apply(_OPS["index_place"], (found, wrap(filled)), {"shape": (count, rows.shape[1]), "dims": (0,)})
    return found


def _bounds(index: Tensor, offsets: Tensor | None, include_last_offset: bool) -> Tensor:
    """Where each bag begins, and behind them the number of all rows."""
    if index.ndim == 2:
        raise ArgumentError("embedding_bag: an input of two dimensions has its rows as bags, offsets must be None")
    if index.ndim != 1:
        raise ArgumentError(f"embedding_bag: the input must have one or two dimensions, not {index.ndim}")
    if offsets is None or offsets.ndim != 1:
        raise ArgumentError("embedding_bag: an input of one dimension needs offsets of one dimension")
    starts = as_dtype_of(as_index("embedding_bag", offsets), int64)
    size = index.shape[0]
    if include_last_offset and starts.shape[0] == 0:
        raise OperationError("embedding_bag: with include_last_offset there must be at least one offset")
    if executor().may_read(starts):
        given = starts._read("embedding_bag")
        begins = given[0] == 0 if given.size else size == 0
        if not begins or (given[1:] < given[:-1]).any() or (given.size and given[-1] > size):
            raise OperationError(f"embedding_bag: offsets must begin with 0, ascend, and not exceed {size}, "
                                 f"they are {offsets.tolist()}")  # fmt: skip
    # What lies behind the last offset belongs to the last bag, as in PyTorch.
    starts = starts[:-1] if include_last_offset else starts
    return apply(_OPS["cat"], (starts, on_device_of(starts, np.array([size]))), {"dim": 0})  # type: ignore[no-any-return]


def _check_weights(index: Tensor, weight: Tensor, per_sample_weights: Tensor, mode: str) -> None:
    if mode != "sum":
        raise OperationError(f"embedding_bag: per_sample_weights go with mode='sum' only, not {mode!r}")
    if per_sample_weights.shape != index.shape:
        raise ArgumentError(f"embedding_bag: per_sample_weights {per_sample_weights.spec} and input {index.spec} "
                            "differ in shape")  # fmt: skip
    if per_sample_weights.dtype is not weight.dtype:
        raise DTypeError(f"embedding_bag: per_sample_weights of {per_sample_weights.dtype} do not fit a table of "
                         f"{weight.dtype}", fix=f"Convert them with .to(wf.{weight.dtype.name}).")  # fmt: skip


def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """A row of zeros with a single one, at the class, for each class number; int64."""
    if not isinstance(tensor, Tensor):
        raise ArgumentTypeError(f"one_hot: expected a tensor, not {type(tensor).__name__}")
    if tensor.dtype.name != "int64":
        raise DTypeError(f"one_hot: class numbers must be int64, these are {tensor.dtype}",
                         fix="Convert them with .long().")  # fmt: skip
    if num_classes == -1:
        if tensor.shape.numel() == 0:
            raise OperationError("one_hot: the number of classes cannot be told from an empty tensor",
                                 fix="Give num_classes.")  # fmt: skip
        numbers = tensor._read("one_hot()")
        if numbers.min() < 0:
            raise OperationError(f"one_hot: class numbers must not be negative, the smallest is {numbers.min()}")
        num_classes = int(numbers.max()) + 1
    elif num_classes < 1:
        raise OperationError(f"one_hot: num_classes must be positive, it is {num_classes}")
    return apply(_OPS["one_hot"], (tensor,), {"classes": num_classes})  # type: ignore[no-any-return]
