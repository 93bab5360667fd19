"""Kernels whose launches are remembered by the layouts of what they are given, so that native code runs them at once
(`native/plans.h`, `native/device.h`), and products of matrices whose calls are remembered in the same way.

Everything here also runs without the native module: then a kernel looks up its own plan at each call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from wayfare.codegen.cuda import gemm
from wayfare.codegen.cuda.gemm import FLOATS, gemm_calls
from wayfare.codegen.cuda.launch import Launcher
from wayfare.codegen.loop.expr import OF_NUMPY
from wayfare.codegen.routines.reductions import reduce_by, reducing_loop, runs
from wayfare.codegen.runtime.command import BufferView, Unsuited, contiguous
from wayfare.core.device import Array, Device, is_writable
from wayfare.core.native import NATIVE
from wayfare.core.op import REGISTRY, Op
from wayfare.core.tensor import Tensor, wrap
from wayfare.ir.fuse.elementwise import ElementwiseLoops
from wayfare.ops.cuda.table import way

# Calls of products that are kept.
_PRODUCTS = 4096


class RememberedPlans:
    """What a backend remembers of its launches."""

    xp: Any
    array: Any
    alone: bool
    new_launcher: Callable[[], Launcher] | None
    kernel: Callable[[Any], Any]
    constant: Callable[[Array, Device], Any]
    constant_array: Callable[[Array], Any]
    current: Callable[[], int]
    forward_of: Callable[[Op], Callable[..., Any]]
    run: Callable[[Op, Sequence[Any], dict[str, Any]], Any]

    @property
    def launcher(self) -> Launcher:
        """What kernels of the current device are launched with."""
        raise NotImplementedError

    def __init__(self) -> None:
        super().__init__()
        self._plans: dict[Op, tuple[Any, Any]] = {}
        self._reductions: Any = None
        self.additions: Any = None  # plans of sums in place
        self._products: dict[Any, Any] = {}

    def start_plans(self) -> None:
        """Tell native code of this backend."""
        self._adding = ElementwiseLoops(REGISTRY["add"], self.kernel, self.constant_array)
        if NATIVE is not None:
            self.additions, self._reductions = NATIVE.Plans(), NATIVE.Plans()
            NATIVE.set_up_device(self.array, self, None if self.alone else self.current)

    def plans_of(self, op: Op) -> tuple[Any, Any]:
        """The plans of an elementwise record, forward and backward; None where there are none."""
        if NATIVE is None or op.family != "elementwise" or op.outputs != 1 or way(op) not in ("formula", "function"):
            return None, None
        found = self._plans.get(op)
        if found is None:
            found = self._plans[op] = NATIVE.Plans(), NATIVE.Plans()
        return found

    def remember(
        self, plans: Any, given: Sequence[Any], attrs: Any, kernel: Any, arrays: Sequence[Any], places: Any = None
    ) -> None:  # fmt: skip
        """Remember what a kernel did for `arrays`, if the same can be done in C: those of `given`, then numbers."""
        plan = kernel.plan_of_new(arrays) if kernel is not None else None
        if kernel is None or (plan is not None and plan.native is not None):
            numbers = tuple(arrays[sum([a.__class__ is self.array for a in given]) :])
            plans.remember(given, attrs, None if plan is None else plan.native, places, numbers)

    def number(self, value: float, dtype: np.dtype[Any]) -> Tensor:
        """A number as a 0-dim tensor on the current device, which nobody may write."""
        return wrap(self.constant(np.asarray(value, dtype), Device("cuda", self.current())))

    def ones_like(self, array: Any) -> Any:
        """A new array of ones on the current device, by a kernel: CuPy's function takes longer."""
        one = self.constant(np.ones(array.shape, array.dtype), Device("cuda", self.current()))
        return self.run(REGISTRY["square"], (one,), {})

    # -- sums

    def add_up(self, old: Any, new: Any, own: bool) -> Any:
        """The sum of two arrays on the current device: in place if `own` says that the first may be written."""
        fits = old.shape == new.shape or (own and _broadcasts(new.shape, old.shape))
        if not own or not fits or old.dtype != new.dtype or not is_writable(old):
            return self.forward_of(REGISTRY["add"])(old, new)
        if self.additions is not None and self.additions.into(old, new):
            return old
        found = None if old.size == 0 else self._adding.find((old, new), {})
        if found is None:
            return self.xp.add(old, new, out=old)
        arrays = (old, new, old)
        plan = found[0].plan_of(arrays, old.shape, None)
        plan.run([self.launcher.pointer(a) for a in arrays])
        if self.additions is not None and plan.native is not None:
            self.additions.remember((old, new), None, plan.native)
        return old

    def reduced(self, name: str, x: Any, dim: tuple[int, ...], keepdim: bool, dtype: np.dtype[Any]) -> Any:
        """A reduction by kernels; None where there is none."""
        kind = REGISTRY[name].loop_reduction
        if self.new_launcher is None or not kind:
            return None
        given = (kind, dim, keepdim, dtype, x)
        if self._reductions is not None:
            made = self._reductions.new(given)
            if made is not None:
                return made[0]
        out = reduce_by(lambda *key: self.kernel(reducing_loop(*key)), kind, x, dim, keepdim, dtype)
        if self._reductions is not None and out is not None and len(runs(dim, x.shape)) == 1:
            kernel = self.kernel(reducing_loop(kind, OF_NUMPY[x.dtype], OF_NUMPY[dtype]))
            short = tuple([1 if a in dim else n for a, n in enumerate(x.shape)])
            native = kernel.plan_of((x, out.reshape(short)), x.shape, dim).native_for((out.shape,))
            if native is not None:
                self._reductions.remember(given, None, native)
        return out

    # -- products

    def matmul(self, x: Any, y: Any, transposed: bool = False) -> Any:
        """The product of vectors, matrices and batches: floats by cuBLAS, integers by CuPy. `transposed`: x and y.T."""
        key = (x.dtype, x.shape, x.strides, y.dtype, y.shape, y.strides, transposed)
        found = self._products.get(key)
        if found is None:
            if len(self._products) >= _PRODUCTS:
                self._products.clear()
            found = self._products[key] = self._calls_of(x, y, transposed)
        shape, calls = found
        if calls is None:
            return self._any_product(x, y.T if transposed else y)
        launcher = self.launcher
        out = launcher.empty(shape, x.dtype)
        starts = (launcher.pointer(x), launcher.pointer(y), launcher.pointer(out))
        for call, (a, skip_a), (b, skip_b), (to, skip_to) in calls:
            launcher.gemm(call, starts[a] + skip_a, starts[b] + skip_b, starts[to] + skip_to)
        return out

    def _calls_of(self, x: Any, y: Any, transposed: bool) -> tuple[Any, Any]:
        """The shape of a product and its calls of cuBLAS; None for them: `_any_product` must look at the arrays."""
        left, right = _view(0, x), _view(1, y)
        if transposed:
            right = right.view(right.shape[::-1], right.strides[::-1])
        if self.new_launcher is None or x.dtype != y.dtype or OF_NUMPY.get(x.dtype) not in FLOATS:
            return None, None
        if not (x.size and y.size and x.ndim and y.ndim):
            return None, None
        shape = (*left.shape[:-1], *right.shape[:-2], *right.shape[-1:]) if y.ndim > 1 else left.shape[:-1]
        if left.shape[-1] != right.shape[max(y.ndim - 2, 0)]:
            raise ValueError("the inner sizes differ")
        if x.ndim > 2 and y.ndim == 2 and x.flags.c_contiguous:  # one large product
            item = x.itemsize
            left = left.view((x.size // x.shape[-1], x.shape[-1]), (x.shape[-1] * item, item))
        if len(left.shape) > 2 or len(right.shape) > 2:
            batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
            rows, columns = left.shape[-2:-1], right.shape[-1:] if y.ndim > 1 else ()
            shape = (*batch, *rows, *columns)
        if len(left.shape) == 1:
            left = left.view((1, *left.shape), (0, *left.strides))
        if len(right.shape) == 1:
            right = right.view((*right.shape, 1), (*right.strides, 0))
        inner = (*np.broadcast_shapes(left.shape[:-2], right.shape[:-2]), left.shape[-2], right.shape[-1])
        try:
            return shape, gemm_calls(left, right, contiguous(2, 0, inner, x.dtype), False)
        except Unsuited:
            return None, None

    def _any_product(self, x: Any, y: Any) -> Any:
        if self.new_launcher is None or x.dtype != y.dtype or OF_NUMPY.get(x.dtype) not in FLOATS:
            return self.xp.matmul(x, y)
        row, column = x.ndim == 1, y.ndim == 1
        x, y = x[None] if row else x, y[:, None] if column else y
        if x.shape[-1] != y.shape[-2]:
            raise ValueError("the inner sizes differ")
        made = gemm.matmul(self.launcher, x, y)
        made = made[..., 0, :] if row else made
        return made[..., 0] if column else made


def _view(number: int, array: Any) -> BufferView:
    return BufferView(number, 0, array.shape, array.strides, array.dtype)


def _broadcasts(shape: Sequence[int], wanted: Sequence[int]) -> bool:
    """Does an array of this shape broadcast to the wanted one?"""
    extra = len(wanted) - len(shape)
    return extra >= 0 and all([n in (1, m) for n, m in zip(shape, wanted[extra:], strict=True)])
