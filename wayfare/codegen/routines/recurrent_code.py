"""The IR of recurrent layers: all steps of some sequences, gemm and gates fused.

Lanes are hidden units. For each vector of units, a register tile of sequences × gates is summed over the input and then
over the previous state. The gates are computed while these sums are in the L1 cache, so the result of the gemm is never
written to memory as a whole, and threads do not wait for each other between steps.

The weights are packed as (vector of units, input feature or unit of the previous state, gate, lane), input first.
"""

from __future__ import annotations

from dataclasses import dataclass

from wayfare.codegen.llvm.builder import Variable, vector
from wayfare.codegen.llvm.expr import Body
from wayfare.codegen.llvm.machine import Machine
from wayfare.codegen.llvm.vector import VectorCode
from wayfare.codegen.loop.expr import Expr
from wayfare.codegen.math.library import lower
from wayfare.codegen.routines.routine import function

# The argument words; addresses are marked with a star. `to` is where the first state is stored after the first step.
# `to_step` is added to it after each step, and is itself multiplied by `flip` (1, or -1 to alternate two buffers).
WORDS = (
    "*x", "*state", "*to", "*other", "*weights", "*bias", "*state_bias", "*sums",
    "x_row", "x_step", "to_step", "flip", "rows", "features", "hidden", "steps",
)  # fmt: skip
# Sums in registers, of 32 or 16; the other registers hold weights.
_SUMS_OF_32, _SUMS_OF_16 = 24, 12
_MOST_ROWS = 12
# The gates of so many tiles are computed together.
_TOGETHER = 4


@dataclass(frozen=True)
class Formula:
    """What a step computes from its sums: the new states.

    The loads of the expressions are numbered: the sums of each gate; if `apart`, the sums of the state's gemm for each
    gate; then the state that is read directly, if there is one.
    """

    name: str
    dtype: str
    gates: int
    apart: bool
    # The number of the state that is read directly: 0, 1 or None
    reads: int | None
    after: tuple[Expr, ...]

    @property
    def sums(self) -> int:
        """Number of sums for one unit of one sequence."""
        return self.gates * (2 if self.apart else 1)


def tile_rows(formula: Formula, host: Machine) -> int:
    """Sequences of a tile."""
    most = _SUMS_OF_32 if host.processor.lanes == 16 else _SUMS_OF_16
    return max(1, min(_MOST_ROWS, most // formula.sums))


def sums_bytes(formula: Formula, host: Machine) -> int:
    """Bytes that a thread needs for the sums of the tiles whose gates are computed together."""
    return _TOGETHER * tile_rows(formula, host) * formula.sums * 4 * host.processor.lanes


def write(formula: Formula, host: Machine) -> str:
    """The IR of all steps of some sequences."""
    return _Code(formula, host).written()


class CellCode(VectorCode):
    """Code that multiplies rows with the weights of all gates of some units."""

    def __init__(self, host: Machine, dtype: str, gates: int, names: tuple[str, ...]) -> None:
        super().__init__(host, dtype, names)
        self.gates_of_unit = gates
        self.wide = self.lanes * self.size

    def add_matmul(self, sums: list[list[Variable]], rows: str, step: str, count: str, weights: str) -> None:
        """Add rows @ weights to the sums."""
        gates = self.gates_of_unit
        starts = [self.at(rows, str(r), step) for r in range(len(sums))]
        with self.writer.loop("0", count, 1) as k:
            own = self.at(weights, k, gates * self.wide)
            given = [self.load(self.at(own, str(gate * self.wide)), self.lanes) for gate in range(gates)]
            for start, of_row in zip(starts, sums, strict=True):
                number = self.in_every_lane(self.at(start, k, self.size), self.lanes)
                for weight, total in zip(given, of_row, strict=True):
                    self.multiply_add(self.lanes, weight, number, total)


class _Code(CellCode):
    def __init__(self, formula: Formula, host: Machine) -> None:
        super().__init__(host, formula.dtype, formula.gates, WORDS)
        self.formula = formula
        self.tile = tile_rows(formula, host)
        self.after = lower(formula.after)
        self.row_bytes = self.mul(self.words.hidden, self.size)

    def written(self) -> str:
        w, writer, formula = self.words, self.writer, self.formula
        x, before, to = (writer.variable("ptr", address) for address in (w.x, w.state, w.to))
        step = writer.variable("i64", w.to_step)
        weight_bytes = self.mul(self.add(w.features, w.hidden), formula.gates * self.wide)
        with writer.loop("0", w.steps, 1):
            own = writer.variable("ptr", w.weights)
            with writer.loop("0", w.hidden, self.lanes) as unit:
                mask = self.first_lanes(self.lanes, self.sub(w.hidden, unit))
                together = _TOGETHER * self.tile
                with writer.loop("0", w.rows, together) as row:
                    count = self.smaller(str(together), self.sub(w.rows, row))
                    starts = (self.at(x.get(), row, w.x_row), self.at(before.get(), row, self.row_bytes))
                    tiles = tuple(range(self.tile, 0, -1))
                    self.in_steps(count, tiles, lambda r, n: self.multiply(starts, own.get(), unit, mask, r, n))
                    of_unit = self.add(self.mul(row, self.row_bytes), self.mul(unit, self.size))
                    self.gates(before.get(), to.get(), of_unit, count, mask)
                own.set(self.at(own.get(), weight_bytes))
            x.set(self.at(x.get(), w.x_step))
            before.set(to.get())
            to.set(self.at(to.get(), step.get()))
            step.set(self.mul(step.get(), w.flip))
        return function(writer)

    def multiply(self, starts: tuple[str, str], weights: str, unit: str, mask: str, first: str, rows: int) -> None:
        """The sums of a tile, starting with the biases."""
        w, gates, apart = self.words, self.formula.gates, self.formula.apart
        kind = vector(self.lanes, self.kind)

        def begun(bias: str) -> list[list[Variable]]:
            values = []
            for gate in range(gates):
                address = self.at(bias, self.add(self.mul(w.hidden, gate), unit), self.size)
                values.append(self.load(address, self.lanes, mask))
            return [[self.writer.variable(kind, value) for value in values] for _ in range(rows)]

        x, state = (
            self.at(address, first, step) for address, step in zip(starts, (w.x_row, self.row_bytes), strict=True)
        )
        sums = begun(w.bias)
        self.add_matmul(sums, x, w.x_row, w.features, weights)
        of_state = begun(w.state_bias) if apart else sums
        further = self.at(weights, w.features, gates * self.wide)
        self.add_matmul(of_state, state, self.row_bytes, w.hidden, further)
        target = self.at(w.sums, first, self.formula.sums * self.wide)
        for row in range(rows):
            whole = [*sums[row], *(of_state[row] if apart else [])]
            for k, total in enumerate(whole):
                address = self.at(target, str((row * len(whole) + k) * self.wide))
                self.store(total.get(), address, self.lanes)

    def gates(self, before: str, to: str, of_unit: str, count: str, mask: str) -> None:
        """Compute the new states from the sums of `count` sequences."""
        w, formula = self.words, self.formula
        read = before if formula.reads == 0 else w.other
        with self.writer.loop("0", count, 1) as row:
            sums = self.at(w.sums, row, formula.sums * self.wide)
            here = self.add(of_unit, self.mul(row, self.row_bytes))

            def leaf(e: Expr) -> str:
                if e.value < formula.sums:
                    return self.load(self.at(sums, str(e.value * self.wide)), self.lanes)
                return self.load(self.at(read, here), self.lanes, mask)

            body = Body(self.writer, self.lanes, leaf)
            values = [body.value(e) for e in self.after]
            for value, target in zip(values, (to, w.other), strict=False):
                self.store(value, self.at(target, here), self.lanes, mask)
