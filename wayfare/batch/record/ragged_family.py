"""Families: signatures that differ only in the length of their first dimension, as `sum(0)` over 2 and over 3 children.

Two signatures are compared: where one has the length 2 and the other one 3, both have *the length*. What is equal in both
is the same for all calls of the family. Every op must have a rule that runs rows of all lengths at once (`Op.ragged`).
Calls of a family are scheduled as if they had one signature, and may run as one group (`run/ragged_group.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from wayfare.batch.record.call import Row
from wayfare.batch.record.signature import Signature, exact_key
from wayfare.batch.run.runners import run_op
from wayfare.core.constant import constant
from wayfare.core.dispatch import apply, tensor_ops
from wayfare.core.op import REGISTRY, Op
from wayfare.core.tensor import Tensor
from wayfare.ir.fuse.record import STOP
from wayfare.ir.graph import in_order
from wayfare.ops._ragged import RaggedForm, Segments, Shape, has_length

_STACK, _CAT = REGISTRY["stack"], REGISTRY["cat"]
# Signatures of one key that found no family with an earlier one: each new one is compared with so many.
_MOST_ALONE = 4
# A function with more ops than this runs natively, calls of each length by themselves.
_MOST_STEPS = 24


class _Step(NamedTuple):
    """One op of a program; values go by number."""

    op: Op
    attrs: dict[str, Any]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class Program(NamedTuple):
    """What the calls of one signature compute. The first values are the inputs; then come captured tensors."""

    shapes: list[Shape]
    steps: list[_Step]
    captured: Sequence[Tensor]
    numbers: list[tuple[int, Any, Any]]  # (value, number, dtype)
    results: tuple[int, ...]
    compared: list[Any]  # another program, and what they have in common


class _Differ(Exception):
    """Two signatures are no family."""


class Family:
    """Signatures that differ only in their length. Like a signature it counts its calls and groups."""

    def __init__(self, first: Signature, second: Signature, stacks: bool) -> None:
        self.name = first.name
        self.nodes = self.groups = self.largest = 0
        # What its signatures have in common; None: their calls only stack rows.
        self.program: Program | None = None
        # Which of the rows that calls read, and which of their results, have the length.
        self.ragged_rows: tuple[bool, ...] = ()
        self.ragged_outs: tuple[bool, ...] = (True,)
        self._forms: list[RaggedForm | None] = []
        if stacks:
            self.first_length = first.outs[0].shape[0]
            return
        before, program = _program_of(first), _program_of(second)
        assert before is not None and program is not None
        self._before = before
        self.program, (self.first_length, _) = _in_common(before, program)
        self._find_forms([t is None for t in first.pattern], self.program)
        # Of one op, whose attributes are the same: its rows tell everything.
        self._rows = [part for part in first.key if part.__class__ is Row]
        self._by_rows = first.target.__class__ is Op and "shape" not in first.attrs

    def length_of(self, signature: Signature, rows: Sequence[Row]) -> int:
        """The length of a signature; raises _Differ if it does not belong here."""
        if self.program is None:
            return signature.outs[0].shape[0]
        if not self._by_rows:
            program = _program_of(signature)
            assert program is not None
            common, lengths = _in_common(self._before, program)
            if common.shapes != self.program.shapes or [s.attrs for s in common.steps] != [s.attrs for s in self.program.steps]:
                raise _Differ
            return lengths[1]
        length = -1
        for row, first, ragged in zip(rows, self._rows, self.ragged_rows, strict=True):
            if not ragged:
                if row is not first:
                    raise _Differ
            elif length < 0:
                length = row.shape[0]
            elif row.shape[0] != length:
                raise _Differ
        return length

    def _find_forms(self, of_calls: list[bool], program: Program) -> None:
        """Ask the ops of the program whether they run rows of all lengths at once."""
        shapes = program.shapes
        given = [*of_calls, *[False] * (len(shapes) - len(of_calls))]
        for step in program.steps:
            made = tuple([has_length(shapes[i]) for i in step.outputs])
            flags = [given[i] for i in step.inputs]
            form = None
            if True in made or any([has_length(shapes[i]) for i in step.inputs]):
                rule = _stopped if step.op is STOP else step.op.ragged
                form = None if rule is None else rule([shapes[i] for i in step.inputs], flags, step.attrs)
                if form is None or form.ragged != made:
                    raise _Differ
            self._forms.append(form)
            for i in step.outputs:
                given[i] = form is not None or True in flags
        self.ragged_rows = tuple([has_length(s) for s, own in zip(shapes, of_calls, strict=False) if own])
        self.ragged_outs = tuple([has_length(shapes[i]) for i in program.results])

    def run(self, segments: Segments, tensors: Sequence[Tensor], several: Sequence[bool]) -> list[Tensor]:
        """The results of many calls. Inputs that have the length are the rows of all calls, the others have the calls
        in front where `several` says so; results as well."""
        program = self.program
        assert program is not None
        known: list[Any] = [*tensors, *program.captured]
        known += [None] * (len(program.shapes) - len(known))
        many = [*several, *[False] * (len(known) - len(several))]
        for number, value, dtype in program.numbers:
            known[number] = constant(value, dtype)
        for step, form in zip(program.steps, self._forms, strict=True):
            inputs, flags = tuple([known[i] for i in step.inputs]), tuple([many[i] for i in step.inputs])
            if form is not None:
                made = form.run(tensor_ops, segments, inputs, flags)
            elif step.op is STOP:
                made = inputs[0].detach()
            elif True in flags:
                made = step.op.batch(tensor_ops, segments.count, inputs, flags, step.attrs)
            else:
                made = apply(step.op, inputs, step.attrs)
            for i, t in zip(step.outputs, made if isinstance(made, (tuple, list)) else (made,), strict=True):
                known[i] = t
                many[i] = form is not None or True in flags
        return [known[i] if many[i] else tensor_ops.expand(known[i], shape=(segments.count, *known[i].shape))
                for i in program.results]  # fmt: skip


def _stopped(shapes: Sequence[Shape], given: Sequence[bool], attrs: dict[str, Any]) -> RaggedForm:
    return RaggedForm((True,), lambda m, segments, inputs, many: inputs[0].detach())


# -- finding families --------------------------------------------------------------------------------------------------


class Families:
    """The families of a session."""

    def __init__(self) -> None:
        # What all signatures of a family have in common → families, and signatures that have none yet.
        self._known: dict[Any, list[Any]] = {}
        self.all: list[Family] = []

    def join(self, signature: Signature) -> None:
        """Find the family of a new signature, or an earlier signature to make one with."""
        rows = [part for part in signature.key if part.__class__ is Row]
        if not rows or signature.over_steps is not None:
            return
        for row in (*rows, *signature.outs):
            if row.layout is not None:
                return
        stacks = stacks_rows(signature, rows)
        if not stacks and not _may_have_length(signature, rows):
            return
        key = _common_key(signature, rows, stacks)
        known = self._known.get(key)
        if known is None:
            self._known[key] = [signature]
            return
        for number, found in enumerate(known):
            try:
                if found.__class__ is Family:
                    length = found.length_of(signature, rows)
                else:
                    first, found = found, Family(found, signature, stacks)
                    first.family, first.length = found, found.first_length
                    known[number] = found
                    self.all.append(found)
                    length = found.length_of(signature, rows)
            except _Differ:
                continue
            signature.family, signature.length = found, length
            return
        if len(known) < _MOST_ALONE:
            known.append(signature)

    def clear(self) -> None:
        """Later signatures find none of these; those that were found stay what they are."""
        self._known.clear()


def _may_have_length(signature: Signature, rows: Sequence[Row]) -> bool:
    """A quick look: whether its calls may belong to a family."""
    target = signature.target
    if target.__class__ is Op:
        return target.ragged is not None and any([row.shape for row in rows])
    return _program_of(signature) is not None


def stacks_rows(signature: Signature, rows: Sequence[Any]) -> bool:
    """Whether calls put rows of one shape one after another, as `stack` and `cat` do along the first dimension."""
    if (signature.target is not _STACK and signature.target is not _CAT) or signature.shared or not rows:
        return False
    row = rows[0]
    if row is None or row.layout is not None or signature.attrs["dim"] != 0 or signature.outs[0].dtype != row.dtype:
        return False
    return all([other is row for other in rows])


def _common_key(signature: Signature, rows: Sequence[Row], stacks: bool) -> Any:
    """What all signatures of a family have in common."""
    target = signature.target
    if stacks:
        return target, signature.grad, signature.inference, rows[0]
    given = iter(rows)
    inputs = [id(t) if t is not None else _without_length(next(given)) for t in signature.pattern]
    if target.__class__ is Op:
        attrs = signature.attrs
        what = target, exact_key({k: v for k, v in attrs.items() if k != "shape"} if "shape" in attrs else attrs)
    else:
        what = target.plain, (id(target.owner()), target.result)
    return what, signature.grad, signature.inference, *inputs


def _without_length(row: Row) -> Any:
    return len(row.shape), row.shape[1:], row.dtype


def _program_of(signature: Signature) -> Program | None:
    """The program of the calls of a signature; None if it cannot run rows of all lengths at once."""
    opaque = signature.target
    if opaque.__class__ is not Op:
        if opaque.program is ...:
            opaque.program = _of_trace(*opaque.traced)
        found: Program | None = opaque.program
        return found
    given = iter([part for part in signature.key if part.__class__ is Row])
    shapes: list[Shape] = [next(given).shape if t is None else tuple(t.shape) for t in signature.pattern]
    count = len(shapes)
    shapes += [row.shape for row in signature.outs]
    outputs = tuple(range(count, len(shapes)))
    return Program(shapes, [_Step(opaque, signature.attrs, tuple(range(count)), outputs)], (), [], outputs, [])


def _of_trace(leaves: Any, captured: Any, stand_for: Any, results: Any) -> Program | None:
    numbers = {v: i for i, v in enumerate((*leaves, *stand_for))}
    shapes: list[Shape] = [tuple(v.shape) for v in numbers]
    steps: list[_Step] = []
    constants = []
    for step in in_order(results, {id(v.step) for v in numbers}):
        if step.outputs[0] in numbers:
            continue
        for v in step.outputs:
            numbers[v] = len(shapes)
            shapes.append(tuple(v.shape))
        if step.op is None:
            if step.kind != "number" or step.data.__class__ not in (int, float, bool):
                return None
            constants.append((numbers[step.outputs[0]], step.data, step.outputs[0].dtype))
            continue
        steps.append(_Step(step.op, step.attrs, tuple([numbers[v] for v in step.inputs]),
                           tuple([numbers[v] for v in step.outputs])))  # fmt: skip
    if len(steps) > _MOST_STEPS or any([step.op.ragged is None for step in steps if step.op is not STOP]):
        return None
    return Program(shapes, steps, captured, constants, tuple([numbers[v] for v in results]), [])


def _in_common(first: Program, second: Program) -> tuple[Program, tuple[int, int]]:
    """What two programs have in common, with None for the length in shapes; and their lengths. Raises _Differ if they
    differ in more."""
    # Traces last from one session to the next, and so does what came of comparing them.
    if not second.compared or second.compared[0] is not first:
        second.compared[:] = first, None
        second.compared[1] = _compared(first, second)
    if second.compared[1] is None:
        raise _Differ
    found: tuple[Program, tuple[int, int]] = second.compared[1]
    return found


def _compared(first: Program, second: Program) -> tuple[Program, tuple[int, int]]:
    if len(first.shapes) != len(second.shapes) or len(first.steps) != len(second.steps):
        raise _Differ
    if len(first.captured) != len(second.captured) or first.results != second.results:
        raise _Differ
    if any([a is not b for a, b in zip(first.captured, second.captured, strict=True)]):
        raise _Differ
    if exact_key(first.numbers) != exact_key(second.numbers):
        raise _Differ
    pairs = zip(first.shapes, second.shapes, strict=True)
    lengths: Any = next(((a[0], b[0]) for a, b in pairs if a and b and a[0] != b[0]), None)
    if lengths is None:
        raise _Differ
    shapes = [_shape_of(a, b, lengths) for a, b in zip(first.shapes, second.shapes, strict=True)]
    steps = []
    for one, other in zip(first.steps, second.steps, strict=True):
        if one.op is not other.op or one.inputs != other.inputs or one.outputs != other.outputs:
            raise _Differ
        attrs = one.attrs
        if exact_key(attrs) != exact_key(other.attrs):
            if exact_key(attrs | {"shape": None}) != exact_key(other.attrs | {"shape": None}):
                raise _Differ
            attrs = attrs | {"shape": _shape_of(attrs["shape"], other.attrs["shape"], lengths)}
        steps.append(one._replace(attrs=attrs))
    return first._replace(shapes=shapes, steps=steps), lengths


def _shape_of(a: Shape, b: Shape, lengths: tuple[int, int]) -> Shape:
    """One shape of two programs: None where they have their lengths."""
    if tuple(a) == tuple(b):
        return a
    if not a or not b or (a[0], b[0]) != lengths or tuple(a[1:]) != tuple(b[1:]):
        raise _Differ
    return (None, *a[1:])
