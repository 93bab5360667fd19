"""The prediction trace: one input through the model, layer by layer."""

from __future__ import annotations

import itertools
import math
from typing import Any

import wayfare as wf
from wayfare.core.format import counted
from wayfare.see.pages.charts import bar, strip
from wayfare.see.pages.markup import Markup, join, muted, row, sheet, tag
from wayfare.see.report.section import Material, Section
from wayfare.see.report.trace import Call
from wayfare.see.report.words import described, first_tensor, sample

__all__ = ["prediction_section"]

MOST_CALLS = 80
MOST_ALIKE = 16  # calls of one layer in a row
CELLS = 48
MOST_CLASSES = 20


def prediction_section(material: Material) -> Section:
    """The section."""
    section = Section("prediction", "Prediction trace")
    if material.model is None or material.example is None:
        section.missing = "Give an input: wf.report(model, example=x), or a batch and a loss."
        return section
    answer, calls = material.answer, material.calls
    rows: list[Markup] = [_input_row(value, number) for number, value in enumerate(material.example)]
    rows += _call_rows(calls)
    section.body = join([
        muted("One input in eval mode. Every call of a layer, in the order in which they ran; values below zero are "
              "blue, above zero orange."),
        sheet(("layer", "gives", "values", "least · mean · largest"), rows, words=(0, 1, 2), kind="trace", tall=True),
        _answer(answer, material),
    ])  # fmt: skip
    section.lines = [f"{counted(len(calls), 'call')} of layers; the answer is {described(answer)}: {sample(answer, 5)}"]
    return section


def _call_rows(calls: list[Call]) -> list[Markup]:
    """A row for each call; of a layer called many times in a row, and of very many calls, the first and the last."""
    kept: list[Call | int] = []
    for _, same in itertools.groupby(calls, key=lambda call: call.layer):
        run = list(same)
        kept += run if len(run) <= MOST_ALIKE else [*run[: MOST_ALIKE - 3], len(run) - MOST_ALIKE + 1, *run[-2:]]
    if len(kept) > MOST_CALLS:
        between = kept[MOST_CALLS // 2 : -MOST_CALLS // 2]
        left_out = sum(each if isinstance(each, int) else 1 for each in between)
        kept = [*kept[: MOST_CALLS // 2], left_out, *kept[-MOST_CALLS // 2 :]]
    rows = []
    before: Call | None = None
    for each in kept:
        if isinstance(each, int):
            rows.append(tag("tr", tag("td", f"… {each:,} more calls …", colspan=4, class_="muted")))
        else:
            rows.append(_row(each, before))
        before = each if isinstance(each, Call) else before
    return rows


def _input_row(value: Any, number: int) -> Markup:
    t = first_tensor(value)
    name = tag("th", "input" if not number else f"input {number + 1}", scope="row")
    if t is None:
        return tag("tr", name, tag("td", tag("code", described(value))), tag("td", sample(value), colspan=2))
    return tag("tr", name, *_cells(t, described(value)))


def _row(call: Call, before: Call | None) -> Markup:
    same = before is not None and before.layer == call.layer
    name = tag("th", tag("span", "″" if same else call.layer or call.kind), " ", tag("small", call.kind), scope="row")
    if call.output is None:
        return tag("tr", name, tag("td", tag("code", described(call.result)), colspan=3))
    return tag("tr", name, *_cells(call.output, described(call.result)))


def _cells(t: wf.Tensor, shape: str) -> list[Markup]:
    flat = t.detach().flatten()
    values = [float(v) for v in flat[:CELLS].tolist()] if flat.numel() else []
    return [tag("td", tag("code", shape)), tag("td", strip(values)), tag("td", _statistics(flat), class_="number")]


def _statistics(flat: wf.Tensor) -> str:
    if not flat.numel():
        return "empty"
    values = flat.double()
    found = [float(v.item()) for v in (values.min(), values.mean(), values.max())]
    return " · ".join(f"{v:.3g}" for v in found)


def _answer(answer: Any, material: Material) -> Markup | None:
    """The answer: as probabilities by class where it is scores of classes."""
    t = first_tensor(answer)
    if t is None:
        return None
    scores = t.detach().flatten().double()
    classes = scores.numel()
    names = material.names or [str(k) for k in range(classes)]
    if classes != t.shape[-1:].numel() or classes < 2 or classes != len(names) or material.scores:
        truth = None if material.truth is None else f", and it should be {material.truth}."
        return tag("p", "The answer: ", tag("code", sample(answer, 8)), truth)
    values = [float(v) for v in scores.tolist()]
    already = all(0 <= v <= 1 for v in values) and math.isclose(sum(values), 1, abs_tol=1e-3)
    chances = values if already else [float(v) for v in scores.softmax(0).tolist()]
    order = sorted(range(classes), key=lambda k: -chances[k])[:MOST_CLASSES]
    truth = None if material.truth is None else str(material.truth)
    marks = {k: tag("b", "the truth") if truth in (names[k], str(k)) else "" for k in order}
    rows = [row(names[k], bar(chances[k], f"{chances[k]:.1%}"), marks[k]) for k in order]
    what = "The answer, as probabilities" if already else "The answer, as probabilities (the softmax of the scores)"
    return join([tag("h3", what), sheet(("", "", ""), rows, kind="bars")])
