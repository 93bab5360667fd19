"""Helpers under the names PyTorch has them: `wf.utils.checkpoint`, `wf.utils.data`."""

import importlib
from typing import TYPE_CHECKING

from wayfare.utils import checkpoint

if TYPE_CHECKING:
    from wayfare.utils import data as data

__all__ = ["checkpoint", "data"]


def __getattr__(name: str) -> object:
    if name == "data":  # as `wf.data` it is loaded when it is first asked for
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
