"""The classic pipeline by hand: data, forward pass, loss, gradients, update, and then the same many times.

The model is a network of two layers, 10 → 16 → 1 with tanh between, written in plain tensor operations so
that nothing is hidden.
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

import wayfare as wf
from wayfare.demo.data import FEATURES, FORMULA, Split, make_data
from wayfare.demo.page import Page
from wayfare.nn.functional import binary_cross_entropy_with_logits

HIDDEN = 16
BATCH = 50
LEARNING_RATE = 0.5
# What one nudge of a weight does to the loss, for the check by hand in stage 4: large enough to stand out of
# float32 rounding, small enough that the loss is straight over it.
NUDGE = 1e-2


class Parameters(NamedTuple):
    """What is learnt: two matrices and two rows of offsets."""

    w1: wf.Tensor
    b1: wf.Tensor
    w2: wf.Tensor
    b2: wf.Tensor


def new_parameters() -> Parameters:
    """Small random weights: their spread is 1/sqrt(inputs), so that a layer's outputs start near size one."""
    return Parameters(
        w1=(wf.randn(FEATURES, HIDDEN) / FEATURES**0.5).requires_grad_(),
        b1=wf.zeros(HIDDEN, requires_grad=True),
        w2=(wf.randn(HIDDEN, 1) / HIDDEN**0.5).requires_grad_(),
        b2=wf.zeros(1, requires_grad=True),
    )


def forward(p: Parameters, x: wf.Tensor) -> wf.Tensor:
    """The log-odds that each row's label is 1."""
    hidden = wf.tanh(x @ p.w1 + p.b1)
    return hidden @ p.w2 + p.b2


def loss_of(p: Parameters, x: wf.Tensor, y: wf.Tensor) -> wf.Tensor:
    """How surprised the model is by the labels, on average over the rows."""
    return binary_cross_entropy_with_logits(forward(p, x), y)


def update(p: Parameters, rate: float) -> None:
    """Move every parameter against its gradient, and forget the gradient."""
    with wf.no_grad():
        for parameter in p:
            assert parameter.grad is not None
            parameter.sub_(rate * parameter.grad)
            parameter.grad = None


def train_epoch(p: Parameters, train: Split) -> None:
    """Go once through the training rows, in a new random order, a batch at a time."""
    order = wf.randperm(len(train.x))
    for start in range(0, len(order), BATCH):
        rows = order[start : start + BATCH]
        loss_of(p, train.x[rows], train.y[rows]).backward()
        update(p, LEARNING_RATE)


class Score(NamedTuple):
    """How a model does on a split."""

    loss: float
    accuracy: float


def evaluate(p: Parameters, split: Split) -> Score:
    """Loss and accuracy on a split, without recording a graph."""
    with wf.no_grad():
        logits = forward(p, split.x)
        loss = binary_cross_entropy_with_logits(logits, split.y)
        return Score(float(loss.item()), split.accuracy_of(logits > 0))


def numbers(t: wf.Tensor, count: int = 5) -> str:
    """The first values of a tensor, to read."""
    flat = t.detach().flatten()
    shown = " ".join(f"{value:+.3f}" for value in flat[:count].tolist())
    return shown if flat.numel() <= count else f"{shown} …"


def described(t: wf.Tensor, count: int = 5) -> str:
    """The shape of a tensor and its first values."""
    return f"{list(t.shape)!s:<10} {numbers(t, count)}"


def show_one_step(page: Page, p: Parameters, train: Split) -> None:
    """Take one step of training on all training rows, stopping to look after each stage of it."""
    page.heading("Stage 2 · Forward pass")
    page.say("Plain Python runs line by line; each operation adds a node to the graph.")
    hidden = wf.tanh(train.x @ p.w1 + p.b1)
    logits = hidden @ p.w2 + p.b2
    page.show(
        hidden=described(hidden),
        logits=described(logits),
        sigmoid=described(wf.sigmoid(logits)) + "  (probabilities)",
    )

    page.heading("Stage 3 · Loss")
    page.say("One number: the surprise at the labels. Tossing a coin gets ln 2 = 0.693.")
    loss = binary_cross_entropy_with_logits(logits, train.y)
    before = float(loss.item())
    assert loss.grad_fn is not None
    page.show(loss=f"{before:.4f}", recorded_as=loss.grad_fn.name())

    page.heading("Stage 4 · Gradients")
    page.say("backward() walks the graph from the loss back and fills each weight's .grad.")
    loss.backward()
    rows = []
    for name, parameter in zip(p._fields, p, strict=True):
        assert parameter.grad is not None
        size = float(parameter.grad.norm().item())
        rows.append((name, str(list(parameter.shape)), numbers(parameter.grad, 4), f"{size:.4f}"))
    page.table(("parameter", "shape", "gradient", "length"), rows)
    assert p.b2.grad is not None
    page.say("The same slope by hand: push b2 up and down a little and watch the loss.")
    page.show(backward=f"{p.b2.grad.item():+.5f}", by_hand=f"{slope_by_hand(p, train):+.5f}")

    page.heading("Stage 5 · Update")
    page.say("A step against the gradient, and the same rows surprise the model less.")
    old = numbers(p.w2, 4)
    update(p, LEARNING_RATE)
    with wf.no_grad():
        after = float(loss_of(p, train.x, train.y).item())
    page.show(w2_before=old, w2_after=numbers(p.w2, 4), loss=f"{before:.4f} → {after:.4f}")


def slope_by_hand(p: Parameters, train: Split) -> float:
    """The derivative of the loss by b2 from two runs of the model: the check of what backward() found."""
    with wf.no_grad():
        up = loss_of(p._replace(b2=p.b2 + NUDGE), train.x, train.y)
        down = loss_of(p._replace(b2=p.b2 - NUDGE), train.x, train.y)
        return float((up - down).item()) / (2 * NUDGE)


def show_training(page: Page, p: Parameters, train: Split, held_out: Split, epochs: int) -> Score:
    """Train, and print how the model does as it learns. Returns how it does on the held-out rows."""
    page.heading("Training")
    page.say(f"The same stages {BATCH} rows at a time; an epoch sees each training row once.")
    rows = []
    reported_every = max(1, epochs // 8)
    score = evaluate(p, held_out)
    for epoch in range(1, epochs + 1):
        train_epoch(p, train)
        if epoch % reported_every == 0 or epoch in (1, epochs):
            seen, score = evaluate(p, train), evaluate(p, held_out)
            rows.append((
                str(epoch),
                f"{seen.loss:.4f}", f"{seen.accuracy:.1%}",
                f"{score.loss:.4f}", f"{score.accuracy:.1%}",
            ))  # fmt: skip
    page.table(("epoch", "train loss", "accuracy", "held-out loss", "accuracy"), rows)
    page.show(
        held_out=f"{score.accuracy:.1%} of the rows it never saw",
        baseline=f"{held_out.baseline:.1%}, always giving the commoner label",
        ceiling=f"{held_out.ceiling:.1%}, knowing the formula: the labels are drawn by chance",
    )
    return score


def show_predictions(page: Page, p: Parameters, held_out: Split, count: int = 6) -> None:
    """Print what the model says about a few held-out rows beside the truth."""
    page.heading("Prediction")
    page.say(f"{count} rows it never saw: the model, the formula behind the data, the label.")
    with wf.no_grad():
        said = wf.sigmoid(forward(p, held_out.x[:count]))
    rows = []
    for index, (model, formula, label) in enumerate(
        zip(
            said.flatten().tolist(),
            held_out.truth[:count].flatten().tolist(),
            held_out.y[:count].flatten().tolist(),
            strict=True,
        )
    ):
        answer = int(model > 0.5)
        verdict = "right" if answer == int(label) else "wrong"
        rows.append((str(index), f"{model:.3f}", f"{formula:.3f}", str(answer), str(int(label)), verdict))
    page.table(("row", "model", "formula", "answer", "label", ""), rows)


def show_graph(page: Page, p: Parameters, train: Split) -> None:
    """Print the graph that one step of training records."""
    page.heading("The graph of one step")
    page.say("What was recorded while one batch ran, and what backward() walks:")
    page.listing(str(wf.graph(loss_of(p, train.x[:BATCH], train.y[:BATCH]))))


def run(page: Page, epochs: int = 40, seed: int = 0) -> Score:
    """Run the demo on a page. Returns loss and accuracy on the held-out rows at the end."""
    wf.manual_seed(seed)
    train, held_out = make_data()
    p = new_parameters()

    page.title("Wayfare demo: a small network learns from 1,000 rows of 10 features")
    page.heading("Stage 1 · Data")
    page.say("Ten normal numbers a row; the label is drawn by chance, with log-odds")
    page.say(f"  {FORMULA}  (the rest is noise)")
    page.show(
        x=described(train.x),
        y=described(train.y),
        held_out=f"{list(held_out.x.shape)}  kept aside",
    )
    show_one_step(page, p, train)
    score = show_training(page, p, train, held_out, epochs)
    show_predictions(page, p, held_out)
    show_graph(page, p, train)
    return score


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options of the demo to a parser of the command line."""
    parser.add_argument(
        "--epochs", type=read_count, default=40, metavar="N", help="how often to go through the rows (40)"
    )
    parser.add_argument(
        "--seed", type=read_seed, default=0, metavar="N", help="the seed of data, weights and order (0)"
    )


def read_count(text: str) -> int:
    """Read a count that must be at least one."""
    count = read_int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return count


def read_seed(text: str) -> int:
    """Read a number that a generator takes as its seed."""
    number = read_int(text)
    if not -(2**63) <= number < 2**64:
        raise argparse.ArgumentTypeError(f"{text} does not fit into 64 bits")
    return number


def read_int(text: str) -> int:
    """Read an int, or say in words that it is none."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
