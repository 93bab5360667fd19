"""ROC-AUC and average precision against their definitions, ties included."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import wayfare as wf
from wayfare import metrics
from wayfare.errors import ArgumentError, ShapeError

quick = settings(max_examples=60, deadline=None)


def auc(scores, positive):
    """Every pair of a positive and a negative."""
    won = pairs = 0
    for s, is_positive in zip(scores, positive, strict=True):
        for other, other_positive in zip(scores, positive, strict=True):
            if is_positive and not other_positive:
                pairs += 1
                won += 1.0 if s > other else 0.5 if s == other else 0.0
    return won / pairs if pairs else math.nan


def average_precision(scores, positive):
    """Every threshold: those at or above it are predicted."""
    total = sum(positive)
    if not total:
        return math.nan
    value = recall_before = 0.0
    for threshold in sorted(set(scores), reverse=True):
        chosen = [p for s, p in zip(scores, positive, strict=True) if s >= threshold]
        precision, recall = sum(chosen) / len(chosen), sum(chosen) / total
        value += precision * (recall - recall_before)
        recall_before = recall
    return value


@st.composite
def binary(draw):
    size = draw(st.integers(1, 25))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    levels = draw(st.sampled_from([2, 4, 1000]))
    return rng.integers(0, levels, size) / levels, rng.integers(0, 2, size)


@pytest.mark.parametrize("name, formula", [("ROCAUC", auc), ("AveragePrecision", average_precision)])
@given(pair=binary())
@quick
def test_binary(name, formula, pair):
    scores, target = pair
    want = formula(scores.tolist(), target.astype(bool).tolist())
    metric = getattr(metrics, name)
    assert metric()(scores, target) == pytest.approx(want, nan_ok=True)
    assert metric()(wf.tensor(scores).logit(eps=1e-9), wf.tensor(target)) == pytest.approx(want, nan_ok=True)
    both = np.stack([-scores, scores], axis=1)
    assert metric()(both, target) == pytest.approx(want, nan_ok=True)
    # Batch by batch, and merged, it is the same number.
    apart, other = metric(), metric()
    apart.update(scores[::2], target[::2])
    if scores[1::2].size:
        other.update(scores[1::2], target[1::2])
    assert apart.merge(other).compute() == pytest.approx(want, nan_ok=True)


@pytest.mark.parametrize("name, formula", [("ROCAUC", auc), ("AveragePrecision", average_precision)])
@given(seed=st.integers(0, 9999))
@settings(max_examples=25, deadline=None)
def test_one_class_against_the_rest(name, formula, seed):
    rng = np.random.default_rng(seed)
    scores, target = rng.integers(0, 5, (12, 3)) / 5, rng.integers(0, 3, 12)
    each = [formula(scores[:, k].tolist(), (target == k).tolist()) for k in range(3)]
    metric = getattr(metrics, name)
    np.testing.assert_allclose(metric(average="none")(scores, target).numpy(), each)
    defined = [k for k in range(3) if not math.isnan(each[k])]
    assert metric()(scores, target) == pytest.approx(np.mean([each[k] for k in defined]))
    weights = [sum(target == k) for k in defined]
    assert metric(average="weighted")(scores, target) == pytest.approx(
        np.average([each[k] for k in defined], weights=weights)
    )


def test_known_values():
    scores, target = wf.tensor([0.1, 0.4, 0.35, 0.8]), wf.tensor([0, 0, 1, 1])
    assert metrics.ROCAUC()(scores, target) == 0.75
    assert metrics.AveragePrecision()(scores, target) == pytest.approx(0.8333333333)
    assert metrics.ROCAUC()(wf.full((4,), 0.5), target) == 0.5
    assert metrics.AveragePrecision()(wf.full((4,), 0.5), target) == 0.5
    assert metrics.ROCAUC()(-scores, 1 - target) == 0.75


def test_one_kind_of_target_only():
    assert math.isnan(metrics.ROCAUC()([0.2, 0.3], [1, 1])) and math.isnan(metrics.ROCAUC()([0.2, 0.3], [0, 0]))
    assert metrics.AveragePrecision()([0.2, 0.3], [1, 1]) == 1.0
    assert math.isnan(metrics.AveragePrecision()([0.2, 0.3], [0, 0]))


def test_state_goes_on():
    metric = metrics.ROCAUC(ignore_index=-1)
    metric.update([0.1, 0.4, 0.3], [0, 0, -1])
    resumed = metrics.ROCAUC(ignore_index=-1)
    resumed.load_state_dict(metric.state_dict())
    assert resumed.state_dict()["scores"].dtype is wf.float64
    resumed.update([0.35, 0.8], [1, 1])
    assert resumed.compute() == 0.75
    assert metric.compute() != metric.compute()  # one kind of target so far


def test_large_counts_do_not_overflow():
    size = 200_000
    scores = np.arange(size) / size
    assert metrics.ROCAUC()(scores, np.arange(size) >= size // 2) == 1.0


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda: metrics.ROCAUC()([0.1, math.nan], [0, 1]), ArgumentError, "1 of 2 scores are NaN"),
        (lambda: metrics.ROCAUC()([0.1, 0.2], [0, 2]), ArgumentError, "labels are 0 and 1"),
        (lambda: metrics.ROCAUC()(wf.ones(2, 3), [0, 3]), ArgumentError, "label 3, but labels are 0 to 2"),
        (lambda: metrics.ROCAUC()(wf.ones(2, 3), [0]), ShapeError, "do not go with"),
        (lambda: metrics.ROCAUC(average="micro"), ArgumentError, "macro, weighted or none"),
    ],
)
def test_what_makes_no_sense_is_said_in_a_sentence(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_batches_of_another_kind_are_refused_at_once():
    metric = metrics.ROCAUC()
    metric.update([0.1, 0.2], [0, 1])
    with pytest.raises(ArgumentError, match="one score for each target, this one has scores of 3 classes"):
        metric.update(wf.ones(2, 3), [0, 1])
    assert metric.compute() == 1.0
