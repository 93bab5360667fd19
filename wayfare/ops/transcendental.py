"""Exponentials, logarithms, roots, trigonometric and hyperbolic functions."""

from __future__ import annotations

import math

from wayfare.ops._define import elementwise

exp = elementwise("exp", reference=math.exp, promotion="float", kinds="f", vjp=lambda m, g, y, _x: g * y)
log = elementwise(
    "log", reference=math.log, promotion="float", kinds="f", domain=(0.2, 3.0), vjp=lambda m, g, _y, x: g / x
)
sqrt = elementwise(
    "sqrt", reference=math.sqrt, promotion="float", kinds="f", domain=(0.2, 3.0),
    vjp=lambda m, g, y, _x: g / (2 * y),
)  # fmt: skip
tanh = elementwise(
    "tanh", reference=math.tanh, promotion="float", kinds="f", vjp=lambda m, g, y, _x: g - g * (y * y)
)
sigmoid = elementwise(
    "sigmoid", reference=lambda x: 1 / (1 + math.exp(-x)), promotion="float", kinds="f",
    vjp=lambda m, g, y, _x: g * (y - y * y),
)  # fmt: skip
