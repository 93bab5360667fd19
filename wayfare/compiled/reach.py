"""What a function can see without being handed it: closure cells, globals, defaults, its object, and what they hold.

Code is read, not run: the names it mentions say what can matter. Where that cannot be told (a clock, a file, an
iterator from outside), `Reach.unguardable` says why, and the function's Python has to run at every call.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import types
from typing import Any

from wayfare.compiled.code import Facts, facts
from wayfare.compiled.place import CONTENTS, LEAF, SAME, Path, Place
from wayfare.compiled.purity import is_user_module, unsteady
from wayfare.compiled.walk import Unguardable, ValueWalk
from wayfare.graph.epoch import EPOCH
from wayfare.nn.module import Module
from wayfare.tensor import Tensor

# Functions of the standard library that go over all attributes of what they are given.
_WHOLE = frozenset({
    ("builtins", "vars"), ("builtins", "dir"), ("dataclasses", "asdict"), ("dataclasses", "astuple"),
    ("dataclasses", "fields"), ("dataclasses", "replace"), ("copy", "copy"), ("copy", "deepcopy"),
    ("operator", "attrgetter"), ("operator", "methodcaller"), ("json", "dumps"), ("pickle", "dumps"),
})  # fmt: skip

# What optimisers and schedules know of learning rates: their steps count on it, and no guard looks there.
_OF_STEPS = frozenset({"param_groups", "get_last_lr", "last_epoch", "base_lrs"})


class Reach:
    """All that a function can see, at one moment."""

    def __init__(self, function: Any, bound_self: Any, walk: Walk, epoch: int) -> None:
        self.function = function
        self.bound_self = bound_self
        self.places: list[Place] = walk.places
        self.tensors: dict[int, Tensor] = walk.tensors
        self.arrays: list[Any] = walk.arrays
        self.unguardable: str | None = walk.reason
        self.epoch = epoch
        self._paths = walk.paths

    def name_of(self, value: Any) -> str:
        """How the function gets to a tensor or an array: "model[0].weight", "closure `h`"."""
        path = self._paths.get(id(value))
        return "" if path is None else path.called() if path.root else str(path)

    def again(self) -> Reach:
        """The same function's reach as it is now."""
        return reach(self.function, self.bound_self)


def reach(function: Any, bound_self: Any = None) -> Reach:
    """Everything `function` can see without being handed it.

    `bound_self` is a method's object, or a tuple of objects among the arguments that are to be guarded like it.
    """
    names: set[str] = set()
    any_attribute = False
    epoch = EPOCH[0]
    while True:
        walk = Walk(names, any_attribute)
        try:
            walk.start(function, bound_self)
        except Unguardable:
            break
        except Exception as error:  # an object that cannot even be looked at: its Python runs at every call
            walk.reason = f"it sees something that cannot be looked at ({type(error).__name__}: {error}){walk.site}"
            break
        # More names make more attributes matter, and what lies there may name more.
        if walk.names == names and walk.any_attribute == any_attribute:
            break
        names, any_attribute = walk.names, walk.any_attribute
    if walk.reason is None and walk.steps and walk.reads_steps:
        walk.reason = f"it reads or sets numbers of an optimiser or a schedule{walk.reads_steps}"
    return Reach(function, bound_self, walk, epoch)


class Walk(ValueWalk):
    """Adds code to the walk over values: functions, the names they read, Python modules they take things from."""

    def start(self, function: Any, bound_self: Any) -> None:
        """Walk from the function that is to be guarded."""
        objects = bound_self if type(bound_self) is tuple else () if bound_self is None else (bound_self,)
        if isinstance(function, types.MethodType):
            function, objects = function.__func__, (function.__self__, *objects)
        for number, value in enumerate(objects):
            self.visit(value, Path("self" if number == 0 else _name(value)))
        if isinstance(function, types.FunctionType):
            self._met[id(function)] = CONTENTS
            self.function(function, Path(function.__name__))
        else:
            self.visit(function, Path("self" if isinstance(function, Module) else _name(function)))

    def function(self, function: types.FunctionType, path: Path) -> None:
        """A user's function: its code, defaults, cells, and what the code names."""
        label = Path(str(path), "function")
        self.note("attribute", function, "__code__", function.__code__, label, LEAF)
        code = function.__code__
        self._defaults(function, label)
        free: dict[str, Any] = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        for variable, cell in free.items():
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
        if variable == "__class__" and isinstance(value, type):  # for super(): nothing is made of it
            self.note("attribute", cell, "cell_contents", value, path, SAME)
            self.class_members(value, path, frozenset({"__init__", "__new__", "__post_init__"}))
        elif not isinstance(value, types.ModuleType):
            self.hold("attribute", cell, "cell_contents", value, path)
        else:
            self.note("attribute", cell, "cell_contents", value, path, SAME)

    def _code(self, code: types.CodeType, function: types.FunctionType, free: dict[str, Any]) -> None:
        """What a code object and the code inside it name."""
        found = facts(code)
        self._refuse_writes(code, found, free)
        self.names |= found.attributes
        self.any_attribute |= found.any_attribute or "__dict__" in found.attributes
        self._imports(code, found, function)
        for line, named in [(code.co_firstlineno, found.attributes), *[(r.line, r.chain) for r in found.reads]]:
            if not _OF_STEPS.isdisjoint(named):
                self.reads_steps = f" ({os.path.basename(code.co_filename)}:{line})"
        for read in found.reads:
            self.at(code, read.line)
            if read.where == "global":
                self._global(function, read.name, read.chain)
            elif read.where == "imported":
                self._follow(sys.modules[read.name], Path(read.name), read.chain)
            elif read.name in free:
                value = free[read.name].cell_contents
                self._go_on(value, Path(read.name, "closure"), read.chain)
            else:
                self.names.update(read.chain)
        for inside in found.inside:
            outer = {name: free[name] for name in inside.co_freevars if name in free and name not in code.co_cellvars}
            self._code(inside, function, outer)

    def _refuse_writes(self, code: types.CodeType, found: Facts, free: dict[str, Any]) -> None:
        for write in found.writes:
            if write.where == "global" or write.name in free:
                self.at(code, write.line)
                kind = "global" if write.where == "global" else "closure"
                self.refuse(f"assigns the {kind} variable `{write.name}`")

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
            for part in taken.names:
                self._follow(module, Path(name), (part,))
            if not taken.names and unsteady(module) is not None:
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
            self._trusted(builtins[name], path)
        self.names.update(chain)

    def _go_on(self, value: Any, path: Path, chain: tuple[str, ...]) -> None:
        if isinstance(value, types.ModuleType):
            self._follow(value, path, chain)
        else:
            self.names.update(chain)

    def _follow(self, module: Any, path: Path, chain: tuple[str, ...]) -> None:
        """`module.a.b`: the module's `a`, and so on while that is a module itself."""
        for position, name in enumerate(chain):
            value = module.__dict__.get(name, self)
            if value is self:
                value = getattr(module, name, self)  # some modules load their parts when asked
            path = Path(f"{path}.{name}")
            if value is self:
                self.names.update(chain[position + 1 :])
                return
            if isinstance(value, types.ModuleType):
                if module.__dict__.get(name) is value and ("item", id(module.__dict__), name) not in self._known:
                    self.note("item", module.__dict__, name, value, path, SAME)
                module = value
                continue
            if name in module.__dict__:
                self.hold("item", module.__dict__, name, value, path)
            self._trusted(value, path)
            self.names.update(chain[position + 1 :])
            return
        self.visit(module, path)

    def _trusted(self, value: Any, path: Path) -> None:
        """A function of a library: looked at only for what cannot be guarded."""
        if (getattr(value, "__module__", None), getattr(value, "__name__", None)) in _WHOLE:
            self.any_attribute = True
        self.visit(value, path)

    def python_module(self, module: Any, path: Path) -> str:
        """A Python module that is passed around: of the user's own, anything that is named may be used."""
        if is_user_module(module):
            for name in sorted(self.names & set(module.__dict__)):
                value = module.__dict__[name]
                if not isinstance(value, types.ModuleType):
                    self.hold("item", module.__dict__, name, value, path.attribute(name))
        return SAME


def _name(function: Any) -> str:
    return getattr(function, "__name__", None) or type(function).__name__
