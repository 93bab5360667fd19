"""One training step of a 784-512-512-10 classifier, written by hand in tensor ops."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from benchmarks.works import Prepared, clear, constant, gradients, leaf

SIZES = (784, 512, 512, 10)
LEARNING_RATE = 0.01


def by_hand(m: Any, batch: int = 256, sizes: tuple[int, ...] = SIZES) -> Prepared:
    """The loss spelled out: log-softmax, the right entries gathered, their mean."""

    def loss_of(logits: Any, labels: Any) -> Any:
        log_probabilities = logits - logits.logsumexp(1, keepdim=True)
        return -log_probabilities.gather(1, labels.unsqueeze(1)).mean()

    return _prepare(m, loss_of, batch, sizes)


def with_cross_entropy(m: Any, batch: int = 256, sizes: tuple[int, ...] = SIZES) -> Prepared:
    """The same step with the library's own loss."""
    return _prepare(m, m.nn.functional.cross_entropy, batch, sizes)


def _prepare(m: Any, loss_of: Any, batch: int, sizes: tuple[int, ...]) -> Prepared:
    numbers = np.random.default_rng(0)
    inputs = constant(m, numbers.standard_normal((batch, sizes[0]), dtype=np.float32))
    labels = constant(m, numbers.integers(0, sizes[-1], batch))
    layers = []
    for fan_in, fan_out in pairwise(sizes):
        weight = leaf(m, numbers.standard_normal((fan_in, fan_out)) * np.sqrt(2 / fan_in))
        layers.append((weight, leaf(m, np.zeros(fan_out))))
    parameters = [tensor for layer in layers for tensor in layer]

    def backward() -> None:
        h = inputs
        for weight, bias in layers[:-1]:
            h = (h @ weight + bias).relu()
        weight, bias = layers[-1]
        loss_of(h @ weight + bias, labels).backward()

    def update() -> None:
        with m.no_grad():
            for parameter in parameters:
                parameter.sub_(parameter.grad, alpha=LEARNING_RATE)

    def step() -> None:
        backward()
        update()
        clear(parameters)  # last: no gradient is alive between steps, so all of them count in a step's peak

    def results() -> list[np.ndarray]:
        clear(parameters)
        backward()
        collected = gradients(parameters)
        update()
        return collected + [parameter.detach().numpy().copy() for parameter in parameters]

    return Prepared(step, results)
