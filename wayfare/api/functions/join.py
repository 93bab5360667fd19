"""Joining tensors into one: cat, stack and their relatives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wayfare.api.functions._guard import tensor_advice
from wayfare.api.functions._public import as_dtype_of, common_dtype
from wayfare.api.functions.shape import atleast_1d, atleast_2d, atleast_3d, reshaped
from wayfare.core.dispatch import apply
from wayfare.core.errors import ArgumentTypeError, RefusedArgumentError, ShapeError
from wayfare.core.op import REGISTRY
from wayfare.core.spec import normal_dim
from wayfare.core.stand_in import FAST_PATHS, StandIn
from wayfare.core.tensor import Tensor

__all__ = [
    "cat", "concat", "concatenate", "stack", "hstack", "vstack", "row_stack", "dstack", "column_stack",
    "block_diag",
]  # fmt: skip

_OPS = REGISTRY


def _advice(op: str, x: Any) -> str:
    advice = tensor_advice(x, "")
    if advice and op == "cat":
        return "Use wf.Ragged.cat for ragged tensors, or give r.values."
    return advice or tensor_advice(x)


def read_tensors(op: str, tensors: Any) -> tuple[Tensor, ...]:
    """A sequence of tensors, brought to one dtype."""
    if isinstance(tensors, Tensor) or not isinstance(tensors, (tuple, list)):
        raise ArgumentTypeError(f"{op}: expects a tuple or list of tensors, not {type(tensors).__name__}",
                                fix=f"Write wf.{op}((a, b)).")  # fmt: skip
    if not tensors:
        raise RefusedArgumentError(f"{op}: expects at least one tensor, got an empty list")
    for number, x in enumerate(tensors):
        if not isinstance(x, Tensor):
            raise ArgumentTypeError(f"{op}: item {number} is {type(x).__name__}, not a tensor", fix=_advice(op, x))
    kind = tensors[0].dtype
    if all(x.dtype is kind for x in tensors):
        return tuple(tensors)
    kind = common_dtype(op, tensors)
    return tuple(as_dtype_of(x, kind) for x in tensors)


def _alike(tensors: Any) -> bool:
    """Plain tensors of one dtype and rank: the usual case, which needs no sorting out."""
    if not (isinstance(tensors, (list, tuple)) and tensors and tensors[0].__class__ is Tensor):
        return False
    dtype, rank = tensors[0]._array.dtype, tensors[0]._array.ndim
    return rank > 0 and all(
        [t.__class__ is Tensor and t._array.dtype is dtype and t._array.ndim == rank for t in tensors]
    )


def _joined_quickly(name: str, tensors: Any, dim: int) -> Any:
    """The result for stand-ins whose executor has a fast path, else NotImplemented."""
    listed = tensors.__class__ is list or tensors.__class__ is tuple
    op = _OPS[name]
    if listed and tensors and tensors[0].__class__ is StandIn and op in FAST_PATHS:
        return FAST_PATHS[op](tensors, dim)
    return NotImplemented


def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """The tensors one after the other along a dimension they all have."""
    made = _joined_quickly("cat", tensors, dim)
    if made is not NotImplemented:
        return made  # type: ignore[no-any-return]
    if _alike(tensors):
        dim = normal_dim("cat", dim, tensors[0].ndim)
        return apply(_OPS["cat"], tuple(tensors), {"dim": dim})  # type: ignore[no-any-return]
    parts = read_tensors("cat", tensors)
    rank = max(x.ndim for x in parts)
    if rank > 1:
        # As in PyTorch an empty vector joins anything: it is what one starts to collect into.
        parts = tuple(x for x in parts if tuple(x.shape) != (0,))
    flat = next((x for x in parts if x.ndim == 0), None)
    if flat is not None:
        raise ShapeError("cat: a 0-dim tensor has no dimension to join along",
                         fix="Use wf.stack, which adds one.")  # fmt: skip
    return apply(_OPS["cat"], parts, {"dim": normal_dim("cat", dim, rank)})  # type: ignore[no-any-return]


def concat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Another name for `cat`."""
    return cat(tensors, dim)


def concatenate(tensors: Sequence[Tensor], dim: int = 0, *, axis: int | None = None) -> Tensor:
    """Another name for `cat`."""
    return cat(tensors, dim if axis is None else axis)


def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Tensors of one shape side by side along a new dimension."""
    made = _joined_quickly("stack", tensors, dim)
    if made is not NotImplemented:
        return made  # type: ignore[no-any-return]
    parts = tuple(tensors) if _alike(tensors) else read_tensors("stack", tensors)
    return apply(_OPS["stack"], parts, {"dim": normal_dim("stack", dim, parts[0].ndim + 1, "a result")})  # type: ignore[no-any-return]


def hstack(tensors: Sequence[Tensor]) -> Tensor:
    """Joined side by side: along the second dimension, vectors along their only one."""
    parts = atleast_1d(list(read_tensors("hstack", tensors)))
    return cat(parts, 0 if parts[0].ndim == 1 else 1)


def vstack(tensors: Sequence[Tensor]) -> Tensor:
    """Joined one below the other; vectors become rows."""
    return cat(atleast_2d(list(read_tensors("vstack", tensors))), 0)


def row_stack(tensors: Sequence[Tensor]) -> Tensor:
    """Another name for `vstack`."""
    return vstack(tensors)


def dstack(tensors: Sequence[Tensor]) -> Tensor:
    """Joined along the third dimension, which is added where it is missing."""
    return cat(atleast_3d(list(read_tensors("dstack", tensors))), 2)


def column_stack(tensors: Sequence[Tensor]) -> Tensor:
    """Joined side by side; vectors become columns."""
    parts = read_tensors("column_stack", tensors)
    columns = [reshaped(x, (x.shape.numel(), 1)) if x.ndim < 2 else x for x in parts]
    return cat(columns, 1)


def block_diag(*tensors: Any) -> Tensor:
    """A matrix with the given matrices along its diagonal and zeros elsewhere; vectors count as rows."""
    if len(tensors) == 1 and isinstance(tensors[0], (tuple, list)):
        tensors = tuple(tensors[0])
    blocks = atleast_2d(list(read_tensors("block_diag", tensors)))
    for number, block in enumerate(blocks):
        if block.ndim != 2:
            raise ShapeError(f"block_diag: item {number} is {block.spec}, but a block has at most 2 dimensions")
    width = sum(block.shape[1] for block in blocks)
    rows, left = [], 0
    for block in blocks:
        right = width - left - block.shape[1]
        rows.append(apply(_OPS["pad"], (block,), {"amounts": ((0, 0), (left, right)), "value": 0}))
        left += block.shape[1]
    return apply(_OPS["cat"], tuple(rows), {"dim": 0})  # type: ignore[no-any-return]
