"""`wf.compile`: checks its argument, and wraps a function or a module."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypedDict, TypeVar, Unpack, overload

from wayfare.compiler.explain import Explanation
from wayfare.compiler.function import Compiled
from wayfare.compiler.module import CompiledModule
from wayfare.core.errors import ArgumentError, ArgumentTypeError
from wayfare.nn.module import Module

_KINDS: dict[str, Callable[[Any], bool]] = {
    "generator function": inspect.isgeneratorfunction,
    "coroutine function": inspect.iscoroutinefunction,
    "asynchronous generator function": inspect.isasyncgenfunction,
    "class": inspect.isclass,
}


P = ParamSpec("P")
Q = ParamSpec("Q")
Instance = TypeVar("Instance")
Net = TypeVar("Net", bound=Module)
Result = TypeVar("Result", covariant=True)


class CompiledFunction(Protocol[P, Result]):
    """The type of a compiled function: the signature of the plain one, and `explain`."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Result:
        """Call it like the plain function."""

    def explain(self, verbose: bool = False) -> Explanation:
        """What was recorded, what is replayed, and why not the rest."""

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(
        self: CompiledFunction[Concatenate[Instance, Q], Result], instance: Instance, owner: type | None = None
    ) -> Callable[Q, Result]: ...


class _Options(TypedDict, total=False):
    check: bool | None
    fullgraph: bool
    dynamic: Any
    backend: Any
    mode: Any
    options: Any
    disable: bool


class _Decorator(Protocol):
    @overload
    def __call__(self, function: Net, /) -> Net: ...  # type: ignore[overload-overlap] # a module is a callable too
    @overload
    def __call__(self, function: Callable[P, Result], /) -> CompiledFunction[P, Result]: ...


@overload
def compile(function: Net, **options: Unpack[_Options]) -> Net: ...  # type: ignore[overload-overlap] # as above
@overload
def compile(function: Callable[P, Result], **options: Unpack[_Options]) -> CompiledFunction[P, Result]: ...
@overload
def compile(function: None = None, **options: Unpack[_Options]) -> _Decorator: ...
def compile(
    function: Any = None,
    *,
    check: bool | None = None,
    fullgraph: bool = False,
    dynamic: Any = None,
    backend: Any = None,
    mode: Any = None,
    options: Any = None,
    disable: bool = False,
) -> Any:
    """Record what a function or module does with tensors, and replay it natively for as long as that is right.

    A decorator, or a function of what is to be compiled. What cannot be replayed runs as plain Python, with one warning
    that says why; with `fullgraph` that is an error.

    Replays are checked: at the 1st, 2nd, 4th, 8th, … replay of a path Python runs as well, and its results count. A
    difference is a warning, and that path runs as plain Python from then on. `check=True` compares every replay, and a
    difference is an error; `check=False` compares none. `dynamic`, `backend`, `mode` and `options` are PyTorch's and
    change nothing here.
    """
    if check not in (None, True, False):
        raise ArgumentError(f"compile: check must be None, True or False, it is {check!r}")
    chosen: dict[str, Any] = {"check": check, "fullgraph": fullgraph}
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
