"""Adam's update of many parameters, and the plain copy that says how fast memory lets anybody be."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from benchmarks.works import CPU, Prepared, Unavailable, constant, host

LAYERS, INPUTS, OUTPUTS = 20, 499, 500  # a weight and a bias each: 40 tensors, 5 million parameters
SETTINGS = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8}
ARRAYS_MOVED = 7  # parameter, gradient and both averages are read; all but the gradient are written
COMPARED = 4_000_000  # of a great many parameters, about so many are compared

Update = Callable[[], None]
State = Callable[[], list[np.ndarray]]


def update(m: Any, variant: str = "default", layers: int = LAYERS) -> Prepared:
    """One step over all parameters. `variant` is how PyTorch goes about it: "default", "foreach" or "fused"."""
    start, slopes = _drawn(layers, INPUTS, OUTPUTS)
    step, state = _prepare(m, start, slopes, variant if m.__name__ == "torch" else "default")

    def results() -> list[np.ndarray]:
        for _ in range(3):
            step()
        return state()

    return Prepared(step, results)


def update_on_device(
    m: Any,
    variant: str = "default",
    layers: int = 40,
    inputs: int = 4999,
    outputs: int = 5000,
    device: str = CPU,
) -> Prepared:
    """The same for a great many parameters: all layers begin with the same numbers, and results are some of each.

    A layer is drawn once and copied on the device: a billion random numbers would take longer than the measurement.
    """
    drawn = [[constant(m, array, device) for array in arrays] for arrays in _drawn(1, inputs, outputs)]
    start, slopes = ([tensor.clone() for _ in range(layers) for tensor in tensors] for tensors in drawn)
    parameters = [tensor.requires_grad_() for tensor in start]
    for parameter, slope in zip(parameters, slopes, strict=True):
        parameter.grad = slope
    optimiser = _optimiser(m, parameters, variant if m.__name__ == "torch" else "default")
    stride = max(1, layers * (inputs + 1) * outputs // COMPARED)

    def some(tensors: list[Any]) -> np.ndarray:
        return np.concatenate([host(tensor.detach().reshape(-1)[::stride]) for tensor in tensors])

    def results() -> list[np.ndarray]:
        for _ in range(3):
            optimiser.step()
        kept = [optimiser.state[parameter] for parameter in parameters]
        averages = [some([entry[name] for entry in kept]) for name in ("exp_avg", "exp_avg_sq")]
        return [some(parameters) - some(drawn[0] * layers), *averages]

    return Prepared(optimiser.step, results)


def _drawn(layers: int, inputs: int, outputs: int) -> list[list[np.ndarray]]:
    """Where the parameters of so many layers start, and their gradients."""
    numbers = np.random.default_rng(0)
    shapes = [(inputs, outputs), (outputs,)] * layers
    return [[numbers.standard_normal(shape, dtype=np.float32) * 0.05 for shape in shapes] for _ in range(2)]


def _optimiser(m: Any, parameters: list[Any], variant: str) -> Any:
    how = {} if variant == "default" else {variant: True}
    try:
        return m.optim.Adam(parameters, **SETTINGS, **how)
    except (AttributeError, RuntimeError) as error:
        raise Unavailable(f"{m.__name__} has no {variant} Adam here: {error}") from None


def _prepare(m: Any, start: list[np.ndarray], slopes: list[np.ndarray], variant: str) -> tuple[Update, State]:
    parameters = [constant(m, array).requires_grad_() for array in start]
    for parameter, slope in zip(parameters, slopes, strict=True):
        parameter.grad = constant(m, slope)
    optimiser = _optimiser(m, parameters, variant)

    def state() -> list[np.ndarray]:
        kept = [optimiser.state[parameter] for parameter in parameters]
        return _joined(
            start,
            [parameter.detach().numpy() for parameter in parameters],
            [entry["exp_avg"].numpy() for entry in kept],
            [entry["exp_avg_sq"].numpy() for entry in kept],
        )

    return optimiser.step, state


def _joined(start: list[np.ndarray], end: list[np.ndarray], *averages: list[np.ndarray]) -> list[np.ndarray]:
    """How far the parameters moved (where they are hides it), and the averages; each as one long array."""
    moved = [after - before for before, after in zip(start, end, strict=True)]
    return [np.concatenate([array.ravel() for array in arrays]) for arrays in (moved, *averages)]


def copying(m: Any, count: int, threads: int) -> Prepared:
    """np.copyto of `count` float32 numbers, shared between `threads` threads; `m` plays no part."""
    source, target = np.ones(count, np.float32), np.zeros(count, np.float32)
    pieces = list(zip(np.array_split(target, threads), np.array_split(source, threads), strict=True))
    pool = ThreadPoolExecutor(threads)

    def step() -> None:
        if threads == 1:
            np.copyto(target, source)
        else:
            list(pool.map(lambda piece: np.copyto(*piece), pieces))

    def results() -> list[np.ndarray]:
        step()
        return [target]

    return Prepared(step, results)
