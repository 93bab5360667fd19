"""How many threads share the work of a large op."""

from __future__ import annotations

from wayfare.core.config import settings
from wayfare.core.errors import ArgumentTypeError, OperationError

__all__ = ["get_num_threads", "set_num_threads"]


def set_num_threads(n: int) -> None:
    """Let at most `n` threads share the work of a large op; small ones never leave the calling thread.

    That rules matrix products too: BLAS keeps to the calling thread, and large products are cut into parts. (Where
    NumPy's BLAS is not OpenBLAS it has its own setting, such as MKL_NUM_THREADS.) What you compute with NumPy yourself
    is not touched.
    """
    if not isinstance(n, int) or isinstance(n, bool):
        raise ArgumentTypeError(f"set_num_threads: expected an int, not {type(n).__name__}")
    if n < 1:
        raise OperationError(f"set_num_threads: {n} threads cannot do any work", fix="Give a number of 1 or more.")
    settings.num_threads = n


def get_num_threads() -> int:
    """How many threads at most share the work of a large op: the processors this process may use, unless set otherwise.

    The environment variable WAYFARE_NUM_THREADS sets it from outside.
    """
    return settings.num_threads
