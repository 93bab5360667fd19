"""The maths library: every elementary function that is not a primitive, written in primitives.

The code generator calls `lower`. The rules are in the other files of this folder, by family. They have no branches and
no tables, so that they run on vectors of any length.

Measured errors in units in the last place (ulp), over all exponents, on millions of f32 and tens of thousands of f64;
the tests allow slightly more. NumPy's f32 errors are mostly larger than these, its f64 errors mostly smaller (0.5 to
0.8).

             f32   f64                f32   f64             f32   f64               f32   f64
    exp      1.0   0.9      tanh      1.4   2.4      sin    1.6   1.1      erf      1.5   1.1
    exp2     1.1   1.1      sigmoid   2.0   1.9      cos    1.5   1.5      erfc     0.5   3.2
    expm1    1.6   1.9      sinh      1.6   1.5      tan    1.8   2.3      erfcx    0.5   2.2
    log      0.8   0.8      cosh      1.5   1.3      asin   1.4   1.5      ndtr     0.5   3.8
    log2     1.7   1.4      asinh     0.5   1.6      acos   1.1   1.1      log_ndtr 0.5   4.3
    log10    1.9   1.6      acosh     0.5   1.7      atan   1.3   1.3      pow      0.5   0.5
    log1p    1.4   1.3      atanh     0.5   1.7      atan2  1.7   1.6      hypot    0.5   1.2

logaddexp has cancellation where its result is near zero, as NumPy's has. zeta, polygamma, gcd, lcm and powers of
integers by a variable are missing: SciPy's C interface lacks the first two, and the others need loops of variable
length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from wayfare.codegen.loop.expr import PRIMITIVES, Expr, LoopMath, expr, walk
from wayfare.codegen.loop.instruction import INSTRUCTIONS
from wayfare.codegen.loop.language import Loop, Reduction, Stage
from wayfare.codegen.math import calls, erf, exp, log, power, rounding, trig
from wayfare.codegen.math.calls import numpy_form, symbol_address
from wayfare.codegen.math.parts import Rule, layout
from wayfare.core.errors import LoopError
from wayfare.core.numpy_math import numpy_math

__all__ = ["KNOWN", "cost_of", "expand", "loop_math", "lower", "lowered", "numpy_function", "symbol_address"]

_OF_FLOATS: dict[str, Rule] = {
    **erf.RULES, **exp.RULES, **log.RULES, **trig.RULES, **calls.RULES,
}  # fmt: skip
_RULES: dict[str, Rule] = {**_OF_FLOATS, **power.RULES, **rounding.RULES}
# The functions that `expand` can expand.
KNOWN: frozenset[str] = frozenset(_RULES)
loop_math = LoopMath(KNOWN | PRIMITIVES)


def expand(e: Expr) -> Expr:
    """The same value, written with primitives and other known functions."""
    if e.op not in KNOWN:
        raise LoopError(f"the maths library has no function {e.op!r}")
    if e.op in _OF_FLOATS:
        layout(e.args[0])
    found = _RULES[e.op](*e.args)
    if found.dtype != e.dtype:
        raise LoopError(f"{e.op} of {e.dtype} came out as {found.dtype}")
    return found


def cost_of(name: str) -> int:
    """Roughly how long an instruction or a function takes, in additions."""
    instruction = INSTRUCTIONS.get(name)
    if instruction is not None:
        return instruction.cost
    return 1 if name in rounding.CHEAP else 4 if name in rounding.DIVISIONS else 10


def _none(_e: Expr) -> bool:
    return False


def lower(roots: Sequence[Expr], keeps: Callable[[Expr], bool] = _none) -> list[Expr]:
    """The same values in primitives, and in the functions that `keeps` accepts; shared subexpressions stay shared."""
    done: dict[int, Expr] = {}

    def plain(root: Expr) -> Expr:
        for e in walk(root):
            if id(e) not in done:
                args = tuple(done[id(a)] for a in e.args)
                kept = all(a is b for a, b in zip(args, e.args, strict=True))
                same = e if kept else expr(e.op, args, e.dtype, e.value)
                done[id(e)] = plain(expand(same)) if same.op in KNOWN and not keeps(same) else same
                done.setdefault(id(same), done[id(e)])
                alive.extend((e, same))
        return done[id(root)]

    # `done` is keyed by id, so every expression in it must stay alive until the end.
    alive: list[Expr] = list(roots)
    return [plain(root) for root in roots]


def lowered(loop: Loop, keeps: Callable[[Expr], bool] = _none) -> Loop:
    """The loop with all functions expanded into primitives, but for those that `keeps` accepts."""
    stages = []
    for stage in loop.stages:
        roots = iter(lower(stage.values, keeps))
        stores = tuple((k, next(roots)) for k, _ in stage.stores)
        reductions = tuple(Reduction(f.kind, next(roots)) for f in stage.reductions)
        at = tuple(s.rebuilt([next(roots) for _ in s.values]) for s in stage.stores_at)
        carries = tuple((next(roots), next(roots)) for _ in stage.carries)
        stages.append(Stage(stores, reductions, at, carries))
    results = lower([v for _, v in loop.results], keeps)
    return Loop(loop.name, loop.inputs, loop.outputs, tuple(stages),
                tuple((k, e) for (k, _), e in zip(loop.results, results, strict=True)))  # fmt: skip


def _ldexp(x: Any, n: Any) -> Any:
    return np.ldexp(x, np.clip(n, -5000, 5000).astype(np.int32))


_OURS: dict[str, Callable[..., Any]] = {
    "rsqrt": lambda x: 1 / np.sqrt(x), "reciprocal": lambda x: 1 / x, "ldexp": _ldexp,
}  # fmt: skip


def numpy_function(name: str) -> Callable[..., Any]:
    """The NumPy form of a known function or of a library function, for the interpreter."""
    if name in _OURS:
        return _OURS[name]
    found: Callable[..., Any] | None = getattr(numpy_math, name, None)
    return found if found is not None else numpy_form(name)
