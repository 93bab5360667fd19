"""Training and eval mode for the length of a `with` block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from wayfare.nn.module import Module

__all__ = ["in_mode"]


@contextmanager
def in_mode(model: Module, training: bool) -> Iterator[None]:
    """The model and all inside it in one mode; afterwards each module has the mode it had."""
    before = [(module, module.training) for module in model.modules()]
    model.train(training)
    try:
        yield
    finally:
        for module, mode in before:
            module.training = mode
