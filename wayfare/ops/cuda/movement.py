"""Views and copies on CUDA."""

from __future__ import annotations

from typing import Any

import numpy as np

from wayfare.core.errors import OperationError
from wayfare.ir.assemble import ASSEMBLE, numpy_key
from wayfare.ops.cuda.rows import add_at
from wayfare.ops.cuda.table import OVERRIDES, on_cuda, runs_as_it_is
from wayfare.ops.movement.index import numpy_index
from wayfare.ops.movement.onnx_rules import memory_places
from wayfare.ops.movement.shape import replay as replay_on_numpy

runs_as_it_is("basic_index", "cast", "clone", "expand", "flip", "permute", "reshape", "roll", "select",
              "slice", "squeeze", "squeeze_dim", "squeeze_dims", "t", "to_device", "transpose", "unsafe_view",
              "unsqueeze", "view_bits")  # fmt: skip


def _triangle(name: str) -> None:
    @on_cuda(name)
    def forward(b: Any, x: Any, *, diagonal: int) -> Any:
        # Of bfloat16 CuPy makes float32.
        return getattr(b.xp, name)(x, diagonal).astype(x.dtype, copy=False)


_triangle("tril")
_triangle("triu")


@on_cuda("frexp")
def _frexp(b: Any, x: Any) -> tuple[Any, Any]:
    fraction, exponent = b.xp.frexp(x)
    return fraction, exponent


@on_cuda("contiguous")
def _contiguous(b: Any, x: Any) -> Any:
    return x.copy("C")


@on_cuda("cat", bfloat16=True)
def _cat(b: Any, *xs: Any, dim: int) -> Any:
    return b.xp.ascontiguousarray(b.xp.concatenate(xs, axis=dim))


@on_cuda("stack", bfloat16=True)
def _stack(b: Any, *xs: Any, dim: int) -> Any:
    return b.xp.ascontiguousarray(b.xp.stack(xs, axis=dim))


@on_cuda("diagonal")
def _diagonal(b: Any, x: Any, *, offset: int, dim1: int, dim2: int) -> Any:
    return x.diagonal(max(-x.shape[dim1], min(offset, x.shape[dim2])), dim1, dim2)


@on_cuda("place_diagonal")
def _place_diagonal(b: Any, g: Any, *, shape: Any, offset: int, dim1: int, dim2: int) -> Any:
    out = b.xp.zeros(shape, g.dtype)
    if g.size:
        _diagonal(b, out, offset=offset, dim1=dim1, dim2=dim2)[...] = g
    return out


@on_cuda("place")
def _place(b: Any, g: Any, *, shape: Any, index: Any) -> Any:
    out = b.xp.zeros(shape, g.dtype)
    out[numpy_index(index)] = g
    return out


@on_cuda("pad")
def _pad(b: Any, x: Any, *, amounts: Any, value: float) -> Any:
    """Negative amounts cut off."""
    for (before, behind), size in zip(amounts, x.shape, strict=True):
        if size + before + behind < 0:
            raise ValueError("more is cut off than there is")
    inner = x[tuple(slice(max(-before, 0), size - max(-behind, 0))
                    for (before, behind), size in zip(amounts, x.shape, strict=True))]  # fmt: skip
    shape = tuple(size + before + behind for (before, behind), size in zip(amounts, x.shape, strict=True))
    out = b.xp.full(shape, value, x.dtype)
    out[tuple(slice(max(before, 0), max(before, 0) + size)
              for (before, _), size in zip(amounts, inner.shape, strict=True))] = inner  # fmt: skip
    return out


@on_cuda("look_through")
def _look_through(b: Any, x: Any, *, path: Any) -> Any:
    for name, attrs in path:
        x = getattr(b.ops, name)(x, **dict(attrs))
    return x


@on_cuda("write_through")
def _write_through(b: Any, x: Any, part: Any, *, path: Any) -> Any:
    out = x.copy("C")
    seen = _look_through(b, out, path=path)
    if b.xp.may_share_memory(seen, out):
        seen[...] = part
    else:  # A reshape on the path had to copy: find the elements by their numbers instead.
        places = replay_on_numpy(np.arange(out.size).reshape(out.shape), path)
        out.reshape(-1)[b.xp.asarray(places)] = part
    return out


# -- windows over memory: copies, because an array of CuPy with other strides does not tell whose memory it shows -----


@on_cuda("unfold")
def _unfold(b: Any, x: Any, *, dim: int, size: int, step: int) -> Any:
    if step < 1 or not 0 <= size <= x.shape[dim]:
        raise ValueError(f"there are no windows of size {size} and step {step} in {x.shape[dim]}")
    count = (x.shape[dim] - size) // step + 1
    shape = (*x.shape[:dim], count, *x.shape[dim + 1 :], size)
    strides = (*x.strides[:dim], x.strides[dim] * step, *x.strides[dim + 1 :], x.strides[dim])
    return b.as_strided(x, shape, strides).copy()


@on_cuda("fold_back")
def _fold_back(b: Any, g: Any, *, shape: Any, dim: int, step: int) -> Any:
    out, count = b.xp.zeros(shape, g.dtype), g.shape[dim]
    for offset in range(g.shape[-1]):
        out[(slice(None),) * dim + (slice(offset, offset + (count - 1) * step + 1, step),)] += g[..., offset]
    return out


@on_cuda("as_strided")
def _as_strided(b: Any, x: Any, *, size: Any, stride: Any, offset: int, layout: Any) -> Any:
    if tuple(s // x.itemsize for s in x.strides) == layout and x.flags.c_contiguous:
        reach = offset + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
        if offset < 0 or min(stride, default=0) < 0 or (0 not in size and reach >= x.size):
            raise OperationError("as_strided: on a GPU it cannot reach beyond the tensor's own elements",
                                 fix="Take it of the tensor that has all of them.")  # fmt: skip
        return b.as_strided(x.reshape(-1)[offset:], size, tuple(s * x.itemsize for s in stride)).copy()
    source, wanted, length = _places(x.shape, layout, size, stride, offset)
    memory = b.xp.zeros(length, x.dtype)
    memory[b.xp.asarray(source)] = x
    return memory[b.xp.asarray(wanted)]


def _places(shape: Any, layout: Any, size: Any, stride: Any, offset: int) -> tuple[Any, Any, int]:
    """Where the elements of both lie in one row of memory, and its length."""
    source, wanted = memory_places(shape, layout), memory_places(size, stride) + offset
    low = min(source.min(initial=0), wanted.min(initial=0))
    return source - low, wanted - low, int(max(source.max(initial=0), wanted.max(initial=0)) - low + 1)


@on_cuda("add_strided")
def _add_strided(b: Any, g: Any, *, shape: Any, stride: Any, offset: int, layout: Any) -> Any:
    """Sum g into memory, then read it with the strides of the input; elements that the input repeats share the sum."""
    source, wanted, length = _places(shape, layout, g.shape, stride, offset)
    memory = b.xp.zeros(length, g.dtype)
    add_at(b, memory, (b.xp.asarray(wanted),), g)
    out = memory[b.xp.asarray(source)]
    count = np.bincount(source.ravel(), minlength=length)
    if count.max(initial=1) <= 1:
        return out
    return (out / b.xp.asarray(count[source].astype(g.dtype))).astype(g.dtype)


def _assemble(b: Any, *parts: Any, shape: Any, indexes: Any) -> Any:
    """Parts added where their indexes are, in zeros. Plans have this op for parts that overlap."""
    out = b.xp.zeros(shape, parts[0].dtype)
    for part, index in zip(parts, indexes, strict=True):
        out[numpy_key(index)] += part
    return out


OVERRIDES[ASSEMBLE] = _assemble
