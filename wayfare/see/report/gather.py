"""What a report is made of, put together: what was given, and what a step of the user's own model adds to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import wayfare as wf
from wayfare.see.profile.snapshot import Snapshot
from wayfare.see.report.judged import judge
from wayfare.see.report.own import OwnStep, first_batch
from wayfare.see.report.section import Material
from wayfare.see.report.trace import traced, unharmed

__all__ = ["gather"]

# A step that takes longer than this is not run some dozens of times without being asked to.
QUICK = 0.3


def gather(given: Mapping[str, Any]) -> Material:
    """All material for a page."""
    model = given["model"]
    title = given["title"] or (f"Report on {type(model).__name__}" if model is not None else "Report")
    material = Material(
        title=str(title), model=model, stages=[tuple(stage) for stage in given["stages"]], data=given["data"],
        batch=given["batch"], history=given["history"], truth=given["truth"], run=given["run"],
        names=None if given["names"] is None else [str(name) for name in given["names"]],
        batching=given["batching"], profile=given["profile"],
        comparison=given["comparison"] if not isinstance(given["comparison"], bool) else None,
    )  # fmt: skip
    if given["example"] is not None:
        example = given["example"]
        material.example = example if isinstance(example, tuple) else (example,)
    if material.batch is None and given["data"] is not None:
        material.batch = first_batch(given["data"])
    own = None
    if given["loss"] is not None or given["step"] is not None:
        own = OwnStep(model, material.batch, given["loss"], given["step"], given["optimizer"])
        _run_own_step(material, own, given["comparison"])
    if model is not None and material.example is not None:
        _predict(material, asked_for=given["example"] is not None)
    _judge(material, given, own)
    return material


def _predict(material: Material, asked_for: bool) -> None:
    """One input through the model, layer by layer; afterwards everything is as it was."""
    example = material.example
    assert example is not None
    before = Snapshot(material.model, [material.model, *example])
    try:
        with unharmed():
            material.answer, material.calls = traced(material.model, *example)
    except Exception as error:
        # A model may fail in eval mode, or on one row. That is an error only if the user asked for this section.
        if asked_for:
            raise
        material.example = None
        why = f"{type(error).__name__}: {error}"
        material.troubles["prediction"] = f"The model did not run on one input in eval mode ({why}): give example=…."
    finally:
        before.restore()


def _run_own_step(material: Material, own: OwnStep, comparison: Any) -> None:
    """One step, watched, timed, recorded, profiled and, if it is quick or asked for, compared."""
    material.watched = own.watched()
    material.loss, material.gradients = own.value, own.gradients
    if material.example is None:
        material.example, row = _one_example(material.watched)
        if material.truth is None and row and isinstance(own.target, wf.Tensor) and own.target.ndim:
            material.truth = _answer_of(own.target[0], material.names)
    stats = own.timed()
    if material.batching is None:
        material.batching = stats
    if material.run is None:
        material.run = own.recorded(material.title)
    if material.profile is None:
        material.profile = own.profiled()
    if comparison is True or (comparison is None and own.seconds < QUICK):
        material.comparison = own.compared()
    elif comparison is None:
        material.troubles["ways"] = (f"The step takes {own.seconds:.1f} s and would run some dozens of times: say "
                                     "comparison=True if it should.")  # fmt: skip


def _one_example(watched: Any) -> tuple[tuple[Any, ...] | None, bool]:
    """(what the model was first called with, one row of it where that is a batch of rows; whether it is row 0)."""
    arguments, answer = watched.arguments, watched.answer
    if arguments is None:
        return None, False
    rows = {len(a) for a in (*arguments, answer) if isinstance(a, wf.Tensor) and a.ndim}
    # As many answers as rows of every input, in one call: a batch. A model called for each example gets one anyway.
    if watched.calls == 1 and len(rows) == 1 and isinstance(answer, wf.Tensor) and answer.ndim and answer.shape[0] > 1:
        return tuple(a[:1].detach() if isinstance(a, wf.Tensor) and a.ndim else a for a in arguments), True
    return tuple(a.detach() if isinstance(a, wf.Tensor) else a for a in arguments), watched.calls > 1


def _answer_of(target: wf.Tensor, names: list[str] | None) -> Any:
    if target.numel() != 1:
        return None
    value = target.item()
    if not target.is_floating_point() and names is not None and 0 <= int(value) < len(names):
        return names[int(value)]
    return value


def _judge(material: Material, given: Mapping[str, Any], own: OwnStep | None) -> None:
    """Metrics: those given, of the predictions given, or of the one batch."""
    metrics, pairs = given["metrics"], given["predictions"]
    if isinstance(metrics, Mapping):
        material.scores = {str(name): float(value) for name, value in metrics.items()}
    elif metrics is not None:
        material.metrics = metrics
    if pairs is not None:
        report, scores = judge(pairs[0], pairs[1], material.names)
        material.metrics = report if report is not None else material.metrics
        material.scores |= scores
    elif metrics is None and own is not None and all(isinstance(t, wf.Tensor) for t in (own.output, own.target)):
        logits = True if "with_logits" in getattr(given["loss"], "__name__", "") else None
        try:
            material.metrics, material.scores = judge(own.output, own.target, material.names, logits)
        except (ValueError, TypeError, RuntimeError) as error:
            # The user asked for no metrics, and outputs come in shapes that none is made for.
            material.troubles["metrics"] = f"Of this batch none could be made: {error}"
            return
        material.metrics_on = ("Of the one batch this report ran, in training mode: a look, not a score. For more give "
                               "predictions=(what the model said, what is true) of data held out.")  # fmt: skip
