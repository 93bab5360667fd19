"""The data flow, stage by stage: input, operation, output, and a few of the values."""

from __future__ import annotations

from typing import Any, NamedTuple

from wayfare.core.format import counted, cut
from wayfare.see.pages.markup import Markup, join, muted, tag
from wayfare.see.report.section import Material, Section
from wayfare.see.report.words import described, sample

__all__ = ["flow_section"]

MOST_STAGES = 60


class _Stage(NamedTuple):
    name: str
    what: str
    into: str
    out: str
    values: str
    note: str = ""


def flow_section(material: Material) -> Section:
    """The section."""
    stages = [*_given_stages(material), *_model_stages(material)]
    section = Section("flow", "Data flow")
    if not stages:
        section.missing = ("Give a batch and a loss, wf.report(model, batch=(x, y), loss=…), or "
                           "stages=[(name, what happens, value), …].")  # fmt: skip
        return section
    left_out = len(stages) - MOST_STAGES
    shown = stages if left_out <= 0 else [*stages[: MOST_STAGES - 1], stages[-1]]
    section.body = join([
        muted("From the raw data to the loss: each stage with what goes in, what happens to it, and what comes out."),
        tag("ol", *(_drawn(number, stage) for number, stage in enumerate(shown, start=1)), class_="flow"),
        muted(f"{left_out} stages before the last are left out.") if left_out > 0 else None,
    ])  # fmt: skip
    way = " → ".join([*(stage.name for stage in shown[:6]), *(["…"] if len(shown) > 6 else [])])
    section.lines = [f"{counted(len(stages), 'stage')}: {way}"]
    return section


def _given_stages(material: Material) -> list[_Stage]:
    found, before = [], ""
    for name, what, *rest in material.stages:
        value = rest[0] if rest else None
        out = rest[1] if len(rest) > 1 else described(value)
        found.append(_Stage(str(name), str(what), before, str(out), sample(value)))
        before = str(out)
    return found


def _model_stages(material: Material) -> list[_Stage]:
    found = []
    if material.batch is not None and not material.stages:
        found.append(_Stage("batch", _batch_words(material), "", described(material.batch), sample(material.batch)))
    watched = material.watched
    for layer in watched.layers if watched is not None else ():
        given = layer.given[0] if len(layer.given) == 1 else layer.given
        own = sum(p.numel() for p in layer.module.parameters())
        notes = [type(layer.module).__name__, *([counted(own, "parameter")] if own else [])]
        if layer.calls > 1:
            notes.append(f"called {layer.calls:,} times, here the first")
        found.append(_Stage(layer.path or type(layer.module).__name__, _what(layer.module), described(given),
                            described(layer.gave), sample(layer.gave), " · ".join(notes)))  # fmt: skip
    if material.loss is not None:
        answer = "" if watched is None or watched.answer is None else described(watched.answer)
        what = "One number: how wrong the answers are."
        found.append(_Stage("loss", what, answer, "one number", f"{material.loss:.6g}"))
    norms = [norm for norm in material.gradients.values() if norm is not None]
    if norms:
        total = sum(norm * norm for norm in norms) ** 0.5
        what = "The loss's slope for every parameter, from the end back to the beginning."
        out = f"gradients of {counted(len(norms), 'parameter')}"
        found.append(_Stage("backward", what, "one number", out, f"total norm {total:.4g}"))
    return found


def _batch_words(material: Material) -> str:
    try:
        count = len(material.data)
    except TypeError:
        return "What one step is given."
    return f"What one step is given; the data has {counted(count, 'batch')}."


def _what(module: Any) -> str:
    """What a layer does: the first sentence of its class's docstring, and its options."""
    said = next((line.strip() for line in (type(module).__doc__ or "").splitlines() if line.strip()), "")
    return cut(said or repr(module).splitlines()[0], 160)


def _drawn(number: int, stage: _Stage) -> Markup:
    return tag("li", tag("div", tag("b", str(number), class_="dot"), class_="rail"),
               tag("div",
                   tag("h4", stage.name, " ", tag("small", stage.note) if stage.note else None),
                   tag("p", _with_code(stage.what)),
                   tag("div", tag("code", stage.into, class_="shape") if stage.into else None,
                       tag("span", "→", class_="arrow") if stage.into else None,
                       tag("code", stage.out, class_="shape out"), class_="io"),
                   tag("code", stage.values, class_="values") if stage.values else None,
                   class_="stage"))  # fmt: skip


def _with_code(text: str) -> Markup:
    """Words between `backquotes` as code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return join([text])
    return join(tag("code", part) if number % 2 else part for number, part in enumerate(parts))
