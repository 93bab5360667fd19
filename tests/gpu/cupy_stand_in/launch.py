"""Kernels on arrays of the stand-in: their text is compiled for the CPU."""

import numpy as np

from tests.gpu.cupy_stand_in.array import of_host
from tests.gpu.emulation.host import HostLauncher


class StandInLauncher(HostLauncher):
    """The emulation of a device, with arrays of the stand-in."""

    def empty(self, shape, dtype):
        return of_host(super().empty(shape, dtype))

    def pointer(self, array):
        return array.data.ptr

    def to_device(self, array):
        return of_host(np.array(array))
