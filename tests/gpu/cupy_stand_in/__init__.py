"""A stand-in for CuPy over NumPy: what a machine without a GPU can check of `device="cuda"`.

    with installed():
        x = wf.ones(3, device="cuda")     # x._array is a stand-in array, not a NumPy array

It must not allow more than CuPy does, or the tests would pass here and fail on a GPU. So:

- An array is no `numpy.ndarray`, and turning one into a NumPy array without `.get()` is a TypeError, as in CuPy.
- A NumPy function or ufunc called on arrays runs only if `functions.txt` lists it, with arguments that bind to the
  parameters of CuPy's own, and in dtypes for which the ufunc of CuPy has a loop. The list was written from CuPy 14.2,
  which imports on a machine without a GPU: `inspect.signature` of every public function of `cupy`, `cupy.linalg` and
  `cupyx.scipy.special` that NumPy or SciPy has too, `ufunc.types`, and `dir(cupy.ndarray)`.
- A real `cupy.ndarray` can be made there over unowned memory. Everything that needs no kernel was tried on it: views
  and their `.base`, `flags` (which has no `writeable`), strides, weak references, which ufuncs have `reduce` and
  `accumulate`, and that `as_strided` and `ascontiguousarray` of NumPy refuse.
- bfloat16 goes through ufuncs that have a loop for it (`E` in functions.txt) and through functions that move elements.
  Others refuse it, or give float32, as `where` does. Linear algebra must ask for the status of its routines.
- NumPy arrays of any rank do not mix with arrays of the device, not as operands, indices or values. (CuPy takes some.)

`COUNTS` says how often data crossed between host and device, and what waits for the device.
"""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import numpy as np

from tests.gpu.cupy_stand_in import device
from tests.gpu.cupy_stand_in.array import in_range, ndarray, of_host, unwrapped
from tests.gpu.cupy_stand_in.device import COUNTS, OutOfMemoryError
from tests.gpu.cupy_stand_in.linalg import errstate
from tests.gpu.cupy_stand_in.table import FUNCTIONS, UFUNCS, calling, check_atomic
from wayfare.compiler.captures import purity

__all__ = ["COUNTS", "OutOfMemoryError", "installed", "modules"]


def asarray(a, dtype=None, order=None, *, blocking=False):
    """An array of the device: a copy of a NumPy array, a list or a number; an array of the device as it is."""
    if isinstance(a, ndarray):
        return a if dtype is None or a.dtype == np.dtype(dtype) else a.astype(dtype)
    found = getattr(a, "__cuda_array_interface__", None)
    if found is not None:
        shape, kind = found["shape"], np.dtype(found["typestr"])
        memory = (ctypes.c_char * (int(np.prod(shape)) * kind.itemsize)).from_address(found["data"][0])
        made = of_host(np.frombuffer(memory, kind).reshape(shape))
        made.owner = a
        return made
    COUNTS.to_device += 1
    made = np.array(a, dtype=dtype, order="K" if isinstance(a, np.ndarray) else "C")
    if made.ndim == 0 and made == 0:  # CuPy fills in one number, and what equals zero by zeros: -0.0 loses its sign
        made = np.zeros((), made.dtype)
    return of_host(made)


def array(obj, dtype=None, copy=True, order="K", subok=False, ndmin=0, *, blocking=False):
    """A new array of the device."""
    if isinstance(obj, ndarray):
        return of_host(np.array(obj._host, dtype=dtype, order=order))
    return asarray(obj, dtype)


class _Capsule:
    """A capsule of memory that the host can read, for NumPy."""

    def __init__(self, capsule):
        self._capsule = capsule

    def __dlpack__(self, **options):
        return self._capsule

    def __dlpack_device__(self):
        return 1, 0


def from_dlpack(array, *, device=None, copy=None):
    """An array on the memory of another library."""
    if array.__dlpack_device__()[0] != 2:
        raise BufferError("it is not on a GPU")
    made = np.from_dlpack(_Capsule(array.__dlpack__(stream=1, max_version=(1, 0))), copy=False)
    return of_host(made)


def asnumpy(a, stream=None, order="C", out=None, *, blocking=True):
    """A copy of an array on the host."""
    return a.get(stream, order, out, blocking)


def _made(function):
    def make(*args, **options):
        return of_host(function(*args, **options))

    return make


def scatter_add(a, slices, value):
    """`a[slices] += value` that adds for every repetition of an index."""
    check_atomic(a.dtype)
    np.add.at(a._host, in_range(a.shape, unwrapped(slices)), unwrapped(value))


def as_strided(x, shape=None, strides=None):
    """CuPy's own `as_strided`, which NumPy's does not dispatch to."""
    shape, strides = x.shape if shape is None else shape, x.strides if strides is None else strides
    made = x._view(np.lib.stride_tricks.as_strided(x._host, shape, strides))
    made.base = None  # CuPy makes a new array on the same memory, and nothing tells that it is a view
    return made


def _fill(module, prefix):
    for name in (*UFUNCS, *FUNCTIONS):
        if name.startswith(prefix) and "." not in name[len(prefix) :]:
            setattr(module, name[len(prefix) :], calling(name))


def modules():
    """The modules that `import cupy` and its relatives find."""
    cupy = ModuleType("cupy")
    cupy.__version__ = "14.2.0"
    cupy.__path__ = []
    _fill(cupy, "")
    cupy.ndarray, cupy.asarray, cupy.array, cupy.asnumpy = ndarray, asarray, array, asnumpy
    for name in ("zeros", "ones", "empty", "full", "arange", "eye", "linspace"):
        setattr(cupy, name, _made(getattr(np, name)))
    cupy.ascontiguousarray = lambda a, dtype=None: a if a.flags.c_contiguous else a.copy("C")
    cupy.from_dlpack = from_dlpack
    linalg = cupy.linalg = ModuleType("cupy.linalg")
    _fill(linalg, "linalg.")
    systems = ModuleType("cupyx.scipy.linalg")
    _fill(systems, "scipy.linalg.")
    lib, tricks = ModuleType("cupy.lib"), ModuleType("cupy.lib.stride_tricks")
    cupy.lib, lib.stride_tricks, tricks.as_strided = lib, tricks, as_strided
    cupyx, scipy, special = ModuleType("cupyx"), ModuleType("cupyx.scipy"), ModuleType("cupyx.scipy.special")
    cupyx.scatter_add, cupyx.scipy, scipy.special, scipy.linalg = scatter_add, scipy, special, systems
    cupyx.errstate = errstate
    cupyx.empty_pinned = lambda shape, dtype=float, order="C": np.empty(shape, dtype, order)
    cupyx.__path__ = scipy.__path__ = []
    _fill(special, "special.")
    cuda = cupy.cuda = device.module()
    cupy.get_default_memory_pool = lambda: device.POOL
    return {
        "cupy": cupy, "cupy.cuda": cuda, "cupy.cuda.runtime": cuda.runtime, "cupy.linalg": linalg, "cupy.lib": lib,
        "cupy.lib.stride_tricks": tricks, "cupyx": cupyx, "cupyx.scipy": scipy, "cupyx.scipy.special": special,
        "cupyx.scipy.linalg": systems,
    }  # fmt: skip


@contextmanager
def installed():
    """Put the stand-in in the place of CuPy, and take it away again."""
    found = modules()
    before = {name: sys.modules.get(name) for name in found}
    sys.modules.update(found)
    # CuPy is an installed library, whose code `wf.compile` does not take for the user's.
    libraries = purity._NUMERIC
    own = [str(Path(__file__).parents[1] / name) + os.sep for name in ("cupy_stand_in", "emulation")]
    purity._NUMERIC = (*libraries, *own)
    purity.is_installed_file.cache_clear()
    try:
        yield found["cupy"]
    finally:
        purity._NUMERIC = libraries
        purity.is_installed_file.cache_clear()
        for name, module in before.items():
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module
