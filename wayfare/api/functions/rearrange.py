"""The same numbers in other places: copies, reversals, repetitions, diagonals and triangles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from wayfare.api.functions._new import either, flat_ints, made, read_int
from wayfare.api.functions._public import add_method, method
from wayfare.api.functions.shape import diagonal, expanded, flatten, reshaped, transpose
from wayfare.core.dispatch import apply
from wayfare.core.errors import IndexRangeError, OperationError, ShapeError
from wayfare.core.mode import executor
from wayfare.core.op import REGISTRY
from wayfare.core.spec import normal_dim, normal_dims
from wayfare.core.tensor import Tensor

__all__ = [
    "clone", "flip", "fliplr", "flipud", "roll", "rot90", "tile", "repeat_interleave",
    "diag", "diagflat", "diag_embed", "tril", "triu",
]  # fmt: skip

_OPS = REGISTRY


@method
def clone(input: Tensor, *, memory_format: Any = None) -> Tensor:
    """A copy in its own memory; gradients pass through."""
    return apply(_OPS["clone"], (input,))  # type: ignore[no-any-return]


def _contiguous(self: Tensor, memory_format: Any = None) -> Tensor:
    """The tensor itself if its rows lie one after the other in memory, else a copy for which they do."""
    if executor().is_contiguous(self):
        return self
    return apply(_OPS["contiguous"], (self,))  # type: ignore[no-any-return]


add_method("contiguous", _contiguous)


# -- another order -----------------------------------------------------------------------------------------


@method
def flip(input: Tensor, *dims: Any, **named: Any) -> Tensor:
    """A copy with the order of the elements reversed along `dims`."""
    order = either("flip", "dims", dims, named)
    axes = normal_dims("flip", order, input.ndim) if order else ()
    return apply(_OPS["flip"], (input,), {"dims": axes})  # type: ignore[no-any-return]


@method
def fliplr(input: Tensor) -> Tensor:
    """Left and right exchanged: the second dimension reversed."""
    if input.ndim < 2:
        raise OperationError(f"fliplr: needs at least 2 dimensions, not {input.spec}")
    return flip(input, 1)


@method
def flipud(input: Tensor) -> Tensor:
    """Up and down exchanged: the first dimension reversed."""
    if input.ndim < 1:
        raise OperationError("flipud: needs at least 1 dimension")
    return flip(input, 0)


@method
def roll(input: Tensor, shifts: int | Sequence[int], dims: int | Sequence[int] | None = None) -> Tensor:
    """Elements moved along dimensions; what leaves at the end comes back at the start."""
    steps = flat_ints("roll", "a shift", (shifts,))
    named = () if dims is None else flat_ints("roll", "a dimension", (dims,))
    if not named:
        if len(steps) != 1:
            raise OperationError(f"roll: without dims one shift is expected, not {len(steps)}")
        flat = reshaped(input, (input.shape.numel(),))
        rolled = apply(_OPS["roll"], (flat,), {"shifts": steps, "dims": (0,)})
        return reshaped(rolled, tuple(input.shape))
    if len(named) != len(steps):
        raise OperationError(f"roll: {len(steps)} shifts and {len(named)} dims; there must be one shift for each")
    if input.ndim == 0:
        raise IndexRangeError("roll: a 0-dim tensor has no dimension to move along")
    axes = tuple(normal_dim("roll", d, input.ndim) for d in named)
    return apply(_OPS["roll"], (input,), {"shifts": steps, "dims": axes})  # type: ignore[no-any-return]


@method
def rot90(input: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    """Turned by `k` quarters in the plane of two dimensions, from the first towards the second."""
    named = flat_ints("rot90", "a dimension", (dims,))
    if len(named) != 2 or input.ndim < 2:
        raise OperationError(f"rot90: needs two dimensions to turn in, given dims={list(named)} and {input.spec}")
    a, b = (normal_dim("rot90", d, input.ndim) for d in named)
    if a == b:
        raise OperationError(f"rot90: the two dimensions must differ, both are {a}")
    turns = read_int("rot90", "k", k) % 4
    if turns == 0:
        return clone(input)
    if turns == 2:
        return flip(input, a, b)
    return transpose(flip(input, b), a, b) if turns == 1 else flip(transpose(input, a, b), b)


# -- repetition --------------------------------------------------------------------------------------------


def _repeat(self: Tensor, *repeats: Any, **named: Any) -> Tensor:
    """The tensor laid out several times along each dimension; new dimensions come first."""
    times = either("repeat", "repeats", repeats, named)
    if len(times) < self.ndim:
        raise ShapeError(f"repeat: {self.spec} has {self.ndim} dimensions, but only {len(times)} repeats are given")
    if any(n < 0 for n in times):
        raise OperationError(f"repeat: a number in {list(times)} is negative")
    sizes = (1,) * (len(times) - self.ndim) + tuple(self.shape)
    woven = reshaped(self, tuple(n for size in sizes for n in (1, size)))
    spread = expanded(woven, tuple(n for pair in zip(times, sizes, strict=True) for n in pair))
    out = reshaped(spread, tuple(n * size for n, size in zip(times, sizes, strict=True)))
    # Where the reshape is a view (nothing is repeated, or one element, or none) `repeat` still promises a copy.
    return apply(_OPS["contiguous"], (out,)) if out._is_view() else out


add_method("repeat", _repeat)


@method
def tile(input: Tensor, *dims: Any, **named: Any) -> Tensor:
    """Like `repeat`, but repeats that are left out count as 1 in front."""
    times = either("tile", "dims", dims, named)
    return _repeat(input, (1,) * (input.ndim - len(times)) + times)


@method
def repeat_interleave(
    input: Tensor, repeats: Any = None, dim: int | None = None, *, output_size: int | None = None
) -> Tensor:
    """Each element (or slice along `dim`) repeated in place: `repeats` times, or as often as a tensor says for each."""
    if repeats is None:
        return _index_of_repeats(input)
    if dim is None:
        input, dim = flatten(input), 0
    axis = normal_dim("repeat_interleave", dim, input.ndim)
    if input.ndim == 0:
        input = reshaped(input, (1,))
    if isinstance(repeats, Tensor) and repeats.shape.numel() != 1:
        if repeats.ndim != 1 or repeats.shape[0] != input.shape[axis]:
            raise ShapeError(
                f"repeat_interleave: repeats of {repeats.spec} do not fit dimension {axis} of {input.spec}"
            )
        picked = (input, _index_of_repeats(repeats))
        return apply(_OPS["index_select"], picked, {"dim": axis})  # type: ignore[no-any-return]
    times = read_int("repeat_interleave", "repeats", repeats.item() if isinstance(repeats, Tensor) else repeats)
    if times < 0:
        raise OperationError(f"repeat_interleave: the number of repeats must not be negative, but is {times}")
    shape = tuple(input.shape)
    spread = expanded(reshaped(input, (*shape[: axis + 1], 1, *shape[axis + 1 :])),
                      (*shape[: axis + 1], times, *shape[axis + 1 :]))  # fmt: skip
    out = flatten(spread, axis, axis + 1)
    return apply(_OPS["contiguous"], (out,)) if out._is_view() else out


def _index_of_repeats(repeats: Tensor) -> Tensor:
    """For repeats [2, 0, 1]: [0, 0, 2]."""
    counts = repeats._read("repeat_interleave")
    if counts.ndim != 1 or counts.dtype.kind not in "iu" or counts.min(initial=0) < 0:
        raise OperationError(f"repeat_interleave: repeats must be whole numbers from 0 on, not {repeats.spec}")
    return made(np.repeat(np.arange(counts.size, dtype=np.int64), counts), device=repeats.device)


# -- diagonals and triangles -------------------------------------------------------------------------------


@method
def diag(input: Tensor, diagonal: int = 0) -> Tensor:
    """A matrix with the vector on its diagonal, or the diagonal of a matrix (a copy)."""
    if input.ndim == 1:
        return diag_embed(input, diagonal)
    if input.ndim == 2:
        return clone(_diagonal(input, diagonal))
    raise OperationError(f"diag: expects a vector or a matrix, not {input.spec}",
                         fix="Use diagonal or diag_embed for more dimensions.")  # fmt: skip


_diagonal = diagonal


@method
def diagflat(input: Tensor, offset: int = 0) -> Tensor:
    """A matrix with all elements of `input` on its diagonal."""
    return diag_embed(reshaped(input, (input.shape.numel(),)), offset)


@method
def diag_embed(input: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Square matrices, in dimensions dim1 and dim2, with the last dimension of `input` on their diagonals."""
    if input.ndim == 0:
        raise OperationError("diag_embed: needs at least 1 dimension")
    rank, offset = input.ndim + 1, read_int("diag_embed", "offset", offset)
    a, b = normal_dim("diag_embed", dim1, rank), normal_dim("diag_embed", dim2, rank)
    if a == b:
        raise OperationError(f"diag_embed: dim1 and dim2 must differ, both are {a}")
    side = input.shape[-1] + abs(offset)
    rest = iter(tuple(input.shape)[:-1])
    shape = tuple(side if d in (a, b) else next(rest) for d in range(rank))
    attrs = {"shape": shape, "offset": offset, "dim1": a, "dim2": b}
    return apply(_OPS["place_diagonal"], (input,), attrs)  # type: ignore[no-any-return]


def _triangle(op: str, input: Tensor, diagonal: int) -> Tensor:
    if input.ndim < 2:
        raise OperationError(f"{op}: needs at least 2 dimensions, not {input.spec}")
    return apply(_OPS[op], (input,), {"diagonal": read_int(op, "diagonal", diagonal)})  # type: ignore[no-any-return]


@method(inplace=True)
def tril(input: Tensor, diagonal: int = 0) -> Tensor:
    """The lower triangle of each matrix; zeros above the given diagonal."""
    return _triangle("tril", input, diagonal)


@method(inplace=True)
def triu(input: Tensor, diagonal: int = 0) -> Tensor:
    """The upper triangle of each matrix; zeros below the given diagonal."""
    return _triangle("triu", input, diagonal)
