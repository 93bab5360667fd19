"""Special functions: error functions, the gamma family, Bessel functions, entropy terms."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from functools import partial
from typing import Any

from wayfare.core.autocast import FLOAT32_ON_CUDA
from wayfare.core.op import Rule
from wayfare.core.signature import COUNT
from wayfare.ops._define import NEVER, elementwise, refuses
from wayfare.ops.elementwise import onnx_functions as rules
from wayfare.ops.elementwise import onnx_iterative
from wayfare.ops.elementwise import onnx_special as fits

_float = partial(elementwise, promotion="float", kinds="f")
_POSITIVE = (0.3, 3.0)
_TWO_BY_ROOT_PI = 2 / math.sqrt(math.pi)


def _scipy(name: str) -> Any:
    """A reference from mpmath-free SciPy by another route than the forward: called on one Python float at a time."""

    def call(*numbers: Any) -> float:
        return float(getattr(importlib.import_module("scipy.special"), name)(*numbers))

    return call


erf = _float("erf", onnx="Erf", reference=math.erf, vjp=lambda m, g, _y, x: g * (_TWO_BY_ROOT_PI * m.exp(-(x * x))))
erfc = _float(
    "erfc", onnx=rules.erfc, reference=math.erfc, vjp=lambda m, g, _y, x: g * (-_TWO_BY_ROOT_PI * m.exp(-(x * x))),
)  # fmt: skip
erfcx = _float(
    "erfcx", onnx=fits.erfcx, reference=lambda x: math.exp(x * x) * math.erfc(x),
    vjp=lambda m, g, y, x: g * (2 * x * y - _TWO_BY_ROOT_PI),
)  # fmt: skip
erfinv = _float(
    "erfinv", autocast=FLOAT32_ON_CUDA, native_from=NEVER, workspace=1,
    onnx=fits.erfinv, reference=lambda x: _scipy("ndtri")((x + 1) / 2) / math.sqrt(2), domain=(-0.9, 0.9),
    vjp=lambda m, g, y, _x: g * (math.sqrt(math.pi) / 2 * m.exp(y * y)),
)  # fmt: skip
lgamma = _float(
    "lgamma", onnx=fits.lgamma, reference=math.lgamma, domain=_POSITIVE, vjp=lambda m, g, _y, x: g * m.digamma(x),
)  # fmt: skip
digamma = _float(
    "digamma", onnx=fits.digamma, domain=_POSITIVE, vjp=lambda m, g, _y, x: g * m.polygamma(x, n=1),
    reference=lambda x: _digamma_by_recurrence(x),
)  # fmt: skip


def _digamma_by_recurrence(x: float) -> float:
    """Shift the argument up, then the asymptotic series."""
    total = 0.0
    while x < 12:
        total -= 1 / x
        x += 1
    inverse = 1 / (x * x)
    series = inverse * (1 / 12 - inverse * (1 / 120 - inverse * (1 / 252 - inverse * (1 / 240 - inverse / 132))))
    return total + math.log(x) - 0.5 / x - series


polygamma = _float(
    "polygamma", attrs={"n": COUNT},
    onnx=fits.polygamma, formula=lambda m, x, *, n: m.digamma(x) if n == 0 else m.polygamma(n, x),
    domain=_POSITIVE,
    reference=lambda x, n: (
        (-1.0) ** (n + 1) * math.factorial(n) * _scipy("zeta")(n + 1, x) if n else _digamma_by_recurrence(x)
    ),
    vjp=lambda m, g, _y, x, *, n: g * m.polygamma(x, n=n + 1), sample_attrs=({"n": 1}, {"n": 2}, {"n": 0}),
)  # fmt: skip
zeta = _float(
    "zeta", onnx=onnx_iterative.zeta, arity=2, domain=((1.5, 4.0), (0.5, 3.0)), reference=_scipy("zeta"),
    vjp=(refuses("zeta", "input"), lambda m, g, _y, x, q: -(g * x * m.zeta(x + 1, q))),
)  # fmt: skip
ndtr = _float(
    "ndtr", onnx=rules.normal_cdf, reference=lambda x: 0.5 * math.erfc(-x / math.sqrt(2)),
    vjp=lambda m, g, _y, x: g * (m.exp(x * x * -0.5) * (1 / math.sqrt(2 * math.pi))),
)  # fmt: skip
ndtri = _float(
    "ndtri", onnx=fits.ndtri, reference=_scipy("ndtri"), domain=(0.1, 0.9),
    vjp=lambda m, g, y, _x: g * (m.exp(y * y * 0.5) * math.sqrt(2 * math.pi)),
)  # fmt: skip
log_ndtr = _float(
    "log_ndtr", onnx=fits.log_ndtr, reference=lambda x: math.log(0.5 * math.erfc(-x / math.sqrt(2))),
    vjp=lambda m, g, _y, x: g * m.normal_hazard(x),
)  # fmt: skip


def _hazard_vjp(m: Any, g: Any, y: Any, x: Any) -> Any:
    # -y (y + x). Far below 0 that is a difference of two large numbers; there a continued fraction gives it.
    far = x < -5
    z = m.where(far, -x, m.zeros_like(x) + 5)
    tail = z
    for k in range(12, 1, -1):
        tail = z + k / tail
    return -g * y * m.where(far, 1 / tail, y + x)


# The normal density over its own integral: the gradient of log_ndtr. A record, because the gradient of erfcx overflows.
normal_hazard = _float(
    "normal_hazard", vjp=_hazard_vjp, domain=(-7.0, 3.0),
    formula=lambda m, x: math.sqrt(2 / math.pi) / m.erfcx(x * (-1 / math.sqrt(2))),
    reference=lambda x: math.sqrt(2 / math.pi) * math.exp(-x * x / 2) / math.erfc(-x / math.sqrt(2)),
)  # fmt: skip
i0 = _float("i0", onnx=fits.modified(0, False), reference=_scipy("i0"), vjp=lambda m, g, _y, x: g * m.i1(x))
i0e = _float(
    "i0e", onnx=fits.modified(0, True), reference=_scipy("i0e"), vjp=lambda m, g, y, x: g * (m.i1e(x) - m.sign(x) * y),
)  # fmt: skip


def _i1_gradient(m: Any, zeroth: Any, y: Any, x: Any) -> Any:
    """I0 - I1 / x, and 1/2 at 0."""
    tiny = x == 0
    safe = m.where(tiny, m.cos(m.zeros_like(x)), x)
    return m.where(tiny, m.cos(m.zeros_like(x)) * 0.5, zeroth - y / safe)


def _bessel(name: str, onnx: Callable[..., Any], vjp: Rule, **facts: Any) -> None:
    """A Bessel function of positive numbers that has the same name in SciPy."""
    _float(name, onnx=onnx, reference=_scipy(name), domain=_POSITIVE, vjp=vjp, **facts)


_bessel("i1", fits.modified(1, False), lambda m, g, y, x: g * _i1_gradient(m, m.i0(x), y, x))
_bessel("i1e", fits.modified(1, True), lambda m, g, y, x: g * (_i1_gradient(m, m.i0e(x), y, x) - m.sign(x) * y),
        native_from=NEVER)  # fmt: skip
_bessel("j1", fits.first_kind(1), lambda m, g, y, x: g * (m.j0(x) - y / x))
_bessel("y0", fits.second_kind(0), lambda m, g, _y, x: -(g * m.y1(x)))
_bessel("y1", fits.second_kind(1), lambda m, g, y, x: g * (m.y0(x) - y / x))
_bessel("k0", fits.decaying(0, False), lambda m, g, _y, x: -(g * m.k1(x)))
_bessel("k1", fits.decaying(1, False), lambda m, g, y, x: -(g * (m.k0(x) + y / x)))
_bessel("k0e", fits.decaying(0, True), lambda m, g, y, x: g * (y - m.k1e(x)))
_bessel("k1e", fits.decaying(1, True), lambda m, g, y, x: g * (y - m.k0e(x) - y / x))
j0 = _float(
    "j0", native_from=NEVER, onnx=fits.first_kind(0), reference=_scipy("j0"), vjp=lambda m, g, _y, x: -(g * m.j1(x)),
)  # fmt: skip


def _gamma_density(m: Any, a: Any, x: Any) -> Any:
    """The derivative of the regularised lower incomplete gamma function by its second argument."""
    return m.exp((a - 1) * m.log(x) - x - m.lgamma(a))


gammainc = _float(
    "gammainc", onnx=onnx_iterative.incomplete_gamma(False), arity=2, reference=_scipy("gammainc"), domain=_POSITIVE,
    vjp=(refuses("igamma", "input"), lambda m, g, _y, a, x: g * _gamma_density(m, a, x)),
)  # fmt: skip
gammaincc = _float(
    "gammaincc", onnx=onnx_iterative.incomplete_gamma(True), arity=2, reference=_scipy("gammaincc"), domain=_POSITIVE,
    vjp=(refuses("igammac", "input"), lambda m, g, _y, a, x: -(g * _gamma_density(m, a, x))),
)  # fmt: skip


def _x_log(name: str, log: str, shift: int) -> None:
    """x * log(y + shift), and 0 where x is 0."""

    def by_x(m: Any, g: Any, _y: Any, x: Any, y: Any) -> Any:
        return m.gate(getattr(m, name)(g, y), m.logical_not(m.logical_and(x == 0, y <= -shift)))

    _float(
        name, onnx=rules.x_log(log, shift), arity=2, reference=lambda x, y: x * math.log(y + shift),
        domain=((-2, 2), (-0.5 if shift else 0.3, 3.0)),
        vjp=(by_x, lambda m, g, _y, x, y: g * (x / (y + shift if shift else y))),
    )  # fmt: skip


_x_log("xlogy", "log", 0)
_x_log("xlog1py", "log1p", 1)


entr = _float(
    "entr", formula=lambda m, x: m.where(x < 0, -math.inf, -m.xlogy(x, x)), reference=lambda x: -x * math.log(x),
    domain=_POSITIVE,
    vjp=lambda m, g, _y, x: m.where(x < 0, g * math.nan, -(g * (m.log(x) + 1))),
)  # fmt: skip


def _airy(x: Any) -> Any:
    return importlib.import_module("scipy.special").airy(x)[0].astype(x.dtype)


def _airy_by_bessel(x: float) -> float:
    root = math.sqrt(x / 3) / math.pi
    return float(root * importlib.import_module("scipy.special").kv(1 / 3, 2 / 3 * x**1.5))


# PyTorch has no derivative of it either.
airy_ai = _float("airy_ai", onnx=fits.airy_ai, forward=_airy, reference=_airy_by_bessel, domain=_POSITIVE)
