"""Padding: more numbers around a tensor, constant or continued from its edges."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wayfare.api.autocast import follows_autocast
from wayfare.api.functions._along import check_tensor
from wayfare.api.functions._new import fitting, flat_ints
from wayfare.api.functions.join import cat
from wayfare.api.functions.rearrange import flip
from wayfare.api.functions.shape import expanded
from wayfare.core.autocast import FLOAT32_ON_CPU
from wayfare.core.dispatch import apply
from wayfare.core.errors import ArgumentError, OperationError, ShapeError
from wayfare.core.op import REGISTRY
from wayfare.core.tensor import Tensor

__all__ = ["pad"]


def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    """Pad the last dimensions: (left, right) of the last, then of the one before, …; negative amounts cut.

    Modes: "constant" (`value`, 0 by default), "reflect", "replicate", "circular".
    """
    check_tensor("pad", input)
    amounts = flat_ints("pad", "an amount", (pad,))
    if len(amounts) % 2 or len(amounts) // 2 > input.ndim:
        raise OperationError(f"pad: {list(amounts)} must hold a left and a right amount for each padded "
                             f"dimension of {input.spec}")  # fmt: skip
    pairs = list(zip(amounts[::2], amounts[1::2], strict=True))
    if mode == "constant":
        return _constant(input, pairs, 0.0 if value is None else value)
    if mode not in _EDGES:
        raise OperationError(f"pad: mode must be constant, reflect, replicate or circular, not {mode!r}")
    if value is not None and value != 0:
        raise ArgumentError(f"pad: a value has no meaning for mode {mode!r}")
    if not 1 <= len(pairs) <= 3 or input.ndim not in (len(pairs) + 1, len(pairs) + 2):
        raise OperationError(f"pad: mode {mode!r} pads the last 1, 2 or 3 dimensions of a tensor with one or "
                             f"two more; {len(pairs)} pairs do not fit {input.spec}")  # fmt: skip
    out = input
    for number, (left, right) in enumerate(pairs):
        out = _EDGES[mode](out, input.ndim - 1 - number, left, right)
    # Where nothing was added it is the input itself or a view of it, but it must not share its memory.
    return out.clone() if out is input or out._is_view() else out


def _constant(input: Tensor, pairs: Sequence[tuple[int, int]], value: float) -> Tensor:
    amounts = ((0, 0),) * (input.ndim - len(pairs)) + tuple(reversed(pairs))
    for dim, (size, (left, right)) in enumerate(zip(input.shape, amounts, strict=True)):
        if size + left + right < 0 or size < max(0, -left) + max(0, -right):
            raise OperationError(f"pad: {left} and {right} cut too much from dimension {dim} of {input.spec}")
    number = bool(value) if input.dtype.rank == 0 else fitting("pad", value, input.dtype)
    number = float(number) if input.dtype.rank == 2 else number
    return apply(REGISTRY["pad"], (input,), {"amounts": amounts, "value": number})  # type: ignore[no-any-return]


def _part(x: Tensor, dim: int, start: int, stop: int) -> Tensor:
    return apply(REGISTRY["slice"], (x,), {"dim": dim, "start": start, "stop": stop, "step": 1})  # type: ignore[no-any-return]


def _cut(x: Tensor, dim: int, left: int, right: int) -> Tensor:
    """Without what negative amounts cut off."""
    if left >= 0 and right >= 0:
        return x
    size = x.shape[dim]
    start, stop = max(0, -left), size - max(0, -right)
    if stop < start:
        raise OperationError(
            f"pad: cutting {left} and {right} from dimension {dim} of {x.spec} leaves less than nothing"
        )
    return _part(x, dim, start, stop)


def _joined(parts: list[Tensor | None], dim: int) -> Tensor:
    found = [part for part in parts if part is not None]
    return found[0] if len(found) == 1 else cat(found, dim)


@follows_autocast(FLOAT32_ON_CPU)
def _reflect(x: Tensor, dim: int, left: int, right: int) -> Tensor:
    size = x.shape[dim]
    if max(left, right) >= size:
        raise OperationError(f"pad: reflecting {max(left, right)} elements needs more than the {size} that "
                             f"dimension {dim} of {x.spec} has")  # fmt: skip
    before = flip(_part(x, dim, 1, left + 1), dim) if left > 0 else None
    after = flip(_part(x, dim, size - 1 - right, size - 1), dim) if right > 0 else None
    # Negative amounts cut what was reflected at the other edge too, so the cut comes last.
    out = _joined([before, x, after], dim)
    return _cut(out, dim, min(left, 0), min(right, 0))


@follows_autocast(FLOAT32_ON_CPU)
def _replicate(x: Tensor, dim: int, left: int, right: int) -> Tensor:
    size = x.shape[dim]
    if size == 0:
        raise ShapeError(f"pad: dimension {dim} of {x.spec} is empty, so it has no edge to repeat")

    def edge(at: int, count: int) -> Tensor | None:
        shape = tuple(x.shape)
        return expanded(_part(x, dim, at, at + 1), (*shape[:dim], count, *shape[dim + 1 :])) if count > 0 else None

    out = _joined([edge(0, left), x, edge(size - 1, right)], dim)
    return _cut(out, dim, min(left, 0), min(right, 0))


def _circular(x: Tensor, dim: int, left: int, right: int) -> Tensor:
    x = _cut(x, dim, left, right)
    size = x.shape[dim]
    if max(left, right) > size:
        raise OperationError(
            f"pad: going round more than once: {max(left, right)} elements of dimension {dim} of {x.spec}"
        )
    before = _part(x, dim, size - left, size) if left > 0 else None
    after = _part(x, dim, 0, right) if right > 0 else None
    return _joined([before, x, after], dim)


_EDGES: dict[str, Callable[[Tensor, int, int, int], Tensor]] = {
    "reflect": _reflect, "replicate": _replicate, "circular": _circular,
}  # fmt: skip
