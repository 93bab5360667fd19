"""Linear algebra of the stand-in: what `cupy.linalg` and `cupyx.scipy.linalg` take, and how they fail.

CuPy looks at the status of a routine only under `cupyx.errstate(linalg="raise")`, which waits for the device; else the
results of a singular matrix are anything. Here that is refused.
"""

from __future__ import annotations

import warnings
from contextlib import contextmanager

import numpy as np
import scipy.linalg

_CHECKED = [False]
# Functions that look at no status, because their result says it.
_UNCHECKED = {"linalg.det", "linalg.slogdet", "scipy.linalg.lu_factor", "scipy.linalg.solve_triangular"}


@contextmanager
def errstate(*, divide=None, over=None, under=None, invalid=None, linalg=None):
    """`cupyx.errstate`, which has only `linalg`."""
    if (divide, over, under, invalid) != (None,) * 4:
        raise NotImplementedError
    before = _CHECKED[0]
    _CHECKED[0] = linalg == "raise" if linalg is not None else before
    try:
        yield
    finally:
        _CHECKED[0] = before


def check(name, arrays):
    """Refuse what cuSOLVER does not take."""
    if any(a.dtype.char not in "fd" for a in arrays):
        raise TypeError(f"{name} takes float32 and float64")
    if name in ("scipy.linalg.lu_factor", "scipy.linalg.expm") and arrays[0].ndim != 2:
        raise ValueError(f"{name} takes one matrix")
    if name == "linalg.solve":
        a, b = arrays
        if b.ndim > 1 and a.shape[:-1] != b.shape[:-1]:
            raise ValueError("a must have (..., M, M) shape and b must have (..., M, K)")
    if name not in _UNCHECKED and not _CHECKED[0]:
        raise AssertionError(f"the status of cupy.{name} is looked at only under cupyx.errstate(linalg='raise')")


def triangular(a, b, trans=0, lower=False, unit_diagonal=False, overwrite_b=False, check_finite=False):
    """By BLAS, which does not look for zeros on the diagonal; CuPy takes stacks, too."""
    assert a.shape[:-2] == b.shape[:-2] and trans == 0
    solver = scipy.linalg.blas.strsm if a.dtype.char == "f" else scipy.linalg.blas.dtrsm
    out = np.empty(b.shape, b.dtype)
    for index in np.ndindex(a.shape[:-2]):
        out[index] = solver(1.0, a[index], b[index], lower=lower, diag=unit_diagonal)
    return out


def lu_factor(a, overwrite_a=False, check_finite=True):
    """SciPy's, with rows counted from 0; a singular matrix is a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        packed, pivots = scipy.linalg.lu_factor(a, check_finite=check_finite)
    if not packed.diagonal().all():
        warnings.warn("Diagonal number is exactly zero. Singular matrix.", RuntimeWarning, stacklevel=2)
    return packed, pivots.astype(np.intc)


OWN = {"scipy.linalg.solve_triangular": triangular, "scipy.linalg.lu_factor": lu_factor,
       "scipy.linalg.expm": scipy.linalg.expm}  # fmt: skip
