"""The classic pipeline: data, forward pass, loss, gradients, update, and then the same many times by `fit`.

The model is a network of two layers, 10 → 16 → 1 with tanh between.
"""

from __future__ import annotations

import wayfare as wf
from wayfare import nn
from wayfare.cli.demo.data import FEATURES, FORMULA, Split, make_data
from wayfare.cli.demo.page import Page, described, numbers
from wayfare.cli.demo.results import Outcome, Results
from wayfare.cli.demo.shipping import ship
from wayfare.nn.functional import binary_cross_entropy_with_logits
from wayfare.see.report.trace import traced

EPOCHS = 20
HIDDEN = 16
BATCH = 50
LEARNING_RATE = 0.02
# What one nudge of a weight does to the loss, for the check by hand in stage 4: large enough to stand out of
# float32 rounding, small enough that the loss is straight over it.
NUDGE = 1e-2


class Network(nn.Module):
    """Turns a row of features into the log-odds that its label is 1."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(FEATURES, HIDDEN)
        self.squash = nn.Tanh()
        self.output = nn.Linear(HIDDEN, 1)

    def forward(self, x: wf.Tensor) -> wf.Tensor:
        """Rows [rows, features] to log-odds [rows, 1]."""
        log_odds: wf.Tensor = self.output(self.squash(self.hidden(x)))
        return log_odds


def loss_of(model: nn.Module, split: Split) -> wf.Tensor:
    """How surprised the model is by the labels, on average over the rows."""
    return binary_cross_entropy_with_logits(model(split.x), split.y)


def show_one_step(page: Page, model: Network, optimizer: wf.optim.Optimizer, train: Split) -> None:
    """Take one step of training on all training rows, stopping to look after each stage of it."""
    page.heading("Stage 2 · Forward pass")
    page.say("Rows go in, log-odds come out; plain Python runs line by line, and each operation adds a node to the "
             "graph.")  # fmt: skip
    page.listing(str(model.summary(train.x)))
    page.listing("")
    hidden = model.squash(model.hidden(train.x))
    logits = model.output(hidden)
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
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        size = float(parameter.grad.norm().item())
        rows.append((name, str(list(parameter.shape)), numbers(parameter.grad, 4), f"{size:.4f}"))
    page.table(("parameter", "shape", "gradient", "length"), rows)
    bias = model.output.bias
    assert bias is not None
    assert bias.grad is not None
    page.say("The same slope by hand: push output.bias up and down and watch the loss.")
    page.show(backward=f"{bias.grad.item():+.5f}", by_hand=f"{slope_by_hand(model, bias, train):+.5f}")

    page.heading("Stage 5 · Update")
    page.say("A step against the gradient, and the same rows surprise the model less.")
    old = numbers(model.output.weight, 4)
    optimizer.step()
    optimizer.zero_grad()
    with wf.no_grad():
        after = float(loss_of(model, train).item())
    page.show(weight_before=old, weight_after=numbers(model.output.weight, 4), loss=f"{before:.4f} → {after:.4f}")


def slope_by_hand(model: nn.Module, parameter: wf.Tensor, train: Split) -> float:
    """The derivative of the loss by one number from two runs of the model: the check of what backward() found."""
    with wf.no_grad():
        parameter += NUDGE
        up = float(loss_of(model, train).item())
        parameter -= 2 * NUDGE
        down = float(loss_of(model, train).item())
        parameter += NUDGE
    return (up - down) / (2 * NUDGE)


def show_training(
    page: Page, results: Results, model: Network, optimizer: wf.optim.Optimizer, train: Split, held_out: Split,
    epochs: int,
) -> wf.train.History:  # fmt: skip
    """Train, and print how the model does as it learns."""
    page.heading("Training")
    page.say(f"The same stages {BATCH} rows at a time, by wf.train.fit; an epoch sees each row once.")
    history = results.train(
        page, model, wf.data.DataLoader(wf.data.TensorDataset(train.x, train.y), batch_size=BATCH, shuffle=True),
        optimizer, loss=binary_cross_entropy_with_logits, epochs=epochs,
        validation=wf.data.DataLoader(wf.data.TensorDataset(held_out.x, held_out.y), batch_size=BATCH),
        metrics={"acc": wf.metrics.Accuracy(logits=True), "F1": wf.metrics.F1(logits=True)},
    )  # fmt: skip
    accuracy = float(history[-1]["validation acc"])
    page.show(
        held_out=f"{accuracy:.1%} of the rows it never saw",
        baseline=f"{held_out.baseline:.1%}, always giving the commoner label",
        ceiling=f"{held_out.ceiling:.1%}, knowing the formula: the labels are drawn by chance",
    )
    return history


def show_predictions(page: Page, model: Network, held_out: Split, count: int = 6) -> None:
    """Print what the model says about a few held-out rows beside the truth, and one of them layer by layer."""
    page.heading("Prediction")
    page.say(f"{count} rows it never saw: the model, the formula behind the data, the label.")
    with wf.no_grad():
        said = wf.sigmoid(model(held_out.x[:count]))
    columns = (said, held_out.truth[:count], held_out.y[:count])
    rows = []
    for index, (model_says, formula, label) in enumerate(zip(*(c.flatten().tolist() for c in columns), strict=True)):
        answer = int(model_says > 0.5)
        verdict = "right" if answer == int(label) else "wrong"
        rows.append((str(index), f"{model_says:.3f}", f"{formula:.3f}", str(answer), str(int(label)), verdict))
    page.table(("row", "model", "formula", "answer", "label", ""), rows)

    page.heading("Row 0, layer by layer")
    page.say("What every layer gave, seen through forward hooks.")
    logits, calls = traced(model, held_out.x[:1])
    page.entries({
        "input": described(held_out.x[:1]),
        **{f"{call.layer} {call.kind}": described(call.output) for call in calls},
        "sigmoid": described(wf.sigmoid(logits)),
    })  # fmt: skip


def show_graph(page: Page, model: Network, train: Split) -> None:
    """Print the graph that one step of training records."""
    page.heading("The graph of one step")
    page.say("What was recorded while one batch ran, and what backward() walks:")
    x, y = train.x[:BATCH], train.y[:BATCH]
    logits = model(x)
    loss = binary_cross_entropy_with_logits(logits, y)
    page.listing(str(wf.graph(loss)))


def write_report(
    results: Results, model: Network, optimizer: wf.optim.Optimizer, history: wf.train.History, train: Split,
    held_out: Split,
) -> None:  # fmt: skip
    """The same as a page."""
    with wf.no_grad():
        said = wf.sigmoid(model(held_out.x))
    results.report(
        model, title="A small network learns from 1,000 rows of numbers", history=history, optimizer=optimizer,
        batch=(train.x[:BATCH], train.y[:BATCH]), loss=binary_cross_entropy_with_logits,
        stages=[
            ("rows", f"{FEATURES} normal numbers a row, drawn at random.", wf.cat([train.x, held_out.x])),
            ("labels", f"0 or 1, drawn by chance with log-odds {FORMULA}; the other features mean nothing.",
             wf.cat([train.y, held_out.y])),
            ("training rows", f"{len(held_out.x)} of the rows are held out.", train.x),
            ("batch", f"{BATCH} rows and their labels, in another order in each epoch.",
             (train.x[:BATCH], train.y[:BATCH])),
        ],
        predictions=(said, held_out.y), names=["label 0", "label 1"], example=held_out.x[:1],
        truth=f"label {int(held_out.y[0].item())}: positive log-odds are label 1",
    )  # fmt: skip


def show_shipping(page: Page, results: Results, model: Network, held_out: Split) -> None:
    """The model as a file, for any number of rows."""
    model.eval()
    ship(
        page, results, model, (held_out.x[:1],), {"x": {0: "rows"}},
        about="It takes any number of rows.", one="one row", held_out=f"{len(held_out.x)} rows, in one call",
        calls=[(held_out.x,)], scores=lambda: model(held_out.x),
    )  # fmt: skip


def run(page: Page, results: Results, epochs: int = EPOCHS, seed: int = 0) -> Outcome:
    """Run the demo on a page."""
    wf.manual_seed(seed)
    train, held_out = make_data()
    model = Network()
    optimizer = wf.optim.AdamW(model.parameters(), lr=LEARNING_RATE)

    page.title("Wayfare demo, regression: a small network learns from 1,000 rows of numbers")
    page.heading("Stage 1 · Data")
    page.say("Ten normal numbers a row; the label is drawn by chance, with log-odds")
    page.say(f"  {FORMULA}  (the rest is noise)")
    page.show(
        x=described(train.x),
        y=described(train.y),
        held_out=f"{list(held_out.x.shape)}  kept aside",
    )
    show_one_step(page, model, optimizer, train)
    history = show_training(page, results, model, optimizer, train, held_out, epochs)
    show_predictions(page, model, held_out)
    show_graph(page, model, train)
    write_report(results, model, optimizer, history, train, held_out)
    show_shipping(page, results, model, held_out)
    results.finish(page)
    return Outcome(float(history[-1]["validation acc"]), held_out.baseline)
