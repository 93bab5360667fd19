"""Whole training steps (forward, backward, update), run eagerly or compiled: the same weights and data for every side.

PyTorch and Wayfare run the very same code, JAX the same models as functions (see `jax_steps`).
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from itertools import cycle, pairwise
from typing import Any

import numpy as np

from benchmarks.works import CPU, Prepared, Unavailable, constant, jax_steps, models
from benchmarks.works.models import STANDING_RATE, Batch, Shapes

CLASSES = 5
# How each mode calls compile(), and what it tells the optimiser. With `fused` PyTorch updates all parameters in one
# kernel; with `capturable` a CUDA graph may hold the update, too. People have to ask for both.
COMPILE_OPTIONS: dict[str, dict[str, Any]] = {
    "compiled": {},
    "unchecked": {"check": False},
    "reduce-overhead": {"mode": "reduce-overhead"},
    "reduce-overhead, capturable": {"mode": "reduce-overhead"},
}
OPTIMISER_OPTIONS = {"fused Adam": {"fused": True}, "reduce-overhead, capturable": {"capturable": True}}


def logistic(
    m: Any, mode: str, rate: float = STANDING_RATE, rows: int = 1000, columns: int = 10, device: str = CPU
) -> Prepared:
    """Logistic regression on one batch, by plain gradient descent."""
    numbers = np.random.default_rng(0)
    x = numbers.standard_normal((rows, columns), dtype=np.float32)
    y = (x[:, :1] + 0.5 * numbers.standard_normal((rows, 1)) > 0).astype(np.float32)
    shapes: Shapes = {"weight": (1, columns), "bias": (1,)}
    if m.__name__ == "jax":
        return jax_steps.training(m, mode, "logistic", shapes, [(x, y)], rate, "SGD")
    model = m.nn.Linear(columns, 1)
    criterion = m.nn.BCEWithLogitsLoss()
    return training(m, mode, model, shapes, lambda x, y: criterion(model(x), y), [(x, y)], rate, "SGD", device)


def mlp(
    m: Any,
    mode: str,
    rate: float = STANDING_RATE,
    batch: int = 256,
    sizes: tuple[int, ...] = (784, 512, 512, 10),
    batches: int = 1,
    device: str = CPU,
) -> Prepared:
    """A classifier of linear layers with relu between them, on several batches in turn."""
    numbers = np.random.default_rng(0)
    data = [
        (numbers.standard_normal((batch, sizes[0]), dtype=np.float32), numbers.integers(0, sizes[-1], batch))
        for _ in range(batches)
    ]
    shapes = models.perceptron(sizes)
    if m.__name__ == "jax":
        return jax_steps.training(m, mode, "mlp", shapes, data, rate)
    layers: list[Any] = []
    for fan_in, fan_out in pairwise(sizes):
        layers += [m.nn.Linear(fan_in, fan_out), m.nn.ReLU()]
    model = m.nn.Sequential(*layers[:-1])
    criterion = m.nn.CrossEntropyLoss()
    return training(m, mode, model, shapes, lambda x, y: criterion(model(x), y), data, rate, device=device)


def transformer(
    m: Any,
    mode: str,
    rate: float = STANDING_RATE,
    width: int = 256,
    length: int = 128,
    batch: int = 8,
    layers: int = 2,
    dropout: float = 0.0,
    device: str = CPU,
    autocast: str | None = None,
) -> Prepared:
    """Encoder blocks over a batch of sequences; with dropout no two sides can be compared.

    With `autocast`, the name of a dtype, forward and loss compute in that dtype where autocast does.
    """
    numbers = np.random.default_rng(0)
    x, target = (numbers.standard_normal((batch, length, width), dtype=np.float32) for _ in range(2))
    shapes = models.encoder(width, layers)
    if m.__name__ == "jax":
        if dropout:
            raise Unavailable("the JAX version is written without dropout.")
        return jax_steps.training(m, mode, "transformer", shapes, [(x, target)], rate)
    model = encoder(m, width, layers, dropout)
    criterion = m.nn.MSELoss()

    def loss_of(x: Any, t: Any) -> Any:
        return criterion(model(x), t)

    used = loss_of if autocast is None else in_autocast(m, device, autocast, loss_of)
    return training(m, mode, model, shapes, used, [(x, target)], rate, device=device)


def in_autocast(m: Any, device: str, dtype: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, run in an autocast block of that dtype."""
    if not hasattr(m, "autocast"):
        raise Unavailable(f"{m.__name__} has no autocast().")
    kind, narrow = device.partition(":")[0], getattr(m, dtype)

    def narrower(*args: Any) -> Any:
        with m.autocast(kind, dtype=narrow):
            return function(*args)

    return narrower


def encoder(m: Any, width: int, layers: int, dropout: float = 0.0) -> Any:
    """Transformer blocks of four heads."""
    block = m.nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=dropout, batch_first=True)
    return m.nn.TransformerEncoder(block, layers, enable_nested_tensor=False)


def lstm_loop(
    m: Any,
    mode: str,
    rate: float = STANDING_RATE,
    batch: int = 32,
    length: int = 60,
    size: int = 64,
    hidden: int = 128,
    device: str = CPU,
) -> Prepared:
    """A classifier of sequences: an LSTM cell called step by step in a Python loop."""
    numbers = np.random.default_rng(0)
    x = numbers.standard_normal((length, batch, size), dtype=np.float32)
    y = numbers.integers(0, CLASSES, batch)
    shapes = models.lstm_cell(size, hidden) | models.linear("head", hidden, CLASSES)
    if m.__name__ == "jax":
        return jax_steps.training(m, mode, "lstm_loop", shapes, [(x, y)], rate)

    class Classifier(m.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.cell = m.nn.LSTMCell(size, hidden)
            self.head = m.nn.Linear(hidden, CLASSES)

        def forward(self, x: Any) -> Any:
            h = c = m.zeros(x.shape[1], hidden, device=device)
            for moment in x:
                h, c = self.cell(moment, (h, c))
            return self.head(h)

    model = Classifier()
    criterion = m.nn.CrossEntropyLoss()
    return training(m, mode, model, shapes, lambda x, y: criterion(model(x), y), [(x, y)], rate, device=device)


def halting(m: Any, mode: str, rate: float = STANDING_RATE, batch: int = 32, width: int = 64) -> Prepared:
    """A loop that runs until a value is small and a branch on another: Python decides, by the numbers, each step."""
    batches = models.halting_batches(batch, width)
    shapes = models.linear("turn", width, width) | models.linear("head", width, CLASSES)
    if m.__name__ == "jax":
        return jax_steps.training(m, mode, "halting", shapes, batches, rate)

    class Halting(m.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.turn = m.nn.Linear(width, width)
            self.head = m.nn.Linear(width, CLASSES)

        def forward(self, h: Any) -> Any:
            turns = 0
            while h.abs().mean() > models.HALT_BELOW and turns < models.MOST_TURNS:
                h = 0.7 * h + 0.1 * self.turn(h).tanh()
                turns += 1
            if h.norm() > models.LONG:
                h = h / h.norm() * models.LONG
            return self.head(h)

    model = Halting()
    criterion = m.nn.CrossEntropyLoss()
    return training(m, mode, model, shapes, lambda x, y: criterion(model(x), y), batches, rate)


def compiled(m: Any, mode: str, step: Callable[..., Any]) -> Callable[..., Any]:
    """The step as the side runs it in this mode."""
    if mode in ("eager", "fused Adam"):
        return step
    if not hasattr(m, "compile"):
        raise Unavailable(f"{m.__name__} has no compile().")
    how = COMPILE_OPTIONS[mode]
    for name in how.keys() - signature(m.compile).parameters.keys():
        raise Unavailable(f"{m.__name__}.compile() has no {name}=.")
    made: Callable[..., Any] = m.compile(step, **how)
    return made


def started(m: Any, model: Any, shapes: Shapes) -> Any:
    """The model with the weights that every side starts from."""
    values = models.weights(shapes)
    with m.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(constant(m, values.pop(name)))
    assert not values, f"the model has no {list(values)}"
    return model


def training(
    m: Any,
    mode: str,
    model: Any,
    shapes: Shapes,
    loss_of: Callable[..., Any],
    batches: list[Batch],
    rate: float,
    kind: str = "Adam",
    device: str = CPU,
) -> Prepared:
    """A step on the next batch; the sides must agree on the losses of several steps."""
    run, kept = training_step(m, mode, model, shapes, loss_of, rate, kind, device)
    tensors = [tuple(constant(m, array, device) for array in batch) for batch in batches]
    turns = cycle(tensors)

    def turn() -> Any:
        return run(*next(turns))

    def results() -> list[np.ndarray]:
        return [np.array([float(turn().detach()) for _ in range(models.COMPARED_STEPS * len(batches))], np.float32)]

    return Prepared(turn, results, kept=kept)


def training_step(
    m: Any,
    mode: str,
    model: Any,
    shapes: Shapes,
    loss_of: Callable[..., Any],
    rate: float,
    kind: str = "Adam",
    device: str = CPU,
) -> tuple[Callable[..., Any], object]:
    """Loss, backward and update as one function of a batch, in this mode; and what it works on."""
    started(m, model, shapes)
    if device != CPU:
        model.to(device)
    how = OPTIMISER_OPTIONS.get(mode, {})
    optimiser = getattr(m.optim, kind)(model.parameters(), lr=rate, **how)

    def step(*batch: Any) -> Any:
        loss = loss_of(*batch)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()  # last: no gradient is alive between steps, so all of them count in a step's peak
        return loss

    return compiled(m, mode, step), (model, optimiser)
