"""Constructors of op families. A family supplies shape rule, batch rule and samples; a record states the rest."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from wayfare.core.errors import DTypeError, OperationError, ShapeError
from wayfare.core.flops import Work
from wayfare.core.numpy_math import numpy_math
from wayfare.core.op import BatchRule, NotExportable, Op, Rule, Sample, joint, register
from wayfare.core.signature import DIMS, FLAG, Attribute, Signature
from wayfare.core.spec import Spec, bool_, broadcast
from wayfare.ir.fuse.composite import NATIVE_FROM, Composite
from wayfare.ir.fuse.elementwise import prepare
from wayfare.ir.fuse.reductions import prepare_reduction
from wayfare.ops import _ragged as ragged

Vjp = tuple[Rule | None, ...] | joint | None
Samples = Callable[[Any], Iterable[Sample]]
Domain = tuple[float, float]
NO_ATTRIBUTES: dict[str, Attribute] = {}
Onnx = str | Callable[..., Any] | NotExportable | None


# The number of elements from which a native loop is faster than NumPy (`python -m benchmarks.dispatch`). NumPy's
# own vector loops are as fast until a second thread helps; SciPy goes element by element; a formula of several steps
# visits memory once for each.
UFUNC, _SCIPY, _FORMULA = 80_000, 512, 2048
NEVER = sys.maxsize
# A gradient rule usually has several steps, and one loop computes all gradients of a node.
_LARGE_VJP_FROM = 8192


def _native_from(forward: Callable[..., Any], formula: Callable[..., Any] | None) -> int:
    return UFUNC if isinstance(forward, np.ufunc) else _SCIPY if formula is None else _FORMULA


# -- elementwise ------------------------------------------------------------------------------------------------


def elementwise(
    name: str, *, arity: int = 1, formula: Callable[..., Any] | None = None, forward: Callable[..., Any] | None = None,
    vjp: Vjp | Rule = None, reference: Callable[..., Any], domain: Domain | Sequence[Domain] = (-2.0, 2.0),
    samples: Samples | None = None, sample_attrs: Sequence[dict[str, Any]] = ({},), result: str = "same",
    promotion: str = "common", kinds: str = "biuf", masks: tuple[int, ...] = (),
    attrs: dict[str, Attribute] = NO_ATTRIBUTES, grad_name: str = "", smooth: bool = True, onnx: Onnx = None,
    native_from: int | None = None, numpy_dtypes: str = "", expression: Callable[..., Any] | None = None,
    workspace: int | None = None, small_vjp: str = "", as_is: bool = False,
    autocast: tuple[str, str] = ("", ""),
) -> Op:  # fmt: skip
    """An op that works on each element by itself; inputs broadcast.

    Without a `formula` the op is the elementary function of that name in `m`. A `forward` is a faster way on NumPy
    arrays than the formula read literally. `masks` are inputs whose dtype does not take part (the condition of
    `where`). `result` is "same" or "bool". `reference` is a function of Python floats (applied element by element)
    or of arrays, whichever is the more independent. From `native_from` elements on a native loop does the work (None:
    judged by what the forward is), but not in `numpy_dtypes` (characters of dtypes), where NumPy is faster.
    """
    if forward is None:
        forward = getattr(numpy_math, name) if formula is None else _on_numpy(formula)
    if callable(vjp):
        vjp = (vjp,)

    def infer(*specs: Spec, **_attrs: Any) -> Spec:
        typed = next((s for i, s in enumerate(specs) if i not in masks), specs[0])
        if typed.dtype.kind not in kinds:
            raise DTypeError(f"{name}: does not take {typed.dtype}", fix=_kind_fix(typed, kinds))
        shape = broadcast(name, *(s.shape for s in specs))
        return Spec(shape, bool_ if result == "bool" else typed.dtype)

    op = register(Op(
        name=name, family="elementwise", forward=forward, infer=infer, vjp=vjp,
        batch=_batch_elementwise(name), ragged=ragged.elementwise(name), formula=formula,
        samples=samples or _elementwise_samples(arity, domain, sample_attrs, masks, smooth),
        reference=reference, signature=Signature(arity, arity, attrs, masks=masks),
        broadcasts=True, promotion=promotion, kinds=kinds, grad_name=grad_name, expression=expression,
        workspace=workspace, onnx=onnx, small_vjp=small_vjp, as_is=as_is,
        autocast=autocast,
    ))  # fmt: skip
    prepare(op, _native_from(forward, formula) if native_from is None else native_from, _LARGE_VJP_FROM, numpy_dtypes)
    return op


_HALF = np.dtype("float16")


def _on_numpy(formula: Callable[..., Any]) -> Callable[..., Any]:
    """A formula applied to NumPy arrays. In float16 the steps would lose too much precision, so they run in float32."""

    def forward(*arrays: Any, **attrs: Any) -> Any:
        if arrays[0].dtype is _HALF:
            wide = formula(numpy_math, *(a.astype(np.float32) if a.dtype is _HALF else a for a in arrays), **attrs)
            return wide.astype(_HALF) if wide.dtype.kind == "f" else wide
        return formula(numpy_math, *arrays, **attrs)

    return forward


def _kind_fix(given: Spec, kinds: str) -> str:
    if "f" not in kinds:
        return "It works on integers" + (" and bools." if "b" in kinds else ".")
    if given.dtype is bool_ and "i" in kinds:
        return "For masks use &, |, ^ and ~; for numbers convert with .int() or .float()."
    return "Convert it with .float() first."


def _elementwise_samples(
    arity: int, domain: Domain | Sequence[Domain], sample_attrs: Sequence[dict[str, Any]], masks: tuple[int, ...],
    smooth: bool,
) -> Samples:  # fmt: skip
    domains: list[Domain] = [domain] * arity if isinstance(domain[0], (int, float)) else list(domain)  # type: ignore[list-item, arg-type]
    layouts: list[list[tuple[int, ...]]] = [[(3, 4)] * arity, [()] * arity, [(2, 0)] * arity]
    if arity > 1:
        layouts += [[(2, 3, 4)] + [(3, 1)] * (arity - 1), [(4,)] + [(2, 1)] * (arity - 1)]

    def samples(rng: Any) -> Iterable[Sample]:
        for attrs in sample_attrs:
            for layout in layouts:
                arrays = [rng.uniform(*domains[i], shape) for i, shape in enumerate(layout)]
                for i in masks:
                    arrays[i] = arrays[i] > (domains[i][0] + domains[i][1]) / 2
                yield Sample(tuple(arrays), dict(attrs), smooth)
            strided = [rng.uniform(*domains[i], (4, 6))[::2, ::-1].T for i in range(arity)]
            for i in masks:
                strided[i] = strided[i] > 0
            yield Sample(tuple(strided), dict(attrs), smooth)

    return samples


def _batch_elementwise(name: str) -> BatchRule:
    """Put the batch axis first and pad the rest with ones in between, so that broadcasting lines up."""

    def batch(m: Any, size: int, inputs: tuple[Any, ...], batched: tuple[bool, ...], attrs: dict[str, Any]) -> Any:
        ranks = [x.ndim - b for x, b in zip(inputs, batched, strict=True)]
        width = max(ranks)
        lined_up = []
        for x, is_batched, rank in zip(inputs, batched, ranks, strict=True):
            if is_batched and rank < width:
                shape = tuple(x.shape)
                x = m.reshape(x, shape=(shape[0],) + (1,) * (width - rank) + shape[1:])
            lined_up.append(x)
        return getattr(m, name)(*lined_up, **attrs)

    return batch


# -- reductions -------------------------------------------------------------------------------------------------


def reduced_shape(shape: tuple[int, ...], dim: tuple[int, ...], keepdim: bool) -> tuple[int, ...]:
    """The shape left when the dimensions `dim` are reduced."""
    if keepdim:
        return tuple(1 if axis in dim else size for axis, size in enumerate(shape))
    return tuple(size for axis, size in enumerate(shape) if axis not in dim)


def spread(m: Any, value: Any, dim: tuple[int, ...], keepdim: bool, shape: tuple[int, ...]) -> Any:
    """Stretch a reduced value back over the dimensions it was reduced along (a view, no copy)."""
    if not keepdim:
        value = m.reshape(value, shape=reduced_shape(shape, dim, True))
    return m.expand(value, shape=shape)


def reduction(
    name: str, *, forward: Callable[..., Any] | None = None, formula: Callable[..., Any] | None = None,
    native_from: int = NATIVE_FROM, vjp: Rule | None, work: Work | None = None, reference: Callable[..., Any],
    dtype: Callable[[Any], Any] = lambda dtype: dtype, domain: Domain = (-2.0, 2.0), samples: Samples | None = None,
    sample_attrs: Sequence[dict[str, Any]] = ({},), kinds: str = "biuf", attrs: dict[str, Attribute] = NO_ATTRIBUTES,
    empty: bool = True, grad_name: str = "", smooth: bool = True, onnx: Onnx = None,
    of_segments: Callable[[Any, ragged.Segments, Any], Any] | None = None, **facts: Any,
) -> Op:  # fmt: skip
    """An op that reduces dimensions: `forward(x, *, dim, keepdim)`, dim a sorted tuple of non-negative ints.

    One that is made of others has a `formula` over ops instead of a forward. `dtype` maps the dtype of the input to
    that of the result. `empty`: defined over a dimension of size 0. `of_segments` reduces rows of many lengths, if that
    has been written. `facts` are further fields of the record.
    """

    def infer(x: Spec, *, dim: tuple[int, ...], keepdim: bool, **_attrs: Any) -> Spec:
        return Spec(reduced_shape(x.shape, dim, keepdim), dtype(x.dtype))

    def default_samples(rng: Any) -> Iterable[Sample]:
        for extra in sample_attrs:
            for dim, keepdim in (((0,), False), ((1,), True), ((0, 2), False), ((0, 1, 2), False), ((0, 1, 2), True)):
                yield Sample((rng.uniform(*domain, (3, 2, 4)),), {"dim": dim, "keepdim": keepdim, **extra}, smooth)
            yield Sample((rng.uniform(*domain, ()),), {"dim": (), "keepdim": False, **extra}, smooth)
            yield Sample((rng.uniform(*domain, (4, 6)).T[::2],), {"dim": (1,), "keepdim": False, **extra}, smooth)
            if empty:
                yield Sample((rng.uniform(*domain, (2, 0)),), {"dim": (1,), "keepdim": False, **extra}, smooth)

    op = define(
        name, signature=Signature(1, 1, {"dim": DIMS, "keepdim": FLAG, **attrs}),
        family="reduction", forward=forward, formula=formula, native_from=native_from, infer=infer,
        vjp=None if vjp is None else (vjp,), batch=in_front(name), samples=samples or default_samples,
        ragged=ragged.reduction(name, of_segments), reference=reference, kinds=kinds, grad_name=grad_name, work=work,
        onnx=onnx, **facts,
    )  # fmt: skip
    if formula is None:
        prepare_reduction(op)
    return op


# -- movement: views and copies of the same numbers -------------------------------------------------------------


def movement(
    name: str, *, forward: Callable[..., Any], shape: Callable[..., tuple[int, ...]], vjp: Rule | None,
    reference: Callable[..., Any], samples: Samples, attrs: dict[str, Attribute],
    shift: Callable[[dict[str, Any], int], dict[str, Any]] | None = None, view: bool = True,
    sparse: Callable[..., Any] | None = None, grad_name: str = "", onnx: Onnx = None,
    of_lengths: ragged.RaggedRule | None = None, **facts: Any,
) -> Op:  # fmt: skip
    """An op of one input that moves elements. `shape(x_shape, **attrs)` is the output's shape; `shift(attrs,
    batch size)` gives the attributes that do the same behind one more leading axis (None: `behind_batch`). `facts` are
    further fields of the record."""

    def infer(x: Spec, **attrs: Any) -> Spec:
        return Spec(shape(x.shape, **attrs), x.dtype)

    return register(Op(
        name=name, family="movement", forward=forward, infer=infer, vjp=None if vjp is None else (vjp,),
        batch=in_front(name, shift or behind_batch), ragged=of_lengths or ragged.movement(name), samples=samples,
        reference=reference,
        signature=Signature(1, 1, attrs), view=view, sparse=sparse, grad_name=grad_name, onnx=onnx, **facts,
    ))  # fmt: skip


# -- anything else ----------------------------------------------------------------------------------------------


def by_loop(name: str) -> BatchRule:
    """The batch rule of last resort: one row after the other, then stacked. Right for every op, never fast."""

    def batch(m: Any, size: int, inputs: tuple[Any, ...], batched: tuple[bool, ...], attrs: dict[str, Any]) -> Any:
        rows = []
        for i in range(size):
            row = [m.select(x, dim=0, index=i) if b else x for x, b in zip(inputs, batched, strict=True)]
            rows.append(getattr(m, name)(*row, **attrs))
        if isinstance(rows[0], tuple):
            return tuple(m.stack(*column, dim=0) for column in zip(*rows, strict=True))
        return m.stack(*rows, dim=0)

    return batch


def expand_unbatched(m: Any, size: int, inputs: tuple[Any, ...], batched: tuple[bool, ...]) -> tuple[Any, ...]:
    """All inputs with the batch axis in front; shared ones are expanded (a view, no copy)."""
    if False not in batched:
        return inputs
    return tuple(
        x if b else m.expand(m.reshape(x, shape=(1, *x.shape)), shape=(size, *x.shape))
        for x, b in zip(inputs, batched, strict=True)
    )


def behind_batch(attrs: dict[str, Any], size: int) -> dict[str, Any]:
    """The attributes that do the same behind one more leading axis: each dimension is one further, shapes have one more
    size in front."""
    moved = dict(attrs)
    for key, value in attrs.items():
        if key in _DIMENSIONS:
            moved[key] = tuple(d + 1 for d in value) if isinstance(value, tuple) else value + 1
        elif key == "shape":
            moved[key] = (size, *value)
    return moved


_DIMENSIONS = frozenset({"dim", "dims", "dim1", "dim2"})


def in_front(name: str, shift: Callable[[dict[str, Any], int], dict[str, Any]] = behind_batch) -> BatchRule:
    """The batch rule of ops that work on stacks: the batch axis in front of all inputs, attributes moved along."""

    def batch(m: Any, size: int, inputs: tuple[Any, ...], batched: tuple[bool, ...], attrs: dict[str, Any]) -> Any:
        return getattr(m, name)(*expand_unbatched(m, size, inputs, batched), **shift(attrs, size))

    return batch


def define(
    name: str, *, batch: BatchRule | None = None, forward: Callable[..., Any] | None = None,
    formula: Callable[..., Any] | None = None, native_from: int = NATIVE_FROM, **parts: Any,
) -> Op:  # fmt: skip
    """An op of no family: every part stated, the batch rule by loop unless given.

    Without a `forward`, the `formula` over ops is what it does: op by op on small arrays, from `native_from` elements
    on as kernels.
    """
    family = parts.pop("family", "other")
    if forward is not None:
        return register(Op(name, family, forward, batch=batch or by_loop(name), formula=formula, **parts))
    assert formula is not None, name
    whole = Composite(formula, name)
    op = register(Op(name, family, whole.step_by_step, batch=batch or by_loop(name), formula=formula, **parts))
    op.large, op.large_from = whole.at_once, native_from
    return op


def shaped_alike(name: str, which: int = 0) -> Callable[..., Spec]:
    """The shape rule of an op that gives the shape of one input, and whose inputs must all have it."""

    def infer(*specs: Spec, **_attrs: Any) -> Spec:
        if any(s.shape != specs[0].shape for s in specs):
            raise ShapeError(f"{name}: inputs of one shape are needed, not {', '.join(map(str, specs))}")
        return specs[which]

    return infer


def refuses(name: str, argument: str) -> Rule:
    """The gradient rule of an input whose derivative is not implemented: an error, never a silent zero."""

    def rule(m: Any, g: Any, _y: Any, *_inputs: Any, **_attrs: Any) -> Any:
        raise OperationError(f"{name}: the derivative by {argument} is not implemented",
                             fix=f"Detach {argument}.")  # fmt: skip

    rule.refuses = True  # type: ignore[attr-defined]
    return rule
