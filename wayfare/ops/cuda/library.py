"""CuPy and its devices, or the sentence that says what is missing."""

from __future__ import annotations

import importlib
from typing import Any

from wayfare.core.errors import OperationError

_INSTALL = 'Install it with pip install "wayfare[cuda]".'


def found_library(name: str) -> Any:
    """A module of CuPy."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise OperationError(f"device: 'cuda' needs CuPy, which cannot be imported ({error})", fix=_INSTALL) from None


def device_count(xp: Any) -> int:
    """How many devices there are; an error that says why there is none."""
    try:
        count = int(xp.cuda.runtime.getDeviceCount())
    except xp.cuda.runtime.CUDARuntimeError as error:
        raise OperationError(f"device: CuPy finds no CUDA device ({error})",
                             fix="Install a driver for the GPU, or use 'cpu'.") from None  # fmt: skip
    if not count:
        raise OperationError("device: CuPy finds no CUDA device", fix="Use 'cpu'.")
    return count
