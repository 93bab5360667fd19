"""Look-ups of rows: embedding, embedding_bag, one_hot. A table's gradient is `Rows`: it costs what was used."""

from __future__ import annotations

import numpy as np

from wayfare.backend.writes import note_write
from wayfare.eager import apply
from wayfare.errors import ArgumentError, ArgumentTypeError, DTypeError, IndexRangeError, OperationError, ShapeError
from wayfare.functions.index import as_index
from wayfare.functions.scatter import scatter_reduce
from wayfare.op import REGISTRY
from wayfare.ops.advanced import check_rows
from wayfare.state import runs_here
from wayfare.tensor import Tensor, wrap

__all__ = ["embedding", "embedding_bag", "one_hot"]

_OPS = REGISTRY


def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """The rows of `weight` at the numbers in `input`.

    The row `padding_idx` gets no gradient. With `max_norm` the rows that are looked up are first scaled, in place, to
    that norm at most. The gradient is always sparse until somebody asks for the whole; `sparse` changes nothing.
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
    table = weight._read("max_norm")
    places = np.unique(index._read("max_norm"))
    check_rows(op, places, table.shape[0], OperationError if op == "embedding_bag" else IndexRangeError)
    norms = np.linalg.norm(table[places], norm_type, axis=1)
    long = norms > max_norm
    if long.any():
        scale = (max_norm / (norms[long] + 1e-7)).astype(table.dtype)
        table[places[long]] *= scale[:, None]
        note_write(table)


def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """The sum, mean or max of rows of `weight` over bags of numbers: the rows of `input` if it has two dimensions, or
    the pieces that begin at `offsets` if it has one. An empty bag gives zeros; `padding_idx` counts for nothing."""
    if isinstance(weight, Tensor) and weight.dtype.rank == 1 and isinstance(input, Tensor) and input.dtype.rank == 2:
        input, weight = weight, input  # PyTorch still takes the two in the order of its first versions.
    index = as_index("embedding_bag", input)
    if mode not in ("sum", "mean", "max"):
        raise ArgumentError(f"embedding_bag: mode must be 'sum', 'mean' or 'max', not {mode!r}")
    if per_sample_weights is not None:
        _check_weights(index, weight, per_sample_weights, mode)
    places = index._read("embedding_bag()")
    bag, count = _bags(places, offsets, include_last_offset)
    if max_norm is not None:
        _shrink_rows("embedding_bag", weight, index, max_norm, norm_type)
    # A copy where somebody takes notice: what Python makes of a value is a value of its own.
    flat = places.reshape(-1) if runs_here() else places.flatten()
    check_rows("embedding_bag", flat, weight.shape[0], OperationError)
    weights = None
    if per_sample_weights is not None:
        weights = apply(_OPS["reshape"], (per_sample_weights,), {"shape": (flat.size, 1)})
    padding = _padding("embedding_bag", padding_idx, weight)
    if padding is not None:
        keep = np.flatnonzero(flat != padding)
        flat, bag = flat[keep], bag[keep]
        if weights is not None:
            weights = apply(_OPS["index"], (weights, wrap(keep)), {"dims": (0,)})
    attrs = {"padding_idx": None, "by_frequency": bool(scale_grad_by_freq)}
    rows = apply(_OPS["embedding"], (weight, wrap(flat)), attrs)
    if weights is not None:
        rows = rows * weights
    return _folded(rows, bag, count, weight, mode)


def _folded(rows: Tensor, bag: np.ndarray, count: int, weight: Tensor, mode: str) -> Tensor:
    """The rows of each bag folded into one."""
    shape = (count, weight.shape[1])
    if mode == "max":
        empty = wrap(np.zeros(shape, weight.dtype.numpy))
        where = wrap(np.broadcast_to(bag[:, None], (bag.size, shape[1])))
        return scatter_reduce(empty, 0, where, rows, "amax", include_self=False)
    total = apply(_OPS["index_place"], (rows, wrap(bag)), {"shape": shape, "dims": (0,)})
    if mode == "mean":
        sizes = np.maximum(np.bincount(bag, minlength=count), 1).astype(weight.dtype.numpy)
        total = total / wrap(sizes[:, None])
    return total  # type: ignore[no-any-return]


def _bags(places: np.ndarray, offsets: Tensor | None, include_last_offset: bool) -> tuple[np.ndarray, int]:
    """For each number the bag it belongs to, and how many bags there are."""
    if places.ndim == 2:
        if offsets is not None:
            raise ArgumentError("embedding_bag: an input of two dimensions has its rows as bags, offsets must be None")
        return np.repeat(np.arange(places.shape[0]), places.shape[1]), places.shape[0]
    if places.ndim != 1:
        raise ArgumentError(f"embedding_bag: the input must have one or two dimensions, not {places.ndim}")
    if offsets is None or offsets.ndim != 1:
        raise ArgumentError("embedding_bag: an input of one dimension needs offsets of one dimension")
    starts = as_index("embedding_bag", offsets)._read("embedding_bag()").astype(np.int64)
    if include_last_offset:
        if starts.size == 0:
            raise OperationError("embedding_bag: with include_last_offset there must be at least one offset")
        ends, starts = starts[1:], starts[:-1]
    else:
        ends = np.append(starts[1:], places.size)
    if starts.size and (starts[0] != 0 or (ends < starts).any() or ends[-1] > places.size):
        raise OperationError(f"embedding_bag: offsets must begin with 0, ascend, and not exceed {places.size}, "
                             f"they are {offsets.tolist()}")  # fmt: skip
    bag = np.repeat(np.arange(starts.size), ends - starts)
    # What lies behind the last offset belongs to the last bag, as in PyTorch.
    return np.append(bag, np.full(places.size - bag.size, max(starts.size - 1, 0))), starts.size


def _check_weights(index: Tensor, weight: Tensor, per_sample_weights: Tensor, mode: str) -> None:
    if mode != "sum":
        raise OperationError(f"embedding_bag: per_sample_weights go with mode='sum' only, not {mode!r}")
    if per_sample_weights.shape != index.shape:
        raise ArgumentError(f"embedding_bag: per_sample_weights {per_sample_weights.spec} and input {index.spec} "
                            "differ in shape")  # fmt: skip
    if per_sample_weights.dtype is not weight.dtype:
        raise DTypeError(f"embedding_bag: per_sample_weights of {per_sample_weights.dtype} do not fit a table of "
                         f"{weight.dtype}")  # fmt: skip


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
