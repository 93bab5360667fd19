"""Does a function register tensor hooks, or call `retain_grad`? Then examples must not share autograd nodes.

What is computed from weights alone is normally computed once for all examples. But a hook on it, or its retained
gradient, belongs to one example. Such functions are found by the names in their code and in the code of what they name.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from typing import Any

from wayfare.batch.analysis.purity import is_library_code
from wayfare.compiler.captures.names import content_of
from wayfare.nn.module import Module

_HOOKS = frozenset({"register_hook", "retain_grad", "register_prehook"})
_READ = (functools.partial, types.MethodType, types.FunctionType, Module)
# At most this many functions are scanned.
_MOST = 200


def frame_registers_hooks(frame: types.FrameType | None) -> bool:
    """The same for the code of a frame, and for what it names."""
    if frame is None:
        return False
    named = [*frame.f_locals.values(), *[frame.f_globals.get(name) for name in frame.f_code.co_names]]
    return any([not _HOOKS.isdisjoint(code.co_names) for code in codes_in(frame.f_code)]) or registers_hooks(*named)


def registers_hooks(*functions: Any) -> bool:
    """Whether one of the functions, or a function they name, registers tensor hooks or calls `retain_grad`."""
    seen: set[int] = set()
    waiting = list(functions)
    while waiting and len(seen) < _MOST:
        found = waiting.pop()
        if id(found) in seen or not isinstance(found, _READ):
            continue
        seen.add(id(found))
        if isinstance(found, functools.partial):
            waiting.append(found.func)
        elif isinstance(found, types.MethodType):
            waiting += [found.__func__, found.__self__]
        elif isinstance(found, Module):
            waiting += [type(m).forward for m in found.modules()]
        elif not is_library_code(found):
            for code in codes_in(found.__code__):
                if not _HOOKS.isdisjoint(code.co_names):
                    return True
                waiting += [found.__globals__[name] for name in code.co_names if name in found.__globals__]
            waiting += [content_of(cell) for cell in found.__closure__ or ()]
    return False


def codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    """A code object, and those of the functions and comprehensions inside it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from codes_in(inner)
