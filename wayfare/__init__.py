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
from wayfare.functions.compare import *  # noqa: E402, F403
from wayfare.functions.convert import *  # noqa: E402, F403
from wayfare.functions.creation import *  # noqa: E402, F403
from wayfare.functions.einsum import *  # noqa: E402, F403
from wayfare.functions.elementwise import *  # noqa: E402, F403
from wayfare.functions.generator import *  # noqa: E402, F403
from wayfare.functions.grids import *  # noqa: E402, F403
from wayfare.functions.index import *  # noqa: E402, F403
from wayfare.functions.info import *  # noqa: E402, F403
from wayfare.functions.join import *  # noqa: E402, F403
from wayfare.functions.linalg import *  # noqa: E402, F403
from wayfare.functions.matmul import *  # noqa: E402, F403
from wayfare.functions.matrix_norms import *  # noqa: E402, F403
from wayfare.functions.norms import *  # noqa: E402, F403
from wayfare.functions.parts import *  # noqa: E402, F403
from wayfare.functions.random import *  # noqa: E402, F403
from wayfare.functions.rearrange import *  # noqa: E402, F403
from wayfare.functions.scatter import *  # noqa: E402, F403
from wayfare.functions.shape import *  # noqa: E402, F403
from wayfare.functions.special_functions import *  # noqa: E402, F403
from wayfare.functions.split import *  # noqa: E402, F403
from wayfare.functions.writes import *  # noqa: E402, F403
from wayfare.functions.copies import *  # noqa: E402, F403
from wayfare.functions.random_fill import *  # noqa: E402, F403
from wayfare.functions.distance import *  # noqa: E402, F403
from wayfare.functions.extreme import *  # noqa: E402, F403
from wayfare.functions.reduce import *  # noqa: E402, F403
from wayfare.functions.scan import *  # noqa: E402, F403
from wayfare.functions.softmax import *  # noqa: E402, F403
from wayfare.functions.sort import *  # noqa: E402, F403
from wayfare.functions.statistics import *  # noqa: E402, F403
from wayfare import autograd, func, testing, utils  # noqa: E402
from wayfare import linalg, nn, signal, special  # noqa: E402
from wayfare.nn.functional.activation import (  # noqa: E402
    celu,
    celu_,
    hardshrink,
    prelu,
    relu,
    relu_,
    rrelu,
    rrelu_,
    selu,
    selu_,
    threshold,
    threshold_,
)
from wayfare.functions import generator as random  # noqa: E402, F401
from wayfare import interop as _interop  # noqa: E402, F401
from wayfare import methods as _methods  # noqa: E402, F401
from wayfare import printing as _printing  # noqa: E402, F401
from wayfare.autograd.checkpoint import checkpoint  # noqa: E402
from wayfare.autograd.modes import (  # noqa: E402
    enable_grad,
    inference_mode,
    is_grad_enabled,
    is_inference_mode_enabled,
    no_grad,
    set_grad_enabled,
)
from wayfare.autograd.transforms import vmap  # noqa: E402
from wayfare.graph.text import graph  # noqa: E402
from wayfare.version import __version__  # noqa: E402
