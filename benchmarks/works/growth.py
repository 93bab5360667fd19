"""Graphs that grow and graphs that change: time per node, and memory over many steps."""

from __future__ import annotations

import gc
import sys
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.works import Prepared, clear, gradients, leaf
from benchmarks.works.memory import resident_bytes

DEEPEST = 40


def build(leaves: list[Any], nodes: int) -> Any:
    """A graph of `nodes` nodes and as deep as that: products and sums with two leaves in turn."""
    h, scale, shift = leaves
    for _ in range(nodes // 2):
        h = h * scale
        h = h + shift
    return h


def scaling(m: Any, nodes: int, repeats: int = 1) -> list[dict[str, float]]:
    """Seconds to build a graph, to go backward through it, and to free one that nobody went through."""
    seconds = []
    for _ in range(repeats):
        leaves = _small_leaves(m)
        times = [perf_counter()]
        h = build(leaves, nodes)
        times.append(perf_counter())
        h.sum().backward()
        del h
        times.append(perf_counter())
        h = build(leaves, nodes)
        times.append(perf_counter())
        del h
        times.append(perf_counter())
        building, backward, _, freeing = np.diff(times)
        seconds.append({"build": float(building), "backward": float(backward), "free": float(freeing)})
    return seconds


def scaled(m: Any, nodes: int = 1000) -> Prepared:
    """The same graph as an ordinary work, to compare its gradients."""
    leaves = _small_leaves(m)

    def step() -> None:
        clear(leaves)
        build(leaves, nodes).sum().backward()

    def results() -> list[np.ndarray]:
        step()
        return gradients(leaves)

    return Prepared(step, results)


def changing_step(m: Any, leaves: list[Any], number: int) -> None:
    """A training step whose depth, branches, ops and shapes follow from its number, so that few are alike."""
    choices = np.random.default_rng(number)
    rows = int(choices.integers(1, 9))
    values = [tensor[:rows] for tensor in leaves]
    for kind, left, right in choices.integers(0, 5, (int(choices.integers(1, DEEPEST)), 3)):
        x, y = values[left % len(values)], values[-1 - right % len(values)]
        match kind:
            case 0:
                values.append(x * y)
            case 1:
                values.append((x + y).tanh())
            case 2:
                values.append((x - y).sigmoid())
            case 3:
                values.append(m.cat([x, y], 1)[:, ::2])
            case _:
                values.append(x / (1 + y * y))
    loss = sum(value.mean() for value in values)
    if loss.item() > number % 3 - 1:
        loss = loss * loss
    loss.backward()


def changing(m: Any, steps: int, every: int) -> list[dict[str, int]]:
    """Resident memory, live tensors and Python's live allocations, every so many steps.

    The cycle collector is off: what stays flat here was freed by reference counting.
    """
    leaves = _wide_leaves(m)
    curve = []
    gc.collect()
    gc.disable()
    try:
        for number in range(steps + 1):
            if number % every == 0:
                clear(leaves)
                curve.append(
                    {
                        "step": number,
                        "resident": resident_bytes(),
                        "tensors": sum(issubclass(type(thing), m.Tensor) for thing in gc.get_objects()),
                        "blocks": sys.getallocatedblocks(),
                    }
                )
            clear(leaves)
            changing_step(m, leaves, number)
    finally:
        gc.enable()
    return curve


def changed(m: Any, number: int = 7) -> Prepared:
    """One such step as an ordinary work, to compare its gradients."""
    leaves = _wide_leaves(m)

    def step() -> None:
        clear(leaves)
        changing_step(m, leaves, number)

    def results() -> list[np.ndarray]:
        step()
        return gradients(leaves)

    return Prepared(step, results)


def _small_leaves(m: Any) -> list[Any]:
    # A scale of nearly one: a million products must not overflow.
    return [leaf(m, np.full(4, value)) for value in (1.0, 1.0 - 1e-6, 1e-3)]


def _wide_leaves(m: Any) -> list[Any]:
    numbers = np.random.default_rng(0)
    return [leaf(m, numbers.uniform(0.5, 1.5, (8, 16))) for _ in range(3)]
