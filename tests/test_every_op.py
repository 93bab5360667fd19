"""Every op record, checked from the record itself: values, shape rule, gradients, batch rule, float32."""

import inspect
import zlib

import numpy as np
import pytest

import wayfare as wf
from wayfare.eager import apply, raw_ops, tensor_ops
from wayfare.op import REGISTRY, Sample, joint
from wayfare.spec import Spec, spec_of
from wayfare.tensor import wrap

ALL = sorted(REGISTRY)
DETERMINISTIC = [name for name in ALL if not REGISTRY[name].random]
DIFFERENTIABLE = [name for name in DETERMINISTIC if REGISTRY[name].vjp is not None]


def samples_of(name):
    op = REGISTRY[name]
    found = list(op.samples(np.random.default_rng(zlib.crc32(name.encode()))))
    assert found, f"{name} has no samples"
    for sample in found:
        inputs = tuple(np.asarray(x) for x in sample.inputs)
        yield Sample(inputs, sample.attrs, sample.smooth)


def as_list(value):
    return list(value) if isinstance(value, (tuple, list)) else [value]


def reference_values(op, sample):
    """The reference applied to whole arrays, or element by element if it is a function of Python numbers."""
    if op.family == "elementwise" and op.broadcasts:
        arrays = np.broadcast_arrays(*sample.inputs) if sample.inputs else []
        flat = [op.reference(*(x.item() for x in items), **sample.attrs)
                for items in zip(*(a.ravel() for a in arrays), strict=True)]
        shape = arrays[0].shape
        return [np.array(flat).reshape(shape)]
    return as_list(op.reference(*sample.inputs, **sample.attrs))


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_value_agrees_with_the_reference(name):
    op = REGISTRY[name]
    for sample in samples_of(name):
        got = as_list(op.forward(*sample.inputs, **sample.attrs))
        want = reference_values(op, sample)
        assert len(got) == len(want)
        for g, w in zip(got, want, strict=True):
            assert np.shape(g) == np.shape(w), (name, sample.attrs)
            np.testing.assert_allclose(np.asarray(g, np.float64), np.asarray(w, np.float64), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", ALL)
def test_shape_and_dtype_rule_agrees_with_what_comes_out(name):
    op = REGISTRY[name]
    for sample in samples_of(name):
        for dtype in (np.float64, np.float32):
            inputs = [x.astype(dtype) if x.dtype == np.float64 else x for x in sample.inputs]
            specs = as_list(op.infer(*map(spec_of, inputs), **sample.attrs))
            outs = [spec_of(np.asarray(o)) for o in as_list(op.forward(*inputs, **sample.attrs))]
            assert specs == outs, (name, sample.attrs, dtype)
            assert all(isinstance(s, Spec) for s in specs)


def float_positions(op, sample):
    rules = op.vjp.rule if isinstance(op.vjp, joint) else None
    return [i for i, x in enumerate(sample.inputs)
            if x.dtype == np.float64 and x.size and (rules is not None or op.vjp[i] is not None)]


def as_tensors(sample, positions):
    tensors = []
    for i, x in enumerate(sample.inputs):
        t = wrap(np.array(x))
        t._requires_grad = i in positions
        tensors.append(t)
    return tensors


def differentiable_outputs(outs):
    return [o for o in as_list(outs) if o.requires_grad]


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_first_gradient_agrees_with_finite_differences(name):
    op = REGISTRY[name]
    checked = 0
    for sample in samples_of(name):
        positions = float_positions(op, sample) if sample.smooth else []
        if not positions:
            continue
        tensors = as_tensors(sample, positions)
        outs = differentiable_outputs(apply(op, tuple(tensors), sample.attrs))
        if not outs:
            continue
        rng = np.random.default_rng(1)
        seeds = [rng.normal(size=o.shape) for o in outs]
        wf.autograd.backward(outs, [wrap(np.array(s)) for s in seeds])

        def total(arrays, seeds=seeds, sample=sample):
            values = as_list(op.forward(*arrays, **sample.attrs))
            diff = op.differentiable_outputs or range(len(values))
            floats = [np.asarray(values[i]) for i in diff if np.asarray(values[i]).dtype.kind == "f"]
            return sum(float((v * s).sum()) for v, s in zip(floats, seeds, strict=True))

        for i in positions:
            want = numeric_gradient(total, list(sample.inputs), i)
            got = tensors[i].grad.numpy() if tensors[i].grad is not None else np.zeros(want.shape)
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6, err_msg=f"{name} {sample.attrs} input {i}")
            checked += 1
    assert checked, f"{name}: no sample had a gradient to check"


def numeric_gradient(function, arrays, position, eps=1e-6):
    arrays = [np.array(a) for a in arrays]
    flat = arrays[position] = np.array(arrays[position], order="C")
    out = np.zeros(flat.shape)
    view, target = flat.reshape(-1), out.reshape(-1)
    for k in range(view.size):
        old = view[k]
        view[k] = old + eps
        up = function(arrays)
        view[k] = old - eps
        down = function(arrays)
        view[k] = old
        target[k] = (up - down) / (2 * eps)
    return out


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_second_gradient_agrees_with_finite_differences_of_the_first(name):
    """The rule, run on tensors, is differentiated; the same rule on raw arrays is differenced."""
    op = REGISTRY[name]
    for sample in samples_of(name):
        positions = float_positions(op, sample) if sample.smooth else []
        if not positions or sum(sample.inputs[i].size for i in positions) > 64:
            continue
        rng = np.random.default_rng(2)

        def first(arrays, create, sample=sample, positions=positions):
            tensors = as_tensors(Sample(tuple(arrays), sample.attrs), positions)
            outs = differentiable_outputs(apply(op, tuple(tensors), sample.attrs))
            if not outs:
                return None
            draw = np.random.default_rng(3)
            seeds = [wrap(draw.normal(size=o.shape)) for o in outs]
            inputs = [tensors[i] for i in positions]
            grads = wf.autograd.grad(outs, inputs, seeds, create_graph=create, allow_unused=True, materialize_grads=True)
            return tensors, grads

        made = first(sample.inputs, True)
        if made is None:
            continue
        tensors, grads = made
        weights = [rng.normal(size=g.shape) for g in grads]
        live = [(g, w) for g, w in zip(grads, weights, strict=True) if g.requires_grad]
        if live:
            wf.autograd.backward([g for g, _ in live], [wrap(np.array(w)) for _, w in live])

        def total(arrays, weights=weights, first=first):
            _, raw = first(arrays, False)
            return sum(float((g.numpy() * w).sum()) for g, w in zip(raw, weights, strict=True))

        for i in positions:
            want = numeric_gradient(total, list(sample.inputs), i)
            got = tensors[i].grad.numpy() if tensors[i].grad is not None else np.zeros(want.shape)
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5, err_msg=f"{name} {sample.attrs} input {i}")


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_batch_rule_agrees_with_a_loop(name):
    op = REGISTRY[name]
    size = 3
    for sample in samples_of(name):
        rng = np.random.default_rng(4)
        for which in ((True,) * len(sample.inputs), *one_batched(len(sample.inputs))):
            if not any(which):
                continue
            rows = [stack_of(x, size, rng) if b else x for x, b in zip(sample.inputs, which, strict=True)]
            want = [as_list(op.forward(*(r[i] if b else r for r, b in zip(rows, which, strict=True)), **sample.attrs))
                    for i in range(size)]
            if len({tuple(np.shape(o) for o in row) for row in want}) > 1:
                continue  # sizes that depend on values cannot be batched
            got = as_list(op.batch(tensor_ops, size, tuple(wrap(np.array(r)) for r in rows), which, dict(sample.attrs)))
            for k, out in enumerate(got):
                expected = np.stack([np.asarray(row[k]) for row in want])
                assert tuple(out.shape) == expected.shape, (name, sample.attrs, which)
                np.testing.assert_allclose(out._array, expected, rtol=1e-7, atol=1e-9)


def one_batched(arity):
    return [tuple(i == k for i in range(arity)) for k in range(arity)] if 1 < arity <= 4 else []


def stack_of(x, size, rng):
    """Rows alike in domain: the sample itself, scaled a little for floats."""
    if x.dtype.kind == "f" and not np.all(x == np.round(x)):
        return np.stack([x * (1 + 0.05 * rng.uniform()) for _ in range(size)])
    return np.stack([x] * size)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_rules_read_only_what_they_name(name):
    """A rule's parameter names say what a node keeps; the rule must have one parameter per output and input."""
    op = REGISTRY[name]
    arity = len(next(iter(samples_of(name))).inputs)
    op.keeps((True,) * arity)
    rules = [op.vjp.rule] if isinstance(op.vjp, joint) else [r for r in op.vjp if r is not None]
    for rule in rules:
        assert "m" == next(iter(inspect.signature(rule).parameters))


def test_raw_and_tensor_namespaces_offer_every_op():
    for name in ALL:
        assert callable(getattr(raw_ops, name))
        assert callable(getattr(tensor_ops, name))
