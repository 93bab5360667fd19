"""Functions that CUDA has itself: elementary functions, and the library functions that expressions call by name.

CUDA's function is used where its documented error is at most 2 ulp (the appendix "Mathematical Functions" of the CUDA
programming guide); all others are the expansions of `codegen.math`. Documented errors in ulp:

             f32  f64             f32  f64             f32  f64              f32  f64
    exp       1    1     log       1    1     sin       2    2      tanh      2    1
    exp2      2    1     log2      1    1     cos       2    2      cosh      2    1
    expm1     1    1     log10     2    1     asin      2    2      erf       2    2
    sqrt      0    0     log1p     1    1     acos      2    2      atan      2    2
    tan       –    2     atan2     –    2     sinh      –    2      atanh     –    2

No fast or approximate forms are used: divisions and roots are rounded correctly, denormal numbers are kept, and
products and sums are contracted only where the language says `fma`.
"""

from __future__ import annotations

from wayfare.codegen.cuda.special import SPECIAL
from wayfare.codegen.loop.expr import Expr
from wayfare.core.errors import LoopError

_BOTH = ("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "asin", "acos", "atan", "cosh", "tanh",
         "erf")  # fmt: skip
_ONLY_F64 = ("tan", "atan2", "sinh", "atanh")
BUILT_IN: dict[tuple[str, str], str] = {
    **{(name, "f32"): name + "f" for name in _BOTH},
    **{(name, "f64"): name for name in (*_BOTH, *_ONLY_F64)},
}
# Library functions of doubles, by their names in `call` and `rescue`.
_CALLS = {
    "fmod": "fmod", "pow": "pow", "sin": "sin", "cos": "cos", "tan": "tan", "scipy_lgamma": "lgamma",
    "scipy_j0": "j0", "scipy_j1": "j1", "scipy_y0": "y0", "scipy_y1": "y1", "scipy_erfinv": "erfinv",
    "scipy_ndtri": "normcdfinv",
}  # fmt: skip


def is_built_in(e: Expr) -> bool:
    """Is this a function that CUDA computes accurately enough?"""
    return bool(e.args) and (e.op, e.args[0].dtype) in BUILT_IN


def called(symbol: str) -> str:
    """The C name of a library function; functions in `special` are written there."""
    if symbol in SPECIAL:
        return symbol
    if symbol not in _CALLS:
        raise LoopError(f"there is no function {symbol!r} on a GPU")
    return _CALLS[symbol]
