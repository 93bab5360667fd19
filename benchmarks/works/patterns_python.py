"""Patterns of Python around tensors: arguments of all kinds, clocks, output, errors, objects."""

from __future__ import annotations

import logging
import os
import random
import time
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle, repeat
from typing import Any

from benchmarks.works.patterns import CLASSES, Case, labelled, mlp, normal, pattern, several

Pair = namedtuple("Pair", "first second")
LOG = logging.getLogger("benchmarks.slower")
LOG.propagate = False
LOG.addHandler(logging.NullHandler())
LOG.setLevel(logging.INFO)


@dataclass
class Batch:
    """Tensors with names, as a loader may hand them out."""

    x: Any
    mask: Any


# -- arguments --------------------------------------------------------------------------------------------------------


@pattern("arguments", "a dict of tensors and settings")
def dictionary(m: Any) -> Case:
    batch = {"x": normal(m, 32, 16), "mask": normal(m, 32, 1, seed=1), "scale": 2.0, "name": "train"}
    return Case(lambda batch: (batch["x"] * batch["mask"] * batch["scale"]).sum(), repeat((batch,)))


@pattern("arguments", "a list of 20 small tensors")
def listed(m: Any) -> Case:
    parts = [normal(m, 8, seed=seed) for seed in range(20)]
    return Case(lambda parts: sum(parts[1:], parts[0]), repeat((parts,)))


@pattern("arguments", "20 arguments")
def many(m: Any) -> Case:
    parts = tuple(normal(m, 8, seed=seed) for seed in range(20))
    return Case(lambda *parts: m.stack(parts).mean(0), repeat(parts))


@pattern("arguments", "a namedtuple")
def named(m: Any) -> Case:
    return Case(lambda pair: pair.first * 2 + pair.second, repeat((Pair(normal(m, 64), normal(m, 64, seed=1)),)))


@pattern("arguments", "a dataclass")
def record(m: Any) -> Case:
    batch = Batch(normal(m, 32, 16), normal(m, 32, 1, seed=1))
    return Case(lambda batch: (batch.x * batch.mask).tanh().sum(), repeat((batch,)))


@pattern("arguments", "keyword arguments")
def keyword(m: Any) -> Case:
    def use(function: Callable[..., Any], x: Any) -> None:
        function(x, scale=2.0, shift=1.0, mode="tanh")

    def scaled(x: Any, scale: float = 1.0, shift: float = 0.0, mode: str = "none") -> Any:
        y = x * scale + shift
        return y.tanh() if mode == "tanh" else y

    return Case(scaled, several(m, 64), use)


@pattern("arguments", "a method, its object's attributes")
def method(m: Any) -> Case:
    class Line:
        def __init__(self) -> None:
            self.slope, self.offset = 2.0, normal(m, 64)

        def at(self, x: Any) -> Any:
            return (x * self.slope + self.offset).relu()

    return Case(Line().at, several(m, 64))


@pattern("arguments", "a new tuple of states each call")
def states(m: Any) -> Case:
    m.manual_seed(0)
    cell = m.nn.LSTMCell(16, 32)
    held = [(m.zeros(1, 32), m.zeros(1, 32))]

    def use(function: Callable[..., Any], x: Any) -> None:
        with m.no_grad():
            held[0] = function(x, held[0])

    return Case(lambda x, state: cell(x, state), several(m, 1, 16), use)


# -- Python has to run ------------------------------------------------------------------------------------------------


@pattern("python", "a clock in the function")
def clock(m: Any) -> Case:
    def timed(x: Any) -> Any:
        started = time.perf_counter()
        y = (x @ x).tanh()
        return y, time.perf_counter() - started

    return Case(timed, several(m, 32, 32))


@pattern("python", "random.random() decides")
def chance(m: Any) -> Case:
    draw = random.Random(0)

    def augmented(x: Any) -> Any:
        if draw.random() < 0.5:
            x = -x
        return (x * 2 + 1).tanh()

    return Case(augmented, several(m, 64))


@pattern("python", "random numbers of the library")
def noise(m: Any) -> Case:
    return Case(lambda x: (x + 0.1 * m.randn(64)).tanh(), several(m, 64))


@pattern("python", "print to nowhere")
def printing(m: Any) -> Case:
    nowhere = open(os.devnull, "w")  # noqa: SIM115

    def loud(x: Any) -> Any:
        y = (x * 2).tanh()
        print("shape", y.shape, file=nowhere)
        return y + 1

    return Case(loud, several(m, 64))


@pattern("python", "logging of a loss, training step")
def logged(m: Any) -> Case:
    model, criterion = mlp(m, 16, 32, CLASSES), m.nn.CrossEntropyLoss()
    optimiser = m.optim.SGD(model.parameters(), lr=1e-6)

    def step(x: Any, y: Any) -> Any:
        optimiser.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimiser.step()
        LOG.info("loss %.4f", loss.item())
        return loss

    return Case(step, labelled(m, 32, 16))


@pattern("python", "a list of losses grows, training step")
def history(m: Any) -> Case:
    model, criterion = mlp(m, 16, 32, CLASSES), m.nn.CrossEntropyLoss()
    optimiser, losses = m.optim.SGD(model.parameters(), lr=1e-6), []

    def step(x: Any, y: Any) -> None:
        optimiser.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())

    return Case(step, labelled(m, 32, 16))


@pattern("python", "one call in ten raises")
def raising(m: Any) -> Case:
    def checked(x: Any) -> Any:
        y = (x * 2).tanh()
        if y.sum() > 1000:
            raise ValueError("too large")
        return y

    def use(function: Callable[..., Any], x: Any) -> None:
        try:
            function(x)
        except ValueError:
            pass

    large = normal(m, 2000) + 100
    return Case(checked, cycle([*[(normal(m, 2000, seed=seed),) for seed in range(9)], (large,)]), use)


@pattern("python", "one call in ten: shapes that do not fit")
def misfit(m: Any) -> Case:
    weight = normal(m, 16, 8)

    def use(function: Callable[..., Any], x: Any) -> None:
        try:
            function(x)
        except (RuntimeError, ValueError):
            pass

    return Case(lambda x: (x @ weight).tanh(), cycle([(normal(m, 4, 16),)] * 9 + [(normal(m, 4, 15),)]), use)


@pattern("python", "a NumPy array made and read inside")
def numpy_inside(m: Any) -> Case:
    def mixed(x: Any) -> Any:
        largest = float(x.numpy().max())
        return x / largest

    return Case(mixed, several(m, 64))


@pattern("python", "text made from a value")
def text(m: Any) -> Case:
    def described(x: Any) -> Any:
        y = x.abs().mean()
        return y, f"mean {y.item():.3f}"

    return Case(described, several(m, 64))


@pattern("python", "a function made inside, a comprehension")
def nested(m: Any) -> Case:
    def attention(x: Any) -> Any:
        def head(k: int) -> Any:
            part = x[:, 4 * k : 4 * k + 4]
            return (part @ part.t()).softmax(-1) @ part

        return m.cat([head(k) for k in range(4)], 1)

    return Case(attention, several(m, 8, 16))


@pattern("python", "a helper called with functions as arguments")
def helper(m: Any) -> Case:
    def twice(function: Callable[..., Any], x: Any) -> Any:
        return function(function(x))

    return Case(lambda x: twice(m.tanh, x) + twice(lambda y: y * 2, x), several(m, 64))


@pattern("python", "tolist() and a search in Python")
def decoded(m: Any) -> Case:
    def best(x: Any) -> list[int]:
        scores = x.softmax(-1).tolist()
        return sorted(range(len(scores)), key=scores.__getitem__)[-3:]

    return Case(best, several(m, 32, number=64))
