"""One elementwise record on large arrays: its formula as a native loop, and its gradient rules as another.

`LargeForm` has the signature of the record's `forward`; `LargeGradients` computes all needed gradients of a node in one
loop. If a formula or a rule cannot be written in the loop language, the first falls back to NumPy, and the second
returns None. Both write their loops with `ElementwiseLoops`, which another device gives a builder of its own kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from wayfare.codegen.loop.expr import NUMPY, OF_NUMPY, Expr, cast, const, load, promote
from wayfare.codegen.loop.language import Loop, Operand, Stage, validate
from wayfare.codegen.math.library import lowered
from wayfare.codegen.runtime import kernel as native
from wayfare.codegen.runtime.kernel import Kernel
from wayfare.core import buffer_pool
from wayfare.core.config import settings
from wayfare.core.device import ARRAYS
from wayfare.core.errors import LoopError, WayfareError
from wayfare.core.numpy_math import Array
from wayfare.core.op import REGISTRY, Op, joint
from wayfare.core.spec import OF_NUMPY as DTYPE_OF
from wayfare.core.spec import DType, Spec
from wayfare.ir.fuse.expressions import computed_in, converted, written

# The most sets of dtypes and attributes that are kept for one record.
_REMEMBERED = 256
_FAILURES = (WayfareError, AttributeError, TypeError, ValueError, KeyError, NotImplementedError)


class _Numbers:
    """Attributes of the record that are inputs of the loop, given at run time."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.values: list[tuple[float, str]] = []
        self._places: dict[tuple[str, str], int] = {}

    def __call__(self, value: float, dtype: str) -> Expr:
        # Compared by bits: 0.0 and -0.0 are different, NaN equals NaN.
        place = self._places.setdefault((float(value).hex(), dtype), len(self.values))
        if place == len(self.values):
            self.values.append((value, dtype))
        return load(self.first + place, dtype)

    def arrays(self) -> list[Array]:
        """The numbers as 0-dimensional arrays."""
        return [np.asarray(value, NUMPY[dtype]) for value, dtype in self.values]


def _key_of(attrs: dict[str, Any]) -> Any:
    # 0.0 == -0.0, but the sign of an attribute may matter.
    return str(attrs) if 0 in attrs.values() else tuple(attrs.items())


def _loaded(number: int, dtype: np.dtype[Any]) -> Expr:
    return cast(load(number, OF_NUMPY[dtype]), computed_in(dtype))


def _loop(name: str, dtypes: Sequence[np.dtype[Any]], numbers: _Numbers, made: Sequence[Expr]) -> Loop:
    inputs = tuple(Operand(OF_NUMPY[d]) for d in dtypes) + tuple(Operand(d) for _, d in numbers.values)
    outputs = tuple(Operand(e.dtype) for e in made)
    loop = Loop(name, inputs, outputs, (Stage(tuple(enumerate(made))),))
    if any(d.kind in "biu" for d in dtypes):
        # Some functions of integers and bools have no instructions: find that out now.
        validate(lowered(loop), frozenset())
    return loop


def _fits(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Does an array of this shape broadcast to the wanted one?"""
    extra = len(wanted) - len(shape)
    return extra >= 0 and all(n in (1, m) for n, m in zip(shape, wanted[extra:], strict=True))


def _native(loop: Loop) -> Kernel | None:
    return native.build(loop) if native.available() else None


def _itself(array: Array) -> Any:
    return array


class _Loops:
    """Kernels of an elementwise record, one for each set of dtypes and attributes. `build` makes a kernel of a loop, or
    None where there is none; `number` brings a 0-dimensional array to the kernel's device."""

    __slots__ = ("_build", "_known", "_number", "op")

    def __init__(
        self, op: Op, build: Callable[[Loop], Any] = _native, number: Callable[[Array], Any] = _itself
    ) -> None:
        self.op = op
        self._build = build
        self._number = number
        # Kernel, numbers that it takes behind the arrays, and (of gradients) where each is among its results.
        self._known: dict[Any, Any] = {}


class ElementwiseLoops(_Loops):
    """The forward of an elementwise record as kernels."""

    __slots__ = ()

    def find(self, arrays: Sequence[Array], attrs: dict[str, Any]) -> tuple[Any, list[Any]] | None:
        """The kernel for arrays like these, and the 0-dimensional arrays that it takes behind them; None: no kernel."""
        try:
            key: Any = tuple([a.dtype.char for a in arrays])
            if attrs:
                key = (key, _key_of(attrs))
            known: tuple[Any, list[Any]] | None = self._known[key]
            return known
        except KeyError:
            found = self._make([a.dtype for a in arrays], attrs)
        except (TypeError, AttributeError):
            return None  # an unhashable attribute, or a plain number as an array
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        self._known[key] = found
        return found

    def _make(self, dtypes: list[np.dtype[Any]], attrs: dict[str, Any]) -> tuple[Any, list[Any]] | None:
        op = self.op
        try:
            numbers = _Numbers(len(dtypes))
            out = op.infer(*(Spec((), DTYPE_OF[d]) for d in dtypes), **attrs).dtype.numpy
            made = written(op, [_loaded(i, d) for i, d in enumerate(dtypes)], attrs, out, numbers)
            kernel = self._build(_loop(op.name, dtypes, numbers, [converted(made, OF_NUMPY[out])]))
        except _FAILURES:
            return None
        return None if kernel is None else (kernel, [self._number(a) for a in numbers.arrays()])


class LargeForm(ElementwiseLoops):
    """The forward of an elementwise record, on large arrays."""

    __slots__ = ("_quick", "left_to_numpy")

    def __init__(self, op: Op, left_to_numpy: str = "") -> None:
        super().__init__(op)
        # Characters of the dtypes for which NumPy is faster.
        self.left_to_numpy = left_to_numpy
        self._quick: dict[Any, tuple[Any, np.dtype[Any]]] = {}

    def __call__(self, *arrays: Array, **attrs: Any) -> Any:
        quick = None
        if not attrs:
            # The launch plan for arrays with the same shapes and strides is cached.
            try:
                quick = tuple([(a.__class__, a.dtype.char, a.shape, a.strides) for a in arrays])
            except AttributeError:  # a plain number for an array
                return self._by_record(arrays, {})
            known = self._quick.get(quick)
            if known is not None and known[0].threads == settings.num_threads:
                plan, dtype = known
                out = buffer_pool.empty(plan.made[0], dtype)
                plan.run(*arrays, out)
                return out
        found = self.find(arrays, attrs)
        if found is None:
            return self._by_record(arrays, attrs)
        kernel, numbers = found
        out = kernel([*arrays, *numbers] if numbers else arrays)[0]
        if not attrs and not numbers:
            plan = kernel.plan_of_new(arrays)
            if plan is not None and all(a.__class__ is np.ndarray for a in arrays):
                if len(self._quick) >= _REMEMBERED:
                    self._quick.clear()
                self._quick[quick] = (plan, out.dtype)
        return out

    def _by_record(self, arrays: Sequence[Any], attrs: dict[str, Any]) -> Any:
        return self.op.forward_for([a.dtype for a in arrays if hasattr(a, "dtype")])(*arrays, **attrs)

    def into(self, out: Array, *arrays: Array, **attrs: Any) -> bool:
        """Write the result to `out` (which may be one of the arrays); False if that is not possible."""
        found = self.find(arrays, attrs)
        if found is None or not all(a.shape == out.shape or _fits(a.shape, out.shape) for a in arrays):
            return False
        kernel, numbers = found
        if kernel.loop.outputs[0].dtype != OF_NUMPY.get(out.dtype):
            return False  # a comparison returns bools, which would need a conversion
        kernel([*arrays, *numbers], [out])
        return True

    def _make(self, dtypes: list[np.dtype[Any]], attrs: dict[str, Any]) -> tuple[Any, list[Any]] | None:
        return None if dtypes[0].char in self.left_to_numpy else super()._make(dtypes, attrs)


class _RuleOps:
    """The `m` of a gradient rule that becomes a loop: elementwise ops on expressions."""

    # Gradient rules use ops only, and no NumPy functions.
    works_on_arrays = False

    def __init__(self, numbers: _Numbers) -> None:
        self._numbers = numbers

    def __getattr__(self, name: str) -> Any:
        op = REGISTRY[name]
        if op.family != "elementwise" or op.outputs != 1:
            raise LoopError(f"{name} is no elementwise op")

        def call(*values: Any, **attrs: Any) -> Expr:
            known = promote(v.dtype for v in values if isinstance(v, Expr))
            args = [v if isinstance(v, Expr) else const(v, known) for v in values]
            dtype: DType | None = attrs.get("dtype")
            specs = [Spec((), DTYPE_OF[NUMPY[a.dtype]]) for a in args]
            out = dtype.numpy if dtype is not None else op.infer(*specs, **attrs).dtype.numpy
            return written(op, args, attrs, out, self._numbers)

        return call


class LargeGradients(_Loops):
    """The gradients of an elementwise op on large arrays. `ran` is told of each kernel that has run."""

    __slots__ = ("ran",)

    def __init__(self, *arguments: Any, ran: Callable[..., None] | None = None) -> None:
        super().__init__(*arguments)
        self.ran = ran

    def __call__(self, g: Array, kept: tuple[Any, ...], needs: tuple[bool, ...], attrs: dict[str, Any]) -> Any:
        """One gradient (or None) for each input, or None if the rules must run in NumPy."""
        arrays = [g]
        key: list[Any] = [g.dtype.char, needs]
        for value in kept:
            if value.__class__ in ARRAYS:
                arrays.append(value)
                key.append(value.dtype.char)
            elif value is None:
                key.append(None)
            else:
                return None
        if attrs:
            key.append(_key_of(attrs))
        try:
            found = self._known[tuple(key)]
        except KeyError:
            found = self._make(arrays, kept, needs, attrs)
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[tuple(key)] = found
        except TypeError:
            return None
        if found is None:
            return None
        kernel, numbers, places = found
        # -1: the gradient passes unchanged.
        made = kernel([*arrays, *numbers]) if kernel is not None else []
        if self.ran is not None:
            self.ran(needs, kept, attrs, [*arrays, *numbers], kernel, places)
        return [None if place is None else g if place < 0 else made[place] for place in places]

    def _make(self, arrays: list[Array], kept: tuple[Any, ...], needs: tuple[bool, ...], attrs: dict[str, Any]) -> Any:
        op = self.op
        if isinstance(op.vjp, joint) or op.vjp is None:
            return None
        dtypes = [a.dtype for a in arrays]
        numbers = _Numbers(len(dtypes))
        m = _RuleOps(numbers)
        given = _loaded(0, dtypes[0])
        count = 0
        values: list[Any] = []
        for value in kept:
            if value is not None:
                count += 1
            values.append(None if value is None else _loaded(count, dtypes[count]))
        try:
            roots: list[Expr | None] = []
            for rule, wanted in zip(op.vjp, needs, strict=True):
                if not wanted or rule is None:
                    roots.append(None)
                    continue
                floats = {k: numbers(v, given.dtype) if isinstance(v, float) else v for k, v in attrs.items()}
                try:
                    made = rule(m, given, *values, **floats)
                except LoopError:
                    made = rule(m, given, *values, **attrs)
                roots.append(made if isinstance(made, Expr) else const(made, given.dtype))
            outs = [e for e in roots if e is not None and e is not given]
            own = OF_NUMPY[dtypes[0]]
            # Two inputs with the same gradient get an array each, unless it is g itself.
            kernel = None
            if outs:
                kernel = self._build(_loop(op.name + "_grad", dtypes, numbers, [converted(e, own) for e in outs]))
                if kernel is None:
                    return None
        except _FAILURES:
            return None
        places = iter(range(len(outs)))
        given_numbers = [self._number(a) for a in numbers.arrays()]
        return kernel, given_numbers, tuple(None if e is None else -1 if e is given else next(places) for e in roots)


def prepare(op: Op, large_from: int, large_vjp_from: int, left_to_numpy: str = "") -> None:
    """Give an elementwise record its forward and gradients for large arrays."""
    op.large = LargeForm(op, left_to_numpy)
    op.large_from = large_from
    if isinstance(op.vjp, tuple):
        op.large_vjp = LargeGradients(op)
        op.large_vjp_from = large_vjp_from
