"""Containers: modules in a row, in a list, in a dictionary, and the same for parameters."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any, Self, overload

from wayfare.errors import ArgumentTypeError, IndexRangeError, MissingKeyError
from wayfare.graph.epoch import structure_changed
from wayfare.nn.module import MODULE, PARAMETER, Module
from wayfare.nn.parameter import Parameter
from wayfare.tensor import Tensor

__all__ = ["Sequential", "ModuleList", "ModuleDict", "ParameterList", "ParameterDict"]


def _place(container: Module, index: Any, length: int) -> int:
    """An index counted from the front."""
    number = operator.index(index)
    if not -length <= number < length:
        raise IndexRangeError(f"{type(container).__name__}: there is no entry {number}, it has {length}")
    return number % length


class _Numbered(Module):
    """Modules under the names "0", "1", …, in order."""

    def _list(self) -> list[Any]:
        return [self.__dict__[name] for name in self._names]

    def _renumber(self, modules: Iterable[Any]) -> None:
        modules = list(modules)
        for module in modules:
            if module is not None and not isinstance(module, Module):
                raise ArgumentTypeError(f"{type(self).__name__}: takes modules, not {type(module).__name__}")
        for name in list(self._names):
            del self.__dict__[name]
        self._names.clear()
        for number, module in enumerate(modules):
            self._enter(str(number), MODULE, module)
        structure_changed()

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._list())

    def append(self, module: Module) -> Self:
        """Add a module at the end."""
        self.add_module(self._free_name(), module)
        return self

    def _free_name(self) -> str:
        number = len(self._names)
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
        self.register_module(list(self._names)[_place(self, index, len(self))], module)

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
            return type(self)({name: self.__dict__[name] for name in list(self._names)[index]})
        return super().__getitem__(index)

    def __delitem__(self, index: int | slice) -> None:
        names = list(self._names)
        for name in names[index] if isinstance(index, slice) else [names[_place(self, index, len(self))]]:
            delattr(self, name)
        if all(name.isdecimal() for name in self._names):
            self._renumber(self._list())

    def __add__(self, other: Any) -> Sequential:
        if not isinstance(other, Sequential):
            return NotImplemented
        return Sequential(*self, *other)


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

    def update(self, *given: Any, **named: Any) -> None:
        """Take in the entries of a dictionary, or pairs."""
        try:
            entries = dict(*given)
        except (TypeError, ValueError):
            kind = type(self).__name__
            raise ArgumentTypeError(f"{kind}: takes a dictionary or pairs (name, {kind[:-4].lower()}), not "
                                    f"{type(given[0]).__name__}") from None  # fmt: skip
        for name, value in (entries | named).items():
            self[name] = value

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
        return self._names

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

    def extra_repr(self) -> str:
        """One line a value."""
        return "\n".join(f"({key}): {_described(value)}" for key, value in self.items())
