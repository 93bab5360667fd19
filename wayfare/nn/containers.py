"""Containers: modules in a row, in a list, in a dictionary, and the same for parameters."""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any, Self, overload

from wayfare.core.errors import ArgumentError, ArgumentTypeError, IndexRangeError, MissingKeyError
from wayfare.core.structure_epoch import structure_changed
from wayfare.core.tensor import Tensor
from wayfare.nn.module import Module
from wayfare.nn.parameter import Parameter
from wayfare.nn.tables import MODULE, PARAMETER

__all__ = ["Sequential", "ModuleList", "ModuleDict", "ParameterList", "ParameterDict"]


def _place(container: Module, index: Any, length: int) -> int:
    """An index counted from the front."""
    number = operator.index(index)
    if not -length <= number < length:
        raise IndexRangeError(f"{type(container).__name__}: there is no entry {number}, it has {length}")
    return number % length


class _Numbered(Module):
    """Modules under the names "0", "1", …, in order."""

    def _entries(self) -> list[str]:
        """The names of the entries: buffers and parameters may be registered beside them."""
        return [name for name, kind in self._names.items() if kind == MODULE]

    def _list(self) -> list[Any]:
        held = self.__dict__
        return [held[name] for name, kind in self._names.items() if kind == MODULE]

    def _renumber(self, modules: Iterable[Any]) -> None:
        modules = list(modules)
        for module in modules:
            if module is not None and not isinstance(module, Module):
                raise ArgumentTypeError(f"{type(self).__name__}: takes modules, not {type(module).__name__}")
        for name in self._entries():
            del self.__dict__[name], self._names[name]
        for number, module in enumerate(modules):
            self.register_module(str(number), module)
        structure_changed()

    def __len__(self) -> int:
        return len(self._entries())

    def __iter__(self) -> Iterator[Any]:
        return iter(self._list())

    def append(self, module: Module) -> Self:
        """Add a module at the end."""
        self.add_module(self._free_name(), module)
        return self

    def _free_name(self) -> str:
        number = len(self)
        while str(number) in self._names:
            number += 1
        return str(number)

    def extend(self, modules: Iterable[Module]) -> Self:
        """Add modules at the end."""
        if not isinstance(modules, Iterable):
            raise ArgumentTypeError(f"{type(self).__name__}.extend: takes modules to go through, not "
                                    f"{type(modules).__name__}")  # fmt: skip
        for module in list(modules):
            self.append(module)
        return self

    def insert(self, index: int, module: Module) -> None:
        """Put a module before the one at `index`."""
        if not -len(self) <= index <= len(self):
            raise IndexRangeError(f"{type(self).__name__}: cannot insert at {index}, it has {len(self)} entries")
        modules = self._list()
        modules.insert(index, module)
        self._renumber(modules)

    def pop(self, key: int | slice) -> Any:
        """Take a module out and return it."""
        taken = self[key]
        del self[key]
        return taken

    def __getitem__(self, index: Any) -> Any:
        return self._list()[_place(self, index, len(self))]

    def __setitem__(self, index: int, module: Module) -> None:
        self.register_module(self._entries()[_place(self, index, len(self))], module)

    def __delitem__(self, index: int | slice) -> None:
        modules = self._list()
        if isinstance(index, slice):
            del modules[index]
        else:
            del modules[_place(self, index, len(self))]
        self._renumber(modules)


class Sequential(_Numbered):
    """Modules run one after the other, each on what the one before it gave.

    `Sequential(Linear(4, 8), ReLU())`, or with names of your own `Sequential({"hidden": Linear(4, 8)})`.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__()
        if len(args) == 1 and isinstance(args[0], (list, tuple)):
            raise ArgumentTypeError("Sequential: takes modules one by one, not a list of them",
                                    fix="Write nn.Sequential(*layers).")  # fmt: skip
        if len(args) == 1 and isinstance(args[0], Mapping):
            for name, module in args[0].items():
                self.add_module(name, module)
        else:
            for number, module in enumerate(args):
                self.add_module(str(number), module)

    def forward(self, input: Any) -> Any:
        """Each module's output is the next one's input."""
        for module in self._list():
            input = module(input)
        return input

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):  # A part keeps the names that its modules have.
            return type(self)({name: self.__dict__[name] for name in self._entries()[index]})
        return super().__getitem__(index)

    def insert(self, index: int, module: Module) -> Self:  # type: ignore[override]
        """Put a module before the one at `index`, and give back the container."""
        super().insert(index, module)
        return self

    def _check_summand(self, other: Any) -> None:
        if not isinstance(other, Sequential):
            raise ArgumentError(f"Sequential: + takes another Sequential, not {type(other).__name__}",
                                fix="Use extend for a list of modules, append for one.")  # fmt: skip

    def __add__(self, other: Any) -> Sequential:
        self._check_summand(other)
        return Sequential(*self, *other)

    def __iadd__(self, other: Any) -> Self:
        self._check_summand(other)
        return self.extend(other)

    def _check_factor(self, times: Any) -> None:
        if not isinstance(times, int):
            raise ArgumentTypeError(f"Sequential: * takes an int, not {type(times).__name__}")
        if times <= 0:
            raise ArgumentError(f"Sequential: * takes a number of at least 1, not {times}")

    def __mul__(self, times: int) -> Sequential:
        """The same modules `times` times over: they share their parameters."""
        self._check_factor(times)
        return Sequential(*(self._list() * times))

    __rmul__ = __mul__

    def __imul__(self, times: int) -> Self:
        self._check_factor(times)
        return self.extend(self._list() * (times - 1))

class ModuleList(_Numbered):
    """A list of modules whose parameters are the model's. It can grow and shrink while the model trains."""

    def __init__(self, modules: Iterable[Module] | None = None) -> None:
        super().__init__()
        if modules is not None:
            self.extend(modules)

    def __getitem__(self, index: Any) -> Any:
        return type(self)(self._list()[index]) if isinstance(index, slice) else super().__getitem__(index)

    def __iadd__(self, modules: Iterable[Module]) -> Self:
        return self.extend(modules)

    def __add__(self, other: Iterable[Module]) -> ModuleList:
        return ModuleList([*self, *other])

    def __repr__(self) -> str:
        """Equal entries in a row are shown once, with their numbers."""
        shown = [repr(module) for module in self]
        if not shown:
            return f"{type(self).__name__}()"
        lines = []
        start = 0
        for end in range(1, len(shown) + 1):
            if end == len(shown) or shown[end] != shown[start]:
                one = end == start + 1
                label = f"({start}): " if one else f"({start}-{end - 1}): {end - start} x "
                lines.append(label + shown[start].replace("\n", "\n  "))
                start = end
        return f"{type(self).__name__}(\n  " + "\n  ".join(lines) + "\n)"


class _ByName(Module, MutableMapping[str, Any]):
    """What a dictionary can do, over the entries that `_order` names."""

    _order: Mapping[str, Any]

    def __getitem__(self, key: str) -> Any:
        if key not in self._order:
            raise self._missing(key)
        return self.__dict__[key]

    def __delitem__(self, key: str) -> None:
        if key not in self._order:
            raise self._missing(key)
        delattr(self, key)

    def _missing(self, key: Any) -> MissingKeyError:
        known = list(self._order)
        shown = ", ".join(map(repr, known[:10])) + (f", … ({len(known)} in all)" if len(known) > 10 else "")
        return MissingKeyError(f"{type(self).__name__}: there is no {key!r}, "
                               + (f"it has {shown}" if known else "it is empty"))  # fmt: skip

    def __contains__(self, key: object) -> bool:
        return key in self._order

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._order))

    def popitem(self) -> tuple[str, Any]:
        """Take the last entry out, as (name, value)."""
        if not self:
            raise MissingKeyError(f"{type(self).__name__}.popitem: it is empty")
        name = list(self._order)[-1]
        return name, self.pop(name)

    def update(self, *given: Any, **named: Any) -> None:
        """Take in the entries of a dictionary, or pairs."""
        try:
            entries = dict(*given)
        except (TypeError, ValueError):
            kind = type(self).__name__
            raise ArgumentTypeError(f"{kind}: takes a dictionary or pairs (name, {kind[:-4].lower()}), not "
                                    f"{type(given[0]).__name__}") from None  # fmt: skip
        for name, value in self._ordered(entries | named, *given):
            self[name] = value

    def _ordered(self, entries: dict[str, Any], *_given: Any) -> Iterable[tuple[str, Any]]:
        """The order in which entries are taken in."""
        return entries.items()

    # A module is equal to itself only, and a key of dictionaries.
    __eq__ = object.__eq__
    __hash__ = object.__hash__


class ModuleDict(_ByName):
    """A dictionary of modules whose parameters are the model's."""

    def __init__(self, modules: Any = None) -> None:
        super().__init__()
        if modules is not None:
            self.update(modules)

    @property
    def _order(self) -> Mapping[str, Any]:  # type: ignore[override]
        modules: Mapping[str, Any] = self._modules
        return modules

    def __setitem__(self, key: str, module: Module) -> None:
        self.add_module(key, module)


def _as_parameter(value: Any) -> Any:
    """Tensors become parameters; parameters and other values stay what they are."""
    return Parameter(value) if isinstance(value, Tensor) and not isinstance(value, Parameter) else value


def _described(value: Any) -> str:
    if not isinstance(value, Tensor):
        return f"Object of type: {type(value).__name__}"
    kind = "Parameter" if isinstance(value, Parameter) else "Tensor"
    return f"{kind} containing: [{value.dtype} of size {'x'.join(map(str, value.shape))}]"


class ParameterList(Module):
    """A list of parameters; tensors given to it become parameters, other values are kept as they are."""

    def __init__(self, values: Iterable[Any] | None = None) -> None:
        super().__init__()
        self._size = 0
        if values is not None:
            self.extend(values)

    def _values(self) -> list[Any]:
        return [self.__dict__[str(number)] for number in range(self._size)]

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values())

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> ParameterList: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return type(self)(self._values()[index])
        return self._values()[_place(self, index, self._size)]

    def __setitem__(self, index: int, value: Any) -> None:
        setattr(self, str(_place(self, index, self._size)), _as_parameter(value))

    def append(self, value: Any) -> Self:
        """Add a value at the end."""
        setattr(self, str(self._size), _as_parameter(value))
        self._size += 1
        return self

    def extend(self, values: Iterable[Any]) -> Self:
        """Add values at the end."""
        if isinstance(values, Tensor) or not isinstance(values, Iterable):
            raise ArgumentTypeError(f"ParameterList: takes values to go through, not {type(values).__name__}",
                                    fix="Put them into a list.")  # fmt: skip
        for value in list(values):
            self.append(value)
        return self

    def __iadd__(self, values: Iterable[Any]) -> Self:
        return self.extend(values)

    def extra_repr(self) -> str:
        """One line a value."""
        return "\n".join(f"({number}): {_described(value)}" for number, value in enumerate(self))


class ParameterDict(_ByName):
    """A dictionary of parameters; tensors given to it become parameters, other values are kept as they are."""

    def __init__(self, parameters: Any = None) -> None:
        super().__init__()
        self._order: dict[str, None] = {}
        if parameters is not None:
            self.update(parameters)

    def __setitem__(self, key: str, value: Any) -> None:
        if key not in self._order:
            self._check_name(key, PARAMETER)
        setattr(self, key, _as_parameter(value))
        self._order[key] = None

    def __delitem__(self, key: str) -> None:
        super().__delitem__(key)
        del self._order[key]

    def _ordered(self, entries: dict[str, Any], *given: Any) -> Iterable[tuple[str, Any]]:
        # As in PyTorch: a plain dictionary is sorted, so that its parameters always have one order.
        plain = given and isinstance(given[0], Mapping) and not isinstance(given[0], (OrderedDict, ParameterDict))
        return sorted(entries.items(), key=lambda entry: entry[0]) if plain else entries.items()

    def __reversed__(self) -> Iterator[str]:
        return reversed(list(self._order))

    def copy(self) -> ParameterDict:
        """Another dictionary of the same parameters."""
        return ParameterDict(list(self.items()))

    def fromkeys(self, keys: Iterable[str], default: Any = None) -> ParameterDict:
        """Another dictionary, with one value for all these keys."""
        return ParameterDict([(key, default) for key in keys])

    def __or__(self, other: Any) -> ParameterDict:
        both = self.copy()
        both.update(other)
        return both

    def __ror__(self, other: Any) -> ParameterDict:
        both = ParameterDict(other)
        both.update(self)
        return both

    def __ior__(self, other: Any) -> Self:
        self.update(other)
        return self

    def extra_repr(self) -> str:
        """One line a value."""
        return "\n".join(f"({key}): {_described(value)}" for key, value in self.items())
