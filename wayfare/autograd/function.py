"""`Function`: a user's own forward and backward, as one node of the graph."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from wayfare.autograd.kept import FREED
from wayfare.autograd.leaves import recording_as
from wayfare.autograd.vmap import close_again, lay_open, outside_all
from wayfare.core.device import BACKENDS, as_array, zeros_on_device_of
from wayfare.core.dispatch import new_node, with_history
from wayfare.core.errors import (
    ArgumentTypeError,
    GraphError,
    InPlaceError,
    NotWrittenError,
    ShapeError,
    WrongKindError,
)
from wayfare.core.inplace import check_history, rewrite
from wayfare.core.mode import UNUSUAL, changed_mode, current, executor
from wayfare.core.op import Op, gradient_only
from wayfare.core.refusals import refuse_stale
from wayfare.core.spec import FLOAT_KINDS
from wayfare.core.tensor import Tensor, on_device_of, wrap
from wayfare.core.walk import split_edge
from wayfare.core.write_clock import note_write, tick, version, version_at

F = TypeVar("F", bound=Callable[..., Any])


class _Saved:
    """A saved tensor: its array, when it was saved, and its edge in the graph. (Not the tensor: for an output that
    would be a reference cycle.)"""

    __slots__ = ("array", "edge", "output", "packed", "time")

    def __init__(self, tensor: Tensor, output: int | None) -> None:
        self.array: Any = tensor._array
        self.edge = None if output is not None else (tensor._edge or (tensor if tensor._requires_grad else None))
        self.output = output
        self.time = tick()
        self.packed: tuple[Any, Callable[[Any], Any]] | None = None
        hooks = current().saved_hooks
        if hooks is not None:
            self.packed = (hooks[0](wrap(self.array)), hooks[1])
            self.array = None

    def tensor(self, node: Any, name: str) -> Tensor:
        """The saved tensor, with its history."""
        if self.packed is not None:
            array = self.packed[1](self.packed[0])._array
        else:
            array = self.array
            now, then = version(array), version_at(array, self.time)
            if now != then:
                raise saved_and_written(name, now, then)
        edge = self.edge
        if self.output is not None and node is not None:
            edge = (node, self.output) if node.outs is not None else node
        return with_history(array, edge)


def saved_and_written(name: str, now: int, then: int) -> InPlaceError:
    """The error for a saved tensor that was written since."""
    return InPlaceError(f"{name}: a tensor saved for backward was written in place since: it is at version {now}, "
                        f"expected version {then}", fix="Save a .clone() of it.")  # fmt: skip


class FunctionCtx:
    """The context that forward fills for backward; any attribute may be set on it as well."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._to_save: tuple[Tensor | None, ...] = ()
        self._saved: tuple[_Saved | None, ...] | None = None
        self._node: Any = None
        # Where the arguments were, if a device other than the CPU is in use.
        self._places: list[Any] | None = None
        self._dirty: tuple[Tensor, ...] = ()
        self._constant: tuple[Tensor, ...] = ()
        self._materialize = True
        self._looked = False  # has `saved_tensors` been read since this was last reset?
        self.needs_input_grad: tuple[bool, ...] = ()

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keep tensors for backward, where they are `ctx.saved_tensors`."""
        for t in tensors:
            if t is not None and not isinstance(t, Tensor):
                raise ArgumentTypeError(f"{self._name}: save_for_backward takes tensors, not {type(t).__name__}",
                                        fix="Keep other things as attributes: ctx.n = n.")  # fmt: skip
        self._to_save = tensors

    def mark_dirty(self, *tensors: Tensor) -> None:
        """These inputs were written in place by forward (and must be returned by it)."""
        self._dirty = tensors

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """These outputs carry no gradient."""
        self._constant = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """With False, backward gets None (not zeros) for outputs that were not used."""
        self._materialize = value

    @property
    def saved_tensors(self) -> tuple[Tensor | None, ...]:
        """What `save_for_backward` kept."""
        if self._saved is None:
            return self._to_save
        self._looked = True
        node = self._node() if self._node is not None else None
        if node is not None and node.kept is None:
            raise GraphError(f"{self._name}: the saved tensors were freed by an earlier backward",
                             fix=FREED)  # fmt: skip
        return tuple(None if s is None else s.tensor(node, self._name) for s in self._saved)


class Function:
    """Base of custom ops: write `forward(ctx, *args)` and `backward(ctx, *grads)` as static methods, and call
    `MyFunction.apply(...)`. As in PyTorch, `forward(*args)` with a separate `setup_context(ctx, inputs, output)` works
    too, and `backward` is itself differentiable if it is made of tensor ops."""

    @staticmethod
    def forward(*args: Any, **options: Any) -> Any:
        """Compute the outputs. To be written by the subclass."""
        raise NotWrittenError("Function: the subclass has no forward", fix="Write a static method forward(ctx, ...).")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save what backward needs, when forward has no ctx."""

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Give one gradient per argument of forward. To be written by the subclass."""
        raise NotWrittenError("Function: the subclass has no backward", fix="Write a static method backward(ctx, ...).")

    @classmethod
    def apply(cls, *args: Any, **named: Any) -> Any:
        """Run forward and record this function as one node. `backward` gives a gradient for each parameter of forward,
        up to the last that is given."""
        if named:
            args = _in_order(cls, args, named)
        return executor().custom(cls, args, _run) if UNUSUAL else _run(cls, args)


def _in_order(cls: type[Function], args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
    """All arguments by position, also those given by name."""
    with_ctx = cls.setup_context is Function.setup_context
    try:
        bound = inspect.signature(cls.forward).bind(*((None,) if with_ctx else ()), *args, **named)
    except TypeError as error:
        raise ArgumentTypeError(f"{cls.__name__}.apply: {error}") from None
    bound.apply_defaults()
    if bound.kwargs:
        raise ArgumentTypeError(f"{cls.__name__}.apply: {', '.join(bound.kwargs)} can only be given by name",
                                fix="Gradients go by place: take out the * in forward's arguments.")  # fmt: skip
    return bound.args[with_ctx:]


def _run(cls: type[Function], args: tuple[Any, ...]) -> Any:
    """Run forward on ordinary tensors, and record the node."""
    ctx = FunctionCtx(cls.__name__)
    tensors = [a if isinstance(a, Tensor) else None for a in args]
    ctx.needs_input_grad = tuple(t is not None and t.requires_grad for t in tensors)
    record = current().grad and any(ctx.needs_input_grad)
    if record:
        # Before forward runs, because its own writes are allowed.
        for t in tensors:
            if t is not None and t._extras is not None and "handed_through" in t._extras:
                refuse_stale(t, cls.__name__)
    with changed_mode(grad=False):
        if cls.setup_context is not Function.setup_context:
            result = cls.forward(*args)
            cls.setup_context(ctx, args, result)
        else:
            result = cls.forward(ctx, *args)
    several = isinstance(result, (tuple, list))
    given = list(result) if several else [result]
    outputs = [_output(o, tensors, ctx) for o in given]
    if not record:
        ctx._saved = ()
        return tuple(outputs) if several else outputs[0]
    _record(cls, ctx, tensors, given, outputs)
    if UNUSUAL:
        executor().custom_recorded(cls.__name__)
    return tuple(outputs) if several else outputs[0]


def _output(value: Any, inputs: list[Tensor | None], ctx: FunctionCtx) -> Any:
    """An output that is one of the inputs, returned unchanged, becomes a new tensor."""
    if isinstance(value, Tensor) and any(value is t for t in inputs) and not any(value is t for t in ctx._dirty):
        return value.detach()
    return value


def _check_dirty(ctx: FunctionCtx, inputs: list[Tensor | None], outputs: list[Any]) -> None:
    for t in ctx._dirty:
        if not _is_in(t, outputs):
            raise GraphError(f"{ctx._name}: an input marked dirty was not returned by forward",
                             fix="Return every tensor that is written in place.")  # fmt: skip
        if _is_in(t, inputs):
            check_history(t, ctx._name)
        note_write(t._array)
        executor().written_past_ops()


def _record(
    cls: type[Function], ctx: FunctionCtx, inputs: list[Tensor | None], given: list[Any], outputs: list[Any]
) -> None:
    """Record the node of a call; `given` is what forward returned, `outputs` what the caller gets."""
    _check_dirty(ctx, inputs, outputs)
    node = new_node(_op_of(cls), tuple(t if t is not None else _NOTHING for t in inputs), {})
    node.kept = (ctx,)
    if BACKENDS:
        ctx._places = [None if t is None else t.device for t in inputs]
    live = [o for o in outputs if isinstance(o, Tensor)]
    ctx._saved = tuple(
        None if t is None else _Saved(t, _position(t, live) if _is_in(t, ctx._dirty) or not _is_in(t, inputs) else None)
        for t in ctx._to_save
    )
    ctx._to_save = ()
    ctx._node = weakref.ref(node)
    shapes = tuple((o._array.shape, o._array.dtype) for o in live)
    if len(live) != 1:
        node.more().outs = shapes
    node.shape, node.dtype = shapes[0] if shapes else ((), np.dtype("float32"))
    returned = [o for o in given if isinstance(o, Tensor)]
    for number, (out, value) in enumerate(zip(live, returned, strict=True)):
        if out._array.dtype.kind not in FLOAT_KINDS or _is_in(value, ctx._constant):
            continue
        history = wrap(out._array)
        history._edge = node if len(live) == 1 else (node, number)
        history._requires_grad = True
        if _is_in(out, ctx._dirty):
            rewrite(out, history)
        else:
            shows = out is not value or out._view is not None
            out._edge, out._requires_grad, out._view = history._edge, True, None
            if shows:
                out._more()["handed_through"] = (ctx._name, node.number)


def _position(tensor: Any, others: list[Tensor]) -> int | None:
    return next((i for i, other in enumerate(others) if other is tensor), None)


def _is_in(tensor: Any, others: Any) -> bool:
    return any(tensor is other for other in others)


_NOTHING = wrap(np.zeros(()))


_RECORDS: weakref.WeakKeyDictionary[type[Function], Op] = weakref.WeakKeyDictionary()


def _op_of(cls: type[Function]) -> Op:
    """The record of a custom Function, made once for each class."""
    found = _RECORDS.get(cls)
    if found is None:
        found = _RECORDS[cls] = _make_record(cls)
    return found


def class_of(op: Op) -> type[Function] | None:
    """The custom Function of a record."""
    return next((cls for cls, record in _RECORDS.items() if record is op), None)


def _make_record(cls: type[Function]) -> Op:
    def rule(m: Any, needs: tuple[bool, ...], g: Any, ctx: Any) -> list[Any]:
        return _run_backward(cls, ctx, needs, g, m.differentiable)

    return gradient_only(cls.__name__, rule, cls.__name__ + "Backward")


def _run_backward(cls: type[Function], ctx: FunctionCtx, needs: tuple[bool, ...], g: Any, create: bool) -> list[Any]:
    node = ctx._node()
    several = node is not None and node.outs is not None
    outs = node.outs if several else ((None, None),)
    given = g if several else (g,)
    one = next((x for x in given if x is not None), None)
    grads = [_grad_of_output(ctx, x, one, *out) for x, out in zip(given, outs, strict=True)]
    with recording_as(create):
        result = cls.backward(ctx, *grads)
    found = list(result) if isinstance(result, (tuple, list)) else [result]
    while len(found) > len(needs) and found[-1] is None:
        found.pop()
    if len(found) != len(needs):
        raise GraphError(f"{cls.__name__}: backward returned {len(found)} gradients for {len(needs)} arguments",
                         fix="Return one per argument; None where there is none.")  # fmt: skip
    if ctx._places is not None:
        _check_places(cls, ctx._places, found)
    return [_checked(cls, node, i, x, create) if wanted else None
            for i, (x, wanted) in enumerate(zip(found, needs, strict=True))]  # fmt: skip


def _grad_of_output(ctx: FunctionCtx, g: Any, other: Any, shape: Any, dtype: Any) -> Tensor | None:
    """The gradient of one output for backward; if there is none, zeros on the device of another one, or None without
    materialize_grads."""
    if g is None:
        if not ctx._materialize:
            return None
        if isinstance(other, Tensor):
            return on_device_of(other, np.zeros(shape, dtype))
        return wrap(zeros_on_device_of(other, shape, dtype))
    return g if isinstance(g, Tensor) else wrap(as_array(g))


def _check_places(cls: type[Function], places: list[Any], found: list[Any]) -> None:
    """Refuse a gradient that is not where its argument was."""
    for position, (g, place) in enumerate(zip(found, places, strict=False)):
        if isinstance(g, Tensor) and place is not None and g.device != place:
            raise GraphError(f"{cls.__name__}: backward returned a gradient on {g.device} for argument {position}, "
                             f"which is on {place}", fix=f"Move it with .to('{place}').")  # fmt: skip


def _checked(cls: type[Function], node: Any, position: int, g: Any, create: bool) -> Any:
    if g is None:
        return None
    if not isinstance(g, Tensor):
        raise WrongKindError(f"{cls.__name__}: backward must return tensors or None, not {type(g).__name__}")
    edge = node.edges[position]
    target, number = split_edge(edge)
    spec = target.spec if isinstance(target, Tensor) else target.specs[number]
    if g.shape != spec.shape:
        try:
            fits = np.broadcast_shapes(g.shape, spec.shape) == tuple(g.shape)
        except ValueError:
            fits = False
        if not fits:
            raise ShapeError(f"{cls.__name__}: backward returned {g.spec} as gradient of argument {position}, which is "
                             f"{spec}")  # fmt: skip
        g = g.sum_to_size(spec.shape)
    if g.dtype is not spec.dtype:
        g = g.to(spec.dtype)
    return g if create else executor().own_gradient(g)


def once_differentiable(function: F) -> F:
    """Decorator for a `backward` that cannot itself be differentiated: trying to is an error, not a silent zero."""

    @functools.wraps(function)
    def call(ctx: Any, *grads: Any) -> Any:
        create = current().grad
        with changed_mode(grad=False):
            result = function(ctx, *grads)
        if not create:
            return result
        several = isinstance(result, (tuple, list))
        trigger = wrap(np.zeros(())).requires_grad_()
        marked = [_marked(g, trigger) if isinstance(g, Tensor) else g for g in (result if several else (result,))]
        return tuple(marked) if several else marked[0]

    return call  # type: ignore[return-value]


def _marked(g: Tensor, trigger: Tensor) -> Tensor:
    base, levels = lay_open(g)
    with outside_all():
        return close_again(_DifferentiatedTwice.apply(base, trigger), levels)


class _DifferentiatedTwice(Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, trigger: Tensor) -> Tensor:
        return value.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise GraphError("backward: this gradient was computed by a function marked once_differentiable",
                         fix="Take off the decorator and write its backward in tensor ops.")  # fmt: skip
