"""What it costs to look on: a step alone and the same step with somebody looking, in turns."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.works import Prepared, Unavailable, chain, constant, training


def mlp(m: Any) -> Prepared:
    """A classifier 784-512-512-10 of the library's layers, batch 64."""
    return training.mlp(m, batch=64)


def lstm(m: Any, steps: int = 30, batch: int = 32, size: int = 64, hidden: int = 128) -> Prepared:
    """An LSTMCell in a loop."""
    numbers = np.random.default_rng(0)
    cell, head = m.nn.LSTMCell(size, hidden), m.nn.Linear(hidden, 5)
    inputs = constant(m, numbers.standard_normal((steps, batch, size), dtype=np.float32))
    labels = constant(m, numbers.integers(0, 5, batch))
    optimiser = m.optim.SGD([*cell.parameters(), *head.parameters()], lr=0.01)

    def step() -> None:
        optimiser.zero_grad()
        h = c = m.zeros(batch, hidden)
        for t in range(steps):
            h, c = cell(inputs[t], (h, c))
        m.nn.functional.cross_entropy(head(h), labels).backward()
        optimiser.step()

    return Prepared(step, lambda: [])


def small_ops(m: Any) -> Prepared:
    """A chain of 200 ops whose arithmetic is next to nothing: all that is measured is the looking."""
    return chain.small_ops(m, ops=200)


MODELS: dict[str, Callable[[Any], Prepared]] = {"mlp": mlp, "lstm": lstm, "small_ops": small_ops}


def _looking(m: Any, how: str) -> Callable[[], AbstractContextManager[Any]]:
    if how == "anomaly":
        return m.autograd.detect_anomaly  # type: ignore[no-any-return]
    if not hasattr(m, "debug"):
        raise Unavailable(f"{m.__name__} has no {how}.")
    ways: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "record": lambda: m.debug.record(), "profile": lambda: m.profile(), "stop": lambda: m.debug.break_on(nan=True),
    }  # fmt: skip
    return ways[how]


def ratio(m: Any, model: str, how: str, rounds: int) -> float:
    """How many times as long a step takes with somebody looking: the best of many tries, by the best alone."""
    step, looking = MODELS[model](m).step, _looking(m, how)

    def watched() -> float:
        with looking():
            started = perf_counter()
            step()
            return perf_counter() - started

    def alone() -> float:
        started = perf_counter()
        step()
        return perf_counter() - started

    # The first of each is a warm-up. In turns, so that a busy machine hits both.
    tries = [(watched(), alone()) for _ in range(rounds + 1)][1:]
    return min(seconds for seconds, _ in tries) / min(seconds for _, seconds in tries)


def seconds_to_keep(m: Any, nodes: int) -> dict[str, float]:
    """Seconds to record a chain of so many nodes, and to save it as a page."""
    x = m.ones(4, requires_grad=True)
    started = perf_counter()
    with m.debug.record() as run:
        y = x
        for _ in range(nodes // 2):
            y = (y * 1.0).tanh()
        y.sum().backward()
    recorded = perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "run.html")
        run.save(path)
        saved = perf_counter()
        size = os.path.getsize(path)
    return {"record": recorded - started, "save": saved - recorded, "megabytes": size / 1e6}
