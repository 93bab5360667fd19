"""The IR of recurrent layers over packed sequences, in training: all steps of some sequences, forward or backward.

Rows are packed in order of time, the longest sequence first, so the rows of a step that belong to some neighbouring
sequences lie together. Forward, lanes are hidden units: the sums of a tile (sequences × gates) begin with the projected
input, the product with the state is added in registers, and the gates are computed while the sums are in the L1 cache.
Backward, a step computes the gradients of its gates, and multiplies them with the weight as it lies. What the gradient
reads is stored on the way. Threads take different sequences, and do not wait for each other between steps.

The weights of the state are packed as (vector of units, unit of the previous state, gate, lane).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from wayfare.codegen.llvm.builder import Variable, vector
from wayfare.codegen.llvm.expr import Body
from wayfare.codegen.llvm.machine import Machine
from wayfare.codegen.llvm.vector import VectorCode
from wayfare.codegen.loop.expr import Expr
from wayfare.codegen.math.library import lower
from wayfare.codegen.routines.recurrent_code import CellCode
from wayfare.codegen.routines.routine import function

# A step in the table that `steps` points to: its first row, how many rows it has, how many of them go on from the step
# before and where that began, and how many go on to the next.
STEP_WORDS = 5
# Addresses are marked with a star. Rows are numbered from the first packed row, states from the first of the sequences.
FORWARD_WORDS = (
    "*steps", "count", "*kept", "*extra", "*weights", "*bias", "*state_bias", "hidden", "*before0", "*after0",
    "*state0", "*final0", "*before1", "*after1", "*state1", "*final1",
)  # fmt: skip
# `g` and `more` are the gradients of the first and the second state after every row, with steps of 0 bytes where there
# are none; `back` and `direct` come back from the next step.
BACKWARD_WORDS = (
    "*steps", "count", "*kept", "*extra", "*weights", "hidden", "*read", "*g", "g_row", "*more", "more_row", "*back",
    "*direct", "*dx", "*da",
)  # fmt: skip
# Sums in registers, of 32 or 16; the other registers hold weights. The gates of so many tiles are computed together.
_SUMS_OF_32, _SUMS_OF_16, _MOST_ROWS, _TOGETHER = 24, 12, 12, 4
# Rows and vectors of a tile of the backward product.
_TILE_ROWS, _TILE_VECTORS = {True: 8, False: 4}, 3


@dataclass(frozen=True)
class StepFormula:
    """What a step computes: the parts that are kept in the input's place, the extra ones, and the states after it.

    The loads of the expressions are numbered: for each gate the projected input with the product of the state; if
    `apart`, the product by itself for each gate; then the state that is read directly (number `reads`), if any.
    """

    name: str
    dtype: str
    gates: int
    apart: bool
    reads: int | None
    kept: tuple[Expr, ...]
    extra: tuple[Expr, ...]
    after: tuple[Expr, ...]


@dataclass(frozen=True)
class GradientFormula:
    """What the gradient of a step computes: of the parts of the input, of those of the product if they differ, and what
    goes back past the product.

    The loads are numbered: the kept parts, the extra ones, the state that is read directly (if any), the gradient of
    the state after the row, what comes back through the product, and past it (if anything).
    """

    name: str
    dtype: str
    gates: int
    extra: int
    direct: int
    dx: tuple[Expr, ...]
    da: tuple[Expr, ...]
    past: tuple[Expr, ...]


def write_forward(formula: StepFormula, host: Machine) -> str:
    """The IR of all steps of some sequences."""
    return _Forward(formula, host).written()


def write_backward(formula: GradientFormula, host: Machine) -> str:
    """The IR of the gradient of all steps of some sequences."""
    return _Backward(formula, host).written()


class _Steps(VectorCode):
    """A loop over the steps in the table."""

    def over_steps(self, visit: Callable[[list[str]], None]) -> None:
        """`visit` the numbers of each step."""
        with self.writer.loop("0", self.words.count, 1) as step:
            own = self.at(self.words.steps, step, 8 * STEP_WORDS)
            visit([self.writer.load("i64", self.writer.element("i64", own, k)) for k in range(STEP_WORDS)])

    def copy_rows(self, source: str, first: str, target: str, to: str, count: str, row_bytes: str) -> None:
        """Copy rows."""
        start, end = self.at(source, first, row_bytes), self.at(target, to, row_bytes)
        numbers = self.mul(count, self.words.hidden)
        with self.writer.loop("0", numbers, self.lanes) as k:
            mask = self.first_lanes(self.lanes, self.sub(numbers, k))
            given = self.load(self.at(start, k, self.size), self.lanes, mask)
            self.store(given, self.at(end, k, self.size), self.lanes, mask)


class _Forward(CellCode, _Steps):
    def __init__(self, formula: StepFormula, host: Machine) -> None:
        super().__init__(host, formula.dtype, formula.gates, FORWARD_WORDS)
        self.formula = formula
        self.row_bytes = self.mul(self.words.hidden, self.size)
        self.kept_bytes = self.mul(self.row_bytes, formula.gates)
        self.extra_bytes = self.mul(self.row_bytes, len(formula.extra))
        self.tile = max(1, min(_MOST_ROWS, (_SUMS_OF_32 if self.many else _SUMS_OF_16) // formula.gates))
        self.sums = "%sums"
        size = _TOGETHER * self.tile * formula.gates * self.lanes
        self.writer.allocas.append(f"  {self.sums} = alloca [{size} x {self.kind}], align 64")
        found = lower((*formula.kept, *formula.extra, *formula.after))
        self.stored = found[: len(formula.kept)], found[len(formula.kept) : -len(formula.after)]
        self.after = found[-len(formula.after) :]
        w = self.words
        self.states = [(w.before0, w.after0, w.state0, w.final0), (w.before1, w.after1, w.state1, w.final1)]
        self.states = self.states[: len(formula.after)]

    def written(self) -> str:
        self.over_steps(self.step)
        return function(self.writer)

    def step(self, numbers: list[str]) -> None:
        w, writer, row_bytes = self.words, self.writer, self.row_bytes
        start, size, came, source, goes = numbers
        for before, after, state, _ in self.states:
            self.copy_rows(after, source, before, start, came, row_bytes)
            self.copy_rows(state, came, before, self.add(start, came), self.sub(size, came), row_bytes)
        own = writer.variable("ptr", w.weights)
        with writer.loop("0", w.hidden, self.lanes) as unit:
            mask = self.first_lanes(self.lanes, self.sub(w.hidden, unit))
            together = _TOGETHER * self.tile
            with writer.loop("0", size, together) as row:
                count = self.smaller(str(together), self.sub(size, row))
                first = self.add(start, row)
                tiles = tuple(range(self.tile, 0, -1))
                self.in_steps(count, tiles, lambda r, n: self.multiply(first, own.get(), unit, mask, r, n))
                self.gates(first, unit, count, mask)
            own.set(self.at(own.get(), self.mul(w.hidden, self.gates_of_unit * self.wide)))
        for _, after, _, final in self.states:
            self.copy_rows(after, self.add(start, goes), final, goes, self.sub(size, goes), row_bytes)

    def of_gate(self, base: str, gate: int, unit: str) -> str:
        """Where the numbers of some units are in a row of all gates."""
        return self.at(base, self.add(self.mul(self.words.hidden, gate), unit), self.size)

    def multiply(self, row: str, weights: str, unit: str, mask: str, first: str, rows: int) -> None:
        """The sums of a tile."""
        w, gates, lanes, kind = self.words, self.gates_of_unit, self.lanes, vector(self.lanes, self.kind)
        at = self.add(row, first)
        begun = w.state_bias if self.formula.apart else w.bias
        biases = [self.load(self.of_gate(begun, gate, unit), lanes, mask) for gate in range(gates)]
        sums: list[list[Variable]] = []
        for r in range(rows):
            kept = self.at(w.kept, self.add(at, r), self.kept_bytes)
            values = []
            for gate, bias in enumerate(biases):
                if not self.formula.apart:
                    given = self.load(self.of_gate(kept, gate, unit), lanes, mask)
                    bias = self.writer.float_add(kind, given, bias)
                values.append(self.writer.variable(kind, bias))
            sums.append(values)
        self.add_matmul(sums, self.at(w.before0, at, self.row_bytes), self.row_bytes, w.hidden, weights)
        target = self.at(self.sums, first, gates * self.wide)
        for r, of_row in enumerate(sums):
            for gate, total in enumerate(of_row):
                self.store(total.get(), self.at(target, str((r * gates + gate) * self.wide)), lanes)

    def gates(self, first: str, unit: str, count: str, mask: str) -> None:
        """What a step computes from the sums of `count` sequences, and keeps."""
        w, formula, lanes, gates = self.words, self.formula, self.lanes, self.gates_of_unit
        across = self.mul(unit, self.size)
        with self.writer.loop("0", count, 1) as row:
            sums = self.at(self.sums, row, gates * self.wide)
            at = self.add(first, row)
            kept, extra = self.at(w.kept, at, self.kept_bytes), self.at(w.extra, at, self.extra_bytes)
            here = self.add(self.mul(at, self.row_bytes), across)

            def leaf(e: Expr) -> str:
                number = e.value
                if formula.apart and number < gates:
                    given = self.load(self.of_gate(kept, number, unit), lanes, mask)
                    bias = self.load(self.of_gate(w.bias, number, unit), lanes, mask)
                    return self.writer.float_add(vector(lanes, self.kind), given, bias)
                number -= gates if formula.apart else 0
                if number < gates:
                    return self.load(self.at(sums, str(number * self.wide)), lanes)
                return self.load(self.at(self.states[formula.reads or 0][0], here), lanes, mask)

            body = Body(self.writer, lanes, leaf)
            made = [[body.value(e) for e in part] for part in (*self.stored, self.after)]
            for base, values in zip((kept, extra), made, strict=False):
                for gate, value in enumerate(values):
                    self.store(value, self.of_gate(base, gate, unit), lanes, mask)
            for value, (_, after, _, _) in zip(made[2], self.states, strict=True):
                self.store(value, self.at(after, here), lanes, mask)


class _Backward(_Steps):
    def __init__(self, formula: GradientFormula, host: Machine) -> None:
        super().__init__(host, formula.dtype, BACKWARD_WORDS)
        self.formula = formula
        self.row_bytes = self.mul(self.words.hidden, self.size)
        self.kept_bytes = self.mul(self.row_bytes, formula.gates)
        self.extra_bytes = self.mul(self.row_bytes, formula.extra)
        self.lowered = lower((*formula.dx, *formula.da, *formula.past))

    def written(self) -> str:
        self.over_steps(self.step)
        return function(self.writer)

    def step(self, numbers: list[str]) -> None:
        w, writer = self.words, self.writer
        start, size = numbers[:2]
        with writer.loop("0", size, 1) as row, writer.loop("0", w.hidden, self.lanes) as unit:
            self.of_gates(self.add(start, row), row, unit)
        given = self.at(w.da if self.formula.da else w.dx, start, self.kept_bytes)
        self.multiply(given, size)

    def of_gates(self, at: str, row: str, unit: str) -> None:
        """The gradients of the gates of some units, from which the product is made."""
        w, formula, lanes = self.words, self.formula, self.lanes
        mask = self.first_lanes(lanes, self.sub(w.hidden, unit))
        across = self.mul(unit, self.size)
        here = self.add(self.mul(row, self.row_bytes), across)
        kept, extra = self.at(w.kept, at, self.kept_bytes), self.at(w.extra, at, self.extra_bytes)

        def part(base: str, number: int) -> str:
            return self.at(base, self.add(self.mul(w.hidden, number), unit), self.size)

        def leaf(e: Expr) -> str:
            number = e.value
            if number < formula.gates:
                return self.load(part(kept, number), lanes, mask)
            number -= formula.gates
            if number < formula.extra:
                return self.load(part(extra, number), lanes, mask)
            number -= formula.extra
            if number < formula.direct:
                return self.load(self.at(w.read, self.add(self.mul(at, self.row_bytes), across)), lanes, mask)
            number -= formula.direct
            if number < 2:
                address = self.at(self.at(w.g, at, w.g_row), across) if number == 0 else self.at(w.back, here)
                return self.load(address, lanes, mask)
            past = self.load(self.at(w.direct, here), lanes, mask)
            more = self.load(self.at(self.at(w.more, at, w.more_row), across), lanes, mask)
            return self.writer.float_add(vector(lanes, self.kind), past, more)

        body = Body(self.writer, lanes, leaf)
        values = [body.value(e) for e in self.lowered]
        for base, count in ((w.dx, len(formula.dx)), (w.da, len(formula.da))):
            target = self.at(base, at, self.kept_bytes)
            for gate in range(count):
                self.store(values.pop(0), part(target, gate), lanes, mask)
        for value in values:
            self.store(value, self.at(w.direct, here), lanes, mask)

    def multiply(self, given: str, size: str) -> None:
        """back = the gradients of the product's result @ the weight, for all rows of a step."""
        w, writer, lanes = self.words, self.writer, self.lanes
        most = _TILE_ROWS[self.many]
        tiles = tuple(t for t in (8, 4, 2, 1) if t <= most)
        inner = self.mul(w.hidden, self.formula.gates)

        def panel(unit: str, vectors: int, mask: str = "") -> None:
            def tile(row: str, rows: int) -> None:
                sums = self.zeros(rows * vectors, lanes)
                starts = [self.at(given, self.add(row, r), self.kept_bytes) for r in range(rows)]
                own = self.at(w.weights, unit, self.size)
                with writer.loop("0", inner, 1) as k:
                    line = self.at(own, k, self.row_bytes)
                    numbers = [self.load(self.at(line, str(v * self.lanes * self.size)), lanes, mask)
                               for v in range(vectors)]  # fmt: skip
                    for r, first in enumerate(starts):
                        number = self.in_every_lane(self.at(first, k, self.size), lanes)
                        for v, weight in enumerate(numbers):
                            self.multiply_add(lanes, weight, number, sums[r * vectors + v])
                for r in range(rows):
                    target = self.at(self.at(w.back, self.add(row, r), self.row_bytes), unit, self.size)
                    for v in range(vectors):
                        address = self.at(target, str(v * self.lanes * self.size))
                        self.store(sums[r * vectors + v].get(), address, lanes, mask)

            self.in_steps(size, tiles, tile)

        start = "0"
        for count in range(_TILE_VECTORS, 0, -1):
            each = count * lanes
            end = self.add(start, self.mul(self.div(self.sub(w.hidden, start), each), each))
            with writer.loop(start, end, each) as unit:
                panel(unit, count)
            start = end
        with self.only_if("slt", start, w.hidden):
            panel(start, 1, self.first_lanes(lanes, self.sub(w.hidden, start)))
