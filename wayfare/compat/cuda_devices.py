"""The GPU that is meant, for the parts of `wf.cuda`."""

from __future__ import annotations

from typing import Any

import wayfare as wf
from wayfare.core import device as devices
from wayfare.core.errors import OperationError


def backend() -> Any:
    """CUDA, which is started if it is not in use yet."""
    return devices.backend("cuda")


def backend_in_use() -> Any:
    """The same if it is in use already, else None: asking for memory or freeing it must not start CUDA."""
    return devices.started("cuda")


def number_of(device: Any) -> int:
    """The number of a device: an int, a `wf.device` or a text; None is the current one."""
    found = backend()
    if device is None:
        return int(found.current())
    asked = wf.device(device)
    if asked.type != "cuda":
        raise OperationError(f"cuda: '{asked}' is no GPU", fix="Give a number, or a device such as 'cuda:0'.")
    return int(found.current()) if asked.index is None else asked.index


def on(device: Any) -> Any:
    """`with` block in which a GPU is the current one."""
    return backend().xp.cuda.Device(number_of(device))
