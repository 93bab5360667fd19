"""One large matrix product."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.works import Prepared, constant


def square(m: Any, size: int = 1024) -> Prepared:
    """Two square matrices."""
    numbers = np.random.default_rng(0)
    a, b = (constant(m, numbers.standard_normal((size, size), dtype=np.float32)) for _ in range(2))
    made = [a @ b]

    def step() -> None:
        made[0] = a @ b

    return Prepared(step, lambda: [np.asarray(made[0])])
