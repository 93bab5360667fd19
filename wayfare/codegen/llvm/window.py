"""Indexed loads and stores, and folds, as LLVM IR; for loops that are vectorised along the row.

A value that is the same for all elements of a row is computed once, as a scalar. Positions that are such a value plus
the element's index are contiguous in memory: they become vector loads and stores. All others become gathers and
scatters.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wayfare.codegen.llvm.builder import TYPES, Writer, iota, memory_type, scalar_type, splat_constant, vector
from wayfare.codegen.llvm.expr import Body
from wayfare.codegen.loop.expr import NUMPY, Expr, const, expr, walk
from wayfare.codegen.loop.language import Loop, Operand, StoreAt
from wayfare.codegen.loop.window import carried_by

# How the value of an expression differs between the lanes: not at all, by the lane's number, by a multiple of the
# lane's number, in any other way.
_UNIFORM, _CONSECUTIVE, _LINEAR, _VARYING = "uniform", "consecutive", "linear", "varying"


@dataclass(slots=True)
class Access:
    """What a vector of elements knows of memory."""

    loop: Loop
    operands: tuple[Operand, ...]
    classes: str
    own: dict[int, list[tuple[str, str]]]  # (size, stride) of the own axes of operand k
    where: Callable[[int], str]  # the address of operand k for the first lane
    offsets: Sequence[str | None]  # the lanes' distances from there, if they are strided
    start: str  # the index of the first lane
    mask: str | None


class WindowBody(Body):
    """Emits expressions with indexed loads and folds."""

    def __init__(self, writer: Writer, lanes: int, leaf: Callable[[Expr], str], access: Access,
                 kinds: dict[int, str] | None = None, steps: dict[int, str] | None = None) -> None:  # fmt: skip
        super().__init__(writer, lanes, leaf)
        self.known: ChainMap[int, str] = ChainMap()  # type: ignore[assignment]
        self.access = access
        self.kinds: dict[int, str] = {} if kinds is None else kinds
        self.steps: dict[int, str] = {} if steps is None else steps
        self.carried: dict[tuple[int, int], str] = {}
        # Values are known by the id of their expression, so expressions that are made here must stay alive.
        self.made: list[Expr] = []
        # The same for the first lane alone.
        self.first = self if lanes == 1 else WindowBody(writer, 1, self._first_leaf, access, self.kinds, self.steps)

    def _first_leaf(self, e: Expr) -> str:
        if e.op == "index":
            return self._one("i64", self.access.start)
        held = self.leaf(e)
        chosen = self.writer.let(f"extractelement {self.type(e.dtype)} {held}, i64 0")
        return self._one(TYPES[e.dtype], chosen)

    def _one(self, kind: str, value: str) -> str:
        return self.writer.let(f"insertelement <1 x {kind}> poison, {kind} {value}, i64 0")

    # -- what differs between lanes

    def varies(self, root: Expr) -> str:
        """How the lanes of an expression differ."""
        for e in walk(root):
            if id(e) not in self.kinds:
                self.kinds[id(e)] = self._varies(e, [self.kinds[id(a)] for a in e.args])
        return self.kinds[id(root)]

    def _varies(self, e: Expr, args: list[str]) -> str:
        if e.op in ("const", "reduction", "size", "step"):
            return _UNIFORM
        if e.op == "index":
            return _CONSECUTIVE
        if e.op in ("load", "load_at"):
            number = e.value if e.op == "load" else e.value[0]
            return _UNIFORM if self.access.classes[number] in "bB" and all(a == _UNIFORM for a in args) else _VARYING
        if e.op in ("reload", "carried", "fold", "call", "rescue"):
            return _VARYING
        if all(a == _UNIFORM for a in args):
            return _UNIFORM
        if e.op in ("add", "sub") and e.dtype == "i64" and _VARYING not in args:
            one_more = args == [_CONSECUTIVE, _UNIFORM] or (e.op == "add" and args == [_UNIFORM, _CONSECUTIVE])
            return _CONSECUTIVE if one_more else _LINEAR
        return _LINEAR if e.op == "mul" and e.dtype == "i64" and _UNIFORM in args and _VARYING not in args else _VARYING

    def _step(self, e: Expr) -> Expr:
        """By how much a linear expression grows from lane to lane."""
        if self.varies(e) in (_UNIFORM, _CONSECUTIVE):
            return const(1 if self.varies(e) == _CONSECUTIVE else 0, "i64")
        a, b = e.args
        if e.op == "mul":
            return self._step(a) * b if self.varies(b) == _UNIFORM else a * self._step(b)
        return self._step(a) + self._step(b) if e.op == "add" else self._step(a) - self._step(b)

    # -- values

    def value(self, root: Expr) -> str:
        """The register that holds an expression; emitted on first use, in the innermost fold."""
        stack = [root]
        while stack:
            e = stack[-1]
            missing = [a for a in self._needed(e) if id(a) not in self.known]
            if id(e) in self.known or not missing:
                stack.pop()
                if id(e) not in self.known:
                    self.known[id(e)] = self._emitted(e)
            else:
                stack += reversed(missing)
        return self.known[id(root)]

    def number(self, e: Expr) -> str:
        """The value for the first lane, as a scalar."""
        if e.op == "const":
            return str(e.value)
        return self.writer.let(f"extractelement <1 x {TYPES[e.dtype]}> {self.first.value(e)}, i64 0")

    def _scalar(self, e: Expr) -> bool:
        """Is the value computed once, and then copied to all lanes?"""
        return self.lanes > 1 and e.op not in ("const", "load", "reduction") and self.varies(e) == _UNIFORM

    def _needed(self, e: Expr) -> Sequence[Expr]:
        return () if e.op in ("load_at", "fold") or self._scalar(e) else e.args

    def _emitted(self, e: Expr) -> str:
        if self._scalar(e):
            return self.writer.splat(self.lanes, TYPES[e.dtype], self.number(e))
        match e.op:
            case "step":
                return self._one("i64", self.steps[e.value])
            case "size":
                return self._one("i64", self.access.own[e.value[0]][e.value[1]][0])
            case "carried":
                return self.carried[e.value]
            case "load_at":
                return self._load_at(e)
            case "fold":
                return self._fold(e)
        return self._write(e)

    def _fold(self, e: Expr) -> str:
        writer, level = self.writer, e.value[0]
        count, starts, bodies = carried_by(e)
        values = [writer.variable(self.type(s.dtype), self.value(s)) for s in starts]
        for inner in walk(*bodies):
            # Loads of single elements do not change in the fold. LLVM may not move them: the count may be 0.
            if inner.op in ("load", "reload"):
                self.value(inner)
        with writer.loop("0", self.number(count), 1) as step:
            self.steps[level] = step
            self.known, self.first.known = self.known.new_child(), self.first.known.new_child()
            self.carried |= {(level, k): v.get() for k, v in enumerate(values)}
            for variable, value in zip(values, [self.value(b) for b in bodies], strict=True):
                variable.set(value)
            self.known, self.first.known = self.known.parents, self.first.known.parents
        for k, start in enumerate(starts):
            # All values of this fold come from one loop.
            self.made.append(expr("fold", e.args, start.dtype, (level, k)))
            self.known[id(self.made[-1])] = values[k].get()
        return self.known[id(e)]

    # -- memory

    def _address(self, k: int, indices: Sequence[Expr]) -> tuple[bool, str]:
        """Are the lanes apart in memory? And the addresses of all of them, or that of the first."""
        access, writer = self.access, self.writer
        item, shape = NUMPY[access.operands[k].dtype].itemsize, access.classes[k]
        strides = [stride for _, stride in access.own[k]]
        if shape.isupper():
            strides[-1] = str(item)
        kinds = [_UNIFORM if self.lanes == 1 else self.varies(i) for i in indices]
        base = access.where(k)
        for index, stride, kind in zip(indices, strides, kinds, strict=True):
            if kind != _VARYING:
                base = writer.at(base, (self.number(index), stride))
        alone = [kind == _UNIFORM for kind in kinds]
        contiguous = shape == "B" and kinds[-1] == _CONSECUTIVE and all(alone[:-1])
        if self.lanes == 1 or contiguous or (all(alone) and shape.lower() == "c"):
            return False, base
        many = vector(self.lanes, "i64")
        offset = access.offsets[k] if shape in "sS" else None
        if shape in "cC":
            offset = writer.let(f"mul {many} {splat_constant(self.lanes, 'i64', str(item))}, {iota(self.lanes)}")
        last = ""
        for index, stride, kind in zip(indices, strides, kinds, strict=True):
            if kind == _UNIFORM:
                continue
            if kind != _VARYING:
                self.made.append(self._step(index))
                distance = writer.mul(self.number(self.made[-1]), stride)
                step = writer.let(f"mul {many} {writer.splat(self.lanes, 'i64', distance)}, {iota(self.lanes)}")
                offset = step if offset is None else writer.let(f"add {many} {offset}, {step}")
                continue
            if stride == str(item):
                # The element's size as the scale of the address: no multiplication.
                last = self.value(index)
                continue
            step = writer.let(f"mul {many} {self.value(index)}, {writer.splat(self.lanes, 'i64', stride)}")
            offset = step if offset is None else writer.let(f"add {many} {offset}, {step}")
        pointers = vector(self.lanes, "ptr")
        if offset is None and not last:
            offset = "zeroinitializer"
        if offset is not None:
            base = writer.elements("i8", base, many, offset)
        if last:
            one = memory_type(access.operands[k].dtype)
            spot = f"{pointers} {base}" if offset is not None else f"ptr {base}"
            base = writer.let(f"getelementptr {one}, {spot}, {many} {last}")
        return True, base

    def _masked(self, mask: Expr | None) -> str | None:
        row = self.access.mask if self.lanes > 1 else None
        if mask is None:
            return row
        own = self.value(mask)
        return own if row is None else self.writer.let(f"and {self.type('bool')} {own}, {row}")

    def _load_at(self, e: Expr) -> str:
        number, axes = e.value
        mask = self._masked(e.args[axes] if len(e.args) > axes else None)
        apart, address = self._address(number, e.args[:axes])
        return self.writer.load_vector(self.lanes, e.dtype, address, mask, apart)

    def store_at(self, store: StoreAt) -> Callable[[], None]:
        """Compute what a store by index needs; the function that is returned stores it."""
        k = len(self.access.loop.inputs) + store.output
        dtype, value, mask = store.value.dtype, self.value(store.value), self._masked(store.mask)
        apart, address = self._address(k, store.indices)

        def write() -> None:
            if apart and store.how != "set":
                self._one_by_one(store.how, dtype, value, address, mask)
                return
            new = value
            if store.how != "set":
                old = self.writer.load_vector(self.lanes, dtype, address, mask, apart)
                new = combined(self, store.how, dtype, old, value)
            self.writer.store_vector(self.lanes, dtype, new, address, mask, apart)

        return write

    def _one_by_one(self, how: str, dtype: str, value: str, addresses: str, mask: str | None) -> None:
        """Lanes may have the same address, so they are combined one after the other. (Where they cannot, this is still
        faster than a gather and a scatter.)"""
        writer, single = self.writer, Body(self.writer, 1)
        kind, one = scalar_type(dtype), memory_type(dtype)
        for lane in range(self.lanes):
            name = writer.fresh("lane")
            if mask is not None:
                there = writer.let(f"extractelement {self.type('bool')} {mask}, i64 {lane}")
                writer.do(f"br i1 {there}, label %{name}.store, label %{name}.done")
                writer.label(f"{name}.store")
            address = writer.let(f"extractelement {vector(self.lanes, 'ptr')} {addresses}, i64 {lane}")
            new = writer.let(f"extractelement {self.type(dtype)} {value}, i64 {lane}")
            old = writer.load(one, address, 1)
            joined = combined(single, how, dtype, self._one(kind, old), self._one(kind, new))
            writer.store(one, writer.let(f"extractelement <1 x {kind}> {joined}, i64 0"), address, 1)
            if mask is not None:
                writer.do(f"br label %{name}.done")
                writer.label(f"{name}.done")


def combined(body: Body, how: str, dtype: str, old: str, new: str) -> str:
    """A stored value combined with a new one."""
    return (body.arithmetic if how == "add" else body.extreme)(how, dtype, old, new)


def has_folds(values: Sequence[Expr]) -> bool:
    """Is there an inner loop in these expressions?"""
    return any(e.op == "fold" for e in walk(*values))
