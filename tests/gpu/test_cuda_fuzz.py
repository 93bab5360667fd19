"""Random loops on random arrays in CUDA C, run in emulation and compared with the interpreter to the last bit.

One test takes many loops, whose kernels are compiled at once. A longer run is asked for by WAYFARE_LOOPS.
"""

import os

import numpy as np
import pytest

from tests.codegen.loops import (
    broadcastable,
    laid,
    meaning,
    random_elementwise,
    random_rows,
    random_shape,
    same,
    values,
)
from tests.codegen.test_fuzz import given_output, row_shapes
from tests.gpu.cases import Case, compile_cases, needs_compiler, needs_nvrtc, run_cases
from tests.gpu.emulation.host import HostLauncher
from wayfare.codegen.cuda.kernel import CudaKernel

LOOPS = int(os.environ.get("WAYFARE_LOOPS", "12"))
RUNS = 4
SEEDS = range(8)

pytestmark = pytest.mark.filterwarnings("error")


def elementwise_cases(seed):
    rng = np.random.default_rng(seed)
    for _ in range(LOOPS):
        loop = random_elementwise(rng)
        for _ in range(RUNS):
            shape = random_shape(rng, 2000)
            yield Case(loop, [broadcastable(rng, shape, o.dtype) for o in loop.inputs])


def row_cases(seed):
    rng = np.random.default_rng(seed)
    for _ in range(LOOPS):
        loop = random_rows(rng)
        for _ in range(RUNS):
            inputs, axis, _ = row_shapes(rng, loop)
            rank = max(a.ndim for a in inputs)
            axes = tuple(a % rank for a in ((axis,) if isinstance(axis, int) else axis))
            yield Case(loop, inputs, axes)


@needs_compiler
@pytest.mark.parametrize("seed", SEEDS)
def test_random_loops_of_single_elements(seed):
    run_cases(list(elementwise_cases(seed)), same)


@needs_compiler
@pytest.mark.parametrize("seed", SEEDS)
def test_random_loops_over_rows(seed):
    run_cases(list(row_cases(seed)), same)


@needs_nvrtc
@pytest.mark.parametrize("seed", range(2))
def test_random_loops_compile_for_a_gpu(seed):
    compile_cases([*elementwise_cases(seed), *row_cases(seed)])


@needs_compiler
@pytest.mark.parametrize("seed", range(2))
def test_loops_of_single_elements_that_write_to_given_arrays(seed):
    rng = np.random.default_rng(seed)
    launcher = HostLauncher()
    loops = [random_elementwise(rng) for _ in range(LOOPS // 2)]
    calls = []
    for loop in loops:
        kernel = CudaKernel(loop, launcher)
        for _ in range(RUNS):
            shape = random_shape(rng, 2000)
            inputs = [laid(rng, values(rng, shape, o.dtype)) for o in loop.inputs]
            want = meaning(loop, inputs)
            calls.append((kernel, inputs, want, [given_output(rng, inputs, array) for array in want]))
    launcher.preload([text for kernel, inputs, _, outputs in calls for text in kernel.texts(inputs, None, outputs)])
    for kernel, inputs, want, outputs in calls:
        made = kernel(inputs, outputs)
        last = {id(o): w for o, w in zip(outputs, want, strict=True)}  # given twice: the last one stands
        shared = any(np.shares_memory(a, b) for i, a in enumerate(outputs) for b in outputs[:i] if a is not b)
        for got, given in zip(made, outputs, strict=True):
            assert got is given
            if not shared:
                same(got, last[id(got)], kernel.loop)


@needs_compiler
def test_loops_over_rows_that_write_to_given_arrays():
    rng = np.random.default_rng(0)
    launcher = HostLauncher()
    calls = []
    for _ in range(LOOPS):
        loop = random_rows(rng)
        inputs, axis, want = row_shapes(rng, loop)
        outputs = []
        for expected in want:
            free = [a for a in inputs if a.shape == expected.shape and a.dtype == expected.dtype and a.flags.writeable]
            free = [a for a in free if not any(a is o for o in outputs)]
            in_place = free and rng.random() < 0.5
            outputs.append(free[0] if in_place else laid(rng, np.zeros(expected.shape, expected.dtype)))
        calls.append((CudaKernel(loop, launcher), inputs, axis, outputs, want))
    launcher.preload(
        [text for kernel, inputs, axis, outputs, _ in calls for text in kernel.texts(inputs, axis, outputs)]
    )
    for kernel, inputs, axis, outputs, want in calls:
        for got, given, expected in zip(kernel.rows(inputs, axis, outputs), outputs, want, strict=True):
            assert got is given
            same(got, expected, kernel.loop)
