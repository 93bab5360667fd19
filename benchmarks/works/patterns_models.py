"""Patterns of whole models: training steps and inference."""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from typing import Any

from benchmarks.works.patterns import CLASSES, RATE, Case, labelled, labels, mlp, normal, pattern, several, training


@pattern("models", "MLP 16-32-32-4, SGD step")
def mlp_sgd(m: Any) -> Case:
    return Case(training(m, mlp(m, 16, 32, 32, CLASSES)), labelled(m, 32, 16))


@pattern("models", "MLP 16-32-32-4, Adam step")
def mlp_adam(m: Any) -> Case:
    return Case(training(m, mlp(m, 16, 32, 32, CLASSES), "Adam"), labelled(m, 32, 16))


@pattern("models", "MLP 784-256-4, Adam step, batch 128")
def mlp_large(m: Any) -> Case:
    return Case(training(m, mlp(m, 784, 256, CLASSES), "Adam"), labelled(m, 128, 784, number=4))


@pattern("models", "AdamW, schedule and clipped norm")
def clipped(m: Any) -> Case:
    model, criterion = mlp(m, 16, 32, CLASSES), m.nn.CrossEntropyLoss()
    optimiser = m.optim.AdamW(model.parameters(), lr=RATE)
    schedule = m.optim.lr_scheduler.CosineAnnealingLR(optimiser, 1000)

    def step(x: Any, y: Any) -> Any:
        optimiser.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        m.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        return loss

    return Case(step, labelled(m, 32, 16))


@pattern("models", "LSTMCell in a loop of 60, training step")
def lstm_loop(m: Any) -> Case:
    m.manual_seed(0)
    cell, head, criterion = m.nn.LSTMCell(16, 32), m.nn.Linear(32, CLASSES), m.nn.CrossEntropyLoss()

    def loss_of(x: Any, y: Any) -> Any:
        h = c = m.zeros(16, 32)
        for moment in x:
            h, c = cell(moment, (h, c))
        return criterion(head(h), y)

    step = training(m, m.nn.ModuleList([cell, head]), "Adam", loss_of)
    return Case(step, repeat((normal(m, 60, 16, 16), labels(m, 16))))


@pattern("models", "nn.LSTM over 30 steps, training step")
def lstm_layer(m: Any) -> Case:
    m.manual_seed(0)
    layer, head, criterion = m.nn.LSTM(16, 32), m.nn.Linear(32, CLASSES), m.nn.CrossEntropyLoss()
    model = m.nn.ModuleList([layer, head])
    step = training(m, model, "Adam", lambda x, y: criterion(head(layer(x)[0][-1]), y))
    return Case(step, repeat((normal(m, 30, 16, 16), labels(m, 16))))


def _block(m: Any, width: int, dropout: float = 0.0) -> Any:
    m.manual_seed(0)
    return m.nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=dropout, batch_first=True)


@pattern("models", "transformer block, Adam step")
def transformer(m: Any) -> Case:
    block = _block(m, 64)
    return Case(training(m, block, "Adam", lambda x: block(x).pow(2).mean()), several(m, 4, 32, 64))


@pattern("models", "transformer block with dropout, SGD step")
def transformer_dropout(m: Any) -> Case:
    block = _block(m, 64, 0.1)
    return Case(training(m, block, "SGD", lambda x: block(x).pow(2).mean()), several(m, 4, 32, 64))


def _conv(m: Any, norm: bool) -> Any:
    m.manual_seed(0)
    norms = [m.nn.BatchNorm2d(8)] if norm else []
    rest = [m.nn.ReLU(), m.nn.MaxPool2d(2), m.nn.Flatten(), m.nn.Linear(512, CLASSES)]
    return m.nn.Sequential(m.nn.Conv2d(3, 8, 3, padding=1), *norms, *rest)


@pattern("models", "small CNN, SGD step")
def cnn(m: Any) -> Case:
    return Case(training(m, _conv(m, norm=False)), labelled(m, 16, 3, 16, 16))


@pattern("models", "small CNN with BatchNorm, Adam step")
def cnn_norm(m: Any) -> Case:
    return Case(training(m, _conv(m, norm=True), "Adam"), labelled(m, 16, 3, 16, 16))


@pattern("models", "BatchNorm alone, training")
def batch_norm(m: Any) -> Case:
    norm = m.nn.BatchNorm1d(256)
    return Case(norm, several(m, 128, 256))


@pattern("models", "200 layers, no_grad")
def deep(m: Any) -> Case:
    model = mlp(m, *[16] * 101)
    return Case(_without_gradients(m, model), several(m, 8, 16))


@pattern("models", "200 layers, training step")
def deep_step(m: Any) -> Case:
    return Case(training(m, mlp(m, *[16] * 100, CLASSES)), labelled(m, 8, 16))


def _without_gradients(m: Any, model: Any) -> Callable[[Any], Any]:
    def answer(x: Any) -> Any:
        with m.no_grad():
            return model(x)

    return answer


@pattern("models", "answers of a small MLP, no_grad inside")
def answer_small(m: Any) -> Case:
    return Case(_without_gradients(m, mlp(m, 16, 32, 32, CLASSES)), several(m, 1, 16))


@pattern("models", "answers of a mid MLP, no_grad inside")
def answer_mid(m: Any) -> Case:
    return Case(_without_gradients(m, mlp(m, 784, 512, 512, 10)), several(m, 16, 784))


@pattern("models", "answers of a transformer block, eval()")
def answer_block(m: Any) -> Case:
    return Case(_without_gradients(m, _block(m, 64).eval()), several(m, 1, 32, 64))


@pattern("models", "a module with keyword arguments")
def keywords(m: Any) -> Case:
    class Scaled(m.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layers = mlp(m, 16, 32, CLASSES)

        def forward(self, x: Any, *, scale: float = 1.0, normed: bool = False) -> Any:
            h = self.layers(x) * scale
            return h / h.norm(dim=-1, keepdim=True) if normed else h

    def use(function: Callable[..., Any], x: Any) -> None:
        function(x, scale=0.5, normed=True)

    return Case(Scaled(), several(m, 32, 16), use)


@pattern("models", "two models in turns: a GAN's two steps")
def two_models(m: Any) -> Case:
    maker, judge = mlp(m, 8, 32, 16), mlp(m, 16, 32, 1)
    first, second = (m.optim.Adam(model.parameters(), lr=RATE) for model in (maker, judge))

    def step(noise: Any, real: Any) -> Any:
        fake = maker(noise)
        second.zero_grad()
        loss = (judge(fake.detach()).exp() + (-judge(real)).exp()).mean()
        loss.backward()
        second.step()
        first.zero_grad()
        (-judge(fake)).mean().backward()
        first.step()
        return loss

    return Case(step, repeat((normal(m, 32, 8), normal(m, 32, 16))))
