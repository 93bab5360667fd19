"""What the layers of a model were given and gave: calls of leaf modules, seen through forward hooks."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import wayfare as wf
from wayfare import nn
from wayfare.nn.modes import in_mode
from wayfare.see.report.words import first_tensor

__all__ = ["Call", "Layer", "Watched", "traced", "unharmed", "watched_layers"]


@dataclass
class Call:
    """A layer that ran: its path in the model, its class, what it was given, and the first tensor it gave."""

    layer: str
    kind: str
    output: wf.Tensor | None
    inputs: tuple[Any, ...] = ()
    result: Any = None


@dataclass
class Layer:
    """A layer and its calls: the first is kept, the others are counted."""

    path: str
    module: nn.Module
    calls: int = 0
    given: Any = None
    gave: Any = None


@dataclass
class Watched:
    """What hooks saw of a step: layers in the order of their first call, and what the model was first called with."""

    layers: list[Layer] = field(default_factory=list)
    arguments: tuple[Any, ...] | None = None
    answer: Any = None
    calls: int = 0


def _leaves(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that have none inside, and that do something, by path; the model itself if it is one."""
    return {path: module for path, module in model.named_modules() if not list(module.children())}


@contextmanager
def _hooked(modules: dict[str, nn.Module], note: Any) -> Iterator[None]:
    def hook_of(path: str) -> Any:
        return lambda module, inputs, output: note(path, module, inputs, output)

    handles = [module.register_forward_hook(hook_of(path)) for path, module in modules.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def watched_layers(model: nn.Module) -> Iterator[Watched]:
    """While the block runs, note the first call of each layer and how often each is called."""
    found = Watched()
    by_path: dict[str, Layer] = {}

    def note(path: str, module: nn.Module, inputs: Any, output: Any) -> None:
        layer = by_path.get(path)
        if layer is None:
            layer = by_path[path] = Layer(path, module, given=inputs, gave=output)
            found.layers.append(layer)
        layer.calls += 1

    def note_model(_path: str, _module: nn.Module, inputs: Any, output: Any) -> None:
        found.calls += 1
        if found.arguments is None:
            found.arguments, found.answer = inputs, output

    with _hooked(_leaves(model), note), _hooked({"": model}, note_model):
        yield found


def traced(model: nn.Module, *inputs: Any) -> tuple[Any, list[Call]]:
    """The model's answer, in eval mode and without recording, and each call of a layer in the order they ran."""
    calls: list[Call] = []

    def note(path: str, module: nn.Module, given: Any, output: Any) -> None:
        calls.append(Call(path, type(module).__name__, first_tensor(output), given, output))

    with in_mode(model, False), wf.no_grad(), wf.random.fork_rng(), _hooked(_leaves(model), note):
        return model(*inputs), calls


@contextmanager
def unharmed() -> Iterator[None]:
    """Restores the random state of Python and of NumPy afterwards; a snapshot restores that of Wayfare."""
    python, arrays = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)
