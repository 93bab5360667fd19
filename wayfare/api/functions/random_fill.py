"""Random draws written into a tensor: uniform_, normal_, exponential_, bernoulli_, random_, …"""

from __future__ import annotations

from typing import Any

import numpy as np

from wayfare.api.functions._new import read_int
from wayfare.api.functions._public import add_method, as_dtype_of
from wayfare.api.functions.random import check_floating, draw, integers
from wayfare.api.functions.shape import expanded
from wayfare.api.functions.writes import write_values
from wayfare.core.dispatch import apply
from wayfare.core.errors import OperationError
from wayfare.core.generator import Generator, key_for
from wayfare.core.inplace import check_writable
from wayfare.core.op import REGISTRY
from wayfare.core.spec import float64, limits_of
from wayfare.core.tensor import Tensor

__all__: list[str] = []


def _real(self: Tensor, name: str, op: str, generator: Generator | None, **attrs: Any) -> Tensor:
    """Draw real numbers of the tensor's shape and dtype into it."""
    check_writable(self, name)
    kind = check_floating(name, self.dtype)
    return write_values(self, draw(op, key=key_for(generator), shape=tuple(self.shape), dtype=kind, **attrs), name)


def _require(holds: bool, name: str, sentence: str) -> None:
    if not holds:
        raise OperationError(f"{name}: {sentence}")


def uniform_(
    self: Tensor, from_: float = 0, to: float = 1, *, generator: Generator | None = None, **named: Any
) -> Tensor:
    """Evenly from [from, to)."""
    low = float(named.pop("from", from_))
    _require(not named, "uniform_", f"unexpected argument {next(iter(named), '')!r}")
    _require(low <= to, "uniform_", f"from ({low}) must not be above to ({to})")
    return _real(self, "uniform_", "random_uniform", generator, low=low, high=float(to))


def normal_(self: Tensor, mean: float = 0, std: float = 1, *, generator: Generator | None = None) -> Tensor:
    """From the normal distribution."""
    _require(std >= 0, "normal_", f"the deviation must not be negative, but is {std}")
    return _real(self, "normal_", "random_normal", generator, mean=float(mean), std=float(std))


def log_normal_(self: Tensor, mean: float = 1, std: float = 2, *, generator: Generator | None = None) -> Tensor:
    """Numbers whose logarithms are normal with the given mean and deviation."""
    _require(std > 0, "log_normal_", f"the deviation must be positive, but is {std}")
    return _real(self, "log_normal_", "random_log_normal", generator, mean=float(mean), std=float(std))


def exponential_(self: Tensor, lambd: float = 1, *, generator: Generator | None = None) -> Tensor:
    """From the exponential distribution of the given rate."""
    _require(lambd > 0, "exponential_", f"the rate must be positive, but is {lambd}")
    return _real(self, "exponential_", "random_exponential", generator, rate=float(lambd))


def cauchy_(self: Tensor, median: float = 0, sigma: float = 1, *, generator: Generator | None = None) -> Tensor:
    """From the Cauchy distribution."""
    _require(sigma > 0, "cauchy_", f"sigma must be positive, but is {sigma}")
    return _real(self, "cauchy_", "random_cauchy", generator, median=float(median), sigma=float(sigma))


def geometric_(self: Tensor, p: float, *, generator: Generator | None = None) -> Tensor:
    """How many trials of probability `p` until the first success."""
    _require(0 < p < 1, "geometric_", f"p must lie between 0 and 1, but is {p}")
    check_writable(self, "geometric_")
    key, shape = key_for(generator), tuple(self.shape)
    drawn = draw("random_geometric", key=key, shape=shape, dtype=self.dtype, p=float(p))
    return write_values(self, drawn, "geometric_")


def bernoulli_(self: Tensor, p: Any = 0.5, *, generator: Generator | None = None) -> Tensor:
    """1 with probability `p` (a number or a tensor), else 0."""
    check_writable(self, "bernoulli_")
    chances = p if isinstance(p, Tensor) else as_dtype_of(float(p), float64)
    chances = expanded(chances.detach(), tuple(self.shape))
    drawn = apply(REGISTRY["random_bernoulli"], (chances,), {"key": key_for(generator)})
    return write_values(self, as_dtype_of(drawn, self.dtype), "bernoulli_")


def random_(
    self: Tensor, from_: int | None = None, to: int | None = None, *, generator: Generator | None = None, **named: Any
) -> Tensor:
    """Whole numbers from `from` up to, not including, `to`; by default all from 0 on that the dtype holds."""
    check_writable(self, "random_")
    if from_ is not None and to is None:
        from_, to = None, from_  # random_(5) names the end
    low = named.pop("from", from_)
    _require(not named, "random_", f"unexpected argument {next(iter(named), '')!r}")
    first = 0 if low is None else read_int("random_", "from", low)
    last = _end_of(self) if to is None else read_int("random_", "to", to)
    return write_values(self, integers("random_", first, last, self.shape, generator, self.dtype), "random_")


def _end_of(x: Tensor) -> int:
    """One more than the largest whole number up to which the dtype holds every one."""
    kind = x.dtype
    if kind.rank == 2:
        return (2 << int(limits_of(kind).nmant)) + 1
    return 2 if kind.rank == 0 else min(int(np.iinfo(kind.numpy).max) + 1, 2**63 - 1)


for _function in (uniform_, normal_, log_normal_, exponential_, cauchy_, geometric_, bernoulli_, random_):
    add_method(_function.__name__, _function)
