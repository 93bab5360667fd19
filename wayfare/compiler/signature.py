"""The signature of a call: structure and Python values of the arguments, and shapes, strides and dtypes of the tensors.

Calls with equal signatures can be answered by the same recording, as long as its guards hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_
from typing import Any

from wayfare.compiler.record.effects import Variable, values_of
from wayfare.compiler.record.overlap import relations
from wayfare.compiler.structure import OBJECT, Opaque, take_apart
from wayfare.core.autocast import DEFAULTS as AUTOCAST_DEFAULTS
from wayfare.core.buffer_pool import owns_memory
from wayfare.core.device import BACKENDS, CPU, default_device, memory_key
from wayfare.core.mode import Mode
from wayfare.core.spec import default_dtype
from wayfare.core.tensor import Tensor


class Signature:
    """The signature of one call (`key`), and the tensors and objects among its arguments.

    `objects` are the arguments that the key contains by identity.
    """

    __slots__ = ("_args", "_own", "_method", "_options", "key", "objects", "tensors")

    def __init__(
        self, args: tuple[Any, ...], options: dict[str, Any], mode: Mode | None, method: bool,
        states: Sequence[Variable] = (),
    ) -> None:  # fmt: skip
        self._args, self._options, self._method = args, options, method
        self.tensors: list[Tensor] = []
        self.objects: list[Any] = []
        shape = self._take_apart()
        self._own = len(self.tensors)
        held: Any = None
        if states:
            held = values_of(states, lambda value: take_apart(value, self.tensors, self.objects))
        self.key: Any = (shape, state_of(mode), *_layouts(self.tensors, self.objects), held)
        hash(self.key)

    def _take_apart(self) -> Any:
        args, options, tensors, objects = self._args, self._options, self.tensors, self.objects
        if not options and all([a.__class__ is Tensor for a in args]):
            tensors += args
            return len(args)
        own: tuple[Any, ...] = ()
        if self._method and args and not isinstance(args[0], Tensor):
            # `self` of a method is compared by identity, whatever its type, and its contents are guarded.
            objects.append(args[0])
            own, args = ((args[0].__class__, OBJECT, id(args[0])),), args[1:]
        kind, *parts = take_apart(args, tensors, objects)
        return (kind, *own, *parts), take_apart(options, tensors, objects) if options else None

    def has_changed(self) -> bool:
        """Did the call change its arguments, or the layout of a tensor among them?"""
        try:
            now = Signature(self._args, self._options, None, self._method)
            shape, _, _, layouts, _ = now.key
        except (Opaque, TypeError):
            return True
        same = len(now.tensors) == self._own and all(map(is_, now.tensors, self.tensors))
        return bool(not same or shape != self.key[0] or layouts != self.key[3][: self._own])

    @property
    def containers(self) -> list[int]:
        """The identities of the lists and dictionaries among the arguments."""
        found: list[int] = []
        stack: list[Any] = [self._args, self._options]
        while stack:
            value = stack.pop()
            if isinstance(value, (list, dict)):
                found.append(id(value))
            if isinstance(value, (list, tuple, dict)):
                stack.extend(value.values() if isinstance(value, dict) else value)
        return found


def state_of(mode: Mode | None) -> Any:
    """The modes that a recording depends on: grad mode, inference mode, default dtype, autocast and its defaults, and
    the default device."""
    device = default_device() if BACKENDS else CPU
    if mode is None:
        return True, False, default_dtype(), None, AUTOCAST_DEFAULTS.key, device
    autocast = None if mode.autocast is None else mode.autocast.key
    return mode.grad, mode.inference, default_dtype(), autocast, AUTOCAST_DEFAULTS.key, device


def _layouts(tensors: Sequence[Tensor], objects: list[Any]) -> tuple[Any, Any]:
    """How the tensors overlap, and for each its shape, strides, dtype, flags and hooks."""
    layouts = []
    views = 0
    for t in tensors:
        if t._view is not None:
            t._renew()
        a = t._array
        views += not owns_memory(a)
        hooks = _more_of(t, objects) if t._extras else None
        layouts.append((a.shape, a.strides, a.dtype.num, t._requires_grad, t._edge is None, memory_key(a), hooks))
    sharing: Any = None
    if len(tensors) > 1 and (views or len({id(t._array) for t in tensors}) < len(tensors)):
        sharing = relations(tensors) or None
    return sharing, tuple(layouts)


def is_plain(t: Tensor) -> bool:
    """Has a tensor no hooks, and was it not made in inference mode?"""
    extras = t._extras or {}
    return not (extras.get("hooks") or extras.get("post_hooks") or extras.get("inference"))


def _more_of(t: Tensor, objects: list[Any]) -> Any:
    """The hooks of a leaf, by identity (they are guarded like other functions), and whether it is an inference
    tensor."""
    if is_plain(t):
        return None
    extras = t._extras or {}
    found = [hook for kind in ("hooks", "post_hooks") for hook in (extras.get(kind) or {}).values()]
    objects += found
    return bool(extras.get("inference")), *[id(hook) for hook in found]
