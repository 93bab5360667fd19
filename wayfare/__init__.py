"""Wayfare: a deep-learning framework about the dynamic computation graph.

    import wayfare as wf

The names, signatures and semantics are PyTorch's wherever it has them; what is new has new names.
"""

import warnings as _warnings

# Division by zero and the like give inf or nan, as in PyTorch, without NumPy's warning about our own lines.
_warnings.filterwarnings("ignore", category=RuntimeWarning, module=r"wayfare\.")

from wayfare import ops as _ops  # noqa: E402, F401
from wayfare.spec import (  # noqa: E402
    Device as device,
    DType as dtype,
    Size,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
)
from wayfare.spec import bool_ as bool  # noqa: E402
from wayfare.spec import float16 as half  # noqa: E402
from wayfare.spec import float32 as float  # noqa: E402
from wayfare.spec import float64 as double  # noqa: E402
from wayfare.spec import int16 as short  # noqa: E402
from wayfare.spec import int32 as int  # noqa: E402
from wayfare.spec import int64 as long  # noqa: E402
from wayfare.tensor import Tensor  # noqa: E402
from wayfare.functions.arithmetic import *  # noqa: E402, F403
from wayfare.functions.creation import *  # noqa: E402, F403
from wayfare.functions.generator import *  # noqa: E402, F403
from wayfare.functions.random import *  # noqa: E402, F403
from wayfare import autograd, func, testing  # noqa: E402
from wayfare import interop as _interop  # noqa: E402, F401
from wayfare import methods as _methods  # noqa: E402, F401
from wayfare import printing as _printing  # noqa: E402, F401
from wayfare.autograd.modes import (  # noqa: E402
    enable_grad,
    inference_mode,
    is_grad_enabled,
    is_inference_mode_enabled,
    no_grad,
    set_grad_enabled,
)
from wayfare.autograd.vmap import vmap  # noqa: E402
from wayfare.graph.text import graph  # noqa: E402
from wayfare.version import __version__  # noqa: E402
