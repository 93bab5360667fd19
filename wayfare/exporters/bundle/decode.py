"""Decoding JSON and arrays to a program. Every name, number, shape and dtype is checked before anything runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from wayfare.core.numpy_math import Array
from wayfare.core.spec import DType
from wayfare.exporters.bundle.check_ops import check_call
from wayfare.exporters.bundle.encode import VERSION
from wayfare.exporters.bundle.json_values import DTYPE_NAMES, Bad, Numbers, read_structure
from wayfare.ir.graph import Block, Step, Value, constant, unbound
from wayfare.ir.program import Program

_DEEPEST = 32
_KINDS = ("number", "grid", "if", "loop")


class Decoding:
    """Decodes a document; `limit` bounds the bytes of each value at the example's sizes."""

    def __init__(self, document: Any, arrays: dict[str, Array], limit: int) -> None:
        self.limit = limit
        self._values: list[Value] = []
        self._seen: list[bool] = []  # is the value visible in the current block?
        if not isinstance(document, dict):
            raise Bad("its graph is not an object")
        if document.get("version") != VERSION:
            raise Bad(f"its graph has version {str(document.get('version'))[:20]}, and this Wayfare reads {VERSION}")
        self.function = self._text(document.get("function"))
        sizes = self._list(document.get("sizes"))
        if not all(type(n) is int and 0 <= n < 2**40 for n in sizes):
            raise Bad("the sizes of its example are none")
        self.numbers = Numbers(sizes)
        self.size_names = [self._text(name) for name in self._list(document.get("size_names"))]
        names, inputs = [], []
        for entry in self._list(document.get("inputs")):
            parts = self._list(entry)
            names.append(self._text(parts[0] if parts else None))
            inputs.append(self._input(parts[1:]))
        self._constants(document.get("constants"), arrays)
        block = self._block(document.get("block"), inputs, 0)
        outputs = [self._text(name) for name in self._list(document.get("outputs"))]
        structure, count = read_structure(document.get("structure"))
        if not len(outputs) == len(block.outputs) == count or len(set(names)) != len(names):
            raise Bad("its results or inputs do not fit their names")
        entries = self._list(document.get("symbols"))
        if not len(entries) == len(sizes) == len(self.size_names):
            raise Bad("its sizes do not fit their names")
        symbols = [self._symbol(entry, number) for number, entry in enumerate(entries)]
        self.program = Program(block, symbols, names, outputs, structure)

    # -- parts

    def _text(self, value: Any) -> str:
        if not isinstance(value, str) or not value or len(value) > 1000:
            raise Bad(f"a name is {str(value)[:40]!r}")
        return value

    def _list(self, value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise Bad(f"there is {str(value)[:40]!r} where a list should be")
        return value

    def _dtype(self, name: Any) -> DType:
        if not isinstance(name, str) or name not in DTYPE_NAMES:
            raise Bad(f"a dtype is {str(name)[:40]!r}")
        return DTYPE_NAMES[name]

    def _enter(self, value: Value) -> Value:
        self._values.append(value)
        self._seen.append(True)
        return value

    def _input(self, described: Any) -> Value:
        """A new input of a block."""
        value = self._value(described)
        Step(None, (), {}, "input").makes(value)
        return value

    def _value(self, described: Any) -> Value:
        """A new value from its dtype and shape."""
        parts = self._list(described)
        if len(parts) != 2:
            raise Bad("a value is not described by dtype and shape")
        dtype, shape = self._dtype(parts[0]), self.numbers.shape(parts[1])
        if math.prod(int.__int__(n) for n in shape) * dtype.itemsize > self.limit:
            raise Bad(f"it would make a value of shape {[int.__int__(n) for n in shape]}, which takes more than the "
                      f"{self.limit:,} bytes allowed")  # fmt: skip
        return self._enter(unbound(shape, dtype.numpy))

    def _constants(self, given: Any, arrays: dict[str, Array]) -> None:
        left = dict(arrays)
        for name in self._list(given):
            array = left.pop(self._text(name), None)
            if array is None:
                raise Bad(f"there is no tensor {name!r:.60}, or it is used twice")
            self._enter(constant(array, name))
        if left:
            raise Bad(f"tensor {next(iter(left))!r:.60} has no place in its graph")

    def _use(self, number: Any) -> Value:
        if type(number) is not int or not 0 <= number < len(self._values) or not self._seen[number]:
            raise Bad(f"value {str(number)[:20]} is used where it is not known")
        return self._values[number]

    def _symbol(self, entry: Any, number: int) -> tuple[Value, int]:
        parts = self._list(entry)
        if len(parts) != 2 or not all(type(p) is int for p in parts) or not 0 <= parts[0] < len(self._values):
            raise Bad("a size is read off something unknown")
        value, axis = self._values[parts[0]], parts[1]
        if not -1 <= axis < value.ndim or (axis == -1 and not _is_integer(value)):
            raise Bad("a size is read off an axis that is not there")
        if axis >= 0 and int.__int__(value.shape[axis]) != self.numbers.sizes[number]:
            raise Bad("a size is not that of its axis")
        return value, axis

    # -- steps

    def _block(self, given: Any, inputs: list[Value], depth: int) -> Block:
        if not isinstance(given, dict) or depth > _DEEPEST:
            raise Bad("a block of its graph is malformed, or is nested too deeply")
        steps = [self._step(entry, number, depth) for number, entry in enumerate(self._list(given.get("nodes")))]
        return Block(inputs, steps, [self._use(n) for n in self._list(given.get("out"))])

    def _step(self, given: Any, number: int, depth: int) -> Step:
        if not isinstance(given, dict):
            raise Bad(f"step {number} is not an object")
        path = given.get("path", "")
        inputs = tuple([self._use(n) for n in self._list(given.get("in"))])
        attrs = given.get("attrs", {})
        if not isinstance(attrs, dict) or not isinstance(path, str):
            raise Bad(f"step {number} has attributes that are none")
        values = {name: self.numbers.value(value) for name, value in attrs.items()}
        if "op" in given:
            outputs = [self._value(d) for d in self._list(given.get("made"))]
            op = check_call(given["op"], inputs, values, outputs, self.limit)
            return Step(op, inputs, values, path=path[:1000]).makes(*outputs)
        kind = given.get("kind")
        if kind not in _KINDS:
            raise Bad(f"step {number} is of the kind {str(kind)[:40]!r}")
        blocks = tuple([self._inner(entry, depth) for entry in self._list(given.get("blocks", []))])
        outputs = [self._value(d) for d in self._list(given.get("made"))]
        data = values.pop("value", None) if kind == "number" else None
        step = Step(None, inputs, values, kind, data, blocks, path=path[:1000]).makes(*outputs)
        getattr(self, f"_check_{kind}")(step)
        return step

    def _inner(self, given: Any, depth: int) -> Block:
        """A block inside a step: its values are not visible outside."""
        if not isinstance(given, dict):
            raise Bad("a block of its graph is malformed")
        first = len(self._values)
        inputs = [self._input(d) for d in self._list(given.get("takes", []))]
        block = self._block(given, inputs, depth + 1)
        self._seen[first:] = [False] * (len(self._values) - first)
        return block

    def _check_number(self, step: Step) -> None:
        scalar = len(step.outputs) == 1 and step.outputs[0].shape == ()
        if not scalar or step.inputs or not isinstance(step.data, (int, float)):
            raise Bad("a number of its graph is malformed")

    def _check_grid(self, step: Step) -> None:
        start, steps, over = step.attrs.get("start"), step.attrs.get("steps"), step.attrs.get("over")
        numbers = [start, *steps] if isinstance(steps, tuple) else [None]
        if len(step.outputs) != 1 or step.inputs or not all(isinstance(n, (int, float)) for n in numbers):
            raise Bad("a grid of its graph is malformed")
        if type(over) is not int or over < 1 or (over > 1 and step.outputs[0].dtype != "int64"):
            raise Bad("a grid of its graph is divided by what it cannot be")
        if len(numbers) - 1 != step.outputs[0].ndim:
            raise Bad("a grid of its graph has other steps than dimensions")

    def _check_if(self, step: Step) -> None:
        if len(step.blocks) != 2 or len(step.inputs) != 1 or step.inputs[0].size != 1 or step.attrs:
            raise Bad("a decision of its graph is malformed")
        for block in step.blocks:
            _alike(block.outputs, step.outputs)
            if block.inputs:
                raise Bad("a decision of its graph has inputs of its own")

    def _check_loop(self, step: Step) -> None:
        attrs = step.attrs
        if attrs.keys() != {"trips", "asks", "entry", "carried"} or len(step.blocks) != 1:
            raise Bad("a loop of its graph is malformed")
        trips, asks, entry, carried = attrs["trips"], attrs["asks"], attrs["entry"], attrs["carried"]
        if type(asks) is not bool or type(entry) is not bool or type(carried) is not int or carried < 0:
            raise Bad("a loop of its graph is malformed")
        if not (trips is None and asks) and not (isinstance(trips, int) and not isinstance(trips, bool)):
            raise Bad("a loop of its graph does not say how often it runs")
        (block,) = step.blocks
        inputs, outputs = list(step.inputs), list(block.outputs)
        for truth in ([inputs.pop(0)] if entry and inputs else []) + ([outputs.pop(0)] if asks and outputs else []):
            if truth.size != 1 or truth.dtype != bool:
                raise Bad("a loop of its graph goes on by something that is neither true nor false")
        if not block.inputs or not _is_integer(block.inputs[0]):
            raise Bad("a loop of its graph has no counter")
        _alike(block.inputs[1:], inputs)
        _alike(outputs[:carried], inputs)
        _alike(outputs[:carried], step.outputs[:carried])
        if len(outputs) != len(step.outputs) or len(inputs) != carried:
            raise Bad("a loop of its graph carries something else than it gives")
        for one, all_of_them in zip(outputs[carried:], step.outputs[carried:], strict=True):
            if one.dtype != all_of_them.dtype or all_of_them.ndim != one.ndim + 1:
                raise Bad("a loop of its graph collects something else than it gives")


def _is_integer(value: Value) -> bool:
    """Is it one integer?"""
    return value.shape == () and value.dtype == "int64"


def _alike(some: Sequence[Value], others: Sequence[Value]) -> None:
    """Check that corresponding values have the same dtype and rank."""
    if len(some) != len(others):
        raise Bad("a block of its graph gives another number of values than are wanted")
    for a, b in zip(some, others, strict=True):
        if a.dtype != b.dtype or a.ndim != b.ndim:
            raise Bad("a block of its graph gives values of another kind than are wanted")
