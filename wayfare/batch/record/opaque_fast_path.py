"""Entering a whole call that was met before: a function written for one shape of arguments and results.

Nearly all calls of a cell look like the last one: the same cell, tensors in the same places, the same rows. For those
there is a lane: Python code without loops that looks whether this is such a call and enters it. Its text depends on the
shape of arguments and results only, so it is compiled once for each of these; a lane is a closure of it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any
from weakref import ref

from wayfare.batch.analysis.exception_scopes import in_try
from wayfare.batch.record.call import Call, Value
from wayfare.batch.record.lazy_tensor import LazyTensor
from wayfare.batch.record.refcount import alone
from wayfare.batch.record.signature import STACKED, Kind, as_of_now
from wayfare.core.callsite import INSIDE
from wayfare.core.pytree import TENSOR
from wayfare.core.tensor import Tensor

# What a lane gives where a call is not of its kind.
MISSED: Any = object()

# lane(session, args) → what the call gives, or MISSED.
Lane = Callable[[Any, tuple[Any, ...]], Any]

# (shape of the arguments, number of results, …) → a function that makes lanes.
_MAKERS: dict[Any, Callable[..., Any]] = {}


def shape_of(args: tuple[Any, ...]) -> tuple[str | int, ...] | None:
    """Where the tensors are: "value" and "outside" for one, a number for a tuple of values, "none" for None; None where
    there is anything else."""
    shape: list[str | int] = []
    for part in args:
        if part.__class__ is LazyTensor:
            shape.append("value")
        elif part.__class__ is Tensor:
            shape.append("outside")
        elif part is None:
            shape.append("none")
        elif part.__class__ is tuple and part and all([t.__class__ is LazyTensor for t in part]):
            shape.append(len(part))
        else:
            return None
    return tuple(shape)


def lane_for(kind: Kind, owner: Any, args: tuple[Any, ...], rows: Any, depth: int) -> Lane | None:
    """A lane for calls like this one; None where there is none. The user's line is at least `depth` frames up."""
    whole = kind.what
    shape = shape_of(args)
    if shape is None or not rows or (whole.result is not TENSOR and not whole.plain_tuple):
        return None
    if len(rows) != len(_flat(shape)):
        return None  # A tensor that all calls share is not among the rows.
    needs = "always" if kind.leaf_needs else "maybe" if kind.differentiable else "never"
    # Of tensors from outside: what could be a parameter or a buffer is asked whether it is one.
    asked = tuple([v.__class__ is not Value and v._array.nbytes > 8 for v in rows])
    if any([v.__class__ is not Value and v._array.nbytes > STACKED for v in rows]):
        return None
    key = (shape, asked, kind.carries, needs, whole.result is TENSOR, kind.checks_values)
    maker = _made_by(_text, key)
    looks = [v.row if v.__class__ is Value else (v._array.shape, v._array.dtype, v._array.strides) for v in rows]
    lane: Lane = maker(_TOOLS.values(), kind, owner, whole.holds, looks, kind.outs, kind.pending_bytes, depth)
    return lane


# What all lanes use, by the names they use.
_TOOLS: dict[str, Any] = {
    "LazyTensor": LazyTensor, "Tensor": Tensor, "Call": Call, "Value": Value, "new_call": Call.__new__,
    "new_value": Value.__new__, "new_tensor": Tensor.__new__, "getframe": sys._getframe, "INSIDE": INSIDE,
    "MISSED": MISSED, "alone": alone, "as_of_now": as_of_now, "ref": ref, "in_try": in_try,
}  # fmt: skip


def _made_by(text: Callable[..., str], key: tuple[Any, ...]) -> Callable[..., Any]:
    """The maker whose text is that of a key."""
    maker = _MAKERS.get(key)
    if maker is None:
        scope: dict[str, Any] = {}
        exec(compile(text(*key), "<wayfare lane>", "exec"), scope)
        maker = _MAKERS[key] = scope["maker"]
    return maker


def recorder_for(kind: Kind) -> Callable[[Any, Any, int], Any]:
    """record(session, rows, depth) → the tensors of a call of this kind, whose rows were found already."""
    needs = "always" if kind.leaf_needs else "maybe" if kind.differentiable else "never"
    key = (kind.carries, needs)
    record: Callable[[Any, Any, int], Any] = _made_by(_text_of_recorder, key)(
        _TOOLS.values(), kind, kind.outs, kind.pending_bytes
    )
    return record


def _text_of_recorder(carries: tuple[bool, ...], needs: str) -> str:
    body: list[str] = []
    say = body.append
    say("if session.pending_bytes > session.limit: session.flush()")
    if needs == "maybe":
        for line in (
            "for row in rows:",
            "    if row.needs if row.__class__ is Value else row._requires_grad:",
            "        needs = True",
            "        break",
            "else: needs = False",
        ):
            say(line)
    else:
        say(f"needs = {needs == 'always'}")
    _enter(say, "rows", carries, False)
    say(f"return ({_made(carries)})")
    outs = ", ".join([f"out{k}" for k in range(len(carries))])
    return _maker("kind, outs, bytes_made", [f"{outs}, = outs"], "def record(session, rows, depth):", body, "record")


def _maker(given: str, before: list[str], head: str, body: list[str], name: str) -> str:
    """The text of a function that makes functions: those know what the maker was given."""
    lines = [f"{', '.join(_TOOLS)}, = tools", *before, head, *[f"    {line}" for line in body], f"return {name}"]
    return "\n".join([f"def maker(tools, {given}):", *[f"    {line}" for line in lines]])


def _text(
    shape: tuple[str | int, ...], asked: tuple[bool, ...], carries: tuple[bool, ...], needs: str, single: bool,
    checks: bool,
) -> str:  # fmt: skip
    """The Python text of a maker of lanes."""
    body: list[str] = []
    say = body.append
    names = [f"given{i}" for i in range(len(shape))]
    rows: list[str] = []
    say(f"if len(args) != {len(shape)}: return MISSED")
    say(f"{', '.join(names)}, = args")
    for name, part in zip(names, shape, strict=True):
        inner = [name]
        if part == "none":
            say(f"if {name} is not None: return MISSED")
            continue
        if isinstance(part, int):
            say(f"if {name}.__class__ is not tuple or len({name}) != {part}: return MISSED")
            inner = [f"{name}_{k}" for k in range(part)]
            say(f"{', '.join(inner)}, = {name}")
        for one in inner:
            row = f"row{len(rows)}"
            if part == "outside":
                _take_outside(say, one, row, asked[len(rows)])
            else:
                say(f"if {one}.__class__ is not LazyTensor: return MISSED")
                say(f"{row} = {one}._lazy")
                say(f"if {row}.row is not look_{row}: return MISSED")
            rows.append(row)
    say("if not holds(): return MISSED")
    say("if session.pending_bytes > session.limit: session.flush()")
    values = [row for row, part in zip(rows, _flat(shape), strict=True) if part != "outside"]
    always = {"always": "True", "never": "False"}.get(needs)
    say(f"needs = {always or ' or '.join([f'{v}.needs' for v in values]) or 'False'}")
    _enter(say, f"({', '.join(rows)},)", carries, checks)
    say("return made0" if single else f"return ({_made(carries)})")
    looks = ", ".join([f"look_row{k}" for k in range(len(rows))])
    outs = ", ".join([f"out{k}" for k in range(len(carries))])
    # The owner is known by its address: as long as the lane is there, nobody else gets that.
    head = "def lane(session, args, owner=owner):"
    before = [f"{looks}, = looks", f"{outs}, = outs", "fits = kind.what.fits"]
    return _maker("kind, owner, holds, looks, outs, bytes_made, depth", before, head, body, "lane")


def _enter(say: Callable[[str], None], rows: str, carries: tuple[bool, ...], checks: bool) -> None:
    """Make the call, its values and their tensors; `needs` says whether a gradient flows through it."""
    for line in (
        "call = new_call(Call)",
        "call.kind = kind",
        f"call.inputs = {rows}",
        "call.extra = call.group = None",
        "call.example = session.hub.current",
    ):
        say(line)
    for k, carried in enumerate(carries):
        say(f"value = new_value(Value); value.call = call; value.number = {k}; value.row = out{k}")
        say(f"value.needs = {'needs' if carried else 'False'}; value.is_part = False; value.offset = 0")
        say(f"made{k} = new_tensor(LazyTensor); made{k}._lazy = value; made{k}._requires_grad = value.needs")
    # Weakly: it is seen by them which tensors somebody still holds.
    say(f"call.handles = ({''.join([f'ref(made{k}),' for k in range(len(carries))])})")
    for line in (
        "frame = getframe(depth)",
        "code = frame.f_code",
        "while INSIDE[code.co_filename]:",
        "    frame = frame.f_back",
        "    if frame is None:",
        "        code = None",
        "        break",
        "    code = frame.f_code",
        "call.code = code",
        "call.offset = 0 if code is None else frame.f_lasti",
        "session.pending.append(call)",
        "session.pending_bytes += bytes_made",
    ):
        say(line)
    if checks:
        # What will fail fails here, before the example does anything else; so does what may fail, inside a `try`.
        say("if not fits(owner, row0) if fits is not None and row0.__class__ is Tensor else in_try(frame):")
        say("    session.flush([value], only=True)")


def _made(carries: tuple[bool, ...]) -> str:
    return "".join([f"made{k}," for k in range(len(carries))])


def _take_outside(say: Callable[[str], None], one: str, row: str, asked: bool) -> None:
    """A tensor from outside that belongs to the example: no weight, no history, of the usual shape and dtype."""
    say(f"if {one}.__class__ is not Tensor or {one}._requires_grad or {one}._view is not None: return MISSED")
    if asked:
        say(f"if hasattr({one}, '_role'): return MISSED")
    say(f"array = {one}._array")
    say(f"if array.shape != look_{row}[0] or array.dtype is not look_{row}[1]: return MISSED")
    say(f"if array.strides != look_{row}[2]: return MISSED")
    say("array = None")  # who asks `alone` holds the tensor only
    say(f"{row} = {one} if alone({one}) else as_of_now({one})")


def _flat(shape: tuple[str | int, ...]) -> list[str]:
    """What each row is."""
    return [kind for part in shape if part != "none"
            for kind in (["value"] * part if isinstance(part, int) else [part])]  # fmt: skip
