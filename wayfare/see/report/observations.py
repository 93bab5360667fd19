"""Observations about a training run from its numbers: falling, a plateau, overfitting, diverging."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wayfare.core.format import counted

__all__ = ["Observation", "epoch_notes", "observe"]

FEWEST = 3  # epochs from which on a trend can be told from chance
TREND = 0.01  # a change of this share of the level over the last epochs is a trend
OVERFIT = 0.02  # the validation loss has risen by this share above its best
PATIENCE = 2  # this many epochs without a better one are not chance
SPIKE = 0.25  # a loss that rises by this share from one epoch to the next
GAP = 0.1  # a score in training that is so much higher than in validation

Records = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Observation:
    """A sentence about a run. `kind` is one word, `good` whether that is as it should be."""

    kind: str
    sentence: str
    good: bool = False

    def __str__(self) -> str:
        return self.sentence


def observe(records: Records, stopped: str = "", interrupted: bool = False) -> list[Observation]:
    """What the records of a run's epochs say about it, the most important first."""
    if not records:
        return [Observation("empty", "No epoch has been recorded.")]
    loss, held_out = _curve(records, "loss"), _curve(records, "validation loss")
    found = [*_not_numbers("training", loss), *_not_numbers("validation", held_out)]
    if loss and all(map(math.isfinite, loss)):
        found += _trend(loss, held_out)
    found += _gap(records)
    if interrupted:
        found.append(Observation("interrupted", f"The run was interrupted after epoch {len(records)}."))
    if stopped:
        found.append(Observation("stopped", f"The run was stopped after epoch {len(records)}: {stopped}.", good=True))
    return found


def _curve(records: Records, name: str) -> list[float]:
    """The values of a score, epoch after epoch; nothing if it was not recorded throughout."""
    values = [record.get(name) for record in records]
    numbers = [float(v) for v in values if isinstance(v, (int, float))]
    return numbers if len(numbers) == len(values) else []


def _not_numbers(which: str, values: list[float]) -> list[Observation]:
    at = next((epoch for epoch, value in enumerate(values, start=1) if not math.isfinite(value)), None)
    if at is None:
        return []
    return [Observation("nan", f"The {which} loss is {values[at - 1]} in epoch {at}: lower the learning rate, clip the "
                        "gradients, or find the op with wf.autograd.detect_anomaly().")]  # fmt: skip


def _trend(loss: list[float], held_out: list[float]) -> list[Observation]:
    """Where the losses are going."""
    if len(loss) < FEWEST:
        few = f"{counted(len(loss), 'epoch')} {'are' if len(loss) > 1 else 'is'} too few to tell a trend."
        return [Observation("few", few)]
    window = _window(len(loss))
    share = _recent_change(loss, window)
    finite = bool(held_out) and all(map(math.isfinite, held_out))
    overfit = _overfitting(loss, held_out) if finite else []
    if loss[-1] > loss[0] + TREND * abs(loss[0]) and share > TREND:
        return [Observation("diverging", f"Diverging: the training loss rose from {loss[0]:.4g} to {loss[-1]:.4g}. "
                            "Lower the learning rate, or clip the gradients (clip=1.0).")]  # fmt: skip
    if share > TREND and loss[-1] > min(loss) + SPIKE * abs(min(loss)):
        best = loss.index(min(loss)) + 1
        return [Observation("diverging", f"The training loss has risen since epoch {best}, from {min(loss):.4g} to "
                            f"{loss[-1]:.4g}: lower the learning rate, or clip the gradients (clip=1.0).")]  # fmt: skip
    if overfit:
        return overfit
    span = f"over the last {counted(window, 'epoch')}"
    # With data held out, what counts is whether the loss there still falls.
    watched, which = (held_out, "validation") if finite else (loss, "training")
    change = _recent_change(watched, window)
    best = watched.index(min(watched))
    since = len(watched) - 1 - best
    # A loss that has not improved for some epochs is not falling, even if a line through the last ones is: after a
    # jump it only recovers. One epoch without improvement is chance.
    stands = since >= PATIENCE
    if change < -TREND and not stands:
        return [Observation("falling", f"Still falling: the {which} loss changed by {change:+.1%} {span}, so more "
                            "epochs may help.", good=True)]  # fmt: skip
    if stands and watched[-1] - watched[best] > TREND * _scale(watched[best], watched):
        return [Observation("worse", f"The {which} loss has not improved since epoch {best + 1}: it was "
                            f"{watched[best]:.4g} then and is {watched[-1]:.4g} now, {counted(since, 'epoch')} later. "
                            "Lower the learning rate, or keep the weights of that epoch: wf.train.KeepBest or "
                            "EarlyStopping.")]  # fmt: skip
    if watched[0] - watched[best] <= TREND * abs(watched[0]):
        return [Observation("stuck", f"The {which} loss has hardly moved since the first epoch ({watched[0]:.4g} to "
                            f"{watched[-1]:.4g}): try another learning rate, and overfit=1 to see whether the model "
                            "can learn one batch.")]  # fmt: skip
    how = (f"has not improved since epoch {best + 1} ({watched[best]:.4g})" if stands else
           f"changed by {change:+.1%} {span}")  # fmt: skip
    down = (f"it has come down from {watched[0]:.4g} to {watched[-1]:.4g}" if watched[-1] < watched[0] else
            f"it was {watched[0]:.4g} in the first epoch and {watched[best]:.4g} in epoch {best + 1}")  # fmt: skip
    found = [Observation("plateau", f"A plateau: the {which} loss {how}; {down}.", good=True)]
    if which == "validation" and share < -TREND and stands:
        found.append(Observation("apart", f"The training loss still falls ({share:+.1%} {span}) while the validation "
                                 "loss does not: more epochs are likely to fit noise."))  # fmt: skip
    return found


def _overfitting(loss: list[float], held_out: list[float]) -> list[Observation]:
    """Is the validation loss rising while the training loss falls?"""
    best = held_out.index(min(held_out))
    after = len(held_out) - 1 - best
    risen = held_out[-1] - held_out[best]
    if after < PATIENCE or risen <= OVERFIT * abs(held_out[best]) or loss[-1] >= loss[best]:
        return []
    if _mean(held_out[best + 1 :]) <= held_out[best] + OVERFIT / 2 * abs(held_out[best]):
        return []
    return [Observation("overfitting", f"Overfitting since epoch {best + 1}: the validation loss rose from "
                        f"{held_out[best]:.4g} to {held_out[-1]:.4g} while the training loss fell from "
                        f"{loss[best]:.4g} to {loss[-1]:.4g}. The weights of epoch {best + 1} are better: "
                        "wf.train.KeepBest or EarlyStopping.")]  # fmt: skip


def _gap(records: Records) -> list[Observation]:
    """Scores that are much higher in training than in validation."""
    last = records[-1]
    found = []
    for name, value in last.items():
        other = last.get(f"validation {name}")
        # Only for scores from 0 to 1, such as an accuracy: others have no common scale.
        if name == "loss" or not isinstance(value, float) or not isinstance(other, float):
            continue
        if 0 <= other <= 1 and 0 <= value <= 1 and value - other > GAP:
            found.append(Observation("gap", f"{name} is {value:.1%} in training and {other:.1%} in validation, "
                                     f"{100 * (value - other):.0f} points lower: the model has memorised some "
                                     "examples."))  # fmt: skip
    return found


def _window(epochs: int) -> int:
    """How many of the last epochs tell where things are going."""
    return max(FEWEST, math.ceil(epochs / 4))


def _recent_change(values: list[float], window: int) -> float:
    """The change over the last epochs along a straight line through them, as a share of their level."""
    recent = values[-window:]
    middle, level = (len(recent) - 1) / 2, _mean(recent)
    below = sum((at - middle) ** 2 for at in range(len(recent)))
    slope = sum((at - middle) * (value - level) for at, value in enumerate(recent)) / below
    scale = _scale(level, values)
    return slope * (len(recent) - 1) / scale if scale else 0.0


def _scale(level: float, values: list[float]) -> float:
    """What a change is measured by: the level, if the loss has not come down to nothing."""
    return max(abs(level), 1e-3 * max(map(abs, values)))


def epoch_notes(records: Records) -> list[str]:
    """A short note on each epoch for its row of a table; empty where there is nothing to note."""
    loss, held_out = _curve(records, "loss"), _curve(records, "validation loss")
    watched = held_out or loss
    notes: list[list[str]] = [[] for _ in records]
    best, since = math.inf, 0
    for epoch, value in enumerate(watched):
        if not math.isfinite(value):
            notes[epoch].append("not a number")
            continue
        if epoch and math.isfinite(watched[epoch - 1]) and value > watched[epoch - 1] + SPIKE * abs(watched[epoch - 1]):
            notes[epoch].append(f"jumped up by {value / watched[epoch - 1] - 1:.0%}" if watched[epoch - 1] > 0 else
                                "jumped up")  # fmt: skip
        if value < best:
            gain = (best - value) / abs(best) if math.isfinite(best) and best else 0.0
            notes[epoch].append(f"best so far, {-gain:+.1%}" if gain else "best so far" if epoch else "first")
            best, since = value, 0
        else:
            since += 1
            notes[epoch].append(f"not better for {counted(since, 'epoch')}" if since > 1 else "not better")
        if held_out and epoch and since and math.isfinite(loss[epoch] if loss else math.nan):
            if loss[epoch] < loss[epoch - 1] and value > watched[epoch - 1]:
                notes[epoch].append("training fell, validation rose")
    rates = [record.get("learning rate") for record in records]
    for epoch in range(1, len(records)):
        now, before = rates[epoch], rates[epoch - 1]
        # A smooth schedule changes the rate in every epoch; a note is for a step after a level stretch.
        level = epoch == 1 or rates[epoch - 2] == before
        if isinstance(now, float) and isinstance(before, float) and level and 0 < now < before / 1.9:
            notes[epoch].append(f"learning rate {now:.2g}")
    return ["; ".join(note) for note in notes]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
