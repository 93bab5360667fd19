"""Window functions: M weights that rise and fall, to be multiplied with a part of a signal.

All take `sym`: True for a symmetric window (filters), False for one period of a periodic one (spectra).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from wayfare.api.functions._new import made, read_device, read_dtype, read_int
from wayfare.core.errors import ArgumentError
from wayfare.core.tensor import Tensor

__all__ = [
    "bartlett", "blackman", "cosine", "exponential", "gaussian", "general_cosine", "general_hamming",
    "hamming", "hann", "kaiser", "nuttall",
]  # fmt: skip

# weights(n, length): the window at the points n = 0, 1, … of a symmetric window of that length.
Weights = Callable[[Any, int], Any]


def _window(name: str, M: int, weights: Weights, sym: bool, options: dict[str, Any]) -> Tensor:
    unknown = set(options) - {"dtype", "layout", "device", "requires_grad"}
    if unknown:
        raise ArgumentError(f"{name}: unknown argument {unknown.pop()!r}")
    kind = read_dtype(name, options.get("dtype"))
    if kind.name not in ("float32", "float64"):
        raise ArgumentError(f"{name}: a window is of float32 or float64, not {kind}")
    count = read_int(name, "M", M)
    if count < 0:
        raise ArgumentError(f"{name}: the length of the window must not be negative, but is {count}")
    length = count if sym else count + 1
    values = np.ones(count) if count <= 1 else weights(np.arange(count, dtype=np.float64), length)
    return made(np.asarray(values, kind.numpy), options.get("requires_grad", False), read_device(options.get("device")))


def _positive(name: str, what: str, value: float) -> None:
    if not value > 0:
        raise ArgumentError(f"{name}: {what} must be positive, but is {value}")


def exponential(M: int, *, center: float | None = None, tau: float = 1.0, sym: bool = True, **options: Any) -> Tensor:
    """exp(-|n - center| / tau)."""
    _positive("exponential", "tau", tau)
    if sym and center is not None:
        raise ArgumentError("exponential: a symmetric window has its center in the middle",
                            fix="Use sym=False to set the center.")  # fmt: skip

    def weights(n: Any, length: int) -> Any:
        return np.exp(-np.abs(n - ((length - 1) / 2 if center is None else center)) / tau)

    return _window("exponential", M, weights, sym, options)


def cosine(M: int, *, sym: bool = True, **options: Any) -> Tensor:
    """Half a period of the sine."""
    return _window("cosine", M, lambda n, length: np.sin(np.pi * (n + 0.5) / length), sym, options)


def gaussian(M: int, *, std: float = 1.0, sym: bool = True, **options: Any) -> Tensor:
    """The bell curve of deviation `std`, in points."""
    _positive("gaussian", "std", std)
    return _window("gaussian", M, lambda n, length: np.exp(-(((n - (length - 1) / 2) / std) ** 2) / 2), sym, options)


def kaiser(M: int, *, beta: float = 12.0, sym: bool = True, **options: Any) -> Tensor:
    """Bessel's I0 over a half circle; a larger `beta` gives a wider main lobe and lower side lobes."""
    if beta < 0:
        raise ArgumentError(f"kaiser: beta must not be negative, but is {beta}")

    def weights(n: Any, length: int) -> Any:
        half = (length - 1) / 2
        return np.i0(beta * np.sqrt(np.maximum(0, 1 - ((n - half) / half) ** 2))) / np.i0(beta)

    return _window("kaiser", M, weights, sym, options)


def bartlett(M: int, *, sym: bool = True, **options: Any) -> Tensor:
    """A triangle that is zero at both ends."""
    return _window("bartlett", M, lambda n, length: 1 - np.abs(2 * n / (length - 1) - 1), sym, options)


def general_cosine(M: int, *, a: Iterable[float], sym: bool = True, **options: Any) -> Tensor:
    """A sum of cosines with the weights `a` and alternating signs."""
    return _cosines("general_cosine", M, tuple(a), sym, options)


def _cosines(name: str, M: int, a: tuple[float, ...], sym: bool, options: dict[str, Any]) -> Tensor:
    if not a:
        raise ArgumentError(f"{name}: needs at least one weight")

    def weights(n: Any, length: int) -> Any:
        angle = 2 * np.pi * n / (length - 1)
        return sum((-1) ** k * weight * np.cos(k * angle) for k, weight in enumerate(a))

    return _window(name, M, weights, sym, options)


def general_hamming(M: int, *, alpha: float = 0.54, sym: bool = True, **options: Any) -> Tensor:
    """alpha - (1 - alpha) cos(2πn / (M - 1))."""
    return _cosines("general_hamming", M, (alpha, 1 - alpha), sym, options)


def hamming(M: int, *, sym: bool = True, **options: Any) -> Tensor:
    """A raised cosine that stays above zero at the ends."""
    return _cosines("hamming", M, (0.54, 0.46), sym, options)


def hann(M: int, *, sym: bool = True, **options: Any) -> Tensor:
    """A raised cosine that is zero at the ends."""
    return _cosines("hann", M, (0.5, 0.5), sym, options)


def blackman(M: int, *, sym: bool = True, **options: Any) -> Tensor:
    """Three cosines, by Blackman."""
    return _cosines("blackman", M, (0.42, 0.5, 0.08), sym, options)


def nuttall(M: int, *, sym: bool = True, **options: Any) -> Tensor:
    """Four cosines with the smallest side lobes, by Nuttall."""
    return _cosines("nuttall", M, (0.3635819, 0.4891775, 0.1365995, 0.0106411), sym, options)
