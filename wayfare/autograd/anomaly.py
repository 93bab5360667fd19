"""Anomaly mode: the first NaN or infinity is an error that names where it was made, forward or backward.

It looks on as any watcher does, and keeps a diary of the modules and examples that ran, to name those of a bad
gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from wayfare.codegen.routines.rows import Rows
from wayfare.core.array_summary import all_finite, described, first_bad, has_nan, spec_text
from wayfare.core.errors import AnomalyError
from wayfare.core.mode import STATE, Watcher
from wayfare.core.module_path import module_text
from wayfare.core.module_timeline import Diary, example_text
from wayfare.core.tensor import Tensor


class Anomaly(Watcher):
    """Looks at every number that is made, and stops at the first bad one."""

    allows_plans = False
    allows_batches = False

    def __init__(self) -> None:
        self._diary = Diary()

    def ran(self, op: Any, inputs: tuple[Any, ...], outputs: tuple[Any, ...], attrs: dict[str, Any]) -> None:
        """An op has run: were the numbers good before it, and are they now?"""
        if STATE.example is not self._diary.example:
            self._diary.ran(outputs)
        for out in outputs:
            array = out._array
            if not all_finite(array) and _is_to_blame(inputs, array, attrs):
                number = [other is out for other in outputs].index(True)
                self._forward_error(op, inputs, array, number if len(outputs) > 1 else None)

    def stepped(self, node: Any, given: Any, made: Sequence[Any]) -> None:
        """A gradient rule has run: are the gradients it made numbers?"""
        for number, gradient in enumerate(made):
            if gradient.__class__ is Rows:
                # The rest of a large table is zeros, which need no looking at.
                good = all([all_finite(part.values) for part in gradient.parts])
            else:
                good = gradient is None or all_finite(array_of(gradient))
            if not good:
                self._backward_error(node, given, array_of(gradient), number)

    def entered(self, module: Any) -> None:
        """A call of a module begins."""
        self._diary.entered(module)

    def left(self, module: Any) -> None:
        """A call of a module has ended."""
        self._diary.left()

    def _forward_error(self, op: Any, inputs: tuple[Any, ...], array: Any, output: int | None) -> None:
        found = first_bad(array)
        assert found is not None
        kind, index = found
        of = f"output {output}, " if output is not None else ""
        given = "; ".join(described(t._array) for t in inputs)
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
        inputs = "; ".join(described(value) for value in kept if hasattr(value, "ravel"))
        incoming = "; ".join(described(array) for array in map(array_of, given if isinstance(given, tuple) else [given])
                             if array is not None)  # fmt: skip
        raise AnomalyError(
            f"{node.name()} returned {article} {kind} for input {number}, first at index {index} of "
            f"{spec_text(array)}; the forward op was {node.op.name} on line {node.site}{where}"
            + (f", its inputs {inputs}" if inputs else "") + f", the gradient it was given {incoming}"
        )  # fmt: skip

    def _where(self, number: int) -> str:
        """The module and the example in which a node was made."""
        modules = module_text(self._diary.modules_at(number))
        example = example_text(self._diary.example_at(number))
        return "".join([f", in {place}" for place in (modules, example) if place])


def _is_to_blame(inputs: tuple[Any, ...], made: Any, attrs: dict[str, Any]) -> bool:
    """Is a number that is not finite the op's own doing: a NaN of no NaN, an infinity of finite numbers?"""
    arrays = [t._array for t in inputs]
    if has_nan(made):
        return not any(has_nan(x) for x in arrays)
    asked_for = any(isinstance(value, float) and not math.isfinite(value) for value in attrs.values())
    return not asked_for and all(all_finite(x) for x in arrays)


def array_of(gradient: Any) -> Any:
    """The numbers of a gradient: an array, a Tensor, Rows of a larger one, or None."""
    if isinstance(gradient, Tensor):
        return gradient._array
    return gradient.dense() if gradient.__class__ is Rows else gradient
