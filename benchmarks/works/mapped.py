"""Training steps of models written for one example: run in a loop or by `map`, from the same weights on every side.

PyTorch's cells are given rows of one ([1, size] where others get [size]) since it is faster with those.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np

from benchmarks.works import CPU, Prepared, Unavailable, clear, constant, host
from benchmarks.works.models import Shapes

Values = dict[str, np.ndarray]


def weights(shapes: Shapes) -> Values:
    """Random numbers for every parameter, so large that signals keep their size through layers of any width."""
    numbers = np.random.default_rng(1)
    found = {}
    for name, shape in shapes.items():
        scale = 0.1 if len(shape) == 1 else 1.0 if name.startswith("embed") else shape[-1] ** -0.5
        found[name] = numbers.standard_normal(shape, dtype=np.float32) * np.float32(scale)
    return found


def assign(m: Any, model: Any, values: Mapping[str, np.ndarray], device: str = CPU) -> Any:
    """The model on the device, started from these weights."""
    left = dict(values)
    with m.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(constant(m, left.pop(name)))
    assert not left, f"the model has no {list(left)}"
    return model if device == CPU else model.to(device)


def collected(model: Any) -> Values:
    """The gradients of all parameters by name, dense."""
    found = {}
    for name, parameter in model.named_parameters():
        grad = parameter.grad
        found[name] = host(grad.to_dense() if getattr(grad, "is_sparse", False) else grad)
    return found


def run(m: Any, mode: str, one: Callable[..., Any], examples: Sequence[tuple[Any, ...]]) -> list[Any]:
    """What `one` returns for each example: by the library's own `map` ("always": batched, however few they are), or one
    after the other."""
    if mode == "loop":
        return [one(*example) for example in examples]
    if not hasattr(m, "map"):
        raise Unavailable(f"{m.__name__} has no map().")
    options = {"batch": True} if mode == "always" else {}
    found: list[Any] = m.map(one, *zip(*examples, strict=True), **options)
    return found


def prepared(
    m: Any,
    mode: str,
    model: Any,
    one: Callable[..., Any],
    batches: Sequence[Sequence[tuple[Any, ...]]],
    compared: Callable[[Values], Values] = lambda gradients: gradients,
) -> Prepared:
    """Forward, loss and backward of the next batch; the sides agree on each example's loss and on the gradients."""
    turns = cycle(batches)
    parameters = list(model.parameters())

    def learn(batch: Sequence[tuple[Any, ...]]) -> list[Any]:
        clear(parameters)
        losses = run(m, mode, one, batch)
        m.stack(losses).sum().backward()
        return losses

    def results() -> list[np.ndarray]:
        losses = np.array([host(loss) for loss in learn(batches[0])], np.float32)
        gradients = compared(collected(model))
        return [losses, *(gradients[name] for name in sorted(gradients))]

    return Prepared(lambda: learn(next(turns)), results, kept=model)


def vector(m: Any, array: np.ndarray, device: str = CPU) -> Any:
    """The features of one thing, as cells of this library are fastest with."""
    return constant(m, array[None] if m.__name__ == "torch" else array, device)


def index(m: Any, number: int, device: str = CPU) -> Any:
    """A class, or the place of one thing in a table, beside `vector`."""
    return constant(m, np.array([number] if m.__name__ == "torch" else number), device)


def look_up(m: Any, table: Any, places: Any) -> list[Any]:
    """The vectors of several things, all at once where one by one is slow (`places` as `indices` made them)."""
    if m.__name__ == "torch":
        return list(table(places).split(1))
    return [table(place) for place in places]


def indices(m: Any, numbers: Sequence[int], device: str = CPU) -> Any:
    """The places of several things in a table."""
    if m.__name__ == "torch":
        return constant(m, np.array(numbers), device)
    return [constant(m, np.array(number), device) for number in numbers]
