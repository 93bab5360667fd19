"""Functions that look at a whole row before they can answer: softmax, layer_norm, cross_entropy, there and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.works import Prepared, clear, constant, gradients, leaf

KINDS = ("softmax", "layer_norm", "cross_entropy")


def forward_and_backward(m: Any, kind: str, rows: int = 1024, columns: int = 1024) -> Prepared:
    """One of KINDS on float32[rows, columns], with gradients of everything that can have one."""
    numbers = np.random.default_rng(0)
    functional = m.nn.functional
    x = leaf(m, numbers.standard_normal((rows, columns)))
    weight, bias = (leaf(m, numbers.uniform(0.5, 1.5, columns)) for _ in range(2))
    labels = constant(m, numbers.integers(0, columns, rows))
    runs: dict[str, Callable[[], Any]] = {
        "softmax": lambda: functional.softmax(x, -1),
        "layer_norm": lambda: functional.layer_norm(x, (columns,), weight, bias),
        "cross_entropy": lambda: functional.cross_entropy(x, labels),
    }
    run = runs[kind]
    leaves = [x, weight, bias] if kind == "layer_norm" else [x]
    seed = constant(m, numbers.uniform(0.5, 1.5, tuple(run().shape)).astype(np.float32))

    def step() -> Any:
        clear(leaves)
        out = run()
        out.backward(seed)
        return out

    def results() -> list[np.ndarray]:
        return [step().detach().numpy().copy(), *gradients(leaves)]

    return Prepared(step, results)
