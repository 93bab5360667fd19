"""Views: the same numbers under another shape, order or stretch. Nothing here copies where a view can do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from wayfare.api.functions._new import either, flat_ints, read_int
from wayfare.api.functions._public import add_method, add_property, method, named
from wayfare.core.device import BACKENDS
from wayfare.core.dispatch import apply
from wayfare.core.errors import ArgumentError, OperationError, ShapeError
from wayfare.core.mode import UNUSUAL, executor
from wayfare.core.native import as_view
from wayfare.core.op import REGISTRY
from wayfare.core.spec import DType, Shape, Size, broadcast, normal_dim, normal_dims
from wayfare.core.tensor import Tensor
from wayfare.ops.movement.windows import memory_of

__all__ = [
    "reshape", "flatten", "unflatten", "ravel", "squeeze", "unsqueeze",
    "permute", "transpose", "swapaxes", "swapdims", "t", "adjoint", "movedim", "moveaxis",
    "broadcast_to", "broadcast_tensors", "broadcast_shapes", "atleast_1d", "atleast_2d", "atleast_3d",
    "diagonal", "as_strided",
]  # fmt: skip

_OPS = REGISTRY


def reshaped(input: Tensor, shape: Shape, op: str = "reshape") -> Tensor:
    """`input` under a shape that is known to fit; `op` is the name the graph shows."""
    return apply(_OPS[op], (input,), {"shape": shape})  # type: ignore[no-any-return]


def permuted(input: Tensor, dims: tuple[int, ...], op: str = "permute") -> Tensor:
    """`input` with its dimensions in another order, given as non-negative numbers."""
    return apply(_OPS[op], (input,), {"dims": dims})  # type: ignore[no-any-return]


def expanded(input: Tensor, shape: Shape) -> Tensor:
    """`input` stretched to a shape that is known to fit."""
    return apply(_OPS["expand"], (input,), {"shape": shape})  # type: ignore[no-any-return]


# -- another shape -----------------------------------------------------------------------------------------


def fitting_shape(op: str, input: Tensor, shape: Sequence[int]) -> Shape:
    """The shape with its -1 worked out; a ShapeError when the numbers of elements differ."""
    wanted = tuple(shape)
    total = math.prod(input.shape)
    unknown = [axis for axis, size in enumerate(wanted) if size == -1]
    if len(unknown) > 1:
        raise ShapeError(f"{op}: only one size can be -1, not {len(unknown)} as in {list(wanted)}")
    if any(size < -1 for size in wanted):
        raise ShapeError(f"{op}: a size in {list(wanted)} is negative")
    if unknown:
        rest = math.prod(size for size in wanted if size != -1)
        if rest == 0:
            raise ShapeError(f"{op}: with a size of 0 in {list(wanted)} the -1 could be anything")
        if total % rest == 0:
            return tuple(total // rest if size == -1 else size for size in wanted)
    elif math.prod(wanted) == total:
        return wanted
    raise ShapeError(f"{op}: {total} elements of {input.spec} do not fit into shape {list(wanted)}",
                     fix=f"The sizes must multiply to {total}; one of them can be -1.")  # fmt: skip


@method
@as_view
def reshape(input: Tensor, *shape: Any, **named: Any) -> Tensor:
    """The same elements in another shape; a view where the memory allows, else a copy. One size can be -1."""
    out = reshaped(input, fitting_shape("reshape", input, either("reshape", "shape", shape, named)))
    if out._view is None and executor().is_copy(out) and out._edge is not None:
        out._edge.op = _OPS["unsafe_view"]  # it had to copy, which PyTorch shows by another name
    return out


def _view(self: Tensor, *size: Any, **named: Any) -> Tensor:
    """The same memory in another shape (one size can be -1), or read as another dtype; never a copy."""
    if len(size) == 1 and isinstance(size[0], DType):
        if size[0] is not self.dtype:
            return apply(_OPS["view_bits"], (self,), {"dtype": size[0]})  # type: ignore[no-any-return]
        size = tuple(self.shape)
    shape = fitting_shape("view", self, either("view", "size", size, named))
    possible = not UNUSUAL or executor().is_view(self, shape)
    out = reshaped(self, shape)
    if not possible or (out._view is None and executor().is_copy(out)):
        raise OperationError(f"view: {self.spec} cannot become {list(out.shape)} without a copy, because it is "
                             "non-contiguous", fix="Use .reshape(...), which copies where it must, or "
                             ".contiguous().view(...).")  # fmt: skip
    return out


def _view_as(self: Tensor, other: Tensor) -> Tensor:
    """The same memory in the shape of `other`."""
    return _view(self, other.shape)


def _reshape_as(self: Tensor, other: Tensor) -> Tensor:
    """The same elements in the shape of `other`."""
    return reshape(self, other.shape)


add_method("view", as_view(_view))
add_method("view_as", _view_as)
add_method("reshape_as", _reshape_as)


@method
@as_view
def flatten(input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """The dimensions from `start_dim` to `end_dim` merged into one."""
    first, last = normal_dim("flatten", start_dim, input.ndim), normal_dim("flatten", end_dim, input.ndim)
    if first > last:
        raise OperationError(f"flatten: start_dim ({start_dim}) comes after end_dim ({end_dim})")
    shape = tuple(input.shape)
    if input.ndim == 0:
        return reshaped(input, (1,))
    if first == last:
        return input
    return reshaped(input, (*shape[:first], math.prod(shape[first : last + 1]), *shape[last + 1 :]))


@method
def unflatten(input: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
    """One dimension split into several; one of the sizes can be -1."""
    axis = normal_dim("unflatten", dim, input.ndim)
    parts = list(flat_ints("unflatten", "a size", (sizes,)))
    shape, length = tuple(input.shape), input.shape[axis]
    if not parts:
        raise OperationError("unflatten: sizes is empty", fix="Give at least one size.")
    known = math.prod(p for p in parts if p != -1)
    if parts.count(-1) == 1 and known and length % known == 0:
        parts[parts.index(-1)] = length // known
    if math.prod(parts) != length or min(parts) < 0:
        raise ShapeError(f"unflatten: {list(sizes)} does not multiply to the {length} of dimension {axis} "
                         f"of {input.spec}")  # fmt: skip
    return reshaped(input, (*shape[:axis], *parts, *shape[axis + 1 :]))


@method
def ravel(input: Tensor) -> Tensor:
    """All elements in one dimension."""
    return reshaped(input, (math.prod(input.shape),)) if input.ndim != 1 else input


@method
@as_view
def squeeze(input: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    """Without the dimensions of size 1: all of them, or those of `dim` that have size 1."""
    if dim is None:
        op, dims = "squeeze", tuple(range(input.ndim))
    elif isinstance(dim, (tuple, list)):
        op, dims = "squeeze_dims", normal_dims("squeeze", dim, input.ndim) if dim else ()
    else:
        op, dims = "squeeze_dim", (normal_dim("squeeze", dim, input.ndim),)
    return reshaped(input, tuple(n for d, n in enumerate(input.shape) if n != 1 or d not in dims), op)


@method
@as_view
def unsqueeze(input: Tensor, dim: int) -> Tensor:
    """With a new dimension of size 1 at `dim`."""
    axis = normal_dim("unsqueeze", dim, input.ndim + 1, "a result")
    shape = tuple(input.shape)
    return reshaped(input, (*shape[:axis], 1, *shape[axis:]), "unsqueeze")


# -- another order -----------------------------------------------------------------------------------------


@method
@as_view
def permute(input: Tensor, *dims: Any, **named: Any) -> Tensor:
    """The dimensions in the order `dims`."""
    order = either("permute", "dims", dims, named)
    if len(order) != input.ndim:
        raise ShapeError(f"permute: {list(order)} names {len(order)} dimensions, but {input.spec} has {input.ndim}")
    order = tuple(normal_dim("permute", d, input.ndim) for d in order)
    if len(set(order)) != len(order):
        raise OperationError(f"permute: a dimension is named twice in {list(order)}")
    return permuted(input, order)


@method
@as_view
def transpose(input: Tensor, dim0: int, dim1: int) -> Tensor:
    """Two dimensions exchanged."""
    order = list(range(input.ndim))
    a, b = normal_dim("transpose", dim0, input.ndim), normal_dim("transpose", dim1, input.ndim)
    if order:
        order[a], order[b] = b, a
    return permuted(input, tuple(order), "transpose")


@method
def swapaxes(input: Tensor, axis0: int, axis1: int) -> Tensor:
    """Two dimensions exchanged; another name for `transpose`."""
    return transpose(input, axis0, axis1)


@method
def swapdims(input: Tensor, dim0: int, dim1: int) -> Tensor:
    """Two dimensions exchanged; another name for `transpose`."""
    return transpose(input, dim0, dim1)


@method
@as_view
def t(input: Tensor) -> Tensor:
    """The transpose of a matrix; a vector or number is returned as it is."""
    if input.ndim > 2:
        raise OperationError(f"t: expects at most 2 dimensions, not {input.spec}",
                             fix="Use .mT to transpose the last two.")  # fmt: skip
    return permuted(input, tuple(reversed(range(input.ndim))), "t")


@method
def adjoint(input: Tensor) -> Tensor:
    """The last two dimensions exchanged (numbers are real, so nothing is conjugated)."""
    return _matrix_transposed(input, "adjoint")


def _matrix_transposed(input: Tensor, op: str) -> Tensor:
    if input.ndim < 2:
        raise OperationError(f"{op}: needs at least 2 dimensions, not {input.spec}",
                             fix="Give the vector a second dimension with unsqueeze.")  # fmt: skip
    return transpose(input, -2, -1)


def _reversed(self: Tensor) -> Tensor:
    """All dimensions in reverse order."""
    return permuted(self, tuple(reversed(range(self.ndim))))


def _hermitian(self: Tensor) -> Tensor:
    """The transpose of a matrix."""
    if self.ndim not in (0, 2):
        raise OperationError(f"H: expects a matrix, not {self.spec}", fix="Use .mH for batches of matrices.")
    return _reversed(self)


def _last_two(self: Tensor) -> Tensor:
    """The last two dimensions exchanged."""
    return _matrix_transposed(self, "mT")


add_property("T", _reversed)
add_property("H", _hermitian)
add_property("mT", _last_two)
add_property("mH", _last_two)


@method
def movedim(input: Tensor, source: int | Sequence[int], destination: int | Sequence[int]) -> Tensor:
    """Dimensions moved to other places; the rest keep their order."""
    sources = tuple(normal_dim("movedim", d, input.ndim) for d in flat_ints("movedim", "a dimension", (source,)))
    targets = tuple(normal_dim("movedim", d, input.ndim) for d in flat_ints("movedim", "a dimension", (destination,)))
    if len(sources) != len(targets):
        raise ShapeError(f"movedim: {len(sources)} dimensions cannot move to {len(targets)} places")
    if len(set(sources)) != len(sources) or len(set(targets)) != len(targets):
        raise OperationError(f"movedim: a dimension is named twice in source={source} or destination={destination}")
    if input.ndim == 0:
        return permuted(input, ())
    order = [d for d in range(input.ndim) if d not in sources]
    for target, moved in sorted(zip(targets, sources, strict=True)):
        order.insert(target, moved)
    return permuted(input, tuple(order))


@method
def moveaxis(input: Tensor, source: int | Sequence[int], destination: int | Sequence[int]) -> Tensor:
    """Dimensions moved to other places; another name for `movedim`."""
    return movedim(input, source, destination)


# -- stretched by broadcasting -----------------------------------------------------------------------------


def stretched_shape(op: str, input: Tensor, sizes: Sequence[int]) -> Shape:
    """The shape to stretch to, with every -1 replaced by the size that is there."""
    extra = len(sizes) - input.ndim
    if extra < 0:
        raise ShapeError(f"{op}: {input.spec} has {input.ndim} dimensions, so it cannot become {list(sizes)}")
    shape: list[int] = []
    for axis, size in enumerate(sizes):
        own = input.shape[axis - extra] if axis >= extra else None
        if size == -1 and own is None:
            raise ShapeError(f"{op}: -1 keeps a size, but dimension {axis} of {list(sizes)} is new",
                             fix="Give its size.")  # fmt: skip
        wanted = own if size == -1 and own is not None else size
        if wanted < 0 or (own is not None and own != 1 and own != wanted):
            raise ShapeError(f"{op}: dimension {axis} of {input.spec} cannot be stretched to {size}",
                             fix="Only a size of 1 can be stretched.")  # fmt: skip
        shape.append(wanted)
    return tuple(shape)


def _expand(self: Tensor, *size: Any, implicit: bool = False, **named: Any) -> Tensor:
    """Dimensions of size 1 stretched, and new ones in front, without a copy; -1 keeps a size."""
    return expanded(self, stretched_shape("expand", self, either("expand", "size", size, named)))


def _expand_as(self: Tensor, other: Tensor) -> Tensor:
    """Stretched to the shape of `other`."""
    return expanded(self, stretched_shape("expand_as", self, other.shape))


add_method("expand", as_view(_expand))
add_method("expand_as", _expand_as)


@method
def broadcast_to(input: Tensor, size: Sequence[int]) -> Tensor:
    """Stretched to `size` by the broadcasting rule, without a copy."""
    return expanded(input, stretched_shape("broadcast_to", input, flat_ints("broadcast_to", "a size", (size,))))


def broadcast_tensors(*tensors: Any) -> tuple[Tensor, ...]:
    """All tensors stretched to their common shape."""
    if len(tensors) == 1 and isinstance(tensors[0], (tuple, list)):
        tensors = tuple(tensors[0])
    shape = broadcast("broadcast_tensors", *(tuple(x.shape) for x in tensors))
    return tuple(expanded(x, shape) for x in tensors)


def broadcast_shapes(*shapes: Any) -> Size:
    """The common shape of several by the broadcasting rule."""
    known = [flat_ints("broadcast_shapes", "a size", (s,)) for s in shapes]
    for shape in known:
        if any(size < 0 for size in shape):
            raise ShapeError(f"broadcast_shapes: a size in {list(shape)} is negative")
    return Size(broadcast("broadcast_shapes", *known))


def _at_least(name: str, doc: str, shape_of: Any) -> Any:
    def convert(*tensors: Any) -> Any:
        if len(tensors) == 1:
            if isinstance(tensors[0], (tuple, list)):
                return tuple(convert(x) for x in tensors[0])
            shape = shape_of(tuple(tensors[0].shape))
            return tensors[0] if shape is None else reshaped(tensors[0], shape)
        return tuple(convert(x) for x in tensors)

    return named(convert, name, doc)


def _three(shape: Shape) -> Shape | None:
    return {0: (1, 1, 1), 1: (1, *shape, 1), 2: (*shape, 1)}.get(len(shape))


atleast_1d = _at_least("atleast_1d", "With at least one dimension.", lambda s: None if s else (1,))
atleast_2d = _at_least(
    "atleast_2d", "With at least two dimensions; a vector becomes a row.",
    lambda s: None if len(s) > 1 else (1, *(s or (1,))),
)  # fmt: skip
atleast_3d = _at_least("atleast_3d", "With at least three dimensions; a matrix gets a last one.", _three)


# -- parts in another shape --------------------------------------------------------------------------------


@method
def diagonal(input: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """The diagonals over two dimensions, as a last dimension; a view."""
    a, b = normal_dim("diagonal", dim1, input.ndim), normal_dim("diagonal", dim2, input.ndim)
    if a == b:
        raise OperationError(f"diagonal: dim1 and dim2 must differ, both are {a} for {input.spec}")
    attrs = {"offset": read_int("diagonal", "offset", offset), "dim1": a, "dim2": b}
    return apply(_OPS["diagonal"], (input,), attrs)  # type: ignore[no-any-return]


def _unfold(self: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """Windows of `size` elements along a dimension, `step` apart, as a new last dimension; a view."""
    axis = normal_dim("unfold", dimension, self.ndim)
    size, step = read_int("unfold", "size", size), read_int("unfold", "step", step)
    length = self.shape[axis] if self.ndim else 1
    if step <= 0:
        raise OperationError(f"unfold: step must be positive, but is {step}")
    if not 0 <= size <= length:
        raise OperationError(f"unfold: a window of {size} does not fit into dimension {axis} of {self.spec}")
    if self.ndim == 0:
        whole = {"dim": 0, "start": 0, "stop": size, "step": 1}
        return apply(_OPS["slice"], (reshaped(self, (1,)),), whole)  # type: ignore[no-any-return]
    return apply(_OPS["unfold"], (self,), {"dim": axis, "size": size, "step": step})  # type: ignore[no-any-return]


add_method("unfold", _unfold)


@method
def as_strided(input: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None) -> Tensor:
    """The memory behind `input` read with any sizes and strides (counted in elements); for reading only."""
    shape, steps = flat_ints("as_strided", "a size", (size,)), flat_ints("as_strided", "a stride", (stride,))
    if len(shape) != len(steps):
        raise ArgumentError(f"as_strided: {len(shape)} sizes and {len(steps)} strides")
    if any(n < 0 for n in (*shape, *steps)):
        raise OperationError(f"as_strided: no size or stride can be negative, given {list(shape)} and {list(steps)}")
    if BACKENDS and not input.is_cpu:
        array, begins = input._array, input.storage_offset()
    else:
        array = input._read("as_strided()")
        found = memory_of(array)
        begins = 0 if found is None else found[1]
    offset = 0 if storage_offset is None else storage_offset - begins
    layout = tuple(s // array.itemsize for s in array.strides)
    attrs = {"size": shape, "stride": steps, "offset": offset, "layout": layout}
    try:
        return apply(_OPS["as_strided"], (input,), attrs)  # type: ignore[no-any-return]
    except OperationError:
        raise OperationError(f"as_strided: sizes {list(shape)} and strides {list(steps)} reach outside the "
                             f"memory of {input.spec}") from None  # fmt: skip
