"""Whole calls: a cell, a fused or a compiled function as one call of an example, in place of the many ops inside.

At the first call for a structure of arguments the function is traced on stand-ins to see what comes out. Later calls
only check that what the function depends on is as it was. A group of such calls runs the function once for all rows:
as it stands where it takes a batch in front, else as a fused function of the whole batch.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from wayfare.api.fused import Fused, NotFusable, TracedTensor, TraceExecutor
from wayfare.autograd.vmap import map_batch
from wayfare.batch.alone import alone
from wayfare.batch.automatic import OF_MODULE
from wayfare.batch.kind import Kind, as_of_now, exact, is_shared
from wayfare.batch.lazy import LazyTensor
from wayfare.batch.runners import all_inputs
from wayfare.batch.value import Row, row_of, row_of_array
from wayfare.core.dispatch import apply, tensor_ops
from wayfare.core.errors import WayfareError
from wayfare.core.generator import Generator
from wayfare.core.mode import STATE, changed_mode
from wayfare.core.pytree import TENSOR, flatten, only_tensors, rebuild
from wayfare.core.tensor import Tensor
from wayfare.ir.fuse.record import by_ops
from wayfare.ir.graph import Value as Traced
from wayfare.ir.graph import leaf

if TYPE_CHECKING:
    from wayfare.batch.session import Session

# Structures remembered for one function.
_MOST = 64
# Ops of a function that is taken as one call. A model that goes over a whole sequence has more, and is better taken
# apart: examples of other lengths share its steps, not the whole.
_MOST_STEPS = 120
# How often a function may turn out to be too long before it is no longer tried.
_LONG = 3
# How many Python values (numbers, trees of numbers) a module may be called with before they are taken for data.
_STRUCTURES = 8
# How often what a function depends on may change before it is taken apart into its ops.
_STRIKES = 8


class About(Protocol):
    """What a kind of function says of itself, to be taken as one call."""

    # It takes a batch in front of arguments of so many dimensions at most.
    in_front: int

    def name_in(self, owner: Any) -> str:
        """What such calls are called."""

    def guard(self, owner: Any) -> Callable[[], bool] | None:
        """A function that says whether all that a call depends on is as it is now; None where nobody can tell."""


class Whole:
    """What is known of a function for one structure of its arguments."""

    __slots__ = (
        "_forms", "_traced", "captured", "carries", "checks_values", "fits", "holds", "in_front", "name", "outs",
        "owner", "plain", "plain_tuple", "result", "steps", "structure",
    )  # fmt: skip

    def __init__(self, owner: Any, function: Callable[..., Any], structure: Any, in_front: bool, name: str) -> None:
        # Weak: what is known of a function must not keep it alive.
        self.owner = weakref.ref(owner)
        self.plain = function
        self.structure = structure
        # Does the function itself take a batch in front of each argument?
        self.in_front = in_front
        self.name = name
        self.outs: tuple[Row, ...] = ()
        self.carries: tuple[bool, ...] = ()
        self.captured: tuple[Tensor, ...] = ()
        self.result: Any = None
        self.steps = 0
        self.checks_values = False
        # fits(owner, first argument) says that a call cannot fail, where that can be told at once.
        self.fits: Any = None
        self.holds: Callable[[], bool] = _always
        self._forms: dict[Any, Any] = {}
        # The trace itself: inputs, tensors from outside and what they are in it, results.
        self._traced: tuple[list[Traced], list[Tensor], list[Traced], list[Traced]] = ([], [], [], [])

    def call(self, tensors: Any) -> Any:
        """The function on tensors in the places of its arguments."""
        args, options = rebuild(self.structure, iter(tensors), iter(()))
        return self.plain(self.owner(), *args, **options)

    def listed(self, *tensors: Tensor) -> Any:
        """The same; its results as a tuple."""
        made: list[Tensor] = []
        flatten(self.call(tensors), made, [])
        return tuple(made)

    def form(self, flags: tuple[bool, ...]) -> Any:
        """The function for a whole batch, where `flags` says which tensors have one."""
        found = self._forms.get(flags)
        if found is None:
            dims = tuple(0 if flag else None for flag in flags)
            found = self._forms[flags] = _Quiet(_named(map_batch(self.listed, dims, 0), self.name))
        return found

    def as_traced(self, tensors: Sequence[Tensor], flags: tuple[bool, ...], size: int) -> Any:
        """The ops that were seen, one by one: what the function did, whatever it would do now."""
        leaves, outside, stand_for, values = self._traced
        known: dict[Any, Any] = dict(zip([*leaves, *stand_for], [*tensors, *outside], strict=True))
        batched = dict(zip(leaves, flags, strict=True))
        made = by_ops(tensor_ops, values, known, (), size, batched)
        if True not in flags:
            return tuple(made)
        return tuple([x if batched.get(v) else tensor_ops.expand(x, shape=(size, *x.shape))
                      for v, x in zip(values, made, strict=True)])  # fmt: skip

    def trace(self, rows: list[Row], grad: bool) -> None:
        """See what comes out for such rows; raises NotFusable where it cannot be told."""
        leaves = [leaf("input", i, row.shape, row.dtype) for i, row in enumerate(rows)]
        stand_ins = [TracedTensor(v, row.is_float) for v, row in zip(leaves, rows, strict=True)]
        executor = _Watch(len(leaves), STATE.mode)
        # What a trace draws must not count: it ends there, and the real call draws for itself.
        with changed_mode(executor=executor, grad=grad, generator=Generator()):
            try:
                result = self.call(stand_ins)
            finally:
                self.steps, self.checks_values = executor.steps, executor.checks_values
            made: list[Tensor] = []
            numbers: list[float] = []
            self.result = flatten(result, made, numbers)
            if not made or numbers or not only_tensors(self.result):
                raise NotFusable("it returns something other than tensors")
            if any([t is given for t in made for given in stand_ins]):
                raise NotFusable("it gives back an argument, which must stay the same tensor")
            values = [executor.value(t) for t in made]
        self.outs = tuple([row_of(tuple(v.shape), v.dtype) for v in values])
        self.carries = tuple([bool(t._requires_grad) and row.is_float for t, row in zip(made, self.outs, strict=True)])
        if any([t._edge is not None for t in executor.captured]):
            raise NotFusable("it uses a tensor with a history that it was not given")
        self.captured = tuple(executor.captured)
        self._traced = (leaves, executor.captured, executor.captured_values(), values)
        self.plain_tuple = self.result == (tuple, *[TENSOR] * len(made))


class _Everything(TraceExecutor):
    """Enters all ops: what is computed from weights alone is computed anew at each run, because weights change."""

    def __init__(self, count: int, outer: Any) -> None:
        super().__init__(count, outer)
        self._constants: dict[int, Tensor] = {}

    def apply(self, op: Any, inputs: tuple[Tensor, ...], attrs: dict[str, Any]) -> Any:
        """Enter one op, or compute what depends on nothing."""
        if all([id(t) in self._constants for t in inputs]) and not op.random and "key" not in attrs:
            with changed_mode(executor=None):
                made = apply(op, inputs, attrs)
            for t in made if isinstance(made, tuple) else (made,):
                self._constants[id(t)] = t
            return made
        return self.enter(op, inputs, attrs)


class _Quiet(Fused):
    """A fused function that nobody asked for: where it cannot be fused, its ops run one by one without a word."""

    tracer = _Everything

    def _warn(self, reason: str) -> None:
        pass


class TooLong(NotFusable):
    """A function of more steps than a cell has."""


class _Watch(_Everything):
    """Refuses what belongs to one example but is not among the arguments, and more steps than a cell has."""

    def __init__(self, count: int, outer: Any) -> None:
        super().__init__(count, outer)
        self.steps = 0
        self.checks_values = False

    def apply(self, op: Any, inputs: tuple[Tensor, ...], attrs: dict[str, Any]) -> Any:
        """Enter one op."""
        self.steps += 1
        self.checks_values |= op.checks_values
        if self.steps > _MOST_STEPS:
            raise TooLong("it has too many steps")
        return super().apply(op, inputs, attrs)

    def effect(self, reason: str) -> None:
        """Something that must not be traced: hooks are for what the examples compute, and may count."""
        raise NotFusable(reason)

    def value(self, t: Tensor) -> Traced:
        """What a tensor is in the trace."""
        if t.__class__ is LazyTensor:
            raise NotFusable("it uses a tensor of one example that it was not given")
        return super().value(t)


def _always() -> bool:
    return True


def _named(function: Any, name: str) -> Any:
    function.__name__ = name
    return function


class _Known:
    """What is known of one function of one owner."""

    __slots__ = ("changed", "follows", "forms", "too_long", "wholes")

    def __init__(self) -> None:
        # (structure, rows …) → Whole, or None where the function must be taken apart.
        self.wholes: dict[Any, Whole | None] = {}
        # How often what it depends on has changed, and how often it was too long.
        self.changed = 0
        self.too_long = 0
        # For arguments of one form: how many steps it last had (as long as all is as it was then), and the structures
        # that came.
        self.forms: dict[Any, tuple[int, Callable[[], bool], set[Any]]] = {}
        # Whether it follows its data, and is taken apart.
        self.follows = False

    def notice(self, form: Any, structure: Any, steps: int, holds: Callable[[], bool]) -> None:
        """See whether a module of the user's follows its data: a sequence, a tree, numbers of words.

        It does if it has more steps for other data of one form, or is called with ever new Python values. Nobody asked
        for it to be one call, and what examples share are its steps, not the whole.
        """
        before, as_before, structures = self.forms.get(form, (steps, holds, set()))
        structures.add(structure)
        self.forms[form] = steps, holds, structures
        if (steps != before and as_before()) or len(structures) > _STRUCTURES:
            self.follows = True
            self.wholes.update(dict.fromkeys(self.wholes))


# Where an owner keeps what is known of its calls.
_KEPT = "_wayfare_calls"


class _Calls(dict[Any, _Known]):
    """function → what is known of it. The owner itself keeps it, because guards hold the owner: so both are freed.

    It is nothing that a copy of the owner, or a file, would take along.
    """

    def __init__(self, owner: Any = None) -> None:
        super().__init__()
        self._owner = None if owner is None else weakref.ref(owner)

    def are_of(self, owner: Any) -> bool:
        """Whose are they? A shallow copy of a module has them in its dictionary, too."""
        return self._owner is not None and self._owner() is owner

    def __deepcopy__(self, _memo: Any) -> _Calls:
        return _Calls()

    def __copy__(self) -> _Calls:
        return _Calls()

    def __reduce__(self) -> Any:
        return _Calls, ()


def _known_of(owner: Any, function: Any) -> _Known:
    calls = owner.__dict__.get(_KEPT)
    if calls is None or not calls.are_of(owner):
        calls = owner.__dict__[_KEPT] = _Calls(owner)
    known: _Known | None = calls.get(function)
    if known is None:
        known = calls[function] = _Known()
    return known


def take_apart(parts: Any, key: list[Any], tensors: list[Tensor], rows: list[Any]) -> None:
    """The key of arguments, the tensors among them, and what each example has of its own."""
    for part in parts:
        if part.__class__ is LazyTensor:
            key.append(part._lazy.row)
            tensors.append(part)
            rows.append(part._lazy)
        elif part.__class__ is Tensor:
            if is_shared(part):
                key.append(part)
            else:
                key.append(row_of_array(part._array))
                rows.append(part if alone(part) else as_of_now(part))
            tensors.append(part)
        elif part.__class__ is tuple or part.__class__ is list:
            key.append(part.__class__)
            take_apart(part, key, tensors, rows)
            key.append(")")
        elif part is None or part.__class__ in (int, bool, str, float):
            key.append(exact(part))
        else:
            raise TypeError


def find_whole(
    session: Session, key: tuple[Any, ...], owner: Any, function: Any, args: Any, options: Any, tensors: list[Tensor],
    about: About,
) -> Kind:  # fmt: skip
    """The kind of a call: known from an earlier session, or traced now; NOT_WHOLE if it must be taken apart."""
    rows = [t._lazy.row if t.__class__ is LazyTensor else row_of_array(t._array) for t in tensors]
    known = _known_of(owner, function)
    # Shared tensors are handed over anew at each call: only what they look like matters.
    short = (*[part for part in key[2:] if not isinstance(part, Tensor)], *rows)
    whole = known.wholes.get(short)
    if whole is not None and not whole.holds():
        known.changed += 1
        whole = None
    elif whole is None and short in known.wholes:
        return NOT_WHOLE  # type: ignore[no-any-return]
    if whole is None:
        if len(known.wholes) >= _MOST:
            known.wholes.clear()
        whole = known.wholes[short] = _traced(known, owner, function, args, options, rows, key[2] is True, about)
    if whole is None:
        return NOT_WHOLE  # type: ignore[no-any-return]
    pattern = [t if t.__class__ is Tensor and is_shared(t) else None for t in tensors]
    kind = Kind(session, key, whole.name, whole, {}, pattern, whole.outs, whole.carries, run_whole, key[2])
    kind.leaf_needs = kind.differentiable and any([t._requires_grad for t in (*whole.captured, *kind.leaves)])
    kind.leaves = (*kind.leaves, *whole.captured)
    return kind


def _traced(
    known: _Known, owner: Any, function: Any, args: Any, options: Any, rows: list[Row], grad: bool, about: About
) -> Whole | None:
    """What such a call comes to; None where it must be taken apart."""
    numbers: list[float] = []
    structure = flatten((args, options), [], numbers)
    if numbers or known.follows or known.too_long >= _LONG or known.changed > _STRIKES:
        return None
    holds = about.guard(owner)
    if holds is None:
        return None
    natural = all(len(row.shape) <= about.in_front for row in rows)
    whole = Whole(owner, function, structure, natural, about.name_in(owner))
    try:
        whole.trace(rows, grad)
        whole.holds = holds
        whole.fits = getattr(about, "fits", None)
    except TooLong:
        known.too_long += 1
    except (NotFusable, WayfareError):
        # It reads values or draws numbers; or the arguments do not fit, which its ops will say better.
        return None
    if about is OF_MODULE:
        known.notice(_form(args, options), structure, whole.steps, holds)
    return whole if whole.steps <= _MOST_STEPS and not known.follows and holds() else None


def _form(args: Any, options: Any) -> tuple[Any, ...]:
    """The kinds of the arguments, without sizes and values."""
    kinds = [len(part.shape) if isinstance(part, Tensor) else part.__class__ for part in (*args, *options.values())]
    return (*kinds, *options)


class _NotWhole:
    """In the place of a kind: the function is taken apart into its ops."""

    nodes = 0
    groups = 0
    session: Any = None
    record: Any = None

    @property
    def what(self) -> _NotWhole:
        """Itself: it holds for good."""
        return self

    def holds(self) -> bool:
        """Nothing needs to be looked at again."""
        return True


NOT_WHOLE: Any = _NotWhole()


def run_whole(kind: Kind, size: int, rows: list[Tensor], batched: list[bool], extras: list[Any]) -> Any:
    """The function once for all rows."""
    whole: Whole = kind.what
    tensors, several = all_inputs(kind, rows, batched)
    if not whole.holds():
        return whole.as_traced(tensors, several, size)
    if True not in several:
        return whole.listed(*tensors)
    if whole.in_front:
        return whole.listed(*[t if b else tensor_ops.expand(t, shape=(size, *t.shape))
                              for t, b in zip(tensors, several, strict=True)])  # fmt: skip
    return whole.form(several)(*tensors)

