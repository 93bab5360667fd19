"""Derivatives as functions of functions (`wf.func`): grad, vjp, jvp, jacrev, jacfwd, hessian. They nest.

All of them stand on one thing: gradient rules are written in ops, so a gradient can be differentiated again. Forward
mode is the derivative of the (linear) reverse mode with respect to its seed.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from wayfare.autograd.backward import grad as reverse
from wayfare.autograd.modes import enable_grad
from wayfare.autograd.vmap import active_levels, batched_everywhere, close_again, lay_open, map_batch
from wayfare.eager import tensor_ops
from wayfare.errors import ArgumentError, ArgumentTypeError, GraphError, ShapeError
from wayfare.graph.node import Node
from wayfare.graph.walk import reachable, split_edge
from wayfare.state import batcher, current
from wayfare.tensor import Tensor, wrap


def flatten(structure: Any) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """The leaves of nested tuples, lists and dictionaries, and how to build the same structure again."""
    if isinstance(structure, dict):
        keys = list(structure)
        parts = [flatten(structure[k]) for k in keys]
        return _join(parts, lambda made: dict(zip(keys, made, strict=True)))
    if isinstance(structure, (tuple, list)):
        kind = type(structure)
        build = (lambda made: kind(*made)) if hasattr(structure, "_fields") else kind
        return _join([flatten(s) for s in structure], build)
    return [structure], lambda leaves: leaves[0]


def _join(parts: list[Any], build: Callable[[list[Any]], Any]) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    leaves = [leaf for part, _ in parts for leaf in part]

    def rebuild(new: list[Any]) -> Any:
        made, at = [], 0
        for part, inner in parts:
            made.append(inner(new[at : at + len(part)]))
            at += len(part)
        return build(made)

    return leaves, rebuild


def _live(t: Any, name: str) -> Tensor:
    """A tensor to differentiate by: tied to the graph outside, and batched wherever vmap is at work."""
    if not isinstance(t, Tensor):
        raise ArgumentTypeError(f"{name}: differentiates by tensors, not {type(t).__name__}")
    if not t.dtype.is_floating_point:
        raise ArgumentError(f"{name}: cannot differentiate by a tensor of {t.dtype}", fix="Convert it with .float().")
    base, levels = lay_open(batched_everywhere(t))
    if base.requires_grad:
        base = tensor_ops.reshape(base, shape=tuple(base.shape))
        base._view = None  # not to be written: the caller's own tensor would change
        base._array.flags.writeable = False
    else:
        base = base.detach()
        base.requires_grad_()
        base._more()["live"] = True
    return close_again(base, levels)


def _split(
    name: str, args: tuple[Any, ...], argnums: Any
) -> tuple[tuple[int, ...], list[Tensor], Any, tuple[Any, ...]]:
    """Live copies of the arguments to differentiate by, and the argument list with them in place."""
    numbers = argnums if isinstance(argnums, tuple) else (argnums,)
    for n in numbers:
        if not -len(args) <= n < len(args):
            raise ArgumentError(f"{name}: argnums {n}, but there are {len(args)} arguments")
    leaves, rebuild = flatten(tuple(args[n] for n in numbers))
    live = [_live(t, name) for t in leaves]
    replaced = list(args)
    for n, value in zip(numbers, rebuild(live), strict=True):
        replaced[n] = value
    return numbers, live, rebuild, tuple(replaced)


def differentiate(outputs: list[Tensor], inputs: list[Tensor], seeds: list[Tensor] | None) -> list[Tensor]:
    """Reverse mode that sees through vmap; the result can be differentiated again."""
    opened = [lay_open(o) for o in outputs]
    bases = [lay_open(i) for i in inputs]
    used = [i for i, (base, _) in enumerate(opened) if base.requires_grad]
    zeros = [close_again(wrap(np.zeros(b.shape, b.dtype.numpy)), levels) for b, levels in bases]
    if not used:
        return zeros
    given = []
    for i in used:
        base, levels = opened[i]
        if seeds is None:
            given.append(wrap(np.ones(base.shape, base.dtype.numpy)))
            continue
        seed, own = lay_open(seeds[i])
        if own != levels and set(own) < set(levels):
            seed, own = lay_open(batched_everywhere(seeds[i]))
        if own == levels:
            given.append(seed)
        elif not set(own) & set(levels):
            shape = tuple(base.shape)
            given.append(seeds[i] if tuple(seeds[i].shape) == shape else tensor_ops.expand(seeds[i], shape=shape))
        else:
            raise GraphError("vjp: outputs and their gradients are batched by different vmaps",
                             fix="Take the vjp and call it inside the same vmap.")  # fmt: skip
    with enable_grad():
        found = reverse(
            [opened[i][0] for i in used], [b for b, _ in bases], given,
            retain_graph=True, create_graph=True, allow_unused=True,
        )  # fmt: skip
    return [zeros[i] if g is None else close_again(g, bases[i][1]) for i, g in enumerate(found)]


class _Depth(threading.local):
    value = 0


_depth = _Depth()


def _transform(call: Callable[..., Any], *, done: bool = True) -> Callable[..., Any]:
    """Count how deep transforms are nested; what the outermost gives back is cut from the graph, unless something
    outside it (a parameter the function reads, an argument that requires a gradient) is in that graph. `done` says
    that the call needs the graph no more."""

    @functools.wraps(call)
    def counted(*args: Any, **options: Any) -> Any:
        return _counted(call, done, args, options)

    return counted


def _counted(call: Callable[..., Any], done: bool, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    batching = batcher()
    if batching is not None:
        return batching.for_real(lambda: _counted(call, done, args, options))
    recording = current().grad
    _depth.value += 1
    try:
        result = call(*args, **options)
    finally:
        _depth.value -= 1
    return _cut(result, recording, done)


def _cut(result: Any, recording: bool, done: bool) -> Any:
    """What leaves the outermost transform, without the parts of the graph that only the transform itself needed."""
    if _depth.value or active_levels():
        return result
    leaves, rebuild = flatten(result)
    reaching = [recording and isinstance(x, Tensor) and _reaches_out(x) for x in leaves]
    if done:
        _prune([x._edge for x, out in zip(leaves, reaching, strict=True) if out and x._edge is not None])
    return rebuild([x.detach() if isinstance(x, Tensor) and not out else x
                    for x, out in zip(leaves, reaching, strict=True)])  # fmt: skip


def _reaches_out(t: Tensor) -> bool:
    """Does a leaf that no transform made lie behind this tensor?"""
    if not t.requires_grad:
        return False
    _, leaves = reachable([t._edge or t])
    return any(not _is_live(leaf) for leaf in leaves)


def _is_live(leaf: Tensor) -> bool:
    return leaf._extras is not None and "live" in leaf._extras


def _prune(roots: list[Any]) -> None:
    """Take out of a graph what leads only to leaves that transforms made: nobody can ask for their gradients now."""
    leading: set[Any] = set()
    for node in reachable(roots)[0]:
        targets = [split_edge(edge)[0] for edge in node.edges]
        wanted = [t is not None and (t in leading if isinstance(t, Node) else not _is_live(t)) for t in targets]
        if any(wanted):
            leading.add(node)
        node.edges = tuple(edge if keep else None for edge, keep in zip(node.edges, wanted, strict=True))


def vmap(
    func: Callable[..., Any],
    in_dims: Any = 0,
    out_dims: Any = 0,
    randomness: str = "error",
    *,
    chunk_size: int | None = None,
) -> Callable[..., Any]:
    """A function that runs `func`, written for one example, on a whole batch at once.

    `in_dims` says which dimension of each argument is the batch (None: shared by all examples), as a number, or a
    structure like the arguments; `out_dims` where it goes in the results. Random ops are an error unless `randomness`
    is 'different' (each example its own numbers) or 'same'. `chunk_size` bounds how many examples run at once.
    """
    return _transform(map_batch(func, in_dims, out_dims, randomness, chunk_size=chunk_size))


def grad(
    func: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """A function that gives the gradient of `func` (one number out) with respect to argument(s) `argnums`."""
    both = grad_and_value(func, argnums, has_aux)

    @functools.wraps(func)
    def call(*args: Any, **options: Any) -> Any:
        gradient, value = both(*args, **options)
        return (gradient, value[1]) if has_aux else gradient

    return call


def grad_and_value(
    func: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Like `grad`, but gives (gradient, value); with `has_aux`, (gradient, (value, aux))."""

    @_transform
    @functools.wraps(func)
    def call(*args: Any, **options: Any) -> Any:
        with enable_grad():
            _, live, rebuild, replaced = _split("grad", args, argnums)
            value = func(*replaced, **options)
            out = value[0] if has_aux else value
            if not isinstance(out, Tensor) or (out.ndim != 0 and tuple(out.shape) != (1,)):
                shown = out.spec if isinstance(out, Tensor) else type(out).__name__
                raise ShapeError(f"grad: the function must return one number, it returned {shown}",
                                 fix="Reduce it with .sum() or .mean(), or use wf.func.jacrev.")  # fmt: skip
            gradients = rebuild(differentiate([out], live, None))
        return (gradients if isinstance(argnums, tuple) else gradients[0]), value

    return call


def vjp(func: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """(output, function from a gradient of the output to gradients of the primals[, aux])."""
    with enable_grad():
        _, live, rebuild, replaced = _split("vjp", primals, tuple(range(len(primals))))
        value = func(*replaced)
    out = value[0] if has_aux else value
    outputs, _ = flatten(out)

    def pull(*cotangents: Any, retain_graph: bool = True, create_graph: bool = True) -> Any:
        seeds, _ = flatten(cotangents[0] if len(cotangents) == 1 else cotangents)
        if len(seeds) != len(outputs):
            raise ArgumentError(f"vjp: {len(outputs)} outputs but {len(seeds)} gradients were given")
        return rebuild(differentiate(outputs, live, seeds))

    shown = _cut(out, current().grad, done=False)
    pull_back = _transform(pull, done=False)
    return (shown, pull_back, value[1]) if has_aux else (shown, pull_back)


@_transform
def jvp(
    func: Callable[..., Any], primals: tuple[Any, ...], tangents: tuple[Any, ...], *, strict: bool = False,
    has_aux: bool = False,
) -> Any:  # fmt: skip
    """(output, its derivative in the direction of `tangents`[, aux])."""
    if not isinstance(primals, tuple) or not isinstance(tangents, tuple) or len(primals) != len(tangents):
        raise ArgumentError("jvp: primals and tangents must be tuples of the same length")
    with enable_grad():
        _, live, _, replaced = _split("jvp", primals, tuple(range(len(primals))))
        value = func(*replaced)
        out = value[0] if has_aux else value
        outputs, rebuild = flatten(out)
        # The gradient is linear in its seed; its derivative with respect to the seed is the forward derivative.
        seeds = [_live(tensor_ops.zeros_like(o), "jvp") for o in outputs]
        pulled = differentiate(outputs, live, seeds)
        directions, _ = flatten(tangents)
        for p, d in zip(live, directions, strict=True):
            if p.shape != d.shape:
                raise ShapeError(f"jvp: a tangent of {d.spec} was given for a primal of {p.spec}")
        pushed = rebuild(differentiate(pulled, seeds, list(directions)))
    return (out, pushed, value[1]) if has_aux else (out, pushed)


def _basis(t: Tensor) -> Tensor:
    """The unit vectors of a tensor's space, one per row."""
    size = int(np.prod(t.shape))
    return wrap(np.eye(size, dtype=t.dtype.numpy).reshape(size, *t.shape))


def jacrev(func: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """The Jacobian of `func`, row by row in reverse mode: output shape followed by input shape."""

    @_transform
    @functools.wraps(func)
    def call(*args: Any, **options: Any) -> Any:
        numbers = argnums if isinstance(argnums, tuple) else (argnums,)

        def of_chosen(*chosen: Any) -> Any:
            replaced = list(args)
            for n, value in zip(numbers, chosen, strict=True):
                replaced[n] = value
            return func(*replaced, **options)

        made = vjp(of_chosen, *(args[n] for n in numbers), has_aux=has_aux)
        outputs, rebuild = flatten(made[0])
        blocks = [_rows_of(made[1], outputs, i) for i in range(len(outputs))]
        jacobian = rebuild([b if isinstance(argnums, tuple) else b[0] for b in blocks])
        return (jacobian, made[2]) if has_aux else jacobian

    return call


def _rows_of(pull: Callable[..., Any], outputs: list[Tensor], which: int) -> Any:
    """The derivative of output `which` by every input."""
    out = outputs[which]

    def row(unit: Tensor) -> Any:
        seeds = [unit if i == which else tensor_ops.zeros_like(o) for i, o in enumerate(outputs)]
        return pull(seeds if len(seeds) > 1 else seeds[0])

    stacked = map_batch(row, 0, 0)(_basis(out))
    leaves, rebuild = flatten(stacked)
    return rebuild([tensor_ops.reshape(x, shape=(*out.shape, *tuple(x.shape)[1:])) for x in leaves])


def jacfwd(func: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """The Jacobian of `func`, column by column in forward mode: output shape followed by input shape."""

    @_transform
    @functools.wraps(func)
    def call(*args: Any, **options: Any) -> Any:
        numbers = argnums if isinstance(argnums, tuple) else (argnums,)
        columns = []
        aux: list[Any] = []
        for n in numbers:
            x = args[n]

            def of_one(value: Any, n: int = n) -> Any:
                return func(*args[:n], value, *args[n + 1 :], **options)

            def push(unit: Any, x: Any = x, of_one: Callable[..., Any] = of_one) -> Any:
                made = jvp(of_one, (x,), (unit,), has_aux=has_aux)
                aux[:] = [made[2]] if has_aux else []
                return made[1]

            leaves, rebuild = flatten(map_batch(push, 0, -1)(_basis(x)))
            columns.append(rebuild([tensor_ops.reshape(c, shape=(*tuple(c.shape)[:-1], *x.shape)) for c in leaves]))
        if isinstance(argnums, tuple):
            jacobian: Any = tuple(columns)
        else:
            jacobian = columns[0]
        return (jacobian, aux[0]) if has_aux else jacobian

    return call


def hessian(func: Callable[..., Any], argnums: int | tuple[int, ...] = 0) -> Callable[..., Any]:
    """The matrix of second derivatives of `func` (one number out)."""
    return jacrev(jacrev(func, argnums), argnums)
