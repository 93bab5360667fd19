"""A world written down: every tensor, number and object in it, who is whom, and who shares memory with whom."""

import collections
import enum
import functools
import inspect
import operator
import pathlib
import random
import types
import weakref

import numpy as np

import wayfare as wf
from wayfare import nn

_PLAIN = (type(None), bool, int, str, bytes, complex, range, slice, type(Ellipsis), wf.dtype)
_QUIET = (types.ModuleType, types.BuiltinFunctionType, types.MethodWrapperType, types.CodeType, types.FrameType,
          staticmethod, classmethod, property, weakref.WeakKeyDictionary, weakref.WeakValueDictionary,
          pathlib.PurePath)  # fmt: skip


class Description:
    """Facts `(path, value)` in the order in which they were met, and pairs of paths that share memory."""

    def __init__(self, world, names=()):
        self.facts, self.shared = [], []
        self.world = world
        self._names = dict(names)  # ids of what was given names before, such as the compiled functions
        self._seen = {}
        self._keep = []
        self._memory = []

    def add(self, path, value):
        """Write down everything that `value` is made of."""
        kind = type(value)  # isinstance() would ask the object itself
        if issubclass(kind, enum.Enum):
            return self._fact(path, f"{kind.__name__}.{value.name}")
        if issubclass(kind, type):
            return self._class(path, value)
        if issubclass(kind, np.generic):
            return self._fact(path, (type(value).__name__, value.item()))
        if kind in _PLAIN or kind is float:
            return self._fact(path, value)
        if issubclass(kind, _QUIET):
            return None
        if issubclass(kind, nn.Module):
            value = getattr(value, "_orig_mod", value)
        elif id(value) in self._names:
            value = getattr(value, "__wrapped__", value)
        if id(value) in self._seen:
            return self._fact(path, f"is {self._seen[id(value)]}")
        self._seen[id(value)] = path
        self._keep.append(value)  # so that no other object gets its id
        return self._object(path, value)

    def close(self):
        """Find out who shares memory with whom, and let go of everything that was described."""
        self.shared = self._pairs()
        self._seen, self._keep, self._memory, self._names = {}, [], [], {}
        return self

    def _pairs(self):
        """Pairs of paths of tensors and arrays that have memory in common."""
        found = []
        bounds = [np.lib.array_utils.byte_bounds(array) for _, array in self._memory]
        for i, (path, array) in enumerate(self._memory):
            for j in range(i):
                if bounds[i][0] < bounds[j][1] and bounds[j][0] < bounds[i][1]:
                    if np.shares_memory(array, self._memory[j][1]):
                        found.append((self._memory[j][0], path))
        return found

    def _fact(self, path, value):
        self.facts.append((path, value))

    def _object(self, path, value):
        if id(value) in self._names and not isinstance(value, nn.Module):
            return self._way(path, value)
        way = _way_of(type(value))
        if way is not None:
            return way(self, path, value)
        self._fact(path, type(value).__name__)
        own = vars_of(value)
        for key in _keys(value):
            self.add(f"{path}.{key}", own[key] if key in own else _slot(value, key))
        return None

    def _way(self, path, value):
        self._fact(path, "the function")
        if isinstance(value, types.MethodType):
            self.add(path + ".__self__", value.__self__)
        elif isinstance(value, types.FunctionType):
            self._function(path, value)

    def _tensor(self, path, value):
        array = value._array
        # How a gradient lies in memory is nobody's promise.
        strides = () if path.endswith(".grad") or not array.size else _strides(array)
        kind = (str(value.dtype), tuple(value.shape), strides, "grad" if value.requires_grad else "no grad")
        self._fact(path, (*kind, "leaf" if value.is_leaf else "made", type(value).__name__))
        self._fact(path, array.copy())
        if array.size:
            self._memory.append((path, array))
        if value.is_leaf or value.retains_grad:
            self.add(f"{path}.grad", value.grad)

    def _array(self, path, value):
        self._fact(path, ("array", str(value.dtype), value.shape))
        self._fact(path, value.copy())
        if value.size:
            self._memory.append((path, value))

    def _mapping(self, path, value):
        self._fact(path, f"{type(value).__name__} of {len(value)}")
        for number, (key, entry) in enumerate(list(value.items())):
            name = repr(key) if isinstance(key, (str, int, float, bool, tuple, type(None))) else f"#{number}"
            self.add(f"{path}.key{number}", key)
            self.add(f"{path}[{name}]", entry)
        self._own(path, value)

    def _sequence(self, path, value):
        self._fact(path, f"{type(value).__name__} of {len(value)}")
        for number, entry in enumerate(value):
            self.add(f"{path}[{number}]", entry)
        self._own(path, value)

    def _set(self, path, value):
        self._fact(path, f"{type(value).__name__} of {len(value)}")
        self._fact(path, sorted(map(repr, (v for v in value if isinstance(v, (str, int, float, bytes))))))

    def _module(self, path, value):
        self._fact(path, type(value).__name__)
        self._fact(path + ".training", value.training)
        for name, part in [*value.named_parameters(recurse=False), *value.named_buffers(recurse=False)]:
            self.add(f"{path}.{name}", part)
        for name, part in value.named_children():
            self.add(f"{path}.{name}", part)
        for name, part in vars(value).items():
            if not name.startswith("_") and not isinstance(part, (nn.Module, wf.Tensor)):
                self.add(f"{path}.{name}", part)

    def _public(self, path, value):
        self._fact(path, type(value).__name__)
        for name, part in sorted(vars(value).items()):
            if not name.startswith("_") and not callable(part):
                self.add(f"{path}.{name}", part)
        self.add(f"{path}.state_dict()", value.state_dict())

    def _function(self, path, value):
        self._fact(path, f"function {value.__name__}" if hasattr(value, "__name__") else type(value).__name__)
        if not isinstance(value, types.FunctionType):
            return
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            self.add(f"{path}:{name}", _inside(cell))
        if id(value) not in self._names:
            self.add(f"{path}.__dict__", dict(value.__dict__))
        self.add(f"{path}.__defaults__", value.__defaults__)
        self.add(f"{path}.__kwdefaults__", value.__kwdefaults__)

    def _class(self, path, value):
        self._fact(path, f"class {value.__qualname__}")
        if value.__module__ != self.world or id(value) in self._seen:
            return
        self._seen[id(value)] = path
        for name, part in list(vars(value).items()):
            if not (name.startswith("__") or callable(part) or hasattr(type(part), "__get__")):
                self.add(f"{path}.{name}", part)

    def _generator(self, path, value):
        self._fact(path, inspect.getgeneratorstate(value))
        if value.gi_frame is not None:
            self.add(path, {k: v for k, v in value.gi_frame.f_locals.items() if not k.startswith(".")})

    def _own(self, path, value):
        for key, part in vars_of(value).items():
            self.add(f"{path}.{key}", part)


def vars_of(value):
    """The attributes of an object, or nothing."""
    try:
        return object.__getattribute__(value, "__dict__") or {}
    except AttributeError:
        return {}


def _slot(value, key):
    try:
        return object.__getattribute__(value, key)
    except AttributeError:
        return "unset"


def _keys(value):
    found = list(vars_of(value))
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        found += [s for s in ([slots] if isinstance(slots, str) else slots) if not s.startswith("__")]
    return found if not type(value).__module__.startswith(("wayfare.", "logging", "threading")) else []


def _strides(array):
    return tuple(s for s, n in zip(array.strides, array.shape, strict=True) if n > 1)


def _inside(cell):
    try:
        return cell.cell_contents
    except ValueError:
        return "empty cell"


def _length(self, path, value):
    self._fact(path, (type(value).__name__, operator.length_hint(value, -1)))


_WAYS = [
    (wf.Tensor, Description._tensor),
    (np.ndarray, Description._array),
    ((dict, types.MappingProxyType), Description._mapping),
    ((list, tuple, collections.deque), Description._sequence),
    ((set, frozenset), Description._set),
    (nn.Module, Description._module),
    ((wf.optim.Optimizer, wf.optim.lr_scheduler.LRScheduler), Description._public),
    (types.FunctionType, Description._function),
    (types.MethodType, lambda self, path, value: (self._fact(path, f"method {value.__func__.__name__}"),
                                                  self.add(path + ".__self__", value.__self__))),
    (functools.partial, lambda self, path, value: (self.add(path + ".func", value.func),
                                                   self.add(path + ".args", (value.args, value.keywords)))),
    (weakref.ref, lambda self, path, value: self.add(path + "()", value())),
    (wf.Generator, lambda self, path, value: self.add(path, value.get_state()._array.copy())),
    (random.Random, lambda self, path, value: self._fact(path, hash(value.getstate()))),
    (np.random.Generator, lambda self, path, value: self._fact(path, str(value.bit_generator.state))),
    (types.GeneratorType, Description._generator),
    (BaseException, lambda self, path, value: self._fact(path, (type(value).__name__, head(value)))),
    (collections.abc.Iterator, _length),
]  # fmt: skip


_FOUND = weakref.WeakKeyDictionary()


def _way_of(kind):
    try:
        return _FOUND[kind]
    except KeyError:
        way = _FOUND[kind] = next((way for base, way in _WAYS if issubclass(kind, base)), None)
        return way


def head(error):
    """The beginning of an error's message."""
    if isinstance(error, RecursionError):
        return ""  # where exactly it ends depends on what is below
    return str(error).split("\n")[0][:60]


def difference(got, want):
    """What is different in two descriptions, in one line; None if nothing is."""
    for (path, mine), (their_path, theirs) in zip(got.facts, want.facts, strict=False):
        if path != their_path:
            return f"{path}, in plain Python {their_path}"
        if not _same(mine, theirs):
            return f"{path}{_in_words(mine, theirs)}"
    if len(got.facts) != len(want.facts):
        longer = max(got.facts, want.facts, key=len)
        return f"only one has {longer[min(len(got.facts), len(want.facts))][0]}"
    mine, theirs = got.shared, want.shared
    if mine != theirs:
        extra = [pair for pair in mine if pair not in theirs]
        return f"{' and '.join((extra or [p for p in theirs if p not in mine])[0])} share memory " \
               f"{'only when compiled' if extra else 'only in plain Python'}"  # fmt: skip
    return None


def _same(mine, theirs):
    if mine is theirs:
        return True
    if isinstance(theirs, tuple) and isinstance(mine, tuple):
        return len(mine) == len(theirs) and all(map(_same, mine, theirs))
    if type(mine) is not type(theirs):
        return False
    if isinstance(theirs, np.ndarray):
        if mine.dtype != theirs.dtype or mine.shape != theirs.shape:
            return False
        if mine.tobytes() == theirs.tobytes():
            return True
        if theirs.dtype.kind not in "fc":
            return np.array_equal(mine, theirs)
        near = 1e-9 if theirs.dtype == np.float64 else 1e-5
        return np.allclose(mine, theirs, rtol=near, atol=near, equal_nan=True)
    if isinstance(theirs, float):
        return mine == theirs or bool(np.isclose(mine, theirs, rtol=1e-9, atol=1e-11, equal_nan=True))
    return mine == theirs


def _in_words(mine, theirs):
    if isinstance(mine, np.ndarray) and isinstance(theirs, np.ndarray) and mine.shape == theirs.shape and mine.ndim:
        where = np.argwhere(~np.isclose(mine, theirs, rtol=1e-9, atol=1e-9, equal_nan=True))
        if len(where):
            place = tuple(map(int, where[0]))
            return f"{list(place)} is {mine[place]:.5g}, in plain Python {theirs[place]:.5g}"
    return f" is {_short(mine)}, in plain Python {_short(theirs)}"


def _short(value):
    text = " ".join(repr(value).split())
    return text if len(text) <= 90 else text[:87] + "..."
