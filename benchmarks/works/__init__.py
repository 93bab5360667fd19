"""The works: plain functions of a module `m` (Wayfare or a peer), so that every side runs the very same code.

A timed work is `prepare(m, ...) -> Prepared`; a work that measures by itself returns plain JSON values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

CPU = "cpu"
DRAWN = 5_000_000


class Unavailable(RuntimeError):
    """A side has no such feature: its row is left out, and the message is the reason shown for it."""


def nothing() -> None:
    """What a side has left to do when its last step has returned, unless it works on behind Python's back."""


@dataclass(frozen=True)
class Prepared:
    """A work ready to run: `step` is what is timed, `results` are the arrays that all sides must agree on.

    `finish` waits for steps that returned before they were done; `kept` is what outlives the steps (a model, say).
    """

    step: Callable[[], object]
    results: Callable[[], list[np.ndarray]]
    finish: Callable[[], object] = nothing
    kept: object = None


def constant(m: Any, array: np.ndarray, device: str = CPU) -> Any:
    """A tensor that owns a copy of `array`."""
    made = m.from_numpy(array.copy())
    return made if device == CPU else made.to(device)


def leaf(m: Any, array: np.ndarray, device: str = CPU) -> Any:
    """A float32 tensor that collects a gradient."""
    return constant(m, array.astype(np.float32), device).requires_grad_()


def repeated(draw: Callable[[int], Any], shape: int | tuple[int, ...]) -> np.ndarray:
    """An array of drawn numbers; a very large one repeats its first millions: they are faster to copy than to draw."""
    return np.resize(draw(min(int(np.prod(shape)), DRAWN)), shape)


def host(tensor: Any) -> np.ndarray:
    """A copy of a tensor's numbers as a NumPy array, wherever the tensor lives."""
    return np.array(tensor.detach().cpu().numpy())


def clear(leaves: list[Any]) -> None:
    """Forget the gradients, as an optimiser does between steps."""
    for tensor in leaves:
        tensor.grad = None


def gradients(leaves: list[Any]) -> list[np.ndarray]:
    """Copies of the gradients the leaves have collected."""
    return [host(tensor.grad) for tensor in leaves]


def resolve(work: str) -> Callable[..., Any]:
    """The function that `work` names, such as "chain.small_ops" in benchmarks/works/chain.py."""
    module, _, function = work.partition(".")
    found: Callable[..., Any] = getattr(import_module(f"benchmarks.works.{module}"), function)
    return found
