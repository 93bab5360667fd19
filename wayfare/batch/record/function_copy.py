"""Copies of the user's functions whose calls pass through a function of ours, which decides what is called.

A copy is compiled from the source of the function, where `f(x)` has become `chosen(f)(x)`. It has the globals, the
closure cells, the defaults and the line numbers of the original, so nothing in it can go out of date, and tracebacks
show the user's lines. The original is not touched. A copy is made only if the source, compiled as it is, gives exactly
the code of the function; otherwise the function runs as it is.

Functions that are defined inside the copied one keep their own code: others may read it.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import copy
import functools
import inspect
import linecache
import operator
import types
from collections.abc import Callable, Iterator
from typing import Any

from wayfare.batch.analysis.known_pure import is_stdlib_code
from wayfare.batch.analysis.purity import is_library_code, is_library_module
from wayfare.compiler.captures.names import content_of
from wayfare.compiler.generated import compiled_tree
from wayfare.core.tensor import Tensor

_FUTURES = functools.reduce(operator.or_, [getattr(__future__, name).compiler_flag
                                           for name in __future__.all_feature_names])  # fmt: skip
# Stands for our function in the syntax tree, which can hold constants only; the compiled code gets the function.
_MARK = "wayfare: the function that chooses what is called"
# Methods with these names are assumed to be those of tensors and of Python's containers.
_METHODS = frozenset().union(*[dir(cls) for cls in (Tensor, list, dict, set, str, tuple)])
_CALLERS = frozenset({"map", "filter"})
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def copied_code(function: types.FunctionType, chosen: Callable[[Any], Any]) -> types.CodeType | None:
    """The code of a function with its calls passed through `chosen`; None if it has none, or if it cannot be copied."""
    code = function.__code__
    if is_library_code(function) or is_stdlib_code(code) or code.co_filename.startswith("<wayfare"):
        return None
    try:
        source = _source_of(tuple(linecache.getlines(code.co_filename, function.__globals__)))
        # Pieces that were compiled one by one under the name of one file may do without its imports.
        for node, imports in [(node, names) for names in (source.imports, []) for node in source.functions(code)]:
            if _compiled(node, code, imports) == code:
                rewriting = _Rewriting(_Names(function))
                made = _compiled(rewriting.inside(node), code, imports)
                return _with_function(made, chosen) if rewriting.count and made is not None else None
    except (SyntaxError, ValueError, RecursionError):
        pass  # the file has changed since it was imported
    return None


def copy_of(function: types.FunctionType, code: types.CodeType) -> types.FunctionType:
    """The function with other code."""
    made = types.FunctionType(code, function.__globals__, function.__name__, function.__defaults__,
                              function.__closure__)  # fmt: skip
    made.__kwdefaults__ = function.__kwdefaults__
    made.__qualname__ = function.__qualname__
    return made


class _Source:
    """The functions in a file, by name and first line, and the names that the file imports."""

    def __init__(self, text: str) -> None:
        self._functions: dict[tuple[str, int], list[_Function]] = {}
        self.imports: list[str] = []
        waiting: list[tuple[ast.AST, bool]] = [(ast.parse(text), True)]
        while waiting:
            node, outermost = waiting.pop()
            if isinstance(node, (ast.Import, ast.ImportFrom)) and outermost:
                self.imports += [alias.asname or alias.name.partition(".")[0] for alias in node.names]
            elif isinstance(node, _Function):
                first = min([node.lineno, *[decorator.lineno for decorator in getattr(node, "decorator_list", ())]])
                self._functions.setdefault((getattr(node, "name", "<lambda>"), first), []).append(node)
            outermost = outermost and not isinstance(node, (_Function, ast.ClassDef))
            waiting += [(child, outermost) for child in ast.iter_child_nodes(node)]

    def functions(self, code: types.CodeType) -> list[_Function]:
        """The functions that begin where this code does."""
        return [copy.deepcopy(node) for node in self._functions.get((code.co_name, code.co_firstlineno), ())]


@functools.lru_cache(16)
def _source_of(lines: tuple[str, ...]) -> _Source:
    return _Source("".join(lines))


def _compiled(node: _Function, code: types.CodeType, imports: list[str]) -> types.CodeType | None:
    """The code of a function in the syntax tree, compiled in surroundings like those of `code`."""
    node.args.defaults = []
    node.args.kw_defaults = [None] * len(node.args.kwonlyargs)
    inner: ast.stmt
    if isinstance(node, ast.Lambda):
        inner = ast.Expr(node)
    else:
        if getattr(node, "type_params", None):
            return None
        node.decorator_list, node.returns = [], None
        inner = node
    for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg):
        if argument is not None:
            argument.annotation = None
    # A class around it: for `super()`, and for names that begin with two underscores.
    around = _class_around(code.co_qualname)
    if around is not None:
        inner = ast.parse(f"class {around}: pass").body[0]
        inner.body = [ast.Expr(node) if isinstance(node, ast.Lambda) else node]  # type: ignore[attr-defined]
    # A function around that: variables of a closure must be variables of it.
    variables = [name for name in code.co_freevars if name != "__class__"]
    known = {around or code.co_name} - {"<lambda>", *variables}  # else the definition would make it one of these
    body = "\n    ".join(["def shell():", " = ".join([*variables, "None"]), *[f"global {name}" for name in known]])
    # Methods of imported names are compiled in another way.
    shell = ast.parse("\n".join([*[f"import {name}" for name in imports if name != "*"], body]))
    shell.body[-1].body.append(inner)  # type: ignore[attr-defined]
    found = [part for part in _codes_in(compiled_tree(ast.fix_missing_locations(shell), code.co_filename,
                                                      code.co_flags & _FUTURES))
             if part.co_name == code.co_name]  # fmt: skip
    if not found or found[0].co_freevars != code.co_freevars:
        return None
    return found[0].replace(co_flags=code.co_flags, co_qualname=code.co_qualname, co_firstlineno=code.co_firstlineno)


def _class_around(qualname: str) -> str | None:
    """The name of the innermost class that a function is defined in, directly or in a method."""
    parts = qualname.split(".")
    for part, following in zip(parts[-2::-1], parts[:0:-1], strict=True):
        if part != "<locals>" and following != "<locals>":
            return part
    return None


def _codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield part
            yield from _codes_in(part)


def _with_function(code: types.CodeType, chosen: Callable[[Any], Any]) -> types.CodeType:
    """The code with the function where the syntax tree had the mark."""

    def constant(part: Any) -> Any:
        if isinstance(part, types.CodeType):
            return _with_function(part, chosen)
        return chosen if isinstance(part, str) and part == _MARK else part

    return code.replace(co_consts=tuple(map(constant, code.co_consts)))


class _Names:
    """What the names in a function refer to now. It only decides which calls are worth a look."""

    def __init__(self, function: types.FunctionType) -> None:
        code = function.__code__
        self._globals = function.__globals__
        self._cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        self._locals = frozenset((*code.co_varnames, *code.co_cellvars))

    def is_builtin(self, name: str) -> bool:
        """Whether a name is that of a built-in function."""
        mine = name in self._globals or name in self._cells or name in self._locals
        return not mine and hasattr(builtins, name)

    def may_be_users(self, called: ast.expr) -> bool:
        """Whether what is called may be a function of the user."""
        if isinstance(called, ast.Attribute):
            if isinstance(called.value, ast.Name):
                if called.value.id == "self":
                    return True
                owner = self._value(called.value.id)
                if isinstance(owner, types.ModuleType):
                    return not is_library_module(owner.__name__) and self._is_users(getattr(owner, called.attr, None))
                if owner is not None:
                    return self._is_users(inspect.getattr_static(owner, called.attr, None))
            return called.attr not in _METHODS
        if isinstance(called, ast.Name):
            return not self.is_builtin(called.id) and self._is_users(self._value(called.id))
        return isinstance(called, (ast.Subscript, ast.Call, ast.IfExp))

    def _value(self, name: str) -> Any:
        if name in self._locals:
            return None
        cell = self._cells.get(name)
        return self._globals.get(name) if cell is None else content_of(cell)

    def _is_users(self, value: Any) -> bool:
        if isinstance(value, (types.FunctionType, types.MethodType)):
            code = getattr(value, "__code__", None)  # a method may be one of anything that can be called
            return code is None or not (is_library_code(value) or is_stdlib_code(code))
        return value is None or not isinstance(value, (type, types.BuiltinFunctionType))


class _Rewriting(ast.NodeTransformer):
    """Passes calls through the mark; not those of functions and classes that are defined inside."""

    def __init__(self, names: _Names) -> None:
        self._names = names
        self.count = 0

    def inside(self, node: _Function) -> _Function:
        """Rewrite the body of a function."""
        if isinstance(node, ast.Lambda):
            node.body = self.visit(node.body)
        else:
            node.body = [self.visit(statement) for statement in node.body]
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        """Leave it as it is."""
        return node

    visit_AsyncFunctionDef = visit_ClassDef = visit_Lambda = visit_FunctionDef  # type: ignore[assignment]

    def visit_Call(self, node: ast.Call) -> Any:
        """Pass what is called through the mark; of `map(f, xs)` the function `f`."""
        self.generic_visit(node)
        called = node.func
        if isinstance(called, ast.Name) and self._names.is_builtin(called.id):
            if called.id in _CALLERS and node.args and self._names.may_be_users(node.args[0]):
                node.args[0] = self._through_mark(node.args[0])
        elif self._names.may_be_users(called):
            node.func = self._through_mark(called)
        return node

    def _through_mark(self, called: ast.expr) -> ast.expr:
        self.count += 1
        return ast.copy_location(ast.Call(ast.copy_location(ast.Constant(_MARK), called), [called], []), called)
