"""How each record runs on CUDA, where its family does not say so: written in functions of CuPy, by its own forward, or
on the host. `way` is complete: a record that nothing is known of has none, and a test says so.

An elementwise record is its formula and a composition its ops, so they need no entry.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wayfare.core.op import REGISTRY, Op

Override = Callable[..., Any]

OVERRIDES: dict[Op, Override] = {}
# Those of them whose kernels or library take bfloat16 themselves; the others are given float32, as on the CPU.
TAKE_BFLOAT16: set[Op] = set()
# Functions that give all gradients of a node at once, for records whose rules would take many launches.
GRADIENTS: dict[Op, Override] = {}
# Records whose forward is NumPy code that CuPy's arrays run as it is: views, and few functions that NumPy hands over.
PLAIN: set[Op] = set()
# Records that the CPU computes: the arrays are copied there and back, and the device is waited for. With the reason.
ON_HOST: dict[Op, str] = {}


def on_cuda(*names: str, bfloat16: bool = False) -> Callable[[Override], Override]:
    """Decorator: `function(backend, *arrays, **attrs)` is the forward of these records on arrays of CuPy. With
    `bfloat16` it takes such arrays as they are, and so do the gradient rules of the records."""

    def register(function: Override) -> Override:
        for name in names:
            OVERRIDES[REGISTRY[name]] = function
            if bfloat16:
                TAKE_BFLOAT16.add(REGISTRY[name])
        return function

    return register


def gradients_on_cuda(name: str) -> Callable[[Override], Override]:
    """Decorator: `function(backend, needs, grads, results, *arrays, **attrs)` gives the gradients of a record's inputs
    on arrays of CuPy, or None if its rules must."""

    def register(function: Override) -> Override:
        GRADIENTS[REGISTRY[name]] = function
        return function

    return register


def runs_as_it_is(*names: str) -> None:
    """Say that the forward of these records is right for arrays of CuPy."""
    PLAIN.update(REGISTRY[name] for name in names)


def on_host(reason: str, *names: str) -> None:
    """Say that the CPU computes these records."""
    ON_HOST.update((REGISTRY[name], reason) for name in names)


def way(op: Op) -> str:
    """How a record runs on CUDA, in one word; "" if nobody has said it."""
    if op in OVERRIDES:
        return "override"
    if op in ON_HOST:
        return "host"
    if op in PLAIN:
        return "forward"
    if op.formula is not None:
        return "formula"
    return "function" if op.family == "elementwise" and op.outputs == 1 else ""
