"""The classification report: its numbers, its 80 columns, and what it warns about."""

import json

import numpy as np
import pytest

import wayfare as wf
from wayfare import metrics
from wayfare.errors import ArgumentError

report = metrics.classification_report


def rare(found=3, rows=1250, positives=25, false_alarms=0):
    """A rare class of which only some are found."""
    target = np.zeros(rows, int)
    target[:positives] = 1
    preds = np.zeros(rows, int)
    preds[:found] = 1
    preds[rows - false_alarms :] = 1
    return preds, target


def test_numbers():
    preds, target = [0, 1, 2, 2, 1, 0], [0, 1, 1, 2, 1, 2]
    made = report(preds, target, names=["a", "b", "c"])
    assert made.accuracy == pytest.approx(4 / 6) and made.baseline == 0.5 and made.majority == "b"
    assert made.precision == pytest.approx([0.5, 1.0, 0.5]) and made.recall == pytest.approx([1.0, 2 / 3, 0.5])
    assert made.f1 == pytest.approx([2 / 3, 0.8, 0.5]) and made.support == [1, 3, 2]
    assert made.macro["f1"] == pytest.approx((2 / 3 + 0.8 + 0.5) / 3)
    assert made.weighted["precision"] == pytest.approx((0.5 + 3 + 1) / 6)
    assert made.confusion == [[1, 0, 0], [0, 2, 1], [1, 0, 1]]
    assert made.warnings == []
    plain = json.loads(json.dumps(made.to_dict()))
    assert plain["classes"]["b"] == {"precision": 1.0, "recall": pytest.approx(2 / 3), "f1": 0.8, "support": 3}
    assert plain["total"] == 6 and plain["macro"] == made.macro


def test_text():
    text = str(report([0, 1, 2, 2, 1, 0], [0, 1, 1, 2, 1, 2], names=["a", "b", "c"])).splitlines()
    assert text[0].split() == ["class", "precision", "recall", "f1", "support"]
    assert text[3].split() == ["b", "1.000", "0.667", "0.800", "3"]
    assert text[-1] == "accuracy 0.667, always answering 'b' 0.500"
    assert len({len(line) for line in text[:8]}) == 1


def test_a_high_accuracy_with_a_class_that_is_missed_is_flagged():
    made = report(*rare(), names=["ok", "fraud"])
    assert made.accuracy == pytest.approx(0.9824)
    (warning,) = made.warnings
    for words in ("98.2% misleads", "'fraud'", "only 3 of 25", "recall 12%", "always answering 'ok'", "98% of the"):
        assert words in warning, words
    assert "! " + warning in " ".join(str(made).split())


def test_a_good_classifier_is_not_flagged():
    assert report(*rare(found=24, false_alarms=2)).warnings == []
    assert report([0, 1, 0, 1], [0, 1, 0, 1]).warnings == []


def test_a_low_accuracy_misleads_nobody():
    target = np.repeat([0, 1, 2], 10)
    preds = np.r_[np.zeros(10, int), np.repeat([0, 1], [6, 4]), np.repeat([1, 2], [5, 5])]
    made = report(preds, target)
    assert made.accuracy < 0.75 and made.recall[1] == 0.4 and made.warnings == []


def test_classes_never_predicted():
    made = report([0, 0, 1, 1, 0], [0, 2, 1, 1, 0], names=["a", "b", "c"])
    assert "Never predicted, though in the targets: 'c' (once)." in made.warnings
    many = report(np.zeros(60, int), np.repeat(np.arange(6), 10))
    assert any("'1' (10 times), '2' (10 times), '3' (10 times) and 2 more" in warning for warning in many.warnings)


def test_no_better_than_the_baseline():
    made = report([0, 1, 1, 1], [0, 0, 0, 1], names=["a", "b"])
    assert made.warnings == ["The accuracy 50% is no better than the 75% of always answering 'a'."]
    lazy = report(*rare(found=0), names=["ok", "fraud"])
    assert len(lazy.warnings) == 3 and "recall 0%" in lazy.warnings[0]


def test_many_missed_classes_are_not_all_named():
    target = np.r_[np.zeros(900, int), np.repeat(np.arange(1, 7), 10)]
    made = report(np.zeros(960, int), target)
    assert sum("misleads" in w for w in made.warnings) == 3
    assert "3 more classes have a recall below 50%." in made.warnings


def test_one_class_only():
    (warning,) = report([0, 0, 1], [0, 0, 0], names=["a", "b"]).warnings
    assert warning.startswith("Every target is 'a'")


def test_shares_that_only_look_like_all_or_nothing():
    made = report(*rare(found=1, rows=100_000, positives=20), names=["ok", "bad"])
    assert "over 99.9% misleads" in made.warnings[0]


def test_80_columns():
    names = [f"a class whose name does not want to come to its end, number {k}" for k in range(12)]
    target = np.r_[np.zeros(900, int), np.repeat(np.arange(1, 12), 10)]
    made = report(np.zeros(1010, int), target, names=names)
    assert max(map(len, str(made).splitlines())) <= 80
    assert max(map(len, made.confusion_table().splitlines())) <= 80
    assert made.confusion_table().splitlines()[1].split()[-1] == "0"


def test_forms_of_input():
    scores = wf.tensor([[2.0, 1.0], [0.0, 1.0], [0.5, 0.1]])
    assert report(scores, [0, 1, 1]).accuracy == pytest.approx(2 / 3)
    assert report(wf.tensor([0.2, 0.9, 0.4]), [0, 1, 1]).support == [1, 2]
    assert report(wf.tensor([-2.0, 0.9, -0.4]), [0, 1, 1], logits=True).accuracy == pytest.approx(2 / 3)
    assert report([0, 1, 1], [0, 1, -100], ignore_index=-100).accuracy == 1.0
    assert repr(report([0, 1], [0, 1])) == "ClassificationReport(2 classes, 2 targets, accuracy 1.000, 0 warnings)"


def test_a_class_without_targets_has_no_part_in_the_means():
    made = report([0, 1, 0], [0, 1, 1], names=["a", "b", "c"])
    assert made.support == [1, 2, 0] and made.macro["recall"] == pytest.approx(0.75)


def test_sentences():
    with pytest.raises(ArgumentError, match="no target to report on"):
        report([], [])
    with pytest.raises(ArgumentError, match="labels are 0 to 1"):
        report([0, 2], [0, 1], names=["a", "b"])
