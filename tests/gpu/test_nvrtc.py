"""NVRTC, its results on disk, and the launcher for CuPy against a stand-in for CuPy that records what it is asked."""

import ctypes
import subprocess
import sys
import types

import numpy as np
import pytest

from tests.codegen.loops import row_loop
from tests.gpu.cases import needs_nvrtc
from wayfare.codegen.cuda import launch, nvrtc
from wayfare.codegen.cuda.kernel import CudaKernel
from wayfare.codegen.cuda.launch import CupyLauncher
from wayfare.core.config import settings
from wayfare.core.counters import counted
from wayfare.errors import LoopError, NotReadyError

TEXT = """struct twice_words { float* x; };
extern "C" __global__ void twice(const twice_words a) { a.x[threadIdx.x] *= %sf; }
"""


@needs_nvrtc
def test_ptx_and_machine_code():
    assert b".visible .entry twice" in nvrtc.nvrtc().compile(TEXT % "2.0", "compute_90")
    assert nvrtc.nvrtc().compile(TEXT % "2.0", "sm_90")[:4] == b"\x7fELF"


@needs_nvrtc
def test_what_is_compiled_for_a_gpu():
    """Machine code where NVRTC knows the GPU, else PTX, which the driver compiles."""
    found = nvrtc.nvrtc()
    assert found.architecture(90) == "sm_90"
    assert found.architecture(999) == f"compute_{found.supported[-1]}"
    with pytest.raises(NotReadyError, match="compute capability 3.5 is too old"):
        found.architecture(35)


@needs_nvrtc
def test_an_error_shows_the_log():
    with pytest.raises(LoopError, match=r'identifier "nothing" is undefined'):
        nvrtc.nvrtc().compile(TEXT % "nothing + 2.0", "compute_90")
    with pytest.raises(LoopError, match="NVRTC"):
        nvrtc.nvrtc().compile(TEXT % "2.0", "compute_1")


@needs_nvrtc
def test_products_and_sums_are_not_contracted():
    """An fma would round once where NumPy rounds twice."""
    text = """struct both_words { float* x; };
extern "C" __global__ void both(const both_words a) { a.x[0] = a.x[1] * a.x[2] + a.x[3]; }
"""
    ptx = nvrtc.nvrtc().compile(text, "compute_90")
    assert b"fma" not in ptx and b"mul.rn" in ptx.replace(b"mul.f32", b"mul.rn.f32")


@needs_nvrtc
def test_a_second_start_compiles_nothing(tmp_path, monkeypatch):
    tmp_path.chmod(0o700)
    monkeypatch.setattr(settings, "cache_folder", tmp_path)
    monkeypatch.setattr(nvrtc, "_compiled", {})
    with counted() as first:
        code = nvrtc.compiled(TEXT % "3.0", "sm_90")
        assert nvrtc.compiled(TEXT % "3.0", "sm_90") is code
    nvrtc._compiled.clear()
    with counted() as second:
        assert nvrtc.compiled(TEXT % "3.0", "sm_90") == code
    with counted() as other:
        nvrtc.compiled(TEXT % "3.0", "sm_80")
    assert (first.kernels_built, second.kernels_built, second.kernels_loaded, other.kernels_built) == (1, 0, 1, 1)


def test_without_nvrtc_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(nvrtc, "_candidates", lambda: iter(["libnothing.so.0"]))
    nvrtc.nvrtc.cache_clear()
    try:
        with pytest.raises(NotReadyError, match=r'pip install "wayfare\[cuda\]"'):
            nvrtc.compiled(TEXT % "2.0", "sm_90")
        assert not nvrtc.available()
    finally:
        nvrtc.nvrtc.cache_clear()


def test_without_cupy_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(NotReadyError, match=r'pip install "wayfare\[cuda\]"'):
        CupyLauncher()


def test_importing_wayfare_loads_none_of_this():
    code = "import sys, wayfare; print([m for m in sys.modules if 'codegen.cuda' in m or m in ('cupy', 'nvidia')])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


class Recorder:
    """What the launcher uses of CuPy, over NumPy; launches are noted with a copy of their parameter."""

    def __init__(self, monkeypatch):
        self.launches, self.loaded = [], []

        class Array(np.ndarray):
            @property
            def data(self):
                return types.SimpleNamespace(ptr=self.__array_interface__["data"][0])

        class Module:
            ptr = 77

            def load(module, code):
                self.loaded.append(code)

        self.array = lambda a: np.asarray(a).view(Array)
        cupy = types.ModuleType("cupy")
        cupy.ndarray = lambda shape, dtype: self.array(np.empty(shape, dtype))
        cupy.cuda = types.SimpleNamespace(
            Device=lambda: types.SimpleNamespace(compute_capability="90", attributes={"MultiProcessorCount": 99}),
            get_current_stream=lambda: types.SimpleNamespace(ptr=5), Stream=None,
        )
        cupy.asarray = self.array
        function, driver = types.ModuleType("cupy.cuda.function"), types.ModuleType("cupy_backends.cuda.api.driver")
        function.Module = Module
        driver.moduleGetFunction = lambda module, name: (module, name)
        driver.launchKernel = self.launch
        monkeypatch.setattr(launch, "Cublas", lambda cupy: None)
        for module in (cupy, function, driver):
            monkeypatch.setitem(sys.modules, module.__name__, module)

    def launch(self, function, *given):
        *sizes, shared, stream, parameters, extra = given
        address = ctypes.c_void_p.from_address(parameters).value
        self.launches.append(
            (function, tuple(sizes), shared, stream, extra, list((ctypes.c_int64 * 4).from_address(address)))
        )


def test_what_the_launcher_asks_of_cupy(monkeypatch):
    cupy = Recorder(monkeypatch)
    asked = []
    monkeypatch.setattr(launch, "compiled", lambda text, architecture: asked.append(architecture) or b"code")
    monkeypatch.setattr(
        launch, "nvrtc", lambda: types.SimpleNamespace(architecture=lambda capability: f"sm_{capability}")
    )
    monkeypatch.setattr(launch, "launch_function", lambda: None)
    launcher = CupyLauncher()
    assert launcher.limits.processors == 99 and launcher.driver is None
    kernel = CudaKernel(row_loop("sum"), launcher)
    x = cupy.array(np.ones((4, 8), np.float32))
    for _ in range(2):
        (out,) = kernel.rows([x], 1)
    assert asked == ["sm_90"] and cupy.loaded == [b"code"] and len(cupy.launches) == 2
    (module, name), sizes, shared, stream, extra, words = cupy.launches[1]
    assert (
        module == 77 and name in kernel.text and sizes == (1, 1, 1, 256, 1, 1) and (shared, stream, extra) == (0, 5, 0)
    )
    assert words[:4] == [x.data.ptr, out.data.ptr, 8, 4]
