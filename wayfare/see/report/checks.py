"""The arguments of `wf.report`, checked before anything runs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import wayfare as wf
from wayfare.core.errors import ArgumentError, ArgumentTypeError, FileAccessError, MissingFileError

__all__ = ["checked"]


def checked(**given: Any) -> dict[str, Any]:
    """The arguments, known to be of the right kinds."""
    model = getattr(given["model"], "_orig_mod", given["model"])  # a compiled model is looked at as it was written
    given["model"] = model
    if isinstance(model, type):
        name = model.__name__
        raise ArgumentTypeError(f"report: the model is the class {name}", fix=f"Make one: {name}(…).")
    if model is not None and not isinstance(model, wf.nn.Module):
        raise ArgumentTypeError(f"report: the model must be an nn.Module, not {type(model).__name__}",
                                fix="What else there is has a name: history=…, run=…, predictions=….")  # fmt: skip
    wanted = ("history", "run", "predictions", "metrics", "comparison", "batching", "profile", "batch", "data")
    if model is None and not given["stages"] and all(given[name] is None for name in wanted):
        raise ArgumentError("report: there is nothing to report on",
                            fix="Give a model with batch=(x, y) and loss=…, or history=….")  # fmt: skip
    _check_step(given)
    _check_kinds(given)
    _check_path(given["path"])
    return given


def _check_step(given: Mapping[str, Any]) -> None:
    has_batch = given["batch"] is not None or given["data"] is not None
    if has_batch and given["model"] is None:
        raise ArgumentError("report: a batch needs the model it is for",
                            fix="Give it first: wf.report(model, batch=…).")  # fmt: skip
    if given["loss"] is not None and given["step"] is not None:
        raise ArgumentError("report: takes a loss or a step, not both", fix="A step computes the loss itself.")
    for name in ("loss", "step"):
        if given[name] is not None and (isinstance(given[name], type) or not callable(given[name])):
            raise ArgumentTypeError(f"report: {name} must be a function, not {type(given[name]).__name__}",
                                    fix="Give wf.nn.functional.cross_entropy, for instance.")  # fmt: skip
    if (given["loss"] is not None or given["step"] is not None) and not has_batch:
        raise ArgumentError("report: a loss or a step needs a batch to run on",
                            fix="Give batch=(x, y), or data=loader.")  # fmt: skip
    if given["batch"] is not None and given["loss"] is None and given["step"] is None:
        raise ArgumentError("report: a batch needs a loss, or a step of your own",
                            fix="Give loss=wf.nn.functional.cross_entropy, for instance.")  # fmt: skip


def _check_kinds(given: Mapping[str, Any]) -> None:
    history, run, names = given["history"], given["run"], given["names"]
    if history is not None and not isinstance(history, wf.train.History):
        raise ArgumentTypeError(f"report: history must be a wf.train.History, not {type(history).__name__}",
                                fix="Give what fit returned, or wf.train.History.load(…).")  # fmt: skip
    if run is not None and not isinstance(run, dict) and not hasattr(run, "document"):
        raise ArgumentTypeError(f"report: run must be what wf.debug.record() gives, not {type(run).__name__}",
                                fix="Write with wf.debug.record() as run: ….")  # fmt: skip
    pairs = given["predictions"]
    if pairs is not None and (not isinstance(pairs, (tuple, list)) or len(pairs) != 2):
        raise ArgumentTypeError("report: predictions must be two tensors, (what the model said, what is true)")
    if isinstance(names, (str, bytes)) or (names is not None and not isinstance(names, Iterable)):
        raise ArgumentTypeError(f"report: names must be a list of the classes' names, not {names!r:.40}")
    metrics = given["metrics"]
    if metrics is not None and not isinstance(metrics, (Mapping, wf.metrics.ClassificationReport)):
        raise ArgumentTypeError("report: metrics must be a wf.metrics.classification_report(…) or numbers by name, "
                                f"not {type(metrics).__name__}")  # fmt: skip
    if isinstance(metrics, Mapping):
        for name, value in metrics.items():
            if not isinstance(value, (int, float)):
                raise ArgumentTypeError(f"report: the metric {name!r} must be a number, not {type(value).__name__}")
    if isinstance(given["stages"], (str, bytes)) or not isinstance(given["stages"], Iterable):
        raise ArgumentTypeError("report: stages must be a list of tuples (name, what happens, value), not "
                                f"{type(given['stages']).__name__}")  # fmt: skip
    for stage in given["stages"]:
        if not isinstance(stage, (tuple, list)) or not 2 <= len(stage) <= 4:
            raise ArgumentTypeError(f"report: a stage is a tuple (name, what happens, value), not {stage!r:.60}")
    comparison = given["comparison"]
    if not isinstance(comparison, (bool, type(None))) and not hasattr(comparison, "html"):
        raise ArgumentTypeError("report: comparison must be what wf.profile.compare gives, True or False, not "
                                f"{type(comparison).__name__}")  # fmt: skip
    if comparison is True and given["loss"] is None and given["step"] is None:
        raise ArgumentError("report: a comparison needs a step to run", fix="Give a batch and a loss.")
    profile = given["profile"]
    if profile is not None and not (hasattr(profile, "rows") and hasattr(profile, "memory")):
        raise ArgumentTypeError(f"report: profile must be what wf.profile() gives, not {type(profile).__name__}",
                                fix="Write with wf.profile() as p: ….")  # fmt: skip
    batching = given["batching"]
    if batching is not None and not hasattr(batching, "mean_group"):
        raise ArgumentTypeError("report: batching must be what wf.batching.last() gives, not "
                                f"{type(batching).__name__}")  # fmt: skip


def _check_path(path: Any) -> None:
    """Refuse a path that cannot be written now, not after everything has run."""
    if path is None:
        return
    if not isinstance(path, (str, os.PathLike)):
        raise ArgumentTypeError(f"report: path must be a file's path, not {type(path).__name__}")
    if os.path.isdir(path):
        raise FileAccessError(f"report: {os.fspath(path)!r} is a folder, not a file", fix="Give the path of a file.")
    try:
        folder = os.path.dirname(os.path.realpath(path))
    except OSError:  # the working directory is gone
        folder = os.path.dirname(path) or os.curdir
    if not os.path.isdir(folder):
        raise MissingFileError(f"report: the folder {folder!r} does not exist",
                               fix="Make it first with os.makedirs(folder, exist_ok=True).")  # fmt: skip
