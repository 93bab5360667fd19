"""The kernels on a real GPU, through CuPy: every record, random loops, all forms of rows."""

import ctypes
import importlib.util

import numpy as np
import pytest

from tests.codegen.loops import same
from tests.gpu.cases import Case, run_cases
from tests.gpu.test_cuda_fuzz import elementwise_cases, row_cases
from tests.gpu.test_cuda_kernel import FORMS, layer_norm, softmax
from tests.gpu.test_cuda_records import ALL, FAMILIES
from wayfare.codegen.cuda.launch import CupyLauncher


def gpus():
    """How many GPUs CuPy can use."""
    if importlib.util.find_spec("cupy") is None:
        return 0
    import cupy

    try:
        return cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError:
        return 0


pytestmark = [pytest.mark.skipif(gpus() == 0, reason="there is no GPU, or no CuPy"),
              pytest.mark.filterwarnings("ignore::RuntimeWarning")]  # fmt: skip


class Device(CupyLauncher):
    """CuPy's launcher, with copies that keep strides."""

    def preload(self, texts):
        """Nothing is compiled at once."""

    def to_device(self, array):
        import cupy

        if array.size == 0:
            return cupy.empty(array.shape, array.dtype)
        low, high = np.lib.array_utils.byte_bounds(array)
        memory = np.ctypeslib.as_array((ctypes.c_uint8 * (high - low)).from_address(low))
        base = cupy.asarray(memory)
        start = array.__array_interface__["data"][0] - low
        return cupy.ndarray(array.shape, array.dtype, base.data + start, strides=array.strides)

    def to_host(self, array):
        return array.get()


@pytest.fixture(scope="module")
def launcher():
    return Device()


def is_aligned(case):
    return all(a.flags.aligned and all(s % a.itemsize == 0 for s in a.strides) for a in case.inputs)


@pytest.mark.parametrize("family, name", ALL)
def test_records(launcher, family, name):
    run_cases(list(FAMILIES[family][0](name)), launcher=launcher)


@pytest.mark.parametrize("seed", range(20))
def test_random_loops(launcher, seed):
    cases = [*elementwise_cases(seed), *row_cases(seed)]
    run_cases([case for case in cases if is_aligned(case)], same, launcher)


LARGE = [((4096, 1000), 1), ((4096, 1000), 0), ((3, 1_000_000), 1), ((1_000_000, 3), 0)]


@pytest.mark.parametrize("shape, axis", [*((shape, axis) for shape, axis, *_ in FORMS), *LARGE])
def test_rows(launcher, shape, axis):
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    axes = (axis,) if isinstance(axis, int) else axis
    run_cases([Case(softmax(), [x], axes), Case(layer_norm(), [x, np.full((1,) * x.ndim, 7, np.float32)], axes)],
              launcher=launcher)  # fmt: skip
