"""`wf.compile`: what may be compiled, and which object stands for it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from wayfare.compiled.function import Compiled
from wayfare.compiled.module import CompiledModule
from wayfare.errors import ArgumentError, ArgumentTypeError
from wayfare.nn.module import Module

_KINDS: dict[str, Callable[[Any], bool]] = {
    "generator function": inspect.isgeneratorfunction,
    "coroutine function": inspect.iscoroutinefunction,
    "asynchronous generator function": inspect.isasyncgenfunction,
    "class": inspect.isclass,
}


def compile(
    function: Any = None,
    *,
    check: bool = False,
    fullgraph: bool = False,
    dynamic: Any = None,
    backend: Any = None,
    mode: Any = None,
    options: Any = None,
    disable: bool = False,
    replay: str = "auto",
) -> Any:
    """Record what a function or module does with tensors, and replay it natively for as long as that is right.

    A decorator, or a function of what is to be compiled. With `check`, every replayed call is compared with plain
    Python. With `fullgraph`, what would have to run Python at every call is an error. `replay="dynamic"` runs Python at
    every call and computes what it does by plans; the default does so only where nothing less is right. `dynamic`,
    `backend`, `mode` and `options` are PyTorch's and change nothing here.
    """
    chosen: dict[str, Any] = {"check": check, "fullgraph": fullgraph, "replay": replay}
    if replay not in ("auto", "static", "dynamic"):
        raise ArgumentError(f"compile: replay must be \"auto\", \"static\" or \"dynamic\", it is {replay!r}")
    if function is None:
        return lambda f: compile(_given(f), disable=disable, **chosen)
    if isinstance(function, (staticmethod, classmethod)):
        return type(function)(compile(function.__func__, disable=disable, **chosen))
    _check(function)
    if disable:
        return function
    if isinstance(function, (Compiled, CompiledModule)):
        function = function._function if isinstance(function, Compiled) else function._orig_mod
    return CompiledModule(function, **chosen) if isinstance(function, Module) else Compiled(function, **chosen)


def _given(function: Any) -> Any:
    if function is None:
        raise ArgumentTypeError("compile: takes a function, method or module, not None")
    return function


def _check(function: Any) -> None:
    if not callable(function):
        raise ArgumentTypeError(f"compile: takes a function, method or module, not {type(function).__name__}",
                                fix="Give what is to be called, not what a call of it returned.")  # fmt: skip
    for kind, is_one in _KINDS.items():
        if is_one(function):
            name = getattr(function, "__name__", type(function).__name__)
            fix = "Compile an instance of it." if kind == "class" else "Compile the function that computes one step."
            raise ArgumentTypeError(f"compile: takes a function, method or module, and {name} is a {kind}", fix=fix)
