"""Convolutions, their transposes, and windows as columns: conv1d … conv_transpose3d, unfold, fold."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from wayfare.api.functions._along import check_tensor, check_tensors
from wayfare.api.functions._public import named
from wayfare.core.dispatch import apply
from wayfare.core.errors import ArgumentError, ArgumentTypeError, DTypeError, OperationError, ShapeError
from wayfare.core.mode import current
from wayfare.core.op import REGISTRY
from wayfare.core.tensor import Tensor

__all__ = [
    "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "fold", "unfold",
]  # fmt: skip

_OPS = REGISTRY
IntOrInts = int | Sequence[int]


P = ParamSpec("P")
T = TypeVar("T")


def of_rank(template: Callable[Concatenate[str, int, P], T], op: str, rank: int, doc: str) -> Callable[P, T]:
    """The public form of a function for one number of dimensions: `template(op, rank, …)`, whose errors name `op`."""

    def call(*args: P.args, **options: P.kwargs) -> T:
        return template(op, rank, *args, **options)

    signature = inspect.signature(template)
    call.__signature__ = signature.replace(parameters=list(signature.parameters.values())[2:])  # type: ignore[attr-defined]
    call.__module__ = template.__module__
    return named(call, op, doc)


def per_dim(op: str, name: str, value: Any, rank: int, least: int = 0) -> tuple[int, ...]:
    """One number for every dimension, from one for all or one for each."""
    given: tuple[Any, ...] = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    given = given * rank if len(given) == 1 else given
    try:
        numbers = tuple(operator.index(n) for n in given)
    except TypeError:
        numbers = ()
    if len(numbers) != rank:
        raise ArgumentTypeError(f"{op}: {name} must be an int or {rank} of them, not {value!r}")
    if min(numbers, default=least) < least:
        raise OperationError(f"{op}: {name} must be at least {least}, it is {value!r}")
    return numbers


def with_batch(op: str, input: Tensor, rank: int) -> tuple[Tensor, bool]:
    """The input as (N, C, *sizes), and whether the N was missing."""
    check_tensor(op, input)
    if input.ndim == rank + 2:
        return input, False
    if input.ndim == rank + 1:
        return apply(_OPS["reshape"], (input,), {"shape": (1, *input.shape)}), True
    raise ShapeError(f"{op}: the input must be (N, C, …) with {rank + 2} dimensions, or {rank + 1} without a batch; "
                     f"this is {input.spec}")  # fmt: skip


def without_batch(out: Tensor, added: bool) -> Tensor:
    """Take the added batch dimension away again."""
    return apply(_OPS["reshape"], (out,), {"shape": tuple(out.shape)[1:]}) if added else out


def _with_bias(op: str, out: Tensor, bias: Tensor | None, rank: int) -> Tensor:
    if bias is None:
        return out
    if tuple(bias.shape) != (out.shape[1],):
        raise ShapeError(f"{op}: the bias {bias.spec} must have one number for each of {out.shape[1]} channels")
    if bias.dtype is not out.dtype and current().autocast is not None:
        bias = bias.to(out.dtype)
    if bias.dtype is not out.dtype:
        raise DTypeError(f"{op}: the bias must have the dtype of the input, {out.dtype}, not {bias.dtype}",
                         fix=f"Convert it with .to(wf.{out.dtype.name}).")  # fmt: skip
    return out + apply(_OPS["reshape"], (bias,), {"shape": (-1,) + (1,) * rank})  # type: ignore[no-any-return]


def _check_weight(op: str, input: Tensor, weight: Tensor, rank: int, groups: int) -> None:
    check_tensors(op, input, weight)
    if weight.ndim != rank + 2:
        raise ShapeError(f"{op}: the weight must have {rank + 2} dimensions, this is {weight.spec}")
    if groups < 1:
        raise OperationError(f"{op}: groups must be positive, not {groups}")


def conv(
    op: str, rank: int, /, input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: IntOrInts = 1,
    padding: str | IntOrInts = 0, dilation: IntOrInts = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """Convolution in `rank` dimensions; `op` is what errors name."""
    _check_weight(op, input, weight, rank, groups)
    x, added = with_batch(op, input, rank)
    steps, gaps = per_dim(op, "stride", stride, rank, 1), per_dim(op, "dilation", dilation, rank, 1)
    if isinstance(padding, str):
        x, around = _named_padding(op, padding, x, tuple(weight.shape[2:]), steps, gaps)
    else:
        around = per_dim(op, "padding", padding, rank)
    attrs = {"stride": steps, "padding": around, "dilation": gaps, "groups": groups}
    if bias is None:
        return without_batch(apply(_OPS["conv"], (x, weight), attrs), added)
    return without_batch(apply(_OPS["conv_bias"], (x, weight, bias), attrs), added)


def _named_padding(
    op: str, padding: str, x: Tensor, kernel: tuple[int, ...], steps: tuple[int, ...], gaps: tuple[int, ...]
) -> tuple[Tensor, tuple[int, ...]]:
    """ "valid" is none; "same" keeps the size, with the odd one behind."""
    if padding == "valid":
        return x, (0,) * len(kernel)
    if padding != "same":
        raise ArgumentError(f"{op}: padding must be numbers, 'same' or 'valid', not {padding!r}")
    if set(steps) != {1}:
        raise OperationError(f"{op}: padding='same' needs a stride of 1, not {steps}")
    totals = [gap * (size - 1) for gap, size in zip(gaps, kernel, strict=True)]
    if any(total % 2 for total in totals):
        behind = ((0, 0), (0, 0), *((0, total % 2) for total in totals))
        x = apply(_OPS["pad"], (x,), {"amounts": behind, "value": 0})
    return x, tuple(total // 2 for total in totals)


conv1d = of_rank(conv, "conv1d", 1, "Convolution of (N, C, L) with a weight (C out, C / groups, kernel).")
conv2d = of_rank(conv, "conv2d", 2,
                 "Convolution of (N, C, H, W) with a weight (C out, C / groups, kernel H, kernel W).")  # fmt: skip
conv3d = of_rank(conv, "conv3d", 3,
                 "Convolution of (N, C, D, H, W) with a weight (C out, C / groups, kernel D, kernel H, kernel W)."
                 )  # fmt: skip


def conv_transpose(
    op: str, rank: int, /, input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: IntOrInts = 1,
    padding: IntOrInts = 0, output_padding: IntOrInts = 0, groups: int = 1, dilation: IntOrInts = 1,
) -> Tensor:  # fmt: skip
    """The adjoint of a convolution in `rank` dimensions."""
    _check_weight(op, input, weight, rank, groups)
    x, added = with_batch(op, input, rank)
    steps, gaps = per_dim(op, "stride", stride, rank, 1), per_dim(op, "dilation", dilation, rank, 1)
    around, extra = per_dim(op, "padding", padding, rank), per_dim(op, "output_padding", output_padding, rank)
    if any(e >= max(s, d) for e, s, d in zip(extra, steps, gaps, strict=True)):
        raise OperationError(f"{op}: output_padding {extra} must be smaller than stride {steps} or dilation {gaps}")
    spans = zip(x.shape[2:], weight.shape[2:], steps, around, gaps, extra, strict=True)
    sizes = tuple((n - 1) * s - 2 * p + d * (k - 1) + e + 1 for n, k, s, p, d, e in spans)
    if min(sizes) < 1:
        raise OperationError(f"{op}: an input {input.spec} with padding {around} would give the sizes {list(sizes)}")
    if weight.shape[0] % groups:
        raise ShapeError(f"{op}: {weight.shape[0]} input channels cannot be split into {groups} groups")
    attrs = {"sizes": sizes, "stride": steps, "padding": around, "dilation": gaps, "groups": groups}
    out = apply(_OPS["conv_input"], (x, weight), attrs)
    return without_batch(_with_bias(op, out, bias, rank), added)


conv_transpose1d = of_rank(
    conv_transpose, "conv_transpose1d", 1,
    "Transposed convolution of (N, C, L) with a weight (C, C out / groups, kernel): the adjoint of conv1d.",
)  # fmt: skip
conv_transpose2d = of_rank(
    conv_transpose, "conv_transpose2d", 2,
    "Transposed convolution of (N, C, H, W) with a weight (C, C out / groups, kernel H, kernel W).",
)  # fmt: skip
conv_transpose3d = of_rank(
    conv_transpose, "conv_transpose3d", 3,
    "Transposed convolution of (N, C, D, H, W) with a weight (C, C out / groups, kernel D, kernel H, kernel W).",
)  # fmt: skip


def _window_args(
    op: str, kernel_size: IntOrInts, dilation: IntOrInts, padding: IntOrInts, stride: IntOrInts
) -> dict[str, Any]:
    return {
        "kernel": per_dim(op, "kernel_size", kernel_size, 2, 1),
        "stride": per_dim(op, "stride", stride, 2, 1),
        "padding": per_dim(op, "padding", padding, 2),
        "dilation": per_dim(op, "dilation", dilation, 2, 1),
    }


def unfold(
    input: Tensor, kernel_size: IntOrInts, dilation: IntOrInts = 1, padding: IntOrInts = 0, stride: IntOrInts = 1
) -> Tensor:
    """The windows of (N, C, H, W) as columns: (N, C · kernel H · kernel W, number of windows)."""
    x, added = with_batch("unfold", input, 2)
    attrs = _window_args("unfold", kernel_size, dilation, padding, stride)
    return without_batch(apply(_OPS["im2col"], (x,), attrs), added)


def fold(
    input: Tensor, output_size: IntOrInts, kernel_size: IntOrInts, dilation: IntOrInts = 1, padding: IntOrInts = 0,
    stride: IntOrInts = 1,
) -> Tensor:  # fmt: skip
    """The adjoint of `unfold`: every column is added where its window lies in (N, C, *output_size)."""
    x, added = with_batch("fold", input, 1)
    attrs = _window_args("fold", kernel_size, dilation, padding, stride)
    attrs["sizes"] = per_dim("fold", "output_size", output_size, 2, 1)
    _OPS["col2im"].infer(x.spec, **attrs)
    return without_batch(apply(_OPS["col2im"], (x,), attrs), added)
