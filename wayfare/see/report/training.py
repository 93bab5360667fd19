"""The training trace: what the numbers say, curves, a row for each epoch, and how gradients flow."""

from __future__ import annotations

import math
from typing import Any

from wayfare.core.format import bytes_text, cut, time_text
from wayfare.see.pages.charts import curves, heat
from wayfare.see.pages.markup import Markup, callout, join, muted, sheet, tag
from wayfare.see.report.observations import Observation, epoch_notes
from wayfare.see.report.section import Material, Section

__all__ = ["gradient_observations", "training_section"]

MOST_ROWS = 200
MOST_PARAMETERS = 120
MOST_COLUMNS = 40
# A gradient this many times smaller than the largest counts as vanished.
VANISHED = 1e-4


def training_section(material: Material) -> Section:
    """The section."""
    section = Section("training", "Training trace")
    history = material.history
    flow = history.gradient_norms() if history is not None else {}
    one_step = not flow
    if one_step and material.gradients:
        flow = {name: [0.0 if norm is None else norm] for name, norm in material.gradients.items()}
    if (history is None or not len(history)) and not flow:
        section.missing = "Give the history that wf.train.fit returned: wf.report(model, history=history)."
        return section
    parts: list[Markup | None] = []
    if history is not None and len(history):
        said = history.observations()
        parts += [callout(each, each.good) for each in said]
        parts += [_pictures(history), _epochs(history)]
        section.lines += [str(each) for each in said]
    else:
        parts.append(muted("No history was given (history=…), so this is the gradient flow of one step only."))
    if flow:
        noticed = gradient_observations(flow)
        parts += [tag("h3", "Gradient flow"), muted(_flow_words(one_step))]
        parts += [*(callout(each, each.good) for each in noticed), _flow(flow)]
        section.lines += [str(each) for each in noticed]
    else:
        parts += [tag("h3", "Gradient flow"), muted("Not recorded: add callbacks=[wf.train.GradientFlow()] to fit, or "
                                                    "give a batch and a loss.")]  # fmt: skip
    section.body = join(parts)
    return section


def _pictures(history: Any) -> Markup:
    """The losses in one picture, every other score with its validation in one of its own."""
    names = [name for name in history.scores() if all(isinstance(v, (int, float)) for v in history[name])]
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name.removeprefix("validation "), []).append(name)
    pictures = []
    for score, members in groups.items():
        given = {("validation" if name.startswith("validation ") else "training"): history[name] for name in members}
        pictures.append(curves(given, score))
    rates = history["learning rate"] if "learning rate" in history.names() else []
    if len(set(rates)) > 1:
        pictures.append(curves({"learning rate": rates}, "learning rate"))
    return tag("div", *pictures, class_="charts")


def _epochs(history: Any) -> Markup:
    """A row for each epoch, with a few words."""
    scores = history.scores()
    notes = epoch_notes(history.records)
    lowest = {name: min((v for v in history[name] if isinstance(v, (int, float)) and math.isfinite(v)), default=None)
              for name in scores if name.endswith("loss")}  # fmt: skip
    names = ["epoch", *(name.replace("validation", "val.") for name in scores), "time", "peak", "observation"]
    records = list(enumerate(history.records))
    skipped = len(records) - MOST_ROWS
    if skipped > 0:
        records = [*records[: MOST_ROWS // 2], *records[-MOST_ROWS // 2 :]]
    rows = []
    for number, record in records:
        cells: list[object] = [str(record.get("epoch", number + 1))]
        for name in scores:
            best = lowest.get(name) is not None and record.get(name) == lowest[name]
            cells.append(tag("b", _score(record.get(name))) if best else _score(record.get(name)))
        cells += [time_text(record["seconds"]) if "seconds" in record else "",
                  bytes_text(record["peak memory"]) if record.get("peak memory") else ""]  # fmt: skip
        note = tag("td", notes[number], class_="muted")
        rows.append(tag("tr", *(tag("td", cell, class_="number") for cell in cells), note))
    left_out = muted(f"{skipped} epochs in the middle are left out.") if skipped > 0 else None
    return join([tag("h3", "Epochs"), sheet(names, rows, words=(len(names) - 1,), tall=True), left_out])


def _score(value: Any) -> str:
    if isinstance(value, (int, float)):
        return f"{value:.4f}" if 1e-3 <= abs(value) < 1e4 else f"{value:.4g}"
    return cut(" ".join(f"{v:.3g}" for v in value), 40) if isinstance(value, list) else ""


# -- gradients ------------------------------------------------------------------------------------------------------


def _flow_words(one_step: bool) -> str:
    where = "in one step" if one_step else "the mean of each epoch, from the first on the left to the last"
    return (f"The norm of each parameter's gradient, {where}; parameters in the order of the model, so the first "
            "layers stand at the top. The stronger a cell, the larger the norm, on a logarithmic scale.")  # fmt: skip


def gradient_observations(flow: dict[str, list[float]]) -> list[Observation]:
    """What the last norms say: gradients that are missing, have vanished, or are not finite."""
    last = {name: values[-1] for name, values in flow.items()}
    broken = [name for name, value in last.items() if math.isinf(value)]
    bad = [name for name, value in last.items() if math.isnan(value)]
    nothing = [name for name, value in last.items() if value == 0]
    living = {name: value for name, value in last.items() if math.isfinite(value) and value > 0}
    found = []
    if broken:
        found.append(Observation("exploded", f"The gradient of {_few(broken)} is infinite: clip the gradients, or "
                                 "lower the learning rate."))  # fmt: skip
    if bad:
        found.append(Observation("nan", f"The gradient of {_few(bad)} is NaN: find the op that made it with "
                                 "wf.autograd.detect_anomaly()."))  # fmt: skip
    if nothing:
        found.append(Observation("dead", f"No gradient reaches {_few(nothing)}: does the loss depend on it?"))
    if living:
        largest = max(living, key=living.__getitem__)
        weak = [name for name, value in living.items() if value < VANISHED * living[largest]]
        if weak:
            found.append(Observation("vanishing", f"The gradient of {_few(weak)} is over {1 / VANISHED:,.0f} times "
                                     f"smaller than that of {largest}: it hardly learns."))  # fmt: skip
    if not found and living:
        low, high = min(living.values()), max(living.values())
        found.append(Observation("flowing", f"Gradients reach {_all(len(living))}; "
                                 f"{'its norm is' if len(living) == 1 else 'their norms lie between'} "
                                 f"{low:.2g}{'' if len(living) == 1 else f' and {high:.2g}'}.", good=True))  # fmt: skip
    return found


def _all(count: int) -> str:
    return "the one parameter" if count == 1 else f"all {count} parameters"


def _few(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return shown + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _flow(flow: dict[str, list[float]]) -> Markup:
    """A row for each parameter, a cell for each epoch."""
    length = max(map(len, flow.values()))
    # More epochs than cells fit: some of them, evenly, the first and the last among them.
    count = min(length, MOST_COLUMNS)
    chosen = sorted({round(k * (length - 1) / max(count - 1, 1)) for k in range(count)})
    logs = [math.log10(v) for values in flow.values() for v in values if math.isfinite(v) and v > 0]
    low, high = min(logs, default=0.0), max(logs, default=0.0)
    rows = []
    for name, values in list(flow.items())[:MOST_PARAMETERS]:
        cells = [_cell(values[at], at, low, high) for at in chosen]
        rows.append(tag("tr", tag("th", name, scope="row"), *cells, tag("td", f"{values[-1]:.3g}", class_="number")))
    span = tag("th", f"epoch 1 to {length}" if length > 1 else "", colspan=len(chosen), class_="span")
    head = tag("tr", tag("th", "parameter"), span, tag("th", "last" if length > 1 else "norm", class_="number"))
    inner = tag("table", tag("thead", head), tag("tbody", *rows), class_="heatmap")
    more = len(flow) - MOST_PARAMETERS
    return join([tag("div", inner, class_="scroll tall"),
                 muted(f"{more} more parameters are left out.") if more > 0 else None])  # fmt: skip


def _cell(value: float, epoch: int, low: float, high: float) -> Markup:
    if not math.isfinite(value) or value <= 0:
        return tag("td", "×", class_="cell none", title=f"epoch {epoch + 1}: {value:.3g}")
    share = 0.12 + 0.88 * (math.log10(value) - low) / (high - low) if high > low else 0.5
    return tag("td", class_="cell", style=heat(share), title=f"epoch {epoch + 1}: {value:.3g}")
