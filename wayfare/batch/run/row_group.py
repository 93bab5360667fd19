"""Groups of opaque calls that run natively: one call for all rows, forward and backward, without tensors and nodes.

The results of all groups of one plan lie in one arena, a row after the other, and so do the factors of weight
gradients: the one product at the end reads them where they lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from wayfare.autograd.kept import written_since
from wayfare.batch.record.call import Array, Call, Value
from wayfare.batch.record.memory import HOST
from wayfare.batch.record.signature import Signature
from wayfare.batch.run.group import Group, Located, Scattered, Slice
from wayfare.batch.run.row_plan import RowPlan, row_plan
from wayfare.core import buffer_pool
from wayfare.core.callsite import locate
from wayfare.core.tensor import wrap
from wayfare.core.write_clock import latest_write, version, version_at, written_after
from wayfare.ir.fuse.record import Factors
from wayfare.ir.plan.row_program import Place, RowProgram

if TYPE_CHECKING:
    from wayfare.batch.run.segment import Segment

_BYTES = np.dtype(np.uint8)
# The most bytes of one arena.
_MOST_BYTES = 64 * 1024 * 1024


class Arena:
    """Memory for the results of many groups of one plan: arrays of so many rows. `made` are the outputs of the program
    in it. Arrays that nobody reads after their group has run (not `lasting`) are None: `brief` has one set for all
    groups."""

    __slots__ = ("_brief", "_brief_rows", "arrays", "made", "rows", "used")

    def __init__(self, program: RowProgram, rows: int, lasting: Sequence[bool]) -> None:
        self.arrays = [buffer_pool.empty((rows, size), _BYTES) if lasts else None
                       for size, lasts in zip(program.arrays, lasting, strict=True)]  # fmt: skip
        self.made = []
        for place in program.outputs:
            number = place.buffer - program.first_array
            held = self.arrays[number] if 0 <= number < len(self.arrays) else None
            self.made.append(None if held is None else _array(held, place))
        self.rows = rows
        self.used = 0
        self._brief: list[Array] = []
        self._brief_rows = 0

    def brief(self, program: RowProgram, rows: int) -> list[Array]:
        """So many rows of the arrays that do not last: they hold what the last group left there."""
        if rows > self._brief_rows:
            self._brief_rows = min(2 * rows, self.rows)
            sizes = [size for size, array in zip(program.arrays, self.arrays, strict=True) if array is None]
            self._brief = [buffer_pool.empty((self._brief_rows, size), _BYTES) for size in sizes]
        return [array[:rows] for array in self._brief]

    def take(self, rows: int) -> slice:
        """Take the next rows."""
        self.used += rows
        return slice(self.used - rows, self.used)


class RowGroup(Group):
    """Calls of one opaque signature. `plan` is None if they ran as an ordinary group."""

    __slots__ = ("arena", "line", "made", "plan", "rows")

    def __init__(self, number: int, round_number: int, signature: Signature, calls: list[Call]) -> None:
        super().__init__(number, round_number, signature, calls)
        self.plan: RowPlan | None = None
        # All outputs of the forward program, and where they lie in the arena.
        self.made: list[Array] = []
        self.arena: Arena | None = None
        self.rows = slice(0)
        # The user's line: that of the first call.
        self.line = (calls[0].code, calls[0].offset)

    # -- forward

    def run_natively(self, segment: Segment, calls: list[Call], located: Sequence[Located]) -> bool:
        """Run all calls by the forward program of their plan, if they have one."""
        signature = self.signature
        if not located or not signature.memory.is_host or not signature.target.holds():
            return False
        if len(calls) == 1:
            located = [_as_row(*part) for part in located]
        if not all([several for _, _, _, several in located]):
            return False
        needs = tuple([source is not None for _, _, source, _ in located])
        plan = row_plan(signature, calls[0].inputs, needs)
        if plan is None:
            return False
        program = plan.forward
        shared = plan.arrays_of_shared(program, plan.all_inputs, self.held)
        if shared is None:
            return False
        rows = len(calls)
        held = self._memory(segment, plan, rows)
        gathers: list[Any] = []
        given: list[Array] = []
        for (array, addresses, _, _), place in zip(located, plan.row_places, strict=True):
            if place.buffer >= program.given_rows:
                gathers.append((place.buffer, place.offset, place.bytes, _addresses(array, addresses)))
                continue
            if array is None:
                array = buffer_pool.empty((rows, *place.shape), place.dtype)
                gathers.append((place.buffer, 0, place.bytes, addresses))
            given.append(array if array.flags.c_contiguous else np.ascontiguousarray(array))
        program.run(rows, (*given, *shared, *held), tuple(gathers))
        if self.arena is None:
            self.made = [_array(held[place.buffer - program.first_array], place) for place in program.outputs]
        self.arrays = self.made[: plan.outs]
        self.batched = [True] * len(located)
        if plan.backward is not None:
            self.differentiable = True
            self.plan = plan
            self.sources = [source for _, _, source, _ in located]
            for place, need in zip(plan.row_places, needs, strict=True):
                whole = place.buffer < program.given_rows
                leaf = wrap(given[place.buffer] if whole else _array(held[place.buffer - program.first_array], place))
                leaf._requires_grad = need
                self.leaves.append(leaf)
        else:
            self.made = []
        self.start = segment.allocate_rows(self, self.arrays, rows)
        return True

    def _memory(self, segment: Segment, plan: RowPlan, rows: int) -> list[Array]:
        """Memory for the results. What a gradient needs anyway lies in an arena; the others are freed by group."""
        program = plan.forward
        if plan.backward is None:
            return [buffer_pool.empty((rows, size), _BYTES) for size in program.arrays]
        arena: Arena | None = segment.arenas.get(plan)
        if arena is None or arena.used + rows > arena.rows:
            most = _MOST_BYTES // max(*program.arrays, 1)
            room = max(min(segment.calls_ahead.get(self.signature, 0), most), rows)
            arena = segment.arenas[plan] = Arena(program, room, [True] * len(program.arrays))
        self.arena, self.rows = arena, arena.take(rows)
        self.made = [whole[self.rows] for whole in arena.made]  # type: ignore[index]
        return [array[self.rows] for array in arena.arrays]  # type: ignore[index]

    # -- backward

    def check_saved(self) -> None:
        """Raise an error if a tensor saved for its gradient was written in place."""
        if self.plan is None:
            super().check_saved()
            return
        if latest_write[0] > self.time:
            for array in [self.held[id(t)] for t in self.plan.kept_shared]:
                if written_after(array, self.time):
                    now, then = version(array), version_at(array, self.time)
                    raise written_since(self.signature.name, locate(*self.line), now, then)

    def input_grads(
        self, given: Sequence[Array], arenas: dict[Any, Arena]
    ) -> tuple[list[tuple[int, Array]], list[Factors]] | None:
        """Gradients of the inputs from those of the outputs, which hold until the next group is asked; and the factors
        of the gradients of shared tensors, in an arena for each one of results. None if a shared tensor has another
        layout now."""
        plan, arena = self.plan, arenas.get(self.arena)
        assert plan is not None and plan.backward is not None and self.arena is not None
        program = plan.backward
        shared = plan.arrays_of_shared(program, plan.backward_inputs, self.held)
        if shared is None:
            return None
        if arena is None:
            arena = arenas[self.arena] = Arena(program, self.arena.rows, plan.lasting)
        arrays: list[Any] = []
        for kind, i in plan.row_sources:
            held = given[i] if kind == "given" else self.leaves[i]._array if kind == "input" else self.made[i]
            arrays.append(held if held.flags.c_contiguous else np.ascontiguousarray(held))
        brief = iter(arena.brief(program, self.calls))
        made = [next(brief) if array is None else array[self.rows] for array in arena.arrays]
        program.run(self.calls, (*arrays, *shared, *made), ())
        found: list[Array] = []
        for place, whole in zip(program.outputs, arena.made, strict=True):
            if whole is not None:
                found.append(whole[self.rows])
            elif place.buffer < program.given_rows:
                given_rows = arrays[place.buffer]
                same = given_rows.shape[1:] == place.shape and not place.offset
                found.append(given_rows if same else _array(given_rows, place))
            else:
                found.append(_array(made[place.buffer - program.first_array], place))
        left = iter(found[len(plan.grads) :])
        factors = [f._replace(gradient=next(left), x=None if f.x is None else next(left)) for f in plan.factors]
        return list(zip(plan.grads, found, strict=False)), factors


def _array(held: Array, place: Place) -> Array:
    """The array at a place of a buffer, which is an array of the same rows."""
    return np.ndarray((len(held), *place.shape), place.dtype, held, place.offset, (held.strides[0], *place.strides))


def _as_row(array: Array | None, addresses: Array | None, source: Any, several: bool) -> Located:
    """The input of a single call as a batch of one row."""
    if several or array is None:
        return array, addresses, source, several
    if source is not None:
        value = source.value
        if value.__class__ is not Value:
            return array, addresses, source, several
        group: Group = value.call.group
        if group.has_lengths:
            at, offsets = np.array([value.call.row_id + value.number]), np.array([value.offset])
            source = Scattered(None, at, offsets, ((group, value.number),), [])
        else:
            source = Slice(group, value.number, group.index_of(value.call), 1, value.offset, value.row)
    return array[None], None, source, True


def _addresses(array: Array | None, addresses: Array | None) -> Array:
    """The addresses of all rows."""
    if array is None:
        assert addresses is not None
        return addresses
    found: Array = np.empty(len(array), np.int64)
    HOST.place_rows(found, 0, 1, array)
    return found
