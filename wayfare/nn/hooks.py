"""What runs around a module's forward and backward: hooks, and how a call with hooks goes.

A module without hooks has none of this: it calls `forward` and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from wayfare.autograd.function import Function
from wayfare.core.errors import ArgumentTypeError, WayfareError
from wayfare.core.mode import STATE, UNUSUAL, Watcher, executor, watchers
from wayfare.core.native import in_front_of_calls
from wayfare.core.node import Handle, StructureHandle
from wayfare.core.structure_epoch import structure_changed
from wayfare.core.tensor import Tensor

if TYPE_CHECKING:
    from wayfare.nn.module import Module

Hook = Callable[..., Any]
F = TypeVar("F", bound=Hook)


class Hooks:
    """The hooks of one module, each kind in the order in which they run."""

    __slots__ = ("backward", "backward_pre", "forward", "forward_pre")

    def __init__(self) -> None:
        # A forward hook is kept with how to call it: with the keyword arguments, and after an error too.
        self.forward_pre: dict[int, tuple[Hook, bool]] = {}
        self.forward: dict[int, tuple[Hook, bool, bool]] = {}
        self.backward_pre: dict[int, Hook] = {}
        self.backward: dict[int, Hook] = {}

    def __bool__(self) -> bool:
        return bool(self.forward_pre or self.forward or self.backward or self.backward_pre)


def add(hooks: dict[int, Any], entry: Any, prepend: bool) -> Handle:
    """Enter a hook as the last or the first of its kind. The handle takes it out again."""
    hook = entry[0] if isinstance(entry, tuple) else entry
    if not callable(hook):
        raise ArgumentTypeError(f"a hook must be a function, not {type(hook).__name__}")
    before = list(hooks.items())
    handle = StructureHandle(hooks, entry)
    if prepend:
        for key, kept in before:
            del hooks[key]
            hooks[key] = kept
        structure_changed()
    return handle


def as_one(module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call without hooks that automatic batching takes as one; NotImplemented where `forward` must run."""
    mode = STATE.mode
    if mode is None or mode.plain_calls:
        return NotImplemented
    if mode.watchers:
        return _watched(mode.watchers, module, args, kwargs)
    return mode.executor.module_call(module, args, kwargs)


as_one = in_front_of_calls(as_one, "module")


def in_front_of_call(function: F) -> F:
    """`Module.__call__` with the native one in front, which knows the calls that automatic batching takes as one."""
    return in_front_of_calls(function, "call", name_the_way)


def _watched(watching: tuple[Watcher, ...], module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call without hooks, with a watcher."""
    for watcher in watching:
        watcher.entered(module)
    try:
        made = executor().module_call(module, args, kwargs)
        return module.forward(*args, **kwargs) if made is NotImplemented else made
    finally:
        for watcher in watching:
            watcher.left(module)


def call(module: Module, hooks: Hooks, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`module.forward(*args, **kwargs)` with its hooks around it."""
    if not hooks:
        # All were taken away again, so it is a module without hooks, also for automatic batching.
        made = as_one(module, args, kwargs) if UNUSUAL else NotImplemented
        return module.forward(*args, **kwargs) if made is NotImplemented else made
    watching = watchers() if UNUSUAL else ()
    if not watching:
        return _with_hooks(module, hooks, args, kwargs)
    for watcher in watching:
        watcher.entered(module)
    try:
        return _with_hooks(module, hooks, args, kwargs)
    finally:
        for watcher in watching:
            watcher.left(module)


def _with_hooks(module: Module, hooks: Hooks, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if UNUSUAL:
        executor().effect("a module inside it has hooks")
    for hook, with_kwargs in list(hooks.forward_pre.values()):
        args, kwargs = _before(module, hook, with_kwargs, args, kwargs)
    watch = _BackwardWatch(module, hooks) if hooks.backward or hooks.backward_pre else None
    if watch is not None:
        args = watch.inputs(args)
    done: set[Hook] = set()
    try:
        result = module.forward(*args, **kwargs)
        for hook, with_kwargs, _ in list(hooks.forward.values()):
            done.add(hook)
            given = hook(module, args, kwargs, result) if with_kwargs else hook(module, args, result)
            result = result if given is None else given
    except Exception:
        for hook, with_kwargs, always in list(hooks.forward.values()):
            if always and hook not in done:
                _ = hook(module, args, kwargs, None) if with_kwargs else hook(module, args, None)
        raise
    return result if watch is None else watch.outputs(result)


def _before(
    module: Module, hook: Hook, with_kwargs: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments after a pre-hook has seen them, and maybe given others."""
    if not with_kwargs:
        given = hook(module, args)
        if given is None:
            return args, kwargs
        return given if isinstance(given, tuple) else (given,), kwargs
    given = hook(module, args, kwargs)
    if given is None:
        return args, kwargs
    if not (isinstance(given, tuple) and len(given) == 2):
        raise ArgumentTypeError("a forward pre-hook with kwargs must return None or (args, kwargs), "
                                f"not {type(given).__name__}")  # fmt: skip
    return given


class _Crossing(Function):
    """Tensors pass through unchanged; their gradients are shown on the way back, all at once."""

    @staticmethod
    def forward(ctx: Any, seen: Callable[[tuple[Any, ...]], Any], *tensors: Tensor) -> tuple[Tensor, ...]:
        """The same values."""
        ctx.seen = seen
        ctx.set_materialize_grads(False)
        return tuple(t.view_as(t) for t in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        """The gradients, or what a hook put in their place."""
        replaced = ctx.seen(grads)
        return (None, *(grads if replaced is None else replaced))


class _BackwardWatch:
    """One call of a module with backward hooks: they get the gradients of its outputs and of its inputs."""

    def __init__(self, module: Module, hooks: Hooks) -> None:
        self._module = module
        self._hooks = hooks
        self._grad_output: tuple[Any, ...] = ()
        self._places: list[int] = []
        self._count = 0

    def inputs(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments, their tensors led through a crossing."""
        self._count = len(args)
        crossed, self._places = _cross(args, self._leave)
        return crossed

    def outputs(self, result: Any) -> Any:
        """The result, its tensors led through a crossing."""
        if isinstance(result, Tensor):
            return _cross((result,), self._enter)[0][0]
        if isinstance(result, (tuple, list)):
            crossed, _ = _cross(tuple(result), self._enter)
            if hasattr(result, "_fields"):
                return type(result)(*crossed)
            return type(result)(crossed)
        return result

    def _enter(self, grads: tuple[Any, ...]) -> tuple[Any, ...]:
        """The gradients of the outputs are there."""
        for hook in list(self._hooks.backward_pre.values()):
            given = hook(self._module, grads)
            if given is not None:
                grads = given if isinstance(given, tuple) else (given,)
        self._grad_output = grads
        if not self._places:  # No input requires a gradient, so there are no others.
            self._run_hooks((None,) * self._count)
        return grads

    def _leave(self, grads: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """The gradients of the inputs are there."""
        by_place: list[Any] = [None] * self._count
        for place, grad in zip(self._places, grads, strict=True):
            by_place[place] = grad
        replaced = self._run_hooks(tuple(by_place))
        return None if replaced is None else tuple(replaced[place] for place in self._places)

    def _run_hooks(self, grad_input: tuple[Any, ...]) -> tuple[Any, ...] | None:
        replaced = None
        for hook in list(self._hooks.backward.values()):
            given = hook(self._module, grad_input, self._grad_output)
            if given is not None:
                replaced = grad_input = given if isinstance(given, tuple) else (given,)
        return replaced


def _cross(values: tuple[Any, ...], seen: Callable[[tuple[Any, ...]], Any]) -> tuple[tuple[Any, ...], list[int]]:
    """The values with those tensors that require a gradient led through one crossing, and which those were."""
    places = [i for i, value in enumerate(values) if isinstance(value, Tensor) and value.requires_grad]
    if not places:
        return values, places
    crossed = list(values)
    for place, tensor in zip(places, _Crossing.apply(seen, *(values[i] for i in places)), strict=True):
        crossed[place] = tensor
    return tuple(crossed), places


def name_the_way(module: Module, error: BaseException) -> None:
    """Add this module to the path of an error, so that the error can name the layer."""
    if not isinstance(error, WayfareError):
        return
    inner = error.module
    if inner is None:
        text = repr(module)
        error.came_from(module, text if "\n" not in text else type(module).__name__, "")
    elif inner is not module:
        path = next((path for path, inside in module.named_modules() if inside is inner), type(inner).__name__)
        error.came_from(module, "", path)
