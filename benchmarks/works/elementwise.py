"""Elementwise work on large arrays: here the kernels count, not the cost of an op."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.works import CPU, Prepared, clear, constant, gradients, host, leaf, repeated


def forward(m: Any, op: str, count: int, device: str = CPU) -> Prepared:
    """One op of `OPS` on `count` float32 numbers, nothing recorded."""
    numbers = np.random.default_rng(0)
    draw = partial(numbers.standard_normal, dtype=np.float32)
    x, y = (constant(m, repeated(draw, count), device) for _ in range(2))
    runs: dict[str, Callable[[], Any]] = {
        "add": lambda: x + y,
        "mul": lambda: x * y,
        "exp": lambda: x.exp(),
        "tanh": lambda: x.tanh(),
        "gelu": lambda: m.nn.functional.gelu(x),
        "sum": lambda: x.sum(),
    }
    run = runs[op]
    return Prepared(run, lambda: [host(run())])


OPS = ("add", "mul", "exp", "tanh", "gelu", "sum")


def copying(m: Any, count: int, device: str = CPU) -> Prepared:
    """A plain copy into an array that is there: how fast memory lets anybody be."""
    draw = partial(np.random.default_rng(0).standard_normal, dtype=np.float32)
    source = constant(m, repeated(draw, count), device)
    target = constant(m, np.zeros(count, np.float32), device)
    return Prepared(lambda: target.copy_(source), lambda: [host(target.copy_(source))])


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
