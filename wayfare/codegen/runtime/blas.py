"""The OpenBLAS of NumPy and SciPy: addresses of its functions, and control of its threads.

Its threads and ours would compete for the processors. OpenBLAS threads wait for each other by yielding; next to a busy
program each yield costs a time slice, so that a gemm of microseconds took a thousand times as long. So BLAS runs on the
calling thread while one of our ops calls it, and our thread pool splits large gemms (`gemm.py`). What users compute
with NumPy is not affected.
"""

from __future__ import annotations

import ctypes
import importlib
from functools import cache
from typing import Any

import numpy as np

from wayfare.core.config import settings
from wayfare.core.locks import lock

LETTERS = {np.dtype("float32"): "s", np.dtype("float64"): "d"}
# Rows and columns from which on a decomposition may use several BLAS threads.
_LARGE_MATRIX = 512


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


class Threads:
    """The thread setting of one OpenBLAS. Inside `with threads:`, BLAS runs on the calling thread."""

    def __init__(self, library: Any, prefix: str, suffix: str) -> None:
        # PyDLL keeps the GIL: releasing it would cost more than these calls.
        held = ctypes.PyDLL(None, handle=library._handle)
        self._set = getattr(held, f"{prefix}openblas_set_num_threads{suffix}")
        self._get = getattr(held, f"{prefix}openblas_get_num_threads{suffix}")
        self._lock = lock()
        self._users = 0
        self._before = 1

    def number(self) -> int:
        """The current number of threads."""
        return int(self._get())

    def keep_to_one(self) -> None:
        """Use one thread until `release`."""
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._before = self._get()
                self._set(1)

    def release(self) -> None:
        """Restore the number of threads, unless another caller still needs one."""
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._set(self._before)

    __enter__ = keep_to_one

    def __exit__(self, *error: object) -> None:
        self.release()


class Blas(Threads):
    """NumPy's own OpenBLAS."""

    def __init__(self, library: Any, prefix: str, suffix: str) -> None:
        super().__init__(library, prefix, suffix)
        self.int_type = "i64" if suffix else "i32"  # the type of its integer arguments
        # gemm and gemv by dtype.
        self.addresses, self.vector_addresses = (
            {dtype: _address(getattr(library, f"{prefix}cblas_{letter}{name}{suffix}"))
             for dtype, letter in LETTERS.items()}
            for name in ("gemm", "gemv")
        )  # fmt: skip


def _found(module: str, kind: type[Any]) -> Any | None:
    try:
        # Opened through the extension module that links it, so the library's file name does not matter.
        library = ctypes.CDLL(importlib.import_module(module).__file__)
    except (ImportError, OSError):
        return None
    for prefix in ("scipy_", ""):
        for suffix in ("64_", ""):
            try:
                return kind(library, prefix, suffix)
            except AttributeError:
                continue
    return None


@cache
def openblas() -> Blas | None:
    """The OpenBLAS that NumPy uses; None where it uses another."""
    return _found("numpy._core._multiarray_umath", Blas)


@cache
def _of_scipy() -> Threads | None:
    return _found("scipy.linalg._fblas", Threads)


class _Nothing:
    """A no-op, where there is no OpenBLAS."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass


_NOTHING = _Nothing()


def one_thread() -> Any:
    """`with one_thread():` — NumPy's matmul runs on the calling thread."""
    return openblas() or _NOTHING


def threads_for(rows: int, columns: int, scipy: bool = False) -> Any:
    """`with threads_for(*x.shape[-2:]):` — LAPACK runs on the calling thread, unless the matrix is large and several
    threads are allowed: our thread pool cannot split the inside of LAPACK."""
    found = _of_scipy() if scipy else openblas()
    if found is None or (min(rows, columns) >= _LARGE_MATRIX and settings.num_threads >= found.number()):
        return _NOTHING
    return found
