"""Products of matrices and vectors: `@`, its named forms, and the forms that add to a tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from wayfare.api.autocast import follows_autocast
from wayfare.api.functions._guard import tensor_advice
from wayfare.api.functions._public import add_method, as_dtype_of, method, promoted
from wayfare.core.autocast import LOWER, LOWER_ON_CUDA, WIDEST_ON_CUDA
from wayfare.core.dispatch import apply, apply2
from wayfare.core.errors import ArgumentTypeError, ShapeError
from wayfare.core.native import as_op
from wayfare.core.op import REGISTRY
from wayfare.core.spec import bool_
from wayfare.core.tensor import Tensor, to_tensor

__all__ = [
    "addbmm", "addmm", "addmv", "addr", "baddbmm", "bmm", "chain_matmul", "dot", "ger", "inner", "kron", "matmul",
    "mm", "mv", "outer", "vdot",
]  # fmt: skip

_ARRAYS = (Tensor, np.ndarray)
_ADD, _MUL, _MATMUL, _RESHAPE = REGISTRY["add"], REGISTRY["mul"], REGISTRY["matmul"], REGISTRY["reshape"]


def _checked(op: str, *values: Any) -> tuple[Tensor, ...]:
    """The operands as tensors; anything that is not an array is named in the error."""
    for value in values:
        if not isinstance(value, _ARRAYS):
            raise ArgumentTypeError(f"{op}: expected tensors, not {type(value).__name__}", fix=tensor_advice(value, ""))
    return tuple(to_tensor(value, op=op) for value in values)


def _need_ranks(op: str, tensors: Sequence[Tensor], ranks: Sequence[int]) -> None:
    if any(t.ndim != rank for t, rank in zip(tensors, ranks, strict=True)):
        wanted = " and ".join(f"{rank}-D" for rank in ranks)
        given = " and ".join(repr(t.spec) for t in tensors)
        raise ShapeError(f"{op}: needs {wanted} tensors, not {given}", fix="Use wf.matmul, which takes any shapes.")


@method
def matmul(input: Tensor, other: Tensor) -> Tensor:
    """`input @ other`: matrices are multiplied, leading dimensions broadcast, a vector is a row or a column."""
    if input.__class__ is Tensor and other.__class__ is Tensor:
        return apply2(_MATMUL, input, other)
    return apply(_MATMUL, _checked("matmul", input, other))  # type: ignore[no-any-return]

matmul.checks_operands = True  # type: ignore[attr-defined]


def _operator(self: Tensor, other: Any) -> Any:
    if other.__class__ is Tensor and self.__class__ is Tensor:
        return apply2(_MATMUL, self, other)
    return matmul(*_checked("matmul", self, other)) if isinstance(other, _ARRAYS) else NotImplemented


def _reflected(self: Tensor, other: Any) -> Any:
    return matmul(*_checked("matmul", other, self)) if isinstance(other, _ARRAYS) else NotImplemented


add_method("__matmul__", as_op(_operator, _MATMUL, 2, floats_only=False))
add_method("__rmatmul__", _reflected)


def _of_ranks(op: str, a: Any, b: Any, *ranks: int) -> Tensor:
    a, b = _checked(op, a, b)
    _need_ranks(op, (a, b), ranks)
    return matmul(a, b)


@method
def mm(input: Tensor, mat2: Tensor) -> Tensor:
    """The product of two matrices."""
    return _of_ranks("mm", input, mat2, 2, 2)


@method
def bmm(input: Tensor, mat2: Tensor) -> Tensor:
    """The products of two stacks of matrices, pair by pair."""
    input, mat2 = _checked("bmm", input, mat2)
    _need_ranks("bmm", (input, mat2), (3, 3))
    if input.shape[0] != mat2.shape[0]:
        raise ShapeError(f"bmm: the stacks have different lengths, {input.spec} and {mat2.spec}",
                         fix="Use wf.matmul to broadcast one of them.")  # fmt: skip
    return matmul(input, mat2)


@method
@follows_autocast(LOWER_ON_CUDA)
def mv(input: Tensor, vec: Tensor) -> Tensor:
    """The product of a matrix and a vector."""
    return _of_ranks("mv", input, vec, 2, 1)


@method
@follows_autocast(WIDEST_ON_CUDA)
def dot(input: Tensor, tensor: Tensor) -> Tensor:
    """The dot product of two vectors."""
    return _of_ranks("dot", input, tensor, 1, 1)


@method
@follows_autocast(WIDEST_ON_CUDA)
def vdot(input: Tensor, other: Tensor) -> Tensor:
    """The dot product of two vectors (for real numbers the same as `dot`)."""
    return _of_ranks("vdot", input, other, 1, 1)


def _reshape(x: Tensor, shape: Sequence[int]) -> Tensor:
    return apply(_RESHAPE, (x,), {"shape": tuple(shape)})  # type: ignore[no-any-return]


@method
def inner(input: Tensor, other: Tensor) -> Tensor:
    """The dot products along the last dimension, for every pair of vectors of `input` and `other`."""
    input, other = _checked("inner", input, other)
    if input.ndim == 0 or other.ndim == 0:
        return promoted(_MUL, (input, other))
    if input.shape[-1] != other.shape[-1]:
        raise ShapeError(f"inner: the last sizes differ, {input.spec} and {other.spec}")
    if other.ndim == 1:
        return (dot if input.ndim == 1 else matmul)(input, other)
    rows = _reshape(other, (math.prod(other.shape[:-1]), other.shape[-1]))
    return _reshape(apply(REGISTRY["linear_plain"], (input, rows)), (*input.shape[:-1], *other.shape[:-1]))


@method
def outer(input: Tensor, vec2: Tensor) -> Tensor:
    """The products of all pairs of elements of two vectors, as a matrix."""
    input, vec2 = _checked("outer", input, vec2)
    _need_ranks("outer", (input, vec2), (1, 1))
    return promoted(_MUL, (_reshape(input, (*input.shape, 1)), vec2))


ger = outer
add_method("ger", outer)


@method
def kron(input: Tensor, other: Tensor) -> Tensor:
    """The Kronecker product: every element of `input` times the whole of `other`."""
    input, other = _checked("kron", input, other)
    width = max(input.ndim, other.ndim)
    left = (1,) * (width - input.ndim) + input.shape
    right = (1,) * (width - other.ndim) + other.shape
    a = _reshape(input, [size for n in left for size in (n, 1)])
    b = _reshape(other, [size for n in right for size in (1, n)])
    return _reshape(promoted(_MUL, (a, b)), [n * k for n, k in zip(left, right, strict=True)])


# -- products added to a tensor -----------------------------------------------------------------------------


def _added(input: Tensor, product: Tensor, beta: float, alpha: float) -> Tensor:
    """`beta * input + alpha * product`; with beta 0 the input does not count at all, not even a NaN."""
    if alpha != 1:
        product = promoted(_MUL, (product, alpha))
    if beta == 0:
        nothing = promoted(REGISTRY["zeros_like"], (input,))
        if input.requires_grad:  # its gradient is zeros, so it is in the graph
            nothing = apply(REGISTRY["where"], (as_dtype_of(nothing, bool_), input, nothing))
        return promoted(_ADD, (nothing, product))
    if beta != 1:
        input = promoted(_MUL, (input, beta))
    return promoted(_ADD, (input, product))


@method(inplace=True)
@follows_autocast(LOWER)
def addmm(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """`beta * input + alpha * (mat1 @ mat2)`."""
    return _added(input, mm(mat1, mat2), beta, alpha)


@method(inplace=True)
@follows_autocast(LOWER_ON_CUDA)
def addmv(input: Tensor, mat: Tensor, vec: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """`beta * input + alpha * (mat @ vec)`."""
    return _added(input, mv(mat, vec), beta, alpha)


@method(inplace=True)
@follows_autocast(LOWER_ON_CUDA)
def addr(input: Tensor, vec1: Tensor, vec2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """`beta * input + alpha * outer(vec1, vec2)`."""
    return _added(input, outer(vec1, vec2), beta, alpha)


@method(inplace=True)
@follows_autocast(LOWER)
def baddbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """`beta * input + alpha * bmm(batch1, batch2)`."""
    return _added(input, bmm(batch1, batch2), beta, alpha)


@method(inplace=True)
@follows_autocast(LOWER)
def addbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """`beta * input + alpha * (the sum of the products of two stacks of matrices)`."""
    batch1, batch2 = _checked("addbmm", batch1, batch2)
    _need_ranks("addbmm", (batch1, batch2), (3, 3))
    if batch1.shape[0] != batch2.shape[0] or batch1.shape[2] != batch2.shape[1]:
        raise ShapeError(f"addbmm: the stacks do not fit, {batch1.spec} and {batch2.spec}")
    return _added(input, apply(REGISTRY["einsum"], (batch1, batch2), {"equation": "bij,bjk->ik"}), beta, alpha)


def chain_matmul(*matrices: Tensor) -> Tensor:
    """The product of several matrices, multiplied in the cheapest order."""
    return multiply_chain("chain_matmul", matrices)


def multiply_chain(op: str, tensors: Sequence[Tensor]) -> Tensor:
    """The product of two or more matrices (the first and last may be vectors) in the cheapest order."""
    chain = list(_checked(op, *tensors))
    if not chain:
        raise ShapeError(f"{op}: needs at least one matrix")
    first, last = chain[0], chain[-1]
    if len(chain) == 1:
        return first
    if first.ndim == 1:
        chain[0] = _reshape(first, (1, *first.shape))
    if last.ndim == 1:
        chain[-1] = _reshape(last, (*last.shape, 1))
    if any(t.ndim != 2 for t in chain):
        shown = ", ".join(repr(t.spec) for t in tensors)
        raise ShapeError(f"{op}: needs matrices (the first and the last may be vectors), not {shown}")
    splits = _cheapest_splits([t.shape[0] for t in chain] + [chain[-1].shape[1]])

    def product(start: int, stop: int) -> Tensor:
        if stop - start == 1:
            return chain[start]
        middle = splits[start, stop]
        return matmul(product(start, middle), product(middle, stop))

    out = product(0, len(chain))
    rows = out.shape[:1] if first.ndim > 1 else ()
    columns = out.shape[1:] if last.ndim > 1 else ()
    return out if len(rows) + len(columns) == 2 else _reshape(out, (*rows, *columns))


def _cheapest_splits(sizes: list[int]) -> dict[tuple[int, int], int]:
    """Where to split each part of a chain so that the fewest numbers are multiplied: the classic table."""
    count = len(sizes) - 1
    cost = {(i, i + 1): 0 for i in range(count)}
    splits: dict[tuple[int, int], int] = {}
    for length in range(2, count + 1):
        for start in range(count - length + 1):
            stop = start + length
            prices = {
                middle: cost[start, middle] + cost[middle, stop] + sizes[start] * sizes[middle] * sizes[stop]
                for middle in range(start + 1, stop)
            }
            splits[start, stop] = min(prices, key=lambda middle: prices[middle])
            cost[start, stop] = prices[splits[start, stop]]
    return splits
