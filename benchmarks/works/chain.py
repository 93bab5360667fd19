"""Long chains of small ops: what an op costs when the arithmetic in it is next to nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.works import Prepared, clear, gradients, leaf

OPS_PER_BLOCK = 10


def mixed(x: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """Ten ops as they come in real models: weights, a scalar, non-linear functions, a value used twice."""
    h = x * a
    h = h + b
    h = h.tanh()
    h = h - c
    h = h.sigmoid()
    h = h / d
    h = h + x
    h = h.relu()
    h = h * 0.5
    return -h


def products(x: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """Ten ops, every other one a matrix product."""
    h = (x @ a).tanh()
    h = (h @ b).tanh()
    h = (h @ c).tanh()
    h = (h @ d).tanh()
    return (h @ a).tanh()


def small_ops(m: Any, ops: int = 200, size: int = 8) -> Prepared:
    """Forward and backward through the mixed chain."""
    return _forward_and_backward(m, mixed, ops, size)


def small_products(m: Any, ops: int = 200, size: int = 8) -> Prepared:
    """Forward and backward through the chain of products."""
    return _forward_and_backward(m, products, ops, size)


def small_ops_forward(m: Any, ops: int = 200, size: int = 8) -> Prepared:
    """The mixed chain where nothing is recorded."""
    leaves = _leaves(m, size)

    def step() -> Any:
        with m.no_grad():
            return _run(mixed, leaves, ops)

    return Prepared(step, lambda: [step().numpy()])


def _forward_and_backward(m: Any, block: Callable[..., Any], ops: int, size: int) -> Prepared:
    leaves = _leaves(m, size)

    def step() -> None:
        clear(leaves)
        _run(block, leaves, ops).sum().backward()

    def results() -> list[np.ndarray]:
        step()
        return gradients(leaves)

    return Prepared(step, results)


def _leaves(m: Any, size: int) -> list[Any]:
    # Kept near one: divisors stay away from zero, products neither vanish nor explode.
    numbers = np.random.default_rng(0)
    return [leaf(m, numbers.uniform(0.5, 1.5, (size, size))) for _ in range(5)]


def _run(block: Callable[..., Any], leaves: list[Any], ops: int) -> Any:
    h, *weights = leaves
    for _ in range(ops // OPS_PER_BLOCK):
        h = block(h, *weights)
    return h
