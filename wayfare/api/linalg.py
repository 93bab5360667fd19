"""`wf.linalg`: linear algebra under the names and signatures of `torch.linalg`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from wayfare.api.autocast import follows_autocast
from wayfare.api.functions import linalg as _linalg
from wayfare.api.functions._along import check_tensor as _check_tensor
from wayfare.api.functions._along import check_tensors as _check_tensors
from wayfare.api.functions._linalg import total as _total
from wayfare.api.functions._public import promoted as _promoted
from wayfare.api.functions.decompose import (
    cholesky,
    cholesky_ex,
    eigh,
    eigvalsh,
    householder_product,
    lu,
    lu_factor,
    lu_factor_ex,
    lu_solve,
    qr,
    svd,
    svdvals,
)
from wayfare.api.functions.linalg import det, matrix_exp, slogdet
from wayfare.api.functions.matmul import matmul
from wayfare.api.functions.matmul import multiply_chain as _multiply_chain
from wayfare.api.functions.matrix_norms import cond, matrix_norm, matrix_rank, vector_norm
from wayfare.api.functions.matrix_norms import linalg_norm as norm
from wayfare.api.functions.shape import diagonal as _diagonal
from wayfare.api.functions.systems import (
    inv,
    inv_ex,
    lstsq,
    matrix_power,
    pinv,
    solve,
    solve_ex,
    solve_triangular,
    tensorinv,
    tensorsolve,
)
from wayfare.core.autocast import LOWER
from wayfare.core.errors import LinAlgError, ShapeError
from wayfare.core.missing_names import no_such_name as _no_such_name
from wayfare.core.op import REGISTRY as _REGISTRY
from wayfare.core.spec import normal_dim as _normal_dim
from wayfare.core.tensor import Tensor

__all__ = [
    "LinAlgError", "cholesky", "cholesky_ex", "cond", "cross", "det", "diagonal", "eigh", "eigvalsh",
    "householder_product", "inv", "inv_ex", "lstsq", "lu", "lu_factor", "lu_factor_ex", "lu_solve", "matmul",
    "matrix_exp", "matrix_norm", "matrix_power", "matrix_rank", "multi_dot", "norm", "pinv", "qr", "slogdet",
    "solve", "solve_ex", "solve_triangular", "svd", "svdvals", "tensorinv", "tensorsolve", "vander", "vecdot",
    "vector_norm",
]  # fmt: skip


def cross(input: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
    """The cross product of vectors of 3 elements along `dim`."""
    _check_tensors("cross", input, other)
    dim = _normal_dim("cross", dim, input.ndim)
    if input.ndim != other.ndim or input.ndim == 0 or not (input.shape[dim] == other.shape[dim] == 3):
        raise ShapeError(f"cross: needs equal numbers of dimensions and size 3 at dim {dim}, not {input.spec} and "
                         f"{other.spec}")  # fmt: skip
    return _linalg.cross_product("cross", input, other, dim)


def diagonal(A: Tensor, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """The diagonals of matrices, as a view."""
    return _diagonal(A, offset, dim1, dim2)


def multi_dot(tensors: Sequence[Tensor]) -> Tensor:
    """The product of two or more matrices (the first and last may be vectors) in the cheapest order."""
    return _multiply_chain("multi_dot", tensors)


def vander(x: Tensor, N: int | None = None) -> Tensor:
    """The powers 1, x, x², … of vectors, along a new last dimension."""
    _check_tensor("vander", x)
    count = x.shape[-1] if x.ndim else 1
    return _linalg.powers(x, count if N is None else N)


@follows_autocast(LOWER)
def vecdot(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    """The dot products of vectors along `dim`; the other dimensions broadcast."""
    return _total(_promoted(_REGISTRY["mul"], (x, y)), dim)


def __getattr__(name: str) -> NoReturn:
    instead = {"eig": "eigh", "eigvals": "eigvalsh"}.get(name)
    if instead is not None:
        raise AttributeError(
            f"wf.linalg.{name}: the eigenvalues of a general matrix are complex numbers, which Wayfare does not have. "
            f"For a symmetric matrix use wf.linalg.{instead}."
        )
    raise _no_such_name("wayfare.linalg", name)
