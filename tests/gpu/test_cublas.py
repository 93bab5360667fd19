"""Calls of cuBLAS, against a library that computes on the host and notes what it is asked."""

import ctypes
import sys
import threading
import types

import numpy as np
import pytest

from wayfare.codegen.cuda import cublas
from wayfare.codegen.cuda.gemm import gemm_calls
from wayfare.codegen.loop.expr import OF_NUMPY
from wayfare.codegen.runtime.command import BufferView

DTYPES = {0: np.float32, 1: np.float64}


class Error(Exception):
    pass


class Library:
    """What cuBLAS does, for matrices on the host. A handle is a number; `bound` says its stream and workspace."""

    def __init__(self):
        self.bound, self.workspaces, self.gemms, self.status = {}, [], [], 0
        self.cublasGemmStridedBatchedEx = Gemm(self)

    def cublasCreate_v2(self, handle):
        number = 100 + len(self.bound)
        handle._obj.value = number
        self.bound[number] = None
        return 0

    def cublasSetStream_v2(self, handle, stream):
        self.bound[handle.value] = (stream.value or 0, None)  # the workspace is forgotten
        return 0

    def cublasSetWorkspace_v2(self, handle, workspace, size):
        assert size.value == 32 << 20
        self.bound[handle.value] = (self.bound[handle.value][0], workspace.value)
        return 0


class Gemm:
    def __init__(self, library):
        self.library, self.argtypes = library, None

    def __call__(self, handle, ta, tb, m, n, k, one, a, kind, lda, step_a, b, _b, ldb, step_b, factor, c, _c, ldc,
                 step_c, batch, compute, algorithm):  # fmt: skip
        assert len(self.argtypes) == 23 and compute in (68, 70, 77) and algorithm == -1
        dtype = np.dtype(DTYPES[kind])

        def matrices(address, rows, columns, leading, step, transposed):
            rows, columns = (columns, rows) if transposed else (rows, columns)
            last = step * (batch - 1) + leading * (columns - 1) + rows
            memory = np.frombuffer((ctypes.c_char * (last * dtype.itemsize)).from_address(address), dtype)
            found = np.lib.stride_tricks.as_strided(
                memory, (batch, rows, columns), tuple(n * dtype.itemsize for n in (step, 1, leading))
            )
            return found.swapaxes(1, 2) if transposed else found

        def number(address):
            return np.frombuffer((ctypes.c_char * dtype.itemsize).from_address(address), dtype)[0]

        x, y, z = (matrices(a, m, k, lda, step_a, ta), matrices(b, k, n, ldb, step_b, tb),
                   matrices(c, m, n, ldc, step_c, False))  # fmt: skip
        z[...] = number(one) * (x @ y) + number(factor) * z
        self.library.gemms.append((handle, *self.library.bound[handle]))
        return self.library.status


@pytest.fixture
def cupy(monkeypatch):
    """(cuBLAS, its library, a setter of CuPy's current stream)."""
    library, streams = Library(), threading.local()
    names = []
    monkeypatch.setattr(cublas.ctypes, "CDLL", lambda name: names.append(name) or library)
    module = types.ModuleType("cupy_backends.cuda.libs.cublas")
    module.CUBLASError = Error
    monkeypatch.setitem(sys.modules, module.__name__, module)
    made = []

    def memory(size):
        made.append(size)
        return types.SimpleNamespace(ptr=1000 * len(made))

    fake = types.SimpleNamespace(cuda=types.SimpleNamespace(
        runtime=types.SimpleNamespace(runtimeGetVersion=lambda: 13020), Memory=memory,
        get_current_stream=lambda: types.SimpleNamespace(ptr=getattr(streams, "ptr", 0)),
    ))  # fmt: skip
    found = cublas.Cublas(fake)
    assert names == ["libcublas.so.13"]
    return found, library, lambda ptr: setattr(streams, "ptr", ptr)


def multiply(gemm, a, b, out, add=False):
    arrays = (a, b, out)
    views = [BufferView(k, 0, x.shape, x.strides, x.dtype) for k, x in enumerate(arrays)]
    for call, *places in gemm_calls(*views, add):
        gemm(call, *[arrays[k].__array_interface__["data"][0] + offset for k, offset in places])


SHAPES = [((3, 4), (4, 5)), ((6, 3, 4), (6, 4, 5)), ((2, 3, 3, 4), (3, 4, 5)), ((1, 7), (7, 1))]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_products(cupy, dtype, add, shapes):
    assert OF_NUMPY[np.dtype(dtype)] in ("f32", "f64")
    random = np.random.default_rng(0)
    a, b = (random.standard_normal(shape).astype(dtype) for shape in shapes)
    for x in (a, np.ascontiguousarray(a.swapaxes(-1, -2)).swapaxes(-1, -2)):
        for y in (b, np.ascontiguousarray(b.swapaxes(-1, -2)).swapaxes(-1, -2)):
            out = np.ones(np.matmul(a, b).shape, dtype)
            multiply(cupy[0], x, y, out, add)
            np.testing.assert_allclose(out, x @ y + add, rtol=1e-5 if dtype is np.float32 else 1e-12)


def test_each_stream_has_a_handle_and_a_workspace(cupy):
    gemm, library, switch = cupy
    a = np.eye(2, dtype=np.float32)
    for stream in (0, 7, 0, 7):
        switch(stream)
        multiply(gemm, a, a, np.empty_like(a))
    assert library.gemms == [(100, 0, 1000), (101, 7, 2000), (100, 0, 1000), (101, 7, 2000)]


def test_a_capture_has_its_own_handle_and_the_workspace_of_the_stream_that_will_replay_it(cupy):
    gemm, library, switch = cupy
    a = np.eye(2, dtype=np.float32)
    elsewhere = threading.Thread(target=multiply, args=(gemm, a, a, np.empty_like(a)))
    for capture in (50, 60):
        with gemm.captured(capture, 0):
            switch(capture)
            multiply(gemm, a, a, np.empty_like(a))
            if capture == 60:  # another thread, which captures nothing
                elsewhere.start()
                elsewhere.join()
        switch(0)
        multiply(gemm, a, a, np.empty_like(a))
    captured = [call for call in library.gemms if call[1] in (50, 60)]
    assert [call[1] for call in captured] == [50, 60] and {call[2] for call in captured} == {1000}
    assert [call for call in library.gemms if call not in captured] == [(library.gemms[1][0], 0, 1000)] * 3
    assert captured[0][0] != library.gemms[1][0]


def test_a_capture_that_fails_leaves_the_streams_as_they_were(cupy):
    gemm, library, switch = cupy
    a = np.eye(2, dtype=np.float32)
    with pytest.raises(ZeroDivisionError), gemm.captured(50, 0):
        raise ZeroDivisionError
    switch(0)
    multiply(gemm, a, a, np.empty_like(a))
    assert library.gemms[-1][1] == 0


def test_a_status_is_an_error(cupy):
    gemm, library, _ = cupy
    library.status = 13
    with pytest.raises(Error, match="13"):
        multiply(gemm, np.eye(2), np.eye(2), np.empty((2, 2)))
