"""The captures of a function: everything it can reach besides its arguments (cells, globals, defaults, `self`, …).

The code is read, not run: its names say what it can reach. If something cannot be guarded (a clock, a file, an iterator
from outside), `Reach.unguardable` says why, and the function runs as plain Python.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
import types
import weakref
from abc import get_cache_token
from functools import cached_property
from typing import Any

from wayfare.compiler.captures.bytecode import Facts, Read, facts
from wayfare.compiler.captures.dynamic_names import BY_NAME
from wayfare.compiler.captures.location import CONTENTS, LEAF, SAME, Location, Path, is_leaf
from wayfare.compiler.captures.names import Names, content_of, is_special
from wayfare.compiler.captures.purity import impure, is_user_class, is_user_function, is_user_module
from wayfare.compiler.captures.trusted import takes_steps
from wayfare.compiler.captures.walk_objects import ObjectWalk
from wayfare.compiler.captures.walk_values import ELEMENTS, MAKING, Unguardable
from wayfare.core.structure_epoch import EPOCH
from wayfare.core.tensor import Tensor
from wayfare.nn.module import Module

# Types whose values are equal only to themselves, and strings.
_ONLY_ITSELF = (types.FunctionType, types.BuiltinFunctionType, types.ModuleType, type, str)
# Built-in functions that convert values to text.
_TEXT = frozenset({"str", "repr", "format", "ascii"})


class Reach:
    """The captures of a function at one moment."""

    def __init__(self, function: Any, bound_self: Any, walk: Walk, epoch: int) -> None:
        self.function = function
        self._bound_self = tuple([weakref.ref(value) if id(value) in walk._weak else value
                                  for value in _listed(bound_self)])  # fmt: skip
        self.locations: list[Location] = walk.locations
        self.tensors: dict[int, Tensor] = walk.tensors
        self.arrays: list[Any] = walk.arrays
        self.unguardable: str | None = walk.reason
        self.names: Names = walk.names
        self.holders = walk.holders
        self.assigned = walk.assigned
        self.met = walk._met
        self.codes = walk.codes
        self.states = walk.states
        self.epoch = epoch
        self._paths = walk.paths

    @cached_property
    def watched(self) -> set[tuple[int, Any]]:
        """(id of the holder, key) of the guarded attributes, globals and cells."""
        return {(id(p.holder), p.key) for p in self.locations if p.live and p.kind in ("item", "attribute")}

    def name_of(self, value: Any) -> str:
        """The path to a tensor or an array: "model[0].weight", "closure `h`"."""
        path = self._paths.get(id(value))
        return "" if path is None else path.called() if path.root else str(path)

    def refreshed(self, states: frozenset[tuple[int, Any]] | None = None) -> Reach:
        """The captures of the same function now."""
        objects = tuple([value() if isinstance(value, weakref.ref) else value for value in self._bound_self])
        return reach(self.function, objects or None, self.states if states is None else states)


def reach(function: Any, bound_self: Any = None, states: frozenset[tuple[int, Any]] = frozenset()) -> Reach:
    """Find everything that `function` can reach besides its arguments.

    `bound_self` is the object of a method, or a tuple of objects among the arguments that are guarded like it. `states`
    are left out: they are inputs of every call.
    """
    names = Names()
    epoch = EPOCH[0]
    while True:
        walk = Walk(names, states)
        try:
            walk.start(function, bound_self)
        except Unguardable:
            break
        except Exception as error:  # an object that raises an error when it is inspected
            walk.reason = f"it reaches an object that cannot be inspected ({type(error).__name__}: {error}){walk.site}"
            break
        # New names make more attributes reachable, whose code may contain more names: repeat until nothing is new.
        if walk.names == names:
            walk.tensor_methods()
            break
        names = walk.names
    return Reach(function, bound_self, walk, epoch)


class Walk(ObjectWalk):
    """The walk over code: functions, the names they read, and the Python modules they use."""

    def start(self, function: Any, bound_self: Any) -> None:
        """Start the walk at the function."""
        objects = _listed(bound_self)
        # Arguments are not kept alive: their entries are dropped together with them.
        self._weak = {id(value) for value in objects if can_be_weak(value)}
        if isinstance(function, types.MethodType):
            function, objects = function.__func__, (function.__self__, *objects)
        for number, value in enumerate(objects):
            self.visit(value, Path("self" if number == 0 else _name(value)))
        if isinstance(function, types.FunctionType) and is_user_function(function):
            self._met[id(function)] = CONTENTS
            self.function(function, Path(function.__name__))
            self._function_attributes(function, Path(function.__name__))
        else:
            self.visit(function, Path("self" if isinstance(function, Module) else _name(function)))

    def function(self, function: types.FunctionType, path: Path) -> None:
        """Visit a function of the user's: its code, defaults, cells, and the names in the code."""
        label = Path(str(path), "function")
        self.note("attribute", function, "__code__", function.__code__, label, LEAF)
        code = function.__code__
        self._defaults(function, label)
        free: dict[str, Any] = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        only_assigned = _names_in(code, "writes") - _names_in(code, "reads")
        for variable, cell in free.items():
            if variable not in only_assigned or type(content_of(cell)) is not int:
                self._cell(code, variable, cell)
        self._code(code, function, free)

    def _defaults(self, function: types.FunctionType, label: Path) -> None:
        code = function.__code__
        values, named = function.__defaults__, function.__kwdefaults__
        if values is not None:
            self.note("attribute", function, "__defaults__", values, label, CONTENTS)
            names = code.co_varnames[code.co_argcount - len(values) : code.co_argcount]
            for number, name in enumerate(names):
                self.hold("item", values, number, values[number], Path(name, "default"), live=False)
        if named is not None:
            self.note("attribute", function, "__kwdefaults__", named, label, CONTENTS)
            self.note("keys", named, None, tuple(named), label, LEAF)
            for name, value in named.items():
                self.hold("item", named, name, value, Path(name, "default"))

    def _cell(self, code: types.CodeType, variable: str, cell: types.CellType) -> None:
        self.at(code, code.co_firstlineno)
        path = Path(variable, "closure")
        try:
            value = cell.cell_contents
        except ValueError:
            self.refuse(f"uses {path.called()} before it is assigned")
        if variable == "__class__" and isinstance(value, type):  # for super(): no instance of it is made
            self.note("attribute", cell, "cell_contents", value, path, SAME)
            self.class_members(value, path, MAKING)
        elif not isinstance(value, types.ModuleType):
            self.hold("attribute", cell, "cell_contents", value, path)
        else:
            self.note("attribute", cell, "cell_contents", value, path, SAME)

    def _code(self, code: types.CodeType, function: types.FunctionType, free: dict[str, Any]) -> None:
        """Visit the names in a code object and its nested code objects."""
        found = facts(code)
        self.codes.add(code)
        self._writes(function, found, free)
        self.names.add(found)
        self._imports(code, found, function)
        for read in found.reads:
            self.at(code, read.line)
            if read.by_name and self._by_name(function, read, free):
                continue
            if read.where == "global":
                self._global(function, read.name, read.chain)
            elif read.where == "imported":
                self._follow(sys.modules[read.name], Path(read.name), read.chain)
            elif read.name in free:
                value = free[read.name].cell_contents
                self._go_on(value, Path(read.name, "closure"), read.chain)
            else:
                self.names.read.update(read.chain)
        for inside in found.inside:
            outer = {name: free[name] for name in inside.co_freevars if name in free and name not in code.co_cellvars}
            self._code(inside, function, outer)

    def _by_name(self, function: types.FunctionType, read: Read, free: dict[str, Any]) -> bool:
        """`getattr(cfg, name)`: if `cfg` is a Python module, guard all that is in it and return True. Otherwise any
        attribute of anything may be read."""
        holder: Any = free.get(read.name)
        value = None if holder is None else content_of(holder)
        key: Any = "cell_contents"
        if read.where != "free":
            holder, key = sys.modules if read.where == "imported" else function.__globals__, read.name
            value = holder.get(key)
        path = Path(read.name)
        kind = "attribute" if read.where == "free" else "item"
        for name in (*read.chain, None):
            if not isinstance(value, types.ModuleType):
                self.names.any = True
                return False
            if (kind, id(holder), key) not in self._known:
                self.note(kind, holder, key, value, path, SAME)
            if name is not None:
                kind, holder, key, path = "item", value.__dict__, name, Path(f"{path}.{name}")
                value = holder.get(key)
        self._all_of_module(value, path)
        return True

    def _writes(self, function: types.FunctionType, found: Facts, free: dict[str, Any]) -> None:
        """Note the globals and cells that the code assigns."""
        for write in found.writes:
            if write.where == "global":
                self.assigned.append((function.__globals__, write.name, Path(write.name, "global")))
                if write.name in found.counters and type(function.__globals__.get(write.name)) is not int:
                    self._global(function, write.name, ())
            elif write.name in free:
                self.assigned.append((free[write.name], "cell_contents", Path(write.name, "closure")))

    def _imports(self, code: types.CodeType, found: Facts, function: types.FunctionType) -> None:
        for taken in found.imports:
            self.at(code, taken.line)
            name = taken.module
            if taken.level:
                package = function.__globals__.get("__package__") or ""
                name = importlib.util.resolve_name("." * taken.level + name, package)
            module = sys.modules.get(name)
            if module is None:
                self.refuse(f"imports {name} for the first time")
            if ("item", id(sys.modules), name) not in self._known:
                self.note("item", sys.modules, name, module, Path(name, "module"), SAME)
            for part in taken.names:
                self._follow(module, Path(name), (part,))
            if not taken.names and impure(module) is not None:
                self.refuse(f"imports the module {name}")

    def _global(self, function: types.FunctionType, name: str, chain: tuple[str, ...]) -> None:
        namespace = function.__globals__
        path = Path(name, "global")
        if name in namespace:
            value = namespace[name]
            if isinstance(value, types.ModuleType):
                if ("item", id(namespace), name) not in self._known:
                    self.note("item", namespace, name, value, path, SAME)
            else:
                self.hold("item", namespace, name, value, path)
            self._go_on(value, path, chain)
            return
        if ("absent", id(namespace), name) not in self._known:
            self.note("absent", namespace, name, False, path, LEAF)
        builtins = getattr(function, "__builtins__")  # noqa: B009
        if name in builtins:
            self.names.formats |= name in _TEXT
            if name in ("isinstance", "issubclass") and ("abc", id(builtins), None) not in self._known:
                registered = Path("what is registered with abstract classes")
                self.note("abc", builtins, None, get_cache_token(), registered, SAME)
            if ("item", id(builtins), name) not in self._known:
                self.note("item", builtins, name, builtins[name], path, SAME)
            if name not in BY_NAME or chain:  # for `getattr` and the like, the code says which attribute they read
                self.visit(builtins[name], path)
        elif ("absent", id(builtins), name) not in self._known:
            self.note("absent", builtins, name, False, path, LEAF)
        self.names.read.update(chain)

    def _go_on(self, value: Any, path: Path, chain: tuple[str, ...]) -> None:
        if isinstance(value, types.ModuleType):
            self._follow(value, path, chain)
        else:
            self.names.read.update(chain)

    def _follow(self, module: Any, path: Path, chain: tuple[str, ...]) -> None:
        """Visit `module.a.b`: follow the names while they are modules."""
        for position, name in enumerate(chain):
            value = getattr(module, name, self)  # some modules load submodules lazily
            path = Path(f"{path}.{name}")
            if name not in module.__dict__ and ("absent", id(module.__dict__), name) not in self._known:
                self.note("absent", module.__dict__, name, False, path, LEAF)
            if value is self:
                self.names.read.update(chain[position + 1 :])
                return
            if isinstance(value, types.ModuleType):
                if module.__dict__.get(name) is value and ("item", id(module.__dict__), name) not in self._known:
                    self.note("item", module.__dict__, name, value, path, SAME)
                module = value
                continue
            if name in module.__dict__:
                self.hold("item", module.__dict__, name, value, path)
            self.visit(value, path)  # library code is only checked for what cannot be guarded
            self.names.read.update(chain[position + 1 :])
            return
        self.visit(module, path)

    def python_module(self, module: Any, path: Path) -> str:
        """Visit a Python module that is passed around: every name in the code may be read from it."""
        if self.names.any:
            self._all_of_module(module, path, deep=True)
        else:
            self._named_of_module(module, path)
        return SAME

    def _named_of_module(self, module: Any, path: Path) -> None:
        held = module.__dict__
        for name in sorted(name for name in self.names.read if not is_special(name)):
            if name in held:
                self._of_python_module(module, name, path)
            elif is_user_module(module) or name in self.names.asked:
                self.note("absent", held, name, False, path.attribute(name), LEAF)

    def _all_of_module(self, module: Any, path: Path, deep: bool = False) -> None:
        """Visit a Python module that is read by a computed name: anything in it may be used; with `deep`, also
        everything in its submodules."""
        held = module.__dict__
        if (module, deep) in self._whole:
            return
        self._whole.add((module, deep))
        own = is_user_module(module)
        self.note("names", held, None, tuple(held), path, LEAF)
        if not own:  # one test for all values that are equal only to themselves
            self.note("names", held.values(), None, tuple(held.values()), path, LEAF)
        for name, value in list(held.items()):
            inside = path.attribute(name)
            if (own or not isinstance(value, _ONLY_ITSELF)) and ("item", id(held), name) not in self._known:
                self.note("item", held, name, value, inside, LEAF if is_leaf(value) else SAME)
            if isinstance(value, types.ModuleType):
                users = is_user_module(value)  # inside Wayfare these are the demos, which are not used here
                if (deep or users) and (own or not users) and impure(value) is None:
                    self.visit(value, inside)
                elif not deep:
                    self._named_of_module(value, inside)
            elif isinstance(value, types.FunctionType) and _is_users(value):
                self._unless_called(value, inside)
            elif (own and not is_special(name)) or _is_users(value):
                self.visit(value, inside)

    def _unless_called(self, value: Any, path: Path) -> None:
        """Visit a function that may not be used at all. If it cannot be guarded, its code counts as not read, and the
        call audit notices a call of it."""
        codes, site = set(self.codes), self.site
        try:
            self.visit(value, path)
        except Unguardable:
            if self._elements > ELEMENTS:
                raise
            self.codes, self.site, self.reason = codes, site, None
            self._function_attributes(value, path)

    def _of_python_module(self, module: Any, name: str, path: Path) -> None:
        """Visit a member of a Python module. For members of libraries it is only guarded that they are not replaced."""
        held, value = module.__dict__, module.__dict__[name]
        inside = path.attribute(name)
        if (is_user_module(module) or _is_users(value)) and not isinstance(value, types.ModuleType):
            self.hold("item", held, name, value, inside)
            return
        if ("item", id(held), name) not in self._known:
            self.note("item", held, name, value, inside, SAME)
        if isinstance(value, types.ModuleType) and impure(value) is None:  # the call audit notices calls of the others
            self.visit(value, inside)


def _is_users(value: Any) -> bool:
    """Is it a function, a class or an object from the user's code?"""
    if isinstance(value, types.FunctionType):
        return is_user_function(value)
    if isinstance(value, (functools.partial, types.MethodType)):
        return True
    return is_user_class(value if isinstance(value, type) else type(value))


def can_be_weak(value: Any) -> bool:
    """Can it be held by a weak reference, so that entries are dropped together with it?"""
    cls: Any = type(value)
    may = isinstance(value, (Module, types.FunctionType)) or takes_steps(cls) or is_user_class(cls)
    # The offset is negative since Python 3.12, where the reference is stored before the object.
    return may and cls.__weakrefoffset__ != 0 and type(getattr(value, "__dict__", None)) is dict


def _listed(objects: Any) -> tuple[Any, ...]:
    return objects if type(objects) is tuple else () if objects is None else (objects,)


def _names_in(code: types.CodeType, what: str) -> set[str]:
    """The names that a code object and its nested code objects read or write."""
    found = facts(code)
    return {entry.name for entry in getattr(found, what)}.union(*[_names_in(inside, what) for inside in found.inside])


def _name(function: Any) -> str:
    return getattr(function, "__name__", None) or type(function).__name__
