"""Loops with arrays to run them on, checked in three ways: the text compiles for a GPU, it runs in emulation, and it
gives what the interpreter gives. Many cases are compiled at once, which takes a fraction of the time."""

from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pytest

from tests.codegen.loops import comparable
from tests.gpu.emulation.host import COMPILER, HostLauncher
from wayfare.codegen.cuda import nvrtc
from wayfare.codegen.cuda.kernel import CudaKernel
from wayfare.codegen.loop.interpreter import interpret, interpret_rows
from wayfare.codegen.loop.language import exact
from wayfare.codegen.math.library import numpy_function
from wayfare.codegen.runtime.kernel import Kernel
from wayfare.codegen.runtime.repeated import Repeated
from wayfare.ir.fuse.composite import Composite

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no g++ to run kernels on the CPU with")
needs_nvrtc = pytest.mark.skipif(not nvrtc.available(), reason="NVRTC (nvidia-cuda-nvrtc) is not installed")
# (relative, absolute): formulas of several steps lose a bit more than the 2 ulp of a single function.
TOLERANCE = {"e": (2e-3, 1e-6), "f": (1e-5, 2e-6), "d": (1e-12, 1e-13)}


@dataclass
class Case:
    """A loop on arrays; `axes` are those of a row, None for a loop without rows."""

    loop: object
    inputs: list
    axes: tuple | None = None
    what: str = ""

    def meaning(self):
        if self.axes is None:
            return interpret(self.loop, self.inputs, numpy_function)
        return interpret_rows(self.loop, self.inputs, self.axes, numpy_function)


def kernels_of(cases, launcher):
    """The kernel of every case; equal loops share one."""
    known = {}
    for case in cases:
        yield known.setdefault(exact(case.loop), CudaKernel(case.loop, launcher))


def texts_of(cases, launcher):
    """The texts that the cases need."""
    found = []
    for case, kernel in zip(cases, kernels_of(cases, launcher), strict=True):
        found += kernel.texts(case.inputs, case.axes)
    return list(dict.fromkeys(found))


def close(got, want, what, tolerance=TOLERANCE):
    assert (got.dtype, got.shape) == (want.dtype, want.shape), what
    rtol, atol = tolerance.get(got.dtype.char, (1e-2, 1e-3))
    got, want = comparable(got), comparable(want)
    if got.dtype.kind != "f":
        np.testing.assert_array_equal(got, want, err_msg=what)
    else:
        scale = np.abs(want[np.isfinite(want)]).max(initial=1.0)
        np.testing.assert_allclose(got, want, rtol, atol * scale, err_msg=what)


def run_cases(cases, compare=close, launcher=None):
    """Run every case, in emulation unless another launcher is given, and compare it with the interpreter."""
    launcher = launcher or HostLauncher()
    launcher.preload(texts_of(cases, launcher))
    for case, kernel in zip(cases, kernels_of(cases, launcher), strict=True):
        given = [launcher.to_device(a) for a in case.inputs]
        made = kernel(given) if case.axes is None else kernel.rows(given, case.axes)
        for got, want in zip(made, case.meaning(), strict=True):
            compare(launcher.to_host(got), want, f"{case.what}\n{case.loop}")


def compile_cases(cases):
    """Compile the kernels of all cases to PTX, at once."""
    if cases:
        ptx = nvrtc.nvrtc().compile("\n".join(texts_of(cases, HostLauncher())), "compute_90")
        assert b".entry" in ptx


@contextmanager
def recorded(cases):
    """Append to `cases` what native kernels are called on inside the block. The interpreter runs them."""

    def note(self, inputs, outs, shape, axes, repeats=1):
        # Copies: a kernel may write over its inputs.
        cases.append(Case(self.loop, [np.array(a, order="K") for a in inputs], axes))
        return False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Kernel, "_try", note)
        patch.setattr(Kernel, "_rerun", lambda self, plan, inputs: None)
        patch.setattr(Repeated, "__call__", lambda self, inputs, outputs: self._kernel.into(
            inputs, outputs, self._shape, self._axes))  # fmt: skip
        patch.setattr(Composite, "__call__", Composite.at_once)
        yield
