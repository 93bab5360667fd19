"""A training step of ResNet-18, written with layers as people write it."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.works import CPU, Prepared
from benchmarks.works.models import STANDING_RATE, Shapes, linear
from benchmarks.works.steps import training

WIDTHS = (64, 128, 256, 512)  # of the four stages, two blocks each


def step(
    m: Any,
    mode: str,
    rate: float = STANDING_RATE,
    batch: int = 64,
    picture: int = 64,
    widths: tuple[int, ...] = WIDTHS,
    classes: int = 10,
    device: str = CPU,
) -> Prepared:
    """Forward, backward and an Adam update on square pictures of three colours."""
    numbers = np.random.default_rng(0)
    x = numbers.standard_normal((batch, 3, picture, picture), dtype=np.float32)
    y = numbers.integers(0, classes, batch)
    model = resnet18(m, tuple(widths), classes)
    criterion = m.nn.CrossEntropyLoss()
    shapes = parameters(tuple(widths), classes)
    return training(m, mode, model, shapes, lambda x, y: criterion(model(x), y), [(x, y)], rate, device=device)


def resnet18(m: Any, widths: tuple[int, ...], classes: int) -> Any:
    """A convolution and pooling, two basic blocks a stage, the mean of each channel, and a linear layer."""
    nn = m.nn

    class Block(m.nn.Module):  # type: ignore[misc]
        def __init__(self, entering: int, width: int, stride: int) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(entering, width, 3, stride=stride, padding=1, bias=False)
            self.norm1 = nn.BatchNorm2d(width)
            self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
            self.norm2 = nn.BatchNorm2d(width)
            self.changes = stride != 1 or entering != width
            if self.changes:
                self.conv3 = nn.Conv2d(entering, width, 1, stride=stride, bias=False)
                self.norm3 = nn.BatchNorm2d(width)

        def forward(self, x: Any) -> Any:
            h = self.norm1(self.conv1(x)).relu()
            h = self.norm2(self.conv2(h))
            return (h + (self.norm3(self.conv3(x)) if self.changes else x)).relu()

    class ResNet(m.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, widths[0], 7, stride=2, padding=3, bias=False)
            self.norm = nn.BatchNorm2d(widths[0])
            self.pool = nn.MaxPool2d(3, stride=2, padding=1)
            self.blocks = nn.Sequential(*(Block(*numbers) for numbers in _blocks(widths)))
            self.head = nn.Linear(widths[-1], classes)

        def forward(self, x: Any) -> Any:
            h = self.blocks(self.pool(self.norm(self.conv(x)).relu()))
            return self.head(h.mean((2, 3)))

    return ResNet()


def parameters(widths: tuple[int, ...], classes: int) -> Shapes:
    """The names and shapes of the parameters."""
    found: Shapes = {"conv.weight": (widths[0], 3, 7, 7), **_norm("norm", widths[0])}
    for number, (entering, width, stride) in enumerate(_blocks(widths)):
        name = f"blocks.{number}"
        found |= {f"{name}.conv1.weight": (width, entering, 3, 3), **_norm(f"{name}.norm1", width)}
        found |= {f"{name}.conv2.weight": (width, width, 3, 3), **_norm(f"{name}.norm2", width)}
        if stride != 1 or entering != width:
            found |= {f"{name}.conv3.weight": (width, entering, 1, 1), **_norm(f"{name}.norm3", width)}
    return found | linear("head", widths[-1], classes)


def _blocks(widths: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """Channels in, channels out and stride of every block."""
    found = []
    entering = widths[0]
    for stage, width in enumerate(widths):
        found += [(entering, width, 1 if stage == 0 else 2), (width, width, 1)]
        entering = width
    return found


def _norm(name: str, width: int) -> Shapes:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}
