"""Function transforms (`wf.func`): grad, vjp, jvp, linearize and vmap. They can be nested.

Gradient rules are written in ops, so a gradient can be differentiated again. Forward mode uses this: it is the
derivative of reverse mode, which is linear in its seed, with respect to the seed.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from wayfare.autograd.backward import grad as reverse
from wayfare.autograd.modes import enable_grad
from wayfare.autograd.vmap import batched_everywhere, close_again, lay_open, map_batch
from wayfare.core.device import BACKENDS
from wayfare.core.dispatch import tensor_ops
from wayfare.core.errors import GraphError, RefusedArgumentError, ShapeError, WrongKindError
from wayfare.core.mode import STATE, current, executor
from wayfare.core.node import Node
from wayfare.core.tensor import Tensor, on_device_of
from wayfare.core.walk import reachable, split_edge


def flatten(structure: Any) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """The leaves of nested tuples, lists and dictionaries, and a function that rebuilds the structure."""
    if isinstance(structure, dict):
        keys = list(structure)
        parts = [flatten(structure[k]) for k in keys]
        return _join(parts, lambda made: dict(zip(keys, made, strict=True)))
    if isinstance(structure, (tuple, list)):
        kind = type(structure)
        build = (lambda made: kind(*made)) if hasattr(structure, "_fields") else kind
        return _join([flatten(s) for s in structure], build)
    return [structure], lambda leaves: leaves[0]


def leaves_like(given: Any, structure: Any) -> list[Any] | None:
    """The leaves of `given` in the order of those of `structure`; None if the two structures differ."""
    if not isinstance(structure, (dict, tuple, list)):
        return None if isinstance(given, (dict, tuple, list)) else [given]
    if type(given) is not type(structure) or len(given) != len(structure):
        return None
    keys: Any = structure if isinstance(structure, dict) else range(len(structure))
    if isinstance(given, dict) and given.keys() != keys.keys():
        return None
    parts = [leaves_like(given[key], structure[key]) for key in keys]
    return None if None in parts else [leaf for part in parts for leaf in part or ()]


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
    """A tensor to differentiate with respect to: connected to the outer graph, and batched at every vmap level."""
    if not isinstance(t, Tensor):
        raise WrongKindError(f"{name}: differentiates by tensors, not {type(t).__name__}")
    if not t.dtype.is_floating_point:
        raise RefusedArgumentError(f"{name}: cannot differentiate by a tensor of {t.dtype}",
                                   fix="Convert it with .float().")  # fmt: skip
    base, levels = lay_open(batched_everywhere(t))
    if base.requires_grad:
        base = tensor_ops.reshape(base, shape=tuple(base.shape))
        array = base._array  # a stand-in is materialised by this
        if array.__class__ not in BACKENDS:
            array.flags.writeable = False
        base._view = None  # not to be written: the caller's own tensor would change
    else:
        base = base.detach()
        base.requires_grad_()
        base._more()["live"] = True
    return close_again(base, levels)


def check_argnums(name: str, argnums: Any, args: tuple[Any, ...]) -> tuple[int, ...]:
    """The numbers of arguments as a tuple; refused are those that are not there, or named twice."""
    numbers = argnums if isinstance(argnums, tuple) else (argnums,)
    if not all(isinstance(n, int) for n in numbers):
        raise WrongKindError(f"{name}: argnums must be a number or a tuple of numbers, not {argnums!r}",
                             fix="Write argnums=(0, 1).")  # fmt: skip
    if not numbers:
        raise RefusedArgumentError(f"{name}: argnums is empty", fix="Name the arguments to differentiate by.")
    for n in numbers:
        if not -len(args) <= n < len(args):
            raise RefusedArgumentError(f"{name}: argnums {n}, but there are {len(args)} arguments")
    if len({n % len(args) for n in numbers}) < len(numbers):
        raise RefusedArgumentError(f"{name}: argnums {numbers} names an argument twice")
    return numbers


def with_aux(name: str, value: Any, has_aux: bool) -> tuple[Any, Any]:
    """(result, aux) of a function; without `has_aux` all that it returned is the result."""
    if not has_aux:
        return value, None
    if not isinstance(value, tuple) or len(value) != 2:
        raise RefusedArgumentError(f"{name}: with has_aux the function must return a tuple (result, aux), it returned "
                                   f"a {type(value).__name__}", fix="Return two things.")  # fmt: skip
    return value


def _split(
    name: str, args: tuple[Any, ...], argnums: Any
) -> tuple[tuple[int, ...], list[Tensor], Any, tuple[Any, ...]]:
    """Copies of the arguments to differentiate with respect to, and the argument list with the copies in it."""
    numbers = check_argnums(name, argnums, args)
    leaves, rebuild = flatten(tuple(args[n] for n in numbers))
    live = [_live(t, name) for t in leaves]
    replaced = list(args)
    for n, value in zip(numbers, rebuild(live), strict=True):
        replaced[n] = value
    return numbers, live, rebuild, tuple(replaced)


def differentiate(outputs: list[Tensor], inputs: list[Tensor], seeds: list[Tensor] | None) -> list[Tensor]:
    """Reverse mode that also works inside vmap; the result can be differentiated again."""
    opened = [lay_open(o) for o in outputs]
    bases = [lay_open(i) for i in inputs]
    used = [i for i, (base, _) in enumerate(opened) if base.requires_grad]
    zeros = [close_again(on_device_of(b, np.zeros(b.shape, b.dtype.numpy)), levels) for b, levels in bases]
    if not used:
        return zeros
    given = []
    for i in used:
        base, levels = opened[i]
        if seeds is None:
            given.append(on_device_of(base, np.ones(base.shape, base.dtype.numpy)))
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


class _inside_a_transform:
    """`with _inside_a_transform():` — results of inner transforms stay in the graph, because the outer one needs it."""

    __slots__ = ()

    def __enter__(self) -> None:
        _depth.value += 1

    def __exit__(self, *error: object) -> None:
        _depth.value -= 1


def transform(call: Callable[..., Any], *, done: bool = True) -> Callable[..., Any]:
    """Decorator that counts nested transforms. Results of the outermost are detached, unless they depend on something
    outside that requires a gradient (a captured parameter, an argument). `done`: the call needs its graph no more."""

    @functools.wraps(call)
    def counted(*args: Any, **options: Any) -> Any:
        return executor().for_real(lambda: _counted(call, done, args, options))

    return counted


def _counted(call: Callable[..., Any], done: bool, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    recording = current().grad
    with _inside_a_transform():
        result = call(*args, **options)
    return _cut(result, recording, done)


def _cut(result: Any, recording: bool, done: bool) -> Any:
    """The results of the outermost transform without the parts of the graph that only the transform needed."""
    if _depth.value or executor().keeps_graph:
        return result
    leaves, rebuild = flatten(result)
    reaching = [recording and isinstance(x, Tensor) and _reaches_out(x) for x in leaves]
    if done:
        _prune([x._edge for x, out in zip(leaves, reaching, strict=True) if out and x._edge is not None])
    return rebuild([x.detach() if isinstance(x, Tensor) and not out else x
                    for x, out in zip(leaves, reaching, strict=True)])  # fmt: skip


def _reaches_out(t: Tensor) -> bool:
    """Does this tensor depend on a leaf that was not made by a transform?"""
    if not t.requires_grad:
        return False
    _, leaves = reachable([t._edge or t])
    return any(not _is_live(leaf) for leaf in leaves)


def _is_live(leaf: Tensor) -> bool:
    return leaf._extras is not None and "live" in leaf._extras


def _prune(roots: list[Any]) -> None:
    """Remove edges of a graph that lead only to leaves made by transforms, whose gradients are not needed any more."""
    leading: set[Any] = set()
    for node in reachable(roots)[0]:
        targets = [split_edge(edge)[0] for edge in node.edges]
        wanted = [t is not None and (t in leading if isinstance(t, Node) else not _is_live(t)) for t in targets]
        if any(wanted):
            leading.add(node)
        node.edges = tuple(edge if keep else None for edge, keep in zip(node.edges, wanted, strict=True))


def vmap(
    func: Callable[..., Any], in_dims: Any = 0, out_dims: Any = 0, randomness: str = "error", *,
    chunk_size: int | None = None,
) -> Callable[..., Any]:  # fmt: skip
    """A function that runs `func`, written for one example, on a whole batch at once.

    `in_dims` says which dimension of each argument is the batch (None: shared by all examples), as a number, or a
    structure like the arguments; `out_dims` where it goes in the results. Random ops are an error unless `randomness`
    is 'different' (each example its own numbers) or 'same'. `chunk_size` bounds how many examples run at once.
    """
    return transform(map_batch(func, in_dims, out_dims, randomness, chunk_size=chunk_size))


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

    @transform
    @functools.wraps(func)
    def call(*args: Any, **options: Any) -> Any:
        with enable_grad():
            _, live, rebuild, replaced = _split("grad", args, argnums)
            value = func(*replaced, **options)
            out, _ = with_aux("grad", value, has_aux)
            if not isinstance(out, Tensor) or out.ndim != 0:
                shown = out.spec if isinstance(out, Tensor) else type(out).__name__
                raise ShapeError(f"grad: the function must return one number, it returned {shown}",
                                 fix="Reduce it with .sum() or .mean(), or use wf.func.jacrev.")  # fmt: skip
            gradients = rebuild(differentiate([out], live, None))
        return (gradients if isinstance(argnums, tuple) else gradients[0]), value

    return call


def vjp(func: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """(output, function from a gradient of the output to gradients of the primals[, aux])."""
    return executor().for_real(lambda: _vjp(func, primals, has_aux))


def _vjp(func: Callable[..., Any], primals: tuple[Any, ...], has_aux: bool) -> Any:
    with _inside_a_transform(), enable_grad():
        _, live, rebuild, replaced = _split("vjp", primals, tuple(range(len(primals))))
        value = func(*replaced)
    result, _ = with_aux("vjp", value, has_aux)
    outputs, _ = _results("vjp", result)
    for o in outputs:
        if not o.dtype.is_floating_point:
            raise RefusedArgumentError(f"vjp: a result of {o.dtype} has no derivative",
                                fix="Return it as aux, with has_aux=True.")  # fmt: skip

    def pull(*cotangents: Any, retain_graph: bool = True, create_graph: bool = True) -> Any:
        given = cotangents[0] if len(cotangents) == 1 else cotangents
        seeds = leaves_like(given, result)
        if seeds is None:
            count = len(flatten(given)[0])
            raise RefusedArgumentError(f"vjp: {len(outputs)} outputs but {count} gradients were given"
                                       if count != len(outputs) else
                                       "vjp: the gradients are nested in another way than the outputs",
                                       fix="Give what has the structure of the function's result.")  # fmt: skip
        for seed in seeds:
            if not isinstance(seed, Tensor):
                raise WrongKindError(f"vjp: gradients must be tensors, not {type(seed).__name__}")
        return rebuild(differentiate(outputs, live, seeds))

    shown = _cut(value, current().grad, done=False)
    pull_back = transform(pull, done=False)
    return (shown[0], pull_back, shown[1]) if has_aux else (shown, pull_back)


@transform
def jvp(
    func: Callable[..., Any], primals: tuple[Any, ...], tangents: tuple[Any, ...], *, strict: bool = False,
    has_aux: bool = False,
) -> Any:  # fmt: skip
    """(output, its derivative in the direction of `tangents`[, aux])."""
    if not isinstance(primals, tuple) or leaves_like(tangents, primals) is None:
        raise RefusedArgumentError("jvp: primals and tangents must be tuples of the same length and structure",
                                   fix="Write jvp(f, (x,), (t,)).")  # fmt: skip
    if not flatten(primals)[0]:
        raise RefusedArgumentError("jvp: the primals hold no tensor")
    value, push = linearized("jvp", func, primals, has_aux, strict)
    return (value[0], push(tangents), value[1]) if has_aux else (value, push(tangents))


def linearize(func: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """(output, function from tangents of the primals to the derivative of the output in their direction).

    `func` runs once; the returned function only computes the linear part, so many directions cost less than as many
    calls of `jvp`.
    """
    return executor().for_real(lambda: _linearize(func, primals))  # type: ignore[no-any-return]


def _linearize(func: Callable[..., Any], primals: tuple[Any, ...]) -> tuple[Any, Callable[..., Any]]:
    with _inside_a_transform():
        value, push = linearized("linearize", func, primals)

    def push_forward(*tangents: Any) -> Any:
        if len(tangents) != len(primals):
            raise RefusedArgumentError(f"linearize: {len(primals)} primals but {len(tangents)} tangents were given")
        return push(tangents)

    return _cut(value, current().grad, done=False), transform(push_forward, done=False)


class _exactly:
    """`with _exactly():` — gradient rules are exact adjoints of their ops, also where PyTorch's reverse mode is not."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before, STATE.exact = STATE.exact, True

    def __exit__(self, *error: object) -> None:
        STATE.exact = self._before


def _results(name: str, structure: Any) -> tuple[list[Tensor], Callable[[list[Any]], Any]]:
    """The tensors that a function returned, and a function that rebuilds their structure."""
    outputs, rebuild = flatten(structure)
    for o in outputs:
        if not isinstance(o, Tensor):
            raise WrongKindError(f"{name}: the function must return tensors, it returned {type(o).__name__}")
    return outputs, rebuild


def linearized(
    name: str, func: Callable[..., Any], primals: tuple[Any, ...], has_aux: bool = False, strict: bool = False
) -> tuple[Any, Callable[[tuple[Any, ...]], Any]]:
    """The output of `func`, and a function from tangents to the derivative of the output (zero for integers)."""
    with enable_grad():
        _, live, _, replaced = _split(name, primals, tuple(range(len(primals))))
        value = func(*replaced)
        outputs, rebuild = _results(name, with_aux(name, value, has_aux)[0])
        if strict and not all(o.requires_grad for o in outputs):
            raise GraphError(f"{name}: a result does not depend on the arguments, and strict is True")
        smooth = [o for o in outputs if o.dtype.is_floating_point]
        # The gradient is linear in its seed; its derivative with respect to the seed is the forward derivative.
        seeds = [_live(tensor_ops.zeros_like(o), name) for o in smooth]
        with _exactly():
            pulled = differentiate(smooth, live, seeds)

    def push(tangents: tuple[Any, ...]) -> Any:
        directions = leaves_like(tangents, primals)
        if directions is None:
            raise RefusedArgumentError(f"{name}: {len(live)} tensors to differentiate by, and the tangents are "
                                       f"{len(flatten(tangents)[0])}, or nested in another way")  # fmt: skip
        for p, d in zip(live, directions, strict=True):
            if not isinstance(d, Tensor):
                raise WrongKindError(f"{name}: tangents must be tensors, not {type(d).__name__}")
            if p.shape != d.shape:
                raise ShapeError(f"{name}: a tangent of {d.spec} was given for a primal of {p.spec}")
        with enable_grad():
            pushed = iter(differentiate(pulled, seeds, directions))
        return rebuild([next(pushed) if o.dtype.is_floating_point else o * 0 for o in outputs])

    return value, push
