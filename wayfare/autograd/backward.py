"""`backward()` and `grad()`: PyTorch's contract around the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from wayfare.autograd.after_backward import BackwardPass
from wayfare.autograd.capture import Capture
from wayfare.autograd.engine import run
from wayfare.autograd.vmap import BatchedTensor, drawing_again, map_batch
from wayfare.codegen.routines.rows import Rows
from wayfare.core.device import BACKENDS, active_for, copied, is_writable
from wayfare.core.dispatch import tensor_ops
from wayfare.core.errors import (
    ArgumentError,
    ArgumentTypeError,
    GraphError,
    OperationError,
    ShapeError,
    WrongKindError,
)
from wayfare.core.mode import STATE, UNUSUAL, changed_mode, executor
from wayfare.core.node import unroll
from wayfare.core.refusals import refuse_stale
from wayfare.core.tensor import Tensor, wrap


def backward(
    tensors: Tensor | Sequence[Tensor], grad_tensors: Any = None, retain_graph: bool | None = None,
    create_graph: bool = False, grad_variables: Any = None, inputs: Tensor | Sequence[Tensor] | None = None,
) -> None:  # fmt: skip
    """Sum into `.grad` of every leaf the derivative of the given tensors.

    A tensor of more than one element needs its gradient in `grad_tensors`. The graph is freed on the way unless
    `retain_graph`; with `create_graph` the derivative can itself be differentiated. `inputs` limits the leaves.
    """
    seeds = grad_tensors if grad_tensors is not None else grad_variables
    if UNUSUAL:
        executor().for_real(
            lambda: _backward(tensors, seeds, retain_graph, create_graph, inputs),
            changes="backward() sums up gradients that all examples see; wf.autograd.grad gives them back",
        )
    else:
        _backward(tensors, seeds, retain_graph, create_graph, inputs)


def _backward(tensors: Any, seeds: Any, retain_graph: bool | None, create_graph: bool, inputs: Any) -> None:
    if seeds is not None and any([isinstance(s, BatchedTensor) for s in _sequence(seeds)]):
        raise GraphError("backward: inside vmap the examples have a gradient each, and .grad has room for one",
                         fix="Use wf.autograd.grad, or wf.func.grad, which give them back.")  # fmt: skip
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
    with BackwardPass():
        _run(roots, retain, create_graph, capture, accumulate=True)


def grad(
    outputs: Tensor | Sequence[Tensor], inputs: Tensor | Sequence[Tensor], grad_outputs: Any = None,
    retain_graph: bool | None = None, create_graph: bool = False, only_inputs: bool = True,
    allow_unused: bool | None = None, is_grads_batched: bool = False, materialize_grads: bool = False,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The derivatives of `outputs` with respect to `inputs`, given back; no `.grad` is touched.

    An input that played no part is an error unless `allow_unused` (then None) or `materialize_grads` (then zeros). With
    `is_grads_batched` dimension 0 of each of `grad_outputs` counts many gradients, and that of each result as many
    derivatives: rows of a Jacobian in one pass.
    """
    wanted = _sequence(inputs)
    if not wanted:
        raise GraphError("grad: inputs is empty", fix="Give the tensors to differentiate by.")
    if materialize_grads and allow_unused is False:
        raise ArgumentError("grad: materialize_grads=True gives zeros for inputs that play no part, and "
                            "allow_unused=False forbids them", fix="Leave allow_unused out.")  # fmt: skip

    def compute() -> tuple[Tensor, ...]:
        retain = create_graph if retain_graph is None else retain_graph
        found = (_many if is_grads_batched else _derivatives)(outputs, grad_outputs, wanted, retain, create_graph)
        return _complete(found, wanted, allow_unused, materialize_grads)

    return executor().for_real(compute) if UNUSUAL else compute()


def _derivatives(outputs: Any, seeds: Any, wanted: list[Tensor], retain: bool, create: bool) -> list[Any]:
    """The derivative with respect to each wanted tensor; None if there is none."""
    tensors = _sequence(outputs)
    # Inside vmap the rules run on tensors, so that each of their ops runs once for the whole batch.
    batched = seeds is not None and any([isinstance(s, BatchedTensor) for s in _sequence(seeds)])
    roots = _roots("grad", tensors, seeds, create or batched)
    capture = Capture([_edge_of(t, "grad") for t in wanted], [edge for edge, _ in roots])
    if batched and not create:
        with changed_mode(grad=False), drawing_again():
            run(roots, retain=retain, create=True, capture=capture, accumulate=False)
        found = [_captured(capture, t) for t in wanted]
        return [None if g is None else g.detach() for g in found]
    _run(roots, retain, create, capture, accumulate=False)
    return [_captured(capture, t) for t in wanted]


def _many(outputs: Any, seeds: Any, wanted: list[Tensor], retain: bool, create: bool) -> list[Any]:
    """`_derivatives` for each gradient along dimension 0 of `seeds`, all at once."""
    tensors = _sequence(outputs)
    given = [None] * len(tensors) if seeds is None else _sequence(seeds)
    if len(given) != len(tensors):
        raise GraphError(f"grad: {len(tensors)} tensors but {len(given)} gradients were given")
    for t, seed in zip(tensors, given, strict=True):
        if not isinstance(seed, Tensor) or seed.ndim == 0 or tuple(seed.shape[1:]) != tuple(t.shape):
            got = seed.spec if isinstance(seed, Tensor) else type(seed).__name__
            raise ShapeError(f"grad: with is_grads_batched a tensor of {t.spec} needs gradients of that shape behind a "
                             f"dimension that counts them, not {got}",
                             fix="For the whole Jacobian give wf.eye(y.numel()).reshape(-1, *y.shape).")  # fmt: skip
    found: list[Any] = []

    def of_one(*seeds: Tensor) -> list[Any]:
        found[:] = _derivatives(tensors, seeds, wanted, retain, create)
        return [g for g in found if g is not None]

    made = iter(map_batch(of_one, 0, 0)(*given))
    return [None if g is None else next(made) for g in found]


def _complete(
    derivatives: list[Any], wanted: list[Tensor], allow_unused: bool | None, materialize_grads: bool
) -> tuple[Tensor, ...]:
    """The derivatives; for unused inputs zeros or None, or an error."""
    results = []
    for position, (t, found) in enumerate(zip(wanted, derivatives, strict=True)):
        if found is None and materialize_grads:
            found = wrap(executor().zeros(t._array.shape, t._array.dtype, t._array))
        if found is None and not allow_unused:
            raise GraphError(f"grad: input {position} ({t.spec}) was not used in the graph of the outputs",
                             fix="Pass allow_unused=True to get None for it.")  # fmt: skip
        results.append(found)
    return tuple(results)


def _run(roots: list[tuple[Any, Any]], retain: bool, create: bool, capture: Capture | None, accumulate: bool) -> None:
    mode = STATE.mode
    if create and mode is not None:
        with changed_mode(grad=True), drawing_again():
            run(roots, retain=retain, create=create, capture=capture, accumulate=accumulate)
    else:
        run(roots, retain=retain, create=create, capture=capture, accumulate=accumulate)


def _captured(capture: Capture, t: Tensor) -> Any:
    found = capture.of(t)
    if found is None:
        return None
    if isinstance(found, Tensor):
        # The gradient of a mean is one expanded number, which is read-only; the user gets a writable copy.
        stretched = found.__class__ is Tensor and not is_writable(found._array)
        return tensor_ops.clone(found) if stretched else found
    copy = found.dense() if found.__class__ is Rows else copied(found)
    if UNUSUAL:
        executor().array_copied(found, copy)
    return wrap(copy)


def _edge_of(t: Tensor, name: str) -> Any:
    if not isinstance(t, Tensor):
        raise WrongKindError(f"{name}: inputs must be tensors, not {type(t).__name__}")
    if isinstance(t, BatchedTensor):
        raise _of_one_example(t, name)
    if not t.requires_grad:
        raise GraphError(f"{name}: one of the inputs ({t.spec}) does not require a gradient",
                         fix="Set requires_grad=True on it before computing.")  # fmt: skip
    unroll(t.grad_fn)
    return t._edge or t


def _of_one_example(t: Tensor, name: str) -> GraphError:
    return GraphError(f"{name}: this tensor ({t.spec}) is one example's of a vmap, and the graph is that of the whole "
                      "batch", fix="Inside vmap use wf.func.grad or wf.func.vjp.")  # fmt: skip


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
        if isinstance(t, BatchedTensor):
            raise _of_one_example(t, name)
        if not t.requires_grad:
            raise GraphError(f"{name}: this tensor ({t.spec}) does not require grad and has no grad_fn",
                             fix="Compute it from a tensor with requires_grad=True, outside no_grad.")  # fmt: skip
        if t._extras is not None and "handed_through" in t._extras:
            refuse_stale(t, name)
        roots.append((t._edge or t, _seed(name, t, seed, create)))
    return roots


def _seed(name: str, t: Tensor, seed: Any, create: bool) -> Any:
    array = t._array
    if seed is None:
        if array.size != 1:
            raise GraphError(f"{name}: a gradient is created implicitly only for a scalar, this is {t.spec}",
                             fix="Reduce it first (.sum(), .mean()), or pass gradient= of the same shape.")  # fmt: skip
        with active_for(array):
            there = BACKENDS.get(array.__class__)
            ones = np.ones(array.shape, array.dtype) if there is None else there.ones_like(array)
        return wrap(ones) if create else ones
    if not isinstance(seed, Tensor):
        raise ArgumentTypeError(f"{name}: gradients must be Tensors or None, not {type(seed).__name__}")
    if tuple(seed.shape) != array.shape:
        raise ShapeError(f"{name}: a gradient of {seed.spec} was given for a tensor of {t.spec}")
    if array.__class__ in BACKENDS and seed.device != t.device:
        raise OperationError(f"{name}: a gradient on {seed.device} was given for a tensor on {t.device}",
                             fix=f"Move it with .to('{t.device}').")  # fmt: skip
    if seed.dtype is not t.dtype:
        seed = tensor_ops.cast(seed, dtype=t.dtype)
    return seed if create else seed._array
