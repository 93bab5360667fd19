"""Linear algebra on CUDA: cuSOLVER and cuBLAS, through CuPy.

What a library makes of a singular matrix, or of NaN, is its own affair; here the results, and the errors, are the
CPU's. So one number is read after each call: whether the library has succeeded, and its results are finite. Where not,
the CPU computes the record.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from wayfare.core.op import REGISTRY
from wayfare.core.spec import spec_of
from wayfare.ops.cuda.table import on_cuda, on_host

Compute = Callable[..., Any]


def _by_library(name: str) -> Callable[[Compute], Compute]:
    """Decorator: the function computes a record by the library, or raises LinAlgError."""

    def register(function: Compute) -> Compute:
        op = REGISTRY[name]

        @on_cuda(name)
        def forward(b: Any, *arrays: Any, **attrs: Any) -> Any:
            op.infer(*map(spec_of, arrays), **attrs)  # libraries would broadcast, or convert
            if all([x.size for x in arrays]):
                try:
                    with b.cupyx.errstate(linalg="raise"):
                        made = function(b, *arrays, **attrs)
                    if _is_finite(b, made):
                        return made
                except np.linalg.LinAlgError:
                    pass
            return b.on_host(op)(*arrays, **attrs)

        return function

    return register


def _is_finite(b: Any, made: Any) -> bool:
    floats = [x for x in (made if isinstance(made, tuple) else (made,)) if x.dtype.kind == "f"]
    fine = [b.xp.isfinite(x).all() for x in floats]
    return not fine or bool(b.xp.stack(fine).all())


def _transposed(x: Any) -> Any:
    return x.swapaxes(-1, -2)


def _each(b: Any, x: Any, function: Callable[[Any], Any]) -> Any:
    """A function of one matrix, for each matrix of a stack: arrays, or tuples of them, in one array each."""
    if x.ndim == 2:
        return function(x)
    made = [function(matrix) for matrix in x.reshape(-1, *x.shape[-2:])]
    if not isinstance(made[0], tuple):
        return b.xp.stack(made).reshape(*x.shape[:-2], *made[0].shape)
    parts = zip(*made, strict=True)
    return tuple([b.xp.stack(part).reshape(*x.shape[:-2], *part[0].shape) for part in parts])


def _scipy(name: str) -> Any:
    return getattr(import_module("cupyx.scipy.linalg"), name)


# -- decompositions ---------------------------------------------------------------------------------------------------


@_by_library("cholesky")
def _cholesky(b: Any, x: Any, *, strict: bool) -> Any:
    return b.xp.linalg.cholesky(x)


@_by_library("cholesky_info")
def _cholesky_info(b: Any, x: Any) -> Any:
    b.xp.linalg.cholesky(x)
    return b.xp.zeros(x.shape[:-2], np.int32)


@_by_library("eigh")
def _eigh(b: Any, x: Any, *, uplo: str) -> Any:
    values, vectors = b.xp.linalg.eigh(x, uplo)
    return values, b.in_c_order(vectors)


@_by_library("eigvalsh")
def _eigvalsh(b: Any, x: Any, *, uplo: str) -> Any:
    return b.xp.linalg.eigvalsh(x, uplo)


@_by_library("qr")
def _qr(b: Any, x: Any, *, mode: str) -> Any:
    q, r = b.xp.linalg.qr(x, mode)
    return b.in_c_order(q), b.in_c_order(r)


@_by_library("geqrf")
def _geqrf(b: Any, x: Any) -> Any:
    packed, tau = b.xp.linalg.qr(x, "raw")
    return b.in_c_order(_transposed(packed)), tau


@_by_library("svd")
def _svd(b: Any, x: Any, *, full_matrices: bool) -> Any:
    return tuple([b.in_c_order(part) for part in b.xp.linalg.svd(x, full_matrices)])


@_by_library("svdvals")
def _svdvals(b: Any, x: Any) -> Any:
    return b.xp.linalg.svd(x, compute_uv=False)


@_by_library("lu_factor")
def _lu_factor(b: Any, x: Any) -> Any:
    xp = b.xp

    def factored(matrix: Any) -> Any:
        with warnings.catch_warnings():  # of singular matrices: `info` says which they are
            warnings.simplefilter("ignore")
            packed, pivots = _scipy("lu_factor")(matrix, check_finite=False)
        zero = packed.diagonal() == 0
        info = xp.where(zero.any(), zero.argmax() + 1, xp.zeros((), np.int64))
        # CuPy counts rows from 0.
        return b.in_c_order(packed), (pivots + 1).astype(np.int32), info.astype(np.int32)

    return _each(b, x, factored)


# -- systems and inverses ---------------------------------------------------------------------------------------------


@_by_library("solve")
def _solve(b: Any, a: Any, right: Any, *, strict: bool) -> Any:
    return b.in_c_order(b.xp.linalg.solve(a, right))


@_by_library("inv")
def _inv(b: Any, x: Any, *, strict: bool) -> Any:
    return b.in_c_order(b.xp.linalg.inv(x))


@_by_library("solve_triangular")
def _solve_triangular(b: Any, a: Any, right: Any, *, upper: bool, unitriangular: bool) -> Any:
    return b.in_c_order(_scipy("solve_triangular")(a, right, lower=not upper, unit_diagonal=unitriangular))


@_by_library("pinv")
def _pinv(b: Any, x: Any, atol: Any, rtol: Any, *, hermitian: bool) -> Any:
    """Singular values below the larger of `atol` and `rtol` times the largest one count as zero."""
    xp = b.xp
    if hermitian:
        values, left = xp.linalg.eigh(x)
        right = left
    else:
        left, values, rows = xp.linalg.svd(x, full_matrices=False)
        right = _transposed(rows)
    size = xp.abs(values)
    kept = size > xp.maximum(atol, rtol * size.max(axis=-1))[..., None]
    one, zero = xp.ones((), x.dtype), xp.zeros((), x.dtype)
    inverse = xp.where(kept, one / xp.where(kept, values, one), zero)
    return b.matmul(right * inverse[..., None, :], _transposed(left))


# -- functions of a matrix --------------------------------------------------------------------------------------------


@_by_library("det")
def _det(b: Any, x: Any) -> Any:
    return b.xp.linalg.det(x)


@_by_library("slogdet")
def _slogdet(b: Any, x: Any) -> Any:
    sign, log = b.xp.linalg.slogdet(x)
    return sign, log


@_by_library("cofactors")
def _cofactors(b: Any, x: Any) -> Any:
    return b.xp.linalg.det(x)[..., None, None] * _transposed(b.xp.linalg.inv(x))


@_by_library("matrix_exp")
def _matrix_exp(b: Any, x: Any) -> Any:
    """In double precision, because scaling and squaring makes the rounding errors grow."""
    return _each(b, x.astype(np.float64), _scipy("expm")).astype(x.dtype, copy=False)


on_host("it follows the exchanges of rows one by one", "pivot_matrix")
