"""Functions that look at a whole row before they can answer: softmax, layer_norm, cross_entropy, there and back."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.works import CPU, Prepared, clear, constant, gradients, host, leaf, repeated

KINDS = ("softmax", "layer_norm", "cross_entropy")


def forward_and_backward(m: Any, kind: str, rows: int = 1024, columns: int = 1024, device: str = CPU) -> Prepared:
    """One of KINDS on float32[rows, columns], with gradients of everything that can have one."""
    numbers = np.random.default_rng(0)
    functional = m.nn.functional
    x = leaf(m, repeated(numbers.standard_normal, (rows, columns)), device)
    weight, bias = (leaf(m, numbers.uniform(0.5, 1.5, columns), device) for _ in range(2))
    labels = constant(m, numbers.integers(0, columns, rows), device)
    runs: dict[str, Callable[[], Any]] = {
        "softmax": lambda: functional.softmax(x, -1),
        "layer_norm": lambda: functional.layer_norm(x, (columns,), weight, bias),
        "cross_entropy": lambda: functional.cross_entropy(x, labels),
    }
    run = runs[kind]
    leaves = [x, weight, bias] if kind == "layer_norm" else [x]
    draw = partial(numbers.uniform, 0.5, 1.5)
    seed = constant(m, repeated(draw, tuple(run().shape)).astype(np.float32), device)

    def step() -> Any:
        clear(leaves)
        out = run()
        out.backward(seed)
        return out

    def results() -> list[np.ndarray]:
        return [host(step()), *gradients(leaves)]

    return Prepared(step, results)
