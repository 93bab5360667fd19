"""Metrics: the confusion matrix in colours, precision and recall of each class, and where the accuracy misleads."""

from __future__ import annotations

from typing import Any

from wayfare.core.format import cut
from wayfare.see.pages.charts import bar, heat
from wayfare.see.pages.markup import Markup, callout, figures, join, muted, row, sheet, tag
from wayfare.see.report.section import Material, Section

__all__ = ["metrics_section"]

MOST_CLASSES = 40  # in the matrix
MOST_ROWS = 200
LOW_RECALL = 0.5


def metrics_section(material: Material) -> Section:
    """The section."""
    section = Section("metrics", "Metrics")
    report = material.metrics
    if report is None and not material.scores:
        section.missing = ("Give what the model said and what is true: wf.report(model, predictions=(scores, classes), "
                           "names=[…]), or metrics=wf.metrics.classification_report(…).")  # fmt: skip
        return section
    parts: list[Markup | None] = [muted(material.metrics_on) if material.metrics_on else None]
    if material.scores:
        parts.append(figures((name, f"{value:.4g}") for name, value in material.scores.items()))
        section.lines.append(", ".join(f"{name} {value:.4g}" for name, value in material.scores.items()))
    if report is not None:
        parts += [
            figures([("accuracy", f"{report.accuracy:.1%}"),
                     (f"always {cut(report.majority, 18)!r}", f"{report.baseline:.1%}"),
                     ("macro F1", f"{report.macro['f1']:.3f}"), ("examples", f"{sum(report.support):,}")]),
            *(callout(warning, False) for warning in report.warnings),
            None if report.warnings else _verdict(report),
            tag("h3", "Confusion matrix"), _matrix(report),
            tag("h3", "Precision and recall"), _classes(report),
        ]  # fmt: skip
        baseline = f"always answering {report.majority!r} {report.baseline:.1%}"
        section.lines.append(f"accuracy {report.accuracy:.1%}, {baseline}")
        section.lines += report.warnings
    section.body = join(parts)
    return section


def _verdict(report: Any) -> Markup:
    """Where the report warns of nothing: how the class that is found least often does."""
    weakest = min((k for k, count in enumerate(report.support) if count), key=lambda k: report.recall[k])
    name, recall = report.names[weakest], report.recall[weakest]
    if recall < LOW_RECALL:
        found = report.confusion[weakest][weakest]
        words = f"Of class {name!r} only {found} of {report.support[weakest]} are found (recall {recall:.1%})."
        return callout(words, False)
    above = 100 * (report.accuracy - report.baseline)
    words = (f"The accuracy does not mislead: it is {above:.1f} points above always answering {report.majority!r}, and "
             f"every class is found, {name!r} least often (recall {recall:.1%}).")  # fmt: skip
    return callout(words, True)


def _matrix(report: Any) -> Markup:
    """Rows are true classes, columns what was answered; the colour is the share of the row."""
    names = report.names[:MOST_CLASSES]
    rows = []
    for k, name in enumerate(names):
        total = sum(report.confusion[k]) or 1
        cells = [
            tag("td", f"{count:,}" if count else "·", class_=f"cell number {'right' if j == k else 'wrong'}",
                style=heat(count / total), title=f"{name} taken for {names[j]}: {count} ({count / total:.1%})")
            for j, count in enumerate(report.confusion[k][:MOST_CLASSES])
        ]  # fmt: skip
        rows.append(tag("tr", tag("th", cut(name, 24), scope="row"), *cells))
    more = len(report.names) - MOST_CLASSES
    note = f" {more} more classes are left out." if more > 0 else ""
    columns = ["true \\ answered", *(cut(name, 14) for name in names)]
    words = muted(f"A row is a true class, a column what was answered; the diagonal is right.{note}")
    return join([sheet(columns, rows, kind="matrix", tall=True), words])


def _classes(report: Any) -> Markup:
    rows = []
    for k, name in enumerate(report.names[:MOST_ROWS]):
        weak = "weak" if report.recall[k] < LOW_RECALL and report.support[k] else ""
        shares = ((report.precision[k], ""), (report.recall[k], weak), (report.f1[k], ""))
        bars = [bar(share, f"{share:.3f}", look) for share, look in shares]
        rows.append(row(cut(name, 40), *bars, f"{report.support[k]:,}"))
    for name, mean in (("macro mean", report.macro), ("weighted mean", report.weighted)):
        bars = [bar(mean[key], f"{mean[key]:.3f}") for key in ("precision", "recall", "f1")]
        rows.append(row(name, *bars, f"{sum(report.support):,}", kind="total"))
    return sheet(("class", "precision", "recall", "F1", "support"), rows, words=range(4), kind="bars")
