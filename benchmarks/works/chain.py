"""Long chains of small ops: what an op costs when the arithmetic in it is next to nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.works import CPU, Prepared, clear, gradients, leaf

OPS_PER_BLOCK = 10

# From where weights are drawn: values and gradients must neither vanish nor explode along the chain.
NEAR_ONE = (0.5, 1.5)
KEEPING_LENGTH = (-0.8, 0.8)


def mixed(x: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """Ten ops as they come in real models: weights, a scalar, non-linear functions, a value used twice."""
    h = x * a
    h = -h
    h = h + b
    h = h.tanh()
    h = h - c
    h = h.sigmoid()
    h = h / d
    h = h + x
    h = h.relu()
    return h * 0.5


def products(x: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """Ten ops, every other one a matrix product."""
    h = (x @ a).tanh()
    h = (h @ b).tanh()
    h = (h @ c).tanh()
    h = (h @ d).tanh()
    return (h @ a).tanh()


def small_ops(m: Any, ops: int = 200, size: int = 8, device: str = CPU) -> Prepared:
    """Forward and backward through the mixed chain."""
    return _forward_and_backward(mixed, _weights(m, size, NEAR_ONE, device), ops)


def small_products(m: Any, ops: int = 200, size: int = 8) -> Prepared:
    """Forward and backward through the chain of products."""
    return _forward_and_backward(products, _weights(m, size, KEEPING_LENGTH), ops)


def small_ops_forward(m: Any, ops: int = 200, size: int = 8) -> Prepared:
    """The mixed chain where nothing is recorded."""
    leaves = _weights(m, size, NEAR_ONE)

    def step() -> Any:
        with m.no_grad():
            return _run(mixed, leaves, ops)

    return Prepared(step, lambda: [step().numpy()])


def _forward_and_backward(block: Callable[..., Any], leaves: list[Any], ops: int) -> Prepared:
    def step() -> None:
        clear(leaves)
        _run(block, leaves, ops).sum().backward()

    def results() -> list[np.ndarray]:
        step()
        return gradients(leaves)

    return Prepared(step, results)


def _weights(m: Any, size: int, span: tuple[float, float], device: str = CPU) -> list[Any]:
    numbers = np.random.default_rng(0)
    return [leaf(m, numbers.uniform(*span, (size, size)), device) for _ in range(5)]


def _run(block: Callable[..., Any], leaves: list[Any], ops: int) -> Any:
    h, *weights = leaves
    for _ in range(ops // OPS_PER_BLOCK):
        h = block(h, *weights)
    return h
