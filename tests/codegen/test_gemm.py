"""Batched matmul: every layout, both dtypes, and BLAS left as it was found."""

import threading

import numpy as np
import pytest

import wayfare as wf
from wayfare.codegen.routines import direct_gemm
from wayfare.codegen.runtime import gemm, kernel
from wayfare.codegen.runtime.blas import openblas
from wayfare.codegen.runtime.gemm import _native, batched_matmul

needs_native = pytest.mark.skipif(not kernel.available() or openblas() is None, reason="no OpenBLAS or no llvmlite")
RNG = np.random.default_rng(1)


@pytest.fixture(autouse=True)
def two_threads():
    before = wf.get_num_threads()
    wf.set_num_threads(2)
    yield
    wf.set_num_threads(before)


@pytest.fixture
def no_direct_gemm(monkeypatch):
    """As on a processor without registers for direct gemms."""
    if kernel.available():
        monkeypatch.setattr(direct_gemm, "_LEAST_LANES", 1 << 30)
    gemm._command.cache_clear()
    yield
    gemm._command.cache_clear()


def some(*shape, dtype=np.float32):
    return RNG.normal(size=shape).astype(dtype)


LAYOUTS = {
    "plain": lambda a: a,
    "transposed": lambda a: np.ascontiguousarray(a.swapaxes(-1, -2)).swapaxes(-1, -2),
    "heads": lambda a: np.ascontiguousarray(a.swapaxes(1, 2)).swapaxes(1, 2),
    "part": lambda a: np.concatenate([a, a], -1)[..., : a.shape[-1]],
    "shared": lambda a: np.broadcast_to(a[:1], a.shape),
}


@needs_native
@pytest.mark.parametrize("left", LAYOUTS)
@pytest.mark.parametrize("right", LAYOUTS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("direct", [True, False])
def test_every_layout(left, right, dtype, direct, request):
    if not direct:
        request.getfixturevalue("no_direct_gemm")
    a, b = LAYOUTS[left](some(3, 4, 40, 48, dtype=dtype)), LAYOUTS[right](some(3, 4, 48, 36, dtype=dtype))
    for target in ("plain", "heads"):
        out = np.empty_like(LAYOUTS[target](np.zeros((3, 4, 40, 36), dtype)))
        assert _native(a, b, out, out.shape) is out
        np.testing.assert_allclose(out, np.matmul(a, b), 1e-4 if dtype == np.float32 else 1e-12, 1e-5)


def test_what_does_not_suit_is_left_to_numpy(no_direct_gemm, monkeypatch):
    scattered = some(3, 4, 80, 96)[..., ::2, ::2]
    cases = [(some(3, 4, 5, 6), some(3, 4, 6, 5)), (scattered, some(3, 4, 48, 40)), (some(1, 1, 90, 90),) * 2,
             (some(0, 4, 90, 90),) * 2, (some(3, 4, 90, 0), some(3, 4, 0, 90))]  # fmt: skip
    for a, b in cases:
        out = np.full((*a.shape[:-1], b.shape[-1]), np.nan, np.float32)
        assert _native(a, b, out, out.shape) is None
        np.testing.assert_allclose(batched_matmul(a, b, out), np.matmul(a, b), 1e-4, 1e-4)
    a, b = some(3, 4, 40, 48), some(3, 4, 48, 36)
    monkeypatch.setattr(gemm, "openblas", lambda: None)
    gemm._command.cache_clear()
    np.testing.assert_allclose(batched_matmul(a, b, np.empty((3, 4, 40, 36), np.float32)), np.matmul(a, b))


@needs_native
def test_blas_has_its_threads_again():
    blas = openblas()
    before = blas._get()
    a, b = some(3, 4, 40, 48), some(3, 4, 48, 36)
    wanted = np.matmul(a, b)
    wrong = []

    def work():
        for _ in range(20):
            out = batched_matmul(a, b, np.empty((3, 4, 40, 36), np.float32))
            if not np.allclose(out, wanted, 1e-4, 1e-5):
                wrong.append(out)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and blas._get() == before and blas._users == 0
