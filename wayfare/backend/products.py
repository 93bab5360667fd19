"""Many small matrix products at once: each by one thread of BLAS, several of them side by side.

BLAS splits a single product over its threads. For a stack of small ones that is mostly waiting for each other; here the
crew shares out the stack instead, and BLAS is told to keep to the calling thread as long as that lasts. Where NumPy's
BLAS is not OpenBLAS, or there is no native code, NumPy multiplies them.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

from wayfare.backend import crew
from wayfare.backend.llvm_expr import Writer
from wayfare.backend.locks import lock
from wayfare.backend.machine import Machine
from wayfare.backend.routine import Routine, function, pointer, word

Array = np.ndarray[Any, np.dtype[Any]]

# Multiplications in all from which on it pays, and those of one product beyond which BLAS splits it well by itself.
WORTH, LARGE = 500_000, 1 << 26
# Multiplications below which one product is not worth a second thread.
SMALL = 1 << 21
# Shares for each thread: one that comes late takes fewer.
SHARES = 4
# CBLAS's names for how a matrix lies.
ROWS, AS_IS, TURNED = 101, 111, 112
_LETTER = {np.dtype("float32"): "s", np.dtype("float64"): "d"}


# -- BLAS ---------------------------------------------------------------------------------------------------------


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


class Blas:
    """NumPy's own OpenBLAS: its functions, and how many threads it uses."""

    def __init__(self, library: Any, prefix: str, suffix: str) -> None:
        self.whole = "i64" if suffix else "i32"  # its integers
        # Of matrices with matrices, and of a matrix with a vector.
        self.addresses, self.vector_addresses = (
            {dtype: _address(getattr(library, f"{prefix}cblas_{letter}{name}{suffix}"))
             for dtype, letter in _LETTER.items()}
            for name in ("gemm", "gemv")
        )  # fmt: skip
        self._set = getattr(library, f"{prefix}openblas_set_num_threads{suffix}")
        self.set_address = _address(self._set)
        self._get = getattr(library, f"{prefix}openblas_get_num_threads{suffix}")
        self._lock = lock()
        self._users = 0
        # The number of threads to go back to, where native code can read it.
        self.before = ctypes.c_int64(1)

    def keep_to_one(self) -> None:
        """Until `release`, a product is done by the thread that asks for it."""
        with self._lock:
            self._users += 1
            if self._users == 1:
                self.before.value = self._get()
                self._set(1)

    def release(self) -> None:
        """As before, if nobody else asked for it."""
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._set(self.before.value)


@cache
def openblas() -> Blas | None:
    """The OpenBLAS that NumPy uses; None where it uses another."""
    try:
        # Through the module that calls it: its symbols are found there, whatever file they came in.
        library = ctypes.CDLL(importlib.import_module("numpy._core._multiarray_umath").__file__)
    except (ImportError, OSError):
        return None
    for prefix in ("scipy_", ""):
        for suffix in ("64_", ""):
            try:
                return Blas(library, prefix, suffix)
            except AttributeError:
                continue
    return None


@contextmanager
def by_one_thread(multiplications: int) -> Iterator[None]:
    """For products of so many multiplications one after the other: small ones by the calling thread alone.

    BLAS splits a product from about a quarter of a million multiplications on. Such a half takes some microseconds, and
    where other programs run beside this one, waiting for the second half to begin may take a thousand times that.
    """
    blas = openblas() if multiplications < SMALL else None
    if blas is None:
        yield
        return
    blas.keep_to_one()
    try:
        yield
    finally:
        blas.release()


# -- the routine --------------------------------------------------------------------------------------------------


def product_of_block(writer: Writer, dtype: str, whole: str) -> Callable[[str, str, str, str], None]:
    """Writes the call of one product: `(a, b, out, beta)`, out = a @ b + beta · out.

    The first nine words of the block: the function; how both sides lie; rows, columns, inner size; steps from row to
    row of the three matrices.
    """
    gemm = pointer(writer, 0)
    sizes = [word(writer, k) for k in range(1, 9)]
    ways = [writer.let(f"trunc i64 {size} to i32") for size in sizes[:2]]
    if whole == "i32":
        sizes = [writer.let(f"trunc i64 {size} to i32") for size in sizes]
    m, n, k, step_a, step_b, step_out = sizes[2:]

    def call(a: str, b: str, out: str, beta: str) -> None:
        writer.do(
            f"call void {gemm}(i32 {ROWS}, i32 {ways[0]}, i32 {ways[1]}, {whole} {m}, {whole} {n}, {whole} {k}, "
            f"{dtype} 1.0, ptr {a}, {whole} {step_a}, ptr {b}, {whole} {step_b}, {dtype} {beta}, ptr {out}, "
            f"{whole} {step_out})"
        )

    return call


def _write(dtype: str, whole: str) -> Callable[[Machine], str]:
    """Words: those of `product_of_block`; tables of the matrices' addresses; the first product and the one after the
    last."""

    def write(_host: Machine) -> str:
        writer = Writer()
        product = product_of_block(writer, dtype, whole)
        tables = [pointer(writer, number) for number in (9, 10, 11)]
        with writer.loop(word(writer, 12), word(writer, 13), 1) as i:
            places = [writer.let(f"getelementptr ptr, ptr {table}, i64 {i}") for table in tables]
            a, b, out = (writer.let(f"load ptr, ptr {place}") for place in places)
            product(a, b, out, "0.0")
        return function(writer)

    return write


@cache
def _routine(dtype: np.dtype[Any], whole: str) -> Routine:
    kind = "float" if dtype == np.float32 else "double"
    return Routine(f"products_{kind}_{whole}", _write(kind, whole))


# -- products -----------------------------------------------------------------------------------------------------


def _lies(x: Array) -> tuple[int, int] | None:
    """How matrices lie (CBLAS's word for it) and the step from row to row; None where BLAS cannot read them."""
    down, across = x.strides[-2:]
    rows, columns = x.shape[-2:]
    item = x.itemsize
    if across == item and down % item == 0 and down >= item * columns:
        return AS_IS, down // item
    if down == item and across % item == 0 and across >= item * rows:
        return TURNED, across // item
    return None


def _places(x: Array) -> Array:
    """The addresses of the matrices of a stack, in order."""
    place = np.array(x.__array_interface__["data"][0], np.int64)
    for axis, (size, stride) in enumerate(zip(x.shape[:-2], x.strides, strict=False)):
        place = place + (np.arange(size) * stride).reshape((-1,) + (1,) * (x.ndim - 3 - axis))
    return np.ascontiguousarray(np.broadcast_to(place, x.shape[:-2])).reshape(-1)


def stack_product(a: Array, b: Array, out: Array) -> Array:
    """`a @ b` of stacks […, m, k] and […, k, n] of the same leading sizes and one dtype, into `out`, whose rows are
    whole. `out` overlaps neither."""
    if not _shared_out(a, b, out):
        np.matmul(a, b, out=out)
    return out


def _shared_out(a: Array, b: Array, out: Array) -> bool:
    """Do it by the crew, if that is possible and pays."""
    rows, inner = a.shape[-2:]
    columns = b.shape[-1]
    one = rows * inner * columns
    count = out.size // (rows * columns) if rows * columns else 0
    shares = crew.threads()
    if shares < 2 or count < 2 * shares or one * count < WORTH or one > LARGE or out.dtype not in _LETTER:
        return False
    left, right, target = _lies(a), _lies(b), _lies(out)
    blas = openblas()
    if blas is None or left is None or right is None or target is None or target[0] != AS_IS:
        return False
    routine = _routine(out.dtype, blas.whole)
    if not routine.ready:
        return False
    tables = [_places(x) for x in (a, b, out)]
    given = [blas.addresses[out.dtype], left[0], right[0], rows, columns, inner, left[1], right[1], target[1],
             *(table.__array_interface__["data"][0] for table in tables)]  # fmt: skip
    parts = min(SHARES * shares, count)
    cuts = [count * part // parts for part in range(parts + 1)]
    words: list[int] = []
    for part in range(parts):
        words += [*given, cuts[part], cuts[part + 1]]
    blas.keep_to_one()
    try:
        routine.run(words, parts)
    finally:
        blas.release()
    return True
