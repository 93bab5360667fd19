"""OpenBLAS, as NumPy and SciPy bring it: its functions by address, and how many threads it uses.

Its threads and ours would fight for the processors, and when they wait for each other they yield, which beside a busy
program costs a time slice each: a product of microseconds took a thousand times as long. So while one of our ops calls
it, BLAS keeps to the calling thread, and the crew shares out what is worth several (`gemm.py`). What a user
computes with NumPy besides is not touched.
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
# Rows and columns from which on a decomposition is worth several threads of BLAS.
_LARGE_MATRIX = 512


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


class Threads:
    """The threads of one OpenBLAS. `with` it, BLAS keeps to the calling thread."""

    def __init__(self, library: Any, prefix: str, suffix: str) -> None:
        # Through the interpreter's lock: a call that only sets a number would take longer without it than with it.
        held = ctypes.PyDLL(None, handle=library._handle)
        self._set = getattr(held, f"{prefix}openblas_set_num_threads{suffix}")
        self._get = getattr(held, f"{prefix}openblas_get_num_threads{suffix}")
        self._lock = lock()
        self._users = 0
        self._before = 1

    def number(self) -> int:
        """How many it uses now."""
        return int(self._get())

    def keep_to_one(self) -> None:
        """Until `release`, a product is done by the thread that asks for it."""
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._before = self._get()
                self._set(1)

    def release(self) -> None:
        """As before, if nobody else asked for it."""
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
        self.int_type = "i64" if suffix else "i32"  # its integers
        # Of matrices with matrices, and of a matrix with a vector.
        self.addresses, self.vector_addresses = (
            {dtype: _address(getattr(library, f"{prefix}cblas_{letter}{name}{suffix}"))
             for dtype, letter in LETTERS.items()}
            for name in ("gemm", "gemv")
        )  # fmt: skip


def _found(module: str, kind: type[Any]) -> Any | None:
    try:
        # Through the module that calls it: its symbols are found there, whatever file they came in.
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
    """Where there is no OpenBLAS to tell."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass


_NOTHING = _Nothing()


def one_thread() -> Any:
    """`with one_thread():` — NumPy's products are done by the calling thread."""
    return openblas() or _NOTHING


def threads_for(rows: int, columns: int, scipy: bool = False) -> Any:
    """`with threads_for(*x.shape[-2:]):` — a decomposition of such a matrix is done by the calling thread, unless it is
    large and several threads are allowed: no pool of ours can share out the inside of LAPACK."""
    found = _of_scipy() if scipy else openblas()
    if found is None or (min(rows, columns) >= _LARGE_MATRIX and settings.num_threads >= found.number()):
        return _NOTHING
    return found
