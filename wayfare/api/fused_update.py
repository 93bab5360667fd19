"""`fused_update`: formulas that change tensors in place, for all parameters of a model in one native call.

    @wf.fused_update(writes=("p", "v"))
    def momentum(m, p, g, v, *, rate, keep):
        v = v * keep + g
        return p - v * rate, v

    momentum(parameters, gradients, velocities, rate=0.1, keep=0.9)

The formula is that of one element. After `m`, the maths of elements (`m.sqrt`, `m.maximum`, `m.where`, `m.fma`, …), its
positional parameters are tensors, lists of them at the call; its keyword-only parameters are numbers, which may change
from call to call at no cost. It returns the new values of what it `writes`.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from wayfare.autograd.modes import no_grad
from wayfare.codegen.runtime.update import Update
from wayfare.core.device import BACKENDS
from wayfare.core.errors import (
    ArgumentError,
    ArgumentTypeError,
    IndexRangeError,
    InPlaceError,
    ShapeError,
)
from wayfare.core.mode import STATE, UNUSUAL, executor
from wayfare.core.tensor import Tensor
from wayfare.core.write_clock import check_memory, note_write

__all__ = ["FusedUpdate", "fused_update"]


class FusedUpdate:
    """A formula of one element that changes tensors in place. Made by `fused_update`."""

    def __init__(self, formula: Callable[..., Any], writes: Sequence[str]) -> None:
        functools.update_wrapper(self, formula)
        self.name = formula.__name__
        self.tensors, self.numbers = _parameters(formula)
        unknown = [name for name in writes if name not in self.tensors]
        if unknown or not writes or len(set(writes)) != len(writes):
            raise ArgumentError(f"fused_update: {self.name} cannot write {tuple(writes)}, it takes {self.tensors}",
                                fix="Name some of them, each once.")  # fmt: skip
        self.writes = tuple(writes)
        # Numbers given by name, as the formula takes them.
        self.in_order = _getter(self.numbers)

        def positional(m: Any, *values: Any) -> tuple[Any, ...]:
            count = len(self.tensors)
            made = formula(m, *values[:count], **dict(zip(self.numbers, values[count:], strict=True)))
            made = made if isinstance(made, tuple) else (made,)
            if len(made) != len(self.writes):
                raise ArgumentError(f"fused_update: {self.name} returned {len(made)} values for {self.writes}",
                                    fix="Return the new value of each, in that order.")  # fmt: skip
            return made

        places = tuple(self.tensors.index(name) for name in self.writes)
        self._update = Update(self.name, positional, len(self.tensors), places, len(self.numbers))

    def __repr__(self) -> str:
        return f"<fused update {self.name}>"

    def __call__(self, *lists: Sequence[Tensor], **numbers: float) -> None:
        """Change the tensors in place, as under `no_grad`: nothing is recorded, and a graph that kept an old value
        notices. Each list has one tensor for each set; the tensors of a set have one shape."""
        update = self._update
        try:
            values = self.in_order(numbers)
            if [value for value in values if value is None]:  # NumPy would read it as NaN
                self._explain(lists, numbers)
            count = len(lists[0])
            if len(lists) != len(self.tensors) or len(numbers) != len(self.numbers):
                self._refuse(lists, numbers)
            for column in lists:
                if len(column) != count or (column.__class__ is not list and column.__class__ is not tuple):
                    self._refuse(lists, numbers)
            written: list[Tensor] = []
            for k in update.written:
                written += lists[k]
            read: list[Tensor] = []
            for k in update.read:
                read += lists[k]
            if [t._extras for t in written].count(None) != len(written):
                _check_marks(self.name, written)
            if UNUSUAL:
                executor().update(update, written, read, values)
            else:
                update([t._array for t in written], [t._array for t in read], values)
        except (AttributeError, KeyError, IndexError, TypeError, ValueError):
            self._explain(lists, numbers)
            raise

    def at_rows(self, rows: Tensor, *tensors: Tensor, **numbers: float) -> None:
        """Change the rows `rows` [k] (each named once) of dimension 0 of one set of tensors, in place.

        What is written is given whole and only these rows of it are touched; what is only read is given for the rows
        [k, …]. The cost depends on k alone.
        """
        self._explain([[t] for t in tensors], numbers)
        _check_rows(self.name, rows, tensors)
        if not executor().works_on_rows or tensors[0]._array.__class__ in BACKENDS:
            self._at_rows_by_ops(rows, tensors, numbers)
            return
        executor().before_update(self.name)
        update = self._update
        written = [tensors[k] for k in update.written]
        _check_marks(self.name, written)
        places = rows._array
        arrays = [t._array for t in tensors]
        for t in written:
            check_memory(t._array, self.name)
        try:
            for k in update.written:
                arrays[k] = arrays[k].take(places, axis=0)
        except IndexError:
            raise IndexRangeError(f"{self.name}: a row number is outside the {len(written[0])} rows of the tensor"
                                  ) from None  # fmt: skip
        blocks = [arrays[k] for k in update.written]
        update.one(arrays, blocks, self.in_order(numbers))
        for t, block in zip(written, blocks, strict=True):
            t._array[places] = block
            note_write(t._array)

    def _at_rows_by_ops(self, rows: Tensor, tensors: Sequence[Tensor], numbers: dict[str, Any]) -> None:
        """The rows are taken out, updated and put back, each by an op that a recorder can see."""
        places = self._update.written
        with no_grad():
            blocks = [t.index_select(0, rows) if k in places else t for k, t in enumerate(tensors)]
            self(*[[block] for block in blocks], **numbers)
            for k in places:
                tensors[k].index_copy_(0, rows, blocks[k])

    def _explain(self, lists: Sequence[Any], numbers: dict[str, Any]) -> None:
        """Say what is wrong with the arguments, if something is."""
        if len(lists) != len(self.tensors) or numbers.keys() != set(self.numbers):
            self._refuse(lists, numbers)
        for column in lists:
            if not isinstance(column, (list, tuple)):
                self._refuse(lists, numbers)
            for t in column:
                if not isinstance(t, Tensor):
                    raise ArgumentTypeError(f"{self.name}: takes lists of tensors, one of them holds a "
                                            f"{type(t).__name__}")  # fmt: skip
        for name, value in numbers.items():
            try:
                float(value)
            except (TypeError, ValueError):
                raise ArgumentTypeError(f"{self.name}: {name} must be a number, not {type(value).__name__}") from None

    def _refuse(self, lists: Sequence[Any], numbers: dict[str, Any]) -> NoReturn:
        wanted = f"({', '.join(self.tensors)}{''.join(f', {n}=…' for n in self.numbers)})"
        for column in lists:
            if not isinstance(column, (list, tuple)):
                raise ArgumentTypeError(f"{self.name}{wanted}: takes lists of tensors, not {type(column).__name__}",
                                        fix="For a single tensor give [tensor].")  # fmt: skip
        lengths = [len(column) for column in lists]
        if len(lists) != len(self.tensors) or numbers.keys() != set(self.numbers):
            said = f"{len(lists)} lists" + (f" and {', '.join(numbers)}" if numbers else "")
            raise ArgumentTypeError(f"{self.name}{wanted}: got {said}")
        raise ArgumentError(f"{self.name}{wanted}: got lists of {' and '.join(map(str, lengths))} tensors",
                            fix="Give one tensor of each kind for each set.")  # fmt: skip


def _getter(names: tuple[str, ...]) -> Callable[[dict[str, Any]], tuple[Any, ...]]:
    """The values of these names, in order; a name that is missing is a KeyError."""
    if len(names) < 2:
        return lambda numbers: tuple([numbers[name] for name in names])
    return operator.itemgetter(*names)


def _check_rows(name: str, rows: Any, tensors: Sequence[Tensor]) -> None:
    if not isinstance(rows, Tensor):
        raise ArgumentTypeError(f"{name}: rows must be a Tensor of row numbers, not {type(rows).__name__}")
    if rows.ndim != 1 or rows.dtype.numpy.kind not in "iu":
        raise ArgumentTypeError(f"{name}: rows must be one dimension of whole numbers, it is {rows.spec}")
    for t in tensors:
        if not t.ndim:
            raise ShapeError(f"{name}: a tensor of no dimension has no rows")


def _check_marks(name: str, written: Sequence[Tensor]) -> None:
    mode = STATE.mode
    for t in written:
        if t._extras is not None and "inference" in t._extras and (mode is None or not mode.inference):
            raise InPlaceError(f"{name}: a tensor made under inference_mode cannot be written outside it",
                               fix="Write to a .clone() of it.")  # fmt: skip


def _parameters(formula: Callable[..., Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of a formula's tensors and numbers."""
    tensors: list[str] = []
    numbers: list[str] = []
    for name, parameter in inspect.signature(formula).parameters.items():
        many = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if many or parameter.default is not parameter.empty:
            raise ArgumentError(f"fused_update: the parameter {parameter} of {formula.__name__} has no fixed meaning",
                                fix="Name every tensor and every number, without defaults.")  # fmt: skip
        (numbers if parameter.kind is parameter.KEYWORD_ONLY else tensors).append(name)
    if len(tensors) < 2:
        raise ArgumentError(f"fused_update: {formula.__name__} takes no tensor",
                            fix="Write it as (m, tensors…, *, numbers…).")  # fmt: skip
    return tuple(tensors[1:]), tuple(numbers)


def fused_update(*, writes: Sequence[str]) -> Callable[[Callable[..., Any]], FusedUpdate]:
    """Decorator: a formula of one element becomes an update of many tensors in place, in one native call.

    `writes` names the parameters whose new values the formula returns. `update(lists of tensors…, numbers…)` runs it;
    `update.at_rows(rows, tensors…, numbers…)` runs it on some rows only.
    """
    return lambda formula: FusedUpdate(formula, (writes,) if isinstance(writes, str) else tuple(writes))
