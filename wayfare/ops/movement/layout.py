"""Diagonals, triangles, reversals, padding, copies and overwriting; views come with their adjoints."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from wayfare.core.errors import ShapeError
from wayfare.core.numpy_math import Array
from wayfare.core.op import Op, Sample
from wayfare.core.signature import AMOUNTS, DIM, DIMS, INT, INTS, NUMBER, SIZES, takes
from wayfare.core.spec import Shape, Spec
from wayfare.ops._define import define, elementwise, in_front, movement
from wayfare.ops.elementwise import onnx_arithmetic as elementwise_rules
from wayfare.ops.movement import onnx_rules as rules

# -- diagonals ---------------------------------------------------------------------------------------------


def diagonal_length(shape: Shape, offset: int, dim1: int, dim2: int) -> int:
    """How many elements the diagonal has."""
    rows, columns = shape[dim1], shape[dim2]
    return max(0, min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns))


def _diagonal(x: Array, *, offset: int, dim1: int, dim2: int) -> Array:
    # Cut to the corners: NumPy ends the process for an offset whose negative does not fit 32 bits.
    out = x.diagonal(max(-x.shape[dim1], min(offset, x.shape[dim2])), dim1, dim2)
    out.flags.writeable = x.flags.writeable  # NumPy marks it read-only though it is an ordinary view
    return out


def _diagonal_shape(x: Shape, *, offset: int, dim1: int, dim2: int) -> Shape:
    rest = tuple(n for d, n in enumerate(x) if d not in (dim1, dim2))
    return (*rest, diagonal_length(x, offset, dim1, dim2))


def _diagonal_vjp(m: Any, g: Any, _y: Any, x_spec: Spec, *, offset: int, dim1: int, dim2: int) -> Any:
    return m.place_diagonal(g, shape=x_spec.shape, offset=offset, dim1=dim1, dim2=dim2)


def _diagonal_reference(x: Array, offset: int, dim1: int, dim2: int) -> Array:
    moved = np.moveaxis(x, (dim1, dim2), (0, 1))
    found = [moved[i, i + offset] for i in range(x.shape[dim1]) if 0 <= i + offset < x.shape[dim2]]
    return np.stack(found, -1) if found else np.zeros((*moved.shape[2:], 0))


diagonal = movement(
    "diagonal",
    attrs={"offset": INT, "dim1": DIM, "dim2": DIM},
    onnx=rules.diagonal,
    forward=_diagonal,
    shape=_diagonal_shape,
    vjp=_diagonal_vjp,
    reference=_diagonal_reference,
    samples=lambda rng: [
        Sample((rng.normal(size=(3, 4)),), {"offset": 1, "dim1": 0, "dim2": 1}),
        Sample((rng.normal(size=(3, 2, 4)),), {"offset": -1, "dim1": 2, "dim2": 0}),
        Sample((rng.normal(size=(2, 2)),), {"offset": 5, "dim1": 0, "dim2": 1}),
    ],
)


def _place_diagonal(g: Array, *, shape: Shape, offset: int, dim1: int, dim2: int) -> Array:
    out = np.zeros(shape, g.dtype)
    _diagonal(out, offset=offset, dim1=dim1, dim2=dim2)[...] = g
    return out


def _place_diagonal_reference(x: Array, shape: Shape, offset: int, dim1: int, dim2: int) -> Array:
    out = np.zeros(shape)
    moved = np.moveaxis(out, (dim1, dim2), (0, 1))
    for i in range(x.shape[-1]):
        moved[i - min(offset, 0), i + max(offset, 0)] = x[..., i]
    return out


# The adjoint of diagonal: zeros with one diagonal filled in.
place_diagonal = movement(
    "place_diagonal",
    attrs={"offset": INT, "shape": SIZES, "dim1": DIM, "dim2": DIM},
    onnx=rules.place_diagonal,
    forward=_place_diagonal,
    shape=lambda x, *, shape, offset, dim1, dim2: tuple(shape),
    vjp=lambda m, g, _y, _x, *, shape, offset, dim1, dim2: m.diagonal(g, offset=offset, dim1=dim1, dim2=dim2),
    reference=_place_diagonal_reference,
    samples=lambda rng: [
        Sample((rng.normal(size=(3,)),), {"shape": (4, 4), "offset": 1, "dim1": 0, "dim2": 1}),
        Sample((rng.normal(size=(2, 2)),), {"shape": (3, 2, 3), "offset": -1, "dim1": 0, "dim2": 2}),
    ],
    view=False,
    grad_name="DiagEmbedBackward0",
)


def _near(x: Array, diagonal: int) -> int:
    """The diagonal, cut to the corners of the matrices: NumPy counts in fewer bits than Python."""
    return max(-x.shape[-2], min(diagonal, x.shape[-1])) if x.ndim > 1 else diagonal


def _triangle_samples(rng: Any) -> Iterable[Sample]:
    yield Sample((rng.normal(size=(3, 4)),), {"diagonal": 0})
    yield Sample((rng.normal(size=(2, 3, 3)),), {"diagonal": -1})
    yield Sample((rng.normal(size=(4, 3)).T,), {"diagonal": 2})
    yield Sample((rng.normal(size=(0, 3)),), {"diagonal": 0})


def _triangle(name: str, cut: Callable[[Array, int], Array], inside: Callable[[Any, Any], Any], upper: int) -> Op:
    return movement(
        name,
        attrs={"diagonal": INT},
        onnx=rules.triangle(upper),
        forward=lambda x, *, diagonal: cut(x, _near(x, diagonal)),
        shape=lambda x, *, diagonal: x,
        vjp=lambda m, g, _y, _x, *, diagonal: getattr(m, name)(g, diagonal=diagonal),
        reference=lambda x, diagonal: x * np.fromfunction(lambda i, j: inside(j, i + diagonal), x.shape[-2:]),
        samples=_triangle_samples,
        view=False,
    )


tril = _triangle("tril", np.tril, operator.le, 0)
triu = _triangle("triu", np.triu, operator.ge, 1)


# -- another order -----------------------------------------------------------------------------------------


flip = movement(
    "flip",
    attrs={"dims": DIMS},
    onnx=rules.flip,
    forward=lambda x, *, dims: np.flip(x, dims).copy(),
    shape=lambda x, *, dims: x,
    vjp=lambda m, g, _y, _x, *, dims: m.flip(g, dims=dims),
    reference=lambda x, dims: x[tuple(slice(None, None, -1) if d in dims else slice(None) for d in range(x.ndim))],
    samples=lambda rng: [
        Sample((rng.normal(size=(3, 4)),), {"dims": (0, 1)}),
        Sample((rng.normal(size=(4, 3, 2)).T,), {"dims": (1,)}),
        Sample((rng.normal(size=()),), {"dims": ()}),
    ],
    view=False,
)


def _roll_reference(x: Array, shifts: tuple[int, ...], dims: tuple[int, ...]) -> Array:
    for shift, dim in zip(shifts, dims, strict=True):
        x = np.take(x, (np.arange(x.shape[dim]) - shift) % x.shape[dim], axis=dim)
    return x


roll = movement(
    "roll",
    attrs={"shifts": INTS, "dims": DIMS},
    onnx=rules.roll,
    forward=lambda x, *, shifts, dims: np.roll(x if x.flags.c_contiguous else x.copy(order="C"), shifts, dims),
    shape=lambda x, *, shifts, dims: x,
    vjp=lambda m, g, _y, _x, *, shifts, dims: m.roll(g, shifts=tuple(-s for s in shifts), dims=dims),
    reference=_roll_reference,
    samples=lambda rng: [
        Sample((rng.normal(size=(3, 4)),), {"shifts": (1, -2), "dims": (0, 1)}),
        Sample((rng.normal(size=(4, 3)).T,), {"shifts": (5,), "dims": (1,)}),
    ],
    view=False,
)


# -- padding -----------------------------------------------------------------------------------------------

Amounts = tuple[tuple[int, int], ...]


def _pad(x: Array, *, amounts: Amounts, value: float) -> Array:
    """Negative amounts cut off."""
    keep = tuple(slice(max(0, -a), n - max(0, -b)) for n, (a, b) in zip(x.shape, amounts, strict=True))
    x = x[keep]
    grow = [(max(0, a), max(0, b)) for a, b in amounts]
    shape = [n + a + b for n, (a, b) in zip(x.shape, grow, strict=True)]
    out = np.full(shape, value, x.dtype) if value else np.zeros(shape, x.dtype)
    out[tuple(slice(a, a + n) for n, (a, _) in zip(x.shape, grow, strict=True))] = x
    return out


def _pad_shape(x: Shape, *, amounts: Amounts, value: float) -> Shape:
    for n, (a, b) in zip(x, amounts, strict=True):
        if (a < 0 or b < 0) and max(-a, 0) + max(-b, 0) > n:
            raise ShapeError(f"pad: {max(-a, 0)} and {max(-b, 0)} elements cannot be cut off {n}, in shape {list(x)}")
    return tuple(n + a + b for n, (a, b) in zip(x, amounts, strict=True))


def _pad_vjp(m: Any, g: Any, _y: Any, _x: Any, *, amounts: Amounts, value: float) -> Any:
    back = tuple((-a, -b) for a, b in amounts)
    if all(a <= 0 and b <= 0 for a, b in back):
        for dim, (a, b) in enumerate(back):
            if a or b:
                g = m.slice(g, dim=dim, start=-a, stop=g.shape[dim] + b, step=1)
        return g
    return m.pad(g, amounts=back, value=0)


def _pad_reference(x: Array, amounts: Amounts, value: float) -> Array:
    for dim, (a, b) in enumerate(amounts):
        rows = list(np.moveaxis(x, dim, 0))
        blank = np.full(np.moveaxis(x, dim, 0).shape[1:], float(value))
        rows = [blank] * a + rows if a >= 0 else rows[-a:]
        rows = rows + [blank] * b if b >= 0 else rows[:b]
        x = np.moveaxis(np.array(rows), 0, dim)
    return x


pad = movement(
    "pad",
    attrs={"amounts": AMOUNTS, "value": NUMBER},
    fusible_gradient=True,
    onnx=rules.pad,
    forward=_pad,
    shape=_pad_shape,
    vjp=_pad_vjp,
    reference=_pad_reference,
    samples=lambda rng: [
        Sample((rng.normal(size=(2, 3)),), {"amounts": ((0, 0), (1, 2)), "value": 0}),
        Sample((rng.normal(size=(2, 3)),), {"amounts": ((1, 0), (-1, 2)), "value": 1.5}),
        Sample((rng.normal(size=(4, 3)).T,), {"amounts": ((0, -1), (-1, -2)), "value": 1.5}),
    ],
    shift=lambda attrs, size: attrs | {"amounts": ((0, 0), *attrs["amounts"])},
    view=False,
    grad_name="ConstantPadNdBackward0",
)


def _copying(name: str, copy: Callable[[Array], Array]) -> Op:
    """A copy of the same numbers, in the same layout or row after row."""
    return define(
        name,
        signature=takes(1),
        onnx=elementwise_rules.same,
        family="movement",
        moves="copy",
        fusible_gradient=True,
        forward=copy,
        infer=lambda x: x,
        vjp=(lambda m, g, _y, _x: g,),
        batch=in_front(name),
        reference=lambda x: np.array(x.tolist()).reshape(x.shape),
        samples=lambda rng: (
            [Sample((rng.normal(size=s),)) for s in ((2, 3), (), (0, 2))] + [Sample((rng.normal(size=(2, 3)).T,))]
        ),
        grad_name="CloneBackward0",
    )


def _clone(x: Array) -> Array:
    # An expanded array has no layout of its own to keep; NumPy would put the expanded dimension innermost.
    return x.copy(order="C" if 0 in x.strides else "K")


clone = _copying("clone", _clone)
contiguous = _copying("contiguous", lambda x: x.copy(order="C"))


# What `copy_` and `fill_` do: the tensor takes other values, and its own get no gradient.
overwrite = elementwise(
    "overwrite",
    onnx=lambda b, x, value: b.node("Expand", value, b.sizes(b.broadcast(x, value))),
    arity=2,
    formula=lambda m, x, value: np.broadcast_to(value, np.broadcast_shapes(x.shape, value.shape)).copy(),
    reference=lambda x, value: value,
    vjp=(lambda m, g, _y, _x, _value: m.zeros_like(g), lambda m, g, _y, _x, _value: g),
    grad_name="CopyBackwards",
)
