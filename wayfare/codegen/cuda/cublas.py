"""Calls of cuBLAS, by ctypes. CuPy loads the library, but its own calls refuse to be captured into a CUDA graph.

Every stream has a handle and a workspace of its own. A capture has another handle, with the workspace of the stream in
which the graph will be replayed: what runs in one stream runs one after the other, so the two never use it at once.
"""

from __future__ import annotations

import ctypes
import importlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from wayfare.codegen.cuda.gemm import Gemm
from wayfare.core.config import settings

# What cuBLAS calls the dtypes (cudaDataType_t), and what it computes in (cublasComputeType_t).
_TYPES = {"f32": 0, "f64": 1, "f16": 2, "bf16": 14}
_IN_FLOAT, _IN_DOUBLE, _IN_TF32 = 68, 70, 77
_DEFAULT_ALGORITHM = -1
# What NVIDIA recommends for the largest devices. cuBLAS would allocate during a capture if it were given none.
_WORKSPACE = 32 << 20

_int, _long, _address = ctypes.c_int, ctypes.c_longlong, ctypes.c_void_p
_MATRIX: list[Any] = [_address, _int, _int, _long]
_GEMM = [_address, *[_int] * 5, _address, *_MATRIX, *_MATRIX, _address, *_MATRIX, *[_int] * 3]


class _Captured(threading.local):
    """The handle that products of this thread go to while a capture runs."""

    handle: int | None = None


class Cublas:
    """Matrix products on one device, in CuPy's current stream."""

    def __init__(self, cupy: Any) -> None:
        self._errors: Any = importlib.import_module("cupy_backends.cuda.libs.cublas")  # this loads the library
        library = ctypes.CDLL(f"libcublas.so.{cupy.cuda.runtime.runtimeGetVersion() // 1000}")
        self._library, self._cupy, self._stream = library, cupy, cupy.cuda.get_current_stream
        self._gemm = library.cublasGemmStridedBatchedEx
        self._gemm.argtypes = _GEMM
        # Factors lie on the host: 1, and 0 or 1 for what is there already.
        self._factors = {kind: np.array([0, 1], kind) for kind in (np.float32, np.float64)}
        self._handles: dict[int, int] = {}
        self._workspaces: dict[int, Any] = {}
        self._capturing: int | None = None
        self._captured = _Captured()
        self._lock = threading.RLock()

    def __call__(self, g: Gemm, a: int, b: int, out: int) -> None:
        """Multiply matrices at these addresses."""
        kind = _TYPES[g.dtype]
        factors = self._factors[np.float64 if g.dtype == "f64" else np.float32]
        one, zero = factors.ctypes.data + factors.itemsize, factors.ctypes.data
        short = settings.allow_tf32 and g.dtype == "f32"
        compute = _IN_DOUBLE if g.dtype == "f64" else _IN_TF32 if short else _IN_FLOAT
        handle = self._captured.handle
        if handle is None:
            stream = self._stream().ptr
            handle = self._handles.get(stream) or self._handle_of(stream)
        self._check(self._gemm(
            handle, int(g.transposed_b), int(g.transposed_a), g.columns, g.rows, g.inner, one,
            b, kind, g.leading[1], g.steps[1], a, kind, g.leading[0], g.steps[0], one if g.add else zero,
            out, _TYPES[g.out], g.leading[2], g.steps[2], g.batch, compute, _DEFAULT_ALGORITHM,
        ))  # fmt: skip

    @contextmanager
    def captured(self, stream: int, target: int) -> Iterator[None]:
        """Inside, products of this thread go to the stream `stream`, whose capture will be replayed in `target`."""
        with self._lock:
            self._handle_of(target)  # its workspace
            if self._capturing is None:
                self._capturing = self._new_handle()
            self._bind(self._capturing, stream, target)
            self._captured.handle = self._capturing
            try:
                yield
            finally:
                self._captured.handle = None

    def _handle_of(self, stream: int) -> int:
        with self._lock:
            found = self._handles.get(stream)
            if found is None:
                # Not from CuPy's pool: it lives as long as the process, and is nobody's tensor.
                self._workspaces[stream] = self._cupy.cuda.Memory(_WORKSPACE)
                found = self._new_handle()
                self._bind(found, stream, stream)
                self._handles[stream] = found
            return found

    def _new_handle(self) -> int:
        handle = _address()
        self._check(self._library.cublasCreate_v2(ctypes.byref(handle)))
        return handle.value or 0

    def _bind(self, handle: int, stream: int, target: int) -> None:
        """A stream for a handle, then a workspace: cuBLAS forgets the workspace with each new stream."""
        library = self._library
        self._check(library.cublasSetStream_v2(_address(handle), _address(stream)))
        workspace = _address(self._workspaces[target].ptr)
        self._check(library.cublasSetWorkspace_v2(_address(handle), workspace, ctypes.c_size_t(_WORKSPACE)))

    def _check(self, status: int) -> None:
        if status:
            raise self._errors.CUBLASError(status)
