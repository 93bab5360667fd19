"""Metrics of numbers, perplexity and means, against NumPy's formulas; use in a checkpoint and in training."""

import copy
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import wayfare as wf
from wayfare import metrics
from wayfare.errors import ArgumentError, OperationError, ShapeError

quick = settings(max_examples=40, deadline=None)

FORMULAS = {
    "MeanSquaredError": lambda p, t: ((p - t) ** 2).mean(),
    "RootMeanSquaredError": lambda p, t: np.sqrt(((p - t) ** 2).mean()),
    "MeanAbsoluteError": lambda p, t: np.abs(p - t).mean(),
    "MeanAbsolutePercentageError": lambda p, t: (np.abs(p - t) / np.abs(t)).mean(),
    "R2": lambda p, t: (1 - ((t - p) ** 2).sum(0) / ((t - t.mean(0)) ** 2).sum(0)).mean(),
}


@pytest.mark.parametrize("name", FORMULAS)
@given(size=st.integers(2, 20), tail=st.sampled_from([(), (3,), (2, 2)]), seed=st.integers(0, 9999))
@quick
def test_errors(name, size, tail, seed):
    rng = np.random.default_rng(seed)
    p, t = rng.normal(size=(size, *tail)), rng.normal(size=(size, *tail)) + 5
    want = FORMULAS[name](p, t)
    metric = getattr(metrics, name)()
    assert metric(wf.tensor(p, requires_grad=True), wf.tensor(t)) == pytest.approx(want)
    batches, other = getattr(metrics, name)(), getattr(metrics, name)()
    batches.update(p[:1], t[:1])
    other.update(p[1:], t[1:])
    assert batches.merge(other).compute() == pytest.approx(want)
    resumed = getattr(metrics, name)()
    resumed.load_state_dict(batches.state_dict())
    assert resumed.compute() == pytest.approx(want)


def test_sums_are_in_double_precision():
    metric = metrics.MeanSquaredError()
    for _ in range(3):
        metric.update(wf.full((100_000,), 1000.1), wf.full((100_000,), 1000.0))
    error = float(np.float32(1000.1)) - 1000.0
    assert metric.compute() == pytest.approx(error**2, rel=1e-12)
    # Large targets that hardly differ: sums of squares would cancel.
    r2 = metrics.R2()
    target = np.array([1e9, 1e9 + 1, 1e9 + 2, 1e9 + 3])
    r2.update(target[:2] + 0.5, target[:2])
    r2.update(target[2:] + 0.5, target[2:])
    assert r2.compute() == pytest.approx(1 - 4 * 0.25 / 5)


def test_divisions_by_zero():
    assert metrics.MeanAbsolutePercentageError()([0.0, 2.0], [0.0, 1.0]) == 0.5
    assert metrics.MeanAbsolutePercentageError()([1.0, 2.0], [0.0, 1.0]) == math.inf
    assert metrics.R2()([3.0, 3.0], [3.0, 3.0]) == 1.0
    assert metrics.R2()([3.0, 4.0], [3.0, 3.0]) == 0.0
    assert math.isnan(metrics.R2()([3.0], [3.0]))
    assert math.isnan(metrics.MeanSquaredError()(wf.empty(0), wf.empty(0)))


@given(st.integers(0, 9999))
@quick
def test_perplexity(seed):
    rng = np.random.default_rng(seed)
    logits, target = rng.normal(size=(4, 5, 6)) * 3, rng.integers(0, 5, (4, 6))
    target[0, :2] = -100
    loss = wf.nn.functional.cross_entropy(wf.tensor(logits), wf.tensor(target))
    assert metrics.Perplexity()(logits, target) == pytest.approx(math.exp(loss.item()))
    moved = metrics.Perplexity(class_dim=-1)
    moved.update(np.moveaxis(logits, 1, -1)[:1], target[:1])
    moved.update(np.moveaxis(logits, 1, -1)[1:], target[1:])
    assert moved.compute() == pytest.approx(math.exp(loss.item()))


def test_perplexity_at_the_edges():
    assert metrics.Perplexity()(wf.zeros(3, 7), [0, 1, 2]) == pytest.approx(7)
    assert metrics.Perplexity()(wf.tensor([[1e4, 0.0]]), [0]) == 1.0
    assert metrics.Perplexity()(wf.tensor([[1e4, 0.0]]), [1]) == math.inf
    assert metrics.Perplexity()(wf.tensor([[0.0, -math.inf]]), [1]) == math.inf
    assert math.isnan(metrics.Perplexity()(wf.zeros(1, 3), [-100]))


def test_mean():
    mean = metrics.Mean()
    assert mean(2.0) == 2.0
    assert mean(wf.tensor(5.0, requires_grad=True), 3) == 5.0
    assert mean.compute() == pytest.approx(17 / 4)
    mean.update([1.0, 2.0], [1.0, 0.0])
    assert mean.compute() == pytest.approx(18 / 5)
    assert math.isnan(metrics.Mean()(1.0, 0.0))


def test_copies_are_apart():
    metric = metrics.MeanAbsoluteError()
    metric.update([1.0], [0.0])
    other = copy.deepcopy(metric)
    other.update([4.0], [0.0])
    assert (metric.compute(), other.compute()) == (1.0, 2.5)


def test_the_state_is_a_copy():
    metric = metrics.R2()
    metric.update([1.0, 2.0], [1.0, 2.5])
    before = metric.compute()
    metric.state_dict()["residual"].zero_()
    assert metric.compute() == before


def test_names_and_repr():
    made = [metrics.Accuracy(), metrics.ROCAUC(), metrics.MeanSquaredError(), metrics.R2(), metrics.Perplexity()]
    assert [m.name for m in made] == ["accuracy", "roc_auc", "mse", "r2", "perplexity"]
    assert repr(metrics.Accuracy(threshold=0.3)) == "Accuracy(threshold=0.3)" and repr(metrics.R2()) == "R2()"
    assert repr(metrics.Perplexity(ignore_index=None)) == "Perplexity(ignore_index=None)"
    assert repr(metrics.TopK(3)) == "TopK(k=3)"


def test_a_metric_of_ones_own():
    class Largest(metrics.Metric):
        """The largest error."""

        def start(self):
            return {"error": np.zeros(())}

        def count(self, preds, target):
            return {"error": np.abs(preds - target).max()}

        def join(self, *states):
            return {"error": np.max([state["error"] for state in states])}

        def value(self, state):
            return float(state["error"])

    metric = Largest()
    assert metric(np.array([1.0, 2.0]), np.array([1.0, 5.0])) == 3.0
    assert metric(np.array([1.0]), np.array([2.0])) == 1.0 and metric.compute() == 3.0


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda: metrics.R2().compute(), OperationError, "R2: nothing was counted"),
        (lambda: metrics.MeanSquaredError()(wf.ones(3, 1), wf.ones(3)), ShapeError, r"\[3, 1\] and target \[3\]"),
        (lambda: metrics.MeanSquaredError()(wf.ones(4), wf.ones(3)), ShapeError, "Nothing is broadcast"),
        (lambda: metrics.R2()([math.nan, 1.0], [1.0, 1.0]), ArgumentError, "1 of 2 numbers in preds are NaN"),
        (lambda: metrics.R2()([1.0, 1.0], [1.0, math.nan]), ArgumentError, "in target are NaN"),
        (lambda: metrics.Mean()([1.0, 2.0], [1.0]), ShapeError, "the weights .1. must be one number"),
        (lambda: metrics.Perplexity()(wf.ones(2, 3), [0, 3]), ArgumentError, "label 3, but labels are 0 to 2"),
        (lambda: metrics.Perplexity()(wf.ones(2, 5, 3), wf.zeros(2, 5)), ShapeError, "class_dim=-1"),
    ],
)
def test_what_makes_no_sense_is_said_in_a_sentence(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_r2_wants_the_same_outputs_in_every_batch():
    metric = metrics.R2()
    metric.update(wf.ones(2, 3), wf.zeros(2, 3))
    with pytest.raises(ShapeError, match="one batch has 2 outputs, those before had 3"):
        metric.update(wf.ones(2, 2), wf.zeros(2, 2))
