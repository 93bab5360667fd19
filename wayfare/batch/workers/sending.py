"""What travels between a map and its workers: functions, examples and results.

Functions go by value: their code, and the closure variables, defaults and globals that the code names. So a worker has
what the function sees now, not what it saw when the worker was started; equal bytes mean that it has not changed. The
user's classes cannot go by value. A forked worker has those that were known to this process when it was forked, each
with the methods it had then. Tensors that the function sees are numbered, and their values lie in shared memory.

All bytes come from this process or from workers that it started itself; nothing else is ever unpickled.
"""

from __future__ import annotations

import functools
import importlib
import io
import marshal
import pickle
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from wayfare.batch.analysis.hooks import codes_in
from wayfare.batch.analysis.known_pure import is_stdlib_code
from wayfare.batch.analysis.purity import is_library_module
from wayfare.batch.record.owner_table import OwnerTable
from wayfare.compiler.function import Compiled
from wayfare.core.errors import OperationError
from wayfare.core.tensor import Tensor, wrap
from wayfare.nn.module import Module

_PLAIN = (int, float, complex, str, bytes, bool, type(None))


class NotSpread(Exception):
    """The map cannot be spread over workers; the message says why."""


class Missing(Exception):
    """A worker lacks a class that this process has: it was started before the class was made or changed."""


class _Known:
    """Objects that a forked worker has at the same place of this list: classes and compiled functions."""

    def __init__(self) -> None:
        self.objects: list[Any] = []
        self._numbers: dict[Any, int] = {}

    def number_of(self, thing: Any) -> int:
        """Its number; a class whose methods were changed gets a new one."""
        parts = vars(thing) if isinstance(thing, type) else {}
        key = (id(thing), *[(name, id(part)) for name, part in parts.items()])
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.objects)
            self.objects.append(thing)  # also keeps the id from being used again
        return number


KNOWN = _Known()


def _known(number: int) -> Any:
    if number >= len(KNOWN.objects):
        raise Missing
    return KNOWN.objects[number]


def is_users(name: str) -> bool:
    """Whether a module is the user's: neither Wayfare's nor of an installed package nor built in."""
    if name == "__main__" or is_library_module(name):
        return name == "__main__"
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if file is None:
        return module is None
    return "site-packages" not in file and not is_stdlib_code(_FileOf(file))  # type: ignore[arg-type]


class _FileOf:
    def __init__(self, name: str) -> None:
        self.co_filename = name


class Sender(pickle.Pickler):
    """Pickles what a function and its examples consist of. A tensor is what `tensor` makes of it."""

    def __init__(self, file: Any, tensor: Callable[[Tensor], Any], forked: bool, buffers: Any = None) -> None:
        super().__init__(file, protocol=5, buffer_callback=buffers)
        self._tensor = tensor
        self._forked = forked

    def reducer_override(self, thing: Any) -> Any:
        """How objects travel that pickle would send by name, or not at all."""
        if isinstance(thing, Tensor):
            return self._tensor(thing)
        kind = thing.__class__
        if kind is types.FunctionType:
            return self._function(thing)
        if kind is types.CellType:
            return _new_cell, (), _content(thing), None, None, _fill_cell
        if kind is types.CodeType:
            return _code, (marshal.dumps(thing),)
        if kind is types.ModuleType:
            return self._module(thing)
        if self._forked and (kind is Compiled or (isinstance(thing, type) and is_users(thing.__module__))):
            return _known, (KNOWN.number_of(thing),), _seen_by(thing), None, None, _show
        return self._module_object(thing) if isinstance(thing, Module) else NotImplemented

    def _module_object(self, module: Module) -> Any:
        """Without what batching has learnt about it here: that would look like a change."""
        if module._hooks:
            raise NotSpread(f"a {type(module).__name__} that it uses has hooks, which must run here")
        reduced = module.__reduce_ex__(5)
        if isinstance(reduced, str) or len(reduced) < 3 or not isinstance(reduced[2], dict):
            return reduced
        state = {name: value for name, value in reduced[2].items() if value.__class__ is not OwnerTable}
        return reduced[0], reduced[1], state, *reduced[3:]

    def _function(self, function: types.FunctionType) -> Any:
        if not is_users(function.__module__ or ""):
            return NotImplemented
        state = (named_globals(function), function.__defaults__, function.__kwdefaults__, function.__dict__,
                 function.__closure__)  # fmt: skip
        made = (function.__code__, function.__module__, function.__name__, function.__qualname__,
                len(function.__closure__ or ()))  # fmt: skip
        return _new_function, made, state, None, None, _fill_function

    def _module(self, module: types.ModuleType) -> Any:
        """By name; with the settings of a module of the user's, which may have changed."""
        settings = {}
        if is_users(module.__name__):
            settings = {name: value for name, value in vars(module).items()
                        if value.__class__ in _PLAIN and not name.startswith("__")}  # fmt: skip
        return _import, (module.__name__, settings)


def _import(name: str, settings: dict[str, Any]) -> Any:
    module = importlib.import_module(name)
    vars(module).update(settings)
    return module


@functools.lru_cache(maxsize=4096)
def _code(data: bytes) -> types.CodeType:
    """One code object for the same bytes: what a worker has learnt about a function is kept with its code."""
    code: types.CodeType = marshal.loads(data)
    return code


def _new_cell() -> types.CellType:
    return types.CellType()


def _content(cell: types.CellType) -> Any:
    try:
        return (cell.cell_contents,)
    except ValueError:  # empty
        return ()


def _fill_cell(cell: types.CellType, content: tuple[Any, ...]) -> None:
    if content:
        cell.cell_contents = content[0]


def _new_function(code: types.CodeType, module: str, name: str, qualname: str, cells: int) -> types.FunctionType:
    names: dict[str, Any] = {"__builtins__": __builtins__, "__name__": module}
    made = types.FunctionType(code, names, name, None, tuple([types.CellType() for _ in range(cells)]) or None)
    made.__module__, made.__qualname__ = module, qualname
    return made


def _fill_function(made: types.FunctionType, state: Any) -> None:
    names, made.__defaults__, made.__kwdefaults__, attributes, closure = state
    made.__globals__.update(names)
    made.__dict__.update(attributes)
    for cell, sent in zip(made.__closure__ or (), closure or (), strict=True):
        _fill_cell(cell, _content(sent))


def dumps(thing: Any, tensor: Callable[[Tensor], Any], forked: bool, buffers: Any = None) -> bytes:
    """Pickle something for a worker, or for the parent."""
    file = io.BytesIO()
    Sender(file, tensor, forked, buffers).dump(thing)
    return file.getvalue()


def cannot_be_sent(what: str, error: Exception) -> OperationError:
    """The error for something that pickle refuses."""
    return OperationError(f"map: {what} cannot be sent to a worker process: {error}",
                          fix="Make it inside the function, pass numbers or tensors instead, or leave workers= out."
                          )  # fmt: skip


# -- what the methods of a class see: a forked worker has the class, but these may have changed since


def named_globals(function: types.FunctionType) -> dict[str, Any]:
    """The globals that the code of a function names."""
    names = function.__globals__
    return {name: names[name] for code in codes_in(function.__code__) for name in code.co_names if name in names}


def _functions_of(thing: Any) -> Iterator[types.FunctionType]:
    """The functions that a compiled function, or a class of the user's and its bases, consist of."""
    parts = [thing]
    if isinstance(thing, type):
        parts = [part for cls in thing.__mro__ if is_users(cls.__module__) for part in vars(cls).values()]
    for part in parts:
        if isinstance(part, property):
            yield from [inner for inner in (part.fget, part.fset) if isinstance(inner, types.FunctionType)]
        while part is not None and not isinstance(part, types.FunctionType):
            part = getattr(part, "__func__", None) or getattr(part, "__wrapped__", None)
        if part is not None:
            yield part


def _seen_by(thing: Any) -> Any:
    """The globals and closure variables of its functions."""
    return [(number, function.__module__, named_globals(function), function.__closure__)
            for number, function in enumerate(_functions_of(thing))]  # fmt: skip


def _show(thing: Any, state: Any) -> None:
    """In the worker: what the functions see is what they see in the parent."""
    functions = list(_functions_of(thing))
    for number, _, names, closure in state:
        function = functions[number]
        function.__globals__.update(names)
        for cell, sent in zip(function.__closure__ or (), closure or (), strict=True):
            _fill_cell(cell, _content(sent))


# -- tensors that messages only number


class _Stage:
    """Who is unpickling now: gives and takes the tensors that messages only number."""

    def __init__(self) -> None:
        # The tensors that the function sees: made when a worker first hears of them.
        self.captured: dict[int, Tensor] = {}
        self.make: Callable[..., Tensor] = wrap
        # The tensors of examples: all of them, and those that want a gradient.
        self.arguments: list[Tensor] = []
        self.inputs: list[Tensor] = []
        self.outputs: dict[int, Tensor] = {}


STAGE = _Stage()


def captured(number: int, *spec: Any) -> Tensor:
    """A tensor that the function sees. The rest says what it is like, so that another kind makes other bytes."""
    found = STAGE.captured.get(number)
    if found is None:
        found = STAGE.captured[number] = STAGE.make(number, *spec)
    return found


def given(array: Any) -> Tensor:
    """A tensor of an example that wants a gradient."""
    t = wrap(array if array.flags.writeable else array.copy())
    t._requires_grad = True
    STAGE.inputs.append(t)
    STAGE.arguments.append(t)
    return t


def given_plain(make: Callable[..., Tensor], parts: tuple[Any, ...]) -> Tensor:
    """A tensor of an example that wants none."""
    t = make(*parts)
    STAGE.arguments.append(t)
    return t


def computed(number: int, array: Any) -> Tensor:
    """A result with a history, which stays in the worker."""
    t = STAGE.outputs[number] = wrap(array)
    return t
