"""Views: the same numbers under another shape or order, and the two ops that replay a chain of views."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from wayfare.codegen.routines.reductions import sum_to
from wayfare.codegen.routines.rows import Rows
from wayfare.core.errors import OperationError, ShapeError
from wayfare.core.numpy_math import Array
from wayfare.core.op import REGISTRY, NotExportable, Op, Sample
from wayfare.core.signature import DIMS, DTYPE, PATH, SIZES, takes
from wayfare.core.spec import DType, Shape, Spec, broadcast, int32, int64, spec_of, uint8
from wayfare.ops import _ragged as ragged
from wayfare.ops._define import define, in_front, movement
from wayfare.ops.movement import onnx_rules as rules

Path = tuple[tuple[str, tuple[tuple[str, Any], ...]], ...]


def _reshape_samples(rng: Any) -> Iterable[Sample]:
    yield Sample((rng.normal(size=(3, 4)),), {"shape": (2, 6)})
    yield Sample((rng.normal(size=(3, 4)).T,), {"shape": (12,)})
    yield Sample((rng.normal(size=()),), {"shape": (1, 1)})
    yield Sample((rng.normal(size=(0, 3)),), {"shape": (3, 0)})


def _resolved(given: Shape, shape: Shape) -> Shape:
    """The shape with its -1, if it has one, worked out."""
    if -1 not in shape:
        return shape
    rest = math.prod(n for n in shape if n != -1)
    return tuple(math.prod(given) // rest if n == -1 else n for n in shape)


def _reshaping(name: str, grad_name: str) -> Op:
    """One op under several names, so that the graph shows the one that was called."""
    return movement(
        name,
        attrs={"shape": SIZES},
        moves="reshape",
        onnx=rules.reshape,
        forward=lambda x, *, shape: x.reshape(shape),
        shape=lambda x, *, shape: _resolved(x, tuple(shape)),
        vjp=lambda m, g, _y, x_spec, *, shape: m.reshape(g, shape=x_spec.shape),
        reference=lambda x, shape: np.array(x.ravel().tolist()).reshape(shape),
        samples=_reshape_samples,
        grad_name=grad_name,
    )


reshape = _reshaping("reshape", "ViewBackward0")
unsafe_view = _reshaping("unsafe_view", "UnsafeViewBackward0")
squeeze = _reshaping("squeeze", "SqueezeBackward0")
squeeze_dim = _reshaping("squeeze_dim", "SqueezeBackward1")
squeeze_dims = _reshaping("squeeze_dims", "SqueezeBackward2")
unsqueeze = _reshaping("unsqueeze", "UnsqueezeBackward0")


def _permute_samples(rng: Any) -> Iterable[Sample]:
    yield Sample((rng.normal(size=(2, 3, 4)),), {"dims": (2, 0, 1)})
    yield Sample((rng.normal(size=(3, 2)),), {"dims": (1, 0)})
    yield Sample((rng.normal(size=()),), {"dims": ()})


def _permuting(name: str, grad_name: str) -> Op:
    return movement(
        name,
        attrs={"dims": DIMS},
        moves="permute",
        onnx=rules.permute,
        forward=lambda x, *, dims: x.transpose(dims),
        shape=lambda x, *, dims: tuple(x[d] for d in dims),
        vjp=lambda m, g, _y, _x, *, dims: m.permute(g, dims=tuple(np.argsort(dims).tolist())),
        reference=lambda x, dims: np.einsum(x, list(range(x.ndim)), list(dims)),
        samples=_permute_samples,
        shift=lambda attrs, size: {"dims": (0, *(d + 1 for d in attrs["dims"]))},
        of_lengths=ragged.permute(name),
        grad_name=grad_name,
    )


permute = _permuting("permute", "PermuteBackward0")
transpose = _permuting("transpose", "TransposeBackward0")
t = _permuting("t", "TBackward0")


def _expand_forward(x: Array, *, shape: Shape) -> Array:
    # If only sizes of 1 are added, no element appears twice: an ordinary view, which can be written.
    return x.reshape(shape) if x.size == math.prod(shape) and x.ndim <= len(shape) else np.broadcast_to(x, shape)


def _expand_shape(x: Shape, *, shape: Shape) -> Shape:
    if broadcast("expand", x, shape) != tuple(shape):
        raise ShapeError(f"expand: shape {list(x)} cannot be stretched to {list(shape)}")
    return tuple(shape)


def _expand_batch(m: Any, size: int, inputs: tuple[Any, ...], batched: tuple[bool, ...], attrs: dict[str, Any]) -> Any:
    x, shape = inputs[0], attrs["shape"]
    own = tuple(x.shape)[1:]
    lined_up = m.reshape(x, shape=(size,) + (1,) * (len(shape) - len(own)) + own)
    return m.expand(lined_up, shape=(size, *shape))


expand = define(
    "expand",
    signature=takes(1, shape=SIZES),
    onnx=lambda b, x, *, shape: b.node("Expand", x, b.sizes(shape)),
    family="movement",
    forward=_expand_forward,
    infer=lambda x, *, shape: Spec(_expand_shape(x.shape, shape=shape), x.dtype),
    vjp=(lambda m, g, _y, x_spec, *, shape: m.sum_to(g, shape=x_spec.shape),),
    batch=_expand_batch,
    ragged=ragged.expand,
    reference=lambda x, shape: x + np.zeros(shape, x.dtype),
    samples=lambda rng: [
        Sample((rng.normal(size=(3, 1)),), {"shape": (2, 3, 4)}),
        Sample((rng.normal(size=()),), {"shape": (2,)}),
        Sample((rng.normal(size=(1, 2)),), {"shape": (0, 2)}),
    ],
    view=True,
)


def _sum_to_batch(m: Any, size: int, inputs: tuple[Any, ...], batched: tuple[bool, ...], attrs: dict[str, Any]) -> Any:
    x, shape = inputs[0], attrs["shape"]
    extra = x.ndim - 1 - len(shape)
    target = (size,) + (1,) * extra + tuple(shape)
    return m.reshape(m.sum_to(x, shape=target), shape=(size, *shape))


def _sum_to(m: Any, x: Any, *, shape: tuple[int, ...]) -> Any:
    extra = x.ndim - len(shape)
    dim = tuple(range(extra)) + tuple(d + extra for d, n in enumerate(shape) if n == 1 and x.shape[d + extra] != 1)
    out = m.sum(x, dim=dim, keepdim=True) if dim else x
    return m.reshape(out, shape=shape) if extra else out


# The adjoint of expand: what broadcasting stretched is summed back.
sum_to_op = define(
    "sum_to",
    signature=takes(1, shape=SIZES),
    family="reduction",
    forward=lambda x, *, shape: sum_to(x, shape),
    formula=_sum_to,
    infer=lambda x, *, shape: Spec(shape, x.dtype),
    vjp=(lambda m, g, _y, x_spec, *, shape: m.expand(g, shape=x_spec.shape),),
    batch=_sum_to_batch,
    reference=lambda x, shape: x.reshape(-1, *shape).sum(0) if len(shape) < x.ndim else x.sum(0, keepdims=True),
    samples=lambda rng: [
        Sample((rng.normal(size=(2, 3, 4)),), {"shape": (3, 4)}),
        Sample((rng.normal(size=(2, 3)),), {"shape": (1, 3)}),
        Sample((rng.normal(size=(4,)),), {"shape": ()}),
    ],
)


def _bits_spec(x: Spec, *, dtype: DType) -> Spec:
    """Shape and dtype of the same bytes read as another dtype: the last dimension takes up the difference."""
    old, new = x.dtype.itemsize, dtype.itemsize
    if old == new:
        return Spec(x.shape, dtype)
    if not x.shape or x.shape[-1] * old % new:
        raise ShapeError(f"view: the last dimension of {x} cannot be divided into elements of {dtype}")
    return Spec((*x.shape[:-1], x.shape[-1] * old // new), dtype)


def _view_bits(x: Array, *, dtype: DType) -> Array:
    if x.ndim and x.itemsize != dtype.itemsize and x.strides[-1] != x.itemsize:
        raise OperationError(f"view: the last dimension of {spec_of(x)} is not contiguous, so its bytes cannot be "
                             f"read as {dtype}", fix="Use .contiguous() first.")  # fmt: skip
    return x.view(dtype.numpy)


# No gradient: it reads the bits of numbers.
view_bits = define(
    "view_bits",
    signature=takes(1, dtype=DTYPE),
    onnx=NotExportable("ONNX cannot read numbers by their bits; read them so outside and pass them in"),
    family="movement",
    forward=_view_bits,
    infer=_bits_spec,
    vjp=None,
    batch=in_front("view_bits"),
    reference=lambda x, dtype: np.frombuffer(x.tobytes(), dtype.numpy).reshape(*x.shape[:-1], -1),
    samples=lambda rng: [Sample((rng.integers(0, 9, (2, 4)),), {"dtype": dtype}) for dtype in (uint8, int32, int64)],
    view=True,
)


def replay(x: Any, path: Path) -> Any:
    """Follow a chain of view ops from an array."""
    for name, attrs in path:
        x = REGISTRY[name].forward(x, **dict(attrs))
    return x


def _replay_spec(x: Spec, path: Path) -> Spec:
    for name, attrs in path:
        x = REGISTRY[name].infer(x, **dict(attrs))
    return x


_SAMPLE_PATH: Path = (("permute", (("dims", (1, 0)),)), ("reshape", (("shape", (4, 3, 1)),)))


def _write_through(x: Array, part: Array, *, path: Path) -> Array:
    out = np.array(x, order="C")  # not x.copy(), which leaves a NumPy scalar a scalar
    seen = replay(out, path)
    if np.may_share_memory(seen, out):
        seen[...] = part
    else:  # A reshape on the path had to copy: find the elements by their numbers instead.
        out.reshape(-1)[replay(np.arange(out.size).reshape(out.shape), path)] = part
    return out


def _look_vjp(m: Any, g: Any, _y: Any, x_spec: Spec, *, path: Path) -> Any:
    """Back along the path, step by step: a step may show an element twice (expand), and then its gradients add up."""
    specs = [x_spec]
    for name, attrs in path[:-1]:
        specs.append(REGISTRY[name].infer(specs[-1], **dict(attrs)))
    for (name, attrs), spec in zip(reversed(path), reversed(specs), strict=True):
        rules: Any = REGISTRY[name].vjp
        g = rules[0](m, g.dense() if g.__class__ is Rows else g, None, spec, **dict(attrs))
    return g


# What a view shows, as one step: the new history of a view whose base was written.
look_through = define(
    "look_through",
    signature=takes(1, path=PATH),
    onnx=rules.look_through,
    family="movement",
    forward=lambda x, *, path: replay(x, path),
    infer=lambda x, *, path: _replay_spec(x, path),
    vjp=(_look_vjp,),
    reference=lambda x, path: x.T.reshape(4, 3, 1),
    samples=lambda rng: [Sample((rng.normal(size=(3, 4)),), {"path": _SAMPLE_PATH})],
    grad_name="AsStridedBackward0",
)


# A base with the part that a view shows replaced: the new history of a base that was written through a view.
write_through = define(
    "write_through",
    signature=takes(2, path=PATH),
    onnx=rules.write_through,
    family="movement",
    forward=_write_through,
    infer=lambda x, part, *, path: x,
    vjp=(
        lambda m, g, _y, _x, part_spec, *, path: m.write_through(
            g, np.zeros(part_spec.shape, part_spec.dtype.numpy), path=path
        ),
        lambda m, g, _y, _x, _part, *, path: m.look_through(g, path=path),
    ),
    reference=lambda x, part, path: part.reshape(4, 3).T,
    samples=lambda rng: [Sample((rng.normal(size=(3, 4)), rng.normal(size=(4, 3, 1))), {"path": _SAMPLE_PATH})],
    grad_name="CopySlices",
)
