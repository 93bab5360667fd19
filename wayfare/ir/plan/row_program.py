"""A graph over the rows of a batch, planned once for any number of rows.

    program = RowProgram(inputs, outputs, sample)       # a graph whose batch has `sample` rows
    program.run(rows, arrays, gathers)

Every action must work row by row: then only the first size of its views depends on the number of rows. What does not
(a sum over rows, an op without a native form) raises Unsuited.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from wayfare.codegen.runtime.command import BufferView, Unsuited
from wayfare.codegen.runtime.command_kernels import fill_commands
from wayfare.codegen.runtime.commands import Commands
from wayfare.codegen.runtime.row_commands import RowCommands
from wayfare.core.symbolic_sizes import plain
from wayfare.ir.graph import Value
from wayfare.ir.plan.actions import Action, CopyAction, FillAction, KernelAction, MatmulAction
from wayfare.ir.plan.buffers import Buffer, View, contiguous_strides, new_view
from wayfare.ir.plan.build import Builder
from wayfare.ir.plan.lower import PlanLowering


@dataclass(frozen=True, slots=True)
class Place:
    """Where an input or output lies: number of the buffer, and its part of a row of the buffer."""

    buffer: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    # Bytes of the part, if it is contiguous.
    bytes: int


class RowProgram:
    """Computes values from rows, and from arrays that all rows share.

    `run` gets these arrays: the rows of the inputs that are not gathered elsewhere (`given_rows` of them), `shared`
    (number of the input, and whether its transpose is wanted), and `arrays` (bytes of a row) for the outputs. `inputs`
    are the places of row inputs, `outputs` those of the outputs. With `gathers`, an input that is only copied to a part
    of another buffer has its place there; `keeps` says that it must still be there after the run.
    """

    def __init__(
        self, inputs: Sequence[Value], outputs: Sequence[Value], sample: int, gathers: bool = False, keeps: bool = True
    ) -> None:
        self._sample = sample
        lowering = PlanLowering()
        leaves = lowering(inputs)
        wanted = lowering(outputs)
        samples = [np.empty(tuple(map(int, v.shape)), v.dtype) for v in leaves]
        builder = Builder(leaves, wanted, samples)
        views = builder.assignment
        self._actions = [self._with_rows(self._checked(action), sample) for action in builder.actions]
        absorbed = self._absorb([views[v] for v in leaves], [views[v] for v in wanted], keeps) if gathers else {}
        self._number(builder, [views[v] for v in leaves], [views[v] for v in wanted], absorbed)

    def run(self, rows: int, arrays: tuple[Any, ...], gathers: tuple[Any, ...]) -> None:
        """Run on so many rows; `arrays` by buffer, `gathers` as RowCommands takes them."""
        self.commands.run(rows, (*arrays, *self._constants), gathers)

    # -- checks

    def _is_rows(self, view: View) -> bool:
        """Has a view one part for each row? Raises Unsuited if it depends on the number of rows in another way."""
        if any(n % self._sample == 0 and n for n in view.shape[1:]):
            raise Unsuited
        if not view.shape or view.shape[0] % self._sample or not view.shape[0]:
            return False
        if view.shape[0] != self._sample:
            raise Unsuited
        return True

    def _checked(self, action: Action) -> Action:
        """An action that works row by row; with matrices in the layout that is multiplied fastest."""
        for view in action.reads:
            if not self._is_rows(view) or not view.strides[0]:
                continue
            # A constant with a part for each row has only as many as the sample.
            if view.strides[0] != view.buffer.real.bytes // self._sample or view.buffer.real.kind == "constant":
                raise Unsuited
        for view in action.writes:
            if not self._is_rows(view) or view.strides[0] != view.buffer.real.bytes // self._sample:
                raise Unsuited
        if isinstance(action, KernelAction):
            if action.shape[0] != self._sample or 0 in (action.axes or ()):
                raise Unsuited
        elif isinstance(action, MatmulAction):
            a, b, out = action.sides
            if any(len(x.shape) != 2 for x in (a, b, out)) or not self._is_rows(a) or self._is_rows(b):
                raise Unsuited
            if not self._is_rows(out):
                raise Unsuited
        elif not isinstance(action, (CopyAction, FillAction)):
            raise Unsuited
        return action

    # -- buffers

    def _absorb(self, leaves: list[View], wanted: list[View], keeps: bool) -> dict[Buffer, View]:
        """Row inputs that are only copied to a part of another buffer: their rows are gathered there."""
        read: dict[Buffer, int] = {}
        for action in self._actions:
            for view in action.reads:
                read[view.buffer.real] = read.get(view.buffer.real, 0) + 1
        kept = {view.buffer.real for view in wanted}
        inputs = {view.buffer.real for view in leaves if self._is_rows(view)}
        found: dict[Buffer, View] = {}
        left: list[Action] = []
        for action in self._actions:
            source = action.reads[0] if isinstance(action, CopyAction) else None
            if source is not None and source.buffer.real in inputs - kept and source.is_whole:
                target = action.writes[0]
                dense = target.strides[1:] == contiguous_strides(target.shape[1:], target.dtype)
                if dense and read[source.buffer.real] == 1 and (target.buffer.real in kept or not keeps):
                    found[source.buffer.real] = target
                    continue
            left.append(action)
        self._actions = left
        return found

    def _number(self, builder: Builder, leaves: list[View], wanted: list[View], absorbed: dict[Buffer, View]) -> None:
        """Number the buffers: those of inputs, arrays with outputs, constants; then scratch memory."""
        strides: list[int] = []
        self.inputs: list[Place | None] = []
        self.shared: list[tuple[int, bool]] = []
        self.arrays: list[int] = []

        def number(buffer: Buffer, stride: int) -> int:
            buffer.number, buffer.offset = len(strides), 0
            strides.append(int(stride))  # every run computes with these: no sizes that remember their formulas
            return buffer.number

        for view in leaves:
            if self._is_rows(view):
                if view.buffer.real not in absorbed:
                    number(view.buffer.real, self._row_bytes(view.buffer.real))
        self.given_rows = len(strides)
        transposed = self._transposed(leaves)
        for i, view in enumerate(leaves):
            if not self._is_rows(view):
                number(view.buffer.real, 0)
                self.shared.append((i, False))
                if view.buffer.real in transposed:
                    number(transposed[view.buffer.real], 0)
                    self.shared.append((i, True))
        self.first_array = len(strides)
        used: dict[Buffer, None] = {}
        for action in self._actions:
            used.update(dict.fromkeys([v.buffer.real for v in (*action.reads, *action.writes)]))
        used.update(dict.fromkeys([view.buffer.real for view in absorbed.values()]))
        for view in wanted:
            if not self._is_rows(view):
                raise Unsuited
            if view.buffer.real.kind == "arena" and view.buffer.real.number < 0:
                self.arrays.append(self._row_bytes(view.buffer.real))
                number(view.buffer.real, self.arrays[-1])
        constants = builder.assignment.constants
        self._constants: list[Any] = []
        for buffer in used:
            if buffer.kind == "constant":
                self._constants.append(constants[buffer.number])
                number(buffer, 0)
        # Zeros, one of each dtype, for arrays that their parts do not cover.
        self._zeros: dict[np.dtype[Any], int] = {}
        for action in self._actions:
            if isinstance(action, FillAction) and action.writes[0].dtype not in self._zeros:
                self._constants.append(np.zeros((), action.writes[0].dtype))
                self._zeros[action.writes[0].dtype] = len(strides)
                strides.append(0)
        scratch = []
        for buffer in used:
            if buffer.kind == "arena" and buffer.number < 0:
                scratch.append(self._row_bytes(buffer))
                buffer.number = len(strides) + len(scratch) - 1
        self.inputs = [self._place(absorbed.get(view.buffer.real, view)) if self._is_rows(view) else None
                       for view in leaves]  # fmt: skip
        self.outputs = [self._place(view) for view in wanted]
        self.commands = RowCommands(self._commands, strides, scratch)

    def _transposed(self, leaves: list[View]) -> dict[Buffer, Buffer]:
        """Shared matrices that are multiplied transposed: a buffer for the transposed copy."""
        shared = {view.buffer.real for view in leaves if not self._is_rows(view)}
        found: dict[Buffer, Buffer] = {}
        for k, action in enumerate(self._actions):
            if isinstance(action, MatmulAction):
                a, b, out = action.sides
                buffer = b.buffer.real
                if buffer in shared and b.strides[0] == b.dtype.itemsize != b.strides[1] and _is_transposed(b):
                    own = new_view(b.shape, b.dtype, "input")
                    found.setdefault(buffer, own.buffer)
                    copy = View(found[buffer], 0, own.shape, own.strides, own.dtype)
                    self._actions[k] = MatmulAction(a, copy, out, action.add)
        return found

    def _row_bytes(self, buffer: Buffer) -> int:
        """The bytes of one row, as a plain number: every run computes with it."""
        size: int = plain(buffer.bytes)
        return size // self._sample

    def _place(self, view: View) -> Place:
        shape, strides = tuple(map(plain, view.shape[1:])), tuple(map(plain, view.strides[1:]))
        dense = strides == contiguous_strides(shape, view.dtype)
        size = int(np.prod(shape, dtype=np.int64)) * view.dtype.itemsize if dense else 0
        return Place(view.buffer.real.number, plain(view.offset), shape, strides, view.dtype, size)

    # -- commands

    def _commands(self, rows: int) -> Commands:
        """The commands for a number of rows."""
        commands = Commands(threads=1)
        for action in self._actions:
            if not self._enter(action, rows, commands):
                raise Unsuited
        return commands

    def _enter(self, action: Action, rows: int, commands: Commands) -> bool:
        if isinstance(action, FillAction):
            target = self._sized(action.writes[0], rows).resolve()
            zero = BufferView(self._zeros[target.dtype], 0, (), (), target.dtype)
            return commands.routine(lambda threads, _scratch: fill_commands(zero, target, threads))
        return self._with_rows(action, rows).enter(commands)

    def _with_rows(self, action: Action, rows: int) -> Action:
        reads, writes = ([self._sized(view, rows) for view in views] for views in (action.reads, action.writes))
        if isinstance(action, KernelAction):
            shape = (rows, *map(int, action.shape[1:]))
            return KernelAction(action.kernel, shape, action.axes, reads, writes)
        if isinstance(action, MatmulAction):
            a, b, out = (self._sized(view, rows) for view in action.sides)
            return MatmulAction(a, b, out, action.add)
        return CopyAction(reads[0], writes[0]) if isinstance(action, CopyAction) else FillAction(writes[0])

    def _sized(self, view: View, rows: int) -> View:
        shape = (rows, *view.shape[1:]) if self._is_rows(view) else view.shape
        return view.as_strided(tuple(map(int, shape)), tuple(map(int, view.strides)))


def _is_transposed(view: View) -> bool:
    """Is this a whole C-contiguous matrix, transposed?"""
    matrix = view.as_strided(view.shape[::-1], view.strides[::-1])
    return matrix.is_whole
