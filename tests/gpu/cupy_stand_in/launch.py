"""Kernels on arrays of the stand-in: their text is compiled for the CPU.

Native code launches them as it does on a GPU, through the address of a function with the parameters of cuLaunchKernel.
"""

import ctypes
import re

import numpy as np

from tests.gpu.cupy_stand_in.array import of_host
from tests.gpu.emulation.host import KERNEL, HostLauncher
from wayfare.core.native import NATIVE

CU_LAUNCH_KERNEL = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, *[ctypes.c_uint] * 7,
    ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p,
)  # fmt: skip


class StandInLauncher(HostLauncher):
    """The emulation of a device, with arrays of the stand-in. Functions are addresses."""

    def __init__(self):
        super().__init__()
        self._functions = {}
        self._error = None
        self._called = CU_LAUNCH_KERNEL(self._cu_launch_kernel)
        if NATIVE is not None:
            address = ctypes.cast(self._called, ctypes.c_void_p).value
            self.driver = NATIVE.Driver(address, self.stream, self._failed, self.empty)

    def empty(self, shape, dtype):
        return of_host(super().empty(shape, dtype))

    def pointer(self, array):
        return array.data.ptr

    def to_device(self, array):
        return of_host(np.array(array))

    def compile(self, text):
        addresses = {}
        kinds = dict(KERNEL.findall(text))
        for name, function in super().compile(text).items():
            address = addresses[name] = ctypes.cast(function, ctypes.c_void_p).value
            self._functions[address] = function, _words(text, kinds[name])
        return addresses

    def launch(self, function, grid, block, shared, words):
        super().launch(self._functions[function][0], grid, block, shared, words)

    def _cu_launch_kernel(self, function, x, y, z, block_x, block_y, block_z, shared, stream, parameters, extra):
        try:
            words = self._functions[function][1].from_address(parameters[0])
            self.launch(function, (x, y, z), (block_x, block_y, block_z), shared, words)
        except Exception as error:
            self._error = error
            return 700
        return 0

    def _failed(self, status):
        raise self._error


def _words(text, kind):
    """The type of the words that a kernel takes."""
    fields = re.search(rf"struct {kind} {{(.*?)}};", text)[1].split(";")
    sizes = [re.search(r"\[(\d+)\]", field) for field in fields if field.strip()]
    return ctypes.c_int64 * sum(int(size[1]) if size else 1 for size in sizes)
