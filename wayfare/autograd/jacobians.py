"""Jacobians and Hessians (`wf.func`): jacrev, jacfwd, hessian. Each is a vmap over unit vectors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from wayfare.autograd.transforms import check_argnums, flatten, linearized, transform, vjp
from wayfare.autograd.vmap import map_batch
from wayfare.core.dispatch import tensor_ops
from wayfare.core.tensor import Tensor, on_device_of


def _basis(t: Tensor) -> Tensor:
    """The unit vectors of a tensor's space, one per row."""
    size = int(np.prod(t.shape))
    return on_device_of(t, np.eye(size, dtype=t.dtype.numpy).reshape(size, *t.shape))


def jacrev(
    func: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False, *,
    chunk_size: int | None = None,
) -> Callable[..., Any]:  # fmt: skip
    """The Jacobian of `func`, row by row in reverse mode: output shape followed by input shape. `chunk_size` bounds how
    many rows are computed at once."""

    @transform
    @functools.wraps(func)
    def call(*args: Any, **options: Any) -> Any:
        of_chosen, chosen = _chosen("jacrev", func, argnums, args, options)
        made = vjp(of_chosen, *chosen, has_aux=has_aux)
        outputs, rebuild = flatten(made[0])
        blocks = [_rows_of(made[1], outputs, rebuild, i, chunk_size) for i in range(len(outputs))]
        jacobian = rebuild([b if isinstance(argnums, tuple) else b[0] for b in blocks])
        return (jacobian, made[2]) if has_aux else jacobian

    return call


def _chosen(
    name: str, func: Callable[..., Any], argnums: int | tuple[int, ...], args: tuple[Any, ...], options: dict[str, Any]
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """`func` as a function of only the arguments that `argnums` names, and those arguments."""
    numbers = check_argnums(name, argnums, args)

    def of_chosen(*chosen: Any) -> Any:
        replaced = list(args)
        for n, value in zip(numbers, chosen, strict=True):
            replaced[n] = value
        return func(*replaced, **options)

    return of_chosen, tuple(args[n] for n in numbers)


def _rows_of(
    pull: Callable[..., Any], outputs: list[Tensor], build: Callable[[list[Any]], Any], which: int,
    chunk_size: int | None,
) -> Any:  # fmt: skip
    """The derivative of output `which` by every input."""
    out = outputs[which]

    def row(unit: Tensor) -> Any:
        return pull(build([unit if i == which else tensor_ops.zeros_like(o) for i, o in enumerate(outputs)]))

    stacked = map_batch(row, 0, 0, chunk_size=chunk_size)(_basis(out))
    leaves, rebuild = flatten(stacked)
    return rebuild([tensor_ops.reshape(x, shape=(*out.shape, *tuple(x.shape)[1:])) for x in leaves])


def jacfwd(
    func: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False, *, randomness: str = "error"
) -> Callable[..., Any]:
    """The Jacobian of `func`, column by column in forward mode: output shape followed by input shape.

    `func` runs once, so random numbers in it are the same for all columns, whatever `randomness` says.
    """

    @transform
    @functools.wraps(func)
    def call(*args: Any, **options: Any) -> Any:
        of_chosen, chosen = _chosen("jacfwd", func, argnums, args, options)
        value, push = linearized("jacfwd", of_chosen, chosen, has_aux)
        outputs, rebuild_output = flatten(value[0] if has_aux else value)
        inputs, rebuild_input = flatten(chosen)
        # Ordered by input, then by output; transposed below.
        columns = [_columns_of(push, inputs, i, rebuild_input) for i in range(len(inputs))]
        blocks = [rebuild_input([column[i] for column in columns]) for i in range(len(outputs))]
        jacobian = rebuild_output([b if isinstance(argnums, tuple) else b[0] for b in blocks])
        return (jacobian, value[1]) if has_aux else jacobian

    return call


def _columns_of(push: Callable[..., Any], inputs: list[Tensor], which: int, rebuild: Any) -> list[Tensor]:
    """The derivative of every output by input `which`."""
    x = inputs[which]

    def column(unit: Tensor) -> Any:
        tangents = [unit if i == which else tensor_ops.zeros_like(t) for i, t in enumerate(inputs)]
        return flatten(push(rebuild(tangents)))[0]

    stacked = map_batch(column, 0, -1)(_basis(x))
    return [tensor_ops.reshape(c, shape=(*tuple(c.shape)[:-1], *x.shape)) for c in stacked]


def hessian(func: Callable[..., Any], argnums: int | tuple[int, ...] = 0) -> Callable[..., Any]:
    """The matrix of second derivatives of `func` (one number out)."""
    return jacrev(jacrev(func, argnums), argnums)
