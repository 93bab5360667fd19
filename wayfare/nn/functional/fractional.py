"""Max pooling over windows at random places: fractional_max_pool2d and 3d."""

from __future__ import annotations

import math
from typing import Any

from wayfare.api.functions._public import named
from wayfare.api.functions.random import rand
from wayfare.core.dispatch import tensor_ops as m
from wayfare.core.errors import ArgumentError, OperationError
from wayfare.core.tensor import Tensor
from wayfare.nn.functional.conv import IntOrInts, per_dim, with_batch, without_batch

__all__ = [
    "fractional_max_pool2d", "fractional_max_pool2d_with_indices", "fractional_max_pool3d",
    "fractional_max_pool3d_with_indices",
]  # fmt: skip


def _fractional(
    op: str, rank: int, input: Tensor, kernel_size: IntOrInts, output_size: Any, output_ratio: Any,
    samples: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    x, added = with_batch(op, input, rank)
    kernel = per_dim(op, "kernel_size", kernel_size, rank, 1)
    sizes = tuple(x.shape[2:])
    counts = _counts(op, rank, sizes, output_size, output_ratio)
    if any(o + k - 1 > n for o, k, n in zip(counts, kernel, sizes, strict=True)):
        raise OperationError(f"{op}: {list(counts)} windows of {list(kernel)} do not fit into {input.spec}")
    if samples is None:
        samples = rand(x.shape[0], x.shape[1], rank, dtype=x.dtype)
    places = m.fractional_places(samples, sizes=sizes, counts=counts, kernel=kernel)
    flat = m.reshape(x, shape=(*x.shape[:2], math.prod(sizes)))
    windows = m.gather(flat.detach(), m.reshape(places, shape=(*x.shape[:2], math.prod(places.shape[2:]))), dim=2)
    number = _first_largest(m.reshape(windows, shape=places.shape))
    best = m.reshape(m.gather(places, number, dim=3), shape=places.shape[:3])
    out = m.gather(flat, best, dim=2)
    shape = (*x.shape[:2], *counts)
    return tuple(without_batch(m.reshape(t, shape=shape), added) for t in (out, best))  # type: ignore[return-value]


def _first_largest(windows: Tensor) -> Tensor:
    """Where the largest along the last dimension is, which stays: of equals the first, of NaNs the last."""
    nan = m.isnan(windows)
    last = windows.shape[3] - 1 - m.argmax(m.flip(nan, dims=(3,)), dim=(3,), keepdim=True)
    return m.where(m.any(nan, dim=(3,), keepdim=True), last, m.argmax(windows, dim=(3,), keepdim=True))  # type: ignore[no-any-return]


def _counts(op: str, rank: int, sizes: tuple[int, ...], output_size: Any, output_ratio: Any) -> tuple[int, ...]:
    if (output_size is None) == (output_ratio is None):
        raise ArgumentError(f"{op}: give either output_size or output_ratio")
    if output_size is not None:
        return per_dim(op, "output_size", output_size, rank, 1)
    ratios = tuple(output_ratio) if isinstance(output_ratio, (tuple, list)) else (output_ratio,) * rank
    if len(ratios) != rank or not all(0 < ratio < 1 for ratio in ratios):
        raise ArgumentError(f"{op}: output_ratio must be between 0 and 1, it is {output_ratio}")
    return tuple(int(n * ratio) for n, ratio in zip(sizes, ratios, strict=True))


def _functions(rank: int, letters: str) -> tuple[Any, Any]:
    name = f"fractional_max_pool{rank}d"

    def with_indices(
        input: Tensor, kernel_size: IntOrInts, output_size: Any = None, output_ratio: Any = None,
        return_indices: bool = False, _random_samples: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        return _fractional(name, rank, input, kernel_size, output_size, output_ratio, _random_samples)

    def pool(
        input: Tensor, kernel_size: IntOrInts, output_size: Any = None, output_ratio: Any = None,
        return_indices: bool = False, _random_samples: Tensor | None = None,
    ) -> Any:  # fmt: skip
        found = _fractional(name, rank, input, kernel_size, output_size, output_ratio, _random_samples)
        return found if return_indices else found[0]

    doc = (
        f"The largest element of windows of {letters} at random places, so many that `output_size` (or a ratio) results"
    )
    return named(pool, name, doc + "."), named(with_indices, name + "_with_indices", doc + ", and its place.")


fractional_max_pool2d, fractional_max_pool2d_with_indices = _functions(2, "(N, C, H, W)")
fractional_max_pool3d, fractional_max_pool3d_with_indices = _functions(3, "(N, C, D, H, W)")
