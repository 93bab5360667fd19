"""Fast paths for opaque calls: generated functions that record a call which looks like an earlier one.

Nearly all calls of a cell look like the last one: the same cell, the same structure of arguments, the same rows. A fast
path is Python code without loops that checks this and records the call. Its source depends only on the structure of the
arguments and results, so it is compiled once for each structure, to a factory; a fast path is a closure it returns.
What this gains over a loop is written in `compiler/generated.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Any
from weakref import ref

from wayfare.batch.analysis.exception_scopes import in_try
from wayfare.batch.record.call import Call, Value
from wayfare.batch.record.memory import memory_of
from wayfare.batch.record.row_copy import DeviceRow, RowCopy
from wayfare.batch.record.signature import Signature
from wayfare.compiler.generated import define
from wayfare.core.callsite import INSIDE, user_frame
from wayfare.core.native import NATIVE
from wayfare.core.pytree import TENSOR
from wayfare.core.stand_in import StandIn
from wayfare.core.tensor import Tensor

# What a fast path returns if the call is not the one it was made for.
MISSED: Any = object()

# fast_path(session, args) → the results of the call, or MISSED.
FastPath = Callable[[Any, tuple[Any, ...]], Any]


def shape_of(args: tuple[Any, ...]) -> tuple[str | int, ...] | None:
    """The structure of arguments: for each one "value" (a lazy tensor), "outside" (an ordinary one), "constant" (None,
    a whole number or a string), or the length of a tuple of lazy tensors. None if there is anything else."""
    shape: list[str | int] = []
    for part in args:
        if part.__class__ is StandIn:
            shape.append("value")
        elif part.__class__ is Tensor:
            shape.append("outside")
        elif part is None or part.__class__ in (int, bool, str):
            shape.append("constant")
        elif part.__class__ is tuple and part and all([t.__class__ is StandIn for t in part]):
            shape.append(len(part))
        else:
            return None
    return tuple(shape)


def fast_path_for(signature: Signature, owner: Any, args: tuple[Any, ...], rows: Any, depth: int) -> FastPath | None:
    """A fast path for calls like this one, or None. The user's line is at least `depth` frames up."""
    places = signature.target.places
    if places is None:
        return _path_to_outputs(signature, owner, args, rows, depth)
    to_outputs = _path_to_outputs(signature, owner, args, rows, depth + 1)
    if to_outputs is None:
        return None

    def path(session: Any, args: tuple[Any, ...]) -> Any:
        made = to_outputs(session, args)
        return made if made is MISSED else tuple([made[i] for i in places])

    return path


def _path_to_outputs(signature: Signature, owner: Any, args: tuple[Any, ...], rows: Any, depth: int) -> FastPath | None:
    """The same; its result is that of the call, or a tuple of the outputs if one of them is there twice."""
    opaque = signature.target
    shape = shape_of(args)
    if shape is None or not rows or (opaque.result is not TENSOR and not opaque.plain_tuple):
        return None
    if len(rows) != len(_flat(shape)):
        return None  # an argument is a shared tensor, which is not among the rows
    if any([v.__class__ is Tensor for v in rows]):
        return None  # it has a history
    needs_grad = _needs_grad(signature)
    # An outside tensor of more than one number may be a parameter or a buffer: then the fast path checks for `_role`.
    may_have_role = tuple([v.__class__ is not Value and v.row.bytes > 8 for v in rows])
    constants = [None if kind != "constant" else part for kind, part in zip(shape, args, strict=True)]
    if _fits_native(signature, len(shape), len(rows)):
        sorts = [_VALUE if sort == "value" else _ON_DEVICE if v.__class__ is DeviceRow else _MAY_HAVE_ROLE if role
                 else _OUTSIDE for v, sort, role in zip(rows, _flat(shape), may_have_role, strict=True)]  # fmt: skip
        return NATIVE.FastPath(  # type: ignore[no-any-return]
            signature, signature.outs, signature.carries, signature.pending_bytes, _NEEDS.index(needs_grad), owner,
            opaque.holds, opaque.fits, tuple([v.row for v in rows]),
            tuple([part if isinstance(part, int) else _PARTS[part] for part in shape]), tuple(sorts),
            opaque.result is TENSOR, signature.checks_values, getattr(opaque.holds, "by_epoch", False),
            tuple(constants), opaque.below, getattr(opaque.holds, "native_tests", None),
        )  # fmt: skip
    factory = _fast_path_factory(
        shape, may_have_role, signature.carries, needs_grad, opaque.result is TENSOR, signature.checks_values
    )
    expected = [v.row for v in rows]
    fast_path: FastPath = factory(
        signature, owner, opaque.holds, expected, signature.outs, signature.pending_bytes, depth, constants
    )
    return fast_path


# How the native module (native/record.h) is told the same.
_NEEDS = ("never", "always", "maybe")
_VALUE, _OUTSIDE, _MAY_HAVE_ROLE, _ON_DEVICE = 0, 1, 2, 3
_PARTS = {"constant": -1, "value": -2, "outside": -2}
_MAX_NATIVE_OUTS, _MAX_NATIVE_ROWS = 8, 16


def _needs_grad(signature: Signature) -> str:
    return "always" if signature.shared_need_grad else "maybe" if signature.differentiable else "never"


def _fits_native(signature: Signature, args: int = 0, rows: int = 0) -> bool:
    """Whether the native module is there, and has room for such calls."""
    return NATIVE is not None and len(signature.outs) <= _MAX_NATIVE_OUTS and max(args, rows) <= _MAX_NATIVE_ROWS


def check_now(session: Any, made: StandIn, fits: bool | None) -> None:
    """Run a call at once if it will fail (it does not fit), or may fail inside a `try` (None: nobody can say yet)."""
    if fits is False or in_try(user_frame(2)):
        session.flush([made._handle], only=True)


# The global names that generated code uses.
_GLOBALS: dict[str, Any] = {
    "StandIn": StandIn, "Tensor": Tensor, "Call": Call, "Value": Value, "new_call": Call.__new__,
    "new_value": Value.__new__, "new_tensor": Tensor.__new__, "getframe": sys._getframe, "INSIDE": INSIDE,
    "MISSED": MISSED, "RowCopy": RowCopy, "ref": ref, "in_try": in_try, "memory_of": memory_of,
}  # fmt: skip


def recorder_for(signature: Signature) -> Callable[[Any, Any, int], Any]:
    """record(session, rows, depth) → the lazy tensors of a call with this signature, whose rows are known already."""
    needs_grad = _needs_grad(signature)
    if _fits_native(signature):
        return NATIVE.Recorder(  # type: ignore[no-any-return]
            signature, signature.outs, signature.carries, signature.pending_bytes, _NEEDS.index(needs_grad)
        )
    factory = _recorder_factory(signature.carries, needs_grad)
    record: Callable[[Any, Any, int], Any] = factory(signature, signature.outs, signature.pending_bytes)
    return record


@cache
def _recorder_factory(carries: tuple[bool, ...], needs_grad: str) -> Callable[..., Any]:
    body: list[str] = []
    emit = body.append
    emit("if session.pending_bytes > session.limit: session.flush()")
    if needs_grad == "maybe":
        for line in (
            "for row in rows:",
            "    if row.needs_grad if row.__class__ is Value else row._requires_grad:",
            "        needs_grad = True",
            "        break",
            "else: needs_grad = False",
        ):
            emit(line)
    else:
        emit(f"needs_grad = {needs_grad == 'always'}")
    _emit_record(emit, "rows", carries, False)
    emit(f"return ({_results(carries)})")
    outs = ", ".join([f"out{k}" for k in range(len(carries))])
    return _factory("signature, outs, bytes_made", [f"{outs}, = outs"], "session, rows, depth", body)


def _factory(parameters: str, before: list[str], inner: str, body: list[str]) -> Callable[..., Any]:
    """A function that returns closures over its arguments; `inner` are the parameters of a closure."""
    lines = [*before, f"def closure({inner}):", *[f"    {line}" for line in body], "return closure"]
    return define("factory", parameters, lines, _GLOBALS)  # type: ignore[no-any-return]


@cache
def _fast_path_factory(
    shape: tuple[str | int, ...], may_have_role: tuple[bool, ...], carries: tuple[bool, ...], needs_grad: str,
    single: bool, checks: bool,
) -> Callable[..., Any]:  # fmt: skip
    body: list[str] = []
    emit = body.append
    names = [f"given{i}" for i in range(len(shape))]
    rows: list[str] = []
    emit(f"if len(args) != {len(shape)}: return MISSED")
    emit(f"{', '.join(names)}, = args")
    # Constants first: a function that is called with several has one fast path for each.
    for name, part in zip(names, shape, strict=True):
        if part == "constant":
            equal = f"{name}.__class__ is constant_{name}.__class__ and {name} == constant_{name}"
            emit(f"if {name} is not constant_{name} and not ({equal}): return MISSED")
    for name, part in zip(names, shape, strict=True):
        inner = [name]
        if part == "constant":
            continue
        if isinstance(part, int):
            emit(f"if {name}.__class__ is not tuple or len({name}) != {part}: return MISSED")
            inner = [f"{name}_{k}" for k in range(part)]
            emit(f"{', '.join(inner)}, = {name}")
        for one in inner:
            row = f"row{len(rows)}"
            if part == "outside":
                _emit_outside_row(emit, one, row, may_have_role[len(rows)])
            else:
                emit(f"if {one}.__class__ is not StandIn: return MISSED")
                emit(f"{row} = {one}._handle")
                emit(f"if {row}.row is not expected_{row}: return MISSED")
            rows.append(row)
    emit("if not holds(): return MISSED")
    emit("if session.pending_bytes > session.limit: session.flush()")
    values = [row for row, part in zip(rows, _flat(shape), strict=True) if part != "outside"]
    always = {"always": "True", "never": "False"}.get(needs_grad)
    emit(f"needs_grad = {always or ' or '.join([f'{v}.needs_grad' for v in values]) or 'False'}")
    _emit_record(emit, f"({', '.join(rows)},)", carries, checks)
    emit("return made0" if single else f"return ({_results(carries)})")
    expected = ", ".join([f"expected_row{k}" for k in range(len(rows))])
    outs = ", ".join([f"out{k}" for k in range(len(carries))])
    constants = [f"constant_{name} = given[{i}]" for i, name in enumerate(names) if shape[i] == "constant"]
    before = [f"{expected}, = expected", f"{outs}, = outs", "fits = signature.target.fits", *constants]
    # Fast paths are found by the id of their owner. They hold the owner, so that the id is not reused.
    parameters = "session, args, owner=owner"
    return _factory("signature, owner, holds, expected, outs, bytes_made, depth, given", before, parameters, body)


def _emit_record(emit: Callable[[str], None], rows: str, carries: tuple[bool, ...], checks: bool) -> None:
    """Emit code that makes the call, its values and lazy tensors; `needs_grad` is a variable of that code."""
    for line in (
        "call = new_call(Call)",
        "call.signature = signature",
        f"call.inputs = {rows}",
        "call.extra = call.group = None",
        "call.example = session.hub.current",
    ):
        emit(line)
    for k, carried in enumerate(carries):
        emit(f"value = new_value(Value); value.call = call; value.number = {k}; value.row = out{k}")
        emit(f"value.needs_grad = {'needs_grad' if carried else 'False'}; value.is_part = False; value.offset = 0")
        emit(f"made{k} = new_tensor(StandIn); made{k}._handle = value; made{k}._requires_grad = value.needs_grad")
    # Weak references: they tell later which tensors are still held.
    emit(f"call.handles = ({''.join([f'ref(made{k}),' for k in range(len(carries))])})")
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
        emit(line)
    if checks:
        # A call that will fail must fail here, before the example goes on; inside a `try`, also one that may fail.
        emit("if not fits(owner, row0.source) if fits is not None and row0.__class__ is RowCopy else in_try(frame):")
        emit("    session.flush([value], only=True)")


def _results(carries: tuple[bool, ...]) -> str:
    return "".join([f"made{k}," for k in range(len(carries))])


def _emit_outside_row(emit: Callable[[str], None], one: str, row: str, may_have_role: bool) -> None:
    """Emit code for an outside tensor of the example: no weight, no history, with the expected shape and dtype."""
    emit(f"if {one}.__class__ is not Tensor or {one}._requires_grad or {one}._view is not None: return MISSED")
    if may_have_role:
        emit(f"if hasattr({one}, '_role'): return MISSED")
    emit(f"array = {one}._array")
    emit(f"if memory_of(array) is not expected_{row}.memory: return MISSED")
    emit(f"if array.shape != expected_{row}.shape or array.dtype is not expected_{row}.dtype: return MISSED")
    emit("if not array.flags.c_contiguous: return MISSED")
    emit(f"{row} = session.row_copies.of({one}, expected_{row})")


def _flat(shape: tuple[str | int, ...]) -> list[str]:
    """The structure flattened: "value" or "outside" for each row."""
    return [sort for part in shape if part != "constant"
            for sort in (["value"] * part if isinstance(part, int) else [part])]  # fmt: skip
