"""What the linear-algebra records share: checks with one-sentence errors, the batch rule, small matrix helpers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from wayfare.codegen.runtime.blas import threads_for
from wayfare.core.autocast import FLOAT32_ON_CPU
from wayfare.core.errors import DTypeError, LinAlgError, ShapeError
from wayfare.core.op import Op
from wayfare.core.quiet import quietly
from wayfare.core.spec import NARROW, OF_NUMPY, Spec
from wayfare.ops._define import define, in_front
from wayfare.ops.contraction.matmul import swap as swap


def matrix_op(name: str, *, kinds: str = "f", **facts: Any) -> Op:
    """An op of LAPACK on floating-point matrices or stacks of them. With a batch it has a larger stack."""
    return define(name, family="linear algebra", autocast=FLOAT32_ON_CPU, kinds=kinds, batch=in_front(name), **facts)


def square(op: str) -> Callable[..., Spec]:
    """The shape rule of an op from a square matrix to one of the same size."""

    def infer(x: Spec, **_attrs: Any) -> Spec:
        check_square(op, x)
        return x

    return infer


def check_matrix(op: str, x: Spec) -> None:
    """LAPACK takes float32 and float64 matrices, or stacks of them."""
    if x.ndim < 2:
        raise ShapeError(f"{op}: needs a matrix or a stack of matrices, not {x}")
    if x.dtype in NARROW:
        raise DTypeError(f"{op}: {x.dtype} has no linear algebra, {x} was given", fix="Convert it with .float().")
    if not x.dtype.is_floating_point:
        raise DTypeError(f"{op}: needs a floating-point matrix, not {x}", fix="Convert it with .float().")


def check_square(op: str, x: Spec) -> None:
    """A square matrix, or a stack of them."""
    check_matrix(op, x)
    if x.shape[-1] != x.shape[-2]:
        raise ShapeError(f"{op}: the matrix must be square, not {x.shape[-2]}×{x.shape[-1]} as in {x}")


def check_batches(op: str, a: Spec, b: Spec) -> None:
    """The records take equal leading dimensions; the public functions broadcast them."""
    check_matrix(op, b)
    if a.dtype is not b.dtype:
        raise DTypeError(f"{op}: both must have one dtype, not {a} and {b}")
    if a.shape[:-2] != b.shape[:-2]:
        raise ShapeError(f"{op}: leading dimensions differ, {a} and {b}")


def fail_at(op: str, x: Any, what: str, fails: Callable[[Any], bool], fix: str = "") -> LinAlgError:
    """The error for the first matrix of a stack for which `fails` holds."""
    spec = Spec(x.shape, OF_NUMPY[x.dtype])
    for index in np.ndindex(x.shape[:-2]):
        if fails(x[index]):
            where = f" at batch index {list(index)}" if index else ""
            return LinAlgError(f"{op}: the matrix{where} of {spec} {what}", fix=fix)
    return LinAlgError(f"{op}: a matrix of {spec} {what}", fix=fix)


def raises(function: Callable[[Any], Any]) -> Callable[[Any], bool]:
    """Does NumPy refuse this matrix?"""

    def fails(x: Any) -> bool:
        try:
            function(x)
        except np.linalg.LinAlgError:
            return True
        return False

    return fails


def matrices(x: Any) -> Iterator[tuple[tuple[int, ...], Any]]:
    """Each matrix of a stack with its index."""
    return ((index, x[index]) for index in np.ndindex(x.shape[:-2]))


def scipy_call(module: str, name: str) -> Any:
    """A function of SciPy, imported when it is first needed: SciPy would double the import time of the package."""
    import importlib

    return _in_our_threads(getattr(importlib.import_module(module), name), scipy=True)


def _in_our_threads(function: Any, scipy: bool) -> Any:
    """A function of LAPACK, with threads as the settings allow and the size of the matrix justifies."""

    def call(*args: Any, **options: Any) -> Any:
        rows, columns = next((x.shape[-2:] for x in args if getattr(x, "ndim", 0) > 1), (1, 1))
        with threads_for(rows, columns, scipy), quietly():
            return function(*args, **options)

    return call


class _Lapack:
    """`np.linalg` in our threads."""

    def __getattr__(self, name: str) -> Any:
        call = _in_our_threads(getattr(np.linalg, name), scipy=False)
        setattr(self, name, call)
        return call


lapack = _Lapack()


def numpy_dtype(x: Any) -> Any:
    """The NumPy dtype of an array or a tensor."""
    return getattr(x.dtype, "numpy", x.dtype)


def raw_transpose(x: Any) -> Any:
    """Each matrix transposed, as a view."""
    return x.swapaxes(-1, -2)


def as_column(m: Any, v: Any) -> Any:
    """(…, n) → (…, n, 1)."""
    return m.reshape(v, shape=(*v.shape, 1))


def as_row(m: Any, v: Any) -> Any:
    """(…, n) → (…, 1, n)."""
    return m.reshape(v, shape=(*v.shape[:-1], 1, v.shape[-1]))


def diagonal_matrix(m: Any, v: Any) -> Any:
    """(…, n) → (…, n, n) with v on the diagonal."""
    rank = v.ndim
    return m.place_diagonal(v, shape=(*v.shape, v.shape[-1]), offset=0, dim1=rank - 1, dim2=rank)


def weighted_columns(m: Any, x: Any, v: Any) -> Any:
    """x @ diag(v), without making the diagonal matrix."""
    return m.mul(x, as_row(m, v))
