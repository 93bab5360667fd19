"""The examples of an export: their tensors, the names of inputs and axes, and the same examples at other sizes."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from wayfare.compiler.structure import OBJECT, VALUE, Opaque, put_together, take_apart
from wayfare.core.errors import ArgumentError, ArgumentTypeError, ExportError
from wayfare.core.numpy_math import Array
from wayfare.core.tensor import Tensor, to_tensor
from wayfare.exporters.recover.sizes import prime_unlike
from wayfare.nn.module import Module

Sizes = dict[str, int]
# Small sizes for up to four axes, which vary independently.
_SMALL = ((4, 9, 6, 8), (8, 3, 9, 6), (3, 6, 4, 9), (9, 8, 3, 4))


class Examples:
    """Example calls of the function: the structure of the arguments, and the arrays of each call."""

    def __init__(self, function: Any, examples: Any, names: Sequence[str] | None, axes: Any) -> None:
        self.function = function
        calls = examples if isinstance(examples, list) else [examples]
        if not calls:
            raise ArgumentError("export: the list of examples is empty",
                                fix="Give the arguments of at least one call.")  # fmt: skip
        self.arrays: list[list[Array]] = []
        self.shape: Any = None
        for number, call in enumerate(calls):
            self._enter(number, call)
        self._check_call()
        self.names = self._names(names)
        # Names in dynamic_axes that are not inputs: they must be outputs, whose sizes follow from the inputs.
        self.other_axes: list[str] = []
        self.axes = self._axes(axes)
        for arrays in self.arrays[1:]:
            self._check_fixed(arrays)

    def _enter(self, number: int, call: Any) -> None:
        arguments = call if isinstance(call, tuple) else (call,)
        arguments = tuple(to_tensor(a) if isinstance(a, np.ndarray) else a for a in arguments)
        tensors: list[Tensor] = []
        try:
            shape = take_apart(arguments, tensors, [])
        except Opaque as opaque:
            raise ArgumentTypeError(f"export: an argument holds {opaque}, which is neither a tensor nor a plain value",
                                    fix="Give what it is made of as tensors.") from None  # fmt: skip
        if not tensors:
            raise ArgumentError(f"export: example {number} has no tensor in it",
                                fix="An example is a tuple of the function's arguments.")  # fmt: skip
        elsewhere = next((t.device for t in tensors if not t.is_cpu), None)
        if elsewhere is not None:
            raise ExportError(f"export: a tensor of example {number} is on {elsewhere}, and export runs on the CPU",
                              fix="Move the model and the examples with .cpu() first.")  # fmt: skip
        if self.shape is not None and shape != self.shape:
            raise ArgumentError(f"export: the arguments of example {number} have another form than those of the first",
                                fix="All examples must have the same tuples, keys, numbers and texts.")  # fmt: skip
        self.shape = shape
        arrays = [t.detach()._array for t in tensors]
        if self.arrays:
            for have, other in zip(self.arrays[0], arrays, strict=True):
                if have.dtype != other.dtype or have.ndim != other.ndim:
                    raise ArgumentError(f"export: example {number} has {other.dtype}{list(other.shape)} where the "
                                        f"first has {have.dtype}{list(have.shape)}")  # fmt: skip
        self.arrays.append(arrays)

    def _check_call(self) -> None:
        """Check the number of arguments. (A list of tensors is taken for several examples.)"""
        signature = self._signature()
        if signature is None:
            return
        try:
            signature.bind(*self.shape[1:])
        except TypeError as why:
            raise ArgumentTypeError(
                f"export: an example has {len(self.shape) - 1} arguments, and the function is {signature}: {why}",
                fix="An example is a tuple of all arguments of a call; a list holds several examples.",
            ) from None

    def _signature(self) -> inspect.Signature | None:
        """The signature of the function; None for functions of C, which may not have one."""
        target: Any = self.function.forward if isinstance(self.function, Module) else self.function
        try:
            return inspect.signature(target)
        except (TypeError, ValueError):
            return None

    def call(self, tensors: Sequence[Tensor]) -> Any:
        """Call the function with these tensors in place of the examples'."""
        return self.function(*self.arguments(tensors))

    def arguments(self, tensors: Sequence[Tensor]) -> Any:
        """The arguments with these tensors in them."""
        return put_together(self.shape, iter(tensors))

    # -- names

    def _names(self, given: Sequence[str] | None) -> list[str]:
        if given is not None and not isinstance(given, (list, tuple)):
            raise ArgumentTypeError(f"export: input_names must be a list of names, it is {given!r}")
        found = self._found_names() if given is None else list(given)
        count = len(self.arrays[0])
        if len(found) != count or not all(isinstance(n, str) and n for n in found):
            raise ArgumentError(f"export: the function takes {count} tensors, input_names are {given!r}",
                                fix="Give a list of one name for each tensor among the arguments.")  # fmt: skip
        if len(set(found)) != count:
            raise ArgumentError(f"export: two inputs have one name: {found}")
        return found

    def _found_names(self) -> list[str]:
        """Input names from the parameters of the function."""
        parts = self.shape[1:]
        signature = self._signature()
        parameters = [] if signature is None else signature.parameters.values()
        plain = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        names = [*plain, *[f"input_{i}" for i in range(len(plain), len(parts))]]
        found: list[str] = []
        for name, part in zip(names, parts, strict=False):
            found += tensor_names(part, name)
        return found

    def _axes(self, given: Any) -> list[dict[int, str]]:
        """The names of the dynamic axes of each input. A list of axes such as `[0, 1]` gets automatic names."""
        found: list[dict[int, str]] = [{} for _ in self.names]
        if given is not None and not isinstance(given, dict):
            raise ArgumentTypeError(f"export: dynamic_axes must be a dictionary, it is {given!r}",
                                    fix='Write it like {"x": {0: "batch"}}.')  # fmt: skip
        for name, axes in (given or {}).items():
            if name not in self.names:
                self.other_axes.append(str(name))
                continue
            number = self.names.index(name)
            rank = self.arrays[0][number].ndim
            if not isinstance(axes, (dict, list, tuple)):
                raise ArgumentTypeError(f"export: dynamic_axes: the axes of {name} are {axes!r}",
                                        fix=f'Write it like {{"{name}": {{0: "batch"}}}}.')  # fmt: skip
            named = dict(axes) if isinstance(axes, dict) else {a: f"{name}_axis_{a}" for a in axes}
            for axis, label in named.items():
                if type(axis) is not int or not -rank <= axis < rank:
                    raise ArgumentError(f"export: dynamic_axes: {name} has {rank} dimensions, and no axis {axis!r}")
                if not isinstance(label, str) or not label.isidentifier():
                    raise ArgumentError(f"export: dynamic_axes: the name of an axis cannot be {label!r}",
                                        fix='Use a name such as "batch".')  # fmt: skip
                if found[number].setdefault(axis % rank, label) != label:
                    raise ArgumentError(f"export: dynamic_axes: axis {axis % rank} of {name} has two names")
        for arrays in self.arrays:
            self.sizes_of(arrays, found)
        return found

    def sizes_of(self, arrays: Sequence[Array], axes: list[dict[int, str]] | None = None) -> Sizes:
        """The dynamic sizes of a call by name; equal names must have equal sizes."""
        sizes: Sizes = {}
        for name, array, named in zip(self.names, arrays, self.axes if axes is None else axes, strict=True):
            for axis, label in named.items():
                if sizes.setdefault(label, array.shape[axis]) != array.shape[axis]:
                    raise ArgumentError(f"export: the size {label!r} is {sizes[label]} elsewhere and "
                                        f"{array.shape[axis]} in axis {axis} of {name}",
                                        fix="Give different sizes different names.")  # fmt: skip
        return sizes

    def sizes_text(self, arrays: Sequence[Array]) -> str:
        """The dynamic sizes of a call for an error: `batch=2, length=7`."""
        return shown(self.sizes_of(arrays)) or "the example's sizes"

    def _check_fixed(self, arrays: Sequence[Array]) -> None:
        for number, (name, have, other) in enumerate(zip(self.names, self.arrays[0], arrays, strict=True)):
            for axis, (a, b) in enumerate(zip(have.shape, other.shape, strict=True)):
                if a != b and axis not in self.axes[number]:
                    raise ArgumentError(f"export: axis {axis} of {name} is {a} in one example and {b} in another, and "
                                        "is not among the dynamic axes",
                                        fix=f'Add it: dynamic_axes={{"{name}": {{{axis}: "length"}}}}.')  # fmt: skip

    # -- other sizes

    def resized(self, arrays: Sequence[Array], sizes: Sizes) -> list[Array]:
        """The arrays of a call at other sizes: cut short, or repeated from the beginning."""
        made = []
        for array, named in zip(arrays, self.axes, strict=True):
            for axis, label in named.items():
                if array.shape[axis] == 0:
                    raise ArgumentError(f"export: the size {label!r} is 0 in an example, so it cannot be varied",
                                        fix="Give an example with at least one element.")  # fmt: skip
                array = array.take(np.arange(sizes[label]) % array.shape[axis], axis=axis)
            made.append(np.array(array, order="C"))
        return made

    def elements(self, arrays: Sequence[Array], sizes: Sizes) -> int:
        """How many elements a call has at other sizes."""
        total = 0
        for array, named in zip(arrays, self.axes, strict=True):
            total += math.prod([sizes[named[axis]] if axis in named else n for axis, n in enumerate(array.shape)])
        return total

    def other_sizes(self, number: int) -> Iterator[Sizes]:
        """Sizes to try for a call: small distinct primes, other small sizes, then larger ones than it has.

        Also multiples, for a function that needs those, and sizes near the given ones, for one that needs large ones.
        """
        have = self.sizes_of(self.arrays[number])
        yield self._unlike(dict.fromkeys(have, 5))
        for row in _SMALL:
            yield {label: row[i % len(row)] + i // len(row) for i, label in enumerate(have)}
        yield self._unlike(have)
        for times, more in ((3, 1), (2, 3), (5, 2), (4, 6), (7, 4), (6, 5)):
            yield {label: n * (times + shift) for shift, (label, n) in enumerate(have.items())}
            yield {label: n + more * (shift + 1) for shift, (label, n) in enumerate(have.items())}

    def _unlike(self, least: Sizes) -> Sizes:
        """Primes of at least these sizes, different from each other and from all sizes of the first call."""
        taken = {n for array in self.arrays[0] for n in array.shape}
        found: Sizes = {}
        for label, n in least.items():
            found[label] = prime_unlike(taken, n)
            taken.add(found[label])
        return found


def tensor_names(shape: Any, base: str) -> list[str]:
    """Names for the tensors of a structure: `base_key` for keys and fields, `base_0`, `base_1`, … otherwise."""
    if not isinstance(shape, tuple):
        return [base]
    kind, *parts = shape
    if parts and parts[0] in (VALUE, OBJECT):
        return []
    if kind is dict:
        named = [(str(key), part) for _, key, part in parts]
    else:
        named = list(zip(getattr(kind, "_fields", map(str, range(len(parts)))), parts, strict=True))
    names = [name for key, part in named for name in tensor_names(part, f"{base}_{key}" if base else key)]
    if kind not in (tuple, list) or not _is_numbered(shape):
        return names
    # Nested tuples are numbered through, and a single tensor needs no number.
    return [base] if len(names) == 1 and base else [f"{base}_{i}" if base else str(i) for i in range(len(names))]


def _is_numbered(shape: Any) -> bool:
    """Has a structure no keys and no fields?"""
    if not isinstance(shape, tuple) or shape[1:2] in ((VALUE,), (OBJECT,)):
        return True
    return shape[0] in (tuple, list) and all(map(_is_numbered, shape[1:]))


def shown(sizes: Sizes) -> str:
    """`batch=2, length=7`."""
    return ", ".join(f"{label}={n}" for label, n in sizes.items())


def runs_of(examples: Examples, trace: Callable[[list[Array]], Any], wanted: int) -> Iterator[Any]:
    """Traces of all examples at several sizes; the first trace has sizes that are distinct primes.

    A function need not work at every size (only even ones, say), but the first example must work at some other sizes
    than its own. Other examples that do not are traced at their own sizes only.
    """
    for number, arrays in enumerate(examples.arrays):
        own = trace(arrays)
        if not any(examples.axes):
            yield own
            continue
        others, failure = [], None
        for sizes in examples.other_sizes(number):
            given = examples.resized(arrays, sizes)
            try:
                others.append(trace(given))
            except ExportError:
                raise
            except Exception as error:
                failure = (sizes, error)
            if len(others) == wanted:
                break
        if not others and number == 0:
            assert failure is not None
            raise ExportError(
                f"export: the function runs at no other sizes than the example's; with {shown(failure[0])} it raises "
                f"{type(failure[1]).__name__}: {failure[1]}",
                fix="Begin with an example that can be cut short along that axis, or leave it out of dynamic_axes.",
            ) from failure[1]
        yield from others
        yield own
