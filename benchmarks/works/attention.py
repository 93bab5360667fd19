"""Attention over long sequences: what a library pays for a matrix of all pairs, or for having none."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from benchmarks.works import CPU, Prepared, Unavailable, clear, constant, host, repeated


def forward_and_backward(
    m: Any,
    batch: int = 8,
    heads: int = 16,
    length: int = 4096,
    size: int = 64,
    dtype: str = "bfloat16",
    causal: bool = True,
    device: str = CPU,
) -> Prepared:
    """scaled_dot_product_attention of queries, keys and values, and the gradients of all three."""
    narrow = getattr(m, dtype, None)
    if narrow is None:
        raise Unavailable(f"{m.__name__} has no {dtype}.")
    numbers = np.random.default_rng(0)
    draw = partial(numbers.standard_normal, dtype=np.float32)
    shape = (batch, heads, length, size)

    def drawn() -> Any:
        return constant(m, repeated(draw, shape), device).to(narrow)

    leaves = [drawn().requires_grad_() for _ in range(3)]
    seed = drawn()

    def step() -> Any:
        clear(leaves)
        out = m.nn.functional.scaled_dot_product_attention(*leaves, is_causal=causal)
        out.backward(seed)
        return out

    def results() -> list[np.ndarray]:
        out = step()
        return [host(tensor.detach().float()) for tensor in (out, *(leaf.grad for leaf in leaves))]

    return Prepared(step, results)
