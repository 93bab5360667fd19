"""BLAS keeps to one thread while our ops call it; the thread pool splits large gemms; one setting rules both."""

import threading

import numpy as np
import pytest

import wayfare as wf
from wayfare.codegen.routines import direct_gemm
from wayfare.codegen.routines.routine import Routine
from wayfare.codegen.runtime import blas, gemm, kernel
from wayfare.codegen.runtime.gemm_split import parts_of, worth_splitting
from wayfare.core.config import settings
from wayfare.core.counters import counted
from wayfare.ops.linalg import _matrix

pytestmark = pytest.mark.skipif(not kernel.available() or blas.openblas() is None, reason="no OpenBLAS or no llvmlite")


def some(*shape, dtype=np.float32):
    return np.random.default_rng(0).normal(size=shape).astype(dtype)


@pytest.fixture
def no_direct_gemm(monkeypatch):
    """As on a processor without registers for direct gemms."""
    monkeypatch.setattr(direct_gemm, "_LEAST_LANES", 1 << 30)
    gemm._command.cache_clear()
    yield
    gemm._command.cache_clear()


@pytest.fixture
def seen(no_direct_gemm, monkeypatch):
    """How many threads BLAS was allowed at each matmul and decomposition, with two of its own and two of ours."""
    found = []
    own = blas.openblas()
    before = own.number()
    own._set(2)
    monkeypatch.setattr(settings, "num_threads", 2)
    of_numpy = {name: getattr(np, name) for name in ("matmul", "dot")}
    for name, function in of_numpy.items():
        monkeypatch.setattr(np, name, lambda *a, f=function, **o: (found.append(own.number()), f(*a, **o))[1])
    run = Routine.run

    def look(routine, *given):
        if any(word in routine.name for word in ("matmul", "gemm", "gemv")):
            found.append(own.number())
        run(routine, *given)

    monkeypatch.setattr(Routine, "run", look)
    yield found
    assert own.number() == 2 and own._users == 0
    own._set(before)


WORKS = {
    "large": lambda: wf.ones(300, 200) @ wf.ones(200, 300),
    "middling": lambda: wf.ones(90, 90) @ wf.ones(90, 90),
    "matrix and vector": lambda: wf.ones(300, 200) @ wf.ones(200),
    "stack": lambda: wf.ones(20, 40, 60) @ wf.ones(20, 60, 40),
    "few large ones": lambda: wf.ones(2, 300, 200) @ wf.ones(2, 200, 300),
    "broadcast": lambda: wf.ones(3, 1, 90, 90) @ wf.ones(2, 90, 90),
    "layer": lambda: wf.nn.Linear(300, 400)(wf.ones(200, 300)),
    "gradient": lambda: wf.nn.Linear(300, 400)(wf.ones(200, 300)).sum().backward(),
    "sequences": lambda: wf.nn.LSTM(100, 200)(wf.ones(20, 30, 100)),
    "resize": lambda: wf.nn.functional.interpolate(wf.ones(2, 3, 90, requires_grad=True), 200).sum().backward(),
    "dilated": lambda: wf.nn.Conv2d(20, 30, 3, dilation=2, stride=2, groups=2)(wf.ones(4, 20, 50, 50)).sum().backward(),
}  # fmt: skip


@pytest.mark.parametrize("name", WORKS)
def test_blas_keeps_to_one_thread_where_it_would_use_more(name, seen):
    WORKS[name]()
    assert set(seen) <= {1}


def test_a_compiled_and_a_mapped_function_keep_it_to_one(seen, monkeypatch):
    model = wf.nn.Sequential(wf.nn.Linear(300, 400), wf.nn.ReLU(), wf.nn.Linear(400, 300))
    own = blas.openblas()
    told = []
    real = own._set
    monkeypatch.setattr(own, "_set", lambda number: (told.append(number), real(number)))
    step = wf.compile(lambda x: model(x).sum())
    for _ in range(12):
        told.clear()
        step(wf.ones(200, 300))
    assert told == [1, 2]  # once for the whole list
    wf.map(lambda x: model(x).sum(), [wf.ones(40, 300) for _ in range(5)])
    assert set(seen) <= {1}


@pytest.mark.parametrize("size, threads, allowed", [(40, 2, 1), (600, 2, 2), (600, 1, 1)])
def test_decompositions(size, threads, allowed, seen, monkeypatch):
    monkeypatch.setattr(settings, "num_threads", threads)
    numbers, own = {}, blas.openblas()
    for name in ("inv", "svd", "cholesky"):
        real = getattr(np.linalg, name)
        monkeypatch.setattr(
            np.linalg, name,
            lambda *a, name=name, real=real, **o: (numbers.setdefault(name, own.number()), real(*a, **o))[1],
        )  # fmt: skip
    monkeypatch.setattr(_matrix.lapack, "__dict__", {})
    x = wf.eye(size) * 2
    wf.linalg.inv(x), wf.linalg.svd(x), wf.linalg.cholesky(x)
    assert numbers == {"inv": allowed, "svd": allowed, "cholesky": allowed}


def test_scipy_has_a_blas_of_its_own(monkeypatch):
    own = blas._of_scipy()
    if own is None:
        pytest.skip("SciPy has no OpenBLAS here")
    before = own.number()
    told, real = [], own._set
    monkeypatch.setattr(own, "_set", lambda number: (told.append(number), real(number)))
    wf.linalg.lu_factor(wf.eye(4) * 3)
    assert told == [1, before] and own.number() == before


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rows, inner, columns", [(300, 64, 300), (1000, 300, 8), (8, 300, 1000), (33, 999, 257),
                                                  (129, 2000, 65), (2000, 1100, 1)])  # fmt: skip
@pytest.mark.parametrize("threads", [2, 3, 7])
@pytest.mark.parametrize("transposed", ["", "a", "b", "ab"])
@pytest.mark.parametrize("direct", [True, False])
def test_large_matmuls_are_right_however_they_are_split(
    rows, inner, columns, threads, transposed, direct, dtype, request, monkeypatch
):
    if not direct:
        request.getfixturevalue("no_direct_gemm")
    monkeypatch.setattr(settings, "num_threads", threads)
    a = some(inner, rows, dtype=dtype).T if "a" in transposed else some(rows, inner, dtype=dtype)
    b = some(columns, inner, dtype=dtype).T if "b" in transposed else some(inner, columns, dtype=dtype)
    wanted = np.matmul(a.astype(np.float64), b.astype(np.float64))
    out = np.full((rows + 1, columns), 7, dtype)
    for made in (gemm.matmul(a, b), gemm.matmul(a, b, out[:rows])):
        np.testing.assert_allclose(made, wanted, 1e-3, 1e-3)
    assert (out[rows] == 7).all()


@pytest.mark.parametrize("threads", [2, 3, 4, 8, 16, 64])
def test_parts_cover_the_result_once_and_are_about_equal(threads):
    thin = [(10_000, 64, 64), (64, 10_000, 64), (64, 64, 10_000), (50, 9000, 7)]
    for rows, inner, columns in [(512, 512, 512), (2048, 2048, 2048), *thin]:
        if not worth_splitting(rows, inner, columns, threads):
            continue
        parts = parts_of(rows, inner, columns, threads)
        covered = np.zeros((rows, columns), int)
        for down, across in parts:
            covered[down, across] += 1
        assert (covered == 1).all()
        assert len(parts) <= 4 * threads
        sizes = [(d.stop - d.start) * (a.stop - a.start) for d, a in parts]
        if rows * columns >= 64 * threads * 512:
            assert len(parts) >= threads and max(sizes) <= 2.5 * rows * columns / len(parts)


def test_one_thread_splits_nothing(seen, monkeypatch):
    monkeypatch.setattr(settings, "num_threads", 1)
    with counted() as counts:
        wf.ones(300, 200) @ wf.ones(200, 300)
    assert seen == [1] and counts.kernels_split == 0


def test_batches_and_layouts_of_direct_gemms(monkeypatch):
    """A batch that meets one matrix is one gemm; a result may be transposed or have steps between its rows."""
    monkeypatch.setattr(direct_gemm, "_LEAST_LANES", 0)
    gemm._command.cache_clear()
    a, b = some(6, 50, 40), some(40, 70)
    with counted() as counts:
        np.testing.assert_allclose(gemm.matmul(a, b), np.matmul(a, b), 1e-4, 1e-4)
        np.testing.assert_allclose(gemm.matmul(a[::2, ::-1], b), np.matmul(a[::2, ::-1], b), 1e-4, 1e-4)
        out = np.zeros((200, 130), np.float32).T
        wide = np.zeros((130, 400), np.float32)[:, ::2]
        x, y = some(130, 60), some(60, 200)
        for target in (out, out[:, ::-1], wide):
            np.testing.assert_allclose(gemm.matmul(x, y, target), np.matmul(x, y), 1e-4, 1e-4)
            np.testing.assert_allclose(target, np.matmul(x, y), 1e-4, 1e-4)
    assert counts.kernels_run == 2  # small batches, and results that are neither row- nor column-major, are for NumPy
    gemm._command.cache_clear()


def test_threads_side_by_side():
    a, b = some(300, 200), some(200, 300)
    wanted, wrong = np.matmul(a, b), []

    def work():
        for _ in range(10):
            if not np.allclose(gemm.matmul(a, b), wanted, 1e-3, 1e-3):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and blas.openblas()._users == 0
