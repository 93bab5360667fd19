"""`wf.report(…)`: one page about a model, its data, its training, its predictions and what a step costs."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import wayfare as wf
from wayfare.core.format import cut, time_text
from wayfare.io.replace import replace_text
from wayfare.see.pages.markup import callout, frame, join
from wayfare.see.report.batches import batching_section
from wayfare.see.report.checks import checked
from wayfare.see.report.costs import costs_section
from wayfare.see.report.embedded import graph_section
from wayfare.see.report.flow import flow_section
from wayfare.see.report.gather import gather
from wayfare.see.report.page import whole_page
from wayfare.see.report.prediction import prediction_section
from wayfare.see.report.scores import metrics_section
from wayfare.see.report.section import Material, Section
from wayfare.see.report.training import training_section
from wayfare.see.report.ways import ways_section

__all__ = ["Report", "report"]

WIDTH = 80
SECTIONS = (flow_section, training_section, prediction_section, graph_section, metrics_section, ways_section,
            batching_section, costs_section)  # fmt: skip


class Report:
    """A finished report: `html()` is the page, `print(report)` a summary, `sections` what is in it.

    `observations` is what the history says in words, `warnings` what of all that needs attention.
    """

    def __init__(self, material: Material) -> None:
        self.title = material.title
        self.path: Path | None = None
        self.created = datetime.now().astimezone()
        self.sections = [_made(make, material) for make in SECTIONS]
        self._tiles = _tiles(material)
        self._model = material.model
        self.observations = [] if material.history is None else list(material.history.observations())
        self.warnings = [str(each) for each in self.observations if not each.good]
        self.warnings += [] if material.metrics is None else material.metrics.warnings

    def __getitem__(self, key: str) -> Section:
        for section in self.sections:
            if key in (section.key, section.title):
                return section
        raise KeyError(f"the report has no section {key!r}: it has {', '.join(s.key for s in self.sections)}")

    def html(self) -> str:
        """The page, whole."""
        # What needs attention stands at the top as well; the rest is in its section.
        said = join(callout(each, False) for each in self.warnings)
        model = f"{type(self._model).__name__} · " if self._model is not None else ""
        subtitle = f"{model}{self.created:%d %B %Y, %H:%M} · Wayfare {wf.__version__}"
        return whole_page(self.title, subtitle, self._tiles, said, self.sections)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page to a file; the file that was there is replaced in one step, or kept."""
        target = Path(path)
        replace_text(str(target), [self.html()])
        self.path = target
        return target

    def __str__(self) -> str:
        lines = [self.title, "=" * min(len(self.title), WIDTH)]
        if self._tiles:
            lines += textwrap.wrap(", ".join(f"{name} {value}" for name, value in self._tiles), WIDTH)
        for section in self.sections:
            lines += ["", section.title]
            if section.body is None:
                lines += _wrapped(f"not in this report. {section.missing}", "- ")
            for line in section.lines:
                lines += _wrapped(line, "  ")
        if self.path is not None:
            lines += ["", f"The page is {self.path}"]
        return "\n".join(lines)

    def __repr__(self) -> str:
        present = sum(section.body is not None for section in self.sections)
        return f"Report({cut(self.title, 40)!r}, {present} of {len(self.sections)} sections)"

    def _repr_html_(self) -> str:
        return frame(self.html(), "Wayfare report", scripts=True)


def _made(make: Callable[[Material], Section], material: Material) -> Section:
    """A section. If it fails it says why, and the others are not affected."""
    section = make(material)
    trouble = material.troubles.get(section.key)
    if trouble and section.body is None:
        section.missing = trouble
    return section


def _wrapped(text: str, first: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent="  ", break_on_hyphens=False)


def _tiles(material: Material) -> list[tuple[str, str]]:
    """The numbers that stand at the top."""
    tiles = []
    if material.model is not None:
        tiles.append(("parameters", f"{sum(p.numel() for p in material.model.parameters()):,}"))
    history = material.history
    if history is not None and len(history):
        tiles.append(("epochs", str(len(history))))
        last = history[-1]
        for name in history.scores()[:5]:
            if isinstance(last.get(name), (int, float)):
                tiles.append((name, f"{last[name]:.4g}"))
        seconds = sum(record.get("seconds", 0.0) for record in history)
        if seconds:
            tiles.append(("training time", time_text(seconds)))
    elif material.loss is not None:
        tiles.append(("loss of the batch", f"{material.loss:.4g}"))
    return tiles


def report(
    model: Any = None, *, batch: Any = None, loss: Callable[[Any, Any], Any] | None = None,
    step: Callable[[Any, Any], Any] | None = None, optimizer: Any = None, data: Any = None,
    stages: Sequence[tuple[Any, ...]] = (), history: Any = None, example: Any = None, truth: Any = None,
    names: Sequence[str] | None = None, run: Any = None, predictions: tuple[Any, Any] | None = None,
    metrics: Any = None, comparison: Any = None, batching: Any = None, profile: Any = None, title: str | None = None,
    path: str | os.PathLike[str] | None = "report.html",
) -> Report:  # fmt: skip
    """Write one self-contained HTML page about a model, and return it; what is not given is computed or left out.

    With a `batch` (or `data`, whose first batch is taken) and a `loss`, or a `step(model, batch)` as for `fit`, one
    training step is recorded, profiled and traced; afterwards model, optimiser and random numbers are as they were.

    `history` comes from `wf.train.fit`, `run` from `wf.debug.record`, `profile` from `wf.profile`, `comparison` from
    `wf.profile.compare` (True makes one, False none), `batching` from `wf.batching.last()`. `predictions` is
    (what the model said, what is true) and `names` the classes; or give `metrics`, a
    `wf.metrics.classification_report` or numbers by name. `example` is the input of the prediction trace, a tuple for
    several, and `truth` its answer. `stages` are (name, what happens, value) of the data before the model.
    `path=None` writes no file.
    """
    given = checked(
        model=model, batch=batch, loss=loss, step=step, optimizer=optimizer, data=data, stages=stages, history=history,
        example=example, truth=truth, names=names, run=run, predictions=predictions, metrics=metrics,
        comparison=comparison, batching=batching, profile=profile, title=title, path=path,
    )  # fmt: skip
    found = Report(gather(given))
    if path is not None:
        found.save(path)
    return found
