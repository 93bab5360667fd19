"""Helpers under the names PyTorch has them: `wf.utils.checkpoint`, `wf.utils.data`, `wf.utils.hooks`, …"""

import importlib
from typing import TYPE_CHECKING

from wayfare.compat.utils import checkpoint, hooks
from wayfare.core.missing_names import no_such_name

if TYPE_CHECKING:
    from wayfare.compat.utils import data as data
    from wayfare.compat.utils import tensorboard as tensorboard

__all__ = ["checkpoint", "data", "hooks", "tensorboard"]


def __getattr__(name: str) -> object:
    if name in ("data", "tensorboard"):  # loaded when it is first asked for
        return importlib.import_module(f"{__name__}.{name}")
    raise no_such_name("wayfare.utils", name)
