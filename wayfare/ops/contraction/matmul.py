"""Contractions: products of matrices and vectors, and the affine map of a linear layer."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from wayfare.codegen.routines.transposed_weights import CACHING, MOST_ROWS, transposed
from wayfare.codegen.runtime import gemm
from wayfare.core import buffer_pool
from wayfare.core.autocast import LOWER
from wayfare.core.errors import DTypeError, ShapeError
from wayfare.core.flops import affine_map
from wayfare.core.op import Sample
from wayfare.core.signature import takes
from wayfare.core.spec import Spec, bool_, broadcast
from wayfare.ops import _ragged as ragged
from wayfare.ops._define import define
from wayfare.ops.contraction import onnx_rules as rules

Batch = tuple[bool, ...]
Attrs = dict[str, Any]


def check_one_dtype(op: str, sign: str, *specs: Spec) -> None:
    """Contractions take operands of one dtype, and no bools."""
    first = specs[0]
    if any(s.dtype is not first.dtype for s in specs):
        other = next(s for s in specs if s.dtype is not first.dtype)
        raise DTypeError(f"{op}: all operands must have one dtype, not {f' {sign} '.join(map(repr, specs))}",
                         fix=f"Convert one with .to({other.dtype!r}).".replace("wayfare.", "wf."))  # fmt: skip
    if first.dtype is bool_:
        raise DTypeError(f"{op}: bool tensors cannot be multiplied as matrices", fix="Convert them with .float().")


def dtypes_differ(op: str, x: Spec, weight: Spec) -> DTypeError:
    """What to say of an input that is not of the dtype of a layer's weight."""
    return DTypeError(f"{op}: the input {x} and the weight {weight} must have one dtype",
                      fix=f"Convert the input with .to({weight.dtype!r}).".replace("wayfare.", "wf."))  # fmt: skip


# -- matmul -------------------------------------------------------------------------------------------------


def _matmul_infer(a: Spec, b: Spec) -> Spec:
    check_one_dtype("matmul", "@", a, b)
    if a.ndim == 0 or b.ndim == 0:
        raise ShapeError(f"matmul: both sides need a dimension, not {a} @ {b}", fix="Use * to scale by a number.")
    inner = b.shape[-2] if b.ndim > 1 else b.shape[0]
    if a.shape[-1] != inner:
        raise ShapeError(f"matmul: inner sizes differ, {a} @ {b}", fix=_matmul_fix(a, b, inner))
    batch = broadcast("matmul", a.shape[:-2], b.shape[:-2])
    rows = a.shape[-2:-1] if a.ndim > 1 else ()
    columns = b.shape[-1:] if b.ndim > 1 else ()
    return Spec((*batch, *rows, *columns), a.dtype)


def _matmul_fix(a: Spec, b: Spec, inner: int) -> str:
    if b.ndim > 1 and a.shape[-1] == b.shape[-1]:
        return "Did you mean x @ w.T?" if b.ndim == 2 else "Did you mean x @ w.mT?"
    if a.ndim > 1 and a.shape[-2] == inner:
        return "Did you mean x.T @ w?" if a.ndim == 2 else "Did you mean x.mT @ w?"
    where = "last but one" if b.ndim > 1 else "only"
    return f"The last size of the left ({a.shape[-1]}) must equal the {where} size of the right ({inner})."


def swap(m: Any, x: Any) -> Any:
    """A matrix (or each of a stack of them) transposed."""
    n = x.ndim
    return m.permute(x, dims=(1, 0) if n == 2 else (*range(n - 2), n - 1, n - 2))


def _as_rows(m: Any, x: Any) -> Any:
    """All leading dimensions as one."""
    shape = tuple(x.shape)
    return x if len(shape) == 2 else m.reshape(x, shape=(math.prod(shape[:-1]), shape[-1]))


def _by_left(m: Any, g: Any, _y: Any, a_spec: Spec, b: Any) -> Any:
    rank = a_spec.ndim
    if rank == 2 and b.ndim == 2:
        return m.matmul(g, m.permute(b, dims=(1, 0)))
    if b.ndim == 1:
        return g * b if rank == 1 else m.mul(m.reshape(g, shape=(*g.shape, 1)), b)
    if rank == 1:
        if b.ndim == 2:
            return m.matmul(b, g)
        column = m.matmul(b, m.reshape(g, shape=(*g.shape, 1)))
        return m.sum_to(m.reshape(column, shape=tuple(column.shape)[:-1]), shape=a_spec.shape)
    if rank == 2:
        # One matrix for a whole stack: one large product in place of many that are then summed.
        last = b.ndim - 1
        g = m.permute(g, dims=(last - 1, *range(last - 1), last))
        b = m.permute(b, dims=(*range(last - 1), last, last - 1))
        flat = m.reshape(g, shape=(a_spec.shape[0], math.prod(g.shape[1:])))
        return m.matmul(flat, _as_rows(m, b))
    return m.sum_to(m.matmul(g, swap(m, b)), shape=a_spec.shape)


def _by_right(m: Any, g: Any, _y: Any, a: Any, b_spec: Spec) -> Any:
    rank = b_spec.ndim
    if rank == 2 and a.ndim == 2:
        return m.matmul(m.permute(a, dims=(1, 0)), g)
    if rank == 1:
        if a.ndim == 1:
            return g * a
        return m.matmul(m.reshape(g, shape=(math.prod(g.shape),)), _as_rows(m, a))
    if a.ndim == 1:
        shape = tuple(g.shape)
        return m.mul(m.reshape(g, shape=(*shape[:-1], 1, shape[-1])), m.reshape(a, shape=(*a.shape, 1)))
    if rank == 2:
        return m.matmul(m.permute(_as_rows(m, a), dims=(1, 0)), _as_rows(m, g))
    return m.sum_to(m.matmul(swap(m, a), g), shape=b_spec.shape)


# Below this many elements, checking the strides costs as much as it saves.
_WORTH_A_LOOK = 2048


def _for_blas(x: Any) -> Any:
    """NumPy passes a matrix to BLAS only if one of its two strides is one element; copy any other.

    The gradient of a sum is such a matrix: one number seen everywhere, all strides 0.
    """
    if x.flags.forc:
        return x
    item, strides, shape = x.itemsize, x.strides, x.shape
    if x.ndim == 1:
        return x if strides[0] else np.ascontiguousarray(x)
    down, across = strides[-2:]
    if (across == item and down >= item * shape[-1]) or (down == item and across >= item * shape[-2]):
        return x
    return np.ascontiguousarray(x)


def raw_matmul(a: Any, b: Any) -> Any:
    """`a @ b` of arrays of one dtype; a stack times one matrix is one large product."""
    if a.dtype != b.dtype or a.dtype.char == "?":
        raise TypeError("numbers of one dtype are needed")
    if a.dtype.char == "e":  # BLAS has no half precision: computing in float32 is faster and as exact.
        return raw_matmul(a.astype(np.float32), b.astype(np.float32)).astype(np.float16)
    if a.size + b.size > _WORTH_A_LOOK:
        a, b = _for_blas(a), _for_blas(b)
    elif a.ndim == 2 and b.ndim == 2:
        return a.dot(b)  # The same product; on small matrices the call costs a third of matmul's: see `small` below.
    if a.ndim > 2 and b.ndim == 2 and a.shape[-1] == b.shape[0]:
        return gemm.matmul(a.reshape(math.prod(a.shape[:-1]), a.shape[-1]), b).reshape(*a.shape[:-1], b.shape[-1])
    if a.ndim > 2 and a.shape[:-2] == b.shape[:-2] and a.shape[-1] == b.shape[-2] and a.dtype.kind == "f":
        return gemm.batched_matmul(a, b, buffer_pool.empty((*a.shape[:-1], b.shape[-1]), a.dtype))
    return gemm.matmul(a, b)


raw_matmul.small = ("dot", _WORTH_A_LOOK)  # type: ignore[attr-defined]


def _matmul_batch(m: Any, size: int, inputs: tuple[Any, ...], batched: Batch, attrs: Attrs) -> Any:
    a, b = inputs
    ranks = (a.ndim - batched[0], b.ndim - batched[1])
    if ranks == (1, 2) and not batched[1]:
        return m.matmul(a, b)
    if ranks == (2, 1) and not batched[0]:
        return m.matmul(b, swap(m, a))
    # Vectors become a row or a column, so that only true batch axes stand in front.
    if ranks[0] == 1:
        a = m.reshape(a, shape=(*a.shape[:-1], 1, a.shape[-1]))
    if ranks[1] == 1:
        b = m.reshape(b, shape=(*b.shape, 1))
    width = max(2, *ranks)

    def line_up(x: Any, is_batched: bool) -> Any:
        missing = width - (x.ndim - is_batched)
        if is_batched and missing:
            return m.reshape(x, shape=(size,) + (1,) * missing + tuple(x.shape)[1:])
        return x

    y = m.matmul(line_up(a, batched[0]), line_up(b, batched[1]))
    if 1 in ranks:
        shape = tuple(y.shape)
        rows = shape[-2:-1] if ranks[0] > 1 else ()
        columns = shape[-1:] if ranks[1] > 1 else ()
        y = m.reshape(y, shape=(*shape[:-2], *rows, *columns))
    return y


def _matmul_samples(rng: Any) -> list[Sample]:
    shapes = [
        ((3, 4), (4, 2)), ((2, 3, 4), (4, 2)), ((3, 4), (2, 4, 2)), ((2, 1, 3, 4), (5, 4, 2)), ((2, 3, 4), (2, 4, 1)),
        ((4,), (4,)), ((3, 4), (4,)), ((4,), (4, 2)), ((2, 3, 4), (4,)), ((4,), (2, 3, 4, 2)),
        ((3, 0), (0, 2)), ((0, 3), (3, 2)), ((2, 3, 0), (0, 2)),
    ]  # fmt: skip
    samples = [Sample((rng.normal(size=a), rng.normal(size=b))) for a, b in shapes]
    return [*samples, Sample((rng.normal(size=(4, 6))[::2].T, rng.normal(size=(3, 2)).T))]


def _matmul_reference(a: Any, b: Any) -> Any:
    left = "j" if a.ndim == 1 else "...ij"
    right = "j" if b.ndim == 1 else "...jk"
    out = ("..." if max(a.ndim, b.ndim) > 1 else "") + ("i" if a.ndim > 1 else "") + ("k" if b.ndim > 1 else "")
    return np.einsum(f"{left},{right}->{out}", a, b)


matmul = define(
    "matmul", autocast=LOWER,
    workspace=2,
    signature=takes(2),
    onnx="MatMul",
    family="contraction",
    gemm="nn",
    fresh=True,
    fusible_gradient=True,
    forward=raw_matmul,
    small_vjp="matmul",
    infer=_matmul_infer,
    vjp=(_by_left, _by_right),
    batch=_matmul_batch,
    ragged=ragged.matmul,
    reference=_matmul_reference,
    samples=_matmul_samples,
    kinds="iuf",
    grad_name="MmBackward0",
)


# -- the affine map x @ weight.T + bias ---------------------------------------------------------------------


def _linear_infer(x: Spec, weight: Spec, bias: Spec | None = None) -> Spec:
    given = (x, weight) if bias is None else (x, weight, bias)
    if x.dtype is not weight.dtype:
        raise dtypes_differ("linear", x, weight)
    check_one_dtype("linear", "and", *given)
    if x.ndim == 0 or weight.ndim != 2:
        raise ShapeError(f"linear: needs an input of at least 1 dimension and a weight of 2, not {x} and {weight}")
    if x.shape[-1] != weight.shape[1]:
        hint = "A weight is (out, in): did you mean w.T?" if x.shape[-1] == weight.shape[0] else ""
        raise ShapeError(f"linear: the input {x} has {x.shape[-1]} features (its last dimension), the weight {weight} "
                         f"takes {weight.shape[1]}", fix=hint)  # fmt: skip
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ShapeError(f"linear: a bias of {bias} does not fit a weight of {weight}",
                         fix=f"It needs shape [{weight.shape[0]}].")  # fmt: skip
    return Spec((*x.shape[:-1], weight.shape[0]), x.dtype)


def _linear_plain(x: Any, weight: Any) -> Any:
    if CACHING and x.ndim == 2 and len(x) <= MOST_ROWS:
        return raw_matmul(x, transposed(weight))
    return raw_matmul(x, weight.T)


def _linear(x: Any, weight: Any, bias: Any) -> Any:
    if bias.dtype != weight.dtype or bias.shape != weight.shape[:1]:
        raise TypeError("the bias does not fit")
    if x.ndim == 2 and x.dtype is bias.dtype and x.size + weight.size <= _WORTH_A_LOOK and x.dtype.char in "fd":
        y = x.dot(weight.T)  # the product that raw_matmul would choose
    elif CACHING and x.ndim == 2 and len(x) <= MOST_ROWS:
        y = raw_matmul(x, transposed(weight))
    else:
        y = raw_matmul(x, weight.T)
    y += bias
    return y


def _by_weight(m: Any, g: Any, x: Any) -> Any:
    """Laid out like the weight, so that adding it to the weight runs through memory once."""
    if x.ndim == 1:
        return m.mul(m.reshape(g, shape=(*g.shape, 1)), x)
    return m.matmul(m.permute(_as_rows(m, g), dims=(1, 0)), _as_rows(m, x))


def _linear_batch(m: Any, size: int, inputs: tuple[Any, ...], batched: Batch, attrs: Attrs) -> Any:
    x, weight = inputs[:2]
    if not any(batched[1:]):
        return m.linear(*inputs) if len(inputs) == 3 else m.linear_plain(*inputs)
    lead = tuple(x.shape)[batched[0] : -1]
    if batched[1]:
        rows = (size,) if batched[0] else ()
        flat = m.reshape(x, shape=(*rows, math.prod(lead), x.shape[-1]))
        y = m.matmul(flat, swap(m, weight))
        y = m.reshape(y, shape=(size, *lead, weight.shape[1]))
    else:
        y = m.linear_plain(x, weight)
    if len(inputs) == 3:
        bias = inputs[2]
        shape = (size, *(1 for _ in lead), bias.shape[-1]) if batched[2] else tuple(bias.shape)
        if batched[2] and not (batched[0] or batched[1]):
            y = m.expand(y, shape=(size, *y.shape))
        y = m.add(y, m.reshape(bias, shape=shape))
    return y


_LINEAR_SHAPES = (((3, 4), (2, 4)), ((4,), (2, 4)), ((2, 3, 4), (2, 4)), ((0, 4), (2, 4)), ((3, 0), (2, 0)))

linear_plain = define(
    "linear_plain", autocast=LOWER,
    signature=takes(2),
    onnx=rules.linear,
    family="contraction",
    gemm="nt",
    fresh=True,
    fusible_gradient=True,
    work=affine_map,
    forward=_linear_plain,
    infer=_linear_infer,
    vjp=(
        lambda m, g, _y, _x, weight: m.matmul(g, weight),
        lambda m, g, _y, x, _weight: _by_weight(m, g, x),
    ),
    batch=_linear_batch,
    ragged=ragged.row_by_row("linear_plain", features=1),
    reference=lambda x, weight: np.einsum("...i,oi->...o", x, weight),
    samples=lambda rng: [Sample((rng.normal(size=x), rng.normal(size=w))) for x, w in _LINEAR_SHAPES],
    kinds="iuf",
    grad_name="MmBackward0",
)

linear = define(
    "linear", autocast=LOWER,
    signature=takes(3),
    onnx=rules.linear,
    family="contraction",
    work=affine_map,
    forward=_linear,
    # A plain bias behind a product of matrices: an epilogue.
    formula=lambda m, x, weight, bias: m.linear_plain(x, weight) + bias,
    infer=_linear_infer,
    vjp=(
        lambda m, g, _y, _x, weight, _bias: m.matmul(g, weight),
        lambda m, g, _y, x, _weight, _bias: _by_weight(m, g, x),
        lambda m, g, _y, _x, _weight, bias_spec: m.sum_to(g, shape=bias_spec.shape),
    ),
    batch=_linear_batch,
    ragged=ragged.row_by_row("linear", features=1),
    reference=lambda x, weight, bias: np.einsum("...i,oi->...o", x, weight) + bias,
    samples=lambda rng: [
        Sample((rng.normal(size=x), rng.normal(size=w), rng.normal(size=w[0]))) for x, w in _LINEAR_SHAPES
    ],
    kinds="iuf",
    grad_name="AddmmBackward0",
    listed=(2, 0, 1),
)
