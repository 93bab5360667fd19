"""Chains of elementwise ops on large arrays, op by op or as one fused function: what fusion saves is memory traffic."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.works import CPU, Prepared, Unavailable, chain, clear, constant, gradients, host, leaf, repeated

# The peers that stay op by op in the fused rows too: their eager mode is what a fused function is to beat.
EAGER_PEERS = ("torch",)


def affine_tanh(m: Any, fused: bool, backward: bool, count: int = 1_000_000) -> Prepared:
    """Four ops of four arrays of the same size."""

    def formula(x: Any, w: Any, b: Any, y: Any) -> Any:
        return (x * w + b).tanh() * y

    return _prepare(m, formula, [(count,)] * 4, fused, backward)


def ten_ops(m: Any, fused: bool, backward: bool, count: int = 1_000_000, device: str = CPU) -> Prepared:
    """The block of the small-op chain, once, on large arrays."""
    return _prepare(m, chain.mixed, [(count,)] * 5, fused, backward, low=0.5, high=1.5, device=device)


def lstm_gates(m: Any, fused: bool, backward: bool, batch: int = 64, hidden: int = 128) -> Prepared:
    """What an LSTM does after its matrix products: four gates out of one array, the new cell and the new state."""

    def formula(gates: Any, cell: Any) -> Any:
        enter, forget, candidate, leave = gates.chunk(4, 1)
        cell = forget.sigmoid() * cell + enter.sigmoid() * candidate.tanh()
        return leave.sigmoid() * cell.tanh(), cell

    return _prepare(m, formula, [(batch, 4 * hidden), (batch, hidden)], fused, backward)


def _prepare(
    m: Any,
    formula: Callable[..., Any],
    shapes: list[tuple[int, ...]],
    fused: bool,
    backward: bool,
    low: float = -2.0,
    high: float = 2.0,
    device: str = CPU,
) -> Prepared:
    numbers = np.random.default_rng(0)
    leaves = [leaf(m, repeated(partial(numbers.uniform, low, high), shape), device) for shape in shapes]
    function = _fused(m, formula) if fused else formula

    def forward() -> list[Any]:
        with m.no_grad():
            return _listed(function(*leaves))

    # A gradient from outside, as in the middle of a model: a sum at the end would be work of its own.
    draw = partial(numbers.standard_normal, dtype=np.float32)
    seeds = [constant(m, repeated(draw, tuple(out.shape)), device) for out in forward()]

    def forward_and_backward() -> None:
        clear(leaves)
        m.autograd.backward(_listed(function(*leaves)), seeds)

    def results() -> list[np.ndarray]:
        outputs = [host(out) for out in forward()]
        if not backward:
            return outputs
        forward_and_backward()
        return outputs + gradients(leaves)

    return Prepared(forward_and_backward if backward else forward, results)


def _listed(outputs: Any) -> list[Any]:
    return list(outputs) if isinstance(outputs, tuple) else [outputs]


def _fused(m: Any, formula: Callable[..., Any]) -> Callable[..., Any]:
    if m.__name__ in EAGER_PEERS:
        return formula
    if not hasattr(m, "fused"):
        raise Unavailable(f"{m.__name__} has no fused().")
    made: Callable[..., Any] = m.fused(formula)
    return made
