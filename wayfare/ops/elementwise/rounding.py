"""Rounding ops. Their gradient is zero."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from wayfare.core.op import Sample
from wayfare.core.signature import INT, takes
from wayfare.core.spec import Spec, int32
from wayfare.ops._define import UFUNC, define, elementwise, in_front
from wayfare.ops.elementwise import onnx_arithmetic as rules


def _zero_gradient(m: Any, g: Any, _y: Any, _x: Any, **_attrs: Any) -> Any:
    return m.zeros_like(g)


floor = elementwise("floor", onnx=rules.of_floats("Floor", rules.same), reference=math.floor, vjp=_zero_gradient)
ceil = elementwise("ceil", onnx=rules.of_floats("Ceil", rules.same), reference=math.ceil, vjp=_zero_gradient)
trunc = elementwise("trunc", onnx=rules.trunc, reference=math.trunc, vjp=_zero_gradient)
frac = elementwise(
    "frac", native_from=32768, formula=lambda m, x: x - m.trunc(x), reference=lambda x: math.fmod(x, 1), kinds="f",
    vjp=lambda m, g, _y, _x: g,
)  # fmt: skip


def _round(m: Any, x: Any, *, decimals: int) -> Any:
    if decimals == 0:
        return m.rint(x)
    factor = 10.0 ** abs(decimals)
    return m.rint(x * factor) / factor if decimals > 0 else m.rint(x / factor) * factor


round_ = elementwise(
    "round", native_from=UFUNC, attrs={"decimals": INT},
    onnx=rules.round_half_even, formula=_round, reference=lambda x, decimals: round(x, decimals),
    vjp=_zero_gradient,
    sample_attrs=({"decimals": 0}, {"decimals": 2}, {"decimals": -1}), domain=(-30.3, 30.2),
)  # fmt: skip


frexp = define(
    "frexp", signature=takes(1), onnx=rules.frexp,
    family="elementwise",
    forward=np.frexp,
    infer=lambda x: (x, Spec(x.shape, int32)),
    vjp=(lambda m, g, y, x_spec: g[0] / m.exp2(m.cast(y[1], dtype=x_spec.dtype)),),
    batch=in_front("frexp"),
    reference=lambda x: tuple(np.array([math.frexp(v) for v in x.ravel()]).reshape(-1, 2).T.reshape(2, *x.shape)),
    samples=lambda rng: [Sample((rng.uniform(0.6, 9, (2, 3)),)), Sample((rng.uniform(0.6, 0.9, ()),))],
    outputs=2,
    differentiable_outputs=(0,),
    kept_outputs=(1,),
    kinds="f",
)
