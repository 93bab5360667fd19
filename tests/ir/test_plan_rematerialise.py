"""Plans that need less memory: attention in the arena, buffers in the memory of results, rematerialised values."""

import numpy as np
import pytest

import wayfare as wf
import wayfare.nn.functional as F
from tests.ir.plan_cases import check, planned
from wayfare.codegen.runtime import kernel
from wayfare.core.op import REGISTRY
from wayfare.ir.graph import leaf, record
from wayfare.ir.plan import build, rematerialise
from wayfare.ir.plan.plan import Plan

F32 = np.dtype("float32")
needs_loops = pytest.mark.skipif(not kernel.available(), reason="without loops nothing is taken apart")


def arrays_of(*shapes, seed=0):
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=s) / np.sqrt(s[-1])).astype(F32) for s in shapes]


def blind_mask():
    mask = np.ones((5, 6), bool)
    mask[0, 2:] = False
    mask[3] = False
    return wf.tensor(mask)


@pytest.mark.parametrize(
    "options",
    [{}, {"is_causal": True}, {"scale": 0.3}, {"scale": -0.5}, {"mask": blind_mask},
     {"mask": lambda: wf.randn(2, 1, 5, 6)}],
    ids=["plain", "causal", "scale", "negative", "bool", "float"],
)  # fmt: skip
def test_attention_is_products_and_loops(options):
    options = dict(options)
    mask = options.pop("mask", lambda: None)()
    q, k, v = arrays_of((2, 3, 5, 4), (2, 3, 6, 4), (2, 3, 6, 7))
    plan = check(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, mask, **options) * 1.5, [q, k, v])
    if kernel.available():
        assert plan.python_steps == 0 and plan.matmuls >= 6


def test_the_gradient_of_a_mask():
    q, k, v, mask = arrays_of((2, 3, 5, 4), (2, 3, 6, 4), (2, 3, 6, 7), (3, 1, 6))
    check(lambda q, k, v, mask: F.scaled_dot_product_attention(q, k, v, mask, scale=0.7).square(), [q, k, v, mask])


@needs_loops
def test_heads_are_parted_and_joined_without_copies():
    wf.manual_seed(0)
    layer = wf.nn.MultiheadAttention(8, 2, batch_first=True)
    (x,) = arrays_of((3, 5, 8))
    plan = check(lambda x: layer(x, x, x, need_weights=False)[0].square(), [x])
    assert plan.python_steps == 0 and "copy" not in plan.describe()


def test_dropout_of_attention_stays_with_its_record():
    arrays = [*arrays_of((2, 5, 4), (2, 6, 4), (2, 6, 4)), np.zeros((), F32)]
    values = [leaf("input", i, a.shape, a.dtype) for i, a in enumerate(arrays)]
    attrs = {"scale": 0.5, "causal": False, "p": 0.5, "key": (3, 1)}
    out, _, _ = record(REGISTRY["attention"], values, attrs)
    plan = Plan("drop", values, [out], [], arrays)
    assert plan.in_python == ["op attention([2, 5, 4], [2, 6, 4], [2, 6, 4], [])"]
    np.testing.assert_array_equal(plan.run(arrays)[0], REGISTRY["attention"].forward(*arrays, **attrs)[0])


@needs_loops
def test_results_lodge_what_is_gone_before_they_are_written():
    x, w = arrays_of((128, 128), (128, 128))
    plan = check(lambda x, w: ((x @ w).tanh() @ w).tanh() @ w, [x, w], [False, False])
    # The first product lies where the result will be.
    assert plan.arena_bytes < 2 * x.nbytes
    first = plan.run([x, w])[0]
    kept = first.copy()
    plan.run([w, x])
    np.testing.assert_array_equal(first, kept)


@needs_loops
def test_what_is_read_while_a_result_is_written_lies_elsewhere():
    x, w = arrays_of((128, 128), (128, 128))
    plan = check(lambda x, w: (x @ w).tanh() @ w, [x, w], [False, False])
    assert plan.arena_bytes >= x.nbytes


def block(x, w, b, *weights):
    """Normalised, then two large products, twice: what is normalised is read again by the gradient of `up`."""
    for up, down in (weights[:2], weights[2:]):
        h = F.layer_norm(x, (x.shape[1],), w, b)
        x = h + F.relu(h @ up) @ down
    return x.square()


BLOCK = [(1024, 128), (128,), (128,), (128, 512), (512, 128), (128, 512), (512, 128)]


@needs_loops
def test_the_output_of_a_normalisation_is_computed_again(monkeypatch):
    arrays = arrays_of(*BLOCK)
    plan = check(block, arrays)
    assert "_remat" in plan.describe()
    monkeypatch.setattr(rematerialise, "_BUDGET", 0.0)
    other = planned(block, arrays)
    assert "_remat" not in other.describe()
    assert plan.peak_bytes < other.peak_bytes and plan.matmuls == other.matmuls


@needs_loops
def test_nothing_is_computed_again_for_small_arrays():
    plan = planned(block, arrays_of((8, 16), (16,), (16,), (16, 64), (64, 16), (16, 64), (64, 16)))
    assert "_remat" not in plan.describe()


@needs_loops
def test_the_weights_of_attention_are_computed_again(monkeypatch):
    wf.manual_seed(0)
    layer = wf.nn.TransformerEncoderLayer(64, 4, 512, 0.0, batch_first=True)
    (x,) = arrays_of((2, 96, 64))
    monkeypatch.setattr(build, "WORTH", 1024)
    monkeypatch.setattr(rematerialise, "_BUDGET", 0.0)
    kept = planned(lambda x: layer(x).square(), [x])
    monkeypatch.setattr(rematerialise, "_BUDGET", 0.5)
    again = check(lambda x: layer(x).square(), [x])
    assert again.matmuls > kept.matmuls and again.peak_bytes < kept.peak_bytes
    scores = "[2, 4, 96, 96] along"
    assert again.describe().count(scores) > kept.describe().count(scores)


@needs_loops
@pytest.mark.parametrize("size", [3, 64])
def test_everything_that_can_be_is_computed_again(monkeypatch, size):
    """Values of rows and of elements, each made of others that are away, too."""
    monkeypatch.setattr(build, "WORTH", 1)
    monkeypatch.setattr(rematerialise, "_BUDGET", 100.0)
    monkeypatch.setattr(rematerialise, "_SMALL", 0)
    cell = wf.nn.LSTMCell(4, size).double()
    x = np.random.default_rng(0).normal(size=(5, 4))

    def steps(x):
        h, c, total = wf.zeros(5, size).double(), wf.zeros(5, size).double(), 0.0
        for _ in range(4):
            h, c = cell(x, (h, c))
            total = total + F.softmax(h, 1).amax(1, keepdim=True) * h.mean(1, keepdim=True).exp()
        return total * h + F.layer_norm(c, (size,))

    assert "_remat" in check(steps, [x]).describe()


@needs_loops
def test_what_is_added_to_later_is_not_taken_for_what_it_was(monkeypatch):
    """A sum of matmuls is accumulated in its buffer: a value computed from an earlier sum is kept."""
    x, w = arrays_of((64, 64), (64, 64))
    monkeypatch.setattr(build, "WORTH", 64)
    monkeypatch.setattr(rematerialise, "_BUDGET", 100.0)

    def grows(x, w):
        total, seen = x @ w, []
        for _ in range(4):
            total = total + total.tanh() @ w
            seen.append((total * 0.5).sin())
        for s in reversed(seen):
            total = (total @ s * 0.1).tanh()
        return total

    check(grows, [x, w])
