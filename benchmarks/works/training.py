"""Training steps of models made of the library's layers: the same code for every side, weights from one stream."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from benchmarks.works import Prepared, clear, constant

OPTIMISERS: dict[str, dict[str, Any]] = {"SGD": {"lr": 0.01}, "Adagrad": {"lr": 0.01}, "SparseAdam": {"lr": 0.001}}


def _prepared(m: Any, model: Any, loss_of: Callable[[], Any], optimiser: Any = None) -> Prepared:
    """A step of Adam (or of another optimiser) on `loss_of()`; the sides must agree on loss and gradients."""
    numbers = np.random.default_rng(1)
    with m.no_grad():
        for parameter in model.parameters():
            spread = 0.05 if parameter.ndim > 1 else 0.01
            values = numbers.standard_normal(tuple(parameter.shape), dtype=np.float32) * spread
            # Scales of normalisation layers start at one, all other vectors near zero: as in real use.
            parameter.add_(constant(m, values)) if parameter.ndim == 1 else parameter.copy_(constant(m, values))
    parameters = list(model.parameters())
    used = m.optim.Adam(parameters, lr=1e-3) if optimiser is None else optimiser(parameters)

    def step() -> None:
        used.zero_grad()
        loss_of().backward()
        used.step()

    def results() -> list[np.ndarray]:
        model.eval()  # no two libraries drop the same numbers
        with m.no_grad():
            for parameter in parameters:
                if parameter.ndim == 1:
                    parameter.fill_(0.5)
        clear(parameters)
        loss = loss_of()
        loss.backward()
        found = [loss.detach().numpy().reshape(1)]
        for parameter in parameters:
            grad = parameter.grad
            found.append(np.array(grad.to_dense().numpy() if getattr(grad, "is_sparse", False) else grad.numpy()))
        clear(parameters)
        model.train()
        return [array for array in found if np.abs(array).max() > 1e-7]

    return Prepared(step, results)


def mlp(m: Any, batch: int = 256, sizes: tuple[int, ...] = (784, 512, 512, 10)) -> Prepared:
    """A classifier of three linear layers."""
    numbers = np.random.default_rng(0)
    layers: list[Any] = []
    for fan_in, fan_out in pairwise(sizes):
        layers += [m.nn.Linear(fan_in, fan_out), m.nn.ReLU()]
    model = m.nn.Sequential(*layers[:-1])
    x = constant(m, numbers.standard_normal((batch, sizes[0]), dtype=np.float32))
    y = constant(m, numbers.integers(0, sizes[-1], batch))
    criterion = m.nn.CrossEntropyLoss()
    return _prepared(m, model, lambda: criterion(model(x), y))


def cnn(m: Any, batch: int = 64) -> Prepared:
    """Two convolutions with pooling, on pictures of 8 × 8 as in the digits data."""
    numbers = np.random.default_rng(0)
    nn = m.nn
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip
    x = constant(m, numbers.standard_normal((batch, 1, 8, 8), dtype=np.float32))
    y = constant(m, numbers.integers(0, 10, batch))
    criterion = nn.CrossEntropyLoss()
    return _prepared(m, model, lambda: criterion(model(x), y))


def transformer(
    m: Any, width: int = 256, length: int = 128, batch: int = 8, layers: int = 2, dropout: float = 0.1
) -> Prepared:
    """Encoder blocks over a batch of sequences."""
    numbers = np.random.default_rng(0)
    block = m.nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=dropout, batch_first=True)
    model = m.nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
    x = constant(m, numbers.standard_normal((batch, length, width), dtype=np.float32))
    target = constant(m, numbers.standard_normal((batch, length, width), dtype=np.float32))
    criterion = m.nn.MSELoss()
    return _prepared(m, model, lambda: criterion(model(x), target))


def packed_lstm(m: Any, count: int = 64, size: int = 64, hidden: int = 128, longest: int = 60) -> Prepared:
    """A classifier of sequences of 5 to 60, packed."""
    numbers = np.random.default_rng(0)

    class Classifier(m.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.lstm = m.nn.LSTM(size, hidden)
            self.head = m.nn.Linear(hidden, 5)

        def forward(self, packed: Any) -> Any:
            _, (h, _) = self.lstm(packed)
            return self.head(h[-1])

    lengths = numbers.integers(5, longest + 1, count)
    sequences = [constant(m, numbers.standard_normal((n, size), dtype=np.float32)) for n in lengths]
    packed = m.nn.utils.rnn.pack_sequence(sequences, enforce_sorted=False)
    y = constant(m, numbers.integers(0, 5, count))
    model = Classifier()
    criterion = m.nn.CrossEntropyLoss()
    return _prepared(m, model, lambda: criterion(model(packed), y))


def table(m: Any, optimiser: str, rows: int, width: int = 128, touched: int = 1000) -> Prepared:
    """A table of embeddings of which few rows are used in a step."""
    numbers = np.random.default_rng(0)
    model = m.nn.Embedding(rows, width, sparse=True)
    index = constant(m, numbers.integers(0, min(rows, 2000), touched))
    weight = constant(m, numbers.standard_normal((touched, width), dtype=np.float32))
    make = getattr(m.optim, optimiser)
    return _prepared(
        m, model, lambda: (model(index) * weight).sum(), lambda parameters: make(parameters, **OPTIMISERS[optimiser])
    )


def adam(m: Any, kind: str = "Adam", layers: int = 20) -> Prepared:
    """One update of five million parameters in forty tensors."""
    numbers = np.random.default_rng(0)
    shapes = [(499, 500), (500,)] * layers
    arrays = [numbers.standard_normal(shape, dtype=np.float32) * 0.05 for shape in shapes]
    parameters = [constant(m, array).requires_grad_() for array in arrays]
    for parameter, shape in zip(parameters, shapes, strict=True):
        parameter.grad = constant(m, numbers.standard_normal(shape, dtype=np.float32))
    used = getattr(m.optim, kind)(parameters, lr=1e-3)

    def results() -> list[np.ndarray]:
        for _ in range(3):
            used.step()
        return [p.detach().numpy() - before for p, before in zip(parameters, arrays, strict=True)]

    return Prepared(used.step, results)
