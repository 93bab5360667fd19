"""What the numbers of a run say: each trend is told from made-up histories whose trend is known."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wayfare.see.report.observations import epoch_notes, observe
from wayfare.train import History


def records(loss, validation=None, **more):
    found = [{"epoch": at + 1, "loss": value} for at, value in enumerate(loss)]
    for name, values in {"validation loss": validation, **more}.items():
        for record, value in zip(found, values or (), strict=False):
            record[name.replace("_", " ")] = value
    return found


def kinds(*given, **more):
    return [each.kind for each in observe(records(*given, **more))]


FALLING = [1 / (at + 1) for at in range(10)]
FLAT = [2.0, 1.2, 1.0, 0.9, *[0.9 + 0.001 * (-1) ** at for at in range(12)]]


@pytest.mark.parametrize(
    ("loss", "validation", "kind"),
    [
        (FALLING, None, "falling"),
        (FALLING, FALLING, "falling"),
        (FLAT, None, "plateau"),
        (FLAT, FLAT, "plateau"),
        ([1.0, 0.8, 0.6, 0.4, 0.2, 0.1], [1.0, 0.9, 0.85, 0.9, 1.0, 1.2], "overfitting"),
        ([1.0, 1.2, 1.6, 2.4, 4.0, 7.0], None, "diverging"),
        ([1.0, 0.5, 0.3, 0.3, 0.5, 0.9], None, "diverging"),
        ([0.7, 0.7, 0.7, 0.7, 0.7], None, "stuck"),
        ([0.693, 0.692, 0.694, 0.693, 0.693], [0.69, 0.69, 0.69, 0.69, 0.69], "stuck"),
        ([1.0, 0.5, math.nan], None, "nan"),
        ([1.0, math.inf, 0.5], None, "nan"),
        ([1.0], None, "few"),
        ([1.0, 0.5], [1.0, 2.0], "few"),
        ([], None, "empty"),
    ],
)  # fmt: skip
def test_each_trend_is_told(loss, validation, kind):
    assert kinds(loss, validation)[0] == kind


def test_a_falling_training_loss_beside_a_flat_validation_is_no_good_sign():
    falling = [1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3]
    assert kinds(falling, [1.0, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8]) == ["plateau", "apart"]


def test_one_unlucky_epoch_is_not_overfitting():
    assert "overfitting" not in kinds([1.0, 0.8, 0.6, 0.5, 0.4], [1.0, 0.9, 0.8, 0.7, 0.75])
    assert "overfitting" not in kinds([1.0, 0.8, 0.6, 0.5, 0.4, 0.3], [1.0, 0.9, 0.8, 0.799, 0.8, 0.8])


def test_overfitting_names_the_better_epoch_and_both_losses():
    (found,) = observe(records([1.0, 0.8, 0.6, 0.4, 0.2], [1.0, 0.9, 1.0, 1.1, 1.3]))
    assert not found.good
    for part in ("since epoch 2", "0.9 to 1.3", "0.8 to 0.2", "KeepBest"):
        assert part in found.sentence


def test_a_loss_near_zero_that_wobbles_is_a_plateau():
    assert kinds([1.0, 0.1, 1e-6, 3e-6, 1e-6, 2e-6, 1e-6, 2e-6]) == ["plateau"]


def test_a_negative_loss_falls_too():
    assert kinds([-1.0, -2.0, -3.0, -4.0]) == ["falling"]
    assert kinds([-4.0, -3.0, -2.0, -1.0]) == ["diverging"]


def test_a_gap_is_told_of_shares_only():
    given = {"acc": [0.5, 0.9, 0.99], "validation acc": [0.5, 0.6, 0.7], "error": [9.0, 8.0, 7.0],
             "validation error": [1.0, 1.0, 1.0]}  # fmt: skip
    found = [each for each in observe(records([1.0, 0.5, 0.3], **given)) if each.kind == "gap"]
    assert len(found) == 1 and "99.0% in training and 70.0%" in found[0].sentence and "29 points" in found[0].sentence


def test_history_tells_how_it_ended():
    history = History(records(FALLING))
    history.stopped, history.interrupted = "validation loss has not improved", True
    assert [each.kind for each in history.observations()] == ["falling", "interrupted", "stopped"]


def test_scores_of_several_numbers_and_missing_losses_are_left_alone():
    assert kinds([1.0, 0.9, 0.8], F1=[[0.1, 0.2]] * 3) == ["falling"]
    assert observe([{"epoch": 1, "score": 3.0}]) == []


def test_notes_of_epochs():
    assert epoch_notes(records([1.0, 0.5, 0.75, 0.6, 0.4])) == [
        "first", "best so far, -50.0%", "jumped up by 50%; not better", "not better for 2 epochs",
        "best so far, -20.0%",
    ]  # fmt: skip
    assert epoch_notes(records([1.0, math.nan])) == ["first", "not a number"]
    both = epoch_notes(records([1.0, 0.9], [1.0, 1.1]))
    assert both[1] == "not better; training fell, validation rose"
    assert epoch_notes([]) == []


def test_notes_name_a_step_of_the_learning_rate():
    given = records([1.0, 0.9, 0.8])
    for record, rate in zip(given, [0.1, 0.1, 0.01], strict=True):
        record["learning rate"] = rate
    assert epoch_notes(given)[1:] == ["best so far, -10.0%", "best so far, -11.1%; learning rate 0.01"]
    for record, rate in zip(given, [0.1, 0.04, 0.01], strict=True):
        record["learning rate"] = rate
    assert [("learning rate" in note) for note in epoch_notes(given)] == [False, True, False]


# Curves whose straight line through the last epochs says one thing and the best epoch another.
SPIKED = [1.0, 0.8, 0.6, 0.5, 0.42, 0.40, 0.70, 0.60, 0.50, 0.45]
DROPPING = [1.0, 0.9, 0.8, 0.7, 0.6, 0.55, 0.5, 0.45, 0.4, 0.35]


@pytest.mark.parametrize("validation", [SPIKED, [*SPIKED[:-1], 0.401], [0.9, 0.3, 0.8, 0.7, 0.6, 0.5]])
def test_a_loss_that_has_not_improved_for_epochs_is_not_still_falling(validation):
    training = DROPPING[: len(validation)]
    said = observe(records(training, validation))
    best = validation.index(min(validation)) + 1
    assert "falling" not in [each.kind for each in said]
    assert f"since epoch {best}" in said[0].sentence and f"{min(validation):.4g}" in said[0].sentence


def test_a_training_loss_alone_is_judged_by_its_best_epoch_too():
    assert kinds([1.0, 0.5, 0.50, 0.62, 0.58, 0.55])[0] != "falling"
    assert kinds([1.0, 0.9, 0.7, 0.75, 0.6]) == ["falling"]  # one worse epoch on the way down
    assert kinds([1.0, 0.9, 0.7, 0.6, 0.61]) == ["falling"]  # the last one is no turn yet


@pytest.mark.parametrize(("loss", "validation"), [
    ([1.0, 0.9, 0.8, 0.8, 0.8, 0.8], [1.0, 0.5, 1.1, 1.1, 1.1, 1.1]),
    ([1.0, 1.0, 1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.2, 1.2, 1.2, 1.2]),
    ([1.0, 0.5, 0.58, 0.58, 0.58, 0.58], None),
])  # fmt: skip
def test_what_has_gone_up_has_not_come_down_and_has_moved(loss, validation):
    sentence = observe(records(loss, validation))[0].sentence
    assert "come down" not in sentence and "hardly moved" not in sentence and "since epoch 2" in sentence.replace(
        "since epoch 1:", "since epoch 2:")  # fmt: skip


def test_a_validation_loss_that_creeps_down_is_not_said_to_stand_still():
    creeping = [1.0, 0.5, *(0.5 * 0.998**k for k in range(1, 9))]
    assert "apart" not in kinds(DROPPING, creeping)


@given(st.lists(st.floats(0.01, 10), min_size=3, max_size=14))
def test_still_falling_means_a_recent_best(values):
    for each in observe(records(values, values)):
        if each.kind == "falling":
            assert len(values) - 1 - values.index(min(values)) < 2
        if "come down" in each.sentence:
            assert values[-1] < values[0]
