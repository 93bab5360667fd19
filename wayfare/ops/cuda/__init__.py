"""The CUDA backend: how records run on arrays of CuPy. Records are not changed for it, and do not know of it.

Nothing of it is loaded before somebody asks for a CUDA device.
"""

from __future__ import annotations

from importlib import import_module

from wayfare.core.device import Backend, offer


def _backend() -> Backend:
    made: Backend = import_module("wayfare.ops.cuda.backend").CudaBackend()
    return made


offer("cuda", _backend)
