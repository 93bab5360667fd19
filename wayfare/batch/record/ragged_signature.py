"""Ragged signatures: signatures that differ only in the length of their first dimension, as `sum(0)` over 2 and 3 rows.

Two signatures are compared: the size in which they differ, 2 and 3 here, is *the length*; all else must be equal. Each
op must have a rule that runs rows of all lengths (`Op.ragged`). Calls of one ragged signature are scheduled as if they
had one signature, and run as one group (`run/ragged_group.py`). The length may also be the second dimension, if the
first is 1: a batch of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from wayfare.batch.record.call import Row
from wayfare.batch.record.signature import Signature, exact_key
from wayfare.core.constant import constant
from wayfare.core.dispatch import apply, tensor_ops
from wayfare.core.op import REGISTRY, Op
from wayfare.core.tensor import Tensor
from wayfare.ir.fuse.record import STOP
from wayfare.ir.graph import in_order
from wayfare.ops._ragged import FLAT, RaggedForm, Segments, Shape

_STACK, _CAT = REGISTRY["stack"], REGISTRY["cat"]
# A new signature is compared with at most so many that belong to no ragged signature yet.
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
    """Two signatures differ in more than a length."""


class RaggedSignature:
    """Signatures that differ only in a length. Like a signature it counts its calls and groups."""

    def __init__(self, first: Signature, second: Signature, stacks: bool) -> None:
        self.name = first.name
        self.nodes = self.groups = self.largest = 0
        # What its signatures have in common; None: their calls only stack rows.
        self.program: Program | None = None
        # For the rows that calls read, and for their results: which dimension is the length (-1: there is none), or
        # FLAT. Dimensions before the length have size 1.
        self.ragged_rows: tuple[Any, ...] = ()
        self.ragged_outs: tuple[Any, ...] = (0,)
        self._forms: list[tuple[RaggedForm, list[Shape | None], list[Shape | None]] | None] = []
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
            attrs, own_attrs = ([step.attrs for step in each.steps] for each in (common, self.program))
            if common.shapes != self.program.shapes or attrs != own_attrs:
                raise _Differ
            return lengths[1]
        length = -1
        for row, first, axis in zip(rows, self._rows, self.ragged_rows, strict=True):
            if axis < 0:
                if row is not first:
                    raise _Differ
                continue
            own = row.shape
            length = own[axis] if length < 0 else length
            if own[axis] != length or own[:axis] != first.shape[:axis] or own[axis + 1 :] != first.shape[axis + 1 :]:
                raise _Differ
        return length

    def _find_forms(self, of_calls: list[bool], program: Program) -> None:
        """Ask the ops of the program whether they run rows of all lengths at once."""
        shapes = program.shapes
        given = [*of_calls, *[False] * (len(shapes) - len(of_calls))]
        for step in program.steps:
            taken, made = [shapes[i] for i in step.inputs], [shapes[i] for i in step.outputs]
            flags = [given[i] for i in step.inputs]
            form = None
            if any([_axis(shape) != -1 for shape in (*taken, *made)]):
                form = _form_of(step, taken, made, flags)
            self._forms.append(form)
            for i in step.outputs:
                given[i] = form is not None or True in flags
        self.ragged_rows = tuple([_axis(s) for s, own in zip(shapes, of_calls, strict=False) if own])
        self.ragged_outs = tuple([_axis(shapes[i]) for i in program.results])

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
            inputs, flags = [known[i] for i in step.inputs], [many[i] for i in step.inputs]
            made: Any
            if form is not None:
                inputs = [_reshaped(x, to, segments, each) for x, to, each in zip(inputs, form[1], flags, strict=True)]
                made = form[0].run(tensor_ops, segments, inputs, flags)
                made = made if isinstance(made, (tuple, list)) else (made,)
                made = [_reshaped(x, to, segments, True) for x, to in zip(made, form[2], strict=True)]
            elif step.op is STOP:
                made = inputs[0].detach()
            elif True in flags:
                made = step.op.batch(tensor_ops, segments.count, tuple(inputs), tuple(flags), step.attrs)
            else:
                made = apply(step.op, tuple(inputs), step.attrs)
            for i, t in zip(step.outputs, made if isinstance(made, (tuple, list)) else (made,), strict=True):
                known[i] = t
                many[i] = form is not None or True in flags
        return [known[i] if many[i] else tensor_ops.expand(known[i], shape=(segments.count, *known[i].shape))
                for i in program.results]  # fmt: skip


def _axis(shape: Shape) -> Any:
    """Which dimension is the length; -1: none is."""
    return FLAT if shape is FLAT else shape.index(None) if None in shape else -1


def _form_of(
    step: _Step, taken: list[Shape], made: list[Shape], given: list[bool]
) -> tuple[RaggedForm, list[Shape | None], list[Shape | None]]:  # fmt: skip
    """How a step runs rows of all lengths, and the shapes that inputs and results are given for it or after it (None:
    that which they have). Its rule does not see ones before the length."""
    rule = _stopped if step.op is STOP else step.op.ragged
    leads = {_axis(shape) for shape in taken} - {-1}
    if rule is None or FLAT in leads or len(leads) > 1 or (made and any([s is FLAT for s in taken])):
        raise _Differ
    sized = [shape for shape in made if shape is not FLAT]
    if not leads and not sized:
        raise _Differ
    lead = max(leads) if leads else max(map(_axis, sized))
    width = max(map(len, taken if leads else sized))
    seen: list[Shape] = []
    for shape in taken:
        aligned = lead and _axis(shape) < 0 and len(shape) == width
        if aligned and any([n != 1 for n in shape[:lead]]):
            raise _Differ
        seen.append(shape[lead:] if aligned or _axis(shape) > 0 else shape)
    form = rule(seen, given, _without_ones(step.attrs, lead))
    wanted = [FLAT if shape is FLAT else _axis(shape) > -1 for shape in made]
    if form is None or list(form.ragged) != wanted:
        raise _Differ
    before = [to if _axis(shape) < 0 and to != shape else None for to, shape in zip(seen, taken, strict=True)]
    after = [shape if lead and _axis(shape) == -1 else None for shape in made]
    return form, before, after


def _without_ones(attrs: dict[str, Any], lead: int) -> dict[str, Any]:
    """The attributes of a step that does not see so many ones in front of the length."""
    seen = dict(attrs)
    for name, value in attrs.items():
        if name == "shape":
            seen[name] = value[_axis(value) :] if value is not FLAT and _axis(value) > 0 else value
        elif not lead or name in _KEPT:
            continue
        elif name == "dims":
            if tuple(value[:lead]) != tuple(range(lead)):
                raise _Differ
            seen[name] = tuple([d - lead for d in value[lead:]])
        elif name == "dim":
            moved = tuple([d - lead for d in value]) if value.__class__ is tuple else value - lead
            if min(moved if moved.__class__ is tuple else (moved,), default=0) < 0:
                raise _Differ
            seen[name] = moved
        else:
            raise _Differ
    return seen


# Attributes that have nothing to do with dimensions.
_KEPT = frozenset({"keepdim", "start", "stop", "step", "index", "scale", "causal", "p", "key", "eps", "approximate"})


def _reshaped(x: Any, to: Shape | None, segments: Segments, many: bool) -> Any:
    """A value without the length, of one call or of all, in another shape."""
    if to is None:
        return x
    return tensor_ops.reshape(x, shape=(segments.count, *to) if many else to)


def _stopped(shapes: Sequence[Shape], given: Sequence[bool], attrs: dict[str, Any]) -> RaggedForm:
    return RaggedForm((True,), lambda m, segments, inputs, many: inputs[0].detach())


# -- finding them ------------------------------------------------------------------------------------------------------


class RaggedSignatures:
    """The ragged signatures of a session."""

    def __init__(self) -> None:
        # What must be equal → ragged signatures, and signatures that are alone yet.
        self._known: dict[Any, list[Any]] = {}
        self.all: list[RaggedSignature] = []

    def join(self, signature: Signature) -> None:
        """Find what a new signature belongs to, or an earlier signature that differs from it in a length only."""
        rows = [part for part in signature.key if part.__class__ is Row]
        if not rows or signature.over_steps is not None:
            return
        if not all([row.memory.is_host for row in (*rows, *signature.outs)]):
            return  # segments are gathered by the CPU only
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
                if found.__class__ is RaggedSignature:
                    length = found.length_of(signature, rows)
                else:
                    first, found = found, RaggedSignature(found, signature, stacks)
                    first.ragged, first.length = found, found.first_length
                    known[number] = found
                    self.all.append(found)
                    length = found.length_of(signature, rows)
            except _Differ:
                continue
            signature.ragged, signature.length = found, length
            return
        if len(known) < _MOST_ALONE:
            known.append(signature)

    def clear(self) -> None:
        """Later signatures find none of these; those that were found stay what they are."""
        self._known.clear()


def _may_have_length(signature: Signature, rows: Sequence[Row]) -> bool:
    """A quick look: whether it may be part of a ragged signature."""
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
    """What must be equal in all parts of a ragged signature."""
    target = signature.target
    if stacks:
        return target, signature.grad, signature.inference, rows[0]
    given = iter(rows)
    inputs = [id(t) if t is not None else _without_length(next(given)) for t in signature.pattern]
    if target.__class__ is Op:
        attrs = signature.attrs
        what = target, exact_key({k: v for k, v in attrs.items() if k != "shape"} if "shape" in attrs else attrs)
    else:
        what = target.plain, (id(target.owner()), target.result, target.places)
    return what, signature.grad, signature.inference, *inputs


def _without_length(row: Row) -> Any:
    """A row without its first sizes: the length may come after a one."""
    return len(row.shape), row.shape[2 if len(row.shape) > 2 else 1 :], row.dtype


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
    # Traces are kept from one session to the next, and so is the result of comparing them.
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
    lengths: Any = None
    for one, other in zip(first.shapes, second.shapes, strict=True):
        at = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
        if at is not None:
            lengths = one[at], other[at]
            break
    if lengths is None:
        raise _Differ
    shapes = [_shape_of(a, b, lengths) for a, b in zip(first.shapes, second.shapes, strict=True)]
    steps = []
    for step, same in zip(first.steps, second.steps, strict=True):
        if step.op is not same.op or step.inputs != same.inputs or step.outputs != same.outputs:
            raise _Differ
        attrs = step.attrs
        if exact_key(attrs) != exact_key(same.attrs):
            if exact_key(attrs | {"shape": None}) != exact_key(same.attrs | {"shape": None}):
                raise _Differ
            attrs = attrs | {"shape": _shape_of(attrs["shape"], same.attrs["shape"], lengths)}
        steps.append(step._replace(attrs=attrs))
    return first._replace(shapes=shapes, steps=steps), lengths


def _shape_of(a: Shape, b: Shape, lengths: tuple[int, int]) -> Shape:
    """One shape of two programs: None where they have their lengths, behind ones; FLAT where they differ in more."""
    a, b = tuple(a), tuple(b)
    if a == b:
        return a
    if len(a) != len(b):
        raise _Differ
    at = next(i for i, (one, other) in enumerate(zip(a, b, strict=True)) if one != other)
    if (a[at], b[at]) != lengths or at > 1 or a[:at] != (1,) * at or a[at + 1 :] != b[at + 1 :]:
        return FLAT
    return (*a[:at], None, *a[at + 1 :])
