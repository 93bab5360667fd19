"""Opaque calls: a cell, a module or a function recorded as one call instead of the many ops inside.

At the first call for each structure of arguments the function is traced, to learn what it returns. Later calls only
check a guard: whatever the function depends on must be unchanged. A group of opaque calls runs the function once for
all rows: directly if it accepts a batch dimension, else as the fused `vmap` of the function.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from wayfare.api.fused import NotFusable, TracedValue
from wayfare.autograd.vmap import map_batch
from wayfare.batch.record.call import Array, Row, row_of, row_of_array
from wayfare.batch.record.module_call import UsersCode
from wayfare.batch.record.owner_table import table_of
from wayfare.batch.record.short_trace import MAX_STEPS, QuietFused, ShortTrace, TooLong, place_of
from wayfare.batch.record.signature import Signature, exact_key, is_shared
from wayfare.batch.run.runners import all_inputs
from wayfare.core.dispatch import apply, tensor_ops
from wayfare.core.errors import WayfareError
from wayfare.core.generator import Generator
from wayfare.core.mode import STATE, changed_mode
from wayfare.core.pytree import TENSOR, flatten, only_tensors, rebuild
from wayfare.core.stand_in import StandIn, stand_in
from wayfare.core.tensor import Tensor, wrap
from wayfare.ir.fuse.record import STOP, by_ops
from wayfare.ir.gradient import reached
from wayfare.ir.graph import Value

if TYPE_CHECKING:
    from wayfare.batch.session import Session

# Argument structures remembered for one function.
_MAX_STRUCTURES = 64
# After this many traces that were too long a function is not traced again.
_MAX_TOO_LONG = 3
# A module that was called with more different Python values (numbers, trees of numbers) follows its data.
_MAX_PYTHON_VALUES = 8
# A function whose guard failed more often is recorded op by op.
_MAX_CHANGES = 8


class OpaqueInfo(Protocol):
    """What an opaque function declares about itself."""

    # It accepts a leading batch dimension on arguments of at most this many dimensions; -1: on none.
    in_front: int

    def name_in(self, owner: Any) -> str:
        """The name of such calls in statistics."""

    def guard(self, owner: Any) -> Callable[[], bool] | None:
        """A function that tells whether everything a call depends on is unchanged; None if that cannot be known."""


class OpaqueCall:
    """What tracing found about a function, for one structure of its arguments."""

    __slots__ = (
        "_batched_forms", "_reach", "below", "captured", "captured_flags", "carries", "checks_values", "fits", "holds",
        "in_front", "name", "outs", "over_steps", "owner", "places", "plain", "plain_tuple", "program", "result",
        "row_plans", "steps", "structure", "traced", "views",
    )  # fmt: skip

    def __init__(self, owner: Any, function: Callable[..., Any], structure: Any, in_front: bool, name: str) -> None:
        # Weak, so that this does not keep the owner alive.
        self.owner = weakref.ref(owner)
        self.plain = function
        self.structure = structure
        # True if the function itself accepts a batch dimension in front of each argument.
        self.in_front = in_front
        self.name = name
        self.outs: tuple[Row, ...] = ()
        self.carries: tuple[bool, ...] = ()
        self.captured: tuple[Tensor, ...] = ()
        self.captured_flags: tuple[bool, ...] = ()  # which of them required a gradient when it was traced
        self.result: Any = None
        # Which output each tensor of the result is, if one of them is there twice; else None.
        self.places: tuple[int, ...] | None = None
        # How many ops the trace has, and how many of them are views.
        self.steps = self.views = 0
        self.checks_values = False
        # fits(owner, first argument): a quick check that a call cannot fail.
        self.fits: Any = None
        # The name of an attribute of the owner, if integers fit that are less than that; else None.
        self.below: str | None = None
        # over_steps(owner, rows, states, sizes): many steps of many sequences, if this is a step of a recurrent cell.
        self.over_steps: Callable[..., tuple[Tensor, ...]] | None = None
        self.holds: Callable[[], bool] = _always
        self._batched_forms: dict[Any, Any] = {}
        # What its ops are, as `ragged_signature.py` compares them; ...: not asked yet.
        self.program: Any = ...
        # How groups of calls run natively (`run/row_plan.py`).
        self.row_plans: dict[Any, Any] = {}
        # The trace: its inputs, the captured tensors, their values in the trace, and the results.
        self.traced: tuple[list[Value], list[Tensor], list[Value], list[Value]] = ([], [], [], [])
        self._reach: Array | None = None

    def call(self, tensors: Any) -> Any:
        """Call the function with these tensors as its tensor arguments."""
        args, options = rebuild(self.structure, iter(tensors), iter(()))
        return self.plain(self.owner(), *args, **options)

    def call_flat(self, *tensors: Tensor) -> Any:
        """The same; the outputs as a flat tuple."""
        made: list[Tensor] = []
        flatten(self.call(tensors), made, [])
        return tuple(made if self.places is None else [made[self.places.index(i)] for i in range(len(self.outs))])

    def batched_form(self, flags: tuple[bool, ...]) -> Any:
        """The function for a batch; `flags` tells which tensors have a batch dimension."""
        found = self._batched_forms.get(flags)
        if found is None:
            found = self._batched_forms[flags] = self._fused_form(flags)
        return found

    def _fused_form(self, flags: tuple[bool, ...]) -> QuietFused:
        dims = tuple(0 if flag else None for flag in flags)
        return QuietFused(_named(map_batch(self.call_flat, dims, 0), self.name))

    def traced_over_rows(self, flags: tuple[bool, ...], tensors: list[Tensor], grad: bool) -> Any:
        """A trace of the function for a batch of its own, with the sizes of these tensors; None if there is none."""
        return self._fused_form(flags).find(tensors, grad)

    def as_traced(self, tensors: Sequence[Tensor], flags: tuple[bool, ...], size: int) -> Any:
        """Replay the traced ops one by one: what the function did when it was traced, not what it would do now."""
        leaves, outside, stand_for, values = self.traced
        known: dict[Any, Any] = dict(zip([*leaves, *stand_for], [*tensors, *outside], strict=True))
        batched = dict(zip(leaves, flags, strict=True))
        made = by_ops(tensor_ops, values, known, (), size, batched)
        if True not in flags:
            return tuple(made)
        return tuple([x if batched.get(v) else tensor_ops.expand(x, shape=(size, *x.shape))
                      for v, x in zip(values, made, strict=True)])  # fmt: skip

    def reach(self) -> Array:
        """For each argument and result, whether a gradient of the result reaches the argument."""
        if self._reach is None:
            leaves, values = self.traced[0], self.traced[3]
            self._reach = np.array([reached([v], leaves) for v in values], np.bool_).T
        return self._reach

    def shares_memory(self) -> bool:
        """Whether an output is a view of an argument or of a captured tensor, or such a tensor itself, or has memory in
        common with another output."""
        views_of: dict[Value, list[list[Value]]] = {}
        for value in self.traced[3]:
            path = []
            while value.step.op is not None and (value.step.op.view or value.step.op is STOP):
                path.append(value)
                value = value.step.inputs[0]
            if value.step.op is None:
                return True
            views_of.setdefault(value, []).append(path)
        return any([_overlap(base, paths) for base, paths in views_of.items() if len(paths) > 1])

    def flags_are_exact(self, rows: list[Row]) -> bool:
        """Whether its results require gradients together: if any argument or captured tensor does, all of them do."""
        if not any(self.carries):
            return True
        floats = [i for i, row in enumerate(rows) if row.is_float]
        if any([t._requires_grad for t in self.captured]):
            return self._flags(rows, None) == self.carries
        return len(floats) < 2 or all([self._flags(rows, i) == self.carries for i in floats])

    def _flags(self, rows: list[Row], only: int | None) -> tuple[bool, ...]:
        """Which results require a gradient if one argument (None: no argument) does."""
        executor = ShortTrace(len(rows), STATE.mode)
        leaves = executor.leaves_of(rows)
        device = executor.device = place_of(rows).device
        given = [stand_in(TracedValue(v, device), i == only) for i, v in enumerate(leaves)]
        with changed_mode(executor=executor, grad=True, generator=Generator()):
            made = self.call_flat(*given)
        return tuple([bool(t._requires_grad) and row.is_float for t, row in zip(made, self.outs, strict=True)])

    def trace(self, rows: list[Row], grad: bool, is_users: bool) -> None:
        """Trace the function on such rows; raises NotFusable if that is not possible. A result of the user's code that
        is there twice is one tensor."""
        executor = ShortTrace(len(rows), STATE.mode)
        leaves = executor.leaves_of(rows)
        memory = place_of(rows)
        device = executor.device = memory.device
        stand_ins = [stand_in(TracedValue(v, device), row.is_float) for v, row in zip(leaves, rows, strict=True)]
        # A trace must not advance the random state: the real call draws its own numbers.
        with changed_mode(executor=executor, grad=grad, generator=Generator()):
            try:
                result = self.call(stand_ins)
            finally:
                self.steps, self.views = executor.steps, executor.views
                self.checks_values = executor.checks_values
            made: list[Tensor] = []
            numbers: list[float] = []
            self.result = flatten(result, made, numbers)
            if not made or numbers or not only_tensors(self.result):
                raise NotFusable("it returns something other than tensors")
            if any([t is given for t in made for given in stand_ins]):
                raise NotFusable("it gives back an argument, which must stay the same tensor")
            numbered = {id(t): t for t in made}
            if is_users and len(numbered) < len(made):
                order = list(numbered)
                self.places = tuple([order.index(id(t)) for t in made])
                made = list(numbered.values())
            values = [executor.value(t) for t in made]
        if place_of([*rows, *[row_of_array(t._array) for t in executor.captured]]) is not memory:
            raise NotFusable("it uses tensors of a device that it was given none of")
        self.outs = tuple([row_of(tuple(v.shape), v.dtype, None, memory) for v in values])
        self.carries = tuple([bool(t._requires_grad) and row.is_float for t, row in zip(made, self.outs, strict=True)])
        if any([t._edge is not None for t in executor.captured]):
            raise NotFusable("it uses a tensor with a history that it was not given")
        self.captured = tuple(executor.captured)
        self.captured_flags = tuple([t._requires_grad for t in self.captured])
        self.traced = (leaves, executor.captured, executor.captured_values(), values)
        self.plain_tuple = self.result == (tuple, *[TENSOR] * len(self.places or made))

    def results(self, outputs: tuple[Any, ...]) -> Any:
        """What the function returns, made of its outputs."""
        if self.result is TENSOR:
            return outputs[0]
        places = self.places
        return rebuild(self.result, iter(outputs if places is None else [outputs[i] for i in places]), iter(()))


def _overlap(base: Value, paths: list[list[Value]]) -> bool:
    """Whether some of the views of a tensor, each given by the values on the way to it, have memory in common."""
    arrays: list[Array] = []
    whole = np.empty(base.shape, np.uint8)
    with changed_mode(executor=None, grad=False):
        for path in paths:
            seen = wrap(whole)
            for value in reversed(path):
                op = value.step.op
                if op is not None and op is not STOP:
                    made = apply(op, (seen,), value.step.attrs)
                    seen = made[value.step.outputs.index(value)] if isinstance(made, (tuple, list)) else made
            arrays.append(seen._array)
    return any([np.shares_memory(one, other) for one, other in combinations(arrays, 2)])


def _always() -> bool:
    return True


def _named(function: Any, name: str) -> Any:
    function.__name__ = name
    return function


class _FunctionHistory:
    """What was learnt about one function of one owner."""

    __slots__ = ("changed", "follows_data", "forms", "opaque_calls", "too_long")

    def __init__(self) -> None:
        # (structure, rows …) → OpaqueCall, or None if the function must be recorded op by op.
        self.opaque_calls: dict[Any, OpaqueCall | None] = {}
        # How often its guard failed, and how often its trace was too long.
        self.changed = 0
        self.too_long = 0
        # For each form of arguments: the number of ops of the last trace, the guard of that trace, and the structures
        # that were seen.
        self.forms: dict[Any, tuple[int, Callable[[], bool], set[Any]]] = {}
        # True if it follows its data: then it is recorded op by op.
        self.follows_data = False

    def check_data_dependence(self, form: Any, structure: Any, steps: int, holds: Callable[[], bool]) -> None:
        """Find out whether a module of the user follows its data: a sequence, a tree, word ids.

        It does if the number of ops differs for arguments of one form, or if it is called with ever new Python values.
        Examples of such a module share steps, not whole calls, so it is recorded op by op.
        """
        before, as_before, structures = self.forms.get(form, (steps, holds, set()))
        structures.add(structure)
        self.forms[form] = steps, holds, structures
        if (steps != before and as_before()) or len(structures) > _MAX_PYTHON_VALUES:
            self.follows_data = True
            self.opaque_calls.update(dict.fromkeys(self.opaque_calls))


def _history_of(owner: Any, function: Any) -> _FunctionHistory:
    calls = table_of(owner)
    history: _FunctionHistory | None = calls.get(function)
    if history is None:
        history = calls[function] = _FunctionHistory()
    return history


def flatten_arguments(session: Session, parts: Any, key: list[Any], tensors: list[Tensor], rows: list[Any]) -> None:
    """Append the key of arguments, the tensors among them, and the rows among those."""
    for part in parts:
        if part.__class__ is StandIn:
            key.append(part._handle.row)
            tensors.append(part)
            rows.append(part._handle)
        elif part.__class__ is Tensor:
            if is_shared(part):
                key.append(part)
            else:
                row = row_of_array(part._array)
                key.append(row)
                rows.append(session.row_copies.of(part, row))
            tensors.append(part)
        elif part.__class__ is tuple or part.__class__ is list:
            key.append(part.__class__)
            flatten_arguments(session, part, key, tensors, rows)
            key.append(")")
        elif part is None or part.__class__ in (int, bool, str, float):
            key.append(exact_key(part))
        else:
            raise TypeError


def find_opaque_call(
    session: Session, key: tuple[Any, ...], owner: Any, function: Any, args: Any, options: Any, tensors: list[Tensor],
    info: OpaqueInfo,
) -> Signature:  # fmt: skip
    """The signature of a call: known from an earlier session, or traced now; NOT_OPAQUE if its ops must be recorded."""
    rows = [t._handle.row if t.__class__ is StandIn else row_of_array(t._array) for t in tensors]
    history = _history_of(owner, function)
    # Shared tensors are passed anew at each call, so only their rows are part of this key.
    short = (*[part for part in key[2:] if not isinstance(part, Tensor)], *rows)
    opaque = history.opaque_calls.get(short)
    if opaque is not None and not opaque.holds():
        history.changed += 1
        opaque = None
    elif opaque is not None and opaque.captured_flags != tuple([t._requires_grad for t in opaque.captured]):
        opaque = None
    elif opaque is None and short in history.opaque_calls:
        return NOT_OPAQUE  # type: ignore[no-any-return]
    if opaque is None:
        if len(history.opaque_calls) >= _MAX_STRUCTURES:
            history.opaque_calls.clear()
        opaque = history.opaque_calls[short] = _traced(
            history, owner, function, args, options, rows, key[2] is True, info
        )
    if opaque is None:
        return NOT_OPAQUE  # type: ignore[no-any-return]
    pattern = [t if t.__class__ is Tensor and is_shared(t) else None for t in tensors]
    signature = Signature(
        session, key, opaque.name, opaque, {}, pattern, opaque.outs, opaque.carries, run_opaque, key[2]
    )
    signature.shared_need_grad = signature.differentiable and any(
        [t._requires_grad for t in (*opaque.captured, *signature.shared)]
    )
    if not signature.shared and len(tensors) == 1 + len(opaque.outs):
        signature.over_steps = opaque.over_steps
    signature.shared = (*signature.shared, *opaque.captured)
    for t in signature.shared:
        session.ownership.share(t)
    session.ragged_signatures.join(signature)
    return signature


def _traced(
    history: _FunctionHistory, owner: Any, function: Any, args: Any, options: Any, rows: list[Row], grad: bool,
    info: OpaqueInfo,
) -> OpaqueCall | None:  # fmt: skip
    """Trace such a call; None if it must be recorded op by op."""
    numbers: list[float] = []
    structure = flatten((args, options), [], numbers)
    if numbers or history.follows_data or history.too_long >= _MAX_TOO_LONG or history.changed > _MAX_CHANGES:
        return None
    if isinstance(info, UsersCode) and not info.suits(args):
        return None
    holds = info.guard(owner)
    if holds is None:
        return None
    natural = all(len(row.shape) <= info.in_front for row in rows)
    opaque = OpaqueCall(owner, function, structure, natural, info.name_in(owner))
    is_users = isinstance(info, UsersCode)
    try:
        opaque.trace(rows, grad, is_users)
        if is_users and (opaque.shares_memory() or not opaque.flags_are_exact(rows)):
            return None
        opaque.holds = holds
        fits: Any = getattr(info, "fits", None)
        opaque.fits = None if fits is None else lambda owner, t: fits(owner, t._array)
        opaque.below = getattr(fits, "below", None)
        # A class derived from a cell may compute its steps in another way.
        plain = natural or all([len(row.shape) == 2 and row.shape[0] == 1 for row in rows])
        opaque.over_steps = getattr(info, "steps", None) if plain and "forward" in vars(type(owner)) else None
    except TooLong:
        history.too_long += 1
    except (NotFusable, WayfareError):
        # It reads values or draws random numbers; or the arguments are wrong, and its ops give a better error.
        return None
    if isinstance(info, UsersCode):
        if opaque.steps - opaque.views < info.least_steps:
            return None
        history.check_data_dependence(_form(args, options), structure, opaque.steps, holds)
    return opaque if opaque.steps <= MAX_STEPS and not history.follows_data and holds() else None


def _form(args: Any, options: Any) -> tuple[Any, ...]:
    """Ranks of the tensors and types of the other arguments, without sizes and values."""
    forms = [len(part.shape) if isinstance(part, Tensor) else part.__class__ for part in (*args, *options.values())]
    return (*forms, *options)


class _NotOpaque:
    """Stands for a signature: the function must be recorded op by op."""

    nodes = 0
    groups = 0
    session: Any = None
    record: Any = None

    @property
    def target(self) -> _NotOpaque:
        """Itself, so that `signature.target.holds()` works."""
        return self

    def holds(self) -> bool:
        """There is nothing to check."""
        return True


NOT_OPAQUE: Any = _NotOpaque()


def run_opaque(signature: Signature, size: int, rows: list[Tensor], batched: list[bool], extras: list[Any]) -> Any:
    """Run the function once for all rows."""
    opaque: OpaqueCall = signature.target
    tensors, several = all_inputs(signature, rows, batched)
    if not opaque.holds():
        return opaque.as_traced(tensors, several, size)
    if True not in several:
        return opaque.call_flat(*tensors)
    if opaque.in_front:
        return opaque.call_flat(*[t if b else tensor_ops.expand(t, shape=(size, *t.shape))
                              for t, b in zip(tensors, several, strict=True)])  # fmt: skip
    return opaque.batched_form(several)(*tensors)
