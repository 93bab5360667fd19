"""All kinds of kernels on arrays with walls around them: `python -m tests.gpu.bounds` must come to its end.

An array ends where a page ends, or less than 16 bytes before: a kernel that reads or writes too much ends the process,
or damages a pattern behind the array. What a kernel has not written shows as a pattern.
"""

import gc
import math

import numpy as np

from tests.gpu.cases import Case, run_cases
from tests.gpu.emulation.host import HostLauncher
from tests.gpu.test_cuda_fuzz import elementwise_cases, row_cases
from tests.gpu.test_cuda_kernel import FORMS, layer_norm, softmax, summed
from tests.gpu.test_cuda_windows import CASES, POOLS
from tests.guarded_memory import GuardedMemory, shows_pattern
from wayfare.codegen.cuda.kernels import attention, conv, pooling, random, rows, segments


def filled(launcher, *shape, dtype=np.float32):
    out = launcher.empty(shape, np.dtype(dtype))
    out[...] = np.random.default_rng(0).standard_normal(shape) * 4
    return out


def loops():
    cases = []
    for size in (1, 2, 3, 4, 5, 15, 16, 17, 1023):
        for dtype in ("u8", "i16", "f32", "f64"):
            x = np.zeros(size, {"u8": np.uint8, "i16": np.int16, "f32": np.float32, "f64": np.float64}[dtype])
            cases.append(Case(summed(dtype), [x, x.copy()]))
    for shape, axis, *_ in FORMS:
        axes = (axis,) if isinstance(axis, int) else axis
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        cases += [Case(softmax(), [x], axes), Case(layer_norm(), [x, np.ones((1,) * x.ndim, np.float32)], axes)]
    run_cases(cases)
    for seed in range(2):
        run_cases(list(elementwise_cases(seed)), lambda *_: None)
        run_cases(list(row_cases(seed)), lambda *_: None)


def routines():
    launcher = HostLauncher()
    launcher.empty = np.empty
    for width in (1, 3, 4, 5):
        table, keys = filled(launcher, 7, width), np.array([6, 0, 6, 3])
        out = launcher.empty((4, width), np.float32)
        rows.gather_rows(launcher, keys, out, table)
        order = np.argsort(keys, kind="stable")
        rows.add_rows(launcher, keys, order, out, table)
        rows.put_rows(launcher, keys, order, out, table)
        sums = launcher.empty((3, width), np.float32)
        segments.reduce(launcher, table, np.array([0, 2, 2, 7]), sums, "sum")
        segments.spread(launcher, sums, np.array([0, 2, 2, 7]), table)
        yield from (out, sums, table)
    for dtype in (np.float16, np.float32, np.float64):
        out = launcher.empty((37,), dtype)
        random.uniform(launcher, (1, 2), out)
        yield out
    for width, queries, keys in ((32, 65, 33), (128, 3, 31)):
        q, g, dq, out = (filled(launcher, 1, 2, queries, width) for _ in range(4))
        k, v, dk, dv = (filled(launcher, 1, 2, keys, width) for _ in range(4))
        logs = launcher.empty((1, 2, queries), np.float32)
        for causal in (False, True):
            attention.forward(launcher, q, k, v, out, logs, 0.1, causal)
            attention.backward(launcher, q, k, v, out, logs, g, dq, dk, dv, 0.1, causal)
        yield from (out, logs, dq, dk, dv)
    for shape, weight, windows, groups in CASES:
        x, w, bias = filled(launcher, *shape), filled(launcher, *weight), filled(launcher, weight[0])
        out = launcher.empty((shape[0], weight[0], *windows.counts), np.float32)
        dx, dw = launcher.empty(shape, np.float32), launcher.empty(weight, np.float32)
        conv.forward(launcher, x, w, bias, out, windows, groups)
        conv.input_gradient(launcher, out, w, dx, windows, groups)
        conv.weight_gradient(launcher, x, out, dw, windows, groups)
        yield from (out, dx, dw)
    for shape, windows in POOLS:
        x, dx = filled(launcher, *shape), launcher.empty(shape, np.float32)
        out = launcher.empty((*shape[:2], *windows.counts), np.float32)
        places = launcher.empty(out.shape, np.int64)
        pooling.max_forward(launcher, x, out, places, windows)
        assert places.min() >= 0 and places.max() < math.prod(shape[2:])
        pooling.max_backward(launcher, out, places, dx, windows)
        pooling.sum_forward(launcher, x, out, windows)
        pooling.sum_backward(launcher, out, dx, windows)
        yield from (out, places, dx)


if __name__ == "__main__":
    memory = GuardedMemory()
    memory.start()
    loops()
    for number, array in enumerate(routines()):
        assert not shows_pattern(array), f"result {number} was not written"
    gc.collect()
    assert not memory.damaged, f"{memory.damaged} bytes beside arrays were written to"
    print("all within bounds")
