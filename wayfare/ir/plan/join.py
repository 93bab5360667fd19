"""Products of a loop over time that do not need the previous step, joined into one product.

A cell in a Python loop multiplies each part of its input by the same weights, and the gradient of its weights is a sum
of products, one for each step. On a device each of them is a launch that leaves most of it idle. So

    x[0] @ w, x[1] @ w, …          becomes   (x @ w)[0], (x @ w)[1], …
    a₀.T @ b₀ + a₁.T @ b₁ + …      becomes   cat(a₀, a₁, …).T @ cat(b₀, b₁, …)
    a₀.sum(0) + a₁.sum(0) + …      becomes   cat(a₀, a₁, …).sum(0)

The parts of a `cat` are computed where they will lie, so it costs nothing but memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from wayfare.core.op import REGISTRY
from wayfare.ir.assemble import ASSEMBLE
from wayfare.ir.graph import Step, Value, in_order, record
from wayfare.ir.plan.buffers import IN_PLACE

# The fewest products that are joined.
_FEW = 4
# The most bytes of one `cat`.
_LARGEST = 1 << 28


def joined(inputs: Sequence[Value], wanted: Sequence[Value]) -> list[Value]:
    """The wanted values of a lowered graph, with products joined."""
    wanted = _Products(in_order([*inputs, *wanted])).rebuilt(wanted)
    return _Sums(in_order([*inputs, *wanted]), wanted).rebuilt(wanted)


class _Rewriting:
    """A copy of a graph in which some values are replaced."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = steps
        self._new: dict[Value, Value] = {}

    def rebuilt(self, wanted: Sequence[Value]) -> list[Value]:
        """The values that stand for these."""
        for step in self._steps:
            if step.op is None:
                continue
            made = self._replaced(step)
            if made is None:
                inputs = tuple([self.of(v) for v in step.inputs])
                if all(a is b for a, b in zip(inputs, step.inputs, strict=True)):
                    continue
                found = record(step.op, inputs, step.attrs)
                made = found if isinstance(found, tuple) else (found,)
                made[0].step.data = step.data
            self._new.update(zip(step.outputs, made, strict=True))
        return [self.of(v) for v in wanted]

    def of(self, v: Value) -> Value:
        """What stands for a value."""
        return self._new.get(v, v)

    def _replaced(self, step: Step) -> tuple[Value, ...] | None:
        raise NotImplementedError


class _Products(_Rewriting):
    """Products of the parts of one input with the same weights."""

    def __init__(self, steps: Sequence[Step]) -> None:
        super().__init__(steps)
        self._counts = Counter([key for step in steps if (key := _part_product(step)) is not None])
        self._whole: dict[Any, Value] = {}

    def _replaced(self, step: Step) -> tuple[Value, ...] | None:
        key = _part_product(step)
        if key is None or self._counts[key] < _FEW:
            return None
        weight, part = step.inputs[1], _part_of(step.inputs[0])
        assert part is not None
        base, dim, index = part
        size = _bytes(step.outputs[0]) * base.shape[dim]
        if 2 * self._counts[key] < base.shape[dim] or size > _LARGEST:
            return None
        whole = self._whole.get(key)
        if whole is None:
            assert step.op is not None
            whole = self._whole[key] = record(step.op, (self.of(base), self.of(weight)), step.attrs)
            whole.step.data = step.data
        return (record(REGISTRY["select"], (whole,), {"dim": dim, "index": index}),)


def _part_product(step: Step) -> Any:
    """What products that may be joined have in common: the op, the input, the dimension of its parts, the weights."""
    if step.op is None or not step.op.gemm or len(step.inputs) != 2:
        return None
    weight, part = step.inputs[1], _part_of(step.inputs[0])
    if weight.ndim != 2 or part is None or not _is_given(part[0]) or not _is_given(weight):
        return None  # another input may depend on such a product
    base, dim, _ = part
    return step.op, id(base), dim, id(weight)


def _part_of(v: Value) -> tuple[Value, int, int] | None:
    """Of a matrix that is a part of a larger array, as `x[i]` and `x[:, i]`: that array, the dimension, and i."""
    step = v.step
    if step.name == "select" and v.ndim == 2 and step.attrs["dim"] < 2:
        return step.inputs[0], step.attrs["dim"], step.attrs["index"]
    if step.name != "basic_index" or v.ndim != 2 or step.inputs[0].ndim != 3:
        return None
    base, index = step.inputs[0], [*step.attrs["index"]]
    index += [(0, n, 1) for n in base.shape[len(index) :]]
    numbers = [dim for dim, entry in enumerate(index) if isinstance(entry, int)]
    if len(index) != 3 or len(numbers) != 1 or numbers[0] > 1:
        return None
    whole = all(entry == (0, n, 1) for entry, n in zip(index, base.shape, strict=True) if isinstance(entry, tuple))
    return (base, numbers[0], index[numbers[0]]) if whole else None


def _is_given(v: Value) -> bool:
    """Is this an input, perhaps in another dtype or order?"""
    while v.step.op is not None:
        if v.step.name not in ("cast", "permute"):
            return False
        v = v.step.inputs[0]
    return v.step.name == "input"


class _Sums(_Rewriting):
    """Sums of products, and of sums over rows."""

    def __init__(self, steps: Sequence[Step], wanted: Sequence[Value]) -> None:
        super().__init__(steps)
        self._uses = Counter([v for step in steps for v in step.inputs])
        self._uses.update(wanted)
        inner = {v for step in steps if step.name == "add" for v in step.inputs if self._is_link(v, step.outputs[0])}
        self._terms = {
            step.outputs[0]: terms for step in steps
            if step.name == "add" and step.outputs[0] not in inner and len(terms := self._terms_of(step)) >= _FEW
        }  # fmt: skip
        # In which order rows were put together, by the rows.
        self._orders: dict[frozenset[Value], list[Value]] = {}
        self._cats: dict[tuple[int, ...], Value] = {}
        # The order of the parts of an input decides: then these need no copy.
        for terms in self._terms.values():
            rows = [a for term in terms if (a := _rows(term)) is not None]
            others = [term.step.inputs[1] for term in terms if term.step.op and term.step.op.gemm]
            for parts in (others, rows):
                numbers = _numbers(parts)
                if numbers is not None:
                    self._orders[frozenset(rows)] = [rows[numbers.index(i)] for i in range(len(numbers))]
                    break

    def _is_link(self, v: Value, total: Value) -> bool:
        return v.step.name == "add" and self._uses[v] == 1 and v.shape == total.shape

    def _terms_of(self, step: Step) -> list[Value]:
        """What is added; empty if not all of it can be joined."""
        found, stack = [], list(step.inputs)
        while stack:
            v = stack.pop()
            if self._is_link(v, step.outputs[0]):
                stack += v.step.inputs
            else:
                found.append(v)
        kinds = {(v.step.op, *[tuple(x.shape) for x in v.step.inputs]) for v in found}
        rows = [_rows(v) for v in found]
        alone = all(self._uses[v] == 1 for v in found)
        if len(kinds) > 1 or not alone or any(a is None for a in rows) or len(set(rows)) < len(rows):
            return []
        return found if sum(_bytes(a) for a in rows if a is not None) <= _LARGEST else []

    def _replaced(self, step: Step) -> tuple[Value, ...] | None:
        terms = self._terms.get(step.outputs[0]) if step.outputs else None
        if terms is None:
            return None
        by_rows = {_rows(term): term for term in terms}
        order = self._orders.setdefault(frozenset(by_rows), list(by_rows))  # type: ignore[arg-type]
        terms = [by_rows[a] for a in order]
        first, whole = terms[0].step, self._cat(order)
        assert first.op is not None
        if not first.op.gemm:  # a view of a sum over rows
            each = first.inputs[0].step
            assert each.op is not None
            total = record(each.op, (whole,), each.attrs)
            return (record(first.op, (total,), first.attrs),)
        turned = record(REGISTRY["permute"], (whole,), {"dims": (1, 0)})
        made = record(first.op, (turned, self._cat([term.step.inputs[1] for term in terms])), first.attrs)
        made.step.data = first.data
        return (made,)

    def _cat(self, parts: Sequence[Value]) -> Value:
        """The rows of all parts, one below the other."""
        base = _selected(parts)
        rows, columns = parts[0].shape
        if base is not None:
            # Parts along the second dimension need one copy.
            if base[1]:
                base = record(REGISTRY["permute"], (self.of(base[0]),), {"dims": (1, 0, 2)}), 0
            return record(REGISTRY["reshape"], (self.of(base[0]),), {"shape": (rows * len(parts), columns)})  # type: ignore[no-any-return]
        key = tuple(map(id, parts))
        found = self._cats.get(key)
        if found is None:
            indexes = tuple([((i * rows, (i + 1) * rows, 1), (0, columns, 1)) for i in range(len(parts))])
            attrs = {"shape": (rows * len(parts), columns), "indexes": indexes}
            found = self._cats[key] = record(ASSEMBLE, tuple([self.of(v) for v in parts]), attrs)
            found.step.data = IN_PLACE
        return found


def _rows(term: Value) -> Value | None:
    """The rows whose products, or sums, are added: `a` of `a.T @ b`, or of `a.sum(0)`."""
    op = term.step.op
    if op is None:
        return None
    return _multiplied(term.step) if op.gemm and len(term.step.inputs) == 2 else _summed(term)


def _multiplied(step: Step) -> Value | None:
    turned, other = step.inputs
    assert step.op is not None
    if step.op.gemm == "nt" or turned.step.name != "permute" or other.ndim != 2:
        return None
    return turned.step.inputs[0] if tuple(turned.step.attrs["dims"]) == (1, 0) else None


def _summed(term: Value) -> Value | None:
    if term.step.name != "reshape" or term.step.inputs[0].step.name != "sum":
        return None
    total = term.step.inputs[0].step
    over = tuple(total.attrs["dim"]) == (0,) and total.inputs[0].ndim == 2
    return total.inputs[0] if over and term.size == total.inputs[0].shape[1] else None


def _selected(parts: Sequence[Value]) -> tuple[Value, int] | None:
    """The value of which these are all parts, in their order, and along which dimension; None if there is none."""
    numbers, first = _numbers(parts), _part_of(parts[0]) if parts else None
    return first[:2] if first is not None and numbers == list(range(len(parts))) else None


def _numbers(parts: Sequence[Value]) -> list[int] | None:
    """Which parts of one value these are, if they are all of them, in any order; None if they are not."""
    found = [_part_of(v) for v in parts]
    known = [part for part in found if part is not None]
    if not known or len(known) < len(found):
        return None
    base, dim, _ = known[0]
    if any(other is not base or along != dim for other, along, _ in known) or base.ndim != 3:
        return None
    numbers = [index for *_, index in known]
    return numbers if sorted(numbers) == list(range(base.shape[dim])) else None


def _bytes(v: Value) -> int:
    return int(v.size) * v.dtype.itemsize
