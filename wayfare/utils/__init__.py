"""Helpers under the names PyTorch has them: `wf.utils.checkpoint`, `wf.utils.data`, `wf.utils.hooks`, …"""

import importlib
from typing import TYPE_CHECKING

from wayfare.instead import no_such_name
from wayfare.utils import checkpoint, hooks

if TYPE_CHECKING:
    from wayfare.utils import data as data
    from wayfare.utils import tensorboard as tensorboard

__all__ = ["checkpoint", "data", "hooks", "tensorboard"]


def __getattr__(name: str) -> object:
    if name in ("data", "tensorboard"):  # loaded when it is first asked for
        return importlib.import_module(f"{__name__}.{name}")
    raise no_such_name(__name__, name)
