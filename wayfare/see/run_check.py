"""Is a document that was read a run? Every type, length and number in it is looked at, so that whoever shows it need
not: who follows a number finds what it names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wayfare.see.run_document import COLUMNS, FORMAT, VERSION

_LARGEST = 1 << 62
_TABLES = ("strings", "files", "sites", "modules", "calls", "stats", "values", "events", "memory")


class _Damaged(Exception):
    """What is wrong, as the end of a sentence."""


def problem_of(document: Any) -> str:
    """Why a document is no run that can be shown; empty if it is one."""
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        return "is JSON, but not a run"
    version = document.get("version")
    if type(version) is not int or not 1 <= version <= VERSION:
        return f"is a run of format version {version!s:.20}, and this Wayfare reads up to {VERSION}"
    try:
        _Check(document)
    except _Damaged as why:
        return f"is damaged: {why}"
    return ""


class _Check:
    """Goes through a document."""

    def __init__(self, document: dict[str, Any]) -> None:
        nodes = document.get("nodes")
        if not isinstance(nodes, dict) or not all(isinstance(column, list) for column in nodes.values()):
            raise _Damaged("there are no values in it")
        if len({len(column) for column in nodes.values()}) > 1:
            raise _Damaged("its columns are of different lengths")
        for name in _TABLES:
            if not isinstance(document.get(name), list):
                raise _Damaged(f"{name!r} is missing")
        missing = [name for name in COLUMNS if name not in nodes]
        if missing:
            raise _Damaged(f"the column {missing[0]!r} is missing")
        self.document = document
        self.count = len(nodes["op"])
        self.sizes = {name: len(document[name]) for name in _TABLES}
        for name in ("title", "wayfare", "created"):
            self._need(isinstance(document.get(name), str), name)
        self._texts(document["strings"], "strings")
        self._tables()
        self._columns(nodes)
        self._shown()
        self._batching(document.get("batching"))
        self._events()
        self._more()

    # -- parts of it

    def _tables(self) -> None:
        document, size = self.document, self.sizes
        for file in self._objects(document["files"], "files", name=str, code=dict):
            self._need(all(isinstance(line, str) for line in file["code"].values()), "files")
        if "devices" in document:  # files of earlier versions have none
            self._need(isinstance(document["devices"], list), "devices")
            self._rows("devices", (0, self.count), (0, size["strings"]))
        self._rows("sites", (0, size["files"]), (0, _LARGEST), (0, size["strings"]))
        self._rows("modules", (0, size["strings"]), (0, size["strings"]), (-1, size["modules"]))
        self._rows("calls", (0, size["modules"]), (-1, size["calls"]), (0, _LARGEST))
        for name in ("modules", "calls"):  # a chain of those around must come to an end
            above = 2 if name == "modules" else 1
            self._need(all(row[above] < at for at, row in enumerate(document[name])), name)

    def _columns(self, nodes: dict[str, Any]) -> None:
        size = self.sizes
        within = {
            "op": (0, size["strings"]), "dtype": (0, size["strings"]), "name": (-1, size["strings"]),
            "attrs": (-1, size["strings"]), "kind": (0, 3), "site": (-1, size["sites"]), "call": (-1, size["calls"]),
            "example": (-1, _LARGEST), "saved": (0, _LARGEST), "bytes": (0, _LARGEST), "out": (0, _LARGEST),
            "stats": (-1, size["stats"]), "grad": (-1, size["stats"]), "value": (-1, size["values"]),
            "gradvalue": (-1, size["values"]),
        }  # fmt: skip
        for name, (low, high) in within.items():
            self._numbers(nodes[name], low, high, name)
        for at, inputs in enumerate(nodes["inputs"]):
            self._numbers(inputs, -1, at, "inputs")
        for shape in nodes["shape"]:
            self._numbers(shape, 0, _LARGEST, "shape")

    def _shown(self) -> None:
        for row in self.document["stats"]:
            self._need(isinstance(row, list) and len(row) in (10, 11) and isinstance(row[7], list), "stats")
            self._need(all(n is None or _is_number(n) for n in (*row[:4], *row[8:])), "stats")
            self._need(all(_is_number(n) for n in (*row[4:7], *row[7])), "stats")
        for value in self._objects(self.document["values"], "values", shape=list, whole=bool):
            self._numbers(value["shape"], 0, _LARGEST, "values")
            self._need("text" in value, "values")
            waiting = [value["text"]]
            while waiting:
                part = waiting.pop()
                if isinstance(part, list):
                    waiting += part
                else:
                    self._need(part is None or isinstance(part, (str, bool)) or _is_number(part), "values")

    def _batching(self, batching: Any) -> None:
        self.groups = 0
        if batching is None:
            return
        (batching,) = self._objects([batching], "batching", calls=dict, groups=list, apart=list, stats=dict)
        calls, size = batching["calls"], self.sizes
        columns = [calls.get(name) for name in ("example", "name", "group", "shape", "site", "depth", "inputs")]
        self._need(all(isinstance(c, list) for c in columns) and len({len(c or ()) for c in columns}) == 1, "batching")
        example, name, group, shapes, site, depth, inputs = columns
        count, self.groups = len(example or ()), len(batching["groups"])
        for column, low, high in ((example, -1, _LARGEST), (name, 0, size["strings"]), (group, 0, self.groups),
                                  (site, -1, size["sites"]), (depth, 0, _LARGEST)):  # fmt: skip
            self._numbers(column, low, high, "batching")
        for at, (shape, given) in enumerate(zip(shapes or (), inputs or (), strict=True)):
            self._numbers(shape, 0, _LARGEST, "batching")
            self._numbers(given, 0, at, "batching")
        self._need(set(group or ()) == set(range(self.groups)), "batching")
        whole = ("size", "round", "session", "kind")
        for entry in self._objects(batching["groups"], "batching", name=int, rows=list, nodes=list):
            self._numbers([entry["name"]], 0, size["strings"], "batching")
            self._numbers([entry.get(key) for key in whole] + entry["rows"], 0, _LARGEST, "batching")
            self._need(len(entry["nodes"]) == 2, "batching")
            self._numbers(entry["nodes"], 0, self.count + 1, "batching")
        for row in batching["apart"]:
            self._row(row, ((0, count), (0, count), (0, size["strings"])), "batching")
        self._numbers([batching.get("examples")], 0, _LARGEST, "batching")
        self._need(all(_is_number(n) for n in batching["stats"].values()), "batching")

    def _events(self) -> None:
        size, memory = self.sizes, self.document["memory"]
        made, text, site = (0, self.count), (0, size["strings"]), (-1, size["sites"])
        forms: dict[str, tuple[tuple[int, int], ...]] = {
            "f": (made,), "b": (made,), "a": (made,), "g": ((0, self.groups),),
            "d": ((-1, self.count), text, text, site, (-1, _LARGEST)),
        }  # fmt: skip
        for event in self.document["events"]:
            self._need(isinstance(event, list) and bool(event) and isinstance(event[0], str), "events")
            form = forms.get(event[0])
            self._need(form is not None, "events")
            several = event[0] in "fb" and len(event) == 3  # how many values the step made
            self._row(event[1:], (made, (1, self.count + 1)) if several else form or (), "events")
        self._need(not memory or len(memory) == size["events"], "memory")
        self._numbers(memory, 0, _LARGEST, "memory")

    def _more(self) -> None:
        """What a document may have, and need not."""
        document = self.document
        self._numbers([document.get("left_out", 0)], 0, _LARGEST, "left_out")
        if document.get("ended") is not None:
            (ended,) = self._objects([document["ended"]], "ended", error=str)
            self._numbers([ended.get("site")], -1, self.sizes["sites"], "ended")
        plans = document.get("plans") or []
        for plan in self._objects(plans, "plans", function=str, text=str):
            self._numbers([plan.get("paths"), plan.get("hits")], 0, _LARGEST, "plans")
            for kernel in self._objects(plan.get("kernels") or [], "plans", name=str, nodes=list, ops=list):
                self._numbers(kernel["nodes"], 0, self.count, "plans")
                self._texts(kernel["ops"], "plans")
        if document.get("diff") is not None:
            lists = {name: list for name in ("same", "added", "removed", "changed", "summary")}
            (diff,) = self._objects([document["diff"]], "diff", **lists)
            for name in ("same", "added", "removed"):
                self._numbers(diff[name], 0, self.count, "diff")
            for row in diff["changed"]:
                self._need(isinstance(row, list) and len(row) == 3 and isinstance(row[2], str), "diff")
                self._numbers(row[:2], -1, self.count, "diff")
            self._texts(diff["summary"], "diff")

    # -- what parts are made of

    def _need(self, holds: bool, where: str) -> None:
        if not holds:
            raise _Damaged(f"there is something in {where!r} that cannot be there")

    def _numbers(self, given: Any, low: int, high: int, where: str) -> None:
        """A list of whole numbers from `low` up to `high`."""
        self._need(isinstance(given, list) and set(map(type, given)) <= {int}, where)
        self._need(not given or (low <= min(given) and max(given) < high), where)

    def _texts(self, given: Any, where: str) -> None:
        self._need(isinstance(given, list) and all(isinstance(text, str) for text in given), where)

    def _row(self, row: Any, bounds: tuple[tuple[int, int], ...], where: str) -> None:
        self._need(isinstance(row, list) and len(row) == len(bounds), where)
        for number, (low, high) in zip(row, bounds, strict=True):
            self._need(type(number) is int and low <= number < high, where)

    def _rows(self, name: str, *bounds: tuple[int, int]) -> None:
        for row in self.document[name]:
            self._row(row, bounds, name)

    def _objects(self, given: Any, where: str, **fields: Callable[..., Any]) -> list[dict[str, Any]]:
        """Objects, each with fields of these types."""
        self._need(isinstance(given, list), where)
        for entry in given:
            self._need(isinstance(entry, dict) and all(type(entry.get(k)) is kind for k, kind in fields.items()), where)
        return list(given)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)
