"""What kernels need of an array library and a device: memory, addresses, compiled functions and launches.

`Launcher` is the protocol; `CupyLauncher` is the one for a GPU. A launcher belongs to one device. Every kernel has one
parameter, a struct of 8-byte fields, so a launch is given one block of words.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from wayfare.codegen.cuda.cublas import Cublas
from wayfare.codegen.cuda.gemm import Gemm
from wayfare.codegen.cuda.layout import Limits
from wayfare.codegen.cuda.nvrtc import compiled, nvrtc
from wayfare.core.errors import NotReadyError
from wayfare.core.native import NATIVE

Grid = tuple[int, int, int]
# CUDA_ERROR_INVALID_CONTEXT
_INVALID_CONTEXT = 201


class Launcher(Protocol):
    """The array library and the device of kernels."""

    limits: Limits
    # What plans are launched with by native code (`native/launches.h`); None: by `launch`.
    driver: Any

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """A new array in C order, with any contents."""

    def pointer(self, array: Any) -> int:
        """The address of the first element of an array."""

    def compile(self, text: str) -> Mapping[str, Any]:
        """Compile CUDA C: the functions of the text, by name."""

    def launch(self, function: Any, grid: Grid, block: Grid, shared: int, words: Any) -> None:
        """Run a function in the current stream. `words` is a ctypes array of 64-bit integers: its parameter."""

    def gemm(self, call: Gemm, a: int, b: int, out: int) -> None:
        """Multiply matrices at these addresses, in the current stream."""

    def to_device(self, array: np.ndarray[Any, np.dtype[Any]]) -> Any:
        """A copy of a NumPy array on the device."""

    def stream(self) -> int:
        """What identifies the current stream."""

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Make a graph of the launches of `work`, which must not allocate or wait. Returns what replays it in the
        current stream."""


class _Functions(dict[str, int]):
    """The functions of a module, looked up at first use. Keeps the module loaded."""

    def __init__(self, module: Any, driver: Any) -> None:
        super().__init__()
        self._module, self._driver = module, driver

    def __missing__(self, name: str) -> int:
        found: int = self._driver.moduleGetFunction(self._module.ptr, name)
        self[name] = found
        return found


def launch_function() -> int | None:
    """The address of the driver's `cuLaunchKernel`."""
    try:
        library = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        return ctypes.cast(library.cuLaunchKernel, ctypes.c_void_p).value
    except (OSError, AttributeError):
        return None


def stream_function() -> int | None:
    """The address of CuPy's C function that returns the current stream of a thread, if it is there."""
    try:
        found = importlib.import_module("cupy_backends.cuda.stream").__pyx_capi__["get_current_stream_ptr"]
        address = ctypes.pythonapi.PyCapsule_GetPointer
        address.restype, address.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        return address(found, b"intptr_t (void)")  # type: ignore[no-any-return]
    except (ImportError, AttributeError, KeyError, ValueError):  # ValueError: its type is another one
        return None


class CupyLauncher:
    """CuPy's arrays, and the GPU that is current when the launcher is made."""

    def __init__(self) -> None:
        try:
            cupy: Any = importlib.import_module("cupy")
        except ImportError:
            raise NotReadyError("CuPy, which holds arrays on a GPU, is not installed",
                                fix='Install it with: pip install "wayfare[cuda]".') from None  # fmt: skip
        self._module: Any = importlib.import_module("cupy.cuda.function").Module
        # Not `Function.__call__`: it builds the list of parameters anew for every call.
        self._driver: Any = importlib.import_module("cupy_backends.cuda.api.driver")
        self._launch = self._driver.launchKernel
        self._stream = cupy.cuda.get_current_stream
        self._new_stream = cupy.cuda.Stream
        self.to_device = cupy.asarray
        self.gemm = Cublas(cupy)
        self.empty = cupy.ndarray
        device = self._device = cupy.cuda.Device()
        self.driver = self._native_driver()
        self.architecture = nvrtc().architecture(int(device.compute_capability))
        self.limits = Limits(processors=device.attributes["MultiProcessorCount"])
        self._loaded: dict[str, _Functions] = {}

    def pointer(self, array: Any) -> int:
        """The address of the first element of an array."""
        return array.data.ptr  # type: ignore[no-any-return]

    def compile(self, text: str) -> Mapping[str, Any]:
        """Compile CUDA C: the functions of the text, by name."""
        found = self._loaded.get(text)
        if found is None:
            module = self._module()
            module.load(compiled(text, self.architecture))
            found = self._loaded[text] = _Functions(module, self._driver)
        return found

    def launch(self, function: Any, grid: Grid, block: Grid, shared: int, words: Any) -> None:
        """Run a function in the current stream."""
        if self.driver is not None:
            self.driver.launch(function, grid, block, shared, words)
            return
        # The driver copies the words before it returns.
        parameter = ctypes.c_void_p(ctypes.addressof(words))
        self._launch(function, *grid, *block, shared, self._stream().ptr, ctypes.addressof(parameter), 0)

    def _native_driver(self) -> Any:
        """What native code launches with; None where there is none, or no address of the driver's function."""
        address = None if NATIVE is None else launch_function()
        if address is None:
            return None
        return NATIVE.Driver(address, stream_function() or self.stream, self._failed, self.empty)

    def _failed(self, status: int) -> bool:
        """After a launch that failed: raise; or True, if the thread only had no context yet, and has one now."""
        if status != _INVALID_CONTEXT:
            raise self._driver.CUDADriverError(status)
        self._device.use()
        return True

    def stream(self) -> int:
        """What identifies the current stream."""
        return self._stream().ptr  # type: ignore[no-any-return]

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Make a graph of launches."""
        target, stream = self.stream(), self._new_stream(non_blocking=True)
        with self.gemm.captured(stream.ptr, target), stream:
            stream.begin_capture()
            try:
                work()
            finally:
                graph = stream.end_capture()
        return graph.launch  # type: ignore[no-any-return]
