"""Training on sequences of many lengths, one length a step, in random order: what a size not seen before costs."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.works import constant, jax_steps, models
from benchmarks.works.models import STANDING_RATE
from benchmarks.works.starting import compilations
from benchmarks.works.steps import CLASSES, encoder, training_step

SHORTEST = 20


def epochs(m: Any, mode: str, number: int = 4, count: int = 100, batch: int = 8, width: int = 64) -> dict[str, Any]:
    """Per epoch: seconds, mean loss, and what was compiled at each step, over `count` lengths in a new random order."""
    lengths = list(range(SHORTEST, SHORTEST + count))
    shapes = models.encoder(width, 1) | models.linear("head", width, CLASSES)
    batches = models.sequences(lengths, batch, width, CLASSES)
    if m.__name__ == "jax":
        step = jax_steps.jitted(m, mode, "labelled sequences", shapes, STANDING_RATE)
        tensors = {n: tuple(m.numpy.asarray(array) for array in arrays) for n, arrays in batches.items()}
    else:
        step = _module_step(m, mode, width, shapes)
        tensors = {n: tuple(constant(m, array) for array in arrays) for n, arrays in batches.items()}

    def made() -> int:
        if m.__name__ == "jax":
            return int(step.compiled._cache_size())  # type: ignore[attr-defined]
        found = compilations(m)
        return found.get("built", 0) + found.get("graphs", 0)

    order = np.random.default_rng(0)
    answers: dict[str, Any] = {"seconds": [], "loss": [], "made": []}
    for _ in range(number):
        losses, compiled = [], []
        before = made()
        started = perf_counter()
        for length in order.permutation(lengths):
            losses.append(step(*tensors[int(length)]))
            compiled.append(made())
        answers["loss"].append(sum(float(loss if m.__name__ == "jax" else loss.detach()) for loss in losses) / count)
        answers["seconds"].append(perf_counter() - started)
        answers["made"].append(np.diff([before, *compiled]).tolist())
    return answers


def _module_step(m: Any, mode: str, width: int, shapes: models.Shapes) -> Any:
    class Classifier(m.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layers = encoder(m, width, 1).layers
            self.head = m.nn.Linear(width, CLASSES)

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = layer(x)
            return self.head(x.mean(1))

    model = Classifier()
    criterion = m.nn.CrossEntropyLoss()
    step, _ = training_step(m, mode, model, shapes, lambda x, y: criterion(model(x), y), STANDING_RATE)
    return step
