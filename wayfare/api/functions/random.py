"""New random tensors: rand, randn, randint, randperm, normal, bernoulli, multinomial, poisson."""

from __future__ import annotations

from typing import Any

import numpy as np

from wayfare.api.functions._new import place_of, read_device, read_dtype, read_int, read_number, read_size
from wayfare.api.functions._public import as_dtype_of, common_dtype, method
from wayfare.core.dispatch import apply
from wayfare.core.errors import ArgumentError, ArgumentTypeError, DTypeError, OperationError, ShapeError
from wayfare.core.generator import Generator, key_for
from wayfare.core.op import REGISTRY
from wayfare.core.spec import DType, Shape, default_dtype, int64, limits_of
from wayfare.core.tensor import Tensor

__all__ = [
    "rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like",
    "normal", "bernoulli", "multinomial", "poisson",
]  # fmt: skip

_OPS = REGISTRY


def draw(op: str, requires_grad: bool = False, device: Any = None, **attrs: Any) -> Tensor:
    """A tensor from a random record without inputs. A key gives the same numbers for every device."""
    out, place = apply(_OPS[op], (), attrs), read_device(device)
    if place is not None:
        out = out.to(place)
    return out.requires_grad_() if requires_grad else out  # type: ignore[no-any-return]


def check_floating(op: str, dtype: DType) -> DType:
    """Refuse to draw real numbers into integers."""
    if not dtype.is_floating_point:
        raise DTypeError(f"{op}: draws floating-point numbers, not {dtype}", fix="Use wf.randint for integers.")
    return dtype


def _size_of(op: str, size: tuple[Any, ...], named: dict[str, Any]) -> Shape:
    extra = set(named) - {"size"}
    if extra:
        raise ArgumentTypeError(f"{op}: unknown argument {extra.pop()!r}")
    return read_size(op, size, named.get("size"))


def rand(
    *size: Any, generator: Generator | None = None, dtype: Any = None, layout: Any = None, device: Any = None,
    requires_grad: bool = False, pin_memory: bool = False, **named: Any,
) -> Tensor:  # fmt: skip
    """Uniform draws from [0, 1)."""
    return _uniform("rand", _size_of("rand", size, named), generator, dtype, device, requires_grad)


def rand_like(
    input: Tensor, *, dtype: Any = None, layout: Any = None, device: Any = None, requires_grad: bool = False,
    memory_format: Any = None, generator: Generator | None = None,
) -> Tensor:  # fmt: skip
    """Uniform draws from [0, 1) in the shape and dtype of `input`."""
    return _uniform("rand_like", input.shape, generator, dtype or input.dtype, place_of(input, device), requires_grad)


def _uniform(op: str, shape: Shape, generator: Any, dtype: Any, device: Any, requires_grad: bool) -> Tensor:
    wanted = check_floating(op, read_dtype(op, dtype))
    return draw(
        "random_uniform",
        requires_grad,
        device,
        key=key_for(generator),
        shape=tuple(shape),
        dtype=wanted,
        low=0,
        high=1,
    )


def randn(
    *size: Any, generator: Generator | None = None, dtype: Any = None, layout: Any = None, device: Any = None,
    requires_grad: bool = False, pin_memory: bool = False, **named: Any,
) -> Tensor:  # fmt: skip
    """Draws from the normal distribution of mean 0 and deviation 1."""
    return _normal("randn", _size_of("randn", size, named), generator, dtype, device, requires_grad)


def randn_like(
    input: Tensor, *, dtype: Any = None, layout: Any = None, device: Any = None, requires_grad: bool = False,
    memory_format: Any = None, generator: Generator | None = None,
) -> Tensor:  # fmt: skip
    """Normal draws in the shape and dtype of `input`."""
    return _normal("randn_like", input.shape, generator, dtype or input.dtype, place_of(input, device), requires_grad)


def _normal(
    op: str, shape: Shape, generator: Any, dtype: Any, device: Any, requires_grad: bool,
    mean: float = 0, std: float = 1,
) -> Tensor:  # fmt: skip
    wanted = check_floating(op, read_dtype(op, dtype))
    attrs = {"key": key_for(generator), "shape": tuple(shape), "dtype": wanted, "mean": mean, "std": std}
    return draw("random_normal", requires_grad, device, **attrs)


def randint(
    *args: Any, generator: Generator | None = None, dtype: Any = None, layout: Any = None, device: Any = None,
    requires_grad: bool = False, pin_memory: bool = False, **named: Any,
) -> Tensor:  # fmt: skip
    """`randint(low=0, high, size)`: whole numbers drawn evenly from low up to, not including, high; int64."""
    names = ("low", "high", "size") if len(args) + len(named) == 3 else ("high", "size")
    given = dict(zip(reversed(names), reversed(args), strict=False)) if not named else None
    if given is None:
        free = [name for name in names if name not in named]
        given = dict(zip(free, args, strict=False)) | named
    if set(given) != set(names):
        raise ArgumentTypeError("randint: takes (high, size) or (low, high, size)")
    low = read_int("randint", "low", given.get("low", 0))
    high = read_int("randint", "high", given["high"])
    shape = read_size("randint", (given["size"],))
    return integers("randint", low, high, shape, generator, read_dtype("randint", dtype, int64), device, requires_grad)


def integers(
    op: str, low: int, high: int, shape: Shape, generator: Any, dtype: DType, device: Any = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """Whole numbers from low up to high, which it leaves out."""
    if low >= high:
        raise OperationError(f"{op}: there is no number from {low} up to, not including, {high}")
    least, most = _range_of(dtype)
    if low < least or high - 1 > most:
        raise OperationError(f"{op}: {dtype} does not hold all numbers from {low} up to, not including, {high}",
                             fix=f"Stay within {least} and {most}, or draw int64.")  # fmt: skip
    return draw("random_integers", requires_grad, device, key=key_for(generator), shape=tuple(shape), dtype=dtype,
                low=low, high=high)  # fmt: skip


def _range_of(dtype: DType) -> tuple[int, int]:
    """The smallest and the largest whole number of a dtype."""
    if dtype.rank == 0:
        return 0, 1
    if dtype.is_floating_point:
        limits = limits_of(dtype)
        return int(float(limits.min)), int(float(limits.max))
    whole = np.iinfo(dtype.numpy)
    return int(whole.min), int(whole.max)


def randint_like(
    input: Tensor, *args: Any, dtype: Any = None, layout: Any = None, device: Any = None,
    requires_grad: bool = False, memory_format: Any = None, generator: Generator | None = None, **named: Any,
) -> Tensor:  # fmt: skip
    """`randint_like(input, low=0, high)`: whole numbers in the shape and dtype of `input`."""
    bounds = [*args, *(named[name] for name in ("low", "high") if name in named)]
    if not 1 <= len(bounds) <= 2 or set(named) - {"low", "high"}:
        raise ArgumentTypeError("randint_like: takes (input, high) or (input, low, high)")
    low, high = (read_int("randint_like", "a bound", b) for b in ([0, *bounds] if len(bounds) == 1 else bounds))
    wanted = read_dtype("randint_like", dtype, input.dtype)
    place = place_of(input, device)
    return integers("randint_like", low, high, input.shape, generator, wanted, place, requires_grad)


def randperm(
    n: int, *, generator: Generator | None = None, dtype: Any = None, layout: Any = None, device: Any = None,
    requires_grad: bool = False, pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """The numbers from 0 to n - 1 in random order; int64 unless told otherwise."""
    count = read_int("randperm", "n", n)
    if count < 0:
        raise OperationError(f"randperm: n must not be negative, but is {count}")
    return draw("random_permutation", requires_grad, device, key=key_for(generator), n=count,
                dtype=read_dtype("randperm", dtype, int64))  # fmt: skip


def normal(
    mean: Any = 0.0, std: Any = 1.0, size: Any = None, *, generator: Generator | None = None,
    dtype: Any = None, layout: Any = None, device: Any = None, requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """Normal draws with the given means and deviations: tensors, numbers, or two numbers and a size."""
    if not isinstance(mean, Tensor) and not isinstance(std, Tensor):
        if size is None:
            raise ArgumentTypeError("normal: two numbers need a size too", fix="Give size=(2, 3), for instance.")
        mean, std = read_number("normal", "mean", mean), read_number("normal", "std", std)
        if not std >= 0:
            raise OperationError(f"normal: the deviation must not be negative, but is {std}")
        return _normal("normal", read_size("normal", (), size), generator, dtype, device, requires_grad, mean, std)
    kind = check_floating("normal", common_dtype("normal", (mean, std)))
    if isinstance(mean, Tensor) and isinstance(std, Tensor) and mean.shape != std.shape and mean.ndim and std.ndim:
        _check_broadcast(mean, std)
    pair = (as_dtype_of(mean, kind), as_dtype_of(std, kind))
    out = apply(_OPS["random_normal_around"], pair, {"key": key_for(generator)})
    return as_dtype_of(out, mean.dtype) if isinstance(mean, Tensor) and mean.dtype.is_floating_point else out


def _check_broadcast(mean: Tensor, std: Tensor) -> None:
    """Means and deviations must broadcast."""
    try:
        REGISTRY["add"].infer(mean.spec, std.spec)
    except ShapeError:
        raise ShapeError(f"normal: means of {mean.spec} and deviations of {std.spec} do not broadcast") from None


@method
def bernoulli(input: Tensor, p: float | None = None, *, generator: Generator | None = None) -> Tensor:
    """1 with the probability each element of `input` states (or with `p` everywhere), else 0."""
    check_floating("bernoulli", input.dtype)
    if p is not None:
        from_p = as_dtype_of(read_number("bernoulli", "p", p), input.dtype)
        input = apply(_OPS["expand"], (from_p,), {"shape": tuple(input.shape)})
    return apply(_OPS["random_bernoulli"], (input,), {"key": key_for(generator)})  # type: ignore[no-any-return]


@method
def multinomial(
    input: Tensor, num_samples: int, replacement: bool = False, *, generator: Generator | None = None
) -> Tensor:
    """`num_samples` indices for each row of `input`, drawn in proportion to the row's weights."""
    check_floating("multinomial", input.dtype)
    if input.ndim not in (1, 2):
        raise ShapeError(f"multinomial: weights must have 1 or 2 dimensions, not {input.spec}")
    count = read_int("multinomial", "num_samples", num_samples)
    if count <= 0:
        raise OperationError(f"multinomial: num_samples must be positive, but is {count}")
    if not replacement and count > input.shape[-1]:
        raise OperationError(f"multinomial: cannot draw {count} of {input.shape[-1]} without replacement",
                             fix="Use replacement=True.")  # fmt: skip
    attrs = {"key": key_for(generator), "num_samples": count, "replacement": bool(replacement)}
    return apply(_OPS["random_multinomial"], (input.detach(),), attrs)  # type: ignore[no-any-return]


def poisson(input: Tensor, generator: Generator | None = None) -> Tensor:
    """Poisson draws with the rates of `input`."""
    if not isinstance(input, Tensor):
        raise ArgumentError(f"poisson: expected a tensor of rates, not {type(input).__name__}")
    rates = input if input.dtype.is_floating_point else as_dtype_of(input, default_dtype())
    return apply(_OPS["random_poisson"], (rates,), {"key": key_for(generator)})  # type: ignore[no-any-return]
