"""What kernels need of an array library and a device: memory, addresses, compiled functions and launches.

`Launcher` is the protocol; `CupyLauncher` is the one for a GPU. A launcher belongs to one device. Every kernel has one
parameter, a struct of 8-byte fields, so a launch is given one block of words.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from wayfare.codegen.cuda.cublas import Cublas
from wayfare.codegen.cuda.gemm import Gemm
from wayfare.codegen.cuda.layout import Limits
from wayfare.codegen.cuda.nvrtc import compiled, nvrtc
from wayfare.core.errors import NotReadyError

Grid = tuple[int, int, int]


class Launcher(Protocol):
    """The array library and the device of kernels."""

    limits: Limits

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
        self.empty = cupy.empty
        device = cupy.cuda.Device()
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
        # The driver copies the words before it returns.
        parameter = ctypes.c_void_p(ctypes.addressof(words))
        self._launch(function, *grid, *block, shared, self._stream().ptr, ctypes.addressof(parameter), 0)

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
