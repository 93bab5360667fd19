"""Every op record inside `wf.map`: values and gradients of the loop, and equal calls of all examples in one group."""

import numpy as np
import pytest

import wayfare as wf
from tests.batch.checks import compare
from tests.compiler.test_every_op_compiled import listed, positions, some_samples
from wayfare.core.dispatch import apply
from wayfare.core.op import REGISTRY

ALL = sorted(REGISTRY)
EXAMPLES = 4


def varied(x, example):
    """Other numbers of the same kind for each example."""
    whole = x.dtype.kind != "f" or not x.size or np.all(x == np.round(x))
    return x if whole else x * (1 + 1e-3 * example)


def as_tensor(x, dtype, grad):
    x = x.astype(dtype) if x.dtype == np.float64 else x
    return wf.from_numpy(np.array(x)).requires_grad_(grad)


def maker(op, sample, shared=(), dtype="float64"):
    """Makes examples of a sample: those inputs that are `shared` are one tensor for all of them."""
    wanting = positions(op, sample) if op.vjp is not None and sample.smooth and dtype == "float64" else ()

    def make():
        leaves = []

        def tensor(i, example):
            leaves.append(as_tensor(varied(sample.inputs[i], example), dtype, i in wanting))
            return leaves[-1]

        common = {i: tensor(i, 0) for i in shared}
        examples = [[common[i] if i in shared else tensor(i, e) for i in range(len(sample.inputs))]
                    for e in range(EXAMPLES)]  # fmt: skip
        return lambda tensors: listed(apply(op, tuple(tensors), sample.attrs)), [examples], leaves

    return make


@pytest.mark.parametrize("name", ALL)
def test_values_and_gradients(name):
    op = REGISTRY[name]
    for sample in some_samples(op):
        compare(maker(op, sample))


@pytest.mark.parametrize("name", ALL)
def test_single_precision_and_shared_inputs(name):
    op = REGISTRY[name]
    for sample in some_samples(op):
        compare(maker(op, sample, dtype="float32"), tolerance=1e-4)
        for i in range(min(len(sample.inputs), 3)):
            compare(maker(op, sample, shared=(i,)))
        if len(sample.inputs) > 1:
            compare(maker(op, sample, shared=tuple(range(1, len(sample.inputs)))))


@pytest.mark.parametrize("name", [name for name in ALL if REGISTRY[name].vjp is not None and not REGISTRY[name].random])
def test_second_derivatives(name):
    op = REGISTRY[name]
    for sample in some_samples(op, smooth=True)[:1]:
        compare(maker(op, sample), second=True, tolerance=1e-6)


@pytest.mark.parametrize("name", ALL)
def test_results_that_go_on(name):
    op = REGISTRY[name]
    for sample in some_samples(op)[:1]:
        plain = maker(op, sample)

        def make(plain=plain):
            function, examples, leaves = plain()

            def longer(tensors):
                made = [t * 1 if t.is_floating_point() else t for t in tensors]
                return [t * 2 if t.is_floating_point() else t for t in function(made)]

            return longer, examples, leaves

        compare(make)


def draws_only(op):
    return op.random and not any(sample.inputs for sample in some_samples(op))


# What is no call of its own in a group: numbers drawn from nothing are drawn at once, some views are but an address.
DRAWN = {name for name in ALL if draws_only(REGISTRY[name])}
ONLY_AN_ADDRESS = {
    "reshape", "select", "slice", "squeeze", "squeeze_dim", "squeeze_dims", "unsafe_view", "unsqueeze", "view_bits",
}  # fmt: skip


@pytest.mark.parametrize("name", ALL)
def test_equal_calls_run_in_one_group(name):
    op = REGISTRY[name]
    function, (examples,), _ = maker(op, some_samples(op)[0])()

    def made_inside(tensors):
        # By another op than the one that is counted.
        return function([(t + 0 if name == "mul" else t * 1) if t.is_floating_point() else t for t in tensors])

    with wf.no_grad():
        wf.map(made_inside, [[t.detach() for t in tensors] for tensors in examples])
    rows = [(k.nodes, k.groups, k.largest) for k in wf.batching.last().kinds if k.name == name]
    if name in DRAWN | ONLY_AN_ADDRESS:
        assert rows == []
    else:
        # Some ops are made of others of the same name: each of them is one group.
        assert rows and all(row == (EXAMPLES, 1, EXAMPLES) for row in rows)
