"""The report of an export: what was written, and how it compared when it was run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from wayfare.core.format import bytes_text, counted, time_text
from wayfare.exporters.inspect.layout import headline, listed, times_text
from wayfare.exporters.onnx.graph import OnnxGraph


class Checked(NamedTuple):
    """One call that was compared in ONNX Runtime: its dynamic sizes, and whether no run had seen its inputs."""

    sizes: dict[str, int]
    fresh: bool


class ExportReport:
    """The result of `wf.onnx.export`: print it, or look at its parts.

    `ops` says for each Wayfare op which ONNX operators it became and how often, `errors` for each output how far it was
    at most from Python's, `checked` at which sizes, `seconds` how long the first example takes.
    """

    def __init__(self, graph: OnnxGraph, opset: int, inputs: dict[str, str], outputs: dict[str, str]) -> None:
        self.files: list[Path] = []
        self.opset = opset
        # Names, with dtype and shape as text.
        self.inputs = inputs
        self.outputs = outputs
        self.ops: dict[str, Counter[str]] = {}
        self.nodes = 0
        for each in graph.walk():
            for node in each.nodes:
                self.nodes += 1
                self.ops.setdefault(node.op, Counter())[node.kind] += 1
        self.weights = sum(a.nbytes for a in graph.initializers.values())
        self.dropped: list[str] = []
        # What was assumed without being seen, such as combinations of branches that no example showed.
        self.notes: list[str] = []
        self.checked: list[Checked] = []
        self.errors: dict[str, float] = {}
        self.seconds: dict[str, float] = {}

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        """The least and the largest size at which each dynamic axis was compared."""
        names = dict.fromkeys(label for c in self.checked for label in c.sizes)
        sizes = {name: [c.sizes[name] for c in self.checked] for name in names}
        return {name: (min(tried), max(tried)) for name, tried in sizes.items()}

    def __str__(self) -> str:
        return "\n".join(self._lines())

    __repr__ = __str__

    def _lines(self) -> Iterator[str]:
        names = " and ".join(f.name for f in self.files)
        yield from headline(names, [
            counted(self.nodes, "node"), f"{bytes_text(self.weights)} of weights", f"opset {self.opset}",
        ])  # fmt: skip
        for title, specs in (("inputs", self.inputs), ("outputs", self.outputs)):
            yield from listed(title, [f"{name} {spec}" for name, spec in specs.items()])
        mapping = []
        for op, kinds in sorted(self.ops.items(), key=lambda item: (item[0] == "", item[0])):
            mapping.append(f"{op or 'sizes and results'} → {', '.join(times_text(kinds))}")
        yield from listed("ops", mapping)
        if self.dropped:
            yield from listed("left out", [f"dropout ({line})" for line in self.dropped])
        yield from listed("note", self.notes)
        if self.checked:
            fresh = sum(c.fresh for c in self.checked)
            calls = f"{counted(len(self.checked), 'call')} in ONNX Runtime, {fresh} of them on fresh inputs"
            yield from listed("checked", [calls])
            ranges = [f"{label} from {least} to {most}" for label, (least, most) in self.ranges.items()]
            yield from listed("sizes", [*ranges, "others were not tried"] if ranges else [])
            yield from listed("apart", [f"{name} {error:.1e} at most" for name, error in self.errors.items()])
        if self.seconds:
            yield from listed("time", [f"{name} {time_text(s)}" for name, s in self.seconds.items()])
