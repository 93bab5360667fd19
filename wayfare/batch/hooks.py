"""Does a function put hooks on what it computes? Then examples must have no node in common.

What is computed from weights alone is computed once for all examples. A hook on it, or its gradient if that is to be
kept, is one example's own: such functions are told by the names in their code, and in the code of what they name.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from typing import Any

from wayfare.batch.pure import is_ours
from wayfare.compiler.captures.names import content_of
from wayfare.nn.module import Module

_HOOKS = frozenset({"register_hook", "retain_grad", "register_prehook"})
_LOOKED_INTO = (functools.partial, types.MethodType, types.FunctionType, Module)
# Functions that are looked into, at the most.
_MOST = 200


def frame_puts_hooks(frame: types.FrameType | None) -> bool:
    """The same of the code of a frame, and of what it names."""
    if frame is None:
        return False
    named = [*frame.f_locals.values(), *[frame.f_globals.get(name) for name in frame.f_code.co_names]]
    return any([not _HOOKS.isdisjoint(code.co_names) for code in codes_in(frame.f_code)]) or puts_hooks(*named)


def puts_hooks(*functions: Any) -> bool:
    """Does a function, or one that it names, put hooks on tensors or keep their gradients?"""
    seen: set[int] = set()
    waiting = list(functions)
    while waiting and len(seen) < _MOST:
        found = waiting.pop()
        if id(found) in seen or not isinstance(found, _LOOKED_INTO):
            continue
        seen.add(id(found))
        if isinstance(found, functools.partial):
            waiting.append(found.func)
        elif isinstance(found, types.MethodType):
            waiting += [found.__func__, found.__self__]
        elif isinstance(found, Module):
            waiting += [type(m).forward for m in found.modules()]
        elif not is_ours(found):
            for code in codes_in(found.__code__):
                if not _HOOKS.isdisjoint(code.co_names):
                    return True
                waiting += [found.__globals__[name] for name in code.co_names if name in found.__globals__]
            waiting += [content_of(cell) for cell in found.__closure__ or ()]
    return False


def codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    """Some code, and that of the functions and comprehensions inside it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from codes_in(inner)
