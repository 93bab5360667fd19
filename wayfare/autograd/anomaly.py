"""Anomaly mode: the first NaN or infinity is an error that names where it was made, forward or backward.

It is a watcher, and keeps a module timeline so that the error of a bad gradient can name the module and the example.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from wayfare.codegen.routines.rows import Rows
from wayfare.core.array_summary import all_finite, described, first_bad, has_nan, spec_text
from wayfare.core.device import to_host
from wayfare.core.errors import AnomalyError
from wayfare.core.mode import STATE, Watcher
from wayfare.core.module_path import module_text
from wayfare.core.module_timeline import ModuleTimeline, example_text
from wayfare.core.tensor import Tensor


class Anomaly(Watcher):
    """Checks every result, and raises at the first that is not finite."""

    allows_plans = False
    allows_batches = False

    def __init__(self) -> None:
        self._timeline = ModuleTimeline()

    def ran(self, op: Any, inputs: tuple[Any, ...], outputs: tuple[Any, ...], attrs: dict[str, Any]) -> None:
        """An op has run: raise if it made a NaN or an infinity from good inputs."""
        if STATE.example is not self._timeline.example:
            self._timeline.ran(outputs)
        for out in outputs:
            array = to_host(out._array)
            if not all_finite(array) and _is_to_blame(inputs, array, attrs):
                number = [other is out for other in outputs].index(True)
                self._forward_error(op, inputs, array, number if len(outputs) > 1 else None)

    def stepped(self, node: Any, given: Any, made: Sequence[Any]) -> None:
        """A gradient rule has run: raise if a gradient is not finite."""
        for number, gradient in enumerate(made):
            if gradient.__class__ is Rows:
                # The other rows of a large table are zeros and need no check.
                good = all([all_finite(part.values) for part in gradient.parts])
            else:
                good = gradient is None or all_finite(array_of(gradient))
            if not good:
                self._backward_error(node, given, array_of(gradient), number)

    def entered(self, module: Any) -> None:
        """A call of a module begins."""
        self._timeline.entered(module)

    def left(self, module: Any) -> None:
        """A call of a module has ended."""
        self._timeline.left()

    def _forward_error(self, op: Any, inputs: tuple[Any, ...], array: Any, output: int | None) -> None:
        found = first_bad(array)
        assert found is not None
        kind, index = found
        of = f"output {output}, " if output is not None else ""
        given = "; ".join(described(to_host(t._array)) for t in inputs)
        article = "a" if kind == "NaN" else "an"
        raise AnomalyError(f"{op.name}: made {article} {kind} at index {index} of {of}{spec_text(array)}"
                           + (f" from {given}" if given else ""))  # fmt: skip

    def _backward_error(self, node: Any, given: Any, array: Any, number: int) -> None:
        found = first_bad(array)
        assert found is not None
        kind, index = found
        article = "a" if kind == "NaN" else "an"
        where = self._where(node.number)
        kept = [value for value in (node.kept or ())[1:] if getattr(value, "dtype", None) is not None]
        inputs = "; ".join(described(to_host(value)) for value in kept if hasattr(value, "ravel"))
        incoming = "; ".join(described(array) for array in map(array_of, given if isinstance(given, tuple) else [given])
                             if array is not None)  # fmt: skip
        raise AnomalyError(
            f"{node.name()} returned {article} {kind} for input {number}, first at index {index} of "
            f"{spec_text(array)}; the forward op was {node.op.name} on line {node.site}{where}"
            + (f", its inputs {inputs}" if inputs else "") + f", the gradient it was given {incoming}"
        )  # fmt: skip

    def _where(self, number: int) -> str:
        """The module and the example in which a node was made."""
        modules = module_text(self._timeline.modules_at(number))
        example = example_text(self._timeline.example_at(number))
        return "".join([f", in {place}" for place in (modules, example) if place])


def _is_to_blame(inputs: tuple[Any, ...], made: Any, attrs: dict[str, Any]) -> bool:
    """Did the op itself make a bad number: a NaN from inputs without NaN, or an infinity from finite inputs?"""
    arrays = [to_host(t._array) for t in inputs]
    if has_nan(made):
        return not any(has_nan(x) for x in arrays)
    asked_for = any(isinstance(value, float) and not math.isfinite(value) for value in attrs.values())
    return not asked_for and all(all_finite(x) for x in arrays)


def array_of(gradient: Any) -> Any:
    """The numbers of a gradient: an array, a Tensor, Rows of a larger one, or None."""
    if isinstance(gradient, Tensor):
        return to_host(gradient._array)
    return gradient.dense() if gradient.__class__ is Rows else to_host(gradient)
