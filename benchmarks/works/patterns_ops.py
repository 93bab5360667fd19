"""Patterns of single ops and short functions: next to nothing, large arrays, indexing, views, gradients."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle, repeat
from typing import Any

import numpy as np

from benchmarks.works import constant
from benchmarks.works.patterns import CLASSES, RATE, Case, labelled, mlp, normal, pattern, several, training

# -- tiny: the call itself is what costs ------------------------------------------------------------------------------


@pattern("tiny", "x + 1", named=True)
def plus_one(m: Any) -> Case:
    return Case(lambda x: x + 1, several(m, 4))


@pattern("tiny", "x itself, no op", judged=False)
def identity(m: Any) -> Case:
    return Case(lambda x: x, several(m, 4))


@pattern("tiny", "no tensor at all", judged=False)
def no_tensor(m: Any) -> Case:
    return Case(lambda a, b: a * b + 1, repeat((3, 4)))


@pattern("tiny", "two ops")
def two_ops(m: Any) -> Case:
    return Case(lambda x: x * 2 + 1, several(m, 4))


@pattern("tiny", "three ops, two tensors")
def three_ops(m: Any) -> Case:
    return Case(lambda x, y: (x * y + 1).relu(), repeat((normal(m, 8), normal(m, 8, seed=1))))


@pattern("tiny", "five ops")
def five_ops(m: Any) -> Case:
    return Case(lambda x: ((x * 2 + 1).tanh() - x).sum(), several(m, 4, 4))


@pattern("tiny", "numbers as tensors of no dimension")
def scalars(m: Any) -> Case:
    return Case(lambda a, b: a * b + a, repeat((m.tensor(2.0), m.tensor(3.0))))


@pattern("tiny", "x + 1, a gradient is wanted")
def plus_one_grad(m: Any) -> Case:
    return Case(lambda x: x + 1, repeat((normal(m, 4).requires_grad_(),)))


@pattern("tiny", "a few ops and their gradient, inside")
def tiny_backward(m: Any) -> Case:
    w = normal(m, 4).requires_grad_()

    def step(x: Any) -> Any:
        w.grad = None
        (x * w).sum().backward()
        return w.grad

    return Case(step, several(m, 4))


# -- large: the work is what costs ------------------------------------------------------------------------------------


@pattern("large", "matrix product 512×512")
def matmul(m: Any) -> Case:
    return Case(lambda a, b: a @ b, repeat((normal(m, 512, 512), normal(m, 512, 512, seed=1))))


@pattern("large", "a + b, a million numbers")
def big_add(m: Any) -> Case:
    return Case(lambda a, b: a + b, repeat((normal(m, 1_000_000), normal(m, 1_000_000, seed=1))))


@pattern("large", "chain of 4 ops, a million numbers")
def big_chain(m: Any) -> Case:
    return Case(lambda x: (x * 2 + 1).tanh() * x, several(m, 1_000_000, number=2))


@pattern("large", "sum of a million numbers")
def big_sum(m: Any) -> Case:
    return Case(lambda x: x.sum(), several(m, 1000, 1000, number=2))


@pattern("large", "mean over the first dimension")
def big_mean(m: Any) -> Case:
    return Case(lambda x: x.mean(0), several(m, 2000, 300, number=2))


@pattern("large", "softmax 512×1000")
def softmax(m: Any) -> Case:
    return Case(lambda x: x.softmax(-1), several(m, 512, 1000, number=2))


@pattern("large", "dropout of 300,000 numbers", named=True)
def dropout(m: Any) -> Case:
    return Case(lambda x: m.nn.functional.dropout(x, 0.5), several(m, 300_000, number=2))


@pattern("large", "300,000 random numbers")
def randn(m: Any) -> Case:
    return Case(lambda x: x + m.randn(300_000), several(m, 300_000, number=2))


@pattern("large", "transpose made contiguous")
def transposed(m: Any) -> Case:
    return Case(lambda x: x.t().contiguous(), several(m, 700, 700, number=2))


@pattern("large", "cat of 8 parts")
def cat(m: Any) -> Case:
    parts = [normal(m, 100, 256, seed=seed) for seed in range(8)]
    return Case(lambda parts: m.cat(parts, 1), repeat((parts,)))


@pattern("large", "cumsum of 100,000")
def cumsum(m: Any) -> Case:
    return Case(lambda x: x.cumsum(-1), several(m, 100, 1000))


@pattern("large", "sort of 50,000")
def sort(m: Any) -> Case:
    return Case(lambda x: x.sort(-1)[0], several(m, 50, 1000))


@pattern("large", "topk of 50,000")
def topk(m: Any) -> Case:
    return Case(lambda x: x.topk(5, -1), several(m, 50, 1000))


@pattern("large", "convolution 3×3, 16 to 32 channels, 32×32")
def convolution(m: Any) -> Case:
    weight = normal(m, 32, 16, 3, 3)
    return Case(lambda x: m.nn.functional.conv2d(x, weight, padding=1), several(m, 8, 16, 32, 32, number=2))


# -- indexing ---------------------------------------------------------------------------------------------------------


def _indices(m: Any, size: int, below: int, seed: int = 0) -> Any:
    return constant(m, np.random.default_rng(seed).integers(0, below, size))


@pattern("indexing", "Embedding of 20,000 rows, SGD", named=True)
def embedding(m: Any) -> Case:
    m.manual_seed(0)
    table, head, criterion = m.nn.Embedding(20_000, 64), m.nn.Linear(64, CLASSES), m.nn.CrossEntropyLoss()
    step = training(m, m.nn.ModuleList([table, head]), loss_of=lambda x, y: criterion(head(table(x)), y))
    words = [(_indices(m, 64, 20_000, seed), _indices(m, 64, CLASSES, seed)) for seed in range(16)]
    return Case(step, cycle(words))


@pattern("indexing", "Embedding of 500 rows, Adam")
def embedding_small(m: Any) -> Case:
    m.manual_seed(0)
    table, head, criterion = m.nn.Embedding(500, 32), m.nn.Linear(32, CLASSES), m.nn.CrossEntropyLoss()
    step = training(m, m.nn.ModuleList([table, head]), "Adam", lambda x, y: criterion(head(table(x)), y))
    words = [(_indices(m, 64, 500, seed), _indices(m, 64, CLASSES, seed)) for seed in range(16)]
    return Case(step, cycle(words))


@pattern("indexing", "gather of 50,000", named=True)
def gather(m: Any) -> Case:
    index = constant(m, np.random.default_rng(0).integers(0, 1000, (50, 1000)))
    return Case(lambda x, index: x.gather(1, index), ((x, index) for (x,) in several(m, 50, 1000)))


@pattern("indexing", "rows by a tensor of indices")
def rows(m: Any) -> Case:
    index = _indices(m, 2000, 1000)
    return Case(lambda x, index: x[index] * 2, ((x, index) for (x,) in several(m, 1000, 64, number=2)))


@pattern("indexing", "index_add of 2,000 rows")
def scatter(m: Any) -> Case:
    index = _indices(m, 2000, 100)
    return Case(lambda x: m.zeros(100, 64).index_add(0, index, x), several(m, 2000, 64, number=2))


# -- views ------------------------------------------------------------------------------------------------------------


@pattern("views", "two views with moving offsets, copy_", named=True)
def moving_copy(m: Any) -> Case:
    a, b = normal(m, 50, 64), normal(m, 60, 64, seed=1)
    return Case(lambda row, x: row.copy_(x), cycle([(a[i % 50], b[i % 60]) for i in range(300)]))


@pattern("views", "two views with moving offsets, computed", named=True)
def moving_sum(m: Any) -> Case:
    a = normal(m, 60, 64)
    return Case(lambda x, y: (x * y).sum(), cycle([(a[i % 60], a[(7 * i + 3) % 60]) for i in range(300)]))


@pattern("views", "rows of a batch, one by one")
def row_by_row(m: Any) -> Case:
    return Case(lambda row: (row * 2).tanh(), cycle([(row,) for row in normal(m, 100, 64)]))


@pattern("views", "results that are views")
def returned(m: Any) -> Case:
    return Case(lambda x: (x.t(), x[1:], x.view(-1)), several(m, 16, 16))


@pattern("views", "a row of a buffer is written, index changes")
def ring_buffer(m: Any) -> Case:
    buffer = m.zeros(100, 64)

    def write(x: Any, i: int) -> None:
        buffer[i] = x

    return Case(write, cycle([(normal(m, 64, seed=i), i) for i in range(100)]))


# -- gradients --------------------------------------------------------------------------------------------------------


@pattern("gradients", "double backward: a gradient penalty", named=True)
def penalty(m: Any) -> Case:
    m.manual_seed(0)
    model = m.nn.Sequential(m.nn.Linear(16, 64), m.nn.Tanh(), m.nn.Linear(64, 1))

    def loss_of(x: Any) -> Any:
        x = x.detach().requires_grad_()
        score = model(x).sum()
        (slope,) = m.autograd.grad(score, x, create_graph=True)
        return score + ((slope.norm(dim=1) - 1) ** 2).mean()

    return Case(training(m, model, "Adam", loss_of), several(m, 64, 16))


@pattern("gradients", "hooks on parameters")
def hooks(m: Any) -> Case:
    model = mlp(m, 16, 32, CLASSES)
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient.clamp(-1, 1))
    return Case(training(m, model), labelled(m, 32, 16))


@pattern("gradients", "accumulated over 4 calls, then an update")
def accumulated(m: Any) -> Case:
    model, criterion = mlp(m, 16, 32, CLASSES), m.nn.CrossEntropyLoss()
    optimiser = m.optim.SGD(model.parameters(), lr=RATE)

    def step(x: Any, y: Any, last: bool) -> Any:
        loss = criterion(model(x), y) / 4
        loss.backward()
        if last:
            optimiser.step()
            optimiser.zero_grad()
        return loss

    return Case(step, ((x, y, i % 4 == 3) for i, (x, y) in enumerate(labelled(m, 32, 16))))


def _outside(m: Any, optimiser: Any) -> Callable[..., None]:
    criterion = m.nn.CrossEntropyLoss()

    def use(function: Callable[..., Any], x: Any, y: Any) -> None:
        optimiser.zero_grad()
        criterion(function(x), y).backward()
        optimiser.step()

    return use


@pattern("gradients", "compile(module), trained from outside")
def outside(m: Any) -> Case:
    model = mlp(m, 16, 32, 32, CLASSES)
    return Case(model, labelled(m, 32, 16), _outside(m, m.optim.Adam(model.parameters(), lr=RATE)))


@pattern("gradients", "an update written by hand")
def by_hand(m: Any) -> Case:
    model, criterion = mlp(m, 16, 32, CLASSES), m.nn.CrossEntropyLoss()
    weights = list(model.parameters())
    speeds = [m.zeros_like(weight) for weight in weights]

    def step(x: Any, y: Any) -> Any:
        loss = criterion(model(x), y)
        loss.backward()
        with m.no_grad():
            for weight, speed in zip(weights, speeds, strict=True):
                speed.mul_(0.9).add_(weight.grad)
                weight -= RATE * speed
                weight.grad = None
        return loss

    return Case(step, labelled(m, 32, 16))


@pattern("gradients", "autograd.grad of weights given as arguments")
def functional(m: Any) -> Case:
    weights = [normal(m, 16, 32).requires_grad_(), normal(m, 32, 1, seed=1).requires_grad_()]

    def step(weights: list[Any], x: Any) -> Any:
        loss = ((x @ weights[0]).tanh() @ weights[1]).pow(2).mean()
        return m.autograd.grad(loss, weights)

    return Case(step, ((weights, x) for (x,) in several(m, 32, 16)))


@pattern("gradients", "a custom Function")
def custom(m: Any) -> Case:
    class Sign(m.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.sign()

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return gradient

    model, criterion = mlp(m, 16, CLASSES), m.nn.CrossEntropyLoss()
    return Case(training(m, model, loss_of=lambda x, y: criterion(Sign.apply(model(x)), y)), labelled(m, 32, 16))
