"""The registry writes the tests: every claim of an op record, checked from the record itself.

`check_op(op)` runs them all: values against the independent reference, the shape and dtype rule against what comes out,
first and second gradients against finite differences, the batch rule against a Python loop.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from wayfare.autograd.backward import backward, grad
from wayfare.core.dispatch import apply, tensor_ops
from wayfare.core.op import Op, Sample, joint
from wayfare.core.spec import FLOAT_KINDS, spec_of
from wayfare.core.tensor import Tensor, wrap


def samples_of(op: Op) -> Iterator[Sample]:
    """The samples of a record, as arrays; the same numbers each time."""
    found = list(op.samples(np.random.default_rng(zlib.crc32(op.name.encode()))))
    if not found:
        raise AssertionError(f"{op.name} has no samples")
    for sample in found:
        yield Sample(tuple(np.asarray(x) for x in sample.inputs), sample.attrs, sample.smooth)


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (tuple, list)) else [value]


def _close(got: Any, want: Any, rtol: float, atol: float, what: str) -> None:
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    np.testing.assert_allclose(got, want, rtol=rtol, atol=atol, err_msg=what)


def _reference(op: Op, sample: Sample) -> list[Any]:
    """The reference: for elementwise ops a function of Python numbers, else of whole arrays."""
    if not op.broadcasts:
        return _listed(op.reference(*sample.inputs, **sample.attrs))
    arrays = np.broadcast_arrays(*sample.inputs)
    items = zip(*(a.ravel().tolist() for a in arrays), strict=True)
    flat = [op.reference(*numbers, **sample.attrs) for numbers in items]
    return [np.array(flat).reshape(arrays[0].shape)]


def check_values(op: Op) -> None:
    """Forward against the reference."""
    for sample in samples_of(op):
        got = _listed(op.forward(*sample.inputs, **sample.attrs))
        want = _reference(op, sample)
        assert len(got) == len(want), f"{op.name}: {len(got)} outputs, the reference has {len(want)}"
        for g, w in zip(got, want, strict=True):
            assert np.shape(g) == np.shape(w), f"{op.name} {sample.attrs}: {np.shape(g)}, reference {np.shape(w)}"
            _close(g, w, 1e-9, 1e-11, f"{op.name} {sample.attrs}")


def check_shape_rule(op: Op) -> None:
    """The shape and dtype rule against what really comes out, in float64 and float32."""
    for sample in samples_of(op):
        for dtype in (np.float64, np.float32):
            inputs = [x.astype(dtype) if x.dtype == np.float64 else x for x in sample.inputs]
            said = _listed(op.infer(*map(spec_of, inputs), **sample.attrs))
            done = [spec_of(np.asarray(o)) for o in _listed(op.forward(*inputs, **sample.attrs))]
            assert said == done, f"{op.name} {sample.attrs}: the rule says {said}, out came {done}"


def _float_positions(op: Op, sample: Sample) -> list[int]:
    """The inputs that a gradient exists for."""
    if not sample.smooth:
        return []
    rules = op.vjp
    floats = [i for i, x in enumerate(sample.inputs) if x.dtype == np.float64 and x.size]
    if isinstance(rules, joint):
        return floats
    return [i for i in floats if rules and rules[i] is not None and not getattr(rules[i], "refuses", False)]


def _tensors(arrays: Any, positions: list[int]) -> list[Tensor]:
    made = [wrap(np.array(x)) for x in arrays]
    for i in positions:
        made[i].requires_grad_()
    return made


def _live_outputs(op: Op, tensors: list[Tensor], attrs: dict[str, Any]) -> list[Tensor]:
    return [o for o in _listed(apply(op, tuple(tensors), attrs)) if o.requires_grad]


def numeric_gradient(function: Callable[[list[Any]], float], arrays: Any, position: int, eps: float = 1e-6) -> Any:
    """Central differences of a function of arrays by one of them."""
    own = [np.array(a, order="C") for a in arrays]
    values = own[position].reshape(-1)
    out = np.zeros(own[position].shape)
    slopes = out.reshape(-1)
    for k in range(values.size):
        old = values[k]
        values[k] = old + eps
        up = function(own)
        values[k] = old - eps
        down = function(own)
        values[k] = old
        slopes[k] = (up - down) / (2 * eps)
    return out


def _gradient_or_zeros(t: Tensor) -> Any:
    found = t.grad
    return np.zeros(t.shape) if found is None else found.numpy()


def check_gradient(op: Op) -> None:
    """First derivatives against finite differences; at least one sample must have one."""
    checked = 0
    for sample in samples_of(op):
        positions = _float_positions(op, sample)
        tensors = _tensors(sample.inputs, positions)
        outs = _live_outputs(op, tensors, sample.attrs) if positions else []
        if not outs:
            continue
        rng = np.random.default_rng(1)
        seeds = [rng.normal(size=o.shape) for o in outs]
        backward(outs, [wrap(np.array(s)) for s in seeds])

        def total(arrays: list[Any], seeds: list[Any] = seeds, attrs: dict[str, Any] = sample.attrs) -> float:
            values = _listed(op.forward(*arrays, **attrs))
            chosen = [values[i] for i in (op.differentiable_outputs or range(len(values)))]
            floats = [v for v in map(np.asarray, chosen) if v.dtype.kind in FLOAT_KINDS]
            return sum(float((v * s).sum()) for v, s in zip(floats, seeds, strict=True))

        for i in positions:
            want = numeric_gradient(total, sample.inputs, i)
            _close(_gradient_or_zeros(tensors[i]), want, 1e-5, 1e-6, f"{op.name} {sample.attrs} input {i}")
            checked += 1
    assert checked, f"{op.name}: no sample had a gradient to check"


def check_second_gradient(op: Op) -> None:
    """The rules run on tensors and differentiated, against differences of the rules run on raw arrays."""
    for sample in samples_of(op):
        positions = _float_positions(op, sample)
        if not positions or sum(sample.inputs[i].size for i in positions) > 64:
            continue

        def first(arrays: Any, create: bool, positions: list[int] = positions, attrs: Any = sample.attrs) -> Any:
            tensors = _tensors(arrays, positions)
            outs = _live_outputs(op, tensors, attrs)
            draw = np.random.default_rng(3)
            seeds = [wrap(draw.normal(size=o.shape)) for o in outs]
            inputs = [tensors[i] for i in positions]
            if not outs:
                return tensors, []
            return tensors, grad(outs, inputs, seeds, create_graph=create, materialize_grads=True)

        tensors, grads = first(sample.inputs, True)
        rng = np.random.default_rng(2)
        weights = [rng.normal(size=g.shape) for g in grads]
        live = [(g, wrap(np.array(w))) for g, w in zip(grads, weights, strict=True) if g.requires_grad]
        if live:
            backward([g for g, _ in live], [w for _, w in live])

        def total(arrays: list[Any], weights: list[Any] = weights, first: Any = first) -> float:
            return sum(float((g.numpy() * w).sum()) for g, w in zip(first(arrays, False)[1], weights, strict=True))

        for i in positions:
            want = numeric_gradient(total, sample.inputs, i)
            _close(_gradient_or_zeros(tensors[i]), want, 1e-4, 1e-5, f"{op.name} {sample.attrs} input {i}, second")


def _stack_of(x: Any, size: int, rng: Any) -> Any:
    """Rows alike in domain: the sample itself, scaled a little if it is made of fractions."""
    if x.dtype.kind in FLOAT_KINDS and not np.all(x == np.round(x)):
        return np.stack([x * (1 + 0.05 * rng.uniform()) for _ in range(size)])
    return np.stack([x] * size)


def check_batch_rule(op: Op, size: int = 3) -> None:
    """The batch rule against a Python loop: all inputs batched, and each one alone."""
    for sample in samples_of(op):
        rng = np.random.default_rng(4)
        count = len(sample.inputs)
        alone = [tuple(i == k for i in range(count)) for k in range(count)] if 1 < count <= 4 else []
        for which in [(True,) * count, *alone] if count else []:
            rows = [_stack_of(x, size, rng) if b else x for x, b in zip(sample.inputs, which, strict=True)]
            want = [
                _listed(op.forward(*(r[i] if b else r for r, b in zip(rows, which, strict=True)), **sample.attrs))
                for i in range(size)
            ]
            if len({tuple(np.shape(o) for o in row) for row in want}) > 1:
                continue  # A size that depends on the values cannot be batched.
            tensors = tuple(wrap(np.array(r)) for r in rows)
            got = _listed(op.batch(tensor_ops, size, tensors, which, dict(sample.attrs)))
            for k, out in enumerate(got):
                expected = np.stack([np.asarray(row[k]) for row in want])
                assert tuple(out.shape) == expected.shape, f"{op.name} {sample.attrs} batched {which}: {out.shape}"
                _close(out.numpy(), expected, 1e-7, 1e-9, f"{op.name} {sample.attrs} batched {which}")


def check_op(op: Op) -> None:
    """All checks of one record."""
    if not op.random:
        check_values(op)
        check_batch_rule(op)
    check_shape_rule(op)
    if op.vjp is not None and not op.random:
        check_gradient(op)
        check_second_gradient(op)
