"""Patterns: small pieces of what people write, each as a function and an endless stream of arguments for it.

The suite `slower` runs each of them plain and compiled. Here are numbers, sizes, values and state that change from call
to call; `patterns_ops`, `patterns_models`, `patterns_python` and `patterns_examples` have the rest.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, cycle, pairwise
from typing import Any

import numpy as np

from benchmarks.works import constant

RATE = 1e-6  # so slow that training changes no branch and no loop in thousands of steps
CLASSES = 4


@dataclass(frozen=True)
class Case:
    """A function, the arguments of its calls, and who calls it (`use(function, *arguments)`) if not just anybody."""

    function: Callable[..., Any]
    arguments: Iterator[tuple[Any, ...]]
    use: Callable[..., Any] | None = None


@dataclass(frozen=True)
class Pattern:
    """A maker of fresh cases; `named`: the issue that asked for this suite names it; `judged`: it does some work."""

    part: str
    title: str
    make: Callable[[Any], Case]
    named: bool = False
    judged: bool = True


PATTERNS: dict[str, Pattern] = {}


def pattern(
    part: str, title: str, named: bool = False, judged: bool = True
) -> Callable[[Callable[[Any], Case]], Callable[[Any], Case]]:
    """Decorator: keep a maker of cases among the patterns, by its name."""

    def keep(make: Callable[[Any], Case]) -> Callable[[Any], Case]:
        assert make.__name__ not in PATTERNS, make.__name__
        PATTERNS[make.__name__] = Pattern(part, title, make, named, judged)
        return make

    return keep


# -- what patterns share ----------------------------------------------------------------------------------------------


def normal(m: Any, *shape: int, seed: int = 0) -> Any:
    """A tensor of normal numbers."""
    return constant(m, np.random.default_rng(seed).standard_normal(shape, dtype=np.float32))


def several(m: Any, *shape: int, number: int = 8) -> Iterator[tuple[Any]]:
    """One tensor of this shape at each call, of a few that come again and again."""
    return cycle([(normal(m, *shape, seed=seed),) for seed in range(number)])


def labels(m: Any, size: int, classes: int = CLASSES, seed: int = 0) -> Any:
    return constant(m, np.random.default_rng(seed).integers(0, classes, size))


def labelled(m: Any, size: int, *shape: int, number: int = 8) -> Iterator[tuple[Any, Any]]:
    """A batch of so many inputs and their classes at each call."""
    return cycle([(normal(m, size, *shape, seed=seed), labels(m, size, seed=seed)) for seed in range(number)])


def mlp(m: Any, *sizes: int) -> Any:
    """Linear layers with relu between them, the same weights each time."""
    m.manual_seed(0)
    layers: list[Any] = []
    for fan_in, fan_out in pairwise(sizes):
        layers += [m.nn.Linear(fan_in, fan_out), m.nn.ReLU()]
        m.nn.init.kaiming_uniform_(layers[-2].weight, nonlinearity="relu")  # numbers do not vanish in 200 layers
    return m.nn.Sequential(*layers[:-1])


def training(m: Any, model: Any, kind: str = "SGD", loss_of: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """A whole step of a classifier: loss, backward, update."""
    optimiser = getattr(m.optim, kind)(model.parameters(), lr=RATE)
    criterion = m.nn.CrossEntropyLoss()

    def step(*batch: Any) -> Any:
        optimiser.zero_grad()
        loss = criterion(model(batch[0]), batch[1]) if loss_of is None else loss_of(*batch)
        loss.backward()
        optimiser.step()
        return loss

    return step


# -- numbers ----------------------------------------------------------------------------------------------------------


@pattern("numbers", "a new int each call, small function", named=True)
def int_small(m: Any) -> Case:
    x = normal(m, 64)
    return Case(lambda x, i: (x * 2 + i).tanh(), ((x, i) for i in count()))


@pattern("numbers", "a new int each call, training step", named=True)
def int_step(m: Any) -> Case:
    model, criterion = mlp(m, 16, 32, CLASSES), m.nn.CrossEntropyLoss()
    step = training(m, model, loss_of=lambda x, y, i: criterion(model(x), y) / (1 + i))
    return Case(step, ((*batch, i) for i, batch in enumerate(labelled(m, 32, 16))))


@pattern("numbers", "a new float each call, small function", named=True)
def float_small(m: Any) -> Case:
    x = normal(m, 64)
    return Case(lambda x, beta: (x * beta).exp() + 1, ((x, 1 / (1 + i)) for i in count()))


@pattern("numbers", "a new float each call, training step", named=True)
def float_step(m: Any) -> Case:
    model, criterion = mlp(m, 16, 32, CLASSES), m.nn.CrossEntropyLoss()

    def loss_of(x: Any, y: Any, beta: float) -> Any:
        scores = model(x)
        return criterion(scores, y) + beta * (scores * scores).mean()

    step = training(m, model, loss_of=loss_of)
    return Case(step, ((*batch, 1 - 0.9999**i) for i, batch in enumerate(labelled(m, 32, 16))))


@pattern("numbers", "an int that decides: every 10th step differs")
def int_decides(m: Any) -> Case:
    def step(x: Any, i: int) -> Any:
        y = (x * 0.5).tanh()
        return y.sum() if i % 10 == 0 else y * 2

    x = normal(m, 64)
    return Case(step, ((x, i) for i in count()))


@pattern("numbers", "a changing int as an index")
def int_index(m: Any) -> Case:
    table = normal(m, 1000, 32)
    return Case(lambda t, i: t[i] * 2 + 1, cycle([(table, i) for i in range(1000)]))


@pattern("numbers", "a changing slice")
def int_slice(m: Any) -> Case:
    table = normal(m, 1000, 32)
    return Case(lambda t, i: t[i : i + 8].mean(0), cycle([(table, i) for i in range(900)]))


@pattern("numbers", "item() used in Python's arithmetic")
def item_arithmetic(m: Any) -> Case:
    def scaled(x: Any) -> Any:
        largest = x.abs().max().item()
        return x * (1 / (largest + 1e-6))

    return Case(scaled, several(m, 64, number=500))


@pattern("numbers", "a learning rate set by hand each call")
def rate_by_hand(m: Any) -> Case:
    model, criterion = mlp(m, 16, 32, CLASSES), m.nn.CrossEntropyLoss()
    optimiser = m.optim.SGD(model.parameters(), lr=RATE)

    def step(x: Any, y: Any, i: int) -> Any:
        for group in optimiser.param_groups:
            group["lr"] = RATE / (1 + i)
        optimiser.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimiser.step()
        return loss

    return Case(step, ((*batch, i) for i, batch in enumerate(labelled(m, 32, 16))))


# -- sizes ------------------------------------------------------------------------------------------------------------


def _shuffled(number: int) -> list[int]:
    return random.Random(0).sample(range(1, number + 1), number)


@pattern("sizes", "300 batch sizes in a cycle, forward", named=True)
def sizes_forward(m: Any) -> Case:
    return Case(mlp(m, 16, 32, CLASSES), cycle([(normal(m, size, 16),) for size in _shuffled(300)]))


@pattern("sizes", "300 batch sizes in a cycle, training step", named=True)
def sizes_step(m: Any) -> Case:
    step = training(m, mlp(m, 16, 32, CLASSES))
    return Case(step, cycle([(normal(m, size, 16), labels(m, size)) for size in _shuffled(300)]))


@pattern("sizes", "64 lengths in any order, training step")
def lengths_step(m: Any) -> Case:
    embed, head, criterion = mlp(m, 16, 32), mlp(m, 32, CLASSES), m.nn.CrossEntropyLoss()
    model = m.nn.ModuleList([embed, head])
    step = training(m, model, loss_of=lambda x, y: criterion(head(embed(x).tanh().mean(1)), y))
    return Case(step, cycle([(normal(m, 8, length, 16), labels(m, 8)) for length in _shuffled(64)]))


@pattern("sizes", "lists of 1 to 20 tensors")
def list_lengths(m: Any) -> Case:
    rows = [normal(m, 16, seed=seed) for seed in range(20)]
    return Case(lambda rows: m.stack(rows).mean(0), cycle([(rows[:size],) for size in _shuffled(20)]))


@pattern("sizes", "float32 and float64 in turns")
def dtypes(m: Any) -> Case:
    x = normal(m, 64, 16)
    return Case(lambda x: (x * 2).tanh().sum(0), cycle([(x,), (x.double(),)]))


@pattern("sizes", "called from two places with different shapes")
def two_places(m: Any) -> Case:
    def use(function: Callable[..., Any], x: Any, z: Any) -> None:
        function(x)
        function(z)

    return Case(lambda x: (x - x.mean(-1, keepdim=True)).exp(), cycle([(normal(m, 8, 32), normal(m, 3, 4, 5))]), use)


# -- values -----------------------------------------------------------------------------------------------------------


@pattern("values", "12 branches on values, random data", named=True)
def branches(m: Any) -> Case:
    def walk(x: Any) -> Any:
        y = x
        for i in range(12):
            y = y * 1.5 if x[i] > 0 else y + 1
        return y

    return Case(walk, several(m, 12, number=4096))


@pattern("values", "a loop until a value is small")
def while_loop(m: Any) -> Case:
    def shrink(x: Any) -> Any:
        while x.abs().sum() > 10:
            x = x * 0.7 - 0.01
        return x

    return Case(shrink, cycle([(normal(m, 16, seed=seed) * (1 + seed),) for seed in range(64)]))


@pattern("values", "a check for numbers that are not finite, training step")
def finite_check(m: Any) -> Case:
    model, criterion = mlp(m, 16, 32, CLASSES), m.nn.CrossEntropyLoss()
    optimiser = m.optim.Adam(model.parameters(), lr=RATE)

    def step(x: Any, y: Any) -> Any:
        loss = criterion(model(x), y)
        if not m.isfinite(loss):
            return None
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        return loss.item()

    return Case(step, labelled(m, 32, 16))


@pattern("values", "x[x > 0], 64 numbers", named=True)
def mask_small(m: Any) -> Case:
    return Case(lambda x: x[x > 0] * 2, several(m, 64, number=64))


@pattern("values", "x[x > 0], 10,000 numbers", named=True)
def mask_large(m: Any) -> Case:
    return Case(lambda x: x[x > 0].sum(), several(m, 10_000, number=64))


@pattern("values", "nonzero(), a size that depends on values")
def nonzero(m: Any) -> Case:
    return Case(lambda x: (x > 0.5).nonzero().sum(0), several(m, 8, 32, number=64))


# -- state ------------------------------------------------------------------------------------------------------------


def _keeping(m: Any, keep: Callable[[Any, Any], None]) -> Any:
    """A module whose forward also does something to itself."""

    class Keeping(m.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layers = mlp(m, 16, 32, CLASSES)
            self.seen = 0

        def forward(self, x: Any) -> Any:
            h = self.layers(x)
            keep(self, h)
            return h * 2

    return Keeping()


@pattern("state", "an attribute set outside on a module, never read", named=True)
def attribute_outside(m: Any) -> Case:
    model = mlp(m, 16, 32, CLASSES)

    def use(function: Callable[..., Any], x: Any, i: int) -> None:
        model.epoch = i
        function(x)

    return Case(lambda x: model(x), ((x, i) for i, (x,) in enumerate(several(m, 32, 16))), use)


@pattern("state", "an attribute set in forward, never read", named=True)
def attribute_inside(m: Any) -> Case:
    def keep(module: Any, h: Any) -> None:
        module.last_shape = h.shape

    return Case(_keeping(m, keep), several(m, 32, 16))


@pattern("state", "a counter on self", named=True)
def counter(m: Any) -> Case:
    def keep(module: Any, h: Any) -> None:
        module.seen += 1

    return Case(_keeping(m, keep), several(m, 32, 16))


@pattern("state", "an activation stored on self", named=True)
def activation(m: Any) -> Case:
    def keep(module: Any, h: Any) -> None:
        module.hidden = h

    return Case(_keeping(m, keep), several(m, 32, 16))


@pattern("state", "12 values of a setting in a cycle", named=True)
def settings(m: Any) -> Case:
    config = {"scale": 1.0}

    def use(function: Callable[..., Any], x: Any, scale: float) -> None:
        config["scale"] = scale
        function(x)

    x = normal(m, 64)
    return Case(lambda x: (x * config["scale"]).tanh(), cycle([(x, 1 + i / 4) for i in range(12)]), use)


@pattern("state", "12 names as an argument in a cycle", named=True)
def names(m: Any) -> Case:
    scales = {f"way {i}": 1 + i / 4 for i in range(12)}
    x = normal(m, 64)
    return Case(lambda x, name: (x * scales[name]).tanh(), cycle([(x, name) for name in scales]))


@pattern("state", "train() and eval() in turns")
def modes(m: Any) -> Case:
    model = m.nn.Sequential(mlp(m, 16, 32, 32), m.nn.Dropout(0.5), m.nn.Linear(32, CLASSES))

    def use(function: Callable[..., Any], x: Any, training: bool) -> None:
        model.train(training)
        function(x)

    return Case(lambda x: model(x), cycle([(normal(m, 32, 16), True), (normal(m, 32, 16), False)]), use)


@pattern("state", "a moving average in a buffer")
def average(m: Any) -> Case:
    def keep(module: Any, h: Any) -> None:
        with m.no_grad():
            module.mean.mul_(0.9).add_(h.mean(0), alpha=0.1)

    model = _keeping(m, keep)
    model.register_buffer("mean", m.zeros(CLASSES))
    return Case(model, several(m, 32, 16))
