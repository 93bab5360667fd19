"""Elementwise work on large arrays: here the kernels count, not the cost of an op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.works import Prepared, clear, constant, gradients, leaf


def forward(m: Any, op: str, count: int) -> Prepared:
    """One op of `OPS` on `count` float32 numbers, nothing recorded."""
    numbers = np.random.default_rng(0)
    x = constant(m, numbers.standard_normal(count, dtype=np.float32))
    y = constant(m, numbers.standard_normal(count, dtype=np.float32))
    runs: dict[str, Callable[[], Any]] = {
        "add": lambda: x + y,
        "mul": lambda: x * y,
        "exp": lambda: x.exp(),
        "tanh": lambda: x.tanh(),
        "gelu": lambda: m.nn.functional.gelu(x),
        "sum": lambda: x.sum(),
    }
    run = runs[op]
    return Prepared(run, lambda: [run().numpy()])


OPS = ("add", "mul", "exp", "tanh", "gelu", "sum")


def forward_and_backward(m: Any, count: int) -> Prepared:
    """Several of those ops in a row and back."""
    numbers = np.random.default_rng(0)
    leaves = [leaf(m, numbers.standard_normal(count, dtype=np.float32)) for _ in range(2)]

    def step() -> None:
        clear(leaves)
        x, y = leaves
        ((x * y).tanh() + (-x * x).exp() * y).mean().backward()

    def results() -> list[np.ndarray]:
        step()
        return gradients(leaves)

    return Prepared(step, results)
