"""Helpers under the names PyTorch has them: `wf.utils.checkpoint`, `wf.utils.data`, `wf.utils.tensorboard`."""

import importlib
from typing import TYPE_CHECKING

from wayfare.utils import checkpoint

if TYPE_CHECKING:
    from wayfare.utils import data as data
    from wayfare.utils import tensorboard as tensorboard

__all__ = ["checkpoint", "data", "tensorboard"]


def __getattr__(name: str) -> object:
    if name in ("data", "tensorboard"):  # loaded when it is first asked for
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
