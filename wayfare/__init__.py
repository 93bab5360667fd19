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
from wayfare import autograd, backends, cuda, errors, func, linalg, nn, signal, special, testing, utils
from wayfare import interop as _interop  # noqa: F401 - these three install methods of Tensor
from wayfare import methods as _methods  # noqa: F401
from wayfare import printing as _printing  # noqa: F401
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
from wayfare import tracebacks as _tracebacks
from wayfare.functions import generator as random
from wayfare.fused import fused
from wayfare.instead import MissingModules as _MissingModules
from wayfare.instead import no_such_name as _no_such_name
from wayfare.functions._guard import guarded as _guarded
from wayfare.functions import arithmetic as _arithmetic
from wayfare.functions import combine as _combine
from wayfare.functions import compare as _compare
from wayfare.functions import convert as _convert
from wayfare.functions import copies as _copies
from wayfare.functions import creation as _creation
from wayfare.functions import distance as _distance
from wayfare.functions import einsum as _einsum
from wayfare.functions import elementwise as _elementwise
from wayfare.functions import extreme as _extreme
from wayfare.functions import generator as _generator
from wayfare.functions import grids as _grids
from wayfare.functions import index as _index
from wayfare.functions import info as _info
from wayfare.functions import join as _join
from wayfare.functions import linalg as _linalg
from wayfare.functions import matmul as _matmul
from wayfare.functions import matrix_norms as _matrix_norms
from wayfare.functions import norms as _norms
from wayfare.functions import parts as _parts
from wayfare.functions import promises as _promises
from wayfare.functions import random as _random
from wayfare.functions import random_fill as _random_fill
from wayfare.functions import rearrange as _rearrange
from wayfare.functions import reduce as _reduce
from wayfare.functions import scan as _scan
from wayfare.functions import scatter as _scatter
from wayfare.functions import segments as _segments
from wayfare.functions import shape as _shape
from wayfare.functions import softmax as _softmax
from wayfare.functions import sort as _sort
from wayfare.functions import special_functions as _special_functions
from wayfare.functions import split as _split
from wayfare.functions import statistics as _statistics
from wayfare.functions import threads as _threads
from wayfare.functions import writes as _writes
from wayfare.functions.arithmetic import *  # noqa: F403
from wayfare.functions.combine import *  # noqa: F403
from wayfare.functions.compare import *  # noqa: F403
from wayfare.functions.convert import *  # noqa: F403
from wayfare.functions.copies import *  # noqa: F403
from wayfare.functions.creation import *  # noqa: F403
from wayfare.functions.distance import *  # noqa: F403
from wayfare.functions.einsum import *  # noqa: F403
from wayfare.functions.elementwise import *  # noqa: F403
from wayfare.functions.extreme import *  # noqa: F403
from wayfare.functions.generator import *  # noqa: F403
from wayfare.functions.grids import *  # noqa: F403
from wayfare.functions.index import *  # noqa: F403
from wayfare.functions.info import *  # noqa: F403
from wayfare.functions.join import *  # noqa: F403
from wayfare.functions.linalg import *  # noqa: F403
from wayfare.functions.matmul import *  # noqa: F403
from wayfare.functions.matrix_norms import *  # noqa: F403
from wayfare.functions.norms import *  # noqa: F403
from wayfare.functions.parts import *  # noqa: F403
from wayfare.functions.promises import *  # noqa: F403
from wayfare.functions.random import *  # noqa: F403
from wayfare.functions.random_fill import *  # noqa: F403
from wayfare.functions.rearrange import *  # noqa: F403
from wayfare.functions.reduce import *  # noqa: F403
from wayfare.functions.scan import *  # noqa: F403
from wayfare.functions.scatter import *  # noqa: F403
from wayfare.functions.segments import *  # noqa: F403
from wayfare.functions.shape import *  # noqa: F403
from wayfare.functions.softmax import *  # noqa: F403
from wayfare.functions.sort import *  # noqa: F403
from wayfare.functions.special_functions import *  # noqa: F403
from wayfare.functions.split import *  # noqa: F403
from wayfare.functions.statistics import *  # noqa: F403
from wayfare.functions.threads import *  # noqa: F403
from wayfare.functions.writes import *  # noqa: F403
from wayfare.graph.text import graph
from wayfare.nn.functional.activation import celu, celu_, hardshrink, prelu, relu, relu_, rrelu, rrelu_, selu, selu_
from wayfare.nn.functional.activation import threshold, threshold_
from wayfare.nn.functional.conv import conv1d, conv2d, conv3d, conv_transpose1d, conv_transpose2d, conv_transpose3d
from wayfare.nn.functional.pool import adaptive_avg_pool1d, avg_pool1d, max_pool1d, max_pool1d_with_indices
from wayfare.nn.functional.pool import max_pool2d, max_pool3d
from wayfare.nn.functional.grid import affine_grid as affine_grid_generator
from wayfare.nn.functional.grid import grid_sampler
from wayfare.nn.functional.grid import grid_sampler as grid_sampler_2d
from wayfare.nn.functional.grid import grid_sampler as grid_sampler_3d
from wayfare.settings import settings
from wayfare.spec import Device as device
from wayfare.spec import DType as dtype
from wayfare.spec import Size, float16, float32, float64, int8, int16, int32, int64, uint8
from wayfare.spec import bool_ as bool
from wayfare.spec import float16 as half
from wayfare.spec import float32 as float
from wayfare.spec import float64 as double
from wayfare.spec import int16 as short
from wayfare.spec import int32 as int
from wayfare.spec import int64 as long
from wayfare.tensor import Tensor
from wayfare.updates import fused_update
from wayfare.version import __version__

if _typing.TYPE_CHECKING:
    from wayfare import data as data
    from wayfare import debug as debug
    from wayfare import metrics as metrics
    from wayfare import onnx as onnx
    from wayfare import optim as optim
    from wayfare import train as train
    from wayfare.batched.frontend import batching, map
    from wayfare.compiled.decorator import compile
    from wayfare.control import cond, scan, while_loop
    from wayfare.io import Checkpoint, load, save
    from wayfare.profile.block import Profile as profile
    from wayfare.program import export, load_program
    from wayfare.ragged import Ragged
    from wayfare.reporting import report

__all__ = [
    "Checkpoint", "Ragged", "batching", "compile", "cond", "data", "debug", "export", "load", "load_program", "map",
    "metrics", "onnx", "optim", "profile", "report", "save", "scan", "train", "while_loop",
    "Size", "Tensor", "cuda", "e", "inf", "nan", "newaxis", "pi",
    "__version__", "adaptive_avg_pool1d", "affine_grid_generator", "autograd", "avg_pool1d",
    "backends",
    "bool", "celu", "celu_", "checkpoint", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d",
    "conv_transpose3d", "device", "double", "dtype", "enable_grad", "errors", "float", "float16", "float32",
    "float64", "func", "fused", "fused_update", "graph", "grid_sampler", "grid_sampler_2d", "grid_sampler_3d", "half",
    "hardshrink",
    "inference_mode", "int", "int16", "int32", "int64", "int8", "is_grad_enabled", "is_inference_mode_enabled",
    "linalg", "long", "max_pool1d", "max_pool1d_with_indices", "max_pool2d", "max_pool3d", "nn", "no_grad", "prelu",
    "random", "relu", "relu_", "rrelu", "rrelu_", "selu", "selu_", "set_grad_enabled", "settings", "short", "signal",
    "special", "testing", "threshold", "threshold_", "uint8", "utils", "vmap",
]  # fmt: skip
__all__ += _arithmetic.__all__
__all__ += _combine.__all__
__all__ += _compare.__all__
__all__ += _convert.__all__
__all__ += _copies.__all__
__all__ += _creation.__all__
__all__ += _distance.__all__
__all__ += _einsum.__all__
__all__ += _elementwise.__all__
__all__ += _extreme.__all__
__all__ += _generator.__all__
__all__ += _grids.__all__
__all__ += _index.__all__
__all__ += _info.__all__
__all__ += _join.__all__
__all__ += _linalg.__all__
__all__ += _matmul.__all__
__all__ += _matrix_norms.__all__
__all__ += _norms.__all__
__all__ += _parts.__all__
__all__ += _promises.__all__
__all__ += _random.__all__
__all__ += _random_fill.__all__
__all__ += _rearrange.__all__
__all__ += _reduce.__all__
__all__ += _scan.__all__
__all__ += _scatter.__all__
__all__ += _segments.__all__
__all__ += _shape.__all__
__all__ += _softmax.__all__
__all__ += _sort.__all__
__all__ += _special_functions.__all__
__all__ += _split.__all__
__all__ += _statistics.__all__
__all__ += _threads.__all__
__all__ += _writes.__all__

newaxis = None
_tracebacks.install()
_sys.meta_path.append(_MissingModules)

# Names of the package answer a wrong argument with a sentence. Methods, and functions that check their operands
# themselves, stay bare: they are the hot path.
for _name in __all__:
    _value = globals().get(_name)
    if _inspect.isfunction(_value) and _value.__module__.startswith(("wayfare.functions", "wayfare.nn")):
        if getattr(_value, "checks_operands", False):
            continue
        globals()[_name] = _guarded(_value)

# The library above the engine is written against the names of this package, and loaded when it is first asked for.
_LIBRARY = {
    "data": "wayfare.data", "metrics": "wayfare.metrics", "optim": "wayfare.optim", "train": "wayfare.train",
    "debug": "wayfare.debug", "profile": "wayfare.profile", "Ragged": "wayfare.ragged",
    "compile": "wayfare.compiled.decorator",
    "map": "wayfare.batched.frontend", "batching": "wayfare.batched.frontend", "onnx": "wayfare.onnx",
    "cond": "wayfare.control", "scan": "wayfare.control", "while_loop": "wayfare.control",
    "report": "wayfare.reporting", "save": "wayfare.io", "load": "wayfare.io", "Checkpoint": "wayfare.io",
    "export": "wayfare.program", "load_program": "wayfare.program",
}  # fmt: skip


if not _typing.TYPE_CHECKING:  # a type checker knows all names without it

    def __getattr__(name: str) -> object:
        if name in _LIBRARY:
            module = _importlib.import_module(_LIBRARY[name])
            value = module if module.__name__ == f"{__name__}.{name}" else getattr(module, name)
            globals()[name] = value
            return value
        raise _no_such_name(__name__, name, _elsewhere(name))


def _elsewhere(name: str) -> str | None:
    """What to write for a name that PyTorch has in its top package and Wayfare in another place only."""
    if name.startswith("_"):
        return None
    if hasattr(nn.functional, name):
        return f"use wf.nn.functional.{name}"
    return f"use the method: t.{name}(…)" if callable(getattr(Tensor, name, None)) else None


def __dir__() -> list[str]:
    return sorted({*globals(), *_LIBRARY})
