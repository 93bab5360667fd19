"""Neural networks: modules, layers, and the functions they are made of."""

import importlib
from typing import TYPE_CHECKING

from wayfare.core.missing_names import no_such_name as _no_such_name
from wayfare.core.public_modules import later_name as _later_name
from wayfare.nn import functional as functional
from wayfare.nn import init as init
from wayfare.nn import utils as utils
from wayfare.nn.module import Module as Module
from wayfare.nn.parameter import Buffer as Buffer
from wayfare.nn.parameter import Parameter as Parameter
from wayfare.nn.summary import LayerSummary as LayerSummary
from wayfare.nn.summary import Summary as Summary
from wayfare.nn.summary import summary as summary

if TYPE_CHECKING:
    from wayfare.distributed.sync_batch_norm import SyncBatchNorm as SyncBatchNorm
    from wayfare.nn import parallel as parallel
    from wayfare.nn.activation import *  # noqa: F403
    from wayfare.nn.attention import *  # noqa: F403
    from wayfare.nn.cells import *  # noqa: F403
    from wayfare.nn.containers import *  # noqa: F403
    from wayfare.nn.conv import *  # noqa: F403
    from wayfare.nn.distance import *  # noqa: F403
    from wayfare.nn.dropout import *  # noqa: F403
    from wayfare.nn.embedding import *  # noqa: F403
    from wayfare.nn.linear import *  # noqa: F403
    from wayfare.nn.loss import *  # noqa: F403
    from wayfare.nn.loss_classes import *  # noqa: F403
    from wayfare.nn.loss_margin import *  # noqa: F403
    from wayfare.nn.normalization import *  # noqa: F403
    from wayfare.nn.padding import *  # noqa: F403
    from wayfare.nn.pooling import *  # noqa: F403
    from wayfare.nn.recurrent import *  # noqa: F403
    from wayfare.nn.reshaping import *  # noqa: F403
    from wayfare.nn.transformer import *  # noqa: F403
    from wayfare.nn.trees import *  # noqa: F403

# Loaded together when the first layer is asked for: a program that only differentiates does not pay for them.
_LAYERS = (
    "activation", "attention", "cells", "containers", "conv", "distance", "dropout", "embedding", "linear", "loss",
    "loss_classes", "loss_margin", "normalization", "padding", "pooling", "recurrent", "reshaping", "transformer",
    "trees",
)  # fmt: skip


def _load() -> None:
    """Take in all names of all layers."""
    for part in _LAYERS:
        module = importlib.import_module(f"{__name__}.{part}")
        globals().update({name: getattr(module, name) for name in module.__all__})


if not TYPE_CHECKING:  # a type checker knows all names without it

    def __getattr__(name: str) -> object:
        if name.startswith("_") and name != "__all__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        _load()
        if name == "__all__":
            return [known for known in globals() if not known.startswith("_")]
        if name in globals():
            return globals()[name]
        later = _later_name(__name__, name)
        if later is None:
            raise _no_such_name(__name__, name)
        return later


def __dir__() -> list[str]:
    _load()
    return sorted(globals())
