"""`backward()` and `grad()`: PyTorch's contract around the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from wayfare.autograd.capture import Capture
from wayfare.autograd.engine import run
from wayfare.backend.rows import Rows
from wayfare.eager import tensor_ops
from wayfare.errors import ArgumentTypeError, GraphError, ShapeError
from wayfare.graph.node import unroll
from wayfare.state import STATE, batcher, changed_mode, recorder
from wayfare.tensor import Tensor, wrap


def backward(
    tensors: Tensor | Sequence[Tensor],
    grad_tensors: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    grad_variables: Any = None,
    inputs: Tensor | Sequence[Tensor] | None = None,
) -> None:
    """Sum into `.grad` of every leaf the derivative of the given tensors.

    A tensor of more than one element needs its gradient in `grad_tensors`. The graph is freed on the way unless
    `retain_graph`; with `create_graph` the derivative can itself be differentiated. `inputs` limits the leaves.
    """
    seeds = grad_tensors if grad_tensors is not None else grad_variables
    batching, watching = batcher(), recorder()
    if batching is not None:
        batching.for_real(lambda: _backward(tensors, seeds, retain_graph, create_graph, inputs))
    elif watching is not None:
        watching.autograd("backward", _backward, tensors, seeds, retain_graph, create_graph, inputs)
    else:
        _backward(tensors, seeds, retain_graph, create_graph, inputs)


def _backward(tensors: Any, seeds: Any, retain_graph: bool | None, create_graph: bool, inputs: Any) -> None:
    roots = _roots("backward", _sequence(tensors), seeds, create_graph)
    retain = create_graph if retain_graph is None else retain_graph
    capture = None
    if inputs is not None:
        wanted = _sequence(inputs)
        if not wanted:
            raise GraphError("backward: inputs is empty", fix="Leave it out to reach all leaves.")
        capture = Capture([_edge_of(t, "backward") for t in wanted], [edge for edge, _ in roots])
        for t in wanted:
            if t._edge is not None:
                t.retain_grad()
    _run(roots, retain, create_graph, capture, accumulate=True)


def grad(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[Tensor, ...]:
    """The derivatives of `outputs` with respect to `inputs`, given back; no `.grad` is touched.

    An input that played no part is an error unless `allow_unused` (then None) or `materialize_grads` (then zeros).
    """
    batching = batcher()
    if batching is not None:
        return batching.for_real(  # type: ignore[no-any-return]
            lambda: _grad(outputs, grad_outputs, retain_graph, create_graph, inputs, allow_unused, materialize_grads)
        )
    watching = recorder()
    if watching is not None:
        return watching.autograd(  # type: ignore[no-any-return]
            "grad", _grad, outputs, grad_outputs, retain_graph, create_graph, inputs, allow_unused, materialize_grads
        )
    return _grad(outputs, grad_outputs, retain_graph, create_graph, inputs, allow_unused, materialize_grads)


def _grad(
    outputs: Any, grad_outputs: Any, retain_graph: bool | None, create_graph: bool, inputs: Any,
    allow_unused: bool | None, materialize_grads: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    wanted = _sequence(inputs)
    roots = _roots("grad", _sequence(outputs), grad_outputs, create_graph)
    retain = create_graph if retain_graph is None else retain_graph
    capture = Capture([_edge_of(t, "grad") for t in wanted], [edge for edge, _ in roots])
    _run(roots, retain, create_graph, capture, accumulate=False)
    results = []
    for position, t in enumerate(wanted):
        found = _captured(capture, t)
        if found is None and materialize_grads:
            watching = recorder()
            make = np.zeros if watching is None else watching.zeros
            found = wrap(make(t._array.shape, t._array.dtype))
        if found is None and not allow_unused:
            raise GraphError(f"grad: input {position} ({t.spec}) was not used to compute the outputs",
                             fix="Pass allow_unused=True to get None for it.")  # fmt: skip
        results.append(found)
    return tuple(results)


def _run(roots: list[tuple[Any, Any]], retain: bool, create: bool, capture: Capture | None, accumulate: bool) -> None:
    mode = STATE.mode
    if create and mode is not None and not mode.grad:
        with changed_mode(grad=True):
            run(roots, retain=retain, create=create, capture=capture, accumulate=accumulate)
    else:
        run(roots, retain=retain, create=create, capture=capture, accumulate=accumulate)


def _captured(capture: Capture, t: Tensor) -> Any:
    found = capture.of(t)
    if found is None:
        return None
    if isinstance(found, Tensor):
        # The gradient of a mean is one number stretched; what is given back can be written.
        stretched = found.__class__ is Tensor and not found._array.flags.writeable
        return tensor_ops.clone(found) if stretched else found
    watching = recorder()
    if watching is not None:
        return watching.copied(found)
    return wrap(found.dense() if found.__class__ is Rows else np.array(found))


def _edge_of(t: Tensor, name: str) -> Any:
    if not isinstance(t, Tensor):
        raise ArgumentTypeError(f"{name}: inputs must be tensors, not {type(t).__name__}")
    if not t.requires_grad:
        raise GraphError(f"{name}: one of the inputs ({t.spec}) does not require a gradient",
                         fix="Set requires_grad=True on it before computing.")  # fmt: skip
    unroll(t.grad_fn)
    return t._edge or t


def _sequence(tensors: Any) -> list[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def _roots(name: str, tensors: list[Tensor], seeds: Any, create: bool) -> list[tuple[Any, Any]]:
    if seeds is None:
        given: list[Any] = [None] * len(tensors)
    else:
        given = [seeds] if isinstance(seeds, Tensor) else list(seeds)
    if len(given) != len(tensors):
        raise GraphError(f"{name}: {len(tensors)} tensors but {len(given)} gradients were given")
    roots = []
    for t, seed in zip(tensors, given, strict=True):
        if not isinstance(t, Tensor):
            raise ArgumentTypeError(f"{name}: expected a Tensor, not {type(t).__name__}")
        if not t.requires_grad:
            raise GraphError(f"{name}: this tensor ({t.spec}) does not require a gradient and has no grad_fn",
                             fix="Compute it from a tensor with requires_grad=True, outside no_grad.")  # fmt: skip
        roots.append((t._edge or t, _seed(name, t, seed, create)))
    return roots


def _seed(name: str, t: Tensor, seed: Any, create: bool) -> Any:
    array = t._array
    if seed is None:
        if array.size != 1:
            raise GraphError(f"{name}: a gradient can be made up only for one number, this is {t.spec}",
                             fix="Reduce it first (.sum(), .mean()), or pass gradient= of the same shape.")  # fmt: skip
        ones = np.ones(array.shape, array.dtype)
        return wrap(ones) if create else ones
    if not isinstance(seed, Tensor):
        raise ArgumentTypeError(f"{name}: gradients must be Tensors or None, not {type(seed).__name__}")
    if tuple(seed.shape) != array.shape:
        raise ShapeError(f"{name}: a gradient of {seed.spec} was given for a tensor of {t.spec}")
    if create:
        return seed if seed.dtype is t.dtype else tensor_ops.cast(seed, dtype=t.dtype)
    if recorder() is not None and seed.dtype is not t.dtype:
        seed = tensor_ops.cast(seed, dtype=t.dtype)
    return seed._array if seed._array.dtype == array.dtype else seed._array.astype(array.dtype)
