"""Made-up data whose truth is known: ten features, of which the answer depends on six.

A row is ten independent standard normal numbers. `FORMULA` gives the log-odds of its label, and the label
is drawn with that probability, so even somebody who knows the formula is sometimes wrong.
The product and the square are out of reach of a model without a hidden layer; x6 … x9 mean nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import wayfare as wf

ROWS = 1_000
FEATURES = 10
TRAIN_ROWS = 800
FORMULA = "1.6·x0 − 1.2·x1 + 0.8·x2 + 2·x3·x4 + 1.5·(x5² − 1)"


@dataclass(frozen=True)
class Split:
    """Some of the rows: features, labels 0 or 1, and the probability that the label is 1."""

    x: wf.Tensor
    y: wf.Tensor
    truth: wf.Tensor

    def accuracy_of(self, answers: wf.Tensor) -> float:
        """The share of rows for which `answers`, a column of booleans, names the label."""
        return float((answers == (self.y > 0.5)).float().mean().item())

    @property
    def ceiling(self) -> float:
        """The accuracy of who knows the formula and gives the likelier label: none does better by skill."""
        return self.accuracy_of(self.truth > 0.5)

    @property
    def baseline(self) -> float:
        """The accuracy of always giving the commoner label: what a model that learnt nothing gets."""
        ones = float(self.y.mean().item())
        return max(ones, 1 - ones)


def make_data() -> tuple[Split, Split]:
    """Draw 1,000 rows from the current random state and part them into 800 to train on and 200 held out."""
    x = wf.randn(ROWS, FEATURES)
    log_odds = (
        1.6 * x[:, 0:1] - 1.2 * x[:, 1:2] + 0.8 * x[:, 2:3]
        + 2 * x[:, 3:4] * x[:, 4:5]
        + 1.5 * (x[:, 5:6] ** 2 - 1)
    )  # fmt: skip
    truth = wf.sigmoid(log_odds)
    y = (wf.rand(ROWS, 1) < truth).float()
    return (
        Split(x[:TRAIN_ROWS], y[:TRAIN_ROWS], truth[:TRAIN_ROWS]),
        Split(x[TRAIN_ROWS:], y[TRAIN_ROWS:], truth[TRAIN_ROWS:]),
    )
