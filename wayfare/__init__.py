"""Wayfare: a deep-learning framework about the dynamic computation graph.

    import wayfare as wf

The names, signatures and semantics are PyTorch's wherever it has them; what is new has new names. The public names of
each subject are listed in the module that defines them.
"""

import importlib as _importlib
import inspect as _inspect
import sys as _sys
import typing as _typing
from math import e, inf, nan, pi

# isort: split
from wayfare import ops as _ops  # noqa: F401, I001 - fills the registry before anything reads it
from wayfare import autograd, func, nn
from wayfare.core import errors
from wayfare.api import linalg, signal, special, testing
from wayfare.api import interop as _interop  # noqa: F401 - these three install methods of Tensor
from wayfare.api import methods as _methods  # noqa: F401
from wayfare.api import printing as _printing  # noqa: F401
from wayfare.autograd.checkpoint import checkpoint
from wayfare.autograd.modes import (
    enable_grad,
    inference_mode,
    is_grad_enabled,
    is_inference_mode_enabled,
    no_grad,
    set_grad_enabled,
)
from wayfare.autograd.transforms import vmap
from wayfare.core import tracebacks as _tracebacks
from wayfare.core import generator as random
from wayfare.api.autocast import (
    autocast,
    clear_autocast_cache,
    get_autocast_cpu_dtype,
    get_autocast_dtype,
    get_autocast_gpu_dtype,
    is_autocast_cache_enabled,
    is_autocast_cpu_enabled,
    is_autocast_enabled,
    set_autocast_cache_enabled,
    set_autocast_cpu_dtype,
    set_autocast_cpu_enabled,
    set_autocast_dtype,
    set_autocast_enabled,
    set_autocast_gpu_dtype,
)
from wayfare.api.fused import fused
from wayfare.core.missing_names import MissingModules as _MissingModules
from wayfare.core.missing_names import no_such_name as _no_such_name
from wayfare.core.public_modules import LATER as _LATER
from wayfare.core.public_modules import PublicModules as _PublicModules
from wayfare.api.functions._guard import guarded as _guarded
from wayfare.api.functions.arithmetic import *  # noqa: F403
from wayfare.api.functions.combine import *  # noqa: F403
from wayfare.api.functions.compare import *  # noqa: F403
from wayfare.api.functions.convert import *  # noqa: F403
from wayfare.api.functions.copies import *  # noqa: F403
from wayfare.api.functions.creation import *  # noqa: F403
from wayfare.api.functions.distance import *  # noqa: F403
from wayfare.api.functions.einsum import *  # noqa: F403
from wayfare.api.functions.elementwise import *  # noqa: F403
from wayfare.api.functions.extreme import *  # noqa: F403
from wayfare.api.functions.grids import *  # noqa: F403
from wayfare.api.functions.index import *  # noqa: F403
from wayfare.api.functions.info import *  # noqa: F403
from wayfare.api.functions.join import *  # noqa: F403
from wayfare.api.functions.linalg import *  # noqa: F403
from wayfare.api.functions.matmul import *  # noqa: F403
from wayfare.api.functions.matrix_norms import *  # noqa: F403
from wayfare.api.functions.norms import *  # noqa: F403
from wayfare.api.functions.parts import *  # noqa: F403
from wayfare.api.functions.settings import *  # noqa: F403
from wayfare.api.functions.random import *  # noqa: F403
from wayfare.api.functions.random_fill import *  # noqa: F403
from wayfare.api.functions.rearrange import *  # noqa: F403
from wayfare.api.functions.reduce import *  # noqa: F403
from wayfare.api.functions.scan import *  # noqa: F403
from wayfare.api.functions.scatter import *  # noqa: F403
from wayfare.api.functions.segments import *  # noqa: F403
from wayfare.api.functions.shape import *  # noqa: F403
from wayfare.api.functions.softmax import *  # noqa: F403
from wayfare.api.functions.sort import *  # noqa: F403
from wayfare.api.functions.special_functions import *  # noqa: F403
from wayfare.api.functions.split import *  # noqa: F403
from wayfare.api.functions.statistics import *  # noqa: F403
from wayfare.api.functions.threads import *  # noqa: F403
from wayfare.api.functions.writes import *  # noqa: F403
from wayfare.core.generator import *  # noqa: F403
from wayfare.nn.functional.activation import celu, celu_, hardshrink, prelu, relu, relu_, rrelu, rrelu_, selu, selu_
from wayfare.nn.functional.activation import threshold, threshold_
from wayfare.nn.functional.conv import conv1d, conv2d, conv3d, conv_transpose1d, conv_transpose2d, conv_transpose3d
from wayfare.nn.functional.pool import adaptive_avg_pool1d, avg_pool1d, max_pool1d, max_pool1d_with_indices
from wayfare.nn.functional.pool import max_pool2d, max_pool3d
from wayfare.nn.functional.grid import affine_grid as affine_grid_generator
from wayfare.nn.functional.grid import grid_sampler
from wayfare.nn.functional.grid import grid_sampler as grid_sampler_2d
from wayfare.nn.functional.grid import grid_sampler as grid_sampler_3d
from wayfare.core.config import settings
from wayfare.core.device import Device as device
from wayfare.core.spec import DType as dtype
from wayfare.core.spec import Size, bfloat16, float16, float32, float64, int8, int16, int32, int64, uint8
from wayfare.core.spec import bool_ as bool
from wayfare.core.spec import float16 as half
from wayfare.core.spec import float32 as float
from wayfare.core.spec import float64 as double
from wayfare.core.spec import int16 as short
from wayfare.core.spec import int32 as int
from wayfare.core.spec import int64 as long
from wayfare.core.tensor import Tensor
from wayfare.api.fused_update import fused_update
from wayfare.core.version import __version__

if _typing.TYPE_CHECKING:
    from wayfare import data as data
    from wayfare import distributed as distributed
    from wayfare import optim as optim
    from wayfare import train as train
    from wayfare.api import amp as amp
    from wayfare.batch.batching_block import batching
    from wayfare.batch.frontend import map
    from wayfare.compat import accelerator as accelerator
    from wayfare.compat import backends as backends
    from wayfare.compat import cuda as cuda
    from wayfare.compat import utils as utils
    from wayfare.compiler.control_flow import cond, scan, while_loop
    from wayfare.compiler.decorator import compile
    from wayfare.exporters import onnx as onnx
    from wayfare.exporters.bundle import export, load_program
    from wayfare.io import Checkpoint, load, save
    from wayfare.ragged import Ragged
    from wayfare.see import debug as debug
    from wayfare.see.graph.text import graph
    from wayfare.see.profile.block import Profile as profile
    from wayfare.see.report import report
    from wayfare.train import metrics as metrics

__all__ = [
    "Checkpoint", "Ragged", "batching", "compile", "cond", "data", "debug", "distributed", "export", "load",
    "load_program", "map", "metrics", "onnx", "optim", "profile", "report", "save", "scan", "train", "while_loop",
    "Size", "Tensor", "accelerator", "cuda", "e", "inf", "nan", "newaxis", "pi",
    "__version__", "adaptive_avg_pool1d", "amp", "autocast", "clear_autocast_cache", "get_autocast_cpu_dtype",
    "get_autocast_dtype", "get_autocast_gpu_dtype", "is_autocast_cache_enabled", "is_autocast_cpu_enabled",
    "is_autocast_enabled", "set_autocast_cache_enabled", "set_autocast_cpu_dtype", "set_autocast_cpu_enabled",
    "set_autocast_dtype", "set_autocast_enabled", "set_autocast_gpu_dtype",
    "affine_grid_generator", "autograd", "avg_pool1d",
    "backends",
    "bool", "celu", "celu_", "checkpoint", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d",
    "bfloat16", "conv_transpose3d", "device", "double", "dtype", "enable_grad", "errors", "float", "float16", "float32",
    "float64", "func", "fused", "fused_update", "graph", "grid_sampler", "grid_sampler_2d", "grid_sampler_3d", "half",
    "hardshrink",
    "inference_mode", "int", "int16", "int32", "int64", "int8", "is_grad_enabled", "is_inference_mode_enabled",
    "linalg", "long", "max_pool1d", "max_pool1d_with_indices", "max_pool2d", "max_pool3d", "nn", "no_grad", "prelu",
    "random", "relu", "relu_", "rrelu", "rrelu_", "selu", "selu_", "set_grad_enabled", "settings", "short", "signal",
    "special", "testing", "threshold", "threshold_", "uint8", "utils", "vmap",
]  # fmt: skip
if not _typing.TYPE_CHECKING:  # a type checker follows the star imports
    __all__ += [
        name for name, value in globals().items()
        if not name.startswith("_") and name not in __all__ and not _inspect.ismodule(value)
    ]  # fmt: skip

newaxis = None

# The public modules, and where they lie.
_MODULES = {
    "accelerator": "compat.accelerator", "amp": "api.amp", "backends": "compat.backends", "cuda": "compat.cuda",
    "debug": "see.debug", "errors": "core.errors",
    "linalg": "api.linalg", "metrics": "train.metrics", "onnx": "exporters.onnx", "profile": "see.profile",
    "signal": "api.signal", "special": "api.special", "testing": "api.testing", "utils": "compat.utils",
}  # fmt: skip
# The same for names inside packages that lie below what the names stand for.
_LATER.update({
    "wayfare.nn": {"parallel": "wayfare.distributed.parallel", "SyncBatchNorm": "wayfare.distributed.sync_batch_norm"},
    "wayfare.optim": {"ZeroRedundancyOptimizer": "wayfare.distributed.optim"},
    "wayfare.ops": {"held_on": "wayfare.see.debug.leaks"},
})  # fmt: skip
_sys.meta_path.insert(0, _PublicModules(__name__, {**_MODULES, "nn.parallel": "distributed.parallel",
                                                     "ray": "distributed.ray"}))  # fmt: skip
_tracebacks.install()
_sys.meta_path.append(_MissingModules(_MODULES))

# Names of the package answer a wrong argument with a sentence. Methods, and functions that check their operands
# themselves, stay bare: they are the hot path.
_GUARDED = ("wayfare.api.functions", "wayfare.core.generator", "wayfare.nn")
for _name in __all__:
    _value = globals().get(_name)
    if _inspect.isfunction(_value) and _value.__module__.startswith(_GUARDED):
        if getattr(_value, "checks_operands", False):
            continue
        globals()[_name] = _guarded(_value)

# What is loaded when it is first asked for: modules (data, optim, those of _MODULES) and names of modules.
_LAZY_MODULES = {"data", "distributed", "optim", "train", *_MODULES}
_LAZY_NAMES = {
    "Checkpoint": "io", "load": "io", "save": "io", "Ragged": "ragged", "compile": "compiler.decorator",
    "map": "batch.frontend", "batching": "batch.batching_block", "cond": "compiler.control_flow",
    "scan": "compiler.control_flow", "while_loop": "compiler.control_flow", "graph": "see.graph.text",
    "report": "see.report", "export": "exporters.bundle", "load_program": "exporters.bundle",
}  # fmt: skip


if not _typing.TYPE_CHECKING:  # a type checker knows all names without it

    def __getattr__(name: str) -> object:
        if name in _LAZY_MODULES:
            value = _importlib.import_module(f"{__name__}.{name}")
        elif name in _LAZY_NAMES:
            value = getattr(_importlib.import_module(f"{__name__}.{_LAZY_NAMES[name]}"), name)
        else:
            raise _no_such_name(__name__, name, _elsewhere(name))
        globals()[name] = value
        return value


def _elsewhere(name: str) -> str | None:
    """What to write for a name that PyTorch has in its top package and Wayfare in another place only."""
    if name.startswith("_"):
        return None
    if hasattr(nn.functional, name):
        return f"use wf.nn.functional.{name}"
    return f"use the method: t.{name}(…)" if callable(getattr(Tensor, name, None)) else None


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY_MODULES, *_LAZY_NAMES})
