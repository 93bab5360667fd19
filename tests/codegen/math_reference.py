"""What the maths library is measured against: exact functions, awkward numbers, and the distance in units of the last
place."""

import mpmath
import numpy as np

DTYPES = {"f32": np.float32, "f64": np.float64}


def _normal(x):
    return mpmath.erfc(-x / mpmath.sqrt(2)) / 2


EXACT = {
    "exp": mpmath.exp, "exp2": lambda x: mpmath.power(2, x), "expm1": mpmath.expm1, "log": mpmath.log,
    "log2": lambda x: mpmath.log(x, 2), "log10": mpmath.log10, "log1p": mpmath.log1p, "tanh": mpmath.tanh,
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)), "sinh": mpmath.sinh, "cosh": mpmath.cosh, "asinh": mpmath.asinh,
    "acosh": mpmath.acosh, "atanh": mpmath.atanh, "sin": mpmath.sin, "cos": mpmath.cos, "tan": mpmath.tan,
    "asin": mpmath.asin, "acos": mpmath.acos, "atan": mpmath.atan, "erf": mpmath.erf, "erfc": mpmath.erfc,
    "erfcx": lambda x: mpmath.exp(x * x) * mpmath.erfc(x), "ndtr": _normal,
    "log_ndtr": lambda x: mpmath.log1p(-_normal(-x)) if x > -1 else mpmath.log(_normal(x)),
    "rsqrt": lambda x: 1 / mpmath.sqrt(x), "square": lambda x: x * x, "reciprocal": lambda x: 1 / x,
    "pow": mpmath.power, "atan2": lambda y, x: mpmath.atan2(y, x) if y else mpmath.nan, "hypot": mpmath.hypot,
    "xlogy": lambda x, y: x * mpmath.log(y), "xlog1py": lambda x, y: x * mpmath.log1p(y),
    "logaddexp": lambda a, b: mpmath.log(mpmath.exp(a) + mpmath.exp(b)),
    "logaddexp2": lambda a, b: mpmath.log(mpmath.power(2, a) + mpmath.power(2, b), 2),
    "ldexp": lambda x, n: mpmath.ldexp(x, int(n)),
}  # fmt: skip


def special(dtype):
    """Zeros, infinities, NaN, denormals, and numbers beside which something changes."""
    info = np.finfo(DTYPES[dtype])
    tiny = float(info.smallest_subnormal)
    numbers = [0.0, 1.0, 0.5, 2.0, 3.0, np.inf, np.pi, np.pi / 2, 1e5, 1e10, 0.92, 0.6, 0.5404, np.sqrt(0.5),
               1 + 2 * float(info.eps), 1 - 2 * float(info.eps), 88.7, 87.4, 103.5, 104.5, 709.7, 710.4, 744.5, 746.5,
               float(info.max), float(info.tiny), float(info.tiny) / 2, tiny, 5 * tiny]  # fmt: skip
    with np.errstate(over="ignore"):
        return np.array([np.nan, *numbers, *(-n for n in numbers)]).astype(DTYPES[dtype])


def numbers(dtype, count, seed):
    """Special values, then bit patterns of every exponent, then ordinary sizes."""
    draw = np.random.default_rng(seed)
    whole = np.uint32 if dtype == "f32" else np.uint64
    patterns = draw.integers(0, np.iinfo(whole).max, count, dtype=whole, endpoint=True).view(DTYPES[dtype])
    size = count // 4
    small_and_large = np.exp(draw.uniform(-30, 8, size)) * draw.choice([-1, 1], size)
    around_one = 1 + draw.uniform(-1, 1, size)
    ordinary = [draw.uniform(-1, 1, size), draw.normal(0, 5, size), draw.normal(0, 100, size)]
    ordinary += [around_one, small_and_large]
    return np.concatenate([special(dtype), patterns, *(o.astype(DTYPES[dtype]) for o in ordinary)])


def exactly(name, *arrays, bits=300):
    """The function in many digits, element by element; None where it is no finite real number."""

    def one(*values):
        if not all(np.isfinite(values)):
            return None
        try:
            result = EXACT[name](*(mpmath.mpf(float(v)) for v in values))
        except (ValueError, ZeroDivisionError, OverflowError):
            return None
        return result if isinstance(result, mpmath.mpf) and mpmath.isfinite(result) else None

    with mpmath.workprec(bits):
        return [one(*values) for values in zip(*arrays, strict=True)]


def distance(got, exact, dtype):
    """How many units of the last place a number is away from the exact result; an overflow must be one."""
    info = np.finfo(DTYPES[dtype])
    if exact == 0:
        return 0.0 if got == 0 else np.inf
    if abs(exact) > mpmath.mpf(float(info.max)) * (1 + mpmath.mpf(2) ** -(info.nmant + 2)):
        return 0.0 if np.isinf(got) and (got > 0) == (exact > 0) else np.inf
    if not np.isfinite(got):
        # One unit too many at the very end is an infinity.
        return 1.0 if np.isinf(got) and abs(exact) > mpmath.mpf(float(info.max)) * (1 - 4 * float(info.eps)) else np.inf
    _, exponent = mpmath.frexp(exact)
    unit = mpmath.ldexp(1, max(int(exponent) - 1 - info.nmant, info.minexp - info.nmant))
    return float(abs(mpmath.mpf(float(got)) - exact) / unit)
