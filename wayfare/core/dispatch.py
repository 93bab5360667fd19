"""Running ops eagerly, and recording a node when a gradient may be needed.

Every op runs through `apply`. `apply1`, `apply2` and `apply3` do the same for one, two and three inputs, written out
because for small tensors a loop over the inputs costs as much as the op. (`forward = op.forward` before the call is on
purpose: the interpreter cannot specialise the look-up in `op.forward(x)`, which costs 50 ns more.)
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from wayfare.core.autocast import cast_inputs
from wayfare.core.buffer_pool import Lease
from wayfare.core.callsite import INSIDE
from wayfare.core.constant import constant
from wayfare.core.device import BACKENDS, as_array, common_device, moved
from wayfare.core.executor import EAGER
from wayfare.core.mode import NO_GRAD, STATE, UNUSUAL, Mode
from wayfare.core.native import NATIVE, in_front_of
from wayfare.core.node import Node
from wayfare.core.op import REGISTRY, ByName, Op
from wayfare.core.op_failure import explain_failure
from wayfare.core.packed import pack
from wayfare.core.quiet import COMPLAINTS, quietly
from wayfare.core.refusals import refuse_marked
from wayfare.core.spec import BFLOAT16, FLOAT_KINDS, OF_NUMPY, Spec
from wayfare.core.tensor import Tensor, wrap
from wayfare.core.view import View
from wayfare.core.write_clock import clock, latest_write, tick

_ndarray = np.ndarray
_asarray = np.asarray
_getframe = sys._getframe
_new_tensor = Tensor.__new__
_NO_ATTRS: dict[str, Any] = {}
_BFLOAT16_KIND = BFLOAT16.kind


def apply(op: Op, inputs: tuple[Tensor, ...], attrs: dict[str, Any] = _NO_ATTRS) -> Any:
    """Run an op on tensors: by the current executor, or eagerly."""
    if len(inputs) == 1 and op.outputs == 1:
        return apply1(op, inputs[0], attrs)
    return _apply(op, inputs, attrs)


def _apply(op: Op, inputs: tuple[Tensor, ...], attrs: dict[str, Any]) -> Any:
    mode = STATE.mode
    if mode is not None:
        if mode.autocast is not None:
            inputs = cast_inputs(mode.autocast, op.autocast, inputs, apply1)
        if mode.executor is not EAGER:
            return mode.executor.apply(op, inputs, attrs)
        if mode.watcher is not None:
            mode.watcher.starts(op)
    arrays = [t._array for t in inputs]
    backend = None
    if BACKENDS and any([x.__class__ in BACKENDS for x in arrays]):
        backend, inputs, arrays = _on_one_device(op, inputs)
    try:
        if backend is not None:
            out = backend.run(op, arrays, attrs)
        elif max([x.size for x in arrays], default=0) < op.large_from:
            forward = op.compute if _BFLOAT16_KIND in [x.dtype.kind for x in arrays] and not op.as_is else op.forward
            out = forward(*arrays, **attrs)
        else:
            out = op.large(*arrays, **attrs)
    except Exception as error:
        out = _again(op, inputs, attrs, error)
    for t in inputs:
        if t._view is not None:
            t._renew()
    record = op.vjp is not None and (mode is None or mode.grad) and any([t._requires_grad for t in inputs])
    if record and any([t._extras is not None for t in inputs]):
        refuse_marked(op, inputs)
    several = out.__class__ is tuple or out.__class__ is list
    if several:
        outputs = tuple([wrap(as_array(o)) for o in out])
        if record:
            record_many(op, inputs, arrays, outputs, attrs)
    else:
        outputs = (wrap(out if out.__class__ is _ndarray else as_array(out)),)
        if op.view:
            _become_view(op, inputs[0], outputs[0], attrs)
        if record and out.dtype.kind in FLOAT_KINDS:
            record_one(op, inputs, arrays, outputs[0], attrs)
    if mode is not None:
        _after(op, inputs, outputs, attrs, mode)
    return outputs if several else outputs[0]


def _on_one_device(op: Op, inputs: tuple[Tensor, ...]) -> tuple[Any, tuple[Tensor, ...], list[Any]]:
    """The backend that runs an op on these tensors, some of which are not on the CPU, with the tensors and arrays that
    it gets: a 0-dim tensor of the CPU joins the others, as in PyTorch."""
    if op.any_device:
        (t,) = inputs
        return BACKENDS[t._array.__class__], inputs, [t._array]
    arrays: list[Any] = [t._array for t in inputs]
    first = BACKENDS.get(arrays[0].__class__)
    if first is not None and first.alone and len({x.__class__ for x in arrays}) == 1:
        return first, inputs, arrays
    backend, device = common_device(op.name, inputs)
    arrays = []
    joined = list(inputs)
    for number, t in enumerate(inputs):
        if t._array.__class__ in BACKENDS:
            arrays.append(t._array)
        elif t._requires_grad:  # its gradient must find the way back
            joined[number] = t = apply1(REGISTRY["to_device"], t, {"device": str(device), "source": "cpu"})
            arrays.append(t._array)
        else:
            arrays.append(backend.constant(t._array, device))
    return backend, tuple(joined), arrays


def apply1(op: Op, a: Tensor, attrs: dict[str, Any] = _NO_ATTRS) -> Tensor:
    """`apply` for one input and one output."""
    record = op.vjp is not None
    if UNUSUAL:
        mode = STATE.mode
        if mode is not None:
            if mode is not NO_GRAD:
                return _apply(op, (a,), attrs)  # type: ignore[no-any-return]
            record = False
    x = a._array
    if x.__class__ is not _ndarray:
        return _apply(op, (a,), attrs)  # type: ignore[no-any-return]
    try:
        forward = op.forward if x.size < op.large_from else op.large
        if x.dtype is BFLOAT16 and forward is op.forward:
            forward = op.forward_for((BFLOAT16,))
        out = forward(x, **attrs) if attrs else forward(x)
    except Exception as error:
        out = _again(op, (a,), attrs, error)
    if out.__class__ is not _ndarray:
        out = as_array(out)
    t = _new_tensor(Tensor)
    t._array = out
    t._grad = t._view = t._extras = None
    if a._view is not None:
        a._renew()
    if op.view:
        _become_view(op, a, t, attrs)
    dtype = out.dtype
    if record and a._requires_grad and (not attrs or dtype.kind in FLOAT_KINDS):
        if a._extras is not None:
            refuse_marked(op, (a,))
        t._requires_grad = True
        t._edge = node = Node()
        node.op = op
        node.attrs = attrs
        node.edges = (a._edge or a,)
        keep = op.keep_first
        node.kept = keep(out, x)
        node.number = tick()
        node.shape = out.shape
        node.dtype = dtype
        node.extras = None
        frame: Any = _getframe(2)
        code = frame.f_code
        while INSIDE[code.co_filename]:
            frame = frame.f_back
            code = frame.f_code
        node.code = code
        node.offset = frame.f_lasti
    else:
        t._requires_grad = False
        t._edge = None
    return t


def apply2(op: Op, a: Tensor, b: Tensor) -> Tensor:
    """`apply` for two inputs and no attributes."""
    record = op.vjp is not None
    if UNUSUAL:
        mode = STATE.mode
        if mode is not None:
            if mode is not NO_GRAD:
                return _apply(op, (a, b), _NO_ATTRS)  # type: ignore[no-any-return]
            record = False
    x = a._array
    y = b._array
    if x.__class__ is not _ndarray or y.__class__ is not _ndarray:
        return _apply(op, (a, b), _NO_ATTRS)  # type: ignore[no-any-return]
    try:
        # Usually the first operand is at least as large as the second. If not, NumPy's loop is as good.
        forward = op.forward if x.size < op.large_from else op.large
        if (x.dtype is BFLOAT16 or y.dtype is BFLOAT16) and forward is op.forward:
            forward = op.forward_for((BFLOAT16,))
        out = forward(x, y)
    except Exception as error:
        out = _again(op, (a, b), _NO_ATTRS, error)
    if out.__class__ is not _ndarray:
        out = as_array(out)
    t = _new_tensor(Tensor)
    t._array = out
    t._grad = t._view = t._extras = None
    if a._view is not None:
        a._renew()
    if b._view is not None:
        b._renew()
    needs_a = a._requires_grad
    needs_b = b._requires_grad
    if record and (needs_a or needs_b):
        if a._extras is not None or b._extras is not None:
            refuse_marked(op, (a, b))
        t._requires_grad = True
        t._edge = node = Node()
        node.op = op
        node.attrs = _NO_ATTRS
        if needs_a:
            if needs_b:
                node.edges = (a._edge or a, b._edge or b)
                keep = op.keep_both
                node.kept = keep(out, x, y)
            else:
                node.edges = (a._edge or a, None)
                keep = op.keep_first
                node.kept = keep(out, x, y)
        else:
            node.edges = (None, b._edge or b)
            keep = op.keep_second
            node.kept = keep(out, x, y)
        node.number = tick()
        node.shape = out.shape
        node.dtype = out.dtype
        node.extras = None
        frame: Any = _getframe(2)
        code = frame.f_code
        while INSIDE[code.co_filename]:
            frame = frame.f_back
            code = frame.f_code
        node.code = code
        node.offset = frame.f_lasti
    else:
        t._requires_grad = False
        t._edge = None
    return t


def apply3(op: Op, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """`apply` for three inputs and no attributes, of an op without views and native loops: a linear layer."""
    record = True
    if UNUSUAL:
        mode = STATE.mode
        if mode is not None:
            if mode is not NO_GRAD:
                return _apply(op, (a, b, c), _NO_ATTRS)  # type: ignore[no-any-return]
            record = False
    x, y, z = a._array, b._array, c._array
    if not (x.__class__ is y.__class__ is z.__class__ is _ndarray):
        return _apply(op, (a, b, c), _NO_ATTRS)  # type: ignore[no-any-return]
    try:
        forward = op.forward_for((BFLOAT16,)) if x.dtype is BFLOAT16 or y.dtype is BFLOAT16 else op.forward
        out = forward(x, y, z)
    except Exception as error:
        out = _again(op, (a, b, c), _NO_ATTRS, error)
    t = _new_tensor(Tensor)
    t._array = out
    t._grad = t._view = t._extras = None
    for given in (a, b, c):
        if given._view is not None:
            given._renew()
    needs = (a._requires_grad, b._requires_grad, c._requires_grad)
    if record and True in needs and out.dtype.kind in FLOAT_KINDS:
        if a._extras is not None or b._extras is not None or c._extras is not None:
            refuse_marked(op, (a, b, c))
        t._requires_grad = True
        t._edge = node = Node()
        node.op = op
        node.attrs = _NO_ATTRS
        node.edges = (
            (a._edge or a) if needs[0] else None,
            (b._edge or b) if needs[1] else None,
            (c._edge or c) if needs[2] else None,
        )
        keep = op.packers.get(needs) or op.packer(needs)
        node.kept = keep(out, x, y, z)
        node.number = tick()
        node.shape = out.shape
        node.dtype = out.dtype
        node.extras = None
        frame: Any = _getframe(2)
        code = frame.f_code
        while INSIDE[code.co_filename]:
            frame = frame.f_back
            code = frame.f_code
        node.code = code
        node.offset = frame.f_lasti
    else:
        t._requires_grad = False
        t._edge = None
    return t


def _call(function: Any, *arrays: Any) -> Any:
    """A ufunc called from a line of the library, where NumPy's warnings about numbers are hidden."""
    return function(*arrays)


if NATIVE is not None:
    NATIVE.set_up(
        Tensor, Node, Op, View, Spec, INSIDE, UNUSUAL, STATE, NO_GRAD, clock, latest_write, _NO_ATTRS, OF_NUMPY,
        REGISTRY, constant, _call,
    )  # fmt: skip
    apply1, apply2, apply3 = in_front_of(apply1, 1), in_front_of(apply2, 2), in_front_of(apply3, 3)


def _again(op: Op, inputs: tuple[Tensor, ...], attrs: dict[str, Any], error: Exception) -> Any:
    """After a failure: run the op again if NumPy only complained about the numbers, else raise the error to show."""
    if isinstance(error, COMPLAINTS):
        arrays = [t._array for t in inputs]
        large = max([x.size for x in arrays], default=0) >= op.large_from
        try:
            with quietly():
                forward = op.large if large else op.forward_for([x.dtype for x in arrays])
                return forward(*arrays, **attrs)
        except Exception as other:
            error = other
    raise explain_failure(op, [t.spec for t in inputs], attrs, error) from None


def new_node(op: Op, inputs: tuple[Tensor, ...], attrs: dict[str, Any]) -> Node:
    """A node with its edges and call site; the caller sets what it keeps and the output's shape and dtype."""
    node = Node()
    node.op = op
    node.attrs = attrs
    node.edges = tuple([(t._edge or t) if t._requires_grad else None for t in inputs])
    node.number = tick()
    node.extras = None
    frame: Any = _getframe(1)
    code = frame.f_code
    while INSIDE[code.co_filename]:
        frame = frame.f_back
        code = frame.f_code
    node.code = code
    node.offset = frame.f_lasti
    return node


def record_one(op: Op, inputs: tuple[Tensor, ...], arrays: list[Any], out: Tensor, attrs: dict[str, Any]) -> None:
    """Record the node of a computed tensor."""
    node = new_node(op, inputs, attrs)
    needs = tuple([t._requires_grad for t in inputs])
    node.kept = op.packer(needs)(out._array, *arrays)
    node.shape = out._array.shape
    node.dtype = out._array.dtype
    out._requires_grad = True
    out._edge = node


def record_many(
    op: Op, inputs: tuple[Tensor, ...], arrays: list[Any], outs: tuple[Tensor, ...], attrs: dict[str, Any]
) -> None:
    """The same for an op of several outputs; outputs without a gradient (indices) stay leaves."""
    node = new_node(op, inputs, attrs)
    needs = tuple([t._requires_grad for t in inputs])
    values = tuple(o._array for o in outs)
    read = op.kept_outputs
    node.kept = op.packer(needs)(
        values if read is None else tuple([v if i in read else None for i, v in enumerate(values)]), *arrays
    )
    shapes = node.more().outs = tuple((v.shape, v.dtype) for v in values)
    node.shape, node.dtype = shapes[0]
    for number, out in enumerate(outs):
        wanted = op.differentiable_outputs is None or number in op.differentiable_outputs
        if wanted and out._array.dtype.kind in FLOAT_KINDS:
            out._requires_grad = True
            out._edge = (node, number)


def _become_view(op: Op, source: Tensor, out: Tensor, attrs: dict[str, Any]) -> None:
    """Link a view to its base, if NumPy returned a view and not a copy."""
    base: Any = out._array.base
    if base is None or isinstance(base, Lease) or not (base is source._array or base is source._array.base):
        return
    out._view = View(source, op.name, attrs)


def _after(
    op: Op, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...], attrs: dict[str, Any], mode: Mode
) -> None:
    """Tell the modes about a result: anomaly mode, inference mode, saved-tensor hooks, watchers."""
    if mode.anomaly is not None:
        mode.anomaly.ran(op, inputs, outputs, attrs)
    if mode.inference:
        for out in outputs:
            out._more()["inference"] = True
    if mode.saved_hooks is not None and outputs[0].grad_fn is not None:
        pack(outputs[0].grad_fn, mode.saved_hooks)
    if mode.watcher is not None:
        mode.watcher.ran(op, inputs, outputs, attrs)


def with_history(array: Any, edge: Any) -> Tensor:
    """A kept array as a tensor with its history: the edge it had in the graph."""
    tensor = wrap(array)
    if isinstance(edge, Tensor):
        if edge._array is array:
            return edge
        # A hook kept a copy of the leaf, or the leaf's `.data` was replaced since.
        record_one(REGISTRY["clone"], (edge,), [array], tensor, _NO_ATTRS)
    elif edge is not None and array.dtype.kind in FLOAT_KINDS:
        tensor._edge = edge
        tensor._requires_grad = True
    return tensor


class TensorOps(ByName):
    """Ops by name on Tensors: recorded, so that the gradient can be differentiated again."""

    differentiable = True

    def _bind(self, op: Op) -> Any:
        def call(*inputs: Any, **attrs: Any) -> Any:
            return apply(op, tuple([_as_operand(x, inputs) for x in inputs]), attrs)

        return call


def _as_operand(value: Any, others: tuple[Any, ...]) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if value.__class__ in BACKENDS:
        return wrap(value)
    if isinstance(value, _ndarray):  # made by a rule, which knows no devices
        there = next((t for t in others if t.__class__ is Tensor and t._array.__class__ in BACKENDS), None)
        return wrap(value if there is None else moved(value, there.device))
    dtype = next((t._array.dtype for t in others if isinstance(t, Tensor)), None)
    return wrap(_asarray(value, dtype=dtype) if dtype is not None else _asarray(value))


tensor_ops: Any = TensorOps()
