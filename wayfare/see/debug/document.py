"""The document of a run: everything that was recorded, as plain lists and text for JSON."""

from __future__ import annotations

from datetime import datetime
from math import isfinite, prod
from typing import Any

import numpy as np

from wayfare.core.callsite import INSIDE, Site
from wayfare.core.op import Op
from wayfare.core.spec import OF_NUMPY
from wayfare.see.debug.measures import Measures, Statistics, digits, rounded
from wayfare.see.debug.naming import Naming
from wayfare.see.debug.recorder import Entry, Recorder
from wayfare.see.graph.listing import telling
from wayfare.see.run_document import COLUMNS, Places, Strings, heading

_MORE = "…"


def document_of(
    recorder: Recorder, title: str, created: datetime, ended: tuple[str, Site | None] | None
) -> dict[str, Any]:
    """The document of what a recorder has seen."""
    names = Strings()
    places = Places(names)
    nodes, elements = _nodes(recorder, names, places)
    document = heading(title, created) | {
        "modules": _modules(recorder.naming, names),
        "calls": [list(call) for call in recorder.naming.calls],
        "nodes": nodes,
        "stats": statistics_rows(recorder.measures.all()),
        "values": elements,
        "events": [_event(event, names, places) for event in recorder.events],
        "memory": list(recorder.memory),
        "batching": _batching(recorder, names, places),
        "plans": recorder.compiled.found,
        "ended": None if ended is None else {"error": ended[0], "site": places.of(ended[1])},
        "left_out": recorder.left_out,
        # Of values that are not on the CPU.
        "devices": [[at, names(str(device))] for at, device in recorder.devices.items()],
    }
    return document | {"strings": names.all, "files": places.files(), "sites": places.sites}


def _nodes(recorder: Recorder, names: Strings, places: Places) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    elements = _Elements(recorder.measures)
    dtypes: dict[Any, int] = {}
    attributes: dict[int, int] = {}
    for at, entry in enumerate(map(Entry._make, recorder.entries)):
        columns["op"].append(names(entry.op.name if isinstance(entry.op, Op) else entry.op))
        columns["kind"].append(entry.kind)
        columns["name"].append(-1 if entry.name is None else names(recorder.naming.path(*entry.name)))
        columns["inputs"].append(list(entry.inputs))
        text = -1
        if entry.attrs:
            # Calls of one kind often share the very dictionary.
            text = attributes.get(id(entry.attrs), -1)
            if text < 0:
                shown_as = attributes_text(entry.attrs)
                text = attributes[id(entry.attrs)] = names(shown_as) if shown_as else -1
        columns["attrs"].append(text)
        columns["shape"].append(list(entry.shape))
        dtype = dtypes.get(entry.dtype)
        if dtype is None:
            known = OF_NUMPY.get(entry.dtype)
            dtype = dtypes[entry.dtype] = names(str(entry.dtype) if known is None else known.short)
        columns["dtype"].append(dtype)
        columns["site"].append(places(entry.code, entry.offset))
        columns["call"].append(entry.call)
        columns["example"].append(entry.example)
        columns["saved"].append(entry.saved)
        columns["bytes"].append(int(entry.bytes))
        columns["out"].append(entry.out)
        columns["stats"].append(entry.measure)
        grad = recorder.grads.get(at, -1)
        columns["grad"].append(grad)
        columns["value"].append(elements(entry.measure, entry.shape))
        columns["gradvalue"].append(elements(grad, entry.shape))
    return columns, elements.all


def attributes_text(attrs: dict[str, Any]) -> str:
    """Attributes as one would write them; what is large in them was made text when the op ran."""
    return ", ".join(f"{name}={value}" for name, value in telling(attrs).items())


class _Elements:
    """The values whose elements are shown."""

    def __init__(self, measures: Measures) -> None:
        self._whole, self._corners = measures.whole(), measures.corners()
        self.all: list[dict[str, Any]] = []

    def __call__(self, number: int, shape: tuple[int, ...]) -> int:
        """The number of a value among those shown; -1 where its elements were not kept."""
        text: Any = self._whole.get(number)
        if text is not None:
            if len(text) != prod(shape):
                return -1  # A gradient that is the sum of a few rows is not of the shape of its tensor.
            for size in shape[:0:-1]:
                text = [text[i : i + size] for i in range(0, len(text), size)] if text else text
            self.all.append({"shape": list(shape), "text": text if shape else text[0], "whole": True})
        else:
            corners = self._corners.get(number)
            if corners is None or corners.ndim != len(shape):
                return -1
            text = _with_gaps(rounded(corners), shape, corners.shape)
            self.all.append({"shape": list(shape), "text": text, "whole": corners.shape == shape})
        return len(self.all) - 1


def _with_gaps(value: Any, shape: tuple[int, ...], left: tuple[int, ...]) -> Any:
    """The corners of an array with a mark where elements are left out."""
    if not shape:
        return value
    inside = [_with_gaps(v, shape[1:], left[1:]) for v in value]
    if left[0] < shape[0]:
        inside.insert(left[0] // 2, _MORE)
    return inside


def statistics_rows(found: list[Statistics]) -> list[list[Any]]:
    """Statistics as the document has them."""
    numbers = digits(np.array([(s.low, s.high, s.mean, s.deviation, s.first, s.last) for s in found]).reshape(-1, 6))
    bad = ~np.isfinite(numbers).all(axis=1)
    rows = []
    for s, numbered, odd in zip(found, numbers.tolist(), bad.tolist(), strict=True):
        low, high, mean, deviation, first, last = [v if isfinite(v) else None for v in numbered] if odd else numbered
        rows.append([low, high, mean, deviation, s.nans, s.infinite, s.zeros, s.counts, first, last, s.looked_at])
    return rows


def _modules(naming: Naming, names: Strings) -> list[list[int]]:
    numbers = {(root, path): i for i, (root, path, _) in enumerate(naming.modules)}
    rows = []
    for root, path, kind in naming.modules:
        above = numbers.get((root, path.rpartition(".")[0]), -1) if path else -1
        rows.append([names(naming.path(root, path)), names(kind), above])
    return rows


def _event(event: tuple[Any, ...], names: Strings, places: Places) -> list[Any]:
    if event[0] != "d":
        return list(event)
    _, node, how, outcome, code, offset, example = event
    return ["d", node, names(how), names(outcome), places(code, offset), example]


def _batching(recorder: Recorder, names: Strings, places: Places) -> dict[str, Any] | None:
    batches = recorder.batches
    if not batches.groups:
        return None
    calls = batches.calls
    return {
        "examples": batches.examples,
        "calls": {
            "example": [c[0] for c in calls], "name": [names(c[1]) for c in calls], "group": [c[2] for c in calls],
            "shape": [list(c[3]) for c in calls], "site": [places(c[4], c[5]) for c in calls],
            "depth": [c[6] for c in calls], "inputs": [list(c[7]) for c in calls],
        },
        "groups": [group | {"name": names(group["name"])} for group in batches.groups],
        "apart": [[a, b, names(reason)] for a, b, reason in batches.apart],
        "stats": dict(batches.stats),
    }  # fmt: skip


def ending(error: BaseException) -> tuple[str, Site | None]:
    """The error that ended a run, and the user's line. As text, because the error object keeps all values alive."""
    site = None
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if not INSIDE[code.co_filename]:
            site = Site(code.co_filename, trace.tb_lineno, code.co_name)
        trace = trace.tb_next
    try:
        text = str(error)
    except Exception:  # The text of a user's exception is the user's code, and may fail.
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__, site
