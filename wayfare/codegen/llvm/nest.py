"""The loop nest of a kernel in LLVM IR: loops over rows and elements, vectorised along rows or across rows.

`module.py` explains the two ways, the layout classes and the argument block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from wayfare.codegen.llvm.builder import Variable, Writer, iota, memory_type, scalar_type, vector
from wayfare.codegen.llvm.expr import Body
from wayfare.codegen.llvm.reduction import BLOCK, Accumulator
from wayfare.codegen.llvm.window import Access, WindowBody, has_folds
from wayfare.codegen.loop.expr import NUMPY, Expr, walk
from wayfare.codegen.loop.language import Loop, Operand, Stage

SIZES = 3
WORDS_PER_OPERAND = 4
# In mode "across": elements that a lane adds before the block's sum goes to the total.
_ROWS = 64
# How many vectors a fold works on at once; the lanes of the last vectors of a row that is stored by index.
_WIDE, _NARROW = 4, (4, 1)


@dataclass(frozen=True, slots=True)
class Layout:
    """What the code depends on of the operands' memory layout."""

    mode: str  # "along" or "across"
    classes: str  # "c", "b" or "s" for each operand


def block_words(loop: Loop) -> int:
    """The length of an argument block."""
    operands = (*loop.inputs, *loop.outputs)
    return SIZES + WORDS_PER_OPERAND * len(operands) + 2 * sum(o.axes for o in operands)


@dataclass(slots=True)
class Function:
    text: list[str]
    declared: dict[str, str] = field(default_factory=dict)


# At most this many of 32 vector registers hold constants.
_HELD = 20


def _constants(loop: Loop) -> int:
    """How many float constants the inner loop uses; those of row-invariant expressions do not count."""
    values = [v for stage in loop.stages for v in stage.values]
    once: dict[int, bool] = {}
    met: set[Expr] = set()
    for e in walk(*values):
        if e.args:
            once[id(e)] = all(once[id(a)] for a in e.args)
            if not once[id(e)]:
                met.update(a for a in e.args if a.op == "const" and a.dtype in ("f32", "f64") and a.value)
        else:
            once[id(e)] = e.op in ("const", "reduction") or (e.op == "load" and loop.inputs[e.value].per_row)
    return len(met)


def _finished(header: str, writer: Writer) -> Function:
    text = [header + " {", "entry:", *writer.allocas, *writer.lines, "  ret void", "}"]
    return Function(text, writer.declared)


class _Nest:
    """What both modes share: reading the argument block, loading and storing vectors."""

    def __init__(self, loop: Loop, layout: Layout, lanes: int, name: str) -> None:
        self.loop, self.layout, self.lanes, self.name = loop, layout, lanes, name
        self.operands: tuple[Operand, ...] = (*loop.inputs, *loop.outputs)
        # In the single loop of an elementwise kernel, LLVM keeps constants in registers by itself.
        self.constants = 0 if loop.elementwise else _constants(loop)
        self.writer = Writer()

    def _begin(self) -> None:
        """Begin a function: read sizes, addresses and strides."""
        self.writer = Writer()
        self.writer.holding = 0 < self.constants <= _HELD
        self.sizes = [self._word(i) for i in range(SIZES)]
        self.address: list[str] = []
        self.strides: list[list[str]] = []
        for k in range(len(self.operands)):
            first = SIZES + WORDS_PER_OPERAND * k
            self.address.append(self.writer.pointer(self._word(first)))
            self.strides.append([self._word(first + 1 + axis) for axis in range(3)])
        # The size and the stride of each operand's own axes.
        self.own: dict[int, list[tuple[str, str]]] = {}
        word = SIZES + WORDS_PER_OPERAND * len(self.operands)
        for k, operand in enumerate(self.operands):
            if operand.axes:
                self.own[k] = [(self._word(word + 2 * a), self._word(word + 2 * a + 1)) for a in range(operand.axes)]
                word += 2 * operand.axes

    def _word(self, number: int) -> str:
        return self.writer.load("i64", self.writer.element("i64", "%block", number))

    def _moved(self, pointer: str, index: str, stride: str) -> str:
        return self.writer.at(pointer, (index, stride))

    def _positions(self, start: str) -> str:
        return self.writer.let(
            f"add <{self.lanes} x i64> {self.writer.splat(self.lanes, 'i64', start)}, {iota(self.lanes)}"
        )

    def _mask(self, start: str, stop: str) -> str:
        """The lanes whose position, counted from `start`, is below `stop`; only a few vectors are left."""
        return self.writer.lanes_below(self.lanes, self.writer.sub(stop, start))

    def _spread(self, stride: str) -> str:
        """Byte offsets of the lanes of a strided operand."""
        return self.writer.let(
            f"mul <{self.lanes} x i64> {self.writer.splat(self.lanes, 'i64', stride)}, {iota(self.lanes)}"
        )

    def _scalar(self, k: int, pointer: str) -> str:
        """One value of an operand, in every lane."""
        dtype = self.operands[k].dtype
        one = self.writer.let(f"load {memory_type(dtype)}, ptr {pointer}, align 1")
        if dtype == "bool":
            one = self.writer.let(f"icmp ne i8 {one}, 0")
        return self.writer.splat(self.lanes, scalar_type(dtype), one)

    def _load(self, k: int, pointer: str, offsets: str | None, mask: str | None) -> str:
        """A vector of an operand whose first lane is at `pointer`."""
        dtype = self.operands[k].dtype
        if self.layout.classes[k] == "b":
            return self._scalar(k, pointer)
        if offsets is not None:
            pointer = self.writer.elements("i8", pointer, vector(self.lanes, "i64"), offsets)
        return self.writer.load_vector(self.lanes, dtype, pointer, mask, offsets is not None)

    def _store(self, k: int, value: str, pointer: str, offsets: str | None, mask: str | None) -> None:
        if offsets is not None:
            pointer = self.writer.elements("i8", pointer, vector(self.lanes, "i64"), offsets)
        self.writer.store_vector(self.lanes, self.operands[k].dtype, value, pointer, mask, offsets is not None)

    def _carries(self, stage: Stage, held: dict[int, str], reductions: Sequence[str]) -> list[Variable]:
        """The carries of a stage, at their starts."""
        body = Body(self.writer, self.lanes, _leaf_of(held, reductions))
        return [self.writer.variable(body.type(start.dtype), body.value(start)) for start, _ in stage.carries]

    def _accumulators(self, stage: Stage) -> list[Accumulator]:
        return [Accumulator(self.writer, self.lanes, f) for f in stage.reductions]

    def _visit_at(
        self, stage: Stage, where: Callable[[int], str], index: Callable[[], str], offsets: Sequence[str | None],
        masks: tuple[str | None, str | None], group: list[Accumulator], held: dict[int, str], reductions: Sequence[str],
        carries: Sequence[Variable],
    ) -> None:  # fmt: skip
        """One vector of elements: load, compute, reduce, store.

        `where` is the address of operand k, `index` the elements' index; `masks` are those of memory and of reductions.
        """
        addresses: dict[int, str] = {}

        def address_of(k: int) -> str:
            if k not in addresses:
                addresses[k] = where(k)
            return addresses[k]

        def leaf(e: Expr) -> str:
            if e.op == "index":
                return index()
            if e.op == "carry":
                return carries[int(e.value)].get()
            if e.op == "reduction" or (e.op == "load" and e.value in held):
                return _held(e, held, reductions)
            k = e.value if e.op == "load" else len(self.loop.inputs) + e.value
            return self._load(k, address_of(k), offsets[k], masks[0])

        body = self._body(leaf, address_of, offsets, masks[0])
        values = [(len(self.loop.inputs) + number, body.value(value)) for number, value in stage.stores]
        reduced = [body.value(a.reduction.value) for a in group]
        at = index() if any(a.located for a in group) else ""
        for a, value in zip(group, reduced, strict=True):
            a.take(value, masks[1], at)
        writes = [body.store_at(store) for store in stage.stores_at] if isinstance(body, WindowBody) else []
        for k, value in values:
            self._store(k, value, address_of(k), offsets[k], masks[0])
        for write in writes:
            write()
        for variable, value in zip(carries, [body.value(v) for _, v in stage.carries], strict=True):
            variable.set(value)

    def _body(
        self, leaf: Callable[[Expr], str], where: Callable[[int], str], offsets: Sequence[str | None], mask: str | None
    ) -> Body:
        return Body(self.writer, self.lanes, leaf)


class Along(_Nest):
    """Lanes along the row."""

    def functions(self) -> list[Function]:
        self._begin()
        outer, rows, self.length = self.sizes
        with self.writer.loop("0", outer, 1) as i, self.writer.loop("0", rows, 1) as j:
            self._row(i, j)
        return [_finished(f"define void @{self.name}.rows(ptr %block) noinline", self.writer)]

    def _row(self, i: str, j: str) -> None:
        self.base = [
            self._moved(self._moved(self.address[k], i, self.strides[k][0]), j, self.strides[k][1])
            for k in range(len(self.operands))
        ]
        held = self._held()
        reductions: list[str] = []
        for stage in self.loop.stages:
            reductions += self._stage(stage, held, reductions)
        for number, value in self.loop.results:
            k = len(self.loop.inputs) + number
            dtype = self.operands[k].dtype
            body = Body(self.writer, self.lanes, _leaf_of(held, reductions))
            one = self.writer.let(f"extractelement {body.type(dtype)} {body.value(value)}, i64 0")
            if dtype == "bool":
                one = self.writer.let(f"zext i1 {one} to i8")
            self.writer.do(f"store {memory_type(dtype)} {one}, ptr {self.base[k]}, align 1")

    def _held(self) -> dict[int, str]:
        """Broadcast inputs, loaded once before the loop over the row; and the distances of strided lanes."""
        self.offsets = [
            self._spread(self.strides[k][2]) if self.layout.classes[k] in "sS" else None
            for k in range(len(self.operands))
        ]
        return {k: self._scalar(k, self.base[k]) for k, o in enumerate(self.loop.inputs)
                if self.layout.classes[k] == "b" and not o.axes}  # fmt: skip

    def _in_vectors_of(self, stage: Stage, lanes: int, begin: str) -> str:
        """Visit the elements from `begin` on in vectors of so many lanes, as long as they are full; returns the end."""
        usual, self.lanes = self.lanes, lanes
        end = self.writer.multiple(self.length, lanes)
        held = self._held()
        with self.writer.loop(begin, end, lanes) as position:
            self._visit(stage, position, None, [], held, [])
        self.lanes = usual
        self._held()
        return end

    def _body(
        self, leaf: Callable[[Expr], str], where: Callable[[int], str], offsets: Sequence[str | None], mask: str | None
    ) -> Body:
        if not self.loop.indexed:
            return Body(self.writer, self.lanes, leaf)
        for k in self.own:
            where(k)  # before any fold, so that it is known everywhere
        access = Access(self.loop, self.operands, self.layout.classes, self.own, where, offsets, self.position, mask)
        return WindowBody(self.writer, self.lanes, leaf, access)

    def _stage(self, stage: Stage, held: dict[int, str], reductions: Sequence[str]) -> list[str]:
        writer = self.writer
        self.carries = self._carries(stage, held, reductions)
        groups = _unrolled(stage)
        step = groups * self.lanes
        rest = writer.let(f"urem i64 {self.length}, {step}")
        whole = writer.let(f"sub i64 {self.length}, {rest}")
        sets = [self._accumulators(stage) for _ in range(groups)]
        begin = "0"
        if not reductions and not stage.reductions:
            if stage.stores_at:
                # Masked stores are slow where the next row reads the same memory, so there are none.
                for lanes in (self.lanes, *(n for n in _NARROW if n < self.lanes)):
                    begin = self._in_vectors_of(stage, lanes, begin)
                return []
            if has_folds(stage.values):
                # Wide vectors hide the latency of a fold's additions.
                begin = self._in_vectors_of(stage, _WIDE * self.lanes, begin)
        if any(a.blocked for a in sets[0]):
            with writer.loop("0", whole, BLOCK * step) as begin:
                stop = writer.smaller(writer.add(begin, BLOCK * step), whole)
                self._visits(stage, begin, stop, sets, held, reductions)
        else:
            self._visits(stage, begin, whole, sets, held, reductions)
        # The rest of the row, under a mask.
        for a in sets[0]:
            a.start_block()
        with writer.loop(whole, self.length, self.lanes) as position:
            self._visit(stage, position, self._mask(position, self.length), sets[0], held, reductions)
        for a in sets[0]:
            a.end_block()
        return [writer.splat(self.lanes, scalar_type(a.reduction.dtype), a.result()) for a in sets[0]]

    def _visits(self, stage: Stage, begin: str, stop: str, sets: list[list[Accumulator]], held: dict[int, str],
                reductions: Sequence[str]) -> None:  # fmt: skip
        for group in sets:
            for a in group:
                a.start_block()
        with self.writer.loop(begin, stop, len(sets) * self.lanes) as position:
            for number, group in enumerate(sets):
                at = self.writer.let(f"add nsw i64 {position}, {number * self.lanes}") if number else position
                self._visit(stage, at, None, group, held, reductions)
        for first, *others in zip(*sets, strict=True):
            # The unrolled accumulators are combined before the block goes to the total.
            for other in others:
                first.absorb(other)
            first.end_block()

    def _visit(self, stage: Stage, position: str, mask: str | None, group: list[Accumulator], held: dict[int, str],
               reductions: Sequence[str]) -> None:  # fmt: skip
        self.position = position

        def where(k: int) -> str:
            alone = self.operands[k].axes and self.layout.classes[k] in "bB"
            return self.base[k] if alone else self._moved(self.base[k], position, self._step(k))

        self._visit_at(
            stage, where, lambda: self._positions(position),
            self.offsets, (mask, mask), group, held, reductions, self.carries,
        )  # fmt: skip

    def _step(self, k: int) -> str:
        # A constant stride lets LLVM use an addressing mode.
        return str(NUMPY[self.operands[k].dtype].itemsize) if self.layout.classes[k] in "cC" else self.strides[k][2]


class Across(_Nest):
    """Lanes across neighbouring rows."""

    def functions(self) -> list[Function]:
        # Wider strips touch fewer pages.
        cost = sum(_cost(s) for s in self.loop.stages)
        groups = 8 if cost <= 6 else 4 if cost <= 16 else 2
        made = [self._some_rows(groups, False), self._some_rows(1, False), self._some_rows(1, True)]
        self._begin()
        writer = self.writer
        outer, rows, _ = self.sizes
        rest = writer.let(f"urem i64 {rows}, {groups * self.lanes}")
        many = writer.let(f"sub i64 {rows}, {rest}")
        left = writer.let(f"urem i64 {rows}, {self.lanes}")
        whole = writer.let(f"sub i64 {rows}, {left}")
        with writer.loop("0", outer, 1) as i:
            for start, stop, step, suffix in (
                ("0", many, groups * self.lanes, str(groups)),
                (many, whole, self.lanes, "1"),
                (whole, rows, self.lanes, "1.masked"),
            ):
                with writer.loop(start, stop, step) as row:
                    writer.do(f"call void @{self.name}.across{suffix}(ptr %block, i64 {i}, i64 {row})")
        return [*made, _finished(f"define void @{self.name}.rows(ptr %block) noinline", writer)]

    def _some_rows(self, groups: int, masked: bool) -> Function:
        """All stages for `groups` vectors of rows."""
        self._begin()
        writer = self.writer
        mask = self._mask("%row", self.sizes[1]) if masked else None
        starts = [writer.let(f"add i64 %row, {g * self.lanes}") if g else "%row" for g in range(groups)]
        base = [
            [self._moved(self._moved(self.address[k], "%outer", self.strides[k][0]), start, self.strides[k][1])
             for k in range(len(self.operands))]
            for start in starts
        ]  # fmt: skip
        offsets = [
            self._spread(self.strides[k][1]) if self.layout.classes[k] == "s" else None
            for k in range(len(self.operands))
        ]
        held = [
            {k: self._load(k, base[g][k], offsets[k], mask) for k, o in enumerate(self.loop.inputs) if o.per_row}
            for g in range(groups)
        ]
        reductions: list[list[str]] = [[] for _ in range(groups)]
        for stage in self.loop.stages:
            sets = [self._accumulators(stage) for _ in range(groups)]
            carries = [self._carries(stage, held[g], reductions[g]) for g in range(groups)]
            with writer.loop("0", self.sizes[2], _ROWS) as begin:
                stop = writer.smaller(writer.add(begin, _ROWS), self.sizes[2])
                for group in sets:
                    for a in group:
                        a.start_block()
                with writer.loop(begin, stop, 1) as r:
                    for g in range(groups):
                        self._visit_at(
                            stage, lambda k, own=base[g]: self._moved(own[k], r, self.strides[k][2]),  # type: ignore[misc]
                            lambda: writer.splat(self.lanes, "i64", r), offsets, (mask, None), sets[g], held[g],
                            reductions[g], carries[g],
                        )  # fmt: skip
                for group in sets:
                    for a in group:
                        a.end_block()
            for g in range(groups):
                reductions[g] += [a.lanes_result() for a in sets[g]]
        for g in range(groups):
            for number, value in self.loop.results:
                k = len(self.loop.inputs) + number
                body = Body(writer, self.lanes, _leaf_of(held[g], reductions[g]))
                self._store(k, body.value(value), base[g][k], offsets[k], mask)
        suffix = f"{groups}{'.masked' if masked else ''}"
        return _finished(f"define internal void @{self.name}.across{suffix}(ptr %block, i64 %outer, i64 %row)", writer)


def _leaf_of(held: dict[int, str], reductions: Sequence[str]) -> Callable[[Expr], str]:
    return lambda e: _held(e, held, reductions)


def _held(e: Expr, held: dict[int, str], reductions: Sequence[str]) -> str:
    return reductions[e.value] if e.op == "reduction" else held[e.value]


def _cost(stage: Stage) -> int:
    """The approximate number of instructions for one element."""
    return sum(bool(e.args) for e in walk(*stage.values))


def _unrolled(stage: Stage) -> int:
    """The unroll factor: short reductions are bound by the latency of their own addition."""
    if not stage.reductions or any(f.kind in ("argmax", "argmin") for f in stage.reductions):
        return 1
    if stage.stores_at or stage.carries:
        return 1
    cost = _cost(stage)
    return 4 if cost <= 6 else 2 if cost <= 16 else 1
