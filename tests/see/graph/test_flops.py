"""The arithmetic of every op, counted from shapes: known numbers, and a number for each record."""

import numpy as np
import pytest

import wayfare as wf
from wayfare.core.flops import FAMILIES
from wayfare.core.op import REGISTRY
from wayfare.core.spec import spec_of
from wayfare.ir.vjp import vjp_op

B, INS, OUTS = 5, 7, 3


def flops(tensor):
    """The operations forward of everything behind a tensor."""
    stats = wf.graph(tensor).stats()
    assert stats.uncounted == 0
    return stats.flops


def calls(op, count=3):
    """A few calls of an op: arrays in, arrays out, attributes."""
    for sample, _ in zip(op.samples(np.random.default_rng(0)), range(count), strict=False):
        inputs = [np.asarray(x) for x in sample.inputs]
        made = op.forward(*inputs, **sample.attrs)
        yield inputs, made if isinstance(made, tuple) else (made,), sample


def gradient_flops(op, needs, inputs, outputs, attrs):
    """The operations of the gradient of an op, counted op by op, for the inputs `needs`; None if unknown."""
    if not any(needs):
        return 0
    arrived = tuple(op.differentiable_outputs is None or i in op.differentiable_outputs for i in range(len(outputs)))
    given = tuple(i for i, need in enumerate(needs) if need)
    return vjp_op(op, needs, arrived, given, outputs, inputs).flops((), (), attrs)


@pytest.mark.parametrize("op", REGISTRY.values(), ids=lambda op: op.name)
def test_every_record_gives_a_number(op):
    for inputs, outputs, sample in calls(op):
        found = op.flops(inputs, outputs, sample.attrs)
        assert isinstance(found, int) and found >= 0
        if op.family in ("movement", "joining"):
            assert found == 0


def test_every_family_of_the_registry_has_a_rule_or_its_records_do():
    without = {op.name for op in REGISTRY.values() if op.family not in FAMILIES and op.work is None}
    assert not without


def test_only_empty_arrays_and_movements_are_free():
    free = {"movement", "joining", "indexing", "check"}
    known = {"cast", "segment_repeat", "pivot_matrix", "cholesky"}
    for op in REGISTRY.values():
        inputs, outputs, sample = next(iter(calls(op)))
        if op.family not in free and op.name not in known:
            assert op.flops(inputs, outputs, sample.attrs) > 0, op.name


def test_linear_is_two_for_each_weight_and_row():
    x = wf.ones(B, INS)
    layer = wf.nn.Linear(INS, OUTS)
    assert flops(layer(x)) == 2 * B * INS * OUTS
    assert flops(x @ wf.ones(INS, OUTS, requires_grad=True)) == 2 * B * INS * OUTS
    # Either factor alone says how long the sums are.
    spec = layer(x).spec
    assert REGISTRY["linear"].flops([None, layer.weight, layer.bias], [spec], {}) == 2 * B * INS * OUTS
    assert REGISTRY["linear"].flops([x, None, None], [spec], {}) == 2 * B * INS * OUTS
    assert REGISTRY["linear"].flops([None, None, None], [spec], {}) is None


@pytest.mark.parametrize("groups", [1, 2])
def test_convolution_is_two_for_each_output_and_window(groups):
    layer = wf.nn.Conv2d(4, 6, 3, groups=groups, bias=groups == 1)
    assert flops(layer(wf.ones(2, 4, 8, 9))) == 2 * (2 * 6 * 6 * 7) * (4 // groups) * 9


def test_the_gradients_of_a_convolution_cost_as_much_as_itself():
    x, weight = np.ones((2, 4, 8)), np.ones((6, 4, 3))
    how = {"stride": (1,), "padding": (0,), "dilation": (1,), "groups": 1}
    conv = REGISTRY["conv"]
    y = conv.forward(x, weight, **how)
    once = conv.flops([x, weight], [y], how)
    found = gradient_flops(conv, (True, True), (spec_of(x), spec_of(weight)), (spec_of(y),), how)
    assert found == 2 * once
    assert gradient_flops(conv, (True, False), (spec_of(x), spec_of(weight)), (spec_of(y),), how) == once


def test_an_lstm_is_its_products_and_thirteen_operations_for_each_number():
    steps, hidden = 4, 6
    layer = wf.nn.LSTM(INS, hidden)
    out, _ = layer(wf.ones(steps, B, INS))
    row = next(row for row in wf.graph(out).stats().by_op if row.name == "lstm_sequence")
    assert row.flops == steps * B * (2 * 4 * hidden * (INS + hidden) + 13 * hidden)
    # The cell, step by step: the same products.
    cell = wf.nn.LSTMCell(INS, hidden)
    h, _ = cell(wf.ones(B, INS), (wf.zeros(B, hidden), wf.zeros(B, hidden)))
    assert flops(h) >= 2 * B * 4 * hidden * (INS + hidden)


def test_attention_is_two_products_and_a_softmax():
    heads, length, other, size = 2, 5, 6, 4
    q, k = wf.ones(B, heads, length, size, requires_grad=True), wf.ones(B, heads, other, size)
    out = wf.nn.functional.scaled_dot_product_attention(q, k, wf.ones(B, heads, other, 3))
    row = next(row for row in wf.graph(out).stats().by_op if row.name == "attention")
    weights = B * heads * length * other
    assert row.flops == weights * (2 * size + 2 * 3 + 5)


@pytest.mark.parametrize(
    ("equation", "shapes", "count"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)], 2 * 2 * 3 * 4),
        ("ij->ji", [(2, 3)], 0),
        ("ij->j", [(2, 3)], 6),
        ("i,j->ij", [(2,), (3,)], 6),
        ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)], 2 * 2 * 3 * 4 + 2 * 2 * 4 * 5),
    ],
)
def test_einsum_pair_after_pair(equation, shapes, count):
    arrays = [np.ones(shape) for shape in shapes]
    op = REGISTRY["einsum"]
    assert op.flops(arrays, [op.forward(*arrays, equation=equation)], {"equation": equation}) == count


def test_reductions_count_inputs_and_elementwise_ops_outputs():
    x = wf.ones(4, 1, requires_grad=True)
    assert flops(x + wf.ones(5)) == 20
    assert flops(x.sum()) == 4
    assert flops(x.reshape(2, 2)) == 0


def test_a_fused_function_is_the_sum_of_its_parts():
    @wf.fused
    def three(x, w):
        return wf.tanh(x @ w + 1)

    x, w = wf.ones(4, 8, requires_grad=True), wf.ones(8, 2, requires_grad=True)
    assert flops(three(x, w)) == flops(wf.tanh(x @ w + 1)) == 2 * 4 * 8 * 2 + 8 + 8
    # The same record, other sizes.
    assert flops(three(wf.ones(5, 8, requires_grad=True), w)) == 2 * 5 * 8 * 2 + 10 + 10


def test_a_compiled_call_is_the_sum_of_what_was_recorded():
    layer = wf.nn.Linear(8, 2)

    @wf.compile(check=False)
    def step(x):
        return layer(x).relu().sum()

    for _ in range(3):
        made = step(wf.ones(4, 8))
    assert [node.op.name for node in wf.graph(made)] == ["step"]
    assert flops(made) == 2 * 4 * 8 * 2 + 8 + 8


def test_a_batched_map_counts_what_its_groups_did():
    w = wf.ones(3, 3, requires_grad=True)

    def example(n):
        h = wf.ones(3)
        for _ in range(n):
            h = (h @ w).tanh()
        return h.sum()

    alone = sum(flops(example(n)) for n in (1, 4, 2))
    losses = wf.map(example, [1, 4, 2])
    together = wf.graph(losses[0] + losses[1] + losses[2]).stats()
    row = next(row for row in together.by_op if row.name == "map")
    assert row.flops == alone
    assert row.kept > 0


def test_a_custom_function_cannot_say():
    class Twice(wf.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2

    stats = wf.graph(Twice.apply(wf.ones(3, requires_grad=True)).sum()).stats()
    assert stats.flops == 3 and stats.uncounted == 1
    assert "the arithmetic of 1 node is not known" in str(stats)


def test_gradients_of_smooth_ops_can_be_counted():
    """Nearly every rule can be traced; those that cannot say so."""
    unknown = set()
    for op in REGISTRY.values():
        inputs, outputs, sample = next(iter(calls(op)))
        if op.vjp is None or not sample.smooth:
            continue
        rules = op.vjp if isinstance(op.vjp, tuple) else (op.vjp,) * len(inputs)
        needs = tuple(x.dtype.kind == "f" and rule is not None for x, rule in zip(inputs, rules, strict=False))
        specs = [tuple(map(spec_of, group)) for group in (inputs, outputs)]
        found = gradient_flops(op, needs, *specs, sample.attrs)
        if found is None:
            unknown.add(op.name)
        else:
            assert found >= 0
    assert len(unknown) < 8, unknown
    assert not unknown & {"matmul", "linear", "conv_bias", "softmax", "layer_norm", "cross_entropy", "lstm_sequence"}
