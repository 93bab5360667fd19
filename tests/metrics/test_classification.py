"""Metrics of classes against formulas written as loops."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import wayfare as wf
from wayfare import metrics
from wayfare.errors import ArgumentError, ArgumentTypeError, DTypeError, OperationError, ShapeError

quick = settings(max_examples=40, deadline=None)


@st.composite
def labels(draw, classes=4, smallest=1):
    """Predicted and true class numbers."""
    size = draw(st.integers(smallest, 30))
    seed = draw(st.integers(0, 2**16))
    rng = np.random.default_rng(seed)
    return rng.integers(0, classes, size), rng.integers(0, classes, size)


def counted(preds, target, k):
    """True and false, positives and negatives of class k, by a loop."""
    tp = fp = fn = tn = 0
    for p, t in zip(preds.tolist(), target.tolist(), strict=True):
        if p == k and t == k:
            tp += 1
        elif p == k:
            fp += 1
        elif t == k:
            fn += 1
        else:
            tn += 1
    return tp, fp, fn, tn


FORMULAS = {
    "Precision": lambda tp, fp, fn, tn: (tp, tp + fp),
    "Recall": lambda tp, fp, fn, tn: (tp, tp + fn),
    "F1": lambda tp, fp, fn, tn: (2 * tp, 2 * tp + fp + fn),
    "Specificity": lambda tp, fp, fn, tn: (tn, tn + fp),
}


def divided(above, below, otherwise=0.0):
    return above / below if below else otherwise


@given(labels())
@quick
def test_accuracy_and_confusion(pair):
    preds, target = pair
    right = sum(p == t for p, t in zip(preds, target, strict=True))
    assert metrics.Accuracy()(preds, target) == right / len(target)
    counts = metrics.ConfusionMatrix(num_classes=4)(preds, target)
    assert counts.dtype is wf.int64 and tuple(counts.shape) == (4, 4)
    for t in range(4):
        for p in range(4):
            assert counts[t, p].item() == sum((target == t) & (preds == p))


@pytest.mark.parametrize("name", FORMULAS)
@given(pair=labels())
@quick
def test_averages(name, pair):
    preds, target = pair
    metric, fraction = getattr(metrics, name), FORMULAS[name]
    each = [counted(preds, target, k) for k in range(4)]
    values = [divided(*fraction(*c)) for c in each]
    seen = [k for k in range(4) if k in preds or k in target]
    support = [sum(target == k) for k in range(4)]

    got = metric(average="none", num_classes=4)(preds, target)
    for k in range(4):
        assert math.isnan(got[k].item()) if k not in seen else got[k].item() == pytest.approx(values[k])
    macro = sum(values[k] for k in seen) / len(seen)
    assert metric(average="macro", num_classes=4)(preds, target) == pytest.approx(macro)
    weighted = sum(v * s for v, s in zip(values, support, strict=True)) / sum(support)
    assert metric(average="weighted", num_classes=4)(preds, target) == pytest.approx(weighted)
    pooled = divided(*(sum(x) for x in zip(*(fraction(*c) for c in each), strict=True)))
    assert metric(average="micro", num_classes=4)(preds, target) == pytest.approx(pooled)


@pytest.mark.parametrize("name", FORMULAS)
@given(pair=labels(classes=2))
@quick
def test_binary(name, pair):
    preds, target = pair
    want = divided(*FORMULAS[name](*counted(preds, target, 1)), 0.25)
    assert getattr(metrics, name)(zero_division=0.25)(preds, target) == pytest.approx(want)


@pytest.mark.parametrize("metric", [
    metrics.Accuracy(num_classes=4), metrics.F1(average="macro", num_classes=4), metrics.ConfusionMatrix(num_classes=4),
    metrics.Recall(average="none"), metrics.Specificity(average="weighted"), metrics.Accuracy(ignore_index=2),
], ids=repr)  # fmt: skip
@given(pair=labels(smallest=3), cut=st.integers(1, 2))
@quick
def test_batches_add_up_and_merge(metric, pair, cut):
    preds, target = pair
    whole = metric.copy()
    whole.update(preds, target)
    first, second = metric.copy(), metric.copy()
    assert np.array_equal(first(preds[:cut], target[:cut]), first.compute(), equal_nan=True)
    second.update(preds[cut:], target[cut:])
    merged = first.copy().merge(second)
    first.update(preds[cut:], target[cut:])
    resumed = metric.copy()
    resumed.load_state_dict(first.state_dict())
    for one in (merged, first, resumed):
        np.testing.assert_array_equal(np.asarray(one.compute()), np.asarray(whole.compute()))
    first.reset()
    with pytest.raises(OperationError, match="nothing was counted yet"):
        first.compute()


def test_forms_of_input():
    target = wf.tensor([1, 0, 2])
    scores = wf.tensor([[0.1, 0.8, 0.1], [0.2, 0.3, 0.5], [0.0, 0.1, 0.9]], requires_grad=True)
    assert metrics.Accuracy()(scores, target) == pytest.approx(2 / 3)
    assert metrics.Accuracy()(wf.tensor([1, 2, 2]), target) == pytest.approx(2 / 3)
    assert metrics.Accuracy()([1, 2, 2], [1.0, 0.0, 2.0]) == pytest.approx(2 / 3)
    # Pixels: [N, classes, height]; and the classes last.
    many = wf.stack([scores, scores])
    assert metrics.Accuracy()(many.transpose(1, 2), wf.stack([target, target])) == pytest.approx(2 / 3)
    assert metrics.Accuracy(class_dim=-1)(many, wf.stack([target, target])) == pytest.approx(2 / 3)
    assert metrics.Accuracy(ignore_index=0)(scores, target) == 1.0


def test_one_score_for_each_target():
    target = wf.tensor([1, 0, 1, 0])
    chances = wf.tensor([0.9, 0.2, 0.4, 0.5])
    assert metrics.Accuracy()(chances, target) == 0.5  # 0.5 itself counts as class 1
    assert metrics.Accuracy(threshold=0.3)(chances, target) == 0.75
    assert metrics.Accuracy()(chances.unsqueeze(1), target) == 0.5
    assert metrics.Accuracy()(chances, target.float()) == 0.5
    assert metrics.Accuracy(logits=True)(chances.logit(), target) == 0.5
    assert metrics.Accuracy(logits=True, threshold=0.3)(chances.logit(), target) == 0.75
    assert metrics.Accuracy()(chances > 0.45, target == 1) == 0.5
    assert metrics.Accuracy(threshold=0.1)(wf.tensor([0.1]), [1]) == 1.0
    assert metrics.Accuracy(threshold=1.0, logits=True)(wf.tensor([50.0]), [1]) == 0.0
    assert metrics.Accuracy(threshold=0.0, logits=True)(wf.tensor([-50.0]), [1]) == 1.0


def test_nothing_of_the_graph_is_kept():
    x = wf.randn(5, 3, requires_grad=True)
    metric = metrics.Accuracy()
    metric.update(x * 2, wf.zeros(5, dtype=wf.int64))
    assert not any(tensor.requires_grad for tensor in metric.state_dict().values())


def test_all_ignored_is_not_a_number():
    for metric in (metrics.Accuracy(ignore_index=9), metrics.F1(ignore_index=9), metrics.Recall(ignore_index=9),
                   metrics.Precision(average="micro", ignore_index=9), metrics.F1(average="macro", ignore_index=9),
                   metrics.Specificity(average="weighted", ignore_index=9)):  # fmt: skip
        assert math.isnan(metric([0, 1], [9, 9]))
    assert math.isnan(metrics.TopK(1, ignore_index=9)(wf.ones(2, 3), [9, 9]))


def test_classes_may_appear_later():
    metric = metrics.Recall(average="none")
    metric.update([0, 1], [0, 0])
    metric.update([3, 1], [3, 3])
    values = metric.compute().tolist()
    assert values[0] == 0.5 and values[1] == 0.0 and math.isnan(values[2]) and values[3] == 0.5


@given(st.integers(1, 6), st.integers(0, 999), st.booleans())
@quick
def test_top_k(k, seed, ties):
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, 3, (20, 5)).astype(np.float32) if ties else rng.normal(size=(20, 5)).astype(np.float32)
    target = rng.integers(0, 5, 20)
    right = 0
    for row, t in zip(scores, target, strict=True):
        best = sorted(range(5), key=lambda c: (-row[c], c))[:k]
        right += t in best
    assert metrics.TopK(k)(wf.from_numpy(scores), target) == right / 20
    assert metrics.TopK(1)(scores, target) == metrics.Accuracy()(scores, target)
    assert metrics.TopK(3).name == "top_3"


def test_confusion_matrix_prints_a_table():
    metric = metrics.ConfusionMatrix(names=["cat", "dog", "bird"])
    assert str(metric) == repr(metric) == "ConfusionMatrix(num_classes=3, names=['cat', 'dog', 'bird'])"
    metric.update([0, 1, 2, 2, 1], [0, 1, 1, 2, 1])
    assert str(metric).splitlines() == [
        "true \\ pred  cat  dog  bird",
        "cat            1    0     0",
        "dog            0    2     1",
        "bird           0    0     1",
    ]


@pytest.mark.parametrize("name", ["c", "class", "a rather long name"])
def test_a_wide_table_fits_80_columns(name):
    rng = np.random.default_rng(0)
    wide = metrics.ConfusionMatrix(names=[f"{name} {k}" for k in range(40)])
    wide.update(rng.integers(0, 40, 500), rng.integers(0, 40, 500))
    lines = str(wide).splitlines()
    assert 69 <= max(map(len, lines)) <= 80 and lines[-1].endswith("more columns are not shown)")


def test_confusion_matrix_normalised():
    preds, target = [0, 1, 1, 1], [0, 0, 1, 1]

    def made(how):
        return metrics.ConfusionMatrix(normalize=how)(preds, target).tolist()

    assert made("true") == [[0.5, 0.5], [0.0, 1.0]]
    assert made("pred") == [[1.0, pytest.approx(1 / 3)], [0.0, pytest.approx(2 / 3)]]
    assert made("all") == [[0.25, 0.25], [0.0, 0.5]]
    assert math.isnan(metrics.ConfusionMatrix(normalize="true")([0], [0])[1, 0].item())


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda m: m.Accuracy().compute(), OperationError, "nothing was counted yet"),
        (lambda m: m.Accuracy()([2.0, -1.0], [0, 1]), ArgumentError, "from -1 to 2, .*logits=True"),
        (lambda m: m.Accuracy()([[2.0, -1.0]], [[1, 1]]), ArgumentError, "from -1 to 2, .*logits=True"),
        (lambda m: m.Accuracy()([[2.0, -1.0], [0.0, 1.0]], [[0, 1], [1, 0]]), ArgumentError,
         r"look one-hot: give target.argmax\(1\)"),
        (lambda m: m.F1()([[2.0, -1.0]], [[0.0, 1.0]]), ArgumentError, r"look one-hot: give target.argmax\(1\)"),
        (lambda m: m.ConfusionMatrix(class_dim=-1)([[2.0, -1.0]], [[0, 1]]), ArgumentError, r"target.argmax\(-1\)"),
        (lambda m: m.Accuracy()([1, 1], [[0, 1], [1, 0]]), ShapeError, r"look one-hot: give target.argmax\(1\)"),
        (lambda m: m.Accuracy()([0.2, 0.1], [0, 2]), ArgumentError, "labels are 0 and 1, but there is 2"),
        (lambda m: m.Accuracy()(wf.ones(3, 4), [0, 1, 4]), ArgumentError, "label 4, but labels are 0 to 3"),
        (lambda m: m.Accuracy()(wf.ones(3, 4), [0, 1, -1]), ArgumentError, "say ignore_index=-1"),
        (lambda m: m.Accuracy()([1, 1], [0, -1]), ArgumentError, "labels are 0, 1, 2, …"),
        (lambda m: m.Accuracy(num_classes=3)([3], [0]), ArgumentError, "preds has the label 3"),
        (lambda m: m.Accuracy(num_classes=3)(wf.ones(2, 4), [0, 1]), ShapeError, "num_classes is 3, .* 4 classes"),
        (lambda m: m.Accuracy()(wf.ones(3, 4), [0, 1]), ShapeError, r"preds \[3, 4\] do not go with targets \[2\]"),
        (lambda m: m.Accuracy()([1, 2], [1]), ShapeError, r"preds \[2\] do not go with targets \[1\]"),
        (lambda m: m.Accuracy()(wf.ones(3, 5, 4), wf.zeros(3, 5)), ShapeError, "class_dim=-1"),
        (lambda m: m.Accuracy()([math.nan, 0.5], [0, 1]), ArgumentError, "1 of 2 scores are NaN"),
        (lambda m: m.Accuracy()(wf.full((2, 2), math.nan), [0, 1]), ArgumentError, "4 of 4 scores are NaN"),
        (lambda m: m.Accuracy()([1, 2], [0.5, 1]), DTypeError, "must be class numbers, but there is 0.5"),
        (lambda m: m.Accuracy()("a", [0]), ArgumentTypeError, "preds must be a tensor of numbers, not str"),
        (lambda m: m.Accuracy()([[1], [1, 2]], [0]), ArgumentTypeError, "preds must be a tensor of numbers, not list"),
        (lambda m: m.Accuracy(threshold=2), ArgumentError, r"threshold .* it is 2 \(test_classification"),
        (lambda m: m.Accuracy(num_classes=1), ArgumentError, "num_classes must be at least 2"),
        (lambda m: m.F1()(wf.ones(2, 4), [0, 1]), ArgumentError, "'binary' is for two classes, but there are 4"),
        (lambda m: m.F1(average="mean"), ArgumentError, "average must be one of binary, macro"),
        (lambda m: m.TopK(0), ArgumentError, "k must be at least 1"),
        (lambda m: m.TopK(1)([1], [1]), ShapeError, "do not go with"),
        (lambda m: m.Accuracy().merge(m.F1()), ArgumentTypeError, "another Accuracy, not F1"),
        (lambda m: m.Accuracy().merge(m.Accuracy(threshold=0.4)), ArgumentError, r"Accuracy\(threshold=0.4\)"),
        (lambda m: m.Accuracy().load_state_dict({}), ArgumentError, "expected right, total, updates, these are none"),
        (lambda m: m.Accuracy().load_state_dict({"right": wf.ones(2), "total": wf.ones(2), "updates": wf.tensor(1)}),
         ArgumentError, "right must have 0 dimensions, it has 1"),
        (lambda m: m.ConfusionMatrix(names=["a"], num_classes=2), ArgumentError, "as many names, these are 1"),
        (lambda m: m.ConfusionMatrix(normalize="x"), ArgumentError, "normalize must be"),
        (lambda m: m.ConfusionMatrix()([0, 1], [0, 10**9]), ArgumentError, "the label 1000000000 makes 1000000001"),
        (lambda m: m.F1(average="macro")([0, 1], [0, 10**12]), ArgumentError, "say ignore_index=1000000000000"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_said_in_a_sentence(call, error, words):
    with pytest.raises(error, match=words):
        call(metrics)
